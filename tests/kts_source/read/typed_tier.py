"""Writes a topic of Avro values in two partitions, with a tombstone and invalid values."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord

if TYPE_CHECKING:
    from pathlib import Path

TOPIC = "orders"
TOPIC_ID = uuid.UUID(int=7)
T0 = 1_700_000_000_000
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "country", "type": "string"},
        {"name": "amount", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {
            "name": "tags",
            "type": {"type": "map", "values": {"type": "array", "items": "bytes"}},
            "default": {},
        },
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
            "default": "\u0001",
        },
        {"name": "day", "type": {"type": "int", "logicalType": "date"}, "default": 0},
    ],
}
OLD: dict[str, Any] = {**SCHEMA, "fields": SCHEMA["fields"][:4]}
"""Schema of an earlier writer, with fewer fields."""


def long(value: int) -> bytes:
    raw = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*out, raw])


def text(value: str) -> bytes:
    return long(len(value.encode())) + value.encode()


def avro(number: int, *, old: bool = False) -> bytes:
    """Returns order `number` as Avro bytes. If `old` is true, an earlier schema with fewer fields
    is used.
    """
    value = text("CH" if number % 3 else "DE") + long(number) + long(T0 + number) + long(number)
    if old:
        return value
    note = b"\0" if number % 2 else b"\2" + text(f"n{number}")
    tags = long(1) + text("k") + long(1) + long(2) + b"\xff\x01" + b"\0" + b"\0"
    return value + note + tags + long(2) + b"\x01\x00" + long(number)


def row(number: int, *, old: bool = False) -> dict[str, Any]:
    """Returns the country, amount, note and tags that a table must have for order `number`."""
    return {
        "country": "CH" if number % 3 else "DE",
        "amount": number,
        "note": None if number % 2 or old else f"n{number}",
        "tags": [] if old else [("k", [b"\xff\x01"])],
    }


def write(
    root: Path,
    values: list[list[bytes | None]],
    topic: str = TOPIC,
    topic_id: uuid.UUID = TOPIC_ID,
) -> dict[str, str]:
    """Writes one partition per list of `values`, in segments of ten records. Returns the options
    that read the topic.
    """
    for partition, of_partition in enumerate(values):
        log = LogBuilder()
        writer = AivenTierWriter(str(root), topic=topic, topic_id=topic_id, partition=partition)
        for start in range(0, len(of_partition), 10):
            log.append(
                [
                    SimpleRecord(value, b"k%d" % (start + number), timestamp=T0 + start + number)
                    for number, value in enumerate(of_partition[start : start + 10])
                ]
            )
            files = log.roll()
            assert files is not None
            writer.write_segment(files)
    return {"path": str(root), "subscribe": topic, "cache": "false"}


def write_two_schemas(folder: Path) -> dict[str, str]:
    """Writes ten values with the schema `OLD`, id 1, then ten with `SCHEMA`, id 2, and a folder of
    both schemas. Returns the options that read the topic, without a reader's schema.
    """
    registry = folder / "schemas"
    registry.mkdir()
    for number, schema in enumerate((OLD, SCHEMA), 1):
        (registry / f"{number}.avsc").write_text(json.dumps(schema))
    values: list[bytes | None] = [b"\0\0\0\0\1" + avro(n, old=True) for n in range(10)]
    values += [b"\0\0\0\0\2" + avro(number) for number in range(10, 20)]
    return write(folder / "tier", [values]) | {
        "value.format": "avro-confluent",
        "value.schema-registry.url": str(registry),
    }


def as_avro(**options: str) -> dict[str, str]:
    """Returns `options` and the options that decode values as orders."""
    return {"value.format": "avro", "value.schema": json.dumps(SCHEMA)} | options
