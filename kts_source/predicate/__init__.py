"""Option `where`: a SQL predicate over the table's columns, decided where the bytes are."""
