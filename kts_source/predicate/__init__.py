"""Option `where`: parses a SQL predicate over the columns of the table. Tasks evaluate it for each
row.
"""
