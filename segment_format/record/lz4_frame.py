"""One LZ4 frame, as Kafka's `Lz4BlockInputStream` reads it. Little-endian.

```
04 22 4d 18   magic
FLG           bits 7–6 version 01, 5 independent blocks, 4 block checksums, 3 content size, 2
content checksum, 1–0 zero BD            bits 6–4 block size id 4–7 (64 KiB to 4 MiB), others zero
[8]           content size, skipped HC            second byte of xxh32 (seed 0) over FLG … content
size blocks        u32 size (top bit: stored), bytes, [xxh32] 00 00 00 00   end mark [4]
xxh32 of the content
```

Everything after the end mark is ignored. Messages of magic 0 carry a wrong HC (it was computed over
the magic too), which Kafka does not check for them.

Source: `Lz4BlockInputStream`, `Lz4BlockOutputStream` (KAFKA-3160 for the old header checksum).
"""

from __future__ import annotations

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
_CONTENT_SIZE_FLAG: Final = 0x08
_RESERVED_FLAGS: Final = 0x03
_MAX_RATIO: Final = 255
_PIECE: Final = 1 << 20

_u64 = struct.Struct("<Q").unpack_from

_PRIME_1 = 2654435761
_PRIME_2 = 2246822519
_PRIME_3 = 3266489917
_PRIME_4 = 668265263
_PRIME_5 = 374761393
_MASK = 0xFFFF_FFFF


def decompress_lz4(payload: BytesLike, *, magic: int, max_output_bytes: int) -> bytes:
    """The content of the frame that `payload` begins with.

    Memory: the output, grown as it arrives; a content size that the header states is not believed.

    Raises:
        DecompressionError: Not an LZ4 frame, a wrong header checksum (unless `magic` is 0), a wrong
            block or content checksum, no end mark, or more than `max_output_bytes`.
    """
    view = byte_view(payload)
    if len(view) < 8 or _u64(view)[0] & 0xFF_FFFF_FFFF_FFFF != _COMMON_HEADER:
        view = _with_plain_header(view, check=magic > 0)
    try:
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
    checksum_at = 14 if flags & _CONTENT_SIZE_FLAG else 6
    if len(view) <= checksum_at:
        raise DecompressionError("lz4: the frame header is cut", position=len(view))
    if check and view[checksum_at] != _header_checksum(bytes(view[4:checksum_at])):
        raise DecompressionError("lz4: wrong header checksum", position=checksum_at)
    plain = bytes((flags & ~_CONTENT_SIZE_FLAG, view[5]))
    if checksum_at == 6 and view[6] == _header_checksum(plain):
        return view
    return memoryview(
        b"".join((_MAGIC, plain, bytes((_header_checksum(plain),)), view[checksum_at + 1 :]))
    )


def _rotate(value: int, bits: int) -> int:
    value &= _MASK
    return (value << bits | value >> (32 - bits)) & _MASK


def _header_checksum(descriptor: bytes) -> int:
    """Second byte of xxh32 with seed 0, for inputs below 16 bytes."""
    value = _PRIME_5 + len(descriptor)
    whole = len(descriptor) & ~3
    for index in range(0, whole, 4):
        word = int.from_bytes(descriptor[index : index + 4], "little")
        value = _rotate(value + word * _PRIME_3, 17) * _PRIME_4
    for byte in descriptor[whole:]:
        value = _rotate(value + byte * _PRIME_5, 11) * _PRIME_1
    value &= _MASK
    value = (value ^ value >> 15) * _PRIME_2 & _MASK
    value = (value ^ value >> 13) * _PRIME_3 & _MASK
    value ^= value >> 16
    return value >> 8 & 0xFF
