"""The first offset dated at or after a timestamp, as a broker's ListOffsets answers.

Timestamps are what producers say, in any order, so nothing is bisected: a segment, an index
stretch or a batch is passed over only because its largest timestamp lies below. Transactions are
not looked at: the answer may be a marker's or an aborted record's offset, as a broker's may.
Source: `RemoteLogManager.findOffsetByTimestamp`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kts_source.planning.lineage import PartitionLog, SegmentRange
    from kts_source.planning.side_files import SideFiles


def first_offset_at_or_after(
    partition: PartitionLog, timestamp_ms: int, side_files: SideFiles
) -> int | None:
    """The first tiered offset whose record is dated at or after `timestamp_ms`; `None` when there
    is none.
    """
    for span in partition.ranges:
        if span.segment.is_dated_before(timestamp_ms):
            continue
        offset = _first_in(span, timestamp_ms, side_files)
        if offset is not None:
            return offset
    return None


def _first_in(span: SegmentRange, timestamp_ms: int, side_files: SideFiles) -> int | None:
    position = _start_position(span, timestamp_ms, side_files)
    times = side_files.record_times(span.segment, position, dated_from_ms=timestamp_ms)
    for offset, dated_ms in times:
        if offset >= span.stop:
            return None
        if offset >= span.start and dated_ms >= timestamp_ms:
            return offset
    return None


def _start_position(span: SegmentRange, timestamp_ms: int, side_files: SideFiles) -> int:
    """A border before which every record is dated earlier, by time index and offset index."""
    times = side_files.time_index(span.segment)
    offsets = side_files.offset_index(span.segment)
    if times is None or offsets is None:
        return 0
    earlier = times.offsets_before(timestamp_ms)
    return offsets.lookup(int(earlier[-1]) + 1).position if len(earlier) else 0
