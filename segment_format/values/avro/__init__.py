"""Avro values to Arrow columns: two schemas are compiled to a program that one kernel runs.

`parse` reads schemas, `resolution` and `program` compile them, `kernel` runs the program over the
bytes, `buffers` holds what it fills, `decoder` and `confluent` are their faces.
"""
