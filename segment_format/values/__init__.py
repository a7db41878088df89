"""Keys and values of records as typed columns: bytes of Avro, JSON or Protobuf to Arrow.

Ring 0: a decoder gets the bytes of many values and what schemas they follow, and gives one Arrow
array. Where schemas come from is not known here.
"""
