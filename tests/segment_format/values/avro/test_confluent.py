"""Tests Avro values with the header of Confluent's serializers."""

from __future__ import annotations

import json
import uuid
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from segment_format.values.avro.decoder import AvroDecoder, FramedAvroDecoder
from segment_format.values.avro.schema import parse_avro
from segment_format.values.registry_framing import CONFLUENT
from tests.segment_format.values.avro.generated import Values
from tests.segment_format.values.avro.test_decoder import is_same

if TYPE_CHECKING:
    from segment_format.values.avro.schema import Schema


def framed(schema_id: int | str, value: bytes) -> bytes:
    if isinstance(schema_id, str):
        return b"\1" + uuid.UUID(schema_id).bytes + value
    return b"\0" + schema_id.to_bytes(4, "big") + value


FIELDS = {
    "a": {"name": "a", "type": "long", "default": 7},
    "b": {"name": "b", "type": ["null", "string"], "default": None},
    "c": {"name": "c", "type": {"type": "array", "items": "string"}, "default": ["x"]},
    "old": {"name": "old", "type": {"type": "map", "values": "double"}},
    "narrow": {"name": "a", "type": "int"},
    "text": {"name": "b", "type": "string"},
}
WRITERS = ["a b c", "c b a", "narrow", "text old", "old c narrow"]


def schema_of(names: str) -> Schema:
    fields = [FIELDS[name] for name in names.split()]
    return parse_avro(json.dumps({"type": "record", "name": "R", "fields": fields}))


def test_rows_of_many_writer_schemas_keep_their_order() -> None:
    random = Random(1)
    reader = schema_of("a b c")
    writers: dict[int | str, Schema] = {
        random.randrange(1, 2**32): schema_of(names) for names in WRITERS
    }
    # Some rows name their writer by GUID.
    writers |= {
        str(uuid.UUID(int=random.getrandbits(128))): schema_of(names) for names in WRITERS[::2]
    }
    alone = {schema_id: AvroDecoder(reader, writer) for schema_id, writer in writers.items()}
    decoder = FramedAvroDecoder(reader, writers.__getitem__, CONFLUENT)
    for _ in range(5):
        ids = [random.choice(list(writers)) for _ in range(150)]
        values = [Values(random).of(writers[schema_id]) for schema_id in ids]
        bodies = [
            Values(random).damaged(value) if random.random() < 0.1 else value for value in values
        ]
        rows = [framed(schema_id, body) for schema_id, body in zip(ids, bodies, strict=True)]
        result = decoder.decode(pa.array([b"ignored", *rows], pa.binary()).slice(1))
        result.array.validate(full=True)
        bad = {error.row: (error.path, error.reason) for error in result.bad}
        assert 0 < len(bad) < 50
        for row, (schema_id, body) in enumerate(zip(ids, bodies, strict=True)):
            expected = alone[schema_id].decode(pa.array([body], pa.binary()))
            assert is_same(result.array.slice(row, 1), expected.array)
            assert [(error.path, error.reason) for error in expected.bad] == (
                [bad[row]] if row in bad else []
            )


def test_row_without_writer_schema_is_bad() -> None:
    requests: list[int | str] = []

    def writer_of(schema_id: int | str) -> Schema:
        requests.append(schema_id)
        if schema_id == 7:
            return parse_avro('"string"')
        if schema_id == 8:
            return parse_avro("{")
        raise LookupError("the registry does not know it")

    decoder = FramedAvroDecoder(parse_avro('["null", "long"]'), writer_of, CONFLUENT)
    good = framed(1, b"\6")
    rows = [None, b"", b"\0\0\0\0", b"\1" + good[1:], framed(0, b"\6"), framed(7, b"\2a"),
            framed(8, b""), framed(9, b""), framed(9, b""), None]  # fmt: skip
    result = decoder.decode(pa.array(rows, pa.binary()))
    assert result.array.null_count == len(rows)
    assert [error.row for error in result.bad] == [1, 2, 3, 4, 5, 6, 7, 8]
    reasons = [error.reason for error in result.bad]
    assert "shorter" in reasons[0]
    assert reasons[0] == reasons[1]
    assert "neither byte 0" in reasons[2]
    assert "Apicurio" in reasons[3]
    assert reasons[4] == "schema 7: string cannot be read as union of null, long"
    assert reasons[5].startswith("schema 8: not an Avro schema")
    assert reasons[6] == reasons[7] == "schema 9: the registry does not know it"
    # The decoder looks up each id once per batch, and again only if the id had no schema.
    assert requests == [7, 8, 9]
    decoder.decode(pa.array(rows, pa.binary()))
    assert requests == [7, 8, 9, 8, 9]


def test_registry_error_is_raised_unchanged() -> None:
    def broken(_schema_id: int | str) -> Schema:
        raise ConnectionError("not there")

    decoder = FramedAvroDecoder(parse_avro('"int"'), broken, CONFLUENT)
    with pytest.raises(ConnectionError):
        decoder.decode(pa.array([framed(1, b"\2")], pa.binary()))


@pytest.mark.parametrize("values", [[], [None], [None, None], [b"", b""], [b"\0"]])
def test_empty_and_null_input_decodes(values: list[bytes | None]) -> None:
    decoder = FramedAvroDecoder(parse_avro('"int"'), lambda _id: parse_avro('"int"'), CONFLUENT)
    result = decoder.decode(pa.array(values, pa.binary()))
    assert result.array.null_count == len(values)
    assert len(result.bad) == len(values) - values.count(None)
    plain = AvroDecoder(parse_avro('"int"')).decode(pa.array(values, pa.binary()))
    assert len(plain.array) == len(values)


# Confluent's AbstractKafkaAvroSerializer writes such values without Avro's length.
BARE = [
    b"",
    b"\x04ab",
    b'{"id',
    b"\0",
    b"\x02z",
    b"x" * 63,
    b"x" * 64,
    b"y" * 8192,
    b"\xff" * 70_000,
]


@pytest.mark.parametrize("schema_id", [7, "00112233-4455-6677-8899-aabbccddeeff"])
@pytest.mark.parametrize(
    "reader", ['"bytes"', '["null", "bytes"]', '{"type": "bytes", "logicalType": "unknown"}']
)
def test_confluent_values_of_bytes_schema_have_no_length_prefix(
    reader: str, schema_id: int | str
) -> None:
    decoder = FramedAvroDecoder(
        parse_avro(reader), {schema_id: parse_avro('"bytes"')}.__getitem__, CONFLUENT
    )
    rows = [framed(schema_id, value) for value in BARE]
    for values in (rows, [b"no header", None, *rows, None]):
        result = decoder.decode(pa.array([b"ignored", *values], pa.binary()).slice(1))
        result.array.validate(full=True)
        due = BARE if values is rows else [None, None, *BARE, None]
        assert result.array.to_pylist() == due
        assert [bad.row for bad in result.bad] == ([] if values is rows else [0])


def test_batch_that_mixes_bytes_schema_with_other_schemas_decodes() -> None:
    writers: dict[int | str, Schema] = {
        1: parse_avro('"bytes"'),
        2: parse_avro('"string"'),
        3: parse_avro('["null", "bytes"]'),
    }
    decoder = FramedAvroDecoder(parse_avro('["null", "bytes"]'), writers.__getitem__, CONFLUENT)
    values = [
        framed(2, b"\x04ab"),
        framed(1, b"\x04ab"),
        None,
        framed(3, b"\2\x04ab"),
        framed(1, b""),
    ]
    result = decoder.decode(pa.array(values, pa.binary()))
    assert result.array.to_pylist() == [b"ab", b"\x04ab", None, b"ab", b""]
    assert not result.bad


def test_plain_avro_bytes_decode_with_their_length() -> None:
    result = AvroDecoder(parse_avro('"bytes"')).decode(pa.array([b"\x04ab"], pa.binary()))
    assert result.array.to_pylist() == [b"ab"]
