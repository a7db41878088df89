"""Values made to hurt: work and memory stay within what their bytes can hold."""

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
    """Rows, or reasons where they are bad."""
    found = AvroDecoder(parse_avro(json.dumps(schema))).decode(pa.array(values, pa.binary()))
    found.array.validate(full=True)
    rows: list[Any] = found.array.to_pylist()
    for one in found.bad:
        assert rows[one.row] is None
        rows[one.row] = one.reason
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
def test_each_cut_and_each_flipped_byte(schema: Json) -> None:
    writer = parse_avro(json.dumps(schema))
    data = max((Values(Random(seed)).of(writer) for seed in range(40)), key=len)[:400]
    values: list[bytes | None] = [data[:size] for size in range(len(data) + 1)]
    for at in range(len(data)):
        others = (0, 1, 2, 0x7F, 0x80, 0xFF, data[at] ^ 1, data[at] ^ 0x80)
        values += [data[:at] + bytes([byte]) + data[at + 1 :] for byte in others]
    check(AvroDecoder(writer), writer, writer, values)


@pytest.mark.parametrize("size", [-1, 2**31, 2**63 - 1, -(2**63), 100])
@pytest.mark.parametrize("kind", ["string", "bytes"])
def test_lengths_beyond_the_value(kind: str, size: int) -> None:
    reason = "a length is negative or exceeds the value"
    assert decode(kind, long(size) + b"abc") == [reason]


@pytest.mark.parametrize("count", [2**31, 2**63 - 1, -(2**63), -5, 100])
def test_more_items_than_bytes(count: int) -> None:
    size = long(3) if count < 0 else b""
    assert decode({"type": "array", "items": "int"}, long(count) + size + b"\2\2\2\0") == [
        "there are more items than the value has bytes for"
    ]


def test_items_without_bytes_are_few() -> None:
    nulls = {"type": "array", "items": "null"}
    too_many = "there are more items than the value has bytes for"
    assert decode(nulls, long(3) + b"\0", long(4_000_000) + b"\0") == [[None] * 3, too_many]
    # Many blocks, each within the bound.
    assert decode(nulls, long(MAX_EMPTY) + long(1) + b"\0") == [too_many]
    records = {"type": "array", "items": {"type": "record", "name": "Empty", "fields": []}}
    assert decode(records, long(2) + b"\0", long(2**62) + b"\0") == [[{}, {}], too_many]


def test_items_without_bytes_are_not_stepped_over_one_by_one() -> None:
    parts = {"type": "record", "name": "Empty", "fields": []}
    fields = [
        {"name": "a", "type": {"type": "array", "items": parts}},
        {"name": "b", "type": "int"},
    ]
    record = {"type": "record", "name": "R", "fields": fields}
    few = AvroDecoder(parse_avro(json.dumps(record)), columns=["b"])
    value = long(MAX_EMPTY) * 100_000 + b"\0\6"
    # Memory's speed: one by one, they are 400 million.
    began = time.process_time()
    found = few.decode(pa.array([value, b"\0\4", value], pa.binary()))
    assert time.process_time() - began < 0.5
    assert found.array.to_pylist() == [{"b": 3}, {"b": 2}, {"b": 3}]
    too_many = few.decode(pa.array([long(MAX_EMPTY + 1) + b"\0\6"], pa.binary()))
    assert [one.path for one in too_many.bad] == ["a"]


def test_blocks_that_lie_about_their_size() -> None:
    assert decode({"type": "array", "items": "int"}, long(-2) + long(2) + b"\2\4\0") == [[1, 2]]
    reason = "a block of items does not have its stated size"
    assert decode({"type": "array", "items": "int"}, long(-2) + long(1) + b"\2\4\0") == [reason]
    # Nobody looks into what is stepped over: the size tells.
    ints = {"type": "array", "items": "int"}
    fields = [{"name": "a", "type": ints}, {"name": "b", "type": "int"}]
    record = {"type": "record", "name": "R", "fields": fields}
    few = AvroDecoder(parse_avro(json.dumps(record)), columns=["b"])
    found = few.decode(pa.array([long(-2) + long(2) + b"\2\4\0\6"], pa.binary()))
    assert found.array.to_pylist() == [{"b": 3}]


def test_numbers_of_too_many_bits() -> None:
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


def test_text_that_is_not_utf_8() -> None:
    wrong = [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"a" * 40 + b"\xe2\x82"]
    values = [long(len(text)) + text for text in wrong]
    assert decode("string", *values) == ["text that is not UTF-8"] * 5
    assert decode("bytes", *values) == wrong
    # At the end of the buffer, and behind ASCII.
    assert decode("string", long(19) + "0123456789abcdefgé".encode()[:19]) == ["0123456789abcdefgé"]


@pytest.mark.parametrize("size", range(40))
def test_texts_of_any_size_at_any_place(size: int) -> None:
    text = "0123456789" * 4
    good = [long(size) + text[:size].encode() for _ in range(3)]
    assert decode("string", *good) == [text[:size]] * 3
    for at in range(size):
        spoiled = bytearray(text[:size].encode())
        spoiled[at] = 0xFF
        rows = decode("string", good[0], long(size) + spoiled, good[0])
        assert rows == [text[:size], "text that is not UTF-8", text[:size]]


def test_decimals_beyond_their_precision() -> None:
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0}

    def sized(number: int, size: int) -> bytes:
        return long(size) + number.to_bytes(size, "big", signed=True)

    most = 10**38 - 1
    too_much = "a decimal has more digits than its precision"
    values = [sized(most, 16), sized(-most, 40), sized(most + 1, 16), sized(-most - 1, 17)]
    values += [sized(2**127, 17), sized(-(2**127), 16), sized(2**200, 30), b"\0"]
    assert decode(schema, *values) == [most, -most, *[too_much] * 5, 0]


def test_milliseconds_beyond_microseconds() -> None:
    found = AvroDecoder(parse_avro('{"type": "long", "logicalType": "timestamp-millis"}')).decode(
        pa.array([long(2**63 // 1000), long(2**63 // 1000 + 1), long(-(2**63))], pa.binary())
    )
    assert [one.row for one in found.bad] == [1, 2]
    assert found.array.view(pa.int64())[0].as_py() == 2**63 // 1000 * 1000


def test_keys_that_come_again() -> None:
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


def test_a_small_batch_after_a_large_one_and_back() -> None:
    random = Random(3)
    writer = parse_avro(json.dumps(Schemas(random).record(4)))
    decoder = AvroDecoder(writer)
    for count in (1, 2000, 1, 0, 3000, 5):
        values: list[bytes | None] = [Values(random).of(writer) for _ in range(count)]
        check(decoder, writer, writer, values)


def test_one_huge_value_makes_no_room_for_more_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {"type": "map", "values": {"type": "array", "items": "string"}}
    decoder = AvroDecoder(parse_avro(json.dumps(schema)))
    few = long(1) + ENCODE.sized(b"key") + long(1) + ENCODE.sized(b"v") + b"\0\0"
    many = long(1) + ENCODE.sized(b"k") + long(50_000) + ENCODE.sized(b"v" * 40) * 50_000 + b"\0\0"
    taken: list[int] = []
    resized = arrow_buffers.resized

    def counted(buffer: pa.Buffer | None, size: int, *, is_zeroed: bool) -> pa.Buffer:
        taken.append(size)
        return resized(buffer, size, is_zeroed=is_zeroed)

    monkeypatch.setattr(arrow_buffers, "resized", counted)
    decoder.decode(pa.array([many], pa.binary()))
    assert sum(taken) < 10 * len(many)
    taken.clear()
    assert decoder.decode(pa.array([few] * 8192, pa.binary())).bad == ()
    assert sum(taken) < 4 << 20


def test_other_arrays_are_refused() -> None:
    with pytest.raises(TypeError, match="string"):
        AvroDecoder(parse_avro('"int"')).decode(pa.array(["a"]))
