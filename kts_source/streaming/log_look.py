"""What a stream asks of one partition, whoever serves it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import ThreadPoolExecutor

    from kts_source.planning.assemble import PlannedPartition
    from kts_source.planning.bounds import Place
    from kts_source.planning.lineage import Hole, PartitionLog
    from kts_source.streaming import admission
    from kts_source.streaming.admission import PendingSegment
    from kts_source.streaming.batch import BatchRange
    from kts_source.streaming.lag import PartitionLag
    from kts_source.streaming.offsets import StreamPosition
    from kts_source.tier import Tier


class LogLook(Protocol):
    """A partition of one incarnation of a topic, as it stood when it was looked at."""

    @property
    def place(self) -> Place:
        """Which, for errors about it."""
        ...

    @property
    def log(self) -> PartitionLog:
        """As far as it is known."""
        ...

    @property
    def written_stop(self) -> int:
        """One past the last offset that exists, whether it may be read yet or not."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether every segment was looked at. What a part of the log said may be wrong where it
        did not do.
        """
        ...

    def end(self) -> int:
        """One past the last offset that may be read."""
        ...

    def end_before(self, hole: Hole) -> int:
        """The same, where the log is known up to a hole only."""
        ...

    def epoch_of(self, offset: int) -> int | None:
        """The leader epoch that owns an offset; `None` where nothing tells."""
        ...

    def first_offset_at_or_after(self, timestamp_ms: int) -> int | None:
        """The first offset whose record is dated so; `None` when there is none."""
        ...

    def pending(self, start: int, stop: int) -> Iterator[PendingSegment]:
        """What there is of offsets [start, stop), ascending."""
        ...

    def lag(self, position: int) -> PartitionLag:
        """What is unread from an offset on."""
        ...

    def plan(self, wanted: BatchRange) -> PlannedPartition:
        """The plan of some of its offsets.

        Raises:
            TieredKafkaError: They cannot be read any more.
        """
        ...


@dataclass(frozen=True, slots=True)
class NewerTopic:
    """An incarnation that has taken the place of another.

    Attributes:
        topic_id: Its id.
        partitions: Looks at its partitions, once.
    """

    topic_id: str
    partitions: Callable[[], Mapping[int, LogLook]]


@dataclass(frozen=True, slots=True)
class TopicLook:
    """One topic of a stream.

    Attributes:
        topic_id: The incarnation that the stream is in, or the newest for a topic that is new.
        partitions: Those that there is something of, of that incarnation.
        newer: The incarnation that has taken its place, if there is one.
    """

    topic: str
    topic_id: str
    partitions: Mapping[int, LogLook]
    newer: NewerTopic | None


Look: TypeAlias = dict[str, TopicLook]
"""Topics by name; those of which there is nothing are left out."""


def where_stream_is(look: Look, position: StreamPosition) -> Look:
    """A look with the incarnations that the stream is in: since it was made the stream may have
    gone on in a newer one. The look itself where it has not.
    """
    moved = {}
    for name, topic in look.items():
        known, newer = position.topics.get(name), topic.newer
        if known is not None and newer is not None and known.topic_id == newer.topic_id:
            moved[name] = replace(
                topic, topic_id=newer.topic_id, partitions=newer.partitions(), newer=None
            )
    return {**look, **moved} if moved else look


class Looker(Protocol):
    """Looks at the topics of one stream.

    Attributes:
        tier: Where its segments are.
        pool: Where partitions are planned side by side.
        interval_ms: Between two looks, at least.
    """

    tier: Tier
    pool: ThreadPoolExecutor
    interval_ms: int

    def close(self) -> None:
        """Lets connections and threads go."""
        ...

    def look(self, position: StreamPosition, before: Look | None) -> Look:
        """Looks at all selected topics.

        Args:
            position: Where the stream is: topics that it knows may have gone.
            before: The look before this one, which is returned where nothing is new.

        Raises:
            TieredKafkaError: They cannot be looked at.
        """
        ...

    def again(
        self, ranges: Mapping[admission.Place, tuple[str, int]]
    ) -> Mapping[admission.Place, LogLook]:
        """Looks at partitions by topic id, whatever the options select now, for a batch that was
        planned before.

        Args:
            ranges: The topic id of each, and the first offset that is wanted.
        """
        ...
