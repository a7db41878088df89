"""Tests that values in Avro's JSON encoding are rejected by the binary decoders."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pytest

from segment_format.values.avro.decoder import AvroDecoder, FramedAvroDecoder, json_objects
from segment_format.values.avro.schema import parse_avro
from segment_format.values.registry_framing import CONFLUENT, JSON_TEXT

FIELDS = [{"name": "n", "type": "long"}, {"name": "s", "type": "string"}]
SCHEMA = parse_avro(json.dumps({"type": "record", "name": "R", "fields": FIELDS}))
TEXT = b'{"n":1,"s":"hello"}'
"""In binary Avro, this is the number −62 and the text after the first quote."""
NO_TEXT = b'{"n":1;"s":"hello"}'
READ = {"n": -62, "s": 'n":1;"s":"hello"}'}
ID = b"\0\0\0\0\1"


def is_object(value: bytes | None) -> bool:
    try:
        return value != b"{}" and isinstance(json.loads(value or b""), dict)
    except ValueError:
        return False


@pytest.mark.parametrize("seed", range(30))
def test_json_objects_finds_the_same_rows_as_a_python_loop(seed: int) -> None:
    chance = random.Random(seed)
    pieces = [TEXT, b'{"a":{}}', b"{}", b"{", b"}", b"", b" ", b"\xff", b"[{}]", b"{}}", None]
    values = [chance.choice(pieces) for _ in range(chance.randrange(1, 40))]
    prefix = chance.choice([0, 5])
    headed = [None if value is None else bytes(prefix) + value for value in values]
    if prefix:
        headed += [b"{", b"{}", b"\0\0\0{}"]
        values += [None, None, None]
    start = chance.randrange(len(headed))
    array = pa.array([*headed, TEXT], pa.binary()).slice(start, len(headed) - start)
    expected = [row for row, value in enumerate(values[start:]) if is_object(value)]
    assert json_objects(array, prefix) == expected


def test_json_objects_ignores_bytes_of_null_rows() -> None:
    buffers = pa.array([TEXT, TEXT], pa.binary()).buffers()
    array = pa.Array.from_buffers(pa.binary(), 2, [pa.py_buffer(b"\2"), *buffers[1:]])
    assert json_objects(array) == [1]


def test_json_text_that_is_valid_avro_decodes_as_avro_numbers() -> None:
    kind = {"type": "record", "name": "R", "fields": [dict(FIELDS[0], name=name) for name in "ab"]}
    result = AvroDecoder(parse_avro(json.dumps(kind))).decode(pa.array([b"{}"], pa.binary()))
    assert result.array.to_pylist() == [{"a": -62, "b": -63}]
    assert not result.bad


def test_json_objects_ignores_too_deeply_nested_text() -> None:
    deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    assert json_objects(pa.array([deep, TEXT], pa.binary())) == [1]


def test_json_text_makes_row_bad_with_and_without_confluent_header() -> None:
    values = [NO_TEXT, TEXT, None, NO_TEXT, b'{"n":1}']
    alone = AvroDecoder(SCHEMA).decode(pa.array(values, pa.binary()))
    headed = [None if value is None else ID + value for value in values]
    headed.append(bytes(5) + TEXT)
    by_writer = FramedAvroDecoder(SCHEMA, lambda _: SCHEMA, CONFLUENT)
    framed_result = by_writer.decode(pa.array(headed, pa.binary()))
    assert alone.array.to_pylist() == [READ, None, None, READ, None]
    assert framed_result.array.to_pylist() == [READ, None, None, READ, None, None]
    expected = [(1, JSON_TEXT), (4, JSON_TEXT)]
    assert [(error.row, error.reason) for error in alone.bad] == expected
    assert [(error.row, error.reason) for error in framed_result.bad[:2]] == expected
    assert framed_result.bad[2].reason.startswith("the value has schema id 0")
    everything = by_writer.decode(pa.array([ID + TEXT], pa.binary()))
    assert [error.reason for error in everything.bad] == [JSON_TEXT]
