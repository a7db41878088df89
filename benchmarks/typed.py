"""Measures how fast one core decodes values to Arrow and exports them to Parquet.

Compares the compiled Avro kernel with fastavro and pyarrow. Every ratio compares figures of the
same run.
"""

from __future__ import annotations

import io
import json
import random
from typing import TYPE_CHECKING, Any, Final

import fastavro
import pyarrow as pa

from benchmarks import typed_export, typed_texts
from benchmarks.report import Row, at_least, best_seconds
from segment_format.values.avro.decoder import AvroDecoder
from segment_format.values.avro.schema import parse_avro

if TYPE_CHECKING:
    from collections.abc import Sequence

_MEGA: Final = 1e6
_BATCH: Final = 8192
"""Rows per batch in Spark."""
_TWO: Final = ("country", "amount")

FLAT: Final[dict[str, Any]] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "country", "type": "string"},
        {"name": "city", "type": "string"},
        {"name": "status", "type": "string"},
        {"name": "user", "type": "long"},
        {"name": "time", "type": "long"},
        {"name": "amount", "type": "double"},
        {"name": "tax", "type": "double"},
        {"name": "paid", "type": "boolean"},
        {"name": "note", "type": ["null", "string"]},
    ],
}
_ITEM: Final[dict[str, Any]] = {
    "type": "record",
    "name": "Item",
    "fields": [{"name": "sku", "type": "string"}, {"name": "count", "type": "int"}],
}
_USER: Final[dict[str, Any]] = {
    "type": "record",
    "name": "User",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}],
}
_NESTED: Final[dict[str, Any]] = {
    "type": "record",
    "name": "Basket",
    "fields": [
        {"name": "user", "type": _USER},
        {"name": "items", "type": {"type": "array", "items": _ITEM}},
        {"name": "labels", "type": {"type": "map", "values": "string"}},
    ],
}


def run(*, quick: bool) -> list[Row]:
    """Measures flat and nested Avro values, JSON and Protobuf values, and the export."""
    count, repeats = (_BATCH, 3) if quick else (4 * _BATCH, 9)
    chance = random.Random(1)
    flat = [make_order(chance, number) for number in range(count)]
    nested = [_basket(chance, number) for number in range(count)]
    return [
        *_compared("Avro, ten of ten fields", FLAT, flat, repeats, least=5, times=25),
        *_compared("Avro, two of ten fields", FLAT, flat, repeats, columns=_TWO, least=8),
        *_compared("Avro, a record, an array of records, a map", _NESTED, nested, repeats,
                   least=3.5, times=40),
        *typed_texts.run(flat, _TWO, repeats=repeats),
        *_exported(flat, 1 if quick else 8, repeats),
    ]  # fmt: skip


def _exported(orders: Sequence[dict[str, Any]], times: int, repeats: int) -> list[Row]:
    """Measures a typed backfill of a topic that contains the orders `times` times."""
    parsed = fastavro.parse_schema(FLAT)
    values = [encode_record(parsed, order) for order in orders]
    return typed_export.run(json.dumps(FLAT), values * times, repeats=repeats)


def make_order(chance: random.Random, number: int) -> dict[str, Any]:
    """Returns order `number` as a value of schema `FLAT`. Its fields are random."""
    return {
        "id": f"order-{number}",
        "country": chance.choice(["CH", "DE", "FR", "IT"]),
        "city": chance.choice(["Zurich", "Berlin", "Paris", "Milano"]),
        "status": chance.choice(["paid", "open", "shipped"]),
        "user": chance.randrange(1_000_000),
        "time": 1_700_000_000_000 + number,
        "amount": chance.random() * 100,
        "tax": chance.random(),
        "paid": chance.random() < 0.5,
        "note": f"note {number}" if number % 3 == 0 else None,
    }


def _basket(chance: random.Random, number: int) -> dict[str, Any]:
    return {
        "user": {"id": number, "name": chance.choice(["Anna", "Beat", "Christine"])},
        "items": [
            {"sku": f"sku{chance.randrange(1000)}", "count": chance.randrange(9)} for _ in range(2)
        ],
        "labels": {"channel": chance.choice(["web", "app"]), "tier": "gold"},
    }


def _compared(
    name: str,
    schema: dict[str, Any],
    records: Sequence[dict[str, Any]],
    repeats: int,
    *,
    columns: Sequence[str] | None = None,
    least: float,
    times: float | None = None,
) -> list[Row]:
    """Returns two rows: millions of decoded records per second, and the ratio to the speed of
    fastavro.
    """
    parsed = fastavro.parse_schema(schema)
    values = [encode_record(parsed, record) for record in records]
    batches = [
        pa.array(values[start : start + _BATCH], pa.binary())
        for start in range(0, len(values), _BATCH)
    ]
    decoder = AvroDecoder(parse_avro(json.dumps(schema)), columns=columns)
    wanted = decoder.type

    def ours() -> list[pa.Array]:
        return [decoder.decode(batch).array for batch in batches]

    def theirs() -> list[pa.Array]:
        read = fastavro.schemaless_reader
        return [
            pa.array([read(io.BytesIO(value), parsed, None) for value in batch.to_pylist()], wanted)
            for batch in batches
        ]

    if not pa.chunked_array(ours()).equals(pa.chunked_array(theirs())):
        raise AssertionError(f"{name}: this library and fastavro return different rows")
    mine, other = best_seconds(ours, theirs, repeats=repeats)
    size = sum(map(len, values)) / len(values)
    rate = len(values) / mine / _MEGA
    rows = [at_least(f"{name} → Arrow", rate, "M records/s", least).noted(f"{size:.0f} B each")]
    ratio = f"{name}, against fastavro + pyarrow"
    faster = other / mine
    row = Row(ratio, faster, "×") if times is None else at_least(ratio, faster, "×", times)
    return [*rows, row]


def encode_record(schema: Any, record: dict[str, Any]) -> bytes:  # noqa: ANN401  # fastavro's own
    """Returns a record as Avro bytes."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, record)
    return stream.getvalue()
