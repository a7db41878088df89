"""Tests edge cases of the wire format against upb."""

from __future__ import annotations

import pyarrow as pa
import pytest
from google import protobuf
from google.protobuf import descriptor_pb2

from segment_format.values.protobuf.decoder import ProtobufDecoder
from tests.segment_format.values.protobuf.oracle import Oracle, Proto, descriptor_set, rows_of
from tests.segment_format.values.protobuf.sample import sample_file


def varint(number: int, size: int) -> bytes:
    """Returns a varint of `size` bytes."""
    return bytes(
        (number >> 7 * index & 0x7F) | (0x80 if index < size - 1 else 0) for index in range(size)
    )


def groups(depth: int) -> bytes:
    return b"\xa3\x06" * depth + b"\xa4\x06" * depth


COUNT = 3 << 3
GOOD = {
    "a tag of five bytes": varint(COUNT, 5) + b"\x05",
    "the largest field number": varint(536870911 << 3, 5) + b"\x05",
    "a length of five bytes": b"\x0a" + varint(1, 5) + b"a",
    "a number of ten bytes": b"\x18" + varint(5, 10),
    "a number with bits beyond 64": b"\x18" + b"\xff" * 9 + b"\x7f",
    "a bool beyond 32 bits": b"\x60" + varint(1 << 32, 5),
    "a bool whose bits are dropped": b"\x60" + b"\x80" * 9 + b"\x02",
    "an enum beyond 32 bits": b"\x20" + varint((1 << 32) + 1, 5),
    "an enum number without a name": b"\x20\x63",
    "a known enum number and then an unknown one": b"\x20\x01\x20\x63",
    "a negative enum number": b"\x20" + varint(2**64 - 1, 10),
    "packed enums, one unknown": b"\x6a\x03\x01\x63\x02",
    "uint32 beyond 32 bits": b"\x58" + varint((1 << 32) + 7, 5),
    "packed and not": b"\x60\x01\x62\x02\x00\x01\x60\x00\x62\x00",
    "a string as a number": b"\x08\x01",
    "a number as a string": b"\x1a\x01a",
    "a number as a group": b"\x1b\x18\x05\x1c",
    "a message as a group": b"\x2b\x0a\x01a\x2c",
    "a group that is not known": groups(1) + b"\x18\x05",
    "100 groups in each other": groups(100),
    "field 0 within a group that is not known": b"\xa3\x06\x00\x01\xa4\x06",
    "an unknown number of ten bytes": b"\xa0\x06" + varint(1, 10),
    "unknown bytes that are no text": b"\xa2\x06\x01\xff",
    "bytes that are no text": b"\x72\x01\xff",
    "the last number counts": b"\x18\x01\x18\x02",
    "a message that comes twice": b"\x7a\x03\x0a\x01a\x7a\x02\x10\x02",
    "members of a oneof": b"\x52\x03\x0a\x01a\x58\x05\x52\x02\x10\x02",
    "the same member of a oneof": b"\x52\x03\x0a\x01a\x52\x02\x10\x02",
    "a member of a oneof as a string": b"\x58\x05\x5a\x01a",
}
BAD = {
    "a tag of six bytes": varint(COUNT, 6) + b"\x05",
    "a tag beyond 32 bits": varint(1 << 32 | COUNT, 5) + b"\x05",
    "field 0": b"\x00\x01",
    "wire type 6": b"\x0e",
    "wire type 7 of no known field": b"\xa7\x06",
    "wire type 6 in a group": b"\xa3\x06\x0e\xa4\x06",
    "a length of six bytes": b"\x0a" + varint(1, 6) + b"a",
    "a length beyond 31 bits": b"\x0a" + varint(1 << 31, 5),
    "a length beyond 32 bits": b"\x0a" + varint((1 << 32) + 1, 5) + b"a",
    "a number of eleven bytes": b"\x18" + varint(5, 11),
    "an unknown number of eleven bytes": b"\xa0\x06" + varint(5, 11),
    "a packed number that is truncated": b"\x62\x02\x01\x80",
    "a packed number that goes on behind": b"\x62\x01\x80\x01",
    "packed bytes beyond the end": b"\x62\x03\x01",
    "text that is not UTF-8": b"\x0a\x01\xff",
    "a surrogate": b"\x0a\x03\xed\xa0\x80",
    "bad text that another replaces": b"\x0a\x01\xff\x0a\x01a",
    "101 groups in each other": groups(101),
    "the end of a group alone": b"\xa4\x06",
    "a group without end": b"\xa3\x06",
    "a group that another ends": b"\xa3\x06\xac\x06",
    "a group that ends behind its message": b"\x7a\x02\xa3\x06\xa4\x06",
    "a double that is truncated": b"\x11\0\0\0\0\0\0\0",
    "an unknown four-byte field that is truncated": b"\xa5\x06\0\0\0",
}


ACCEPTED_BY_OLD_UPB = {"field 0 within a group that is not known", "a length of six bytes"}


@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
@pytest.mark.parametrize("name", [*GOOD, *BAD])
def test_wire_edge_case_matches_upb(name: str, syntax: str) -> None:
    if name in ACCEPTED_BY_OLD_UPB and protobuf.__version__.startswith("5."):
        pytest.skip("upb of protobuf 5 accepts this value")
    value = GOOD.get(name, BAD.get(name))
    assert value is not None
    file = sample_file(syntax)
    decoded = ProtobufDecoder(descriptor_set(file), "s.Order").decode(
        pa.array([value, b"\x18\x05"], pa.binary())
    )
    decoded.array.validate(full=True)
    oracle = Oracle(file, "s.Order")
    assert rows_of(decoded.array) == [oracle.row(value), oracle.row(b"\x18\x05")]
    assert [error.row for error in decoded.bad] == ([] if name in GOOD else [0])


def deep_file(depth: int, *, groups: bool) -> Proto:
    file = descriptor_pb2.FileDescriptorProto(
        name="d.proto", package="d", syntax="proto2" if groups else "proto3"
    )
    file.message_type.add(name="M0").field.add(name="x", number=1, type=5, label=1)
    for level in range(1, depth + 1):
        message = file.message_type.add(name=f"M{level}")
        message.field.add(
            name="m", number=1, type=10 if groups else 11, label=1, type_name=f".d.M{level - 1}"
        )
    return file


@pytest.mark.parametrize("unknown", [0, 1])
@pytest.mark.parametrize("is_group", [False, True])
@pytest.mark.parametrize("depth", [99, 100, 101])
def test_nesting_beyond_100_makes_row_bad(depth: int, is_group: bool, unknown: int) -> None:
    value = groups(unknown)
    for _ in range(depth - unknown):
        if is_group:
            value = b"\x0b" + value + b"\x0c"
        else:
            size = len(value)
            value = b"\x0a" + varint(size, 1 if size < 128 else 2) + value
    decoder = ProtobufDecoder(descriptor_set(deep_file(101, groups=is_group)), "d.M101")
    decoded = decoder.decode(pa.array([value], pa.binary()))
    assert len(decoded.bad) == (depth > 100)
    for error in decoded.bad:
        assert error.reason == "messages and groups are nested more than 100 deep"
        assert error.path.count("m") == 101 - unknown


def test_map_entry_that_has_an_unknown_field_is_kept() -> None:
    """upb drops an entry with an unknown field. The tested decoder keeps it, like the Java and C++
    libraries.
    """
    decoder = ProtobufDecoder(descriptor_set(sample_file("proto3")), "s.Order", ["tags"])
    value = b"\x32\x05\x0a\x01k\x18\x05" + b"\x32\x07\x08\x05\x12\x03\x0a\x01v"
    (row,) = rows_of(decoder.decode(pa.array([value], pa.binary())).array)
    assert row == {"tags": {"k": {"sku": "", "prices": []}, "": {"sku": "v", "prices": []}}}


def test_field_0_in_empty_message_makes_row_bad() -> None:
    """upb accepts field 0 in empty messages. The tested decoder never accepts it."""
    file = descriptor_pb2.FileDescriptorProto(name="e.proto", syntax="proto3")
    file.message_type.add(name="E")
    decoder = ProtobufDecoder(descriptor_set(file), "E")
    decoded = decoder.decode(pa.array([b"\x00\x01", b"\x08\x01"], pa.binary()))
    assert [error.row for error in decoded.bad] == [0]
    assert decoded.array.to_pylist() == [None, {}]
