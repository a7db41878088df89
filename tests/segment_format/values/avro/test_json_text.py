"""Values in Avro's JSON encoding are no values of its binary one."""

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
"""As binary, −62 and what follows the first quote."""
NO_TEXT = b'{"n":1;"s":"hello"}'
READ = {"n": -62, "s": 'n":1;"s":"hello"}'}
ID = b"\0\0\0\0\1"


def is_object(value: bytes | None) -> bool:
    try:
        return value != b"{}" and isinstance(json.loads(value or b""), dict)
    except ValueError:
        return False


@pytest.mark.parametrize("seed", range(30))
def test_as_a_loop_has_it(seed: int) -> None:
    chance = random.Random(seed)
    pieces = [TEXT, b'{"a":{}}', b"{}", b"{", b"}", b"", b" ", b"\xff", b"[{}]", b"{}}", None]
    values = [chance.choice(pieces) for _ in range(chance.randrange(1, 40))]
    prefix = chance.choice([0, 5])
    headed = [None if one is None else bytes(prefix) + one for one in values]
    if prefix:
        headed += [b"{", b"{}", b"\0\0\0{}"]
        values += [None, None, None]
    start = chance.randrange(len(headed))
    array = pa.array([*headed, TEXT], pa.binary()).slice(start, len(headed) - start)
    expected = [row for row, one in enumerate(values[start:]) if is_object(one)]
    assert json_objects(array, prefix) == expected


def test_what_is_below_a_null_is_not_looked_at() -> None:
    held = pa.array([TEXT, TEXT], pa.binary()).buffers()
    array = pa.Array.from_buffers(pa.binary(), 2, [pa.py_buffer(b"\2"), *held[1:]])
    assert json_objects(array) == [1]


def test_two_numbers_are_no_text() -> None:
    kind = {"type": "record", "name": "R", "fields": [dict(FIELDS[0], name=name) for name in "ab"]}
    found = AvroDecoder(parse_avro(json.dumps(kind))).decode(pa.array([b"{}"], pa.binary()))
    assert found.array.to_pylist() == [{"a": -62, "b": -63}]
    assert not found.bad


def test_deep_texts_are_none() -> None:
    deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    assert json_objects(pa.array([deep, TEXT], pa.binary())) == [1]


def test_both_decoders_refuse_them_and_nothing_else() -> None:
    values = [NO_TEXT, TEXT, None, NO_TEXT, b'{"n":1}']
    alone = AvroDecoder(SCHEMA).decode(pa.array(values, pa.binary()))
    headed = [None if one is None else ID + one for one in values]
    headed.append(bytes(5) + TEXT)
    by_writer = FramedAvroDecoder(SCHEMA, lambda _: SCHEMA, CONFLUENT)
    found = by_writer.decode(pa.array(headed, pa.binary()))
    assert alone.array.to_pylist() == [READ, None, None, READ, None]
    assert found.array.to_pylist() == [READ, None, None, READ, None, None]
    expected = [(1, JSON_TEXT), (4, JSON_TEXT)]
    assert [(one.row, one.reason) for one in alone.bad] == expected
    assert [(one.row, one.reason) for one in found.bad[:2]] == expected
    assert found.bad[2].reason.startswith("the value has schema id 0")
    everything = by_writer.decode(pa.array([ID + TEXT], pa.binary()))
    assert [one.reason for one in everything.bad] == [JSON_TEXT]
