"""Offsets that a table has, and how a commit advances them.

A table has one range of offsets, [start, stop) without a gap, per partition of a topic id. A commit
moves `stop` and names the `stop` that it was planned with, so only one of two concurrent exports
can move it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from kts_source.errors import CommitConflictError, RangeOverlapError

if TYPE_CHECKING:
    from collections.abc import Iterable


_NO_IDS: Final = frozenset({"", "A" * 22})
"""Values that are no topic id: brokers without topic ids report `Uuid.ZERO_UUID`."""


class PartitionKey(NamedTuple):
    """A partition of a topic id, as tables store it.

    Attributes:
        topic_id: See `topic_identity`.
    """

    topic_id: str
    partition: int


def topic_identity(topic: str, topic_id: str) -> str:
    """Returns the text that identifies a topic in tables: its id, and its name if it has none."""
    return f"{topic_id}.{topic}" if topic_id in _NO_IDS else topic_id


def partition_key(topic: str, topic_id: str, partition: int) -> PartitionKey:
    """Returns the key of a partition in tables."""
    return PartitionKey(topic_identity(topic, topic_id), partition)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start, stop) of a partition that a table has.

    Attributes:
        epoch: Leader epoch that owned offset `stop - 1` when it was committed; `None` if unknown.
    """

    start: int
    stop: int
    epoch: int | None = None


class CommittedRanges(Protocol):
    """Offsets that a table has, by partition: a mapping, or a look-up in the table."""

    def get(self, key: PartitionKey, /) -> OffsetRange | None:
        """Returns the offsets of a partition; `None` if there are none."""
        ...


def held_range(
    committed: CommittedRanges, topic: str, topic_id: str, partition: int
) -> OffsetRange | None:
    """Returns the offsets of a partition in a table; `None` if there are none."""
    return committed.get(partition_key(topic, topic_id, partition))


@dataclass(frozen=True, slots=True)
class RangeAdvance:
    """Offsets that a commit adds to a partition.

    Attributes:
        topic: Its name, for messages.
        expected: The committed `stop` that the commit was planned with; `None` if nothing was
            committed.
        start: First offset added; above `expected` only if a hole was accepted.
        stop: One past the last offset added.
        epoch: Leader epoch that owns offset `stop - 1`; `None` if unknown.
    """

    topic: str
    key: PartitionKey
    expected: int | None
    start: int
    stop: int
    epoch: int | None = None

    def __str__(self) -> str:
        return f"{self.topic}-{self.key.partition} [{self.start}, {self.stop})"


def merge_advances(
    first: Iterable[RangeAdvance], second: Iterable[RangeAdvance]
) -> list[RangeAdvance]:
    """Merges the advances of two successive commits of a run."""
    moved: dict[PartitionKey, RangeAdvance] = {}
    for advance in (*first, *second):
        before = moved.get(advance.key, advance)
        moved[advance.key] = replace(before, stop=advance.stop, epoch=advance.epoch)
    return list(moved.values())


def advance_ranges(
    committed: CommittedRanges, advances: Iterable[RangeAdvance]
) -> dict[PartitionKey, OffsetRange]:
    """Returns the ranges that a commit moves, with their new ends.

    Raises:
        CommitConflictError: A partition moved since the commit was planned.
        RangeOverlapError: The commit would add offsets that are committed already.
    """
    result: dict[PartitionKey, OffsetRange] = {}
    for advance in advances:
        now = committed.get(advance.key)
        if (None if now is None else now.stop) != advance.expected:
            planned = "nothing" if advance.expected is None else f"offset {advance.expected}"
            actual = "nothing" if now is None else f"[{now.start}, {now.stop})"
            raise CommitConflictError(
                f"{advance} was planned after {planned}, and the table holds {actual} of topic id"
                f" {advance.key.topic_id}: another export committed in the meantime. Run again to"
                " continue after it",
                topic=advance.topic,
                partition=advance.key.partition,
                offset=advance.start,
            )
        if now is not None and advance.start < now.stop:
            raise RangeOverlapError(
                f"{advance} cannot be committed: the table holds [{now.start}, {now.stop}) already."
                " Run again",
                topic=advance.topic,
                partition=advance.key.partition,
                offset=advance.start,
            )
        start = advance.start if now is None else now.start
        result[advance.key] = OffsetRange(start, advance.stop, advance.epoch)
    return result
