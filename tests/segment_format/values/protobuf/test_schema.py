"""Compares parsed descriptors with Google's library."""

from __future__ import annotations

from random import Random

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, struct_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from segment_format.values.protobuf.decoder import ProtobufDecoder
from segment_format.values.protobuf.schema import read_schema
from tests.segment_format.values.protobuf.generated import random_file
from tests.segment_format.values.protobuf.oracle import (
    WELL_KNOWN,
    Proto,
    descriptor_set,
    is_repeated,
)


def all_messages(descriptor: Proto) -> list[Proto]:
    return [
        descriptor,
        *(message for nested in descriptor.nested_types for message in all_messages(nested)),
    ]


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32 - 1))
def test_parsed_fields_of_random_messages_match_google_library(seed: int) -> None:
    file = random_file(Random(seed))
    pool = descriptor_pool.DescriptorPool()
    for well_known_file in WELL_KNOWN:
        pool.AddSerializedFile(well_known_file.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    google_file = pool.FindFileByName("t.proto")
    schema = read_schema(descriptor_set(file))
    messages = [m for top in google_file.message_types_by_name.values() for m in all_messages(top)]
    assert set(schema.messages) == {message.full_name for message in messages}
    for message in messages:
        parsed = schema.messages[message.full_name]
        assert parsed.is_map_entry == message.GetOptions().map_entry
        assert parsed.file == "t.proto"
        for field, expected in zip(parsed.fields, message.fields, strict=True):
            assert (field.name, field.number, field.type) == (
                *(expected.name, expected.number),
                expected.type,
            )
            assert field.repeated == is_repeated(expected)
            assert field.has_presence == expected.has_presence
            assert (field.default is not None) == expected.has_default_value
            oneof = expected.containing_oneof
            is_real = oneof is not None and not oneof.name.startswith("_")
            assert field.oneof == (oneof.index if is_real else -1)
            for kind in (expected.message_type, expected.enum_type):
                if kind is not None:
                    assert field.type_name == kind.full_name
    assert schema.enums["t.E"].values == {0: "ZERO", 1: "ONE", -5: "MINUS", 2**31 - 1: "BIG"}
    assert schema.enums["t.E"].is_closed == (file.syntax == "proto2")


def test_message_paths_include_nesting() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="n.proto", syntax="proto3")
    file.message_type.add(name="A")
    outer = file.message_type.add(name="B")
    outer.nested_type.add(name="C")
    outer.nested_type.add(name="D").nested_type.add(name="E")
    schema = read_schema(descriptor_set(file))
    paths = {name: message.path for name, message in schema.messages.items()}
    assert paths == {"A": (0,), "B": (1,), "B.C": (1, 0), "B.D": (1, 1), "B.D.E": (1, 1, 0)}


def test_truncated_or_changed_descriptor_parses_or_raises() -> None:
    file = descriptor_pb2.FileDescriptorProto()
    struct_pb2.DESCRIPTOR.CopyToProto(file)
    data = descriptor_set(file)
    for position in range(len(data)):
        for changed in (
            data[:position],
            data[:position] + bytes([data[position] ^ 0x84]) + data[position + 1 :],
        ):
            try:
                read_schema(changed)
            except ValueError as error:
                assert "not a usable Protobuf FileDescriptorSet" in str(error)  # noqa: PT017


def test_file_with_editions_syntax_raises() -> None:
    file = descriptor_pb2.FileDescriptorProto(
        name="e.proto", syntax="editions", edition=descriptor_pb2.EDITION_2023
    )
    with pytest.raises(ValueError, match=r"e\.proto has syntax 'editions'"):
        read_schema(descriptor_set(file))


def test_too_deep_message_nesting_raises() -> None:
    def field(number: int, data: bytes) -> bytes:
        size = bytearray()
        remaining = len(data)
        while remaining > 0x7F:
            size.append(remaining & 0x7F | 0x80)
            remaining >>= 7
        return bytes([number << 3 | 2, *size, remaining]) + data

    message = b""
    for _ in range(5000):
        message = field(1, b"m") + field(3, message)
    with pytest.raises(ValueError, match="100 levels deep"):
        read_schema(field(1, field(4, message)))


def test_invalid_message_type_raises() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", syntax="proto3")
    message = file.message_type.add(name="M")
    message.options.map_entry = True
    message.field.add(name="key", number=1, type=9, label=1)
    with pytest.raises(ValueError, match="message M is not a valid map entry"):
        read_schema(descriptor_set(file))
    value = message.field.add(name="value", number=2, type=9, label=1)
    assert read_schema(descriptor_set(file)).messages["M"].is_map_entry
    message.field[0].type = 1
    with pytest.raises(ValueError, match="message M is not a valid map entry"):
        read_schema(descriptor_set(file))
    message.options.map_entry = False
    value.number = 1
    with pytest.raises(ValueError, match="message M has a repeated field"):
        read_schema(descriptor_set(file))
    value.number, value.name = 2, "key"
    with pytest.raises(ValueError, match="message M has a repeated field"):
        read_schema(descriptor_set(file))
    del message.field[1]
    file.message_type.add(name="M")
    with pytest.raises(ValueError, match="message M is defined twice"):
        read_schema(descriptor_set(file))


@pytest.mark.parametrize(
    ("kind", "text"), [(5, "1099511627776"), (3, "x"), (4, str(2**70)), (8, "yes"), (12, "ÿ€")]
)
def test_invalid_default_raises(kind: int, text: str) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", syntax="proto2")
    message = file.message_type.add(name="M")
    message.field.add(name="x", number=1, type=kind, label=1, default_value=text)
    with pytest.raises(ValueError, match="field x has the invalid default"):
        ProtobufDecoder(descriptor_set(file), "M")
