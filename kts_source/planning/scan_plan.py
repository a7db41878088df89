"""The plan of one scan as a value: what is read of each partition and why, and by which tasks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from kts_source.notebook import rows_table
from kts_source.planning.estimate import estimate
from kts_source.planning.surroundings import with_surroundings
from kts_source.read.task import ScanTask
from kts_source.store.joined_store import is_beside
from kts_source.texts import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kts_source.layout.layout import Orphan
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.planning.estimate import Price
    from kts_source.planning.lineage import PartitionLog, SegmentRange
    from kts_source.read.task import SegmentSlice
    from segment_format.isolation import OpenTransaction

SegmentName: TypeAlias = tuple[str, int, str]
"""Topic, partition and segment id: a copy of a partition has the ids of the first."""


def segment_name(part: RemoteSegment | SegmentSlice) -> SegmentName:
    """What tells a segment from all others of a plan."""
    return part.topic, part.partition, part.segment_id


@dataclass(frozen=True, slots=True)
class BrokerPart:
    """What brokers serve of a partition's range.

    Attributes:
        leader_epoch: Of the last record below the end.
        ranges: Offsets [start, stop), in order; those between them are the tier's.
        high_watermark: One past the last offset that consumers may see.
        last_stable_offset: The same for `read_committed`.
        local_start: First offset on the leader's own disk; `None` where it does not tell.
    """

    leader_epoch: int
    ranges: tuple[tuple[int, int], ...]
    high_watermark: int
    last_stable_offset: int
    local_start: int | None


@dataclass(frozen=True, slots=True)
class DiskPart:
    """What brokers' disks say of a partition of which they hold what the tier does not.

    Attributes:
        folder: The replica that is read.
        local_start: First offset on that disk.
        local_stop: One past the last that is read of it.
        high_watermark: The highest that a replica of its branch recorded; `None` for none.
    """

    folder: str
    local_start: int
    local_stop: int
    high_watermark: int | None


@dataclass(frozen=True, slots=True)
class CatalogPart:
    """What the topic `__remote_log_metadata` told of a partition.

    Attributes:
        partition: The partition of that topic that tells of this one.
        start: First offset read there.
        stop: One past the last offset read there.
        records: How many records that were, those about other partitions included.
        live: Segments that may be read.
        copying: Copies in progress, or given up.
        deleting: Deletions in progress.
        not_named: Offsets [start, stop) that brokers have only in the tier, and no segment names.
    """

    partition: int
    start: int
    stop: int
    records: int
    live: int
    copying: int
    deleting: int
    not_named: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """What is read of one partition, and why it ends where it ends.

    Attributes:
        surviving: The log as far as it is tiered; with brokers, all of it, and the ranges that
            the tier serves.
        start: First offset read, inclusive.
        stop: One past the last offset read.
        wanted_stop: The same before undecided transactions bounded it.
        undecided: Transactions that bound it.
        brokers: What brokers serve; `None` where none were asked.
        disks: What disks beside a tier say; `None` without them.
        catalog: What the metadata topic told; `None` where the store was listed.
    """

    topic: str
    topic_id: str
    partition: int
    surviving: PartitionLog
    orphans: tuple[Orphan, ...]
    start: int
    stop: int
    wanted_stop: int
    undecided: tuple[OpenTransaction, ...]
    brokers: BrokerPart | None = None
    disks: DiskPart | None = None
    catalog: CatalogPart | None = None

    @property
    def topic_partition(self) -> str:
        """Topic and partition number, as Kafka writes them."""
        return f"{self.topic}-{self.partition}"

    @property
    def disk_ranges(self) -> tuple[SegmentRange, ...]:
        """Of the log, those that are read from disks beside the tier."""
        return tuple(
            span for span in self.surviving.ranges if is_beside(span.segment.objects.log.key)
        )

    @property
    def tier_end(self) -> int:
        """Where the tier ends; the log start where it holds nothing."""
        ranges = [s for s in self.surviving.ranges if not is_beside(s.segment.objects.log.key)]
        return ranges[-1].stop if ranges else self.surviving.log_start

    def wanted_ranges(self) -> Iterator[tuple[SegmentRange, int, int]]:
        """Yields each range of the log that is read, and which offsets [start, stop) of it."""
        for span in self.surviving.ranges:
            start, stop = max(span.start, self.start), min(span.stop, self.stop)
            if start < stop:
                yield span, start, stop

    @property
    def end_reason(self) -> str:
        """Why the range ends at `stop`, in words."""
        if self.stop < self.wanted_stop:
            first = self.undecided[0]
            producer = f"open transaction of producer {first.producer_id}"
            return f"{producer} since offset {first.first_offset}"
        if self.stop < self.surviving.stop:
            return "as asked for"
        tier_alone = self.brokers is None and self.disks is None
        return "end of the tier" if tier_alone else "end of the log"


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """A fixed list of byte ranges, and what it leaves out.

    Attributes:
        tasks: In order of topic, partition and offset.
        columns: Columns of the table, in order.
        where: The predicate that the tasks were narrowed for, as text that tells it from others;
            `None` = they hold every row.
        notes: Which incarnation of a topic is read, where there are several, and which partitions
            have no segments in it, in words.
        made_with: Options that the plan follows from, by name; empty where a plan file of the first
            version does not tell.
    """

    partitions: tuple[PartitionPlan, ...]
    tasks: tuple[ScanTask, ...]
    columns: tuple[str, ...]
    where: str | None = None
    notes: tuple[str, ...] = ()
    made_with: Mapping[str, Any] = field(default_factory=dict)

    def explain(self, prices: Mapping[str, Price] | None = None) -> str:
        """What is read, what is left out and why, and what it will cost, in words.

        Args:
            prices: Storage class to price; default: list prices of S3.
        """
        from kts_source.planning.explain import explain

        return explain(self) if prices is None else explain(self, prices)

    def _repr_html_(self) -> str:
        """A table for notebooks: a row a partition; `explain` says more."""
        work = estimate(self.tasks)
        title = (
            f"Plan: {len(self.tasks):,} tasks, {work.requests:,} requests,"
            f" {format_bytes(work.bytes)}, about ${work.cost():.4f}"
        )
        rows = [
            (p.topic_partition, p.start, p.stop, len(p.surviving.ranges), p.end_reason)
            for p in self.partitions
        ]
        return rows_table(title, ("partition", "start", "stop", "segments", "ends"), rows)

    def to_json(self) -> str:
        """The plan as JSON, for option `planFile`; there is no secret in it."""
        from kts_source.planning.plan_json import plan_to_json

        return plan_to_json(self)

    def from_offsets(self, starts: Sequence[int]) -> ScanPlan:
        """The plan without what lies below an offset of each partition.

        Args:
            starts: One for each of `partitions`, not below where it begins.
        """
        partitions = tuple(
            replace(part, start=start) for part, start in zip(self.partitions, starts, strict=True)
        )
        first = {(part.topic, part.partition): part.start for part in partitions}
        tasks = []
        for task in self.tasks:
            slices = tuple(
                replace(part, start_offset=max(part.start_offset, start))
                for part in task.slices
                if part.stop_offset > (start := first[part.topic, part.partition])
            )
            ranges = tuple(
                part.from_offset(start)
                for part in task.ranges
                if part.stop_offset > (start := first[part.topic, part.partition])
            )
            if slices or ranges:
                tasks.append(ScanTask(slices, ranges))
        placed = with_surroundings(tasks, partitions, read_committed=self.read_committed)
        return replace(self, partitions=partitions, tasks=placed)

    @property
    def read_committed(self) -> bool:
        """Whether the plan leaves aborted transactions out, or may be used to."""
        return self.made_with.get("isolationLevel") != "read_uncommitted"

    @property
    def nominal_bytes(self) -> int:
        """Original segment bytes that the tasks cover."""
        return sum(task.nominal_bytes for task in self.tasks)
