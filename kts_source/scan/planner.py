"""From options to a fixed list of byte ranges: the plan of one scan.

Whole segments, and slices of those larger than a task should be, packed into tasks in offset
order. What a slice needs to be read exactly (offset range, aborted intervals, lineage) travels
with it, so tasks need nothing from each other.
"""

from __future__ import annotations

import itertools
import logging
import math
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kts_source.errors import InvalidOptionError, TieredKafkaError
from kts_source.remote.layout import Orphan, find_layout
from kts_source.remote.segment import IndexType
from kts_source.remote.segment_reader import SegmentReader
from kts_source.remote.store import open_store
from kts_source.scan.bounds import (
    Place,
    check_no_holes,
    named_partitions,
    resolve_start,
    resolve_stop,
)
from kts_source.scan.discover import DiscoveredPartition, DiscoveredTopic, discover
from kts_source.scan.isolation import Decisions, decide
from kts_source.scan.lineage import PartitionLog, newest_segment, partition_log
from kts_source.scan.side_files import SideFiles
from kts_source.scan.task import ScanTask, SegmentSlice
from kts_source.scan.timestamps import first_offset_at_or_after
from segment_format.index.leader_epoch_checkpoint import EpochEntry
from segment_format.isolation import NO_ABORTED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kts_source.options import ScanOptions
    from kts_source.options.bounds import Bound
    from kts_source.remote.segment import RemoteSegment
    from kts_source.remote.store import RangeStore
    from segment_format.index.offset_index import OffsetIndex
    from segment_format.isolation import OpenTransaction

log = logging.getLogger(__name__)

PLANNING_THREADS = 16
_INDEX_ENTRY_BYTES = 8


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """What is read of one partition, and why it ends where it ends.

    Attributes:
        surviving: The log as far as it is tiered.
        start: First offset read, inclusive.
        stop: One past the last offset read.
        wanted_stop: The same before undecided transactions bounded it.
        undecided: Transactions that bound it.
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

    @property
    def end_reason(self) -> str:
        """Why the range ends at `stop`, in words."""
        if self.stop < self.wanted_stop:
            first = self.undecided[0]
            producer = f"open transaction of producer {first.producer_id}"
            return f"{producer} since offset {first.first_offset}"
        return "end of the tier" if self.stop == self.surviving.stop else "as asked for"


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """A fixed list of byte ranges, and what it leaves out.

    Attributes:
        tasks: In order of topic, partition and offset.
        columns: Columns of the table, in order.
    """

    partitions: tuple[PartitionPlan, ...]
    tasks: tuple[ScanTask, ...]
    columns: tuple[str, ...]

    @property
    def nominal_bytes(self) -> int:
        """Original segment bytes that the tasks cover."""
        return sum(task.nominal_bytes for task in self.tasks)


def plan_scan(options: ScanOptions, store: RangeStore | None = None) -> ScanPlan:
    """Plans one scan. Lists and reads manifests, checkpoints and transactional side files; no log
    bytes.

    Args:
        options: What to read.
        store: The tier; opened from the options when not given.

    Raises:
        TieredKafkaError: See `discover`, `resolve_start`, `resolve_stop` and `check_no_holes`.
    """
    for name in options.ignored:
        log.info("option %s has no effect on this source", name)
    opened = store or open_store(options.path, options.storage)
    try:
        side_files = SideFiles(
            SegmentReader(opened, options.key_ring.loaded()),
            max_batch_bytes=options.max_batch_bytes,
        )
        with ThreadPoolExecutor(PLANNING_THREADS, thread_name_prefix="kts-plan") as pool:
            topics = discover(options, opened, find_layout(options.layout), pool)
            _check_named(options, topics)
            planned = tuple(_plan_partitions(options, topics, side_files, pool))
    finally:
        if store is None:
            opened.close()
    spans = [span for _, partition_spans in planned for span in partition_spans]
    target = _target(spans, options)
    slices = (part for span in spans for part in _cut(span, target))
    return ScanPlan(
        tuple(plan for plan, _ in planned), tuple(_pack(slices, target, options)), options.columns
    )


def _check_named(options: ScanOptions, topics: Sequence[DiscoveredTopic]) -> None:
    """As in Spark, a bound in JSON must name exactly the partitions that are read."""
    held = {(part.topic, part.partition) for topic in topics for part in topic.partitions}
    known = held | {(topic.topic, number) for topic in topics for number in topic.empty_partitions}
    for option, bound in (("starting", options.starting), ("ending", options.ending)):
        named = named_partitions(bound)
        if named is None:
            continue
        pairs = {(topic, number) for topic, numbers in named.items() for number in numbers}
        missing = held - pairs
        extra = {pair for pair in pairs - known if pair[0] not in {topic.topic for topic in topics}}
        for problem, what in ((missing, "does not name"), (extra, "names")):
            if problem:
                names = ", ".join(f"{topic}-{number}" for topic, number in sorted(problem))
                raise InvalidOptionError(
                    f"the {option} offsets must name the partitions that are read (−2 earliest,"
                    f" −1 latest): the"
                    f" option {what} {names}"
                )


def _plan_partitions(
    options: ScanOptions,
    topics: Iterable[DiscoveredTopic],
    side_files: SideFiles,
    pool: Executor,
) -> Iterator[tuple[PartitionPlan, list[SegmentSlice]]]:
    found = [part for topic in topics for part in topic.partitions if part.segments]

    def plan(part: DiscoveredPartition) -> tuple[PartitionPlan, list[SegmentSlice]]:
        try:
            return _plan_partition(options, part, side_files)
        except TieredKafkaError as error:
            raise error.located(topic=part.topic, partition=part.partition) from error.__cause__

    yield from pool.map(plan, found)


def _plan_partition(
    options: ScanOptions, part: DiscoveredPartition, side_files: SideFiles
) -> tuple[PartitionPlan, list[SegmentSlice]]:
    newest = newest_segment(part.segments)
    surviving = partition_log(part.segments, side_files.leader_epochs(newest).entries)
    place = Place(part.topic, part.partition)
    for skipped in surviving.skipped:
        log.info("%s: segment %s not read: %s", place, skipped.segment.segment_id, skipped.reason)

    def lookup(of: PartitionLog, timestamp_ms: int) -> int | None:
        return first_offset_at_or_after(of, timestamp_ms, side_files)

    loss = options.fail_on_data_loss
    start = resolve_start(
        options.starting,
        place,
        surviving,
        lookup=lookup,
        unmatched_is_latest=options.timestamp_strategy == "latest",
        fail_on_data_loss=loss,
    )
    stop = resolve_stop(options.ending, place, surviving, lookup=lookup, fail_on_data_loss=loss)
    _check_order(options.starting, place, start, stop)
    check_no_holes(place, surviving, start, stop, fail_on_data_loss=loss)
    decisions = _decisions(options, surviving, start, stop, side_files)
    plan = PartitionPlan(
        part.topic,
        part.topic_id,
        part.partition,
        surviving,
        part.orphans,
        start,
        decisions.stop,
        stop,
        decisions.undecided,
    )
    if plan.stop < stop:
        log.warning("%s: read_committed ends at offset %d: %s", place, plan.stop, plan.end_reason)
    return plan, list(_spans(plan, decisions, options, side_files))


def _check_order(bound: Bound, place: Place, start: int, stop: int) -> None:
    if start > stop and named_partitions(bound) is not None:
        raise InvalidOptionError(
            f"{place}: the starting offset {start} lies above the ending offset {stop}"
        )


def _decisions(
    options: ScanOptions, surviving: PartitionLog, start: int, stop: int, side_files: SideFiles
) -> Decisions:
    if start >= stop or not options.read_committed:
        return Decisions(NO_ABORTED, max(start, stop), ())
    decisions = decide(surviving, start, stop, side_files)
    for txn in decisions.lost:
        log.warning(
            "records of producer %d from offset %d on are left out: the end of their transaction"
            " is in a hole",
            txn.producer_id,
            txn.first_offset,
        )
    return decisions


def _spans(
    plan: PartitionPlan, decisions: Decisions, options: ScanOptions, side_files: SideFiles
) -> Iterator[SegmentSlice]:
    """The wanted offsets of each segment, as one slice, or several where a task may hold only so
    many offsets.
    """
    for span in plan.surviving.ranges:
        start, stop = max(span.start, plan.start), min(span.stop, plan.stop)
        if start >= stop:
            continue
        segment = span.segment
        is_cut = start > segment.start_offset or stop < segment.stop_offset
        step = options.max_records_per_partition or stop - start
        index = side_files.offset_index(segment) if is_cut or step < stop - start else None
        for low in range(start, stop, step):
            high = min(low + step, stop)
            yield _slice(segment, low, high, index, decisions, plan.surviving.lineage)


def _slice(
    segment: RemoteSegment,
    start: int,
    stop: int,
    index: OffsetIndex | None,
    decisions: Decisions,
    lineage: Sequence[EpochEntry],
) -> SegmentSlice:
    """Offsets [start, stop) of a segment without the bytes that its offset index rules out."""
    objects = segment.objects
    cut_start, cut_stop = 0, objects.size_in_bytes
    if index is not None:
        cut_start = index.lookup(start).position
        behind = index.positions[index.offsets >= stop - 1]
        cut_stop = int(behind[1]) if len(behind) > 1 else cut_stop
    return SegmentSlice(
        topic=segment.topic,
        partition=segment.partition,
        segment_id=segment.segment_id,
        segment_start=segment.start_offset,
        objects=replace(objects, indexes={IndexType.OFFSET: objects.indexes[IndexType.OFFSET]}),
        cut_start=cut_start,
        cut_stop=cut_stop,
        start_offset=start,
        stop_offset=stop,
        aborted=decisions.aborted.clip(start, stop),
        lineage=_owners(lineage, segment.start_offset, start, stop),
    )


def _owners(
    lineage: Sequence[EpochEntry], segment_start: int, start: int, stop: int
) -> tuple[EpochEntry, ...]:
    """The lineage's entries that own offsets [start, stop).

    The first of all is stretched to the segment's start: a batch that the log start cuts in two has
    its base below it.
    """
    entries = [
        entry
        for number, entry in enumerate(lineage)
        if entry.start_offset < stop
        and (number + 1 == len(lineage) or lineage[number + 1].start_offset > start)
    ]
    if entries and entries[0] == lineage[0]:
        entries[0] = EpochEntry(entries[0].epoch, min(segment_start, entries[0].start_offset))
    return tuple(entries)


def _cut(part: SegmentSlice, target: int) -> Iterator[SegmentSlice]:
    """Slices of about `target` original bytes, never more of them than the offset index has borders
    for.
    """
    entries = part.objects.indexes[IndexType.OFFSET].size // _INDEX_ENTRY_BYTES
    count = max(1, min(math.ceil(part.nominal_bytes / target), entries + 1))
    cuts = _cut_positions(part, count)
    for cut_start, cut_stop in itertools.pairwise(cuts):
        yield replace(part, cut_start=cut_start, cut_stop=cut_stop)


def _cut_positions(part: SegmentSlice, count: int) -> list[int]:
    """`count` + 1 ascending positions; inner ones fall on chunk borders where slices are larger
    than chunks.
    """
    chunk = part.objects.chunk_index.original_chunk_size
    step = part.nominal_bytes / count
    inner = (part.cut_start + round(step * number) for number in range(1, count))
    if step >= chunk:
        inner = (round(position / chunk) * chunk for position in inner)
    between = {position for position in inner if part.cut_start < position < part.cut_stop}
    return [part.cut_start, *sorted(between), part.cut_stop]


def _target(spans: Sequence[SegmentSlice], options: ScanOptions) -> int:
    """Original bytes a task should hold, smaller where more tasks are asked for."""
    if options.min_partitions is None:
        return options.target_partition_bytes
    share = math.ceil(sum(span.nominal_bytes for span in spans) / options.min_partitions)
    return max(1, min(options.target_partition_bytes, share))


def _pack(slices: Iterable[SegmentSlice], target: int, options: ScanOptions) -> Iterator[ScanTask]:
    """Neighbouring slices share a task up to the target size and the limits on segments and
    offsets.
    """
    max_offsets = options.max_records_per_partition
    group: list[SegmentSlice] = []
    size = offsets = 0
    for part in slices:
        span = part.stop_offset - part.start_offset
        full = size + part.nominal_bytes > target or len(group) >= options.max_segments_per_task
        if group and (full or (max_offsets is not None and offsets + span > max_offsets)):
            yield ScanTask(tuple(group))
            group, size, offsets = [], 0, 0
        group.append(part)
        size += part.nominal_bytes
        offsets += span
    if group:
        yield ScanTask(tuple(group))
