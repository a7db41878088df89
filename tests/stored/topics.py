"""The topics that the stored tables were exported from: a tier that grows between two exports.

Built anew by every test, the same each time. What a table must hold comes from here, too: rows as
the builder of the log knows them, without a look at any reader.
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

Place = tuple[str, int, int]  # topic, partition, offset


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition and how much of it the first export found.

    Attributes:
        first: Segments that were tiered at the first export.
    """

    topic: str
    partition: int
    first: int
    log: BuiltLog


def _record(number: int) -> SimpleRecord:
    value: bytes | None = json.dumps({"id": number, "name": f"name {number}"}).encode()
    if number % 11 == 5:
        value = None
    if number % 13 == 12:
        value = NOT_JSON
    # Most keys come again, in the first export and behind it; some never do.
    key = f"once-{number}" if number % 9 == 1 else f"k{number % 5}"
    headers = (HEADER,) if number % 4 == 0 else ()
    time = DAY_ZERO_MS + number * HOURS_7_MS
    return SimpleRecord(value, key.encode(), headers, time)


def wire_value(number: int) -> bytes:
    """An Avro value by schema 1 for even numbers below 64, a JSON value by schema 2 for odd ones.

    Avro's numbers of one byte are twice the number: zigzag.
    """
    name = f"name {number}".encode()
    if number % 2:
        return b"\0\0\0\0\2" + json.dumps({"id": number, "name": name.decode()}).encode()
    return b"\0\0\0\0\1" + bytes([2 * number, 2 * len(name)]) + name


def _wire_record(number: int) -> SimpleRecord:
    return SimpleRecord(wire_value(number), b"k", (), DAY_ZERO_MS + number * HOURS_7_MS)


class _Records:
    """Records with numbers that count up."""

    def __init__(self, make: Callable[[int], SimpleRecord], first: int = 0) -> None:
        self._make = make
        self._next = first

    def take(self, count: int) -> list[SimpleRecord]:
        """The next ones."""
        start, self._next = self._next, self._next + count
        return [self._make(number) for number in range(start, self._next)]


def _transactional() -> BuiltLog:
    """Four segments; a transaction is aborted in the second and another one is open at its end."""
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
    """All of the tier."""
    return (
        Partition("orders", 0, 2, _transactional()),
        Partition("orders", 1, 1, _plain(_record, 2, 20, "zstd")),
        Partition("refunds", 0, 1, _plain(_record, 3, 0, "none")),
        Partition("payments", 0, 2, _plain(_wire_record, 3, 0, "snappy")),
    )


def write_tier(folder: Path, *, first: bool) -> None:
    """The objects as the first export found them, or all of them."""
    for number, part in enumerate(partitions()):
        writer = AivenTierWriter(
            folder,
            topic=part.topic,
            partition=part.partition,
            topic_id=uuid.uuid5(uuid.NAMESPACE_URL, part.topic),
            key_prefix=KEY_PREFIX,
            chunk_size=256,
        )
        segments = part.log.segments[: part.first if first else None]
        for place, segment in enumerate(segments):
            writer.write_segment(segment, segment_id=uuid.UUID(int=1 + 100 * number + place))


def expected_rows(topics: Iterable[str], *, first: bool = False) -> Mapping[Place, ExpectedRow]:
    """Every row of `read_committed`, of the tier as the first export found it or of all of it."""
    return {
        (part.topic, part.partition, row.offset): row
        for part in partitions()
        if part.topic in topics
        for row in part.log.rows(READ_COMMITTED, segment_count=part.first if first else None)
    }
