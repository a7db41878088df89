"""Decodes Avro to Arrow.

`schema` parses schemas, `program` compiles a writer's and a reader's schema to a program, `kernel`
runs it over the bytes, `runner` manages the buffers, and `decoder` has the public decoders.
"""
