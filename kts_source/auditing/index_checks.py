"""Offset and time index of a segment against their own rules, its bounds and its batches.

The batches of a whole segment, from its first byte to its last: header facts and checksums.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kts_source.auditing.place import is_archived
from kts_source.auditing.segment_checks import SideFileReader
from kts_source.errors import TieredKafkaError
from kts_source.layout.remote_segment import IndexType
from kts_source.read.segment_source import SegmentSpan
from segment_format.errors import SegmentFormatError
from segment_format.index.sparse_indexes import OffsetIndex, TimeIndex
from segment_format.kernels.batch_scanner import BatchScanner
from segment_format.record.batch_header import HEADER_SIZE, MAGIC_2, RecordBatchHeader
from segment_format.record.framing import read_prefix
from segment_format.record.recovery import max_timestamps_from

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from kts_source.auditing.place import Place
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.read.fetch import ReadAhead
    from kts_source.read.segment_source import SegmentSource
    from segment_format.kernels.batch_scanner import BatchTable


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """What is checked of one row of a table of batches; see `BatchTable`."""

    position: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    is_sound: bool
    max_timestamp: int


def rows_of(table: BatchTable) -> Iterator[BatchFacts]:
    """The batches of a table, one by one."""
    for row in range(len(table)):
        yield BatchFacts(
            int(table.positions[row]),
            int(table.base_offsets[row]),
            int(table.last_offsets[row]),
            int(table.leader_epochs[row]),
            bool(table.are_sound[row]),
            int(table.max_timestamps[row]),
        )


def segment_tables(
    segment: RemoteSegment,
    source: SegmentSource,
    read_ahead: ReadAhead,
    *,
    max_batch_bytes: int,
    start_offset: int = 0,
) -> Iterator[BatchTable]:
    """Every batch of a segment, in order. Memory is bounded by the read-ahead, one window of it and
    one batch.

    Args:
        segment: Which.
        source: What reads it.
        read_ahead: How much to have under way.
        max_batch_bytes: Bound on one batch.
        start_offset: Records before it are not counted.

    Raises:
        SegmentFormatError: Bytes that are no batch, at a position in the segment; all batches
            before were given.
        TieredKafkaError: See `SegmentSource.windows`; as well.
    """
    size = segment.objects.size_in_bytes
    scanner = BatchScanner(size, max_batch_bytes=max_batch_bytes, start_offset=start_offset)
    place = segment.topic, segment.partition, segment.start_offset
    span = SegmentSpan(*place, segment.objects, 0, size)
    try:
        with closing(source.windows([span], read_ahead=read_ahead)) as windows:
            for _, window in windows:
                yield from scanner.feed(window)
                del window  # the next one may have this memory
        scanner.finish()
    except (SegmentFormatError, TieredKafkaError):
        yield scanner.rest()
        raise
    yield scanner.rest()


_NONE: Final = np.empty(0, np.int64)


class SegmentIndexes(SideFileReader):
    """The indexes of one segment, compared with its batches as they come by.

    Args:
        place: Partition of the segment.
        segment: Whose.
        source: What reads them.
    """

    def __init__(self, place: Place, segment: RemoteSegment, source: SegmentSource) -> None:
        super().__init__(place, segment, source)
        self.offsets = self._offset_index()
        self.times = self._time_index()
        # The next entry that no batch has met, of either.
        self._next_offset = 0
        self._next_time = 0
        self._last_offset = -1
        self._has_time = False

    def _offset_index(self) -> OffsetIndex | None:
        kind, segment = IndexType.OFFSET, self.segment
        data = self.read(kind, "offset-index-invalid")
        if data is None:
            return None
        try:
            index = OffsetIndex.from_bytes(data, base_offset=segment.start_offset)
        except SegmentFormatError as error:
            self.find("offset-index-invalid", kind, str(error))
            return None
        if len(index):
            offset, position = int(index.offsets[-1]), int(index.positions[-1])
            size = segment.objects.size_in_bytes
            if offset > segment.end_offset or position >= size:
                text = f"it ends at offset {offset} and byte {position} of a segment of {size}"
                self.find("offset-index-invalid", kind, text)
                return None
        return index

    def _time_index(self) -> TimeIndex | None:
        kind, segment = IndexType.TIMESTAMP, self.segment
        data = self.read(kind, "time-index-invalid")
        if data is None:
            return None
        try:
            index = TimeIndex.from_bytes(data, base_offset=segment.start_offset)
        except SegmentFormatError as error:
            self.find("time-index-invalid", kind, str(error))
            return None
        if not len(index):
            return index
        if int(index.offsets[-1]) > segment.end_offset:
            text = (
                f"it ends at offset {int(index.offsets[-1])}, the segment at {segment.stop_offset}"
            )
            self.find("time-index-invalid", kind, text)
            return None
        largest = self._largest_timestamp()
        if int(index.timestamps[-1]) != largest:
            text = (
                f"it ends at {int(index.timestamps[-1])} ms, the segment's largest timestamp is"
                f" {largest}"
            )
            self.find("time-index-disagrees", kind, text)
            return None
        return index

    def _largest_timestamp(self) -> int:
        """Returns the segment's largest timestamp, from its batch headers if nothing else has it.

        Plans of a layout without manifests do not read headers without end: they may leave it open.
        """
        segment = self.segment
        log = segment.objects.log
        if segment.max_timestamp_ms >= 0 or segment.end_is_exact or is_archived(log):
            return segment.max_timestamp_ms
        place = segment.topic, segment.partition, segment.start_offset

        def read(start: int, stop: int) -> bytes:
            spans = [SegmentSpan(*place, segment.objects, start, stop)]
            return b"".join(bytes(window) for _, window in self._source.windows(spans))

        size = segment.objects.size_in_bytes
        return max(max_timestamps_from(read, size, 0, segment.start_offset), default=-1)

    def look_up_last(self, max_batch_bytes: int) -> None:
        """Checks that the last entry of the offset index points at a batch: one chunk is read."""
        if self.offsets is None or not len(self.offsets):
            return
        segment = self.segment
        offset, at = int(self.offsets.offsets[-1]), int(self.offsets.positions[-1])
        stop = min(at + HEADER_SIZE, segment.objects.size_in_bytes)
        place = segment.topic, segment.partition, segment.start_offset
        span = SegmentSpan(*place, segment.objects, at, stop)
        data = b"".join(bytes(window) for _, window in self._source.windows([span]))
        try:
            entry = read_prefix(data)
            # What is compressed in formats 0 and 1 is named by its last message.
            base, most = entry.offset, segment.end_offset
            if entry.magic == MAGIC_2:
                base, most = RecordBatchHeader.from_bytes(data).base_offset, offset
        except SegmentFormatError as error:
            self._disagrees(f"entry for offset {offset} at byte {at}: {error.message}")
            return
        if not segment.start_offset <= base <= most or entry.size > max_batch_bytes:
            text = f"a batch of {entry.size} bytes from offset {base} on"
            self._disagrees(f"entry for offset {offset} at byte {at}: {text}")

    def fits(self, table: BatchTable) -> bool:
        """Whether the entries that are due agree with the next batches, whose offsets ascend."""
        return self._offsets_fit(table) and self._times_fit(table)

    def _offsets_fit(self, table: BatchTable) -> bool:
        positions, offsets = self._due_offsets(table)
        at = np.searchsorted(table.positions, positions)
        return (
            np.array_equal(table.positions[at], positions)
            and not (table.base_offsets[at] > offsets).any()
        )

    def _times_fit(self, table: BatchTable) -> bool:
        timestamps, offsets = self._due_times(table)
        at = np.searchsorted(table.last_offsets, offsets)
        return (
            np.array_equal(table.max_timestamps[at], timestamps)
            and not (table.base_offsets[at] > offsets).any()
        )

    def _due_offsets(self, table: BatchTable) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions and offsets of the next entries that do not stand behind the table."""
        if self.offsets is None or not len(table):
            return _NONE, _NONE
        positions = self.offsets.positions
        stop = int(np.searchsorted(positions, table.positions[-1], side="right"))
        due = slice(self._next_offset, max(stop, self._next_offset))
        return positions[due], self.offsets.offsets[due]

    def _due_times(self, table: BatchTable) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Timestamps and offsets of the next entries that do not stand behind the table."""
        if self.times is None or not len(table):
            return _NONE, _NONE
        offsets = self.times.offsets
        stop = int(np.searchsorted(offsets, table.last_offsets[-1], side="right"))
        due = slice(self._next_time, max(stop, self._next_time))
        return self.times.timestamps[due], offsets[due]

    def pass_by(self, table: BatchTable) -> None:
        """Goes on behind batches that fit."""
        if not len(table):
            return
        self._next_offset += len(self._due_offsets(table)[0])
        self._next_time += len(self._due_times(table)[0])
        self._last_offset = int(table.last_offsets[-1])
        self._has_time |= bool((table.max_timestamps >= 0).any())

    def see(self, batch: BatchFacts) -> None:
        """Compares the entries that are due with the next batch of the segment."""
        self._see_offset(batch)
        self._see_time(batch)
        self._last_offset = batch.last_offset
        self._has_time |= batch.max_timestamp >= 0

    def _see_offset(self, batch: BatchFacts) -> None:
        index, number = self.offsets, self._next_offset
        if index is None or number >= len(index) or batch.position < index.positions[number]:
            return
        offset, at = int(index.offsets[number]), int(index.positions[number])
        if batch.position > at:
            self._disagrees(f"entry for offset {offset}: no batch begins at byte {at}")
        elif not self._last_offset < batch.base_offset <= offset:
            self._disagrees(
                f"entry for offset {offset} at byte {at}: there is a batch of offsets"
                f" [{batch.base_offset}, {batch.last_offset}]"
            )
        else:
            self._next_offset += 1

    def _disagrees(self, text: str) -> None:
        self.find("offset-index-disagrees", IndexType.OFFSET, text)
        self.offsets = None  # one finding a file will do

    def _see_time(self, batch: BatchFacts) -> None:
        index = self.times
        while index is not None and self._next_time < len(index):
            number = self._next_time
            offset, time_ms = int(index.offsets[number]), int(index.timestamps[number])
            if offset > batch.last_offset:
                return
            if offset < batch.base_offset or batch.max_timestamp != time_ms:
                text = f"entry of {time_ms} ms at offset {offset}: "
                where = f"[{batch.base_offset}, {batch.last_offset}]"
                text += f"the batch of offsets {where} has {batch.max_timestamp} ms at most"
                self.find("time-index-disagrees", IndexType.TIMESTAMP, text)
                self.times = None
                return
            self._next_time += 1

    def finish(self) -> None:
        """Tells of entries that no batch has met, and of a time index that lacks all."""
        if self.times is not None and not len(self.times) and self._has_time:
            self.find("time-index-disagrees", IndexType.TIMESTAMP, "it has no entry")
        if self.offsets is not None and self._next_offset < len(self.offsets):
            at = int(self.offsets.positions[self._next_offset])
            self._disagrees(f"no batch begins at byte {at}")
        if self.times is not None and self._next_time < len(self.times):
            offset = int(self.times.offsets[self._next_time])
            self.find(
                "time-index-disagrees", IndexType.TIMESTAMP, f"no batch holds offset {offset}"
            )
