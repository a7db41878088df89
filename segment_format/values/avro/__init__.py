"""Decodes Avro to Arrow.

`schema` parses schemas, `program` compiles a writer's and a reader's schema to a program, `kernel`
runs the program over the bytes of values, and `decoder` has the public decoders and manages the
buffers.
"""
