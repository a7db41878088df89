"""Largest timestamps of batches from an offset on, from the headers of a log file alone."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from segment_format.errors import SegmentFormatError
from segment_format.record.framing import read_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
