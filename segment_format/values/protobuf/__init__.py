"""Decodes Protobuf to Arrow.

A message is fields in any order, each a tag (8 * field number + wire type) and a value: 0 varint, 1
eight bytes, 2 a length and bytes, 3 and 4 start and end of a group, 5 four bytes. `schema` reads
descriptors, `program` compiles them to tables, `kernel` runs these over values, `decoder` builds
Arrow arrays.
"""
