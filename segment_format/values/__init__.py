"""Decodes keys and values of records to Arrow columns: Avro, JSON and Protobuf.

Decoders take the bytes of many values and their schemas. Looking up schemas is up to the caller.
"""
