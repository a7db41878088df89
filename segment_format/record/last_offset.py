"""The last offset of a log file, from the headers of its last batches alone."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from segment_format.errors import (
    CorruptRecordError,
    TruncatedBatchError,
    UnsupportedMagicError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Data = bytes | memoryview

WINDOW_BYTES: Final = 64 << 10
"""Fetched at once; batches that run past a window are stepped over, not fetched."""

_PREFIX: Final = struct.Struct(">qiib")  # offset, size of the rest, epoch or CRC, magic
_LAST_OFFSET_DELTA: Final = struct.Struct(">i")
_DELTA_POSITION: Final = 23
_PEEK_BYTES: Final = 27
_LENGTH_PREFIX_BYTES: Final = 12
_MIN_LENGTH: Final = (14, 22, 49)  # by magic


def last_offset(read: Callable[[int, int], Data], size: int, position: int) -> int:
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
    window: Data = b""
    window_start = position
    if position >= size:
        raise TruncatedBatchError(f"no batch in a log of {size} bytes", position=position)
    while position < size:
        if position + _PEEK_BYTES > window_start + len(window):
            window_start = position
            stop = min(position + WINDOW_BYTES, size)
            window = read(position, stop)
        length, offset = _entry(window, position - window_start, position)
        if offset <= last:
            raise CorruptRecordError(f"offset {offset} follows offset {last}", position=position)
        if position + length > size:
            raise TruncatedBatchError(
                f"batch of {length} bytes, {size - position} bytes left",
                position=position,
                offset=offset,
            )
        last = offset
        position += length
    return last


def _entry(window: Data, at: int, position: int) -> tuple[int, int]:
    """Size of the whole entry that begins at byte `at` of the window, and its last offset."""
    entry = bytes(window[at : at + _PEEK_BYTES])
    if len(entry) < _PEEK_BYTES:
        # The smallest legacy entry is one byte shorter than what is looked at.
        entry = entry.ljust(_PEEK_BYTES, b"\0") if len(entry) >= _MIN_LENGTH[0] + 12 else b""
    if not entry:
        raise TruncatedBatchError(f"{len(window) - at} bytes left of a batch", position=position)
    offset, length, _, magic = _PREFIX.unpack_from(entry)
    if not 0 <= magic <= 2:
        raise UnsupportedMagicError(f"unknown magic {magic}", position=position, offset=offset)
    if length < _MIN_LENGTH[magic]:
        raise CorruptRecordError(
            f"batch length {length} is below {_MIN_LENGTH[magic]}", position=position, offset=offset
        )
    if magic == 2:
        offset += _LAST_OFFSET_DELTA.unpack_from(entry, _DELTA_POSITION)[0]
    return _LENGTH_PREFIX_BYTES + length, offset
