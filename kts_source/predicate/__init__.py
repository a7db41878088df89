"""Option `where`: a SQL predicate over the table's columns, evaluated by the tasks."""
