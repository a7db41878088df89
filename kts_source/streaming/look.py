"""Interfaces of snapshots ("looks") of the partitions that a stream reads from a tier or from
brokers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import ThreadPoolExecutor

    from kts_source.planning.bounds import Place
    from kts_source.planning.lineage import Hole, PartitionLog
    from kts_source.planning.planner import PlannedPartition
    from kts_source.streaming.lag import PartitionLag
    from kts_source.streaming.offsets import BatchRange, StreamPosition, TopicPartition
    from kts_source.tier import Tier


@dataclass(frozen=True, slots=True)
class PendingSegment:
    """Unread offsets [start, stop) of one segment.

    Attributes:
        size: Their original bytes; for a part of a segment, its share by offsets.
        order: Sort key; the smallest is read first.
    """

    start: int
    stop: int
    size: int
    order: tuple[int, int]


def dated(max_timestamp_ms: int) -> tuple[int, int]:
    """Returns the order of a segment by its largest timestamp; −1 if unknown."""
    return 0, max_timestamp_ms


def undated(turn: int, lag: int) -> tuple[int, int]:
    """Returns the order of offsets that only brokers have: after all segments, in turns; within a
    turn, partitions with the most unread offsets first.
    """
    return 1 + turn, -lag


class LogLook(Protocol):
    """A snapshot of a partition of one incarnation of a topic."""

    @property
    def place(self) -> Place:
        """The partition, for error messages."""

    @property
    def log(self) -> PartitionLog:
        """The part of the partition's log that was read."""

    @property
    def written_stop(self) -> int:
        """One past the last existing offset, including offsets that must not be read yet."""

    @property
    def is_complete(self) -> bool:
        """True once every segment was read. Until then, log start and end may be wrong."""

    def end(self) -> int:
        """Returns one past the last offset that may be read."""

    def end_before(self, hole: Hole) -> int:
        """Returns the end of the readable offsets below a hole."""

    def epoch_of(self, offset: int) -> int | None:
        """Returns the leader epoch that owns an offset; `None` if unknown."""

    def first_offset_at_or_after(self, timestamp_ms: int) -> int | None:
        """Returns the first offset dated at or after a time, or `None`."""

    def pending(self, start: int, stop: int) -> Iterator[PendingSegment]:
        """Yields existing segments of offsets [start, stop), ascending."""

    def lag(self, position: int) -> PartitionLag:
        """Returns the lag at an offset."""

    def plan(self, wanted: BatchRange) -> PlannedPartition | None:
        """Plans some offsets of the partition; `None` if no segment is left and loss is allowed.

        Raises:
            TieredKafkaError: The offsets can no longer be read.
        """


@dataclass(frozen=True, slots=True)
class NewerTopic:
    """An incarnation that has replaced another one.

    Attributes:
        topic_id: Id of the new incarnation.
        partitions: Takes snapshots of its partitions at the first call.
    """

    topic_id: str
    partitions: Callable[[], Mapping[int, LogLook]]


@dataclass(frozen=True, slots=True)
class TopicLook:
    """A snapshot of one topic of a stream.

    Attributes:
        topic_id: The incarnation that the stream reads, or the newest for a new topic.
        partitions: Partitions of that incarnation with data.
        newer: The incarnation that has replaced it, or `None`.
    """

    topic: str
    topic_id: str
    partitions: Mapping[int, LogLook]
    newer: NewerTopic | None


Look: TypeAlias = dict[str, TopicLook]
"""Topics with data by name."""


def at_position(look: Look, position: StreamPosition) -> Look:
    """Returns a look with the stream's current incarnations; the same look if nothing changed. The
    stream may have continued with a newer incarnation in the meantime.
    """
    moved = {}
    for name, topic in look.items():
        topic_position, newer = position.topics.get(name), topic.newer
        if (
            topic_position is not None
            and newer is not None
            and topic_position.topic_id == newer.topic_id
        ):
            moved[name] = replace(
                topic, topic_id=newer.topic_id, partitions=newer.partitions(), newer=None
            )
    return {**look, **moved} if moved else look


class Looker(Protocol):
    """Takes snapshots of the topics of one stream.

    Attributes:
        tier: The tier with their segments.
        pool: Plans partitions concurrently.
        interval_ms: Minimum time between two looks.
    """

    tier: Tier
    pool: ThreadPoolExecutor
    interval_ms: int

    def close(self) -> None:
        """Closes connections and threads."""

    def look(self, position: StreamPosition, before: Look | None) -> Look:
        """Takes a snapshot of all selected topics.

        Args:
            position: The stream's position; it may have topics that no longer exist.
            before: The previous look, which is returned if nothing changed.
        """

    def again(
        self, ranges: Mapping[TopicPartition, tuple[str, int]]
    ) -> Mapping[TopicPartition, LogLook]:
        """Takes snapshots of the partitions of an earlier batch, even if they are no longer
        selected.

        Args:
            ranges: Topic id and first wanted offset of each partition.
        """
