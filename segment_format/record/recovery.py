"""Reads the batch headers of a log file to find its last offset, its timestamps or its intact
batches.

`last_offset` returns the last offset of a complete log. No file states where a log ends, so it
verifies the checksum of the last batch. No checksum covers a batch's base offset, so it also
compares the base offset of the last batch with the previous batch and with the time index.

`WholeBatches` reads a log that may end with an incomplete batch, with zeros in preallocated space,
or with pages that were never flushed. Like Kafka's recovery it returns complete batches whose
CRC-32C matches. Offsets must also ascend from the segment's base offset. The log ends before the
first batch that fails.

Source: `LogSegment.recover`, `LogLoader.recoverLog`, `DefaultRecordBatch.ensureValid` in Kafka.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

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

    from segment_format.record.control_record import ControlRecordType

    Read: TypeAlias = Callable[[int, int], bytes | memoryview]

WINDOW_BYTES: Final = 64 << 10
"""Bytes per read if only batch headers are read."""
RECOVERY_WINDOW_BYTES: Final = 4 << 20
"""Bytes per read if checksums are verified. Limits memory even if the length field of a batch is
wrong.
"""
_MAX_MARKER_BYTES: Final = 64 << 10
_MAX_RELATIVE_OFFSET: Final = 2**31 - 1
_LAST_OFFSET_DELTA: Final = struct.Struct(">i")
_MAX_TIMESTAMP: Final = struct.Struct(">q")
_V2_DELTA_POSITION: Final = 23
_V2_TIMESTAMP_POSITION: Final = 35
_V1_TIMESTAMP_POSITION: Final = 18
_HEAD_BYTES: Final = _V2_TIMESTAMP_POSITION + _MAX_TIMESTAMP.size


class _Window:
    """Reads a file in large pieces ("windows"), and keeps the last window in memory."""

    def __init__(self, read: Read, size: int) -> None:
        self._read = read
        self._size = size
        self._data = memoryview(b"")
        self._start = 0

    def bytes_from(self, start: int, stop: int, *, read_ahead: int = WINDOW_BYTES) -> memoryview:
        """Returns the bytes of the file from `start` to at least `stop`, or to the end of the file.
        If they are not in memory, reads at least `read_ahead` bytes.
        """
        stop = min(stop, self._size)
        if not self._start <= start <= stop <= self._start + len(self._data):
            end = min(max(stop, start + read_ahead), self._size)
            self._data = memoryview(self._read(start, end))
            self._start = start
        return self._data[start - self._start :]


def max_timestamps_from(read: Read, size: int, position: int, offset: int) -> Iterator[int]:
    """Yields the largest timestamp of each batch, in milliseconds since 1970. Skips batches before
    `offset`.

    Begins with the first batch whose last offset is `offset` or higher. Yields nothing if this
    batch begins after `offset` or has message format 0. Stops at bytes that are not a batch.

    Args:
        read: Returns bytes [start, stop) of a whole log file, as the broker wrote it.
        size: Size of that file, in bytes.
        position: Position to begin at: 0, or the position of a batch.
        offset: Kafka offset. Batches that end before it are skipped.
    """
    window = _Window(read, size)
    is_reached = False
    while position < size:
        head = window.bytes_from(position, position + _HEAD_BYTES)[:_HEAD_BYTES]
        try:
            entry = read_prefix(head, at=position)
        except SegmentFormatError:
            return
        if entry.stop > size or (entry.magic == MAGIC_2 and len(head) < _HEAD_BYTES):
            return
        last = entry.offset
        if entry.magic == MAGIC_2:
            last += _LAST_OFFSET_DELTA.unpack_from(head, _V2_DELTA_POSITION)[0]
        if is_reached or last >= offset:
            # Entries of formats 0 and 1 state their last offset, so they may begin below `offset`.
            if not is_reached and (
                entry.magic == 0 or (entry.magic == MAGIC_2 and entry.offset > offset)
            ):
                return
            is_reached = True
            if entry.magic > 0:
                field = _V2_TIMESTAMP_POSITION if entry.magic == MAGIC_2 else _V1_TIMESTAMP_POSITION
                yield int(_MAX_TIMESTAMP.unpack_from(head, field)[0])
        position = entry.stop


@dataclass(slots=True)
class _Walk:
    """State of the search for the last entry of a log. The search reads the header of each entry
    from a given position on.

    Attributes:
        next_offset: Smallest offset that the next entry may have.
        has_holes: True if offsets are missing in or between the entries that were read, as after
            compaction.
        is_counting: True if the entry before the next entry was read. If false, a gap before the
            next entry does not prove that offsets are missing.
    """

    next_offset: int
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
    next_base: int | None = None,
) -> int:
    """Returns the last offset of the last batch of a log. Compaction may have removed the record of
    this offset.

    Args:
        read: Returns bytes [start, stop) of a whole log file, as the broker wrote it.
        size: Size of that file, in bytes.
        position: Position of the batch to begin at: 0, or a position from the offset index.
        base_offset: Base offset of the segment.
        indexed: Last offset of the batch at `position`, according to the offset index.
        newest: Offset of the last entry of the time index; `None` if the time index is empty.
        next_base: Base offset of the next segment; `None` if there is none.

    Raises:
        TruncatedBatchError: The log is empty, or its last batch is not complete.
        UnsupportedMagicError: An entry has a magic other than 0, 1 and 2.
        CrcMismatchError: The last batch's checksum is wrong.
        CorruptRecordError: The size of an entry is below the minimum, offsets do not ascend, or the
            base offset of the last batch seems to have a flipped bit.
    """
    if position >= size:
        raise TruncatedBatchError(f"the log of {size} bytes contains no batch", position=position)
    walk = _Walk(base_offset, is_counting=position == 0)
    entry, head = _find_last(read, size, position, walk)
    if entry.stop > size:
        raise TruncatedBatchError(
            f"the batch has {entry.size} bytes, but only {size - entry.position} bytes are left",
            position=entry.position,
            offset=entry.offset,
        )
    data = head if len(head) >= entry.size else memoryview(read(entry.position, entry.stop))
    first, last, is_dense = _checked_offsets(data, entry)
    if position > 0 and entry.position == position and last != indexed:
        # The batches before this one show whether the index or the batch is wrong.
        return last_offset(read, size, base_offset=base_offset, newest=newest, next_base=next_base)
    if first < walk.next_offset:
        raise _descending(first, walk, entry)
    if entry.position > position or position == 0:
        walk.has_holes |= not is_dense
        _require_plausible(first, last, walk, newest, entry)
        if next_base is not None and walk.next_offset < first <= last and last >= next_base:
            _require_overlap(first, last, walk, next_base, entry)
    return last


def _find_last(read: Read, size: int, position: int, walk: _Walk) -> tuple[Entry, memoryview]:
    """Skips all entries before the last one. Returns the last entry, and those bytes of it that are
    already in memory.
    """
    window = _Window(read, size)
    while True:
        head = window.bytes_from(position, position + HEADER_SIZE)
        entry = read_prefix(head[:ENTRY_PREFIX_SIZE], at=position)
        if entry.stop >= size:
            return entry, head
        walk.next_offset = _step_over(walk, head, entry) + 1
        position = entry.stop


def _step_over(walk: _Walk, head: memoryview, entry: Entry) -> int:
    """Returns the last offset of `entry`, which must not be the last entry of the log. `head`
    contains the first bytes of the entry. Sets `walk.has_holes` if offsets are missing in or before
    the entry.
    """
    if entry.magic != MAGIC_2:  # a wrapper states only the offset of its last message
        if entry.offset < walk.next_offset:
            raise _descending(entry.offset, walk, entry)
        return entry.offset
    header = RecordBatchHeader.from_bytes(head)
    if header.base_offset < walk.next_offset:
        raise _descending(header.base_offset, walk, entry)
    is_dense = header.record_count == header.last_offset_delta + 1
    walk.has_holes |= not is_dense or (walk.is_counting and header.base_offset > walk.next_offset)
    walk.is_counting = True
    return header.last_offset


def _descending(offset: int, walk: _Walk, entry: Entry) -> CorruptRecordError:
    return CorruptRecordError(
        f"offset {offset} follows offset {walk.next_offset - 1}, but offsets must ascend",
        position=entry.position,
    )


def _checked_offsets(data: memoryview, entry: Entry) -> tuple[int, int, bool]:
    """Verifies the checksum of an entry. Returns three values: its first offset, its last offset,
    and whether it has a record for every offset from the first to the last.
    """
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
    """Checks a gap of offsets before the last batch. Raises `CorruptRecordError` in two situations,
    because an offset seems to be damaged.

    * The last entry of the time index has an offset that is in no batch.
    * The gap disappears if one bit in the base offset of the last batch is flipped.

    Compaction also leaves gaps. So the second situation is accepted if the last entry of the time
    index is in the last batch, or if the log has other holes.
    """
    gap = first - walk.next_offset
    if gap <= 0:
        return
    if newest is not None and (newest > last or walk.next_offset <= newest < first):
        raise CorruptRecordError(
            f"the last batch has offsets {first} to {last} and follows offset"
            f" {walk.next_offset - 1}, but the time index ends with offset {newest}: one of them is"
            " damaged, or the log was truncated",
            position=entry.position,
            offset=first,
        )
    if (entry.offset ^ (entry.offset - gap)).bit_count() != 1:
        return
    names_batch = newest is not None and last - gap < newest
    if not (names_batch or walk.has_holes):
        raise CorruptRecordError(
            f"the last batch begins at offset {first}, but the previous batch ends at offset"
            f" {walk.next_offset - 1}: one bit of the base offset of the last batch, which no"
            " checksum covers, may be wrong",
            position=entry.position,
            offset=first,
        )


def _require_overlap(first: int, last: int, walk: _Walk, next_base: int, entry: Entry) -> None:
    """Checks a last batch that follows a gap and ends at or above the start of the next segment.
    Raises `CorruptRecordError` if flipping one bit of the base offset would move the batch into the
    gap before the next segment.

    Segments of different leaders may overlap, but no gap precedes such an overlap.
    """
    for bit in range(63):
        moved = (entry.offset ^ (1 << bit)) - entry.offset
        if walk.next_offset <= first + moved and last + moved < next_base:
            raise CorruptRecordError(
                f"the last batch has offsets {first} to {last}, the batch before it ends at offset"
                f" {walk.next_offset - 1}, and the next segment begins at {next_base}: one bit of"
                " the base offset, which no checksum covers, may be wrong",
                position=entry.position,
                offset=first,
            )


def _crc32c(data: memoryview, crc: int) -> int:
    """Returns the CRC-32C of the bytes before `data`, whose CRC-32C is `crc`, followed by `data`.
    The arguments are those of `zlib.crc32`.
    """
    return int(google_crc32c.extend(crc, np.frombuffer(data, dtype=np.uint8)))


@dataclass(frozen=True, slots=True)
class WholeBatch:
    """An intact batch, which log recovery keeps.

    Attributes:
        position: Position of its first byte in the file.
        marker: ABORT or COMMIT if the batch is a control batch that ends a transaction, else
            `None`.
    """

    position: int
    header: RecordBatchHeader
    marker: ControlRecordType | None

    @property
    def stop(self) -> int:
        """Position after the batch."""
        return self.position + self.header.size_in_bytes


class WholeBatches:
    """Iterates over the intact batches at the start of a log file. Can be iterated only once.

    Args:
        read: Returns bytes [start, stop) of the file.
        size: Size of the file, in bytes.
        position: Position of the batch to begin at.
        stop_offset: The iteration ends before the first batch with this base offset or a higher
            one.
        check_crcs: True to verify checksums. If false, only headers are read.

    Attributes:
        position: Position after the last intact batch.
        next_offset: Offset after the last intact batch.
        problem: The reason why the bytes at `position` are not an intact batch. Empty if all
            batches up to the end of the iteration are intact.
    """

    def __init__(
        self,
        read: Read,
        size: int,
        base_offset: int,
        *,
        position: int = 0,
        stop_offset: int | None = None,
        check_crcs: bool,
    ) -> None:
        self._window = _Window(read, size)
        self._size = size
        self._base_offset = base_offset
        self._stop_offset = stop_offset
        self._check_crcs = check_crcs
        self.position = position
        self.next_offset = base_offset
        self.problem = ""

    def __iter__(self) -> Iterator[WholeBatch]:
        """Yields the batches in order.

        Raises:
            UnsupportedMagicError: The log has a message of format 0 or 1, which has no leader
                epoch.
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
        position, left = self.position, self._size - self.position
        head = self._bytes(position, min(position + HEADER_SIZE, self._size))
        entry = self._entry(head)
        if entry.size > left:
            raise CorruptRecordError(
                f"a batch has {entry.size} bytes, but only {left} bytes are left"
            )
        if entry.magic != MAGIC_2:
            if self._check_crcs and not self._is_old_message(entry):
                raise CorruptRecordError(f"a message of format {entry.magic} has a wrong checksum")
            raise UnsupportedMagicError(
                f"a message of format {entry.magic}, which has no leader epoch, is not supported in"
                " a log that must be recovered",
                position=position,
                offset=entry.offset,
            )
        header = RecordBatchHeader.from_bytes(head)
        if header.base_offset < self.next_offset:
            raise CorruptRecordError(
                f"a batch with base offset {header.base_offset} follows offset "
                f"{self.next_offset - 1}, but offsets must ascend"
            )
        if header.last_offset - self._base_offset > _MAX_RELATIVE_OFFSET:
            raise CorruptRecordError(f"offset {header.last_offset} is too far from the base offset")
        if self._check_crcs and self._crc(_crc32c, position + CRC_START, entry.stop) != header.crc:
            raise CorruptRecordError("the checksum of a batch does not match its bytes")
        marker = None
        if header.is_control_batch and entry.size <= _MAX_MARKER_BYTES:
            data = self._bytes(position, entry.stop)
            marker = marker_of(next(iter_batches(data, check_crcs=False)))
        return WholeBatch(position, header, marker)

    def _entry(self, head: memoryview) -> Entry:
        """Returns the entry that begins at `position`. `head` contains its first bytes. Raises
        `CorruptRecordError` if they are not an entry.
        """
        if len(head) < ENTRY_PREFIX_SIZE:
            raise CorruptRecordError(f"{len(head)} bytes are not a batch")
        if not any(head):
            raise CorruptRecordError("the bytes are zeros, not a batch")
        try:
            return read_prefix(head[:ENTRY_PREFIX_SIZE], at=self.position)
        except UnsupportedMagicError as error:
            raise CorruptRecordError(error.message) from None

    def _is_old_message(self, entry: Entry) -> bool:
        """Returns whether the checksum of the entry is correct for format 0 or 1. Otherwise the
        entry may be a batch of magic 2 with a flipped bit.
        """
        start = entry.position + ENTRY_PREFIX_SIZE - 1  # the checksum covers the magic byte
        if entry.stop < start + 1:
            return False
        stored = int.from_bytes(self._bytes(start - 4, start), "big")
        return self._crc(zlib.crc32, start, entry.stop) == stored

    def _crc(self, extend: Callable[[memoryview, int], int], start: int, stop: int) -> int:
        crc = 0
        while start < stop:
            end = min(stop, start + RECOVERY_WINDOW_BYTES)
            crc = extend(self._bytes(start, end), crc)
            start = end
        return crc

    def _bytes(self, start: int, stop: int) -> memoryview:
        is_header = not self._check_crcs and stop - start <= HEADER_SIZE
        ahead = WINDOW_BYTES if is_header else RECOVERY_WINDOW_BYTES
        return self._window.bytes_from(start, stop, read_ahead=ahead)[: stop - start]
