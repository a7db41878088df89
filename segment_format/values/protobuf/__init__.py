"""Decodes Protobuf messages to Arrow.

A message consists of fields in any order. Each field is a tag (8 * field number + wire type) and a
value. The wire types are: 0 varint, 1 eight bytes, 2 a length and that many bytes, 3 start of a
group, 4 end of a group, 5 four bytes.

* `schema` reads descriptors.
* `program` compiles descriptors to tables.
* `kernel` decodes values according to these tables.
* `decoder` builds Arrow arrays.
"""
