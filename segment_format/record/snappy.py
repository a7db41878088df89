"""Snappy as snappy-java frames it (the "xerial" stream), or one bare raw block.

```
82 53 4e 41 50 50 59 00   magic: 0x82 "SNAPPY" 0x00
00 00 00 01               version i32, not enforced
00 00 00 01               lowest compatible version i32, not enforced
repeat: i32 size (big-endian), raw snappy block of that many bytes
```

A raw block begins with its uncompressed size, a little-endian base-128 varint of at most 32 bits. A
length word that equals the magic's first four bytes begins another stream header. Fewer than four
bytes at the end are ignored.

Source: `org.xerial.snappy.SnappyInputStream`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import cramjam
import numpy as np

from segment_format._cursor import byte_view
from segment_format.errors import DecompressionError

if TYPE_CHECKING:
    from segment_format._cursor import BytesLike

_MAGIC: Final = int.from_bytes(b"\x82SNAPPY\x00", "big")
_HEADER_SIZE: Final = 16
_MAGIC_WORD: Final = _MAGIC >> 32
_u32 = struct.Struct(">I").unpack_from
_u64 = struct.Struct(">Q").unpack_from
_MAX_RATIO: Final = 22  # a copy element makes at most 64 bytes out of 3


def decompress_snappy(payload: BytesLike, *, max_output_bytes: int) -> BytesLike:
    """The content of a xerial stream or of one raw block.

    Memory: one output array of the sizes that the blocks state, each checked against what its
    compressed bytes can make and all against the bound before anything is allocated; and about
    25 bytes a byte of a hostile payload that is nothing but empty blocks.

    Raises:
        DecompressionError: Empty payload, a cut stream, a block of length zero or one that is not
            valid snappy, or more than `max_output_bytes`.
    """
    view = byte_view(payload)
    if len(view) < 8 or _u64(view)[0] != _MAGIC:
        blocks = [(0, len(view), _uncompressed_size(view, 0, len(view)))]
    else:
        blocks = _stream_blocks(view)
    total = sum([size for _, _, size in blocks])
    if total > max_output_bytes:
        raise DecompressionError(
            f"snappy: the payload expands to more than {max_output_bytes} bytes", position=0
        )
    start = 0
    try:
        if len(blocks) == 1:
            ((start, stop, _),) = blocks
            return memoryview(cramjam.snappy.decompress_raw(view[start:stop]))
        content = np.empty(total, dtype=np.uint8).data
        filled = 0
        for start, stop, size in blocks:
            # Fails unless the block holds exactly the size it states.
            cramjam.snappy.decompress_raw_into(view[start:stop], content[filled : filled + size])
            filled += size
    except cramjam.DecompressionError as error:
        raise DecompressionError(f"snappy: {error}", position=start) from error
    return content


def _stream_blocks(view: memoryview) -> list[tuple[int, int, int]]:
    """(first byte, byte after the last, uncompressed size) of every block of a xerial stream."""
    blocks: list[tuple[int, int, int]] = []
    position, end = _HEADER_SIZE, len(view)
    if end < _HEADER_SIZE:
        raise DecompressionError("snappy: the stream header is cut", position=end)
    while end - position >= 4:
        size: int = _u32(view, position)[0]
        if size == _MAGIC_WORD:
            if end - position < _HEADER_SIZE:
                raise DecompressionError("snappy: a stream header is cut", position=position)
            position += _HEADER_SIZE
            continue
        start = position + 4
        if size == 0 or size > end - start:
            raise DecompressionError(
                f"snappy: block of {size} bytes, {end - start} left", position=position
            )
        position = start + size
        blocks.append((start, position, _uncompressed_size(view, start, position)))
    return blocks


def _uncompressed_size(view: memoryview, start: int, stop: int) -> int:
    size = shift = 0
    for index in range(start, min(stop, start + 5)):
        byte = view[index]
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            if size > _MAX_RATIO * (stop - start):
                raise DecompressionError(
                    f"snappy: {stop - start} bytes cannot expand to {size}", position=start
                )
            return size
        shift += 7
    raise DecompressionError("snappy: no block, or one without a size", position=start)
