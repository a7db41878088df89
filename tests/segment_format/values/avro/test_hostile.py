"""Checks that time and memory stay proportional to the size of hostile values."""

from __future__ import annotations

import json
import time
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from segment_format.kernels import arrow_buffers
from segment_format.values.avro.decoder import AvroDecoder
from segment_format.values.avro.opcodes import MAX_EMPTY
from segment_format.values.avro.schema import parse_avro
from tests.segment_format.values.avro.generated import Json, Schemas, Values
from tests.segment_format.values.avro.test_decoder import check

ENCODE = Values(Random(0))


def long(value: int) -> bytes:
    raw = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*out, raw])


def decode(schema: Json, *values: bytes) -> list[Any]:
    """Decodes the values. The result contains the error reason in place of each bad row."""
    decoded = AvroDecoder(parse_avro(json.dumps(schema))).decode(pa.array(values, pa.binary()))
    decoded.array.validate(full=True)
    rows: list[Any] = decoded.array.to_pylist()
    for error in decoded.bad:
        assert rows[error.row] is None
        rows[error.row] = error.reason
    return rows


SAMPLES = [
    {"type": "array", "items": ["null", {"type": "map", "values": "string"}]},
    {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "text", "type": "string"},
            {"name": "number", "type": ["null", "long"]},
            {"name": "items", "type": {"type": "array", "items": {"type": "record", "name": "I",
                "fields": [{"name": "price", "type": "double"}, {"name": "tags", "type": {
                    "type": "map", "values": "int"}}]}}},
            {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["A", "B"]}},
            {"name": "sum", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4}},
        ],
    },
]  # fmt: skip


@pytest.mark.parametrize("schema", SAMPLES)
def test_decoder_matches_reference_on_truncated_or_changed_values(schema: Json) -> None:
    writer = parse_avro(json.dumps(schema))
    data = max((Values(Random(seed)).of(writer) for seed in range(40)), key=len)[:400]
    values: list[bytes | None] = [data[:size] for size in range(len(data) + 1)]
    for position in range(len(data)):
        replacements = (0, 1, 2, 0x7F, 0x80, 0xFF, data[position] ^ 1, data[position] ^ 0x80)
        values += [data[:position] + bytes([byte]) + data[position + 1 :] for byte in replacements]
    check(AvroDecoder(writer), writer, writer, values)


@pytest.mark.parametrize("size", [-1, 2**31, 2**63 - 1, -(2**63), 100])
@pytest.mark.parametrize("kind", ["string", "bytes"])
def test_length_beyond_value_makes_row_bad(kind: str, size: int) -> None:
    reason = "a length is negative or exceeds the value"
    assert decode(kind, long(size) + b"abc") == [reason]


@pytest.mark.parametrize("count", [2**31, 2**63 - 1, -(2**63), -5, 100])
def test_more_items_than_remaining_bytes_make_row_bad(count: int) -> None:
    size = long(3) if count < 0 else b""
    assert decode({"type": "array", "items": "int"}, long(count) + size + b"\2\2\2\0") == [
        "there are more items than the value has bytes for"
    ]


def test_too_many_items_without_bytes_make_row_bad() -> None:
    nulls = {"type": "array", "items": "null"}
    too_many = "there are more items than the value has bytes for"
    assert decode(nulls, long(3) + b"\0", long(4_000_000) + b"\0") == [[None] * 3, too_many]
    # Two blocks are each within the limit, but exceed it together.
    assert decode(nulls, long(MAX_EMPTY) + long(1) + b"\0") == [too_many]
    records = {"type": "array", "items": {"type": "record", "name": "Empty", "fields": []}}
    assert decode(records, long(2) + b"\0", long(2**62) + b"\0") == [[{}, {}], too_many]


def test_items_without_bytes_are_skipped_quickly() -> None:
    empty_record = {"type": "record", "name": "Empty", "fields": []}
    fields = [
        {"name": "a", "type": {"type": "array", "items": empty_record}},
        {"name": "b", "type": "int"},
    ]
    record = {"type": "record", "name": "R", "fields": fields}
    few = AvroDecoder(parse_avro(json.dumps(record)), columns=["b"])
    value = long(MAX_EMPTY) * 100_000 + b"\0\6"
    # Skipping 400 million items one by one would take longer.
    began = time.process_time()
    result = few.decode(pa.array([value, b"\0\4", value], pa.binary()))
    assert time.process_time() - began < 0.5
    assert result.array.to_pylist() == [{"b": 3}, {"b": 2}, {"b": 3}]
    too_many = few.decode(pa.array([long(MAX_EMPTY + 1) + b"\0\6"], pa.binary()))
    assert [error.path for error in too_many.bad] == ["a"]


def test_wrong_size_of_an_array_block_makes_row_bad() -> None:
    assert decode({"type": "array", "items": "int"}, long(-2) + long(2) + b"\2\4\0") == [[1, 2]]
    reason = "a block of items does not have its stated size"
    assert decode({"type": "array", "items": "int"}, long(-2) + long(1) + b"\2\4\0") == [reason]
    # The content of skipped blocks is not checked, only their size.
    ints = {"type": "array", "items": "int"}
    fields = [{"name": "a", "type": ints}, {"name": "b", "type": "int"}]
    record = {"type": "record", "name": "R", "fields": fields}
    few = AvroDecoder(parse_avro(json.dumps(record)), columns=["b"])
    result = few.decode(pa.array([long(-2) + long(2) + b"\2\4\0\6"], pa.binary()))
    assert result.array.to_pylist() == [{"b": 3}]


def test_number_with_too_many_bits_makes_row_bad() -> None:
    assert decode("long", b"\xff" * 9 + b"\1", b"\xff" * 9 + b"\2", b"\x80" * 10 + b"\0") == [
        -(2**63),
        "a number has more than 64 bits",
        "a number has more than 64 bits",
    ]
    assert decode("int", long(2**31 - 1), long(2**31), long(-(2**31) - 1)) == [
        2**31 - 1,
        "an int has more than 32 bits",
        "an int has more than 32 bits",
    ]


def test_invalid_utf8_makes_row_bad() -> None:
    wrong = [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"a" * 40 + b"\xe2\x82"]
    values = [long(len(text)) + text for text in wrong]
    assert decode("string", *values) == ["text that is not UTF-8"] * 5
    assert decode("bytes", *values) == wrong
    # At the end of the buffer, and after ASCII text.
    assert decode("string", long(19) + "0123456789abcdefgé".encode()[:19]) == ["0123456789abcdefgé"]


@pytest.mark.parametrize("size", range(40))
def test_utf8_is_checked_at_every_position(size: int) -> None:
    text = "0123456789" * 4
    good = [long(size) + text[:size].encode() for _ in range(3)]
    assert decode("string", *good) == [text[:size]] * 3
    for position in range(size):
        damaged = bytearray(text[:size].encode())
        damaged[position] = 0xFF
        rows = decode("string", good[0], long(size) + damaged, good[0])
        assert rows == [text[:size], "text that is not UTF-8", text[:size]]


def test_decimal_beyond_precision_makes_row_bad() -> None:
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0}

    def sized(number: int, size: int) -> bytes:
        return long(size) + number.to_bytes(size, "big", signed=True)

    max_value = 10**38 - 1
    too_much = "a decimal has more digits than its precision"
    values = [
        sized(max_value, 16),
        sized(-max_value, 40),
        sized(max_value + 1, 16),
        sized(-max_value - 1, 17),
    ]
    values += [sized(2**127, 17), sized(-(2**127), 16), sized(2**200, 30), b"\0"]
    assert decode(schema, *values) == [max_value, -max_value, *[too_much] * 5, 0]


def test_timestamp_beyond_microseconds_makes_row_bad() -> None:
    result = AvroDecoder(parse_avro('{"type": "long", "logicalType": "timestamp-millis"}')).decode(
        pa.array([long(2**63 // 1000), long(2**63 // 1000 + 1), long(-(2**63))], pa.binary())
    )
    assert [error.row for error in result.bad] == [1, 2]
    assert result.array.view(pa.int64())[0].as_py() == 2**63 // 1000 * 1000


def test_duplicate_map_keys_keep_last_value() -> None:
    schema = {"type": "map", "values": ["null", "int"]}

    def entries(*pairs: tuple[str, int | None]) -> bytes:
        out = long(len(pairs))
        for key, value in pairs:
            out += ENCODE.sized(key.encode())
            out += b"\0" if value is None else b"\2" + long(value)
        return out + b"\0"

    few = entries(("a", 1), ("b", 2), ("a", None))
    many = entries(*((f"key{number % 50}", number) for number in range(200)))
    rows = decode(schema, few, b"\0", many, entries(("a", 1)))
    assert rows[0] == [("b", 2), ("a", None)]
    assert rows[1] == []
    assert rows[2] == [(f"key{number % 50}", number) for number in range(150, 200)]
    assert rows[3] == [("a", 1)]


def test_batches_of_different_sizes_decode_with_one_decoder() -> None:
    random = Random(3)
    writer = parse_avro(json.dumps(Schemas(random).record(4)))
    decoder = AvroDecoder(writer)
    for count in (1, 2000, 1, 0, 3000, 5):
        values: list[bytes | None] = [Values(random).of(writer) for _ in range(count)]
        check(decoder, writer, writer, values)


def test_huge_value_does_not_enlarge_later_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {"type": "map", "values": {"type": "array", "items": "string"}}
    decoder = AvroDecoder(parse_avro(json.dumps(schema)))
    few = long(1) + ENCODE.sized(b"key") + long(1) + ENCODE.sized(b"v") + b"\0\0"
    many = long(1) + ENCODE.sized(b"k") + long(50_000) + ENCODE.sized(b"v" * 40) * 50_000 + b"\0\0"
    sizes: list[int] = []
    resized = arrow_buffers.resized

    def counted(buffer: pa.Buffer | None, size: int, *, is_zeroed: bool) -> pa.Buffer:
        sizes.append(size)
        return resized(buffer, size, is_zeroed=is_zeroed)

    monkeypatch.setattr(arrow_buffers, "resized", counted)
    decoder.decode(pa.array([many], pa.binary()))
    assert sum(sizes) < 10 * len(many)
    sizes.clear()
    assert decoder.decode(pa.array([few] * 8192, pa.binary())).bad == ()
    assert sum(sizes) < 4 << 20


def test_avro_input_that_is_not_binary_raises() -> None:
    with pytest.raises(TypeError, match="string"):
        AvroDecoder(parse_avro('"int"')).decode(pa.array(["a"]))
