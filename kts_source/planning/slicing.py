"""From offsets to byte slices, and from slices to tasks of even size.

Segments larger than a task should be are cut near chunk borders; small neighbours share a task. An
offset bound narrows the bytes by the offset index.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Final, TypeVar

from kts_source.errors import PlanTooLargeError
from kts_source.layout.remote_segment import IndexType, SegmentObjects
from kts_source.planning.pruning import Pruner
from kts_source.planning.surroundings import Neighbors
from kts_source.read.task import ScanTask, SegmentSlice
from segment_format.index.leader_epoch_checkpoint import EpochEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kts_source.broker.broker_range import BrokerRange
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.options import ScanOptions
    from kts_source.planning.isolation import Decisions
    from kts_source.planning.scan_plan import PartitionPlan
    from kts_source.planning.side_files import SideFiles
    from kts_source.read.task import SliceSurroundings
    from segment_format.index.offset_index import OffsetIndex
    from segment_format.isolation import AbortedIntervals

_Piece = TypeVar("_Piece")
_INDEX_ENTRY_BYTES = 8
MAX_SLICES: Final = 1 << 22
"""Of one plan: 512 TiB in tasks of the usual size."""


def spans(
    plan: PartitionPlan, decisions: Decisions, options: ScanOptions, side_files: SideFiles
) -> Iterator[SegmentSlice]:
    """The wanted offsets of each segment, as one slice, or several where a task may hold only so
    many records.

    Raises:
        PlanTooLargeError: More slices than a plan may have.
    """
    pruner = Pruner(options.where, plan.topic, plan.partition, side_files)
    wanted = list(plan.wanted_ranges())
    following = [span.segment for span, _, _ in wanted[1:]]
    neighbors = Neighbors()
    for (span, first, end), after in zip_longest(wanted, following):
        segment = span.segment
        start, stop = pruner.narrowed(segment, first, end, after)
        if start >= stop:
            continue
        is_cut = start > segment.start_offset or stop < segment.stop_offset
        limit = options.max_records_per_partition or stop - start
        looks_up = is_cut or limit < stop - start
        index = side_files.offset_index(segment) if looks_up else None
        objects = slice_objects(segment)
        if looks_up and index is None:
            objects = _in_one_piece(objects)
        around = None
        if options.read_committed:
            around = neighbors.around(span, objects, start, stop)
        for low, high in pairwise(_offset_cuts(segment, start, stop, index, limit)):
            cuts = 0, segment.objects.size_in_bytes
            if index is not None:  # without the bytes that it rules out
                behind = index.positions[index.offsets >= high - 1]
                cut_stop = int(behind[1]) if len(behind) > 1 else cuts[1]
                # An entry that ends at `low` is no proof: its batch's base offset has no checksum.
                cuts = index.lookup(low - 1).position, cut_stop
            aborted = decisions.aborted.clip(low, high, next_until=stop)
            lineage = _owners(plan.surviving.lineage, segment.start_offset, low, high)
            yield segment_slice(segment, objects, cuts, (low, high), aborted, lineage, around)


def _offset_cuts(
    segment: RemoteSegment, start: int, stop: int, index: OffsetIndex | None, limit: int
) -> Sequence[int]:
    """Offsets that cut [start, stop), its ends among them, with about `limit` records between two
    of them at most.

    A record takes a byte at least, also in a compressed batch: it has an offset of its own. So
    where two entries of the offset index are further apart in offsets than in bytes, compaction has
    left few records between them, nobody knows where, and there is no cut. Elsewhere offsets count
    as records.
    """
    if limit >= stop - start:
        return start, stop
    borders, sizes = _stretches(segment, start, stop, index)
    cuts, room = [start], limit
    for (low, high), size in zip(pairwise(borders), sizes, strict=True):
        if high - low > size:
            if size > room and low > start:
                cuts.append(low)
                room = limit
            room = max(room - size, 0)
        else:
            first = low + room
            if len(cuts) + (high - first) // limit > MAX_SLICES:
                raise too_many_slices()
            inside = range(first, high, limit)
            cuts += inside
            room = limit - (high - inside[-1]) if inside else room - (high - low)
    return [*cuts, stop]


def _stretches(
    segment: RemoteSegment, start: int, stop: int, index: OffsetIndex | None
) -> tuple[list[int], list[int]]:
    """Offsets from `start` to `stop` that entries of the index end with, and how many bytes hold
    what lies between two of them, at most.
    """
    size = segment.objects.size_in_bytes
    if index is None:
        return [start, stop], [size]
    inside = (index.offsets >= start) & (index.offsets < stop - 1)
    borders = [start, *(index.offsets[inside] + 1).tolist(), stop]
    # What ends with an entry begins behind the entry before, and ends where the next one begins.
    behind = index.positions[index.offsets >= stop - 1][:2].tolist()
    positions = [index.lookup(start).position, *index.positions[inside].tolist(), *behind]
    positions += [size] * (len(borders) + 1 - len(positions))
    return borders, [high - low for low, high in zip(positions, positions[2:], strict=False)]


def bounded(slices: Iterable[_Piece]) -> Iterator[_Piece]:
    """The same, up to as many as a plan may have.

    Raises:
        PlanTooLargeError: There are more.
    """
    for number, part in enumerate(slices):
        if number == MAX_SLICES:
            raise too_many_slices()
        yield part


def too_many_slices() -> PlanTooLargeError:
    """What to say of a plan with more slices than memory holds."""
    return PlanTooLargeError(
        f"the plan would have more than {MAX_SLICES:,} slices; raise targetPartitionBytes or"
        " maxRecordsPerPartition, lower minPartitions, or read fewer topics or offsets at a time"
    )


def slice_objects(segment: RemoteSegment) -> SegmentObjects:
    """Return the objects of a segment with the side files that tasks read."""
    objects = segment.objects
    indexes = {IndexType.OFFSET: objects.indexes[IndexType.OFFSET]}
    snapshot = objects.indexes.get(IndexType.PRODUCER_SNAPSHOT)
    if snapshot is not None:  # for the slice after it
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
    """A slice of a segment whose `slice_objects` are given."""
    cut_start, cut_stop = cuts
    start, stop = offsets
    return SegmentSlice(
        topic=segment.topic,
        partition=segment.partition,
        segment_id=segment.segment_id,
        segment_start=segment.start_offset,
        segment_stop=segment.stop_offset,
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


def _in_one_piece(objects: SegmentObjects) -> SegmentObjects:
    """The objects of a segment whose offset index was looked into and cannot be used. Pieces of it
    but the first would be empty, and an index that is lost later could not be told from this one.
    """
    unused = objects.indexes[IndexType.OFFSET]
    indexes = {**objects.indexes, IndexType.OFFSET: replace(unused, stop=unused.start)}
    return replace(objects, indexes=indexes)


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
    if entries and entries[0] is lineage[0] and segment_start < entries[0].start_offset:
        entries[0] = EpochEntry(entries[0].epoch, segment_start)
    return tuple(entries)


def cut(part: SegmentSlice, target: int) -> Iterator[SegmentSlice]:
    """Slices of about `target` original bytes, never more of them than the offset index has borders
    for.
    """
    count = math.ceil(part.work / target)
    if count > 1:
        count = min(count, part.offset_index.size // _INDEX_ENTRY_BYTES + 1)
    if count <= 1:
        yield part
        return
    chunk = part.objects.chunk_index.original_chunk_size
    step = part.nominal_bytes / count
    inner = (part.cut_start + round(step * number) for number in range(1, count))
    if step >= chunk:  # cuts on chunk borders
        inner = (round(position / chunk) * chunk for position in inner)
    between = {position for position in inner if part.cut_start < position < part.cut_stop}
    for cut_start, cut_stop in pairwise([part.cut_start, *sorted(between), part.cut_stop]):
        yield replace(part, cut_start=cut_start, cut_stop=cut_stop)


def cut_range(part: BrokerRange, target: int, most_records: int | None) -> Iterator[BrokerRange]:
    """Ranges of about `target` bytes, and of at most so many offsets, evenly."""
    offsets = part.stop_offset - part.start_offset
    count = math.ceil(part.work / target)
    if most_records is not None:
        count = max(count, math.ceil(offsets / most_records))
    count = max(1, min(count, offsets))
    if count > MAX_SLICES:
        raise too_many_slices()
    cuts = (part.start_offset + offsets * number // count for number in range(count + 1))
    for start, stop in pairwise(cuts):
        yield part.part(start, stop)


def target_bytes(spans: Sequence[SegmentSlice | BrokerRange], options: ScanOptions) -> int:
    """Original bytes a task should hold, smaller where more tasks are asked for."""
    if options.min_partitions is None:
        return options.target_partition_bytes
    share = math.ceil(sum(span.work for span in spans) / options.min_partitions)
    return max(1, min(options.target_partition_bytes, share))


def pack(
    parts: Iterable[SegmentSlice | BrokerRange], target: int, options: ScanOptions
) -> Iterator[ScanTask]:
    """Neighbours of one kind share a task up to the target size and the limits on segments and
    records.
    """
    limit = options.max_records_per_partition
    group: list[SegmentSlice | BrokerRange] = []
    work = records = 0
    for part in parts:
        # A record takes a byte at least, see `_offset_cuts`; of ranges the bytes are a guess.
        most = part.stop_offset - part.start_offset
        if isinstance(part, SegmentSlice):
            most = min(most, part.nominal_bytes)
        size = part.work
        full = work + size > target or len(group) >= options.max_segments_per_task
        full |= bool(group) and type(part) is not type(group[-1])
        if group and (full or (limit is not None and records + most > limit)):
            yield _task(group)
            group, work, records = [], 0, 0
        group.append(part)
        work += size
        records += most
    if group:
        yield _task(group)


def _task(group: Sequence[SegmentSlice | BrokerRange]) -> ScanTask:
    slices = tuple(part for part in group if isinstance(part, SegmentSlice))
    return ScanTask(slices, tuple(part for part in group if not isinstance(part, SegmentSlice)))
