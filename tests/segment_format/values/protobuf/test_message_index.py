"""Tests Confluent's message index, which precedes a message."""

from __future__ import annotations

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from segment_format.values.protobuf.decoder import (
    ConfluentProtobufDecoder,
    ProtobufDecoder,
    read_message_index,
)
from tests.segment_format.values.protobuf.oracle import Proto, descriptor_set


@pytest.mark.parametrize(
    ("data", "path", "start"),
    [
        (b"\x00rest", (0,), 1),
        (b"\x02\x00", (0,), 2),
        (b"\x02\x02", (1,), 2),
        (b"\x04\x02\x06x", (1, 3), 3),
        (b"\x02\xd8\x04", (300,), 3),
        (b"\x80\x00", (0,), 2),
    ],
)
def test_message_index_parses(data: bytes, path: tuple[int, ...], start: int) -> None:
    assert read_message_index(data) == (path, start)
    assert read_message_index(b"head!" + data, 5) == (path, start + 5)


@pytest.mark.parametrize(
    "data", [b"", b"\x02", b"\x01", b"\x02\x01", b"\xca\x01" + bytes(101), b"\x80" * 11]
)
def test_invalid_message_index_raises(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"index|number"):
        read_message_index(data)


def _add(messages: Proto, name: str) -> Proto:
    message = messages.add(name=name)
    message.field.add(name="x", number=1, type=9, label=1)
    return message


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("A", b"\x00\x00\x00\x00\x01\x00"),
        ("B", b"\x00\x00\x00\x00\x01\x02\x02"),
        ("B.C", b"\x00\x00\x00\x00\x01\x04\x02\x00"),
        ("B.D.E", b"\x00\x00\x00\x00\x01\x06\x02\x02\x00"),
        ("F69", b"\x00\x00\x00\x00\x01\x02\x8e\x01"),
    ],
)
def test_message_index_of_confluent_serializer_names_the_message(name: str, prefix: bytes) -> None:
    """confluent-kafka 2.16.1 wrote these prefixes for the messages of this file."""
    file = descriptor_pb2.FileDescriptorProto(name="n.proto", package="n", syntax="proto3")
    _add(file.message_type, "A")
    outer = _add(file.message_type, "B")
    _add(outer.nested_type, "C")
    _add(_add(outer.nested_type, "D").nested_type, "E")
    for number in range(70):
        _add(file.message_type, f"F{number}")
    decoder = ProtobufDecoder(descriptor_set(file), f"n.{name}")
    values = pa.array([prefix + b"\n\x07Z\xc3\xbcrich", prefix[:5] + b"\x02\x62"], pa.binary())
    decoded = ConfluentProtobufDecoder(decoder).decode(values)
    assert decoded.array.to_pylist() == [{"x": "Zürich"}, None]
    assert [error.reason for error in decoded.bad] == [
        f"message index [49], not {list(decoder.message_index)}"
    ]
