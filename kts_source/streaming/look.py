"""The interface of partitions that a stream reads from a tier or through brokers."""

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
        order: The smallest is read first.
    """

    start: int
    stop: int
    size: int
    order: tuple[int, int]


def dated(max_timestamp_ms: int) -> tuple[int, int]:
    """Returns the order of a segment by its largest timestamp; −1 if unknown."""
    return 0, max_timestamp_ms


def undated(turn: int, lag: int) -> tuple[int, int]:
    """Returns the order of offsets that only brokers have: after all segments, in turns, partitions
    with the most unread offsets first.
    """
    return 1 + turn, -lag


class LogLook(Protocol):
    """A snapshot of a partition of one incarnation of a topic."""

    @property
    def place(self) -> Place:
        """The partition, for errors about it."""

    @property
    def log(self) -> PartitionLog:
        """The part of its log that was read."""

    @property
    def written_stop(self) -> int:
        """One past the last existing offset, whether it may be read yet or not."""

    @property
    def is_complete(self) -> bool:
        """True once every segment was read. Before, the log start and end may be wrong."""

    def end(self) -> int:
        """Returns one past the last offset that may be read."""

    def end_before(self, hole: Hole) -> int:
        """Returns the end if the log is known up to a hole only."""

    def epoch_of(self, offset: int) -> int | None:
        """Returns the leader epoch that owns an offset; `None` if unknown."""

    def first_offset_at_or_after(self, timestamp_ms: int) -> int | None:
        """Returns the first offset dated at or after a time, or `None`."""

    def pending(self, start: int, stop: int) -> Iterator[PendingSegment]:
        """Yields existing segments of offsets [start, stop), ascending."""

    def lag(self, position: int) -> PartitionLag:
        """Returns the lag at an offset."""

    def plan(self, wanted: BatchRange) -> PlannedPartition | None:
        """Plans some of its offsets; `None` if no segment is left and loss is allowed.

        Raises:
            TieredKafkaError: They cannot be read anymore.
        """


@dataclass(frozen=True, slots=True)
class NewerTopic:
    """An incarnation that has replaced another.

    Attributes:
        topic_id: Its id.
        partitions: Looks at its partitions, once.
    """

    topic_id: str
    partitions: Callable[[], Mapping[int, LogLook]]


@dataclass(frozen=True, slots=True)
class TopicLook:
    """A snapshot of one topic of a stream.

    Attributes:
        topic_id: The incarnation that the stream reads, or the newest for a new topic.
        partitions: Partitions of that incarnation with data.
        newer: The incarnation that has replaced it, if there is one.
    """

    topic: str
    topic_id: str
    partitions: Mapping[int, LogLook]
    newer: NewerTopic | None


Look: TypeAlias = dict[str, TopicLook]
"""Topics by name; those without data are left out."""


def at_position(look: Look, position: StreamPosition) -> Look:
    """Returns a look at the incarnations that the stream is in; the same look if nothing changed.
    The stream may have continued in a newer incarnation since.
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
    """Looks at the topics of one stream.

    Attributes:
        tier: Stores their segments.
        pool: Plans partitions concurrently.
        interval_ms: Minimum time between two looks.
    """

    tier: Tier
    pool: ThreadPoolExecutor
    interval_ms: int

    def close(self) -> None:
        """Closes connections and threads."""

    def look(self, position: StreamPosition, before: Look | None) -> Look:
        """Looks at all selected topics.

        Args:
            position: The stream's position: topics in it may be gone.
            before: The previous look, which is returned if nothing is new.
        """

    def again(
        self, ranges: Mapping[TopicPartition, tuple[str, int]]
    ) -> Mapping[TopicPartition, LogLook]:
        """Looks at partitions of a batch that was planned before, even if no longer selected.

        Args:
            ranges: Topic id and first wanted offset of each partition.
        """
