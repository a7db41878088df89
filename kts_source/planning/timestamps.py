"""The first offset dated at or after a timestamp, as a broker's ListOffsets answers.

Timestamps are what producers say, in any order, so nothing is bisected: a segment, an index
stretch or a batch is passed over only because its largest timestamp lies below. Transactions are
not looked at: the answer may be a marker's or an aborted record's offset, as a broker's may.
Source: `RemoteLogManager.findOffsetByTimestamp`.

The time index has no checksum. An entry of it is used only if the records around its offset
confirm it; otherwise the segment is read from its start. A manifest has none either, so the last
segment that is passed over is compared with its time index.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

import numpy as np

from kts_source.layout.remote_segment import IndexType
from kts_source.planning.estimate import ARCHIVE_CLASSES
from kts_source.texts import printable
from segment_format.index.sparse_indexes import TimestampOffset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.planning.lineage import PartitionLog, SegmentRange
    from kts_source.planning.side_files import SideFiles

log = logging.getLogger(__name__)


def first_offset_at_or_after(
    partition: PartitionLog, timestamp_ms: int, side_files: SideFiles
) -> int | None:
    """The first tiered offset whose record is dated at or after `timestamp_ms`; `None` when there
    is none.
    """
    following = [span.segment for span in partition.ranges[1:]]
    for span, after in zip_longest(partition.ranges, following):
        if is_skipped(span.segment, after, timestamp_ms, side_files):
            continue
        offset = _first_in(span, timestamp_ms, side_files)
        if offset is not None:
            return offset
    return None


def is_skipped(
    segment: RemoteSegment,
    following: RemoteSegment | None,
    timestamp_ms: int,
    side_files: SideFiles,
) -> bool:
    """Returns whether all records of a segment are dated before a timestamp.

    If the next segment is not dated before it, the largest timestamp of this one must be confirmed:
    where records ascend in time, a wrong one drops wanted records only there.

    Args:
        segment: The segment.
        following: The next one; `None` after the last.
        timestamp_ms: In ms since 1970.
        side_files: Reads the time index.
    """
    if not segment.is_dated_before(timestamp_ms):
        return False
    if following is not None and following.is_dated_before(timestamp_ms):
        return True
    return has_confirmed_time(segment, side_files)


def has_confirmed_time(segment: RemoteSegment, side_files: SideFiles) -> bool:
    """Returns whether the time index of a segment ends with its largest timestamp, which has no
    checksum in a manifest. True if there is no time index or it cannot be read now.
    """
    stored = segment.objects.indexes.get(IndexType.TIMESTAMP)
    if stored is None or not stored.size or stored.source.storage_class in ARCHIVE_CLASSES:
        return True
    return side_files.time_index(segment) is not None


def _first_in(span: SegmentRange, timestamp_ms: int, side_files: SideFiles) -> int | None:
    skip = confirmed_skip(span.segment, timestamp_ms, side_files)
    times = (
        side_files.record_times(span.segment, 0, dated_from_ms=timestamp_ms)
        if skip is None
        else skip.rest
    )
    for offset, dated_ms in times:
        if offset >= span.stop:
            return None
        if offset >= span.start and dated_ms >= timestamp_ms:
            return offset
    return None


@dataclass(frozen=True, slots=True)
class Skip:
    """The records of a segment that are dated before some timestamp.

    Attributes:
        last_offset: Every record up to this offset is dated earlier.
        rest: Offset and timestamp of the records after it, without batches dated earlier.
    """

    last_offset: int
    rest: Iterator[tuple[int, int]]


def confirmed_skip(segment: RemoteSegment, timestamp_ms: int, side_files: SideFiles) -> Skip | None:
    """Finds the last time-index entry dated before a timestamp and compares it with the log.

    Returns:
        `None` if no record can be skipped: the indexes are empty or not usable, no entry is dated
        earlier, or the records contradict the entry.
    """
    times, offsets = side_files.time_index(segment), side_files.offset_index(segment)
    if times is None or offsets is None:
        return None
    number = int(np.searchsorted(times.timestamps, timestamp_ms, side="left")) - 1
    if number < 0 or times.timestamps[number] <= 0:
        # Some clients leave the header field unset that brokers index: 0 and below prove nothing.
        return None
    entry = TimestampOffset(int(times.timestamps[number]), int(times.offsets[number]))
    position = offsets.lookup(entry.offset).position
    records = side_files.record_times(segment, position, dated_from_ms=entry.timestamp)
    rest = _after_entry(entry, records)
    if rest is None:
        log.warning(
            "%s-%s: the time index says that the largest timestamp up to offset %s is %s ms, which"
            " the records do not confirm; reading segment %s from its start",
            *(segment.topic, segment.partition, entry.offset, entry.timestamp),
            printable(segment.objects.log.key),
        )
        return None
    return Skip(entry.offset, rest)


def _after_entry(
    entry: TimestampOffset, records: Iterator[tuple[int, int]]
) -> Iterator[tuple[int, int]] | None:
    """Returns the records after an entry's offset; `None` if those before contradict the entry.

    Args:
        entry: The largest timestamp up to an offset, as the time index says.
        records: Offset and timestamp, from shortly before the entry's offset on.
    """
    is_confirmed = False
    for offset, dated_ms in records:
        if offset > entry.offset:
            return chain([(offset, dated_ms)], records) if is_confirmed else None
        if dated_ms > entry.timestamp:
            return None
        is_confirmed |= dated_ms == entry.timestamp
    return iter(()) if is_confirmed else None
