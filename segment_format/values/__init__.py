"""Decodes keys and values of records to Arrow columns: Avro, JSON and Protobuf.

Decoders decode many values at once. The caller passes the schemas, or functions that look up
schemas.
"""
