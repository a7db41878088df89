"""Decodes JSON to Arrow columns of a given type.

`decoder` contains the public decoders. `ddl` parses and prints types in Spark's DDL, and infers a
type from sample values.
"""
