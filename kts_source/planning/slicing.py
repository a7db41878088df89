"""Converts offsets to byte slices of segments, and packs slices into tasks of similar size.

A segment that is larger than a task is split near chunk borders. Small adjacent slices share a
task. The offset index limits the bytes that are read for an offset range. Option `where` limits
slices by offsets, timestamps and partitions, but the partition plan keeps its offsets, end and
holes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Final, TypeVar

from kts_source.errors import PlanTooLargeError
from kts_source.layout.remote_segment import IndexType, SegmentObjects
from kts_source.planning.bounds import confirmed_skip, has_confirmed_time, is_skipped
from kts_source.planning.estimate import ARCHIVE_CLASSES
from kts_source.planning.partition_plan import (
    SurroundingsBuilder,
    segment_name,
    segment_slice,
    slice_objects,
    with_surroundings,
)
from kts_source.predicate.implied_ranges import (
    EVERYWHERE,
    first_millisecond,
    region,
    specialised,
)
from kts_source.predicate.model import MIN_INT64, And
from kts_source.read.task import ScanTask, SegmentSlice
from segment_format.index.checkpoints import EpochEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from kts_source.broker.broker_range import BrokerRange
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.options import ScanOptions
    from kts_source.planning.isolation import Decisions
    from kts_source.planning.partition_plan import PartitionPlan, SegmentName
    from kts_source.planning.scan_plan import ScanPlan
    from kts_source.planning.side_files import SideFiles
    from kts_source.predicate.implied_ranges import Region
    from kts_source.predicate.model import Predicate
    from segment_format.index.sparse_indexes import OffsetIndex

_Piece = TypeVar("_Piece")
_INDEX_ENTRY_BYTES: Final = 8
_MAX_DISORDERED: Final = 16
"""Maximum number of segments whose out-of-order largest timestamp is compared with their time
index. Each comparison takes a request.
"""
MAX_SLICES: Final = 1 << 22
"""Maximum slices of a plan: 512 TiB in tasks of the default size."""


def spans(
    plan: PartitionPlan, decisions: Decisions, options: ScanOptions, side_files: SideFiles
) -> Iterator[SegmentSlice]:
    """Yields the wanted offsets of each segment as one slice, or as several slices if option
    `maxRecordsPerPartition` limits the records of a task. Raises `PlanTooLargeError` if there would
    be too many slices.
    """
    pruner = _Pruner(options.where, plan.topic, plan.partition, side_files)
    wanted = list(plan.wanted_ranges())
    following = [span.segment for span, _, _ in wanted[1:]]
    builder = SurroundingsBuilder()
    lineage: tuple[EpochEntry, ...] = ()
    for (span, first, end), after in zip_longest(wanted, following):
        segment = span.segment
        start, stop = pruner.narrowed(segment, first, end, after)
        if start >= stop:
            continue
        is_cut = start > segment.start_offset or stop < segment.stop_offset
        limit = options.max_records_per_partition or stop - start
        needs_index = is_cut or limit < stop - start
        index = side_files.offset_index(segment) if needs_index else None
        objects = slice_objects(segment)
        if needs_index and index is None:
            objects = _without_index(objects)
        around = None
        if options.read_committed:
            around = builder.surroundings_of(span, objects, start, stop)
        for low, high in pairwise(_offset_cuts(segment, start, stop, index, limit)):
            cuts = 0, segment.objects.size_in_bytes
            if index is not None:  # skip the bytes that the index excludes
                later = index.positions[index.offsets >= high - 1]
                cut_stop = int(later[1]) if len(later) > 1 else cuts[1]
                # Do not rely on an index entry that ends at `low`, because the base offset of its
                # batch has no checksum.
                cuts = index.lookup(low - 1).position, cut_stop
            aborted = decisions.aborted.overlapping(low, high, next_until=stop)
            epochs = _owning_epochs(plan.surviving.lineage, segment.start_offset, low, high)
            if epochs != lineage:  # most slices share one tuple, which saves memory
                lineage = epochs
            yield segment_slice(segment, objects, cuts, (low, high), aborted, lineage, around)


def _offset_cuts(
    segment: RemoteSegment, start: int, stop: int, index: OffsetIndex | None, limit: int
) -> Sequence[int]:
    """Returns the offsets at which [start, stop) is split, including `start` and `stop`. At most
    about `limit` records are between two adjacent offsets of the result.

    The number of records is estimated. Every record has an offset and takes at least one byte, even
    in a compressed batch. So if a part between two index entries has fewer bytes than offsets,
    compaction has removed records, and it is unknown which offsets remain. Such a part is not
    split, and each of its bytes counts as a record. In the other parts, each offset counts as a
    record.
    """
    if limit >= stop - start:
        return start, stop
    borders, sizes = _parts_between_entries(segment, start, stop, index)
    cuts, remaining = [start], limit
    for (low, high), size in zip(pairwise(borders), sizes, strict=True):
        if high - low > size:
            if size > remaining and low > start:
                cuts.append(low)
                remaining = limit
            remaining = max(remaining - size, 0)
        else:
            first = low + remaining
            if len(cuts) + (high - first) // limit > MAX_SLICES:
                raise _too_many_slices()
            inside = range(first, high, limit)
            cuts += inside
            remaining = limit - (high - inside[-1]) if inside else remaining - (high - low)
    return [*cuts, stop]


def _parts_between_entries(
    segment: RemoteSegment, start: int, stop: int, index: OffsetIndex | None
) -> tuple[list[int], list[int]]:
    """Splits [start, stop) after each offset in the index. Returns the borders, including `start`
    and `stop`, and the maximum bytes of each part between two borders.
    """
    size = segment.objects.size_in_bytes
    if index is None:
        return [start, stop], [size]
    inside = (index.offsets >= start) & (index.offsets < stop - 1)
    borders = [start, *(index.offsets[inside] + 1).tolist(), stop]
    # The records up to an index entry begin after the position of the previous entry, and end at
    # the position of the next entry.
    later = index.positions[index.offsets >= stop - 1][:2].tolist()
    positions = [index.lookup(start).position, *index.positions[inside].tolist(), *later]
    positions += [size] * (len(borders) + 1 - len(positions))
    return borders, [high - low for low, high in zip(positions, positions[2:], strict=False)]


def limited_to_max_slices(slices: Iterable[_Piece]) -> Iterator[_Piece]:
    """Yields the items of `slices`. Raises `PlanTooLargeError` after `MAX_SLICES` items."""
    for number, piece in enumerate(slices):
        if number == MAX_SLICES:
            raise _too_many_slices()
        yield piece


def _too_many_slices() -> PlanTooLargeError:
    return PlanTooLargeError(
        f"the plan would have more than {MAX_SLICES:,} slices; raise targetPartitionBytes or"
        " maxRecordsPerPartition, lower minPartitions, or read fewer topics or offsets at a time"
    )


def _without_index(objects: SegmentObjects) -> SegmentObjects:
    """Returns the objects of a segment without its unusable offset index. The segment is then not
    split, because tasks look up boundaries in the index.
    """
    unused = objects.indexes[IndexType.OFFSET]
    indexes = {**objects.indexes, IndexType.OFFSET: replace(unused, stop=unused.start)}
    return replace(objects, indexes=indexes)


def _owning_epochs(
    lineage: Sequence[EpochEntry], segment_start: int, start: int, stop: int
) -> tuple[EpochEntry, ...]:
    """Returns the entries of the lineage whose epochs have offsets in [start, stop).

    Extends the first entry of the lineage down to the start of the segment, because a batch that
    contains the log start has a lower base offset.
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


def cut(piece: SegmentSlice, target: int) -> Iterator[SegmentSlice]:
    """Splits a slice into slices of about `target` bytes of work each, but into no more slices than
    the offset index has entries.
    """
    count = math.ceil(piece.work / target)
    if count > 1:
        count = min(count, piece.offset_index.size // _INDEX_ENTRY_BYTES + 1)
    if count <= 1:
        yield piece
        return
    chunk = piece.objects.chunk_index.original_chunk_size
    step = piece.nominal_bytes / count
    inner = (piece.cut_start + round(step * number) for number in range(1, count))
    if step >= chunk:  # split at chunk borders
        inner = (round(position / chunk) * chunk for position in inner)
    between = {position for position in inner if piece.cut_start < position < piece.cut_stop}
    for cut_start, cut_stop in pairwise([piece.cut_start, *sorted(between), piece.cut_stop]):
        yield replace(piece, cut_start=cut_start, cut_stop=cut_stop)


def cut_range(piece: BrokerRange, target: int, max_records: int | None) -> Iterator[BrokerRange]:
    """Splits a broker range into ranges with about equal numbers of offsets, each with at most
    about `target` bytes and at most `max_records` offsets.
    """
    offsets = piece.stop_offset - piece.start_offset
    count = math.ceil(piece.work / target)
    if max_records is not None:
        count = max(count, math.ceil(offsets / max_records))
    count = max(1, min(count, offsets))
    if count > MAX_SLICES:
        raise _too_many_slices()
    cuts = (piece.start_offset + offsets * number // count for number in range(count + 1))
    for start, stop in pairwise(cuts):
        yield piece.part(start, stop)


def target_bytes(pieces: Sequence[SegmentSlice | BrokerRange], options: ScanOptions) -> int:
    """Returns the target size of a task in bytes: `targetPartitionBytes`, or less if option
    `minPartitions` requires more tasks.
    """
    if options.min_partitions is None:
        return options.target_partition_bytes
    share = math.ceil(sum(piece.work for piece in pieces) / options.min_partitions)
    return max(1, min(options.target_partition_bytes, share))


def pack(
    pieces: Iterable[SegmentSlice | BrokerRange], target: int, options: ScanOptions
) -> Iterator[ScanTask]:
    """Packs successive slices or broker ranges into tasks, up to the target size in bytes and the
    limits on segments and records. A task never has both slices and broker ranges.
    """
    limit = options.max_records_per_partition
    group: list[SegmentSlice | BrokerRange] = []
    work = records = 0
    for piece in pieces:
        # A record takes at least a byte (see `_offset_cuts`), so the bytes of a slice limit its
        # records. The bytes of a broker range are only an estimate.
        max_records = piece.stop_offset - piece.start_offset
        if isinstance(piece, SegmentSlice):
            max_records = min(max_records, piece.nominal_bytes)
        size = piece.work
        is_full = work + size > target or len(group) >= options.max_segments_per_task
        is_full |= bool(group) and type(piece) is not type(group[-1])
        is_full |= limit is not None and records + max_records > limit
        if group and is_full:
            yield ScanTask.of(group)
            group, work, records = [], 0, 0
        group.append(piece)
        work += size
        records += max_records
    if group:
        yield ScanTask.of(group)


class _Pruner:
    """Limits the offsets of each segment to those that can match option `where`. Call `narrowed`
    for the segments of one partition in ascending order.
    """

    def __init__(
        self, where: Predicate | None, topic: str, partition: int, side_files: SideFiles
    ) -> None:
        # Bounds of the offsets and timestamps of matching rows.
        self._box = EVERYWHERE if where is None else region(specialised(where, topic, partition))
        self._side_files = side_files
        # True as long as all records of all segments so far were too early. The time index is
        # requested only for the first segment with a record that is not.
        self._all_earlier = True
        self._disordered = 0

    def narrowed(
        self, segment: RemoteSegment, start: int, stop: int, following: RemoteSegment | None
    ) -> tuple[int, int]:
        """Returns the part of [start, stop) that can contain matching rows, as (start, stop). If no
        row can match, the result is empty: start is not below stop. `following` is the next segment
        of the partition.
        """
        box = self._box
        if box.is_empty:
            return stop, stop
        start, stop = max(start, box.first_offset), min(stop, box.last_offset + 1)
        if start < stop and box.first_timestamp > MIN_INT64:
            start = max(start, self._end_of_early_records(segment, following, stop))
        return start, stop

    def _end_of_early_records(
        self, segment: RemoteSegment, following: RemoteSegment | None, stop: int
    ) -> int:
        """Returns an offset below which all records of the segment have timestamps that are too
        early to match.
        """
        first_ms = first_millisecond(self._box)
        if self._all_earlier:
            if is_skipped(segment, following, first_ms, self._side_files):
                return stop
        elif segment.is_dated_before(first_ms):  # although an earlier segment has later timestamps
            self._disordered += 1
            is_sure = self._disordered > _MAX_DISORDERED
            if is_sure or has_confirmed_time(segment, self._side_files):
                return stop
        if not self._all_earlier:
            return segment.start_offset
        self._all_earlier = False
        if segment.objects.log.storage_class in ARCHIVE_CLASSES:  # its log cannot be read now
            return segment.start_offset
        skip = confirmed_skip(segment, first_ms, self._side_files)
        return segment.start_offset if skip is None else skip.last_offset + 1


def fingerprint(where: Predicate | None) -> str | None:
    """Returns a text that identifies a predicate: equal predicates have equal texts, and different
    predicates have different texts.
    """
    return None if where is None else repr(where)


def conjunction(*terms: Predicate | None) -> Predicate | None:
    """Combines conditions by AND. Ignores `None`; returns `None` if there is no condition."""
    distinct = tuple(dict.fromkeys(term for term in terms if term is not None))
    if len(distinct) < 2:
        return distinct[0] if distinct else None
    return And(distinct)


def narrowed(plan: ScanPlan, where: Predicate, condition: Predicate) -> ScanPlan:
    """Returns a plan without the slices and broker ranges in which no row matches `where`.

    Sends no request, because it uses only offsets, partitions and the largest timestamp of each
    segment. A largest timestamp that is out of order compared with adjacent segments may be wrong,
    so such a segment is kept.

    Args:
        plan: A plan that contains at least the wanted rows.
        where: Condition; only rows for which it is true are wanted.
        condition: `where` and the condition of `plan`, combined by AND.
    """
    boxes: dict[tuple[str, int], Region] = {}
    earlier: set[SegmentName] = set()
    for partition in plan.partitions:
        box = region(specialised(where, partition.topic, partition.partition))
        boxes[partition.topic, partition.partition] = box
        segments = [span.segment for span in partition.surviving.ranges]
        earlier.update(map(segment_name, _all_earlier(segments, first_millisecond(box))))
    tasks = (_narrowed_task(task, boxes, earlier) for task in plan.tasks)
    kept = with_surroundings(
        (task for task in tasks if task.parts),
        plan.partitions,
        read_committed=plan.read_committed,
    )
    return replace(plan, tasks=kept, where=fingerprint(condition))


def _narrowed_task(
    task: ScanTask,
    boxes: Mapping[tuple[str, int], Region],
    earlier: AbstractSet[SegmentName],
) -> ScanTask:
    pieces: list[SegmentSlice | BrokerRange] = []
    for piece in task.parts:
        box = boxes[piece.topic, piece.partition]
        start = max(piece.start_offset, box.first_offset)
        stop = min(piece.stop_offset, box.last_offset + 1)
        if start >= stop or box.is_empty:
            continue
        if not isinstance(piece, SegmentSlice):
            pieces.append(piece.part(start, stop))
        elif segment_name(piece) not in earlier:
            pieces.append(replace(piece, start_offset=start, stop_offset=stop))
    return ScanTask.of(pieces)


def _all_earlier(segments: Sequence[RemoteSegment], timestamp_ms: int) -> Iterator[RemoteSegment]:
    """Yields the segments of a partition whose records are all before a timestamp (ms since 1970).
    Omits segments whose largest timestamp is out of order.
    """
    is_earlier = [segment.is_dated_before(timestamp_ms) for segment in segments]
    for number, segment in enumerate(segments):
        if not is_earlier[number]:
            continue
        is_last = number + 1 == len(segments) or not is_earlier[number + 1]
        if is_last and number:
            before = segments[number - 1].max_timestamp_ms
            if not is_earlier[number - 1] or before > segment.max_timestamp_ms:
                continue  # the timestamp in its manifest may be damaged
        yield segment
