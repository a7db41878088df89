"""The whole batches at the front of a log file that may end anywhere: in a torn batch, in zeros
that were allocated ahead, or in what a crash left of pages that were never flushed.

What counts as whole is what Kafka's recovery keeps: a batch of at least its header, entirely there,
whose CRC-32C is that of its bytes. Beyond that, offsets must ascend from the segment's base, as no
checksum covers them. The log ends before the first batch that is not whole, whatever follows.

Source: `LogSegment.recover`, `LogLoader.recoverLog`, `DefaultRecordBatch.ensureValid` in Kafka.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import google_crc32c
import numpy as np

from segment_format.errors import CorruptRecordError, SegmentFormatError, UnsupportedMagicError
from segment_format.index.transaction_replay import marker_of
from segment_format.record.batch_header import CRC_START, HEADER_SIZE, MAGIC_2, RecordBatchHeader
from segment_format.record.framing import ENTRY_PREFIX_SIZE, read_prefix
from segment_format.record.records import iter_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from segment_format.record.control_record import ControlRecordType

WINDOW_BYTES: Final = 4 << 20
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
            end = min(stop, start + WINDOW_BYTES)
            crc = extend(self._bytes(start, end), crc)
            start = end
        return crc

    def _bytes(self, start: int, stop: int) -> memoryview:
        low, high = self._window_start, self._window_start + len(self._window)
        if not low <= start <= stop <= high:
            end = min(max(stop, start + WINDOW_BYTES), self._size)
            if not self._check_crcs and stop - start <= HEADER_SIZE:
                end = min(start + (64 << 10), self._size)  # bodies are stepped over
            self._window = memoryview(self._read(start, end))
            self._window_start = low = start
        return self._window[start - low : stop - low]
