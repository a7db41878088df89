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

from typing import TYPE_CHECKING, Final

import cramjam
import numpy as np

from segment_format._cursor import byte_view
from segment_format.errors import DecompressionError

if TYPE_CHECKING:
    from segment_format._cursor import BytesLike

_MAGIC: Final = b"\x82SNAPPY\x00"
_HEADER_SIZE: Final = 16
_MAGIC_WORD: Final = int.from_bytes(_MAGIC[:4], "big")
_MAX_RATIO: Final = 22  # a copy element makes at most 64 bytes out of 3


def decompress_snappy(payload: BytesLike, *, max_output_bytes: int) -> BytesLike:
    """The content of a xerial stream or of one raw block.

    Memory: one output array of the size that the blocks state, each checked against what its
    compressed bytes can make,
    all against the bound, before anything is allocated.

    Raises:
        DecompressionError: Empty payload, a cut stream, a block of length zero or one that is not
            valid snappy, or more than `max_output_bytes`.
    """
    view = byte_view(payload)
    blocks = _stream_blocks(view) if bytes(view[:8]) == _MAGIC else [(0, len(view))]
    sizes = [_uncompressed_size(view, start, stop) for start, stop in blocks]
    total = sum(sizes)
    if total > max_output_bytes:
        raise DecompressionError(
            f"snappy: the payload expands to more than {max_output_bytes} bytes", position=0
        )
    output = np.empty(total, dtype=np.uint8)
    filled = 0
    for (start, stop), size in zip(blocks, sizes, strict=True):
        try:
            written = cramjam.snappy.decompress_raw_into(
                view[start:stop], output[filled : filled + size].data
            )
        except cramjam.DecompressionError as error:
            raise DecompressionError(f"snappy: {error}", position=start) from error
        if written != size:
            raise DecompressionError(
                f"snappy: {written} bytes from a block of {size}", position=start
            )
        filled += size
    return output


def _stream_blocks(view: memoryview) -> list[tuple[int, int]]:
    blocks: list[tuple[int, int]] = []
    position, end = _HEADER_SIZE, len(view)
    if end < _HEADER_SIZE:
        raise DecompressionError("snappy: the stream header is cut", position=end)
    while end - position >= 4:
        size = int.from_bytes(view[position : position + 4], "big")
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
        blocks.append((start, position))
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
