"""Defines the interfaces of snapshots ("looks") of the partitions that a stream reads. One
implementation reads the tier, another asks brokers.
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
    """Offsets [start, stop) of one segment that the stream has not read yet.

    Attributes:
        size: Uncompressed bytes of these offsets. If they are only a part of a segment, this is an
            estimate in proportion to the number of offsets.
        order: Sort key; segments with the smallest key are read first.
    """

    start: int
    stop: int
    size: int
    order: tuple[int, int]


def segment_order(max_timestamp_ms: int) -> tuple[int, int]:
    """Returns the sort key of a segment (see `PendingSegment.order`): segments with the oldest
    largest timestamp come first. `max_timestamp_ms` is −1 if the timestamp is unknown.
    """
    return 0, max_timestamp_ms


def broker_chunk_order(turn: int, lag: int) -> tuple[int, int]:
    """Returns the sort key (see `PendingSegment.order`) of a chunk of offsets that are on brokers
    but not in the tier.

    These chunks are read after all segments, in turns: one chunk of every partition per turn.
    Within a turn, partitions with more unread offsets (`lag`) come first.
    """
    return 1 + turn, -lag


class LogLook(Protocol):
    """A snapshot of one partition of the topic with a certain topic id."""

    @property
    def place(self) -> Place:
        """The partition, for error messages."""

    @property
    def log(self) -> PartitionLog:
        """The partition's log. Describes only the segments that were read so far."""

    @property
    def written_stop(self) -> int:
        """One past the last existing offset, including offsets that must not be read yet."""

    @property
    def is_complete(self) -> bool:
        """True if all segments were read. If False, the start and end of `log` may be wrong."""

    def end(self) -> int:
        """Returns one past the last offset that may be read."""

    def end_before(self, hole: Hole) -> int:
        """Returns one past the last offset below `hole` that may be read. With `read_committed`
        this is lower than the start of the hole if a transaction below it is undecided.
        """

    def epoch_of(self, offset: int) -> int | None:
        """Returns the leader epoch that owns an offset; `None` if unknown."""

    def first_offset_at_or_after(self, timestamp_ms: int) -> int | None:
        """Returns the first offset with a timestamp at or after `timestamp_ms`; `None` if there is
        none.
        """

    def pending(self, start: int, stop: int) -> Iterator[PendingSegment]:
        """Yields the existing segments that contain offsets in [start, stop), in ascending order of
        offsets.
        """

    def lag(self, position: int) -> PartitionLag:
        """Returns the lag of a stream whose next offset is `position`."""

    def plan(self, wanted: BatchRange) -> PlannedPartition | None:
        """Plans how to read this partition's offsets of a micro-batch. Returns `None` if the tier
        has no segment of the partition any more and `failOnDataLoss` is false.

        Raises:
            TieredKafkaError: The offsets can no longer be read.
        """


@dataclass(frozen=True, slots=True)
class NewerTopic:
    """A topic that was created under the name of a deleted topic of the stream.

    Attributes:
        partitions: Returns snapshots of the new topic's partitions. They are taken at the first
            call.
    """

    topic_id: str
    partitions: Callable[[], Mapping[int, LogLook]]


@dataclass(frozen=True, slots=True)
class TopicLook:
    """A snapshot of one topic of a stream.

    Attributes:
        topic_id: Id of the topic that the stream reads. If the stream has not read the topic yet,
            this is the newest id.
        newer: The topic that was created under this name after this topic was deleted, or `None`.
    """

    topic: str
    topic_id: str
    partitions: Mapping[int, LogLook]
    newer: NewerTopic | None


Look: TypeAlias = dict[str, TopicLook]
"""A snapshot of a stream: its topics that have data, by name."""


def at_position(look: Look, position: StreamPosition) -> Look:
    """Returns the snapshots of the topics that the stream reads at `position`. If the stream has
    continued with a newer topic since `look` was taken, the newer topic replaces the deleted one;
    otherwise returns `look`.
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
        tier: The tier with the segments of these topics.
        pool: Threads that plan partitions concurrently.
        interval_ms: Minimum time between two snapshots, in milliseconds.
        waits_for: `store` or `brokers` if the last snapshot is empty because this service no longer
            has the tier or the topics that the stream has read; otherwise `None`.
    """

    tier: Tier
    pool: ThreadPoolExecutor
    interval_ms: int
    waits_for: str | None

    def close(self) -> None:
        """Closes the connections and stops the threads."""

    def look(self, position: StreamPosition, before: Look | None) -> Look:
        """Takes a snapshot of all selected topics. `position` may contain topics that no longer
        exist. May return `before`, the last snapshot, if nothing has changed.
        """

    def look_at_batch(
        self, ranges: Mapping[TopicPartition, tuple[str, int]]
    ) -> Mapping[TopicPartition, LogLook]:
        """Takes snapshots of the partitions of an earlier batch, even if the options no longer
        select them. `ranges` has the topic id and the first wanted offset of each partition.
        """
