"""Defines samples with typed columns: tables, a plan, and cached schemas of a registry.

The samples use separate topics, because the topics in `topics.py` must not change.
"""

from __future__ import annotations

import functools
import json
import struct
import uuid
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from google.protobuf import descriptor_pb2

from segment_format.testing import (
    READ_COMMITTED,
    AivenTierWriter,
    BuiltLog,
    ExpectedRow,
    LogBuilder,
    SimpleRecord,
)
from tests.stored.samples import HERE, SCHEMAS, ScanSample, TableSample
from tests.stored.topics import DAY_ZERO_MS, HOURS_7_MS, KEY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.stored.samples import Values
    from tests.stored.topics import RowPosition

V2 = HERE / "v2"
_FIRST_SEGMENTS: Final = 2
"""Number of segments of each topic at the first export."""
_SEGMENTS: Final = 4
_SEGMENT_RECORDS: Final = 6
_KINDS: Final = ("card", "cash")

READER: Final[dict[str, Any]] = {
    "type": "record",
    "name": "Payment",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "id", "type": "long"},
        {"name": "kind", "type": "string", "default": "none"},
        {"name": "amounts", "type": {"type": "map", "values": "double"}, "default": {}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}, "default": 0},
    ],
}
WIDER: Final[dict[str, Any]] = {
    **READER,
    "fields": [*READER["fields"], {"name": "more", "type": ["null", "long"], "default": None}],
}
DDL: Final = "id bigint, name string"


# -- topics


def _name(number: int) -> bytes:
    return f"name {number}".encode()


def _payment(number: int) -> bytes:
    """Returns an Avro value: even numbers use schema 1, odd numbers schema 3.

    The number must be at most 63, so that its varint has one byte.
    """
    name = bytes([2 * len(_name(number))]) + _name(number)
    if number % 2 == 0:
        return b"\0\0\0\0\1" + bytes([2 * number]) + name
    amounts = b"\2\2a" + struct.pack("<d", number / 4) + b"\0"
    kind = b"\x08" + _KINDS[number // 2 % 2].encode()
    return b"\0\0\0\0\3" + bytes([2 * number]) + kind + amounts + name


def _receipt(number: int) -> bytes:
    return bytes([8, number, 18, len(_name(number))]) + _name(number)


def _note(number: int) -> bytes:
    if number % 7 == 3:
        return b"{"
    return json.dumps({"id": number, "name": f"name {number}", "x": [1]}).encode()


_TOPICS: Final[dict[str, Callable[[int], bytes]]] = {
    "payments": _payment,
    "receipts": _receipt,
    "notes": _note,
}


@functools.cache
def _logs() -> dict[str, BuiltLog]:
    logs = {}
    for topic, make in _TOPICS.items():
        builder = LogBuilder()
        for first in range(0, _SEGMENTS * _SEGMENT_RECORDS, _SEGMENT_RECORDS):
            builder.append(
                [
                    SimpleRecord(
                        None if number % 11 == 5 else make(number),
                        b"k%d" % number,
                        (),
                        DAY_ZERO_MS + number * HOURS_7_MS,
                    )
                    for number in range(first, first + _SEGMENT_RECORDS)
                ]
            )
            builder.roll()
        logs[topic] = builder.build()
    return logs


def write_typed_tier(folder: Path, *, first: bool) -> None:
    """Writes all segments or, if `first` is true, only those that the first export reads."""
    for number, (topic, log) in enumerate(_logs().items()):
        writer = AivenTierWriter(
            folder,
            topic=topic,
            partition=0,
            topic_id=uuid.uuid5(uuid.NAMESPACE_URL, topic),
            key_prefix=KEY_PREFIX,
            chunk_size=256,
        )
        segments = log.segments[: _FIRST_SEGMENTS if first else None]
        for index, segment in enumerate(segments):
            writer.write_segment(segment, segment_id=uuid.UUID(int=1 + 100 * number + index))


# -- tables


def _payments(row: ExpectedRow) -> Values:
    number, has_schema_3 = row.offset, row.offset % 2 == 1
    return {
        "name": f"name {number}",
        "id": number,
        "kind": _KINDS[number // 2 % 2] if has_schema_3 else "none",
        "amounts": [("a", number / 4)] if has_schema_3 else [],
    }


def _plain(row: ExpectedRow) -> Values:
    return {"id": row.offset, "name": f"name {row.offset}"}


def _rows(
    values: Callable[[ExpectedRow], Values], *, rejects: bool = False
) -> Callable[[Mapping[RowPosition, ExpectedRow]], dict[RowPosition, Values]]:
    def table_rows(rows: Mapping[RowPosition, ExpectedRow]) -> dict[RowPosition, Values]:
        return {
            position: {"value": None if row.value is None else values(row)}
            for position, row in rows.items()
            if not (rejects and row.value == b"{")
        }

    return table_rows


class TypedSample(TableSample):
    """A `TableSample` whose table has typed columns."""

    def expected(self, *, first: bool = False) -> dict[RowPosition, Values]:
        """Returns the expected rows after the first export if `first` is true, or after all
        exports.
        """
        (topic,) = self.topics
        rows = _logs()[topic].rows(READ_COMMITTED, segment_count=_FIRST_SEGMENTS if first else None)
        return self.rows({(topic, 0, row.offset): row for row in rows})


def descriptor_set() -> bytes:
    """Returns the descriptor set of the message in `receipts`."""
    file = descriptor_pb2.FileDescriptorProto(name="r.proto", package="r", syntax="proto3")
    message = file.message_type.add(name="Receipt")
    kinds = descriptor_pb2.FieldDescriptorProto
    message.field.add(name="id", number=1, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    message.field.add(name="name", number=2, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    return bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())


AVRO: Final = {
    "value.format": "avro-confluent",
    "value.schema": json.dumps(READER),
    "value.schema-registry.url": str(SCHEMAS),
}
TYPED_TABLES = (
    TypedSample(
        "typed-avro",
        _rows(_payments),
        ("payments",),
        {"partition_by": ["topic", "value.kind"], "sort_within_files": ["value.name"]},
        AVRO,
    ),
    TypedSample(
        "typed-json",
        _rows(_plain, rejects=True),
        ("notes",),
        options={"key.format": "utf8", "value.format": "json", "value.schema": DDL},
        dead_letters=True,
    ),
    TypedSample(
        "typed-dropped",
        lambda rows: {
            position: values
            for position, values in _rows(_plain, rejects=True)(rows).items()
            if values["value"] is None or values["value"]["id"] < 20
        },
        ("notes",),
        options={
            "value.format": "json",
            "value.schema": DDL,
            "value.mode": "DROPMALFORMED",
            "where": "value.id < 20 OR value IS NULL",
        },
        table_formats=("delta",),
    ),
    TypedSample(
        "typed-protobuf",
        _rows(_plain),
        ("receipts",),
        options={
            "value.format": "protobuf",
            "value.schema": str(SCHEMAS / "receipt.desc"),
            "value.message": "r.Receipt",
        },
    ),
)
TYPED_TABLE_SAMPLES = tuple(
    (table_format, sample) for sample in TYPED_TABLES for table_format in sample.table_formats
)


# -- a plan, and cached schemas

TYPED_PLAN = ScanSample(
    "typed-where",
    ("txn",),
    options={
        "targetPartitionBytes": "100k",
        "value.format": "json",
        "value.schema": "n bigint, t string",
        "value.mode": "DROPMALFORMED",
        "where": "value.n < 500 AND value.t LIKE 's%' AND offset < 1000",
    },
)
REGISTRY: Final = "http://user:pass@127.0.0.1:1"
"""No server listens at this address, so schemas can come only from the cache."""
CACHED_SOURCE: Final = {
    **AVRO,
    "value.schema-registry.url": REGISTRY,
    "subscribe": "payments",
    "keyPrefix": KEY_PREFIX,
}


def mock_registry() -> Any:  # noqa: ANN401  # of unittest.mock
    """Returns a patch that answers registry requests with the files in `SCHEMAS`."""

    def ask(_: object, path: str) -> dict[str, Any]:
        return {"schema": (SCHEMAS / f"{path.rpartition('/')[2]}.avsc").read_text()}

    return mock.patch("kts_source.registry.schema_registry.ask", ask)
