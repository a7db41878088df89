"""Protobuf values as Arrow columns.

A message is fields in any order, each a tag (8 · field number + wire type) and a value: 0 varint,
1 eight bytes, 2 a length and bytes, 3 and 4 begin and end of a group, 5 four bytes.

`schema` reads descriptors, `columns` says what each field becomes, `program` lays it out as
numbers, `kernel` runs these over values, `arrays` makes the filled memory an Arrow array; `decoder`
joins them.
"""
