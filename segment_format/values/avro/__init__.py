"""Decodes Avro values to Arrow.

* `schema` parses schemas.
* `program` compiles a writer's schema and a reader's schema to a program.
* `kernel` runs the program over the bytes of values.
* `decoder` contains the public decoders, and manages the buffers.
"""
