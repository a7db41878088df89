"""Decodes JSON to Arrow: a kernel runs a compiled target type over the text, see `decoder`.

`ddl` reads and writes types as Spark's DDL, and infers a type from a sample.
"""
