"""JSON values to Arrow columns: a type is compiled to a program that one kernel runs.

`decoder` is the way in. `ddl` reads and writes types as Spark's DDL, `inference` finds one in a
sample.
"""
