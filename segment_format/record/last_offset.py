"""The last offset of a log file, from the headers of its last batches alone."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from segment_format.errors import CorruptRecordError, TruncatedBatchError
from segment_format.record.framing import ENTRY_PREFIX_SIZE, read_prefix

if TYPE_CHECKING:
    from collections.abc import Callable

WINDOW_BYTES: Final = 64 << 10
"""Fetched at once; batches that run past a window are stepped over, not fetched."""

_LAST_OFFSET_DELTA: Final = struct.Struct(">i")
_DELTA_POSITION: Final = 23
_HEAD_BYTES: Final = _DELTA_POSITION + _LAST_OFFSET_DELTA.size


def last_offset(read: Callable[[int, int], bytes | memoryview], size: int, position: int) -> int:
    """Offset of the last batch's last record, or where compaction left it out, of its last place.

    Args:
        read: Gives bytes [start, stop) of a whole log file, as the broker wrote it.
        size: Of that file, in bytes.
        position: Where to begin, a batch border; 0 or one that the offset index names.

    Raises:
        TruncatedBatchError: The log is empty, or its last batch is not complete.
        UnsupportedMagicError: Magic other than 0, 1, 2.
        CorruptRecordError: A size below the least, or offsets that do not ascend.
    """
    last = -1
    window = memoryview(b"")
    window_start = position
    if position >= size:
        raise TruncatedBatchError(f"no batch in a log of {size} bytes", position=position)
    while position < size:
        # The smallest legacy entry is a byte shorter than the head of a batch.
        if min(position + _HEAD_BYTES, size) > window_start + len(window):
            window_start = position
            window = memoryview(read(position, min(position + WINDOW_BYTES, size)))
        head = window[position - window_start :]
        entry = read_prefix(head[:ENTRY_PREFIX_SIZE], at=position)
        if entry.stop > size:
            raise TruncatedBatchError(
                f"batch of {entry.size} bytes, {size - position} bytes left",
                position=position,
                offset=entry.offset,
            )
        offset = entry.offset
        if entry.magic == 2:
            offset += _LAST_OFFSET_DELTA.unpack_from(head, _DELTA_POSITION)[0]
        if offset <= last:
            raise CorruptRecordError(f"offset {offset} follows offset {last}", position=position)
        last = offset
        position = entry.stop
    return last
