"""Defines the plan of one partition: the offsets to read, and the source of each offset.

The *surroundings* of a slice are the offsets directly before and after it that the plan also reads.
A task compares the transactions of a slice with markers and data in its surroundings (see
`read.slice_decoder`). `with_surroundings` adds them to each slice.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeAlias

from kts_source.layout.remote_segment import IndexType, SegmentObjects, StoredIndexes
from kts_source.read.task import ScanTask, SegmentSlice, SliceSurroundings
from kts_source.store.joined_store import is_in_additional_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kts_source.layout.layout import Orphan
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.planning.lineage import PartitionLog, SegmentRange
    from segment_format.index.checkpoints import EpochEntry
    from segment_format.isolation import AbortedIntervals, OpenTransaction

SegmentName: TypeAlias = tuple[str, int, str]
"""Topic, partition and segment id. The segment id alone is not unique, because a copied partition
has the same segment ids.
"""


def segment_name(segment: RemoteSegment | SegmentSlice) -> SegmentName:
    """Returns the key that identifies a segment in a plan."""
    return segment.topic, segment.partition, segment.segment_id


def slice_objects(segment: RemoteSegment) -> SegmentObjects:
    """Returns the objects of a segment for its slices. If side files have content, the result is a
    copy with only those that tasks read.
    """
    objects = segment.objects
    if isinstance(objects.indexes, StoredIndexes):
        return objects
    indexes = {IndexType.OFFSET: objects.indexes[IndexType.OFFSET]}
    snapshot = objects.indexes.get(IndexType.PRODUCER_SNAPSHOT)
    if snapshot is not None:  # for the next slice
        indexes[IndexType.PRODUCER_SNAPSHOT] = snapshot
    return SegmentObjects(
        objects.log, objects.chunk_index, objects.compression, objects.encryption, indexes
    )


def segment_slice(
    segment: RemoteSegment,
    objects: SegmentObjects,
    cuts: Sequence[int],
    offsets: Sequence[int],
    aborted: AbortedIntervals,
    lineage: tuple[EpochEntry, ...],
    surroundings: SliceSurroundings | None = None,
) -> SegmentSlice:
    """Returns a slice of a segment.

    Args:
        segment: The segment.
        objects: The result of `slice_objects`.
        cuts: First byte and end of the slice, as positions in the original segment.
        offsets: First offset of the slice, and one past its last offset.
        aborted: Intervals that are skipped in the slice.
        lineage: Leader epochs of the offsets, each with its first offset.
        surroundings: Offsets around the slice that the plan also reads.
    """
    cut_start, cut_stop = cuts
    start, stop = offsets
    segment_stop = segment.stop_offset
    return SegmentSlice(
        topic=segment.topic,
        partition=segment.partition,
        segment_id=segment.segment_id,
        segment_start=segment.start_offset,
        segment_stop=stop if stop == segment_stop else segment_stop,  # one number saves memory
        objects=objects,
        cut_start=cut_start,
        cut_stop=cut_stop,
        start_offset=start,
        stop_offset=stop,
        aborted=aborted,
        lineage=lineage,
        topic_id=segment.topic_id,
        surroundings=surroundings,
    )


@dataclass(frozen=True, slots=True)
class BrokerPart:
    """The offsets of a partition that the plan reads from brokers.

    Attributes:
        leader_epoch: Leader epoch of the last record before the end of the log.
        ranges: Offsets [start, stop) read from brokers, ascending. Offsets between the ranges are
            read from the tier.
        high_watermark: One past the last offset that consumers may see.
        last_stable_offset: One past the last offset that consumers with `read_committed` may see.
        local_start: First offset on the leader's own disk; `None` if the leader does not report it.
    """

    leader_epoch: int
    ranges: tuple[tuple[int, int], ...]
    high_watermark: int
    last_stable_offset: int
    local_start: int | None


@dataclass(frozen=True, slots=True)
class DiskPart:
    """The replica on a broker's disk from which the plan reads offsets that the tier lacks.

    Attributes:
        local_start: First offset of the replica.
        local_stop: One past the last offset that is read from the replica.
        high_watermark: The highest high watermark that replicas on the same branch of the log have
            recorded; `None` if no replica has recorded one.
    """

    folder: str
    local_start: int
    local_stop: int
    high_watermark: int | None


@dataclass(frozen=True, slots=True)
class CatalogPart:
    """Summary of a partition's events in the topic `__remote_log_metadata`.

    Attributes:
        partition: Number of the partition of `__remote_log_metadata` that has these events.
        start: First offset read of `__remote_log_metadata`.
        stop: One past the last offset read of `__remote_log_metadata`.
        records: Number of records read, including events of other partitions.
        live: Number of segments that consumers may read.
        copying: Number of copies that are in progress or were abandoned.
        deleting: Number of deletions in progress.
        not_named: Offsets [start, stop) that brokers no longer have on their disks, and for which
            `__remote_log_metadata` names no segment.
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
    """The plan of one partition: the offsets to read, and the reason why they end at `stop`.

    Attributes:
        surviving: The log without abandoned branches, and the ranges that segments serve.
        orphans: Objects that belong to no complete segment.
        start: First offset read, inclusive.
        stop: One past the last offset read.
        wanted_stop: The requested end. `stop` is lower if an undecided transaction limits the read.
        undecided: Open transactions that make `stop` lower than `wanted_stop`.
        brokers: The offsets that are read from brokers; `None` if the scan uses no brokers.
        disks: The replica that is read in addition to the tier; `None` if no disk is read.
        catalog: Summary of the partition's events in the metadata topic; `None` if the store was
            listed instead.
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
        """Topic and partition number, such as `orders-3`."""
        return f"{self.topic}-{self.partition}"

    @property
    def disk_ranges(self) -> tuple[SegmentRange, ...]:
        """Offset ranges that are read from broker disks instead of the tier."""
        ranges = self.surviving.ranges
        return tuple(
            span for span in ranges if is_in_additional_store(span.segment.objects.log.key)
        )

    @property
    def tier_end(self) -> int:
        """One past the last offset in the tier; the log start if the tier has no segment."""
        ranges = [
            s
            for s in self.surviving.ranges
            if not is_in_additional_store(s.segment.objects.log.key)
        ]
        return ranges[-1].stop if ranges else self.surviving.log_start

    def wanted_ranges(self) -> Iterator[tuple[SegmentRange, int, int]]:
        """Yields three values for each range of the log that contains wanted offsets: the range,
        the first wanted offset in it, and one past the last wanted offset in it.
        """
        for span in self.surviving.ranges:
            start, stop = max(span.start, self.start), min(span.stop, self.stop)
            if start < stop:
                yield span, start, stop

    @property
    def end_reason(self) -> str:
        """Message that explains why the range ends at `stop`."""
        if self.stop < self.wanted_stop:
            first = self.undecided[0]
            producer = f"open transaction of producer {first.producer_id}"
            return f"{producer} since offset {first.first_offset}"
        if self.stop < self.surviving.stop:
            return "as asked for"
        is_tier_only = self.brokers is None and self.disks is None
        return "end of the tier" if is_tier_only else "end of the log"


_OTHER_FIELDS: Final = attrgetter(
    *(field.name for field in fields(SegmentSlice) if field.name != "surroundings")
)
"""Faster than `dataclasses.replace`, which takes twice as long. Plans have a slice for each
segment.
"""


def with_surroundings(
    tasks: Iterable[ScanTask], partitions: Iterable[PartitionPlan], *, read_committed: bool
) -> tuple[ScanTask, ...]:
    """Returns the tasks with the attribute `surroundings` set in every slice. The slices of each
    partition must ascend by offset. If `read_committed` is False, returns the tasks unchanged,
    because they compare no transactions.
    """
    tasks = tuple(tasks)
    if not read_committed:
        return tasks
    ranges = {
        (partition.topic, partition.partition): partition.surviving.ranges
        for partition in partitions
    }
    slices: dict[tuple[str, int], list[SegmentSlice]] = {}
    for task in tasks:
        for piece in task.slices:
            slices.setdefault((piece.topic, piece.partition), []).append(piece)
    located = {
        key: iter(_with_surroundings(pieces, ranges.get(key, ()))) for key, pieces in slices.items()
    }
    return tuple(
        ScanTask(
            tuple(next(located[piece.topic, piece.partition]) for piece in task.slices), task.ranges
        )
        for task in tasks
    )


class SurroundingsBuilder:
    """Computes the surroundings of the slices of one partition.

    A run consists of slices of one segment that together read all batches from the first slice to
    the last.
    """

    def __init__(self) -> None:
        self._read_to: int | None = None  # end of the previous run if that is the end of its range
        self._before: SegmentRange | None = None
        self._objects: SegmentObjects | None = None  # of `_before`
        self._has_previous = False  # True if the plan reads up to `_before` without a gap

    def surroundings_of(
        self, span: SegmentRange, objects: SegmentObjects, start: int, stop: int
    ) -> SliceSurroundings:
        """Returns the surroundings that all slices of the next run (adjacent slices of one segment)
        share. Call it in the order of offsets.

        Args:
            span: The range of the log that contains the run.
            objects: Objects of the segment, including the producer snapshot.
            start: First offset of the run.
            stop: One past the last offset of the run.
        """
        before = self._before
        follows = self._read_to == span.start == start
        if before is not None and follows:
            around = SliceSurroundings(
                span.stop,
                start,
                stop,
                before=self._objects,
                before_start=before.start if self._has_previous else 0,
                before_stop=before.stop,
                before_is_cut=before.stop < before.segment.stop_offset,
            )
        else:
            around = SliceSurroundings(span.stop, start, stop)
        self._read_to = stop if stop == span.stop else None
        if not follows or objects.size_in_bytes:  # an empty segment has no records
            self._before, self._objects, self._has_previous = span, objects, follows
        return around


def _with_surroundings(
    pieces: Sequence[SegmentSlice], ranges: Sequence[SegmentRange]
) -> list[SegmentSlice]:
    """Returns the slices of a partition with their surroundings."""
    spans: dict[str, list[SegmentRange]] = {}
    for span in ranges:  # a segment inside another one splits its range in two
        spans.setdefault(span.segment.segment_id, []).append(span)
    located: list[SegmentSlice] = []
    builder = SurroundingsBuilder()
    for run in _runs(pieces):
        first, last = run[0], run[-1]
        start = first.start_offset
        span = next(span for span in spans[first.segment_id] if start < span.stop)
        around = builder.surroundings_of(span, first.objects, start, last.stop_offset)
        located += [SegmentSlice(*(*_OTHER_FIELDS(piece), around)) for piece in run]
    return located


def _runs(pieces: Iterable[SegmentSlice]) -> Iterator[list[SegmentSlice]]:
    """Groups the slices into runs: successive slices of one segment with no batch between them."""
    run: list[SegmentSlice] = []
    for piece in pieces:
        if run and not (run[-1].segment_id == piece.segment_id and _are_adjacent(run[-1], piece)):
            yield run
            run = []
        run.append(piece)
    if run:
        yield run


def _are_adjacent(piece: SegmentSlice, following: SegmentSlice) -> bool:
    """Returns whether two successive slices of a segment have no batch between them."""
    offsets = piece.start_offset, piece.stop_offset
    if offsets == (following.start_offset, following.stop_offset):
        return piece.cut_stop == following.cut_start
    return piece.stop_offset == following.start_offset
