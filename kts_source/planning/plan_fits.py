"""Whether a plan that comes from a file is one: numbers are numbers, byte ranges lie within their
objects, keys below the root, slices within the partitions they are of.

Nobody vouches for a plan file. What it says about objects is compared with the store before it is
used (`replay`); that nothing is read or allocated beyond them follows from what is checked here.
"""

from __future__ import annotations

from dataclasses import astuple
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Final

from kts_source.layout.remote_segment import IndexType
from kts_source.options.parsing import MAX_INT32
from kts_source.predicate.model import MAX_INT64, MIN_INT64
from kts_source.store.object_store import check_key
from segment_format.kafka_uuid import uuid_from_text
from segment_format.manifest.chunk_index import FixedChunkIndex

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kts_source.broker.broker_range import BrokerRange
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.planning.scan_plan import PartitionPlan, ScanPlan
    from kts_source.read.task import SegmentSlice
    from segment_format.index.checkpoints import EpochEntry

_MAX_CHUNKS: Final = 1 << 20
"""Of one segment; those of 2 GiB have 512, unless the plugin is told otherwise."""


def check_fits(plan: ScanPlan, segments: Iterable[RemoteSegment]) -> None:
    """Refuses a plan whose parts do not fit each other; `segments` are all that its file names.

    Raises:
        ValueError: Says what does not fit.
        TypeError: Values of another kind than there should be.
        LookupError: A slice without an offset index, or of no partition of the plan.
        SegmentFormatError: Chunks that do not make up their object.
        InvalidKeyError: A key that would leave the root.
    """
    for segment in segments:
        _check_segment(segment)
    _texts(*plan.columns, *([] if plan.where is None else [plan.where]), *plan.notes)
    asked = plan.made_with.get("partitions", {})
    if type(asked) is not dict:
        raise TypeError("no partitions by topic where they belong")
    _texts(*asked)
    for numbers in asked.values():
        for number in numbers:
            _within(0, number, MAX_INT32)
    parts = {}
    for part in plan.partitions:
        _check_partition(part)
        parts[part.topic, part.partition] = part
    if len(parts) != len(plan.partitions):
        raise ValueError("a partition stands twice")
    slices: dict[tuple[str, int], list[SegmentSlice]] = {place: [] for place in parts}
    ranges: dict[tuple[str, int], list[BrokerRange]] = {place: [] for place in parts}
    for task in plan.tasks:
        if not task.parts:
            raise ValueError("a task that reads nothing")
        for each in task.ranges:
            _check_range(each, parts[each.topic, each.partition])
            ranges[each.topic, each.partition].append(each)
        for piece in task.slices:
            before = slices[piece.topic, piece.partition]
            part = parts[piece.topic, piece.partition]
            _check_slice(piece, part, before[-1] if before else None)
            before.append(piece)
    for place, part in parts.items():
        _check_complete(part, slices[place], leaves_rows_out=plan.where is not None)
        _check_ranges(part, ranges[place])


def _check_segment(segment: RemoteSegment) -> None:
    objects = segment.objects
    _texts(segment.topic, segment.topic_id, segment.segment_id)
    _within(0, segment.partition, MAX_INT32)
    _within(0, segment.start_offset, segment.end_offset + 1, MAX_INT64)
    _within(MIN_INT64, segment.max_timestamp_ms, MAX_INT64)
    if segment.event_timestamp_ms is not None:
        _within(MIN_INT64, segment.event_timestamp_ms, MAX_INT64)
    if any(type(flag) is not bool for flag in (segment.end_is_exact, objects.compression)):
        raise TypeError("not true or false where one belongs")
    _check_epochs(segment.leader_epochs)
    indexes = list(objects.indexes.values())
    for ref in (objects.log, *(index.source for index in indexes)):
        _names(ref.key)
        _texts(*(text for text in (ref.version, ref.storage_class) if text is not None))
        check_key(ref.key, ref.key, absolute=True)
        _within(0, ref.size, MAX_INT64)
    for index in indexes:
        if index.content is None:
            _within(0, index.start, index.stop, index.source.size)
        elif (index.start, index.stop) != (0, len(index.content)):
            raise ValueError("a side file of another size than it has")
    chunks = objects.chunk_index
    _within(0, chunks.chunk_count, min(_MAX_CHUNKS, objects.log.size))
    chunks.check_object_size(objects.log.size)
    if isinstance(chunks, FixedChunkIndex) and chunks.chunk_count > 1:
        _within(chunks.original_chunk_size, chunks.transformed_chunk_size, MAX_INT32)


def _check_partition(part: PartitionPlan) -> None:
    log = part.surviving
    _texts(part.topic, part.topic_id)
    _within(0, part.partition, MAX_INT32)
    _within(0, part.start, part.stop, part.wanted_stop, MAX_INT64)
    _within(0, log.log_start, log.stop, MAX_INT64)
    _check_epochs(log.lineage)
    for span in log.ranges:
        _within(0, span.start, span.stop, MAX_INT64)
    for hole in (*log.holes, *log.unverifiable):
        _within(0, hole.start, hole.stop, MAX_INT64)
    for transaction in part.undecided:
        _within(-1, transaction.producer_id, MAX_INT64)
        _within(0, transaction.first_offset, MAX_INT64)
    if part.stop < part.wanted_stop and not part.undecided:
        raise ValueError("a range ends early and no transaction says why")
    if part.brokers is not None:
        _within(-1, part.brokers.leader_epoch, MAX_INT32)
        _within(0, *(offset for span in part.brokers.ranges for offset in span), MAX_INT64)
        _within(0, part.brokers.high_watermark, MAX_INT64)
        _within(0, part.brokers.last_stable_offset, MAX_INT64)
        if part.brokers.local_start is not None:
            _within(0, part.brokers.local_start, MAX_INT64)
    if part.disks is not None:
        _names(part.disks.folder)
        _within(0, part.disks.local_start, part.disks.local_stop, MAX_INT64)
        if part.disks.high_watermark is not None:
            _within(0, part.disks.high_watermark, MAX_INT64)
    if part.catalog is not None:
        *numbers, not_named = astuple(part.catalog)
        for number in (*numbers, *(offset for span in not_named for offset in span)):
            _within(0, number, MAX_INT64)
    _names(*(key for orphan in part.orphans for key in orphan.keys))
    _texts(*(orphan.reason for orphan in part.orphans))
    _texts(*(skipped.reason for skipped in log.skipped))


def _check_range(piece: BrokerRange, part: PartitionPlan) -> None:
    if part.brokers is None or type(piece.read_committed) is not bool:
        raise TypeError("a range of a partition that reads nothing from brokers")
    _texts(piece.topic_id)
    uuid_from_text(piece.topic_id)
    if (piece.topic_id, piece.leader_epoch) != (part.topic_id, part.brokers.leader_epoch):
        raise ValueError("a range of another topic id or leader epoch than its partition")
    _within(part.start, piece.start_offset, piece.stop_offset, part.stop)
    _within(0, piece.nominal_bytes, MAX_INT64)


def _check_ranges(part: PartitionPlan, ranges: Sequence[BrokerRange]) -> None:
    """Whether the ranges, in order, are what is to be read from brokers."""
    planned = part.brokers.ranges if part.brokers is not None else ()
    wanted = ((max(low, part.start), min(high, part.stop)) for low, high in planned)
    found = [(piece.start_offset, piece.stop_offset) for piece in ranges]
    if any(high > low for (_, high), (low, _) in pairwise(found)):
        raise ValueError("two ranges of the same offsets")
    if _joined(wanted) != _joined(found):
        raise ValueError(f"ranges are not all that brokers serve of {part.topic}-{part.partition}")


def _check_slice(piece: SegmentSlice, part: PartitionPlan, before: SegmentSlice | None) -> None:
    aborted = piece.aborted
    _within(0, piece.cut_start, piece.cut_stop, piece.objects.size_in_bytes)
    _within(piece.segment_start, piece.start_offset, piece.stop_offset, piece.segment_stop)
    _within(part.start, piece.start_offset, piece.stop_offset, part.stop)
    _check_epochs(piece.lineage)
    piece.objects.indexes[IndexType.OFFSET]
    columns = aborted.producer_ids, aborted.first_offsets, aborted.last_offsets
    if any(column.shape != columns[0].shape or column.ndim != 1 for column in columns):
        raise ValueError("aborted transactions that are not three columns")
    if before is None or piece.start_offset >= before.stop_offset:
        return
    if _span(piece) != _span(before):
        raise ValueError("two slices of the same offsets")
    _within(before.cut_stop, piece.cut_start)


def _check_complete(
    part: PartitionPlan, slices: Sequence[SegmentSlice], *, leaves_rows_out: bool
) -> None:
    """Whether the slices, in order, hold all that is to be read of the partition."""
    for _, group in groupby(slices, _span):
        pieces = list(group)
        first, last = pieces[0], pieces[-1]
        is_whole = (
            (first.cut_start == 0 or first.start_offset > first.segment_start)
            and (
                last.cut_stop == last.objects.size_in_bytes or last.stop_offset < last.segment_stop
            )
            and all(one.cut_stop == other.cut_start for one, other in pairwise(pieces))
        )
        if not is_whole:
            raise ValueError(f"bytes of offsets [{first.start_offset}, {last.stop_offset}) lack")
    if leaves_rows_out:
        return
    wanted = ((start, stop) for _, start, stop in part.wanted_ranges())
    if _joined(wanted) != _joined((piece.start_offset, piece.stop_offset) for piece in slices):
        raise ValueError(f"slices are not all that is to be read of {part.topic}-{part.partition}")


def _span(piece: SegmentSlice) -> tuple[str, int, int]:
    return piece.segment_id, piece.start_offset, piece.stop_offset


def _joined(spans: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Spans in order, those that touch as one."""
    joined: list[list[int]] = []
    for low, high in spans:
        if joined and low <= joined[-1][1]:
            joined[-1][1] = max(high, joined[-1][1])
        elif low < high:
            joined.append([low, high])
    return joined


def _check_epochs(entries: Sequence[EpochEntry]) -> None:
    for entry in entries:
        _within(0, entry.epoch, MAX_INT32)
        _within(0, entry.start_offset, MAX_INT64)


def _within(*ascending: int) -> None:
    """All are whole numbers, each at least the one before."""
    if any(type(number) is not int for number in ascending):
        raise TypeError("not a whole number where one belongs")
    if any(low > high for low, high in pairwise(ascending)):
        raise ValueError(f"{', '.join(map(str, ascending))} should ascend")


def _texts(*values: str, errors: str = "strict") -> None:
    if any(type(value) is not str for value in values):
        raise TypeError("not a text where one belongs")
    for value in values:
        value.encode("utf-8", errors)  # half a character is none


def _names(*keys: str) -> None:
    """Keys may be names of files that are not UTF-8."""
    _texts(*keys, errors="surrogateescape")
