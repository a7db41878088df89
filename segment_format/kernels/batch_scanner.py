"""Reads the batch headers of a log into columns, and checks the checksums of the batches. Does not
decode records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from segment_format._cursor import byte_view
from segment_format.errors import CorruptRecordError, SegmentFormatError, TruncatedBatchError
from segment_format.kernels import contract as c
from segment_format.kernels.native import load_kernel
from segment_format.record.batch_header import (
    CONTROL_BIT,
    MAGIC_2,
    TRANSACTIONAL_BIT,
    RecordBatchHeader,
)
from segment_format.record.control_record import marker_of
from segment_format.record.framing import read_prefix
from segment_format.record.records import iter_batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from segment_format._cursor import BytesLike
    from segment_format.record.control_record import ControlRecordType
    from segment_format.record.framing import Entry

_CAPACITY: Final = 4096


@dataclass(frozen=True, slots=True, eq=False)
class BatchTable:
    """Table of consecutive batches of a log, of any message format. Each row describes one batch.
    Columns are int64 arrays unless noted.

    Attributes:
        base_offsets: First offset of the batch when it was produced, before compaction.
        last_offsets: Last offset of the batch when it was produced, before compaction.
        leader_epochs: Leader epoch; -1 if the batch has none.
        crcs: Stored checksum as an unsigned number.
        are_sound: bool; true if the stored checksum is correct.
        max_timestamps: Largest timestamp of the records in ms.
        records: Number of records at or after the scanner's start offset, including transaction
            markers.
        producer_ids: Producer id; -1 if the batch has none.
        are_transactional: bool; true if the batch belongs to a transaction.
        are_control: bool; true if the batch contains a transaction marker.
        markers: Mapping from row number to the type of the transaction marker in that row.
    """

    positions: NDArray[np.int64]
    base_offsets: NDArray[np.int64]
    last_offsets: NDArray[np.int64]
    leader_epochs: NDArray[np.int64]
    crcs: NDArray[np.int64]
    are_sound: NDArray[np.bool_]
    max_timestamps: NDArray[np.int64]
    records: NDArray[np.int64]
    producer_ids: NDArray[np.int64]
    are_transactional: NDArray[np.bool_]
    are_control: NDArray[np.bool_]
    markers: dict[int, ControlRecordType]

    def __len__(self) -> int:
        return len(self.positions)


class BatchScanner:
    """Reads the batch headers of a log into tables. The caller passes the log in windows
    (consecutive pieces) of any size.

    Only an entry that spans several windows is copied (at most `max_batch_bytes`).

    Args:
        size: Size of the log in bytes.
        max_batch_bytes: Maximum size of one entry in bytes.
        start_offset: Records below this offset are not counted.
    """

    def __init__(self, size: int, *, max_batch_bytes: int, start_offset: int = 0) -> None:
        self._size = size
        self._max_batch_bytes = max_batch_bytes
        self._start_offset = start_offset
        self._kernel = load_kernel("scan_batches")
        self._table = np.empty((c.SCAN_COLUMNS, _CAPACITY), np.int64)
        self._markers: dict[int, ControlRecordType] = {}
        self._frame = np.zeros(c.SCAN_FRAME_SIZE, np.int64)
        self._frame_at = self._frame.ctypes.data
        self._slots = self._frame.data  # reads a slot three times as fast as the array does
        self._frame[c.SCAN_LOG_SIZE] = size
        self._frame[c.SCAN_MAX_BATCH_BYTES] = max_batch_bytes
        self._frame[c.SCAN_TABLE] = self._table.ctypes.data
        self._frame[c.SCAN_CAPACITY] = _CAPACITY
        self._tail = bytearray()
        self._position = 0  # log position of the next entry

    def feed(self, window: BytesLike) -> Iterator[BatchTable]:
        """Reads the next bytes of the log. The iterator must be exhausted before the next call.

        Yields:
            Tables that are full. `rest` returns the last table.

        Raises:
            SegmentFormatError: The bytes at a position of the log are not a batch. Then `rest`
                returns the batches before that position.
        """
        view = byte_view(window)
        start = 0
        while self._tail:
            missing = self._slots[c.SCAN_NEEDED] - len(self._tail)
            self._tail += view[start : start + missing]
            start = min(start + missing, len(view))
            if len(self._tail) < self._slots[c.SCAN_NEEDED]:
                return
            yield from self._scan(memoryview(bytes(self._tail)))
        yield from self._scan(view[start:])

    def rest(self) -> BatchTable:
        """Returns the table of the batches that were read and that `feed` has not yielded yet."""
        rows = self._slots[c.SCAN_ROWS]
        table = self._table[:, :rows].copy()
        attributes = table[c.SCAN_ATTRIBUTES]
        batches = BatchTable(
            positions=table[c.SCAN_LOG_POSITION],
            base_offsets=table[c.SCAN_BASE_OFFSET],
            last_offsets=table[c.SCAN_LAST_OFFSET],
            leader_epochs=table[c.SCAN_LEADER_EPOCH],
            crcs=table[c.SCAN_CRC],
            are_sound=table[c.SCAN_IS_SOUND] != 0,
            max_timestamps=table[c.SCAN_MAX_TIMESTAMP],
            records=table[c.SCAN_RECORDS],
            producer_ids=table[c.SCAN_PRODUCER_ID],
            are_transactional=attributes & TRANSACTIONAL_BIT != 0,
            are_control=attributes & CONTROL_BIT != 0,
            markers=self._markers,
        )
        self._slots[c.SCAN_ROWS] = 0
        self._markers = {}
        return batches

    def finish(self) -> None:
        """Raises `TruncatedBatchError` if not all bytes of the log were fed, or if the last entry
        is incomplete.
        """
        if self._position != self._size:
            text = f"the last {self._size - self._position} bytes are not a complete batch"
            raise TruncatedBatchError(text, position=self._position)

    def _scan(self, view: memoryview) -> Iterator[BatchTable]:
        """Adds the complete entries of `view` to the table. Stores an incomplete last entry for the
        next window.
        """
        slots = self._slots
        data = np.frombuffer(view, np.uint8)
        slots[c.SCAN_WINDOW] = data.ctypes.data
        slots[c.SCAN_WINDOW_SIZE] = data.size
        slots[c.SCAN_WINDOW_POSITION] = origin = self._position
        slots[c.SCAN_POSITION] = 0
        while True:
            first = slots[c.SCAN_ROWS]
            status = self._kernel(self._frame_at)
            self._position = origin + slots[c.SCAN_POSITION]
            self._read_contents(view, first, origin)
            if status == c.SCAN_OTHER and not self._read_legacy_entry(
                view[slots[c.SCAN_POSITION] :]
            ):
                break
            if status == c.SCAN_NEED_MORE:
                break
            if slots[c.SCAN_ROWS] == _CAPACITY:
                yield self.rest()
        self._tail = bytearray(view[slots[c.SCAN_POSITION] :])

    def _read_contents(self, view: memoryview, first: int, origin: int) -> None:
        """Completes row `first` and all later rows with facts that batch headers do not contain.

        Decodes each control batch to get its marker. Decodes a batch that begins before the start
        offset and ends at or after it, to count its records at or above the start offset.
        """
        table = self._table[:, first : self._slots[c.SCAN_ROWS]]
        is_control = table[c.SCAN_ATTRIBUTES] & CONTROL_BIT != 0
        special = is_control & (table[c.SCAN_IS_SOUND] != 0)
        if table.shape[1] and table[c.SCAN_BASE_OFFSET, 0] < self._start_offset:
            is_cut = table[c.SCAN_BASE_OFFSET] < self._start_offset
            special |= is_cut & (table[c.SCAN_LAST_OFFSET] >= self._start_offset)
        for row in np.flatnonzero(special).tolist():
            position = int(table[c.SCAN_LOG_POSITION, row])
            start = position - origin
            size = read_prefix(view[start : start + 17]).size
            try:
                batch = next(iter_batches(view[start : start + size], check_crcs=False))
            except SegmentFormatError as error:
                self._slots[c.SCAN_ROWS] = first + row
                raise error.at(position, int(table[c.SCAN_BASE_OFFSET, row])) from None
            if is_control[row]:
                marker = marker_of(batch)
                if marker is not None:
                    self._markers[first + row] = marker
            else:
                counted = sum(record.offset >= self._start_offset for record in batch.records)
                table[c.SCAN_RECORDS, row] = counted

    def _read_legacy_entry(self, view: memoryview) -> bool:
        """Reads an entry that the kernel does not read, because its format is 0 or 1 or it is
        invalid. Returns whether the entry was complete. Raises `SegmentFormatError` if the entry is
        invalid.
        """
        position, slots = self._position, self._slots
        entry = read_prefix(view, at=position)
        self._check_size(entry)
        if entry.magic == MAGIC_2:
            try:
                RecordBatchHeader.from_bytes(view)
            except SegmentFormatError as error:
                raise error.at(position, entry.offset) from None
        if entry.size > len(view):
            slots[c.SCAN_NEEDED] = entry.size
            return False
        row = slots[c.SCAN_ROWS]
        self._table[:, row] = _legacy_row(view[: entry.size], position, self._start_offset)
        slots[c.SCAN_ROWS] += 1
        slots[c.SCAN_POSITION] += entry.size
        self._position += entry.size
        return True

    def _check_size(self, entry: Entry) -> None:
        left = self._size - entry.position
        if entry.size > left:
            text = f"a batch of {entry.size} bytes exceeds the {left} bytes left of the log"
            raise TruncatedBatchError(text, position=entry.position, offset=entry.offset)
        if entry.size > self._max_batch_bytes:
            text = (
                f"a batch of {entry.size} bytes exceeds the limit of {self._max_batch_bytes} bytes"
            )
            raise CorruptRecordError(text, position=entry.position, offset=entry.offset)


def _legacy_row(data: memoryview, position: int, start_offset: int) -> tuple[int, ...]:
    """Returns the table row of an entry of format 0 or 1: a single message, or a compressed set of
    messages.
    """
    is_sound = True
    try:
        batch = next(iter_batches(data))
    except SegmentFormatError as error:
        try:
            batch = next(iter_batches(data, check_crcs=False))
        except SegmentFormatError:
            raise error.at(position, -1 if error.offset is None else error.offset) from None
        is_sound = False
    newest = max((record.timestamp for record in batch.records), default=-1)
    counted = sum(record.offset >= start_offset for record in batch.records)
    crc = int.from_bytes(data[12:16], "big")
    offsets = batch.base_offset, batch.last_offset
    return (position, *offsets, -1, crc, is_sound, newest, counted, -1, 0)
