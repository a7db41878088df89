"""Checks that message indexes refer to the messages of a schema's own file, not of its imports."""

from __future__ import annotations

from kts_source.registry.schema_registry import (
    PROTOBUF,
    RegisteredSchema,
    descriptor_set,
    messages_of,
)
from segment_format.values.protobuf.schema import read_schema
from tests.segment_format.values.protobuf.sample import sample_file


def test_messages_of_imported_files_have_no_message_index() -> None:
    file = sample_file("proto3")
    own = type(file)(name="own.proto", package="own", syntax="proto3")
    own.message_type.add(name="Only").nested_type.add(name="Inner")
    schema_parts = [
        (name, file_proto.SerializeToString())
        for name, file_proto in (("s", file), ("schema 1", own))
    ]
    schema = RegisteredSchema(PROTOBUF, tuple(schema_parts))
    assert messages_of(schema) == {(0,): "own.Only", (0, 0): "own.Only.Inner"}
    files = {message.file for message in read_schema(descriptor_set(schema)).messages.values()}
    assert files == {"s", "schema 1"}
