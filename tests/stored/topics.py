"""Defines the topics of the stored tables. Their tier grows between two exports.

Every test builds the same tier. The expected rows of the tables come from the log builder, so they
are independent of all readers.
"""

from __future__ import annotations

import functools
import json
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from segment_format.testing import (
    READ_COMMITTED,
    AivenTierWriter,
    BuiltLog,
    ExpectedRow,
    LogBuilder,
    SimpleRecord,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

KEY_PREFIX = "t/"
DAY_ZERO_MS = 1_700_000_000_000
HOURS_7_MS = 7 * 3_600_000
NOT_JSON = b"not JSON"
HEADER = ("h", b"v")

RowPosition = tuple[str, int, int]  # topic, partition, offset


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of the tier.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        first_segments: Number of segments that were tiered at the first export.
        log: Log with all segments of the partition.
    """

    topic: str
    partition: int
    first_segments: int
    log: BuiltLog


def _record(number: int) -> SimpleRecord:
    value: bytes | None = json.dumps({"id": number, "name": f"name {number}"}).encode()
    if number % 11 == 5:
        value = None
    if number % 13 == 12:
        value = NOT_JSON
    # Most keys repeat, within the first export and after it; `once-` keys do not.
    key = f"once-{number}" if number % 9 == 1 else f"k{number % 5}"
    headers = (HEADER,) if number % 4 == 0 else ()
    time = DAY_ZERO_MS + number * HOURS_7_MS
    return SimpleRecord(value, key.encode(), headers, time)


def wire_value(number: int) -> bytes:
    """Returns an Avro value of schema 1 if the number is even, else a JSON value of schema 2.

    The number must be below 64, so that its zigzag varint has one byte.
    """
    name = f"name {number}".encode()
    if number % 2:
        return b"\0\0\0\0\2" + json.dumps({"id": number, "name": name.decode()}).encode()
    return b"\0\0\0\0\1" + bytes([2 * number, 2 * len(name)]) + name


def _wire_record(number: int) -> SimpleRecord:
    return SimpleRecord(wire_value(number), b"k", (), DAY_ZERO_MS + number * HOURS_7_MS)


class _Records:
    """Creates records that are numbered consecutively."""

    def __init__(self, make: Callable[[int], SimpleRecord], first: int = 0) -> None:
        self._make = make
        self._next = first

    def take(self, count: int) -> list[SimpleRecord]:
        """Returns the next `count` records."""
        start, self._next = self._next, self._next + count
        return [self._make(number) for number in range(start, self._next)]


def _transactional() -> BuiltLog:
    """Builds four segments; the second has an aborted transaction and ends in an open one."""
    builder, records = LogBuilder(), _Records(_record)
    builder.append(records.take(8))
    builder.roll()
    builder.send(7, records.take(3))
    builder.append(records.take(3))
    builder.abort(7)
    builder.send(9, records.take(2))
    builder.append(records.take(2))
    builder.roll()
    builder.set_leader_epoch(1)
    builder.append(records.take(3))
    builder.commit(9)
    builder.append(records.take(4), codec="gzip")
    builder.roll()
    builder.append(records.take(9), codec="lz4")
    return builder.build()


def _plain(make: Callable[[int], SimpleRecord], segments: int, start: int, codec: str) -> BuiltLog:
    builder, records = LogBuilder(start_offset=start, codec=codec), _Records(make, start)
    for _ in range(segments):
        builder.append(records.take(6))
        builder.roll()
    return builder.build()


@functools.cache
def partitions() -> tuple[Partition, ...]:
    """Returns all partitions of the tier."""
    return (
        Partition("orders", 0, 2, _transactional()),
        Partition("orders", 1, 1, _plain(_record, 2, 20, "zstd")),
        Partition("refunds", 0, 1, _plain(_record, 3, 0, "none")),
        Partition("payments", 0, 2, _plain(_wire_record, 3, 0, "snappy")),
    )


def write_tier(folder: Path, *, first: bool) -> None:
    """Writes all segments or, if `first` is true, only those that the first export reads."""
    for number, partition in enumerate(partitions()):
        writer = AivenTierWriter(
            folder,
            topic=partition.topic,
            partition=partition.partition,
            topic_id=uuid.uuid5(uuid.NAMESPACE_URL, partition.topic),
            key_prefix=KEY_PREFIX,
            chunk_size=256,
        )
        segments = partition.log.segments[: partition.first_segments if first else None]
        for index, segment in enumerate(segments):
            writer.write_segment(segment, segment_id=uuid.UUID(int=1 + 100 * number + index))


def expected_rows(
    topics: Iterable[str], *, first: bool = False
) -> Mapping[RowPosition, ExpectedRow]:
    """Returns the `read_committed` rows of `topics`, by position. If `first` is true, returns only
    rows of the segments that the first export read.
    """
    return {
        (partition.topic, partition.partition, row.offset): row
        for partition in partitions()
        if partition.topic in topics
        for row in partition.log.rows(
            READ_COMMITTED, segment_count=partition.first_segments if first else None
        )
    }
