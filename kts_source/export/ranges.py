"""Which offsets a table holds, and what a commit adds to them.

A table holds one run of offsets per topic incarnation and partition, [start, stop) without a gap.
A commit moves `stop` and says which `stop` it was planned against, so two exports that run at once
cannot both move it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from kts_source.errors import CommitConflictError, ExportError, RangeOverlapError

if TYPE_CHECKING:
    from collections.abc import Iterable


_NO_IDS: Final = frozenset({"", "A" * 22})
"""Topic ids that identify no topic: `Uuid.ZERO_UUID` stands for brokers older than topic ids."""


class PartitionKey(NamedTuple):
    """One partition of one incarnation of a topic, as tables store it.

    Attributes:
        topic_id: See `topic_identity`.
    """

    topic_id: str
    partition: int


def topic_identity(topic: str, topic_id: str) -> str:
    """Returns the text by which tables know a topic: its id, and its name where it has no id.

    Tables of earlier versions have the id alone, so that stays the text of topics with an id.
    """
    return f"{topic_id}.{topic}" if topic_id in _NO_IDS else topic_id


def partition_key(topic: str, topic_id: str, partition: int) -> PartitionKey:
    """Returns the key of a partition in a table."""
    return PartitionKey(topic_identity(topic, topic_id), partition)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start, stop) of a partition that a table holds.

    Attributes:
        epoch: Leader epoch that owned offset `stop - 1` when it was committed; `None` if unknown.
    """

    start: int
    stop: int
    epoch: int | None = None


class CommittedRanges(Protocol):
    """What a table holds, by partition; a mapping, or a look-up in the table."""

    def get(self, key: PartitionKey, /) -> OffsetRange | None:
        """The offsets of one partition; `None` = nothing."""
        ...


def held_range(
    committed: CommittedRanges, topic: str, topic_id: str, partition: int
) -> OffsetRange | None:
    """Returns the offsets that a table holds of a partition; `None` for nothing.

    Raises:
        ExportError: An earlier version stored offsets of a topic without an id, and not its name.
    """
    key = partition_key(topic, topic_id, partition)
    held = committed.get(key)
    if held is None and key.topic_id != topic_id:
        before = committed.get(PartitionKey(topic_id, partition))
        if before is not None:
            raise ExportError(
                f"the table holds offsets [{before.start}, {before.stop}) of partition {partition}"
                " of a topic without a topic id, and an earlier version did not store its name, so"
                " they may be of another topic. Export into another table",
                topic=topic,
                partition=partition,
            )
    return held


@dataclass(frozen=True, slots=True)
class RangeAdvance:
    """What one commit adds to one partition.

    Attributes:
        topic: For people.
        expected: The committed stop this was planned against; `None` = nothing committed.
        start: First offset added. Above `expected` only where a hole was allowed.
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


def joined(first: Iterable[RangeAdvance], second: Iterable[RangeAdvance]) -> list[RangeAdvance]:
    """Two steps of one run as one."""
    moved: dict[PartitionKey, RangeAdvance] = {}
    for advance in (*first, *second):
        before = moved.get(advance.key, advance)
        moved[advance.key] = replace(before, stop=advance.stop, epoch=advance.epoch)
    return list(moved.values())


def advanced(
    committed: CommittedRanges, advances: Iterable[RangeAdvance]
) -> dict[PartitionKey, OffsetRange]:
    """The ranges that a commit moves, as they are after it.

    Raises:
        CommitConflictError: A partition is not where the commit was planned against.
        RangeOverlapError: The commit would add offsets that are committed already.
    """
    result: dict[PartitionKey, OffsetRange] = {}
    for advance in advances:
        now = committed.get(advance.key)
        if (None if now is None else now.stop) != advance.expected:
            planned = "nothing" if advance.expected is None else f"offset {advance.expected}"
            found = "nothing" if now is None else f"[{now.start}, {now.stop})"
            raise CommitConflictError(
                f"{advance} was planned behind {planned}, and the table holds {found} of topic id"
                f" {advance.key.topic_id}: another export committed in the meantime. Run again to"
                " continue behind it",
                topic=advance.topic,
                partition=advance.key.partition,
                offset=advance.start,
            )
        if now is not None and advance.start < now.stop:
            raise RangeOverlapError(
                f"{advance} would be committed, and the table holds [{now.start}, {now.stop})",
                topic=advance.topic,
                partition=advance.key.partition,
                offset=advance.start,
            )
        start = advance.start if now is None else now.start
        result[advance.key] = OffsetRange(start, advance.stop, advance.epoch)
    return result
