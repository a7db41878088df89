"""The whole batches at the front of a log file that may end anywhere: in a torn batch, in zeros
that were allocated ahead, or in what a crash left of pages that were never flushed.

What counts as whole is what Kafka's recovery keeps: a batch of at least its header, entirely there,
whose CRC-32C is that of its bytes. Beyond that, offsets must ascend from the segment's base, as no
checksum covers them. The log ends before the first batch that is not whole, whatever follows.

Source: `LogSegment.recover`, `LogLoader.recoverLog`, `DefaultRecordBatch.ensureValid` in Kafka.

Largest timestamps of batches from an offset on, from the headers of a log file alone.

The last offset of a log file, from the headers of its last batches.

No checksum covers a batch's base offset, and no other file states where a log ends. So the last
batch's checksum is compared, and its base offset is compared with the batch before it and with the
time index.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import google_crc32c
import numpy as np

from segment_format.errors import (
    CorruptRecordError,
    SegmentFormatError,
    TruncatedBatchError,
    UnsupportedMagicError,
)
from segment_format.record.batch_header import CRC_START, HEADER_SIZE, MAGIC_2, RecordBatchHeader
from segment_format.record.compression import DEFAULT_MAX_BATCH_BYTES
from segment_format.record.control_record import marker_of
from segment_format.record.framing import ENTRY_PREFIX_SIZE, Entry, read_prefix
from segment_format.record.records import decode_legacy_entry, iter_batches, require_crc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Read = Callable[[int, int], bytes | memoryview]
    from segment_format.record.control_record import ControlRecordType


WINDOW_BYTES: Final = 64 << 10
"""Fetched at once; larger batches are stepped over."""

_V2_LAST_OFFSET_DELTA: Final = struct.Struct(">i")
_V2_MAX_TIMESTAMP: Final = struct.Struct(">q")
_V2_DELTA_POSITION: Final = 23
_V2_TIMESTAMP_POSITION: Final = 35
_V1_TIMESTAMP_POSITION: Final = 18
_HEAD_BYTES: Final = _V2_TIMESTAMP_POSITION + _V2_MAX_TIMESTAMP.size


def max_timestamps_from(
    read: Callable[[int, int], bytes | memoryview], size: int, position: int, offset: int
) -> Iterator[int]:
    """Yields the largest timestamp, in milliseconds, of the first batch that ends at `offset` or
    later, and of each batch after it.

    Yields nothing if the first of them begins after `offset` or is of message format 0. Stops at
    bytes that are not a batch.

    Args:
        read: Returns bytes [start, stop) of a whole log file, as the broker wrote it.
        size: Of that file, in bytes.
        position: Where to begin: 0, or the position of a batch.
        offset: What the first batch must reach.
    """
    window, window_start = memoryview(b""), position
    is_reached = False
    while position < size:
        if min(position + _HEAD_BYTES, size) > window_start + len(window):
            window_start = position
            window = memoryview(read(position, min(position + WINDOW_BYTES, size)))
        head = window[position - window_start :][:_HEAD_BYTES]
        try:
            entry = read_prefix(head, at=position)
        except SegmentFormatError:
            return
        if entry.stop > size or (entry.magic == 2 and len(head) < _HEAD_BYTES):
            return
        last = entry.offset
        if entry.magic == 2:
            last += _V2_LAST_OFFSET_DELTA.unpack_from(head, _V2_DELTA_POSITION)[0]
        if is_reached or last >= offset:
            # Entries of formats 0 and 1 name their last message, so they hold lower offsets.
            if not is_reached and (
                entry.magic == 0 or (entry.magic == 2 and entry.offset > offset)
            ):
                return
            is_reached = True
            if entry.magic > 0:
                at = _V2_TIMESTAMP_POSITION if entry.magic == 2 else _V1_TIMESTAMP_POSITION
                yield int(_V2_MAX_TIMESTAMP.unpack_from(head, at)[0])
        position = entry.stop


"""Fetched at once; batches that run past a window are stepped over, not fetched."""


@dataclass(slots=True)
class _Walk:
    """State between two entries.

    Attributes:
        least: Least offset that the next entry may have.
        has_holes: Whether offsets are missing in or between the entries seen, as after compaction.
        is_counting: Whether the entry before the next one was seen.
    """

    least: int
    has_holes: bool = False
    is_counting: bool = False


def last_offset(
    read: Read,
    size: int,
    position: int = 0,
    *,
    base_offset: int = 0,
    indexed: int | None = None,
    newest: int | None = None,
) -> int:
    """Last offset of the last batch; compaction may have removed that record.

    Args:
        read: Returns bytes [start, stop) of a whole log file, as the broker wrote it.
        size: Of that file, in bytes.
        position: Where to begin, a batch border; 0 or one that the offset index names.
        base_offset: Of the segment; no batch has a smaller offset.
        indexed: Last offset that the offset index has for `position`.
        newest: Offset of the time index's last entry, if it has one.

    Raises:
        TruncatedBatchError: The log is empty, or its last batch is not complete.
        UnsupportedMagicError: Magic other than 0, 1, 2.
        CrcMismatchError: The last batch's checksum is wrong.
        CorruptRecordError: A size below the least, offsets that do not ascend, or a last batch
            whose base offset seems to have a flipped bit.
    """
    if position >= size:
        raise TruncatedBatchError(f"no batch in a log of {size} bytes", position=position)
    walk = _Walk(base_offset, is_counting=position == 0)
    entry, head = _find_last(read, size, position, walk)
    if entry.stop > size:
        raise TruncatedBatchError(
            f"batch of {entry.size} bytes, {size - entry.position} bytes left",
            position=entry.position,
            offset=entry.offset,
        )
    whole = head if len(head) >= entry.size else memoryview(read(entry.position, entry.stop))
    first, last, is_dense = _checked_offsets(whole, entry)
    if position > 0 and entry.position == position and last != indexed:
        # The batches before this one decide which of the index and the batch is right.
        return last_offset(read, size, base_offset=base_offset, newest=newest)
    if first < walk.least:
        raise CorruptRecordError(
            f"offset {first} follows offset {walk.least - 1}", position=entry.position
        )
    if entry.position > position or position == 0:
        walk.has_holes |= not is_dense
        _require_plausible(first, last, walk, newest, entry)
    return last


def _find_last(read: Read, size: int, position: int, walk: _Walk) -> tuple[Entry, memoryview]:
    """Steps over all entries but the last; returns it with the bytes that are in memory of it."""
    window, window_start = memoryview(b""), position
    while True:
        # The smallest legacy entry is shorter than the header of a batch.
        if min(position + HEADER_SIZE, size) > window_start + len(window):
            window_start = position
            window = memoryview(read(position, min(position + WINDOW_BYTES, size)))
        head = window[position - window_start :]
        entry = read_prefix(head[:ENTRY_PREFIX_SIZE], at=position)
        if entry.stop >= size:
            return entry, head
        walk.least = _step_over(walk, head, entry) + 1
        position = entry.stop


def _step_over(walk: _Walk, head: memoryview, entry: Entry) -> int:
    """Last offset of an entry that is not the log's last; notes whether offsets are missing."""
    if entry.magic != MAGIC_2:  # a wrapper states the offset of its last message alone
        if entry.offset < walk.least:
            text = f"offset {entry.offset} follows offset {walk.least - 1}"
            raise CorruptRecordError(text, position=entry.position)
        return entry.offset
    header = RecordBatchHeader.from_bytes(head)
    if header.base_offset < walk.least:
        text = f"offset {header.base_offset} follows offset {walk.least - 1}"
        raise CorruptRecordError(text, position=entry.position)
    is_dense = header.record_count == header.last_offset_delta + 1
    walk.has_holes |= not is_dense or (walk.is_counting and header.base_offset > walk.least)
    walk.is_counting = True
    return header.last_offset


def _checked_offsets(data: memoryview, entry: Entry) -> tuple[int, int, bool]:
    """First and last offset of an entry whose checksum is right, and whether it has all between."""
    here = Entry(0, entry.size, entry.offset, entry.magic)
    try:
        if entry.magic == MAGIC_2:
            header = RecordBatchHeader.from_bytes(data)
            require_crc(data, here, header)
            is_dense = header.record_count == header.last_offset_delta + 1
            return header.base_offset, header.last_offset, is_dense
        batch = decode_legacy_entry(
            data, here, check_crcs=True, max_batch_bytes=DEFAULT_MAX_BATCH_BYTES
        )
    except SegmentFormatError as error:
        raise error.at(entry.position, entry.offset) from error
    is_dense = len(batch.records) == batch.last_offset - batch.base_offset + 1
    return batch.base_offset, batch.last_offset, is_dense


def _require_plausible(
    first: int, last: int, walk: _Walk, newest: int | None, entry: Entry
) -> None:
    """Raises if offsets are missing before the last batch, and the time index names one that is in
    no batch, or one flipped bit explains the gap.

    Compaction leaves such gaps as well. The time index usually names the last batch; without it,
    other holes in the log show that it was compacted.
    """
    gap = first - walk.least
    if gap <= 0:
        return
    if newest is not None and (newest > last or walk.least <= newest < first):
        raise CorruptRecordError(
            f"the last batch has offsets {first} to {last} and follows offset {walk.least - 1},"
            f" but the time index ends with offset {newest}: one of them is damaged, or the log"
            " was cut",
            position=entry.position,
            offset=first,
        )
    if (entry.offset ^ (entry.offset - gap)).bit_count() != 1:
        return
    names_batch = newest is not None and last - gap < newest
    if not (names_batch or walk.has_holes):
        raise CorruptRecordError(
            f"the last batch begins at offset {first}, and {walk.least} would follow the batch"
            " before it: one bit of its offset, which no checksum covers, may be wrong",
            position=entry.position,
            offset=first,
        )


RECOVERY_WINDOW_BYTES: Final = 4 << 20
"""Read at once, and the most that is held, however long a batch says it is."""
_MAX_MARKER_BYTES: Final = 64 << 10
_MAX_RELATIVE_OFFSET: Final = 2**31 - 1


def _crc32c(data: memoryview, crc: int) -> int:
    """Goes on with a CRC-32C, as `zlib.crc32` does with the other one."""
    return int(google_crc32c.extend(crc, np.frombuffer(data, dtype=np.uint8)))


@dataclass(frozen=True, slots=True)
class WholeBatch:
    """A batch that a recovery keeps.

    Attributes:
        position: First byte in the file.
        marker: How a control batch ends its transaction; `None` for any other.
    """

    position: int
    header: RecordBatchHeader
    marker: ControlRecordType | None

    @property
    def stop(self) -> int:
        """Position after it."""
        return self.position + self.header.size_in_bytes


class WholeBatches:
    """Goes over a log file once.

    Args:
        read: Gives bytes [start, stop) of the file.
        size: Of the file, in bytes.
        base_offset: Of the segment.
        position: Where to begin, a batch border.
        stop_offset: Where to end: at the first batch that begins there or behind.
        check_crcs: Whether checksums are looked at; without, batches are stepped over.

    Attributes:
        position: One past the last whole batch seen.
        next_offset: One past its last offset.
        problem: Why the file is not whole from there on; empty when it is, or was not looked at to
            its end.
    """

    def __init__(
        self,
        read: Callable[[int, int], bytes | memoryview],
        size: int,
        base_offset: int,
        *,
        position: int = 0,
        stop_offset: int | None = None,
        check_crcs: bool,
    ) -> None:
        self._read = read
        self._size = size
        self._base_offset = base_offset
        self._stop_offset = stop_offset
        self._check_crcs = check_crcs
        self._window = memoryview(b"")
        self._window_start = 0
        self.position = position
        self.next_offset = base_offset
        self.problem = ""

    def __iter__(self) -> Iterator[WholeBatch]:
        """The batches in order.

        Raises:
            UnsupportedMagicError: A message of format 0 or 1, which has no leader epoch.
        """
        while self.position < self._size:
            try:
                batch = self._batch()
            except UnsupportedMagicError as error:
                if error.offset is not None:
                    raise
                self.problem = error.message
                return
            except SegmentFormatError as error:
                self.problem = error.message
                return
            if self._stop_offset is not None and batch.header.base_offset >= self._stop_offset:
                return
            self.position = batch.stop
            self.next_offset = batch.header.next_offset
            yield batch

    def _batch(self) -> WholeBatch:
        at = self.position
        left = self._size - at
        head = self._bytes(at, min(at + HEADER_SIZE, self._size))
        if len(head) < HEADER_SIZE and len(head) < ENTRY_PREFIX_SIZE:
            raise CorruptRecordError(f"{left} bytes are no batch")
        if not any(head):
            raise CorruptRecordError("zeros, which are no record")
        try:
            entry = read_prefix(head[:ENTRY_PREFIX_SIZE], at=at)
        except UnsupportedMagicError as error:
            raise CorruptRecordError(error.message) from None
        if entry.size > left:
            raise CorruptRecordError(f"a batch of {entry.size} bytes, of which {left} are there")
        if entry.magic != MAGIC_2:
            if self._check_crcs and not self._is_old_message(at, entry.size):
                raise CorruptRecordError(f"a batch of format {entry.magic} that is none")
            raise UnsupportedMagicError(
                f"a message of format {entry.magic}, which has no leader epoch, is not supported in"
                " a log that must be recovered",
                position=at,
                offset=entry.offset,
            )
        header = RecordBatchHeader.from_bytes(head)
        if header.base_offset < self.next_offset:
            raise CorruptRecordError(
                f"a batch of offset {header.base_offset} where {self.next_offset} is the least"
            )
        if header.last_offset - self._base_offset > _MAX_RELATIVE_OFFSET:
            raise CorruptRecordError(f"offset {header.last_offset} is too far from the base")
        if self._check_crcs and self._crc(_crc32c, at + CRC_START, at + entry.size) != header.crc:
            raise CorruptRecordError("a batch whose checksum is not that of its bytes")
        marker = None
        if header.is_control_batch and entry.size <= _MAX_MARKER_BYTES:
            data = self._bytes(at, at + entry.size)
            marker = marker_of(next(iter_batches(data, check_crcs=False)))
        return WholeBatch(at, header, marker)

    def _is_old_message(self, at: int, size: int) -> bool:
        """Whether the checksum of format 0 and 1 fits: a flipped bit makes no such message."""
        start = at + ENTRY_PREFIX_SIZE - 1  # the checksum covers the magic byte, too
        if size < start + 1 - at:
            return False
        stored = int.from_bytes(self._bytes(start - 4, start), "big")
        return self._crc(zlib.crc32, start, at + size) == stored

    def _crc(self, extend: Callable[[memoryview, int], int], start: int, stop: int) -> int:
        crc = 0
        while start < stop:
            end = min(stop, start + RECOVERY_WINDOW_BYTES)
            crc = extend(self._bytes(start, end), crc)
            start = end
        return crc

    def _bytes(self, start: int, stop: int) -> memoryview:
        low, high = self._window_start, self._window_start + len(self._window)
        if not low <= start <= stop <= high:
            end = min(max(stop, start + RECOVERY_WINDOW_BYTES), self._size)
            if not self._check_crcs and stop - start <= HEADER_SIZE:
                end = min(start + (64 << 10), self._size)  # bodies are stepped over
            self._window = memoryview(self._read(start, end))
            self._window_start = low = start
        return self._window[start - low : stop - low]
