"""One LZ4 frame, as Kafka's `Lz4BlockInputStream` reads it. Little-endian.

```
04 22 4d 18   magic
FLG           bits 7–6 version 01, 5 independent blocks, 4 block checksums, 3 content size,
              2 content checksum, 1–0 zero
BD            bits 6–4 block size id 4–7 (64 KiB to 4 MiB), others zero
[8]           content size, skipped
HC            second byte of xxh32 (seed 0) over FLG … content size
blocks        u32 size (top bit: stored), bytes, [xxh32]
00 00 00 00   end mark
[4]           xxh32 of the content
```

Everything after the end mark is ignored. Messages of magic 0 carry a wrong HC (it was computed over
the magic too), which Kafka does not check for them.

Source: `Lz4BlockInputStream`, `Lz4BlockOutputStream` (KAFKA-3160 for the old header checksum).
"""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING, Final

import lz4.frame

from segment_format._cursor import byte_view
from segment_format.errors import DecompressionError

if TYPE_CHECKING:
    from segment_format._cursor import BytesLike

_MAGIC: Final = b"\x04\x22\x4d\x18"
_COMMON_HEADER: Final = int.from_bytes(_MAGIC + b"\x60\x40\x82", "little")
"""What Java producers write, as the low seven bytes of a little-endian word."""
_INDEPENDENT_FLAG: Final = 0x20
_BLOCK_CHECKSUM_FLAG: Final = 0x10
_CONTENT_SIZE_FLAG: Final = 0x08
_CONTENT_CHECKSUM_FLAG: Final = 0x04
_RESERVED_FLAGS: Final = 0x03
_MAX_RATIO: Final = 255
_PIECE: Final = 1 << 20

_u64 = struct.Struct("<Q").unpack_from


def decompress_lz4(payload: BytesLike, *, magic: int, max_output_bytes: int) -> bytes:
    """The content of the frame that `payload` begins with.

    Memory: the output, grown as it arrives; a content size that the header states is not believed.

    Raises:
        DecompressionError: Not an LZ4 frame, a wrong header checksum (unless `magic` is 0), a wrong
            block or content checksum, no end mark, or more than `max_output_bytes`.
    """
    view = byte_view(payload)
    try:
        if len(view) < 8 or _u64(view)[0] & 0xFF_FFFF_FFFF_FFFF != _COMMON_HEADER:
            view = _with_plain_header(view, check=magic > 0)
        if _MAX_RATIO * len(view) <= max_output_bytes:
            content: bytes = lz4.frame.decompress(view)
            return content
        return _in_pieces(view, max_output_bytes)
    except RuntimeError as error:  # the library has no error class of its own
        raise DecompressionError(f"lz4: {error}", position=0) from error


def _in_pieces(view: memoryview, max_output_bytes: int) -> bytes:
    context = lz4.frame.create_decompression_context()
    pieces: list[bytes] = []
    total = position = 0
    while True:
        room = max_output_bytes - total
        piece, consumed, at_end = lz4.frame.decompress_chunk(
            context, view[position:], max_length=min(_PIECE, room + 1)
        )
        position += consumed
        total += len(piece)
        if total > max_output_bytes:
            raise DecompressionError(
                f"lz4: the payload expands to more than {max_output_bytes} bytes", position=0
            )
        pieces.append(piece)
        if at_end:
            return b"".join(pieces)
        if not piece and not consumed:
            raise DecompressionError("lz4: the frame is cut", position=position)


def _with_plain_header(view: memoryview, *, check: bool) -> memoryview:
    """The frame without content size and with the right header checksum, for the library."""
    if len(view) < 7 or bytes(view[:4]) != _MAGIC:
        raise DecompressionError("lz4: not an LZ4 frame", position=0)
    flags = view[4]
    if flags >> 6 != 1 or flags & _RESERVED_FLAGS:
        raise DecompressionError(f"lz4: frame flags {flags:#04x}", position=4)
    header_size = 15 if flags & _CONTENT_SIZE_FLAG else 7
    if len(view) < header_size:
        raise DecompressionError("lz4: the frame header is cut", position=len(view))
    if check:
        try:
            lz4.frame.get_frame_info(view[:header_size])
        except RuntimeError as error:
            message = f"lz4: a wrong frame header, or a wrong header checksum: {error}"
            raise DecompressionError(message, position=4) from error
        if header_size == 7:
            return view
    plain = _plain_header(flags & ~_CONTENT_SIZE_FLAG, view[5])
    return memoryview(plain + view[header_size:])


@functools.cache
def _plain_header(flags: int, block_descriptor: int) -> bytes:
    """The seven bytes that the library begins a frame with that has no content size."""
    header: bytes = lz4.frame.compress_begin(
        lz4.frame.create_compression_context(),
        block_size=block_descriptor >> 4 & 7,
        block_linked=not flags & _INDEPENDENT_FLAG,
        block_checksum=bool(flags & _BLOCK_CHECKSUM_FLAG),
        content_checksum=bool(flags & _CONTENT_CHECKSUM_FLAG),
    )
    if header[4:6] != bytes((flags, block_descriptor)):
        raise DecompressionError(f"lz4: block descriptor {block_descriptor:#04x}", position=5)
    return header
