"""The last offset of a log file, from the headers of its last batches.

No checksum covers a batch's base offset, and no other file states where a log ends. So the last
batch's checksum is compared, and its base offset is compared with the batch before it and with the
time index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from segment_format.errors import CorruptRecordError, SegmentFormatError, TruncatedBatchError
from segment_format.record.batch_header import HEADER_SIZE, MAGIC_2, RecordBatchHeader
from segment_format.record.compression import DEFAULT_MAX_BATCH_BYTES
from segment_format.record.framing import ENTRY_PREFIX_SIZE, Entry, read_prefix
from segment_format.record.legacy import decode_legacy_entry
from segment_format.record.records import require_crc

if TYPE_CHECKING:
    from collections.abc import Callable

    Read = Callable[[int, int], bytes | memoryview]

WINDOW_BYTES: Final = 64 << 10
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
