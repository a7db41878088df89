"""Option `where`: parses a SQL predicate over the columns of records. Tasks evaluate it for each
row.
"""
