"""The offset ranges that a table has, and how a commit extends them.

A table has one range of offsets [start, stop) for each partition of a topic id. A commit increases
`stop`. It fails if `stop` has changed since the commit was planned, so only one of two concurrent
exports can commit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from kts_source.errors import CommitConflictError, RangeOverlapError

if TYPE_CHECKING:
    from collections.abc import Iterable


_NO_IDS: Final = frozenset({"", "A" * 22})
"""Values that mean "no topic id". Brokers without topic ids report `Uuid.ZERO_UUID`."""


class PartitionKey(NamedTuple):
    """Identifies a partition in a table, by topic id and partition number.

    Attributes:
        topic_id: Topic id as `topic_identity` returns it.
    """

    topic_id: str
    partition: int


_RANGE_TEXT: Final = re.compile(r"(.+)-(\d+) \[(\d+), (\d+)\)")


def topic_identity(topic: str, topic_id: str) -> str:
    """Returns the text that identifies a topic in tables: its topic id. If the topic has no topic
    id, the text consists of a placeholder and the name of the topic.
    """
    return f"{topic_id}.{topic}" if topic_id in _NO_IDS else topic_id


def partition_key(topic: str, topic_id: str, partition: int) -> PartitionKey:
    """Returns the key that identifies a partition in tables."""
    return PartitionKey(topic_identity(topic, topic_id), partition)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The range of offsets [start, stop) of a partition that a table has.

    Attributes:
        epoch: Leader epoch to which offset `stop - 1` belonged when it was committed; `None` if
            unknown.
    """

    start: int
    stop: int
    epoch: int | None = None


class CommittedRanges(Protocol):
    """Interface for the offset ranges that a table has. Implemented by dicts, and by an object that
    reads a range from the table when it is requested.
    """

    def get(self, key: PartitionKey, /) -> OffsetRange | None:
        """Returns the offset range of a partition. Returns `None` if the table has no offsets of
        the partition.
        """
        ...


def held_range(
    committed: CommittedRanges, topic: str, topic_id: str, partition: int
) -> OffsetRange | None:
    """Returns the range of a partition's offsets that are in a table. Returns `None` if the table
    has no offsets of the partition.
    """
    return committed.get(partition_key(topic, topic_id, partition))


@dataclass(frozen=True, slots=True)
class RangeAdvance:
    """The offsets of a partition that a commit adds to a table.

    Attributes:
        topic: Name of the topic, for messages.
        key: Identifies the partition.
        expected: End of the committed offsets when the commit was planned; `None` if nothing was
            committed.
        start: First offset that the commit adds. It is above `expected` only if missing offsets
            were accepted.
        stop: One past the last offset that the commit adds.
        epoch: Leader epoch to which offset `stop - 1` belongs; `None` if unknown.
    """

    topic: str
    key: PartitionKey
    expected: int | None
    start: int
    stop: int
    epoch: int | None = None

    def __str__(self) -> str:
        return f"{self.topic}-{self.key.partition} [{self.start}, {self.stop})"


class NamedRange(NamedTuple):
    """Offsets [start, stop) of a partition, with the name of its topic."""

    topic: str
    partition: int
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.stop})"


def parse_ranges(texts: Iterable[str]) -> tuple[NamedRange, ...]:
    """Parses texts of `RangeAdvance`, and joins adjacent ranges. Drops empty and invalid ranges."""
    ranges: list[NamedRange] = []
    matches = [match for text in texts if (match := _RANGE_TEXT.fullmatch(text))]
    for match in matches:
        span = NamedRange(match[1], int(match[2]), int(match[3]), int(match[4]))
        ranges += [span] if span.start < span.stop else []
    joined: list[NamedRange] = []
    for span in sorted(ranges):
        last = joined[-1] if joined else None
        if last is not None and last[:2] == span[:2] and last.stop >= span.start:
            joined[-1] = last._replace(stop=max(last.stop, span.stop))
        else:
            joined.append(span)
    return tuple(joined)


@dataclass(frozen=True, slots=True)
class Rollback:
    """Describes that a table was restored to a state before commits of an export.

    Attributes:
        text: Describes the restored and the removed versions.
        removed: Offsets whose rows the table lost, as far as its history has them.
    """

    text: str
    removed: tuple[NamedRange, ...] = ()


def merge_advances(
    first: Iterable[RangeAdvance], second: Iterable[RangeAdvance]
) -> list[RangeAdvance]:
    """Merges the offsets that two commits add. One commit can then add all of them. `second` must
    continue after `first`.
    """
    moved: dict[PartitionKey, RangeAdvance] = {}
    for advance in (*first, *second):
        before = moved.get(advance.key, advance)
        moved[advance.key] = replace(before, stop=advance.stop, epoch=advance.epoch)
    return list(moved.values())


def advance_ranges(
    committed: CommittedRanges, advances: Iterable[RangeAdvance]
) -> dict[PartitionKey, OffsetRange]:
    """Returns the offset ranges that the table has after a commit. Contains only the partitions
    that the commit changes.

    Raises:
        CommitConflictError: Another commit changed the range of a partition since this commit was
            planned.
        RangeOverlapError: The commit would add offsets that the table already has.
    """
    result: dict[PartitionKey, OffsetRange] = {}
    for advance in advances:
        now = committed.get(advance.key)
        if (None if now is None else now.stop) != advance.expected:
            is_new = advance.expected is None
            planned = "has no offsets" if is_new else f"ends at offset {advance.expected}"
            actual = "no offsets" if now is None else f"offsets [{now.start}, {now.stop})"
            raise CommitConflictError(
                f"{advance} was planned for a table that {planned}, but the table now has {actual}"
                f" of topic id {advance.key.topic_id}: another export committed in the meantime."
                " Run the export again to continue after it",
                topic=advance.topic,
                partition=advance.key.partition,
                offset=advance.start,
            )
        if now is not None and advance.start < now.stop:
            raise RangeOverlapError(
                f"{advance} cannot be committed: the table already has offsets [{now.start},"
                f" {now.stop}). Run the export again",
                topic=advance.topic,
                partition=advance.key.partition,
                offset=advance.start,
            )
        start = advance.start if now is None else now.start
        result[advance.key] = OffsetRange(start, advance.stop, advance.epoch)
    return result
