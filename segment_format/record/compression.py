"""Decompresses the payload of a batch with a limit on memory.

The payload is the records of a batch (magic 2) or the value of a wrapper message (magic 0 and 1).
It is one compressed stream, without a length prefix and without its uncompressed size. Brokers
store the bytes that the producer sent, so this module must accept everything that Kafka accepts.
The exceptions are listed under "Codecs" in the package's README.

| codec | accepted |
|---|---|
| 1 gzip | one or more members; bytes after the last member are ignored |
| 2 snappy | xerial streams, or one bare raw block |
| 3 lz4 | one LZ4 frame; bytes after its end mark are ignored |
| 4 zstd | any number of zstd and skippable frames, and nothing else |

LZ4 frame, little-endian. In messages of magic 0, the header checksum HC is wrong, because it was
computed over the magic too, and Kafka does not check it (KAFKA-3160):

    04 22 4d 18   magic
    FLG           bits 7–6 version 01, 5 independent blocks, 4 block checksums, 3 content size,
                  2 content checksum, 1–0 zero
    BD            bits 6–4 block size id 4–7 (64 KiB to 4 MiB), others zero
    [8]           content size, skipped
    HC            second byte of xxh32 (seed 0) over FLG … content size
    blocks        u32 size (top bit: stored), bytes, [xxh32]
    00 00 00 00   end mark
    [4]           xxh32 of the content

Snappy stream as snappy-java frames it ("xerial"), big-endian. A raw block begins with its
uncompressed size, a little-endian base-128 varint of at most 32 bits. If the four bytes of a
block's size equal the first four bytes of the stream's magic, another stream header begins there.
One to three bytes at the end are ignored.

    82 53 4e 41 50 50 59 00   magic: 0x82 "SNAPPY" 0x00
    00 00 00 01               version i32, not enforced
    00 00 00 01               lowest compatible version i32, not enforced
    repeat: i32 size, raw snappy block of that many bytes

zstd (RFC 8878), little-endian. Frame: magic `28 b5 2f fd`, descriptor byte, [window descriptor 1],
[dictionary id 0–4], [content size 0–8], blocks, [checksum 4]. Descriptor: bits 7–6 content size
field, 5 single segment, 3 reserved (0), 2 checksum, 1–0 dictionary id field. Block: 3 bytes (bit 0
last, bits 1–2 type, rest size), then `size` bytes (raw, compressed) or one (run length). Skippable
frame: magic `5x 2a 4d 18`, size u32, `size` bytes.

Source: `org.apache.kafka.common.compress.*`, `Lz4BlockInputStream`, snappy-java's
`SnappyInputStream`.
"""

from __future__ import annotations

import functools
import struct
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

import lz4.frame
import numpy as np
import pyarrow as pa

from segment_format._cursor import byte_view
from segment_format.errors import DecompressionError, UnsupportedCompressionError
from segment_format.record.batch_header import CompressionType
from segment_format.zstd_library import decompress_into, iter_pieces, zstd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from segment_format._cursor import BytesLike

DEFAULT_MAX_BATCH_BYTES: Final = 256 << 20
"""Default bound on the decompressed bytes of one batch, 256 MiB.

Brokers accept batches of 1 MiB by default, so this leaves room for a compression ratio of 256, or
for topics with a larger `max.message.bytes`.
"""

# Plain integers, because comparing with members of the enumeration takes as long as decompressing a
# small batch.
_NONE, _GZIP, _SNAPPY, _LZ4, _ZSTD = (int(codec) for codec in CompressionType)

_GZIP_WBITS = 31  # a zlib window of 2^15 bytes, with gzip header and trailer
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_TRAILER_AND_HEADER = 18

ZSTD_ONE_SHOT_SLACK = 256 << 10
ZSTD_ONE_SHOT_RATIO = 32
"""A zstd payload is decompressed at once, into memory for its upper bound, if the bound is at most
`ZSTD_ONE_SHOT_SLACK` bytes plus `ZSTD_ONE_SHOT_RATIO` for each byte of the payload.
"""

_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_COMMON_HEADER: Final = int.from_bytes(_LZ4_MAGIC + b"\x60\x40\x82", "little")
"""The header of Java producers, as the low seven bytes of a little-endian word."""
_INDEPENDENT_FLAG: Final = 0x20
_BLOCK_CHECKSUM_FLAG: Final = 0x10
_CONTENT_SIZE_FLAG: Final = 0x08
_CONTENT_CHECKSUM_FLAG: Final = 0x04
_RESERVED_FLAGS: Final = 0x03
_LZ4_MAX_RATIO: Final = 255
_PIECE: Final = 1 << 20

_u64_le = struct.Struct("<Q").unpack_from

_SNAPPY_CODEC: Final = pa.Codec("snappy")
_XERIAL_MAGIC: Final = int.from_bytes(b"\x82SNAPPY\x00", "big")
_HEADER_SIZE: Final = 16
_MAGIC_WORD: Final = _XERIAL_MAGIC >> 32
_u32 = struct.Struct(">I").unpack_from
_u64 = struct.Struct(">Q").unpack_from
_SNAPPY_MAX_RATIO: Final = 22  # a copy element makes at most 64 bytes out of 3

_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_SKIPPABLE_TAIL: Final = b"\x2a\x4d\x18"
_MAX_BLOCK: Final = 128 << 10
_MAX_WINDOW: Final = 1 << 27
_DICTIONARY_ID_SIZE: Final = (0, 1, 2, 4)
_CONTENT_SIZE_SIZE: Final = (0, 2, 4, 8)
_RAW, _RUN_LENGTH, _COMPRESSED = 0, 1, 2
_CHECKSUM_FLAG: Final = 0x04


def decompress(
    codec: int,
    payload: BytesLike,
    *,
    magic: int = 2,
    max_output_bytes: int = DEFAULT_MAX_BATCH_BYTES,
    zstd_bound: int = -1,
) -> BytesLike:
    """Returns the uncompressed bytes of one batch's records.

    Memory: at most twice `max_output_bytes`, because the pieces are joined at the end, plus up to
    128 MiB for the window that a zstd frame declares. If the payload states a size, memory of this
    size is allocated only if a payload of this length can expand to it.

    Args:
        codec: Number in the batch's attributes; 0 returns `payload` itself.
        payload: Stored bytes, without the batch header.
        magic: Magic of the entry. zstd is only valid with magic 2. With magic 0 the LZ4 header
            checksum is not verified.
        max_output_bytes: Limit for the uncompressed bytes.
        zstd_bound: Upper bound of the uncompressed bytes; −1 if unknown. Must be −1 unless the
            payload is a single zstd frame.

    Returns:
        Contiguous bytes: `bytes`, a memoryview or a uint8 array. May share memory with `payload`.

    Raises:
        UnsupportedCompressionError: Kafka does not define the codec number, or does not allow the
            codec with this magic.
        DecompressionError: The payload is invalid, or expands beyond the limit. `position` of the
            error counts from the first byte of the payload.
    """
    if codec == _ZSTD and magic >= 2:
        return _decompress_zstd(payload, max_output_bytes, zstd_bound)
    if codec == _LZ4:
        return _decompress_lz4(payload, magic=magic, max_output_bytes=max_output_bytes)
    if codec == _SNAPPY:
        return _decompress_snappy(payload, max_output_bytes=max_output_bytes)
    if codec == _GZIP:
        return _decompress_gzip(payload, max_output_bytes)
    if codec == _NONE:
        return payload
    raise UnsupportedCompressionError(f"codec number {codec} is not valid with magic {magic}")


def _too_large(codec: str, max_output_bytes: int) -> DecompressionError:
    return DecompressionError(
        f"{codec}: the payload expands to more than {max_output_bytes} bytes", position=0
    )


def _decompress_gzip(payload: BytesLike, max_output_bytes: int) -> BytesLike:
    view = byte_view(payload)
    pieces: list[bytes] = []
    total = position = 0
    while True:
        member = zlib.decompressobj(_GZIP_WBITS)
        try:
            piece = member.decompress(view[position:], max_output_bytes - total + 1)
        except zlib.error as error:
            raise DecompressionError(f"gzip: {error}", position=position) from error
        total += len(piece)
        if total > max_output_bytes:
            raise _too_large("gzip", max_output_bytes)
        pieces.append(piece)
        if not member.eof:
            raise DecompressionError("gzip: the member is truncated", position=position)
        rest = member.unused_data
        if len(rest) <= _GZIP_TRAILER_AND_HEADER or not _begins_gzip_member(rest):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        position = len(view) - len(rest)


def _begins_gzip_member(data: bytes) -> bool:
    # Ignores other bytes after a member, as Java's GZIPInputStream does.
    return data.startswith(_GZIP_MAGIC) and data[2] == zlib.DEFLATED


def _decompress_lz4(payload: BytesLike, *, magic: int, max_output_bytes: int) -> bytes:
    """Returns the decompressed bytes of the LZ4 frame at the start of `payload`.

    The output buffer grows with the decompressed bytes. The content size in the frame's header is
    not used, because it may be wrong.
    """
    view = byte_view(payload)
    try:
        if len(view) < 8 or _u64_le(view)[0] & 0xFF_FFFF_FFFF_FFFF != _COMMON_HEADER:
            view = _with_plain_header(view, check=magic > 0)
        if _LZ4_MAX_RATIO * len(view) <= max_output_bytes:
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
        capacity = max_output_bytes - total
        piece, consumed, at_end = lz4.frame.decompress_chunk(
            context, view[position:], max_length=min(_PIECE, capacity + 1)
        )
        position += consumed
        total += len(piece)
        if total > max_output_bytes:
            raise _too_large("lz4", max_output_bytes)
        pieces.append(piece)
        if at_end:
            return b"".join(pieces)
        if not piece and not consumed:
            raise DecompressionError("lz4: the frame is truncated", position=position)


def _with_plain_header(view: memoryview, *, check: bool) -> memoryview:
    """Returns an LZ4 frame with a header that the lz4 library accepts, without content size and
    with a correct header checksum. The blocks are unchanged. If `check` is True, first verifies the
    header checksum of `view`.
    """
    if len(view) < 7 or bytes(view[:4]) != _LZ4_MAGIC:
        raise DecompressionError("lz4: the payload is not an LZ4 frame", position=0)
    flags = view[4]
    if flags >> 6 != 1 or flags & _RESERVED_FLAGS:
        raise DecompressionError(f"lz4: the frame flags {flags:#04x} are invalid", position=4)
    header_size = 15 if flags & _CONTENT_SIZE_FLAG else 7
    if len(view) < header_size:
        raise DecompressionError("lz4: the frame header is truncated", position=len(view))
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
    """Returns the seven bytes of an LZ4 frame header without a content size, as the lz4 library
    creates them.
    """
    header: bytes = lz4.frame.compress_begin(
        lz4.frame.create_compression_context(),
        block_size=block_descriptor >> 4 & 7,
        block_linked=not flags & _INDEPENDENT_FLAG,
        block_checksum=bool(flags & _BLOCK_CHECKSUM_FLAG),
        content_checksum=bool(flags & _CONTENT_CHECKSUM_FLAG),
    )
    if header[4:6] != bytes((flags, block_descriptor)):
        raise DecompressionError(
            f"lz4: the block descriptor {block_descriptor:#04x} is invalid", position=5
        )
    return header


def _decompress_snappy(payload: BytesLike, *, max_output_bytes: int) -> BytesLike:
    """Returns the decompressed bytes of a xerial stream or of one raw block.

    Memory: one buffer with the sum of the uncompressed sizes that the blocks state, and one for a
    block. Before they are allocated, each size is checked against the compressed size of the block,
    and the sum against the limit. For a hostile payload of empty blocks, the list of blocks takes
    about 25 bytes per payload byte.
    """
    view = byte_view(payload)
    if len(view) < 8 or _u64(view)[0] != _XERIAL_MAGIC:
        blocks = [(0, len(view), _uncompressed_size(view, 0, len(view)))]
    else:
        blocks = _stream_blocks(view)
    total = sum([size for _, _, size in blocks])
    if total > max_output_bytes:
        raise _too_large("snappy", max_output_bytes)
    start = 0
    try:
        if len(blocks) == 1:
            ((start, stop, size),) = blocks
            return _snappy_block(view[start:stop], size)
        content = np.empty(total, dtype=np.uint8).data
        filled = 0
        for start, stop, size in blocks:
            content[filled : filled + size] = _snappy_block(view[start:stop], size)
            filled += size
    except OSError as error:
        raise DecompressionError(f"snappy: {error}", position=start) from error
    return content


def _snappy_block(block: memoryview, size: int) -> memoryview:
    """Returns the content of a raw block. `size` must be the size that the block states.

    Raises:
        OSError: The block is invalid, or its content has another size.
    """
    return memoryview(_SNAPPY_CODEC.decompress(block, decompressed_size=size)).cast("B")


def _stream_blocks(view: memoryview) -> list[tuple[int, int, int]]:
    """Returns (start, stop, uncompressed size) of every block of a xerial stream."""
    blocks: list[tuple[int, int, int]] = []
    position, end = _HEADER_SIZE, len(view)
    if end < _HEADER_SIZE:
        raise DecompressionError("snappy: the stream header is truncated", position=end)
    while end - position >= 4:
        size: int = _u32(view, position)[0]
        if size == _MAGIC_WORD:
            if end - position < _HEADER_SIZE:
                raise DecompressionError("snappy: a stream header is truncated", position=position)
            position += _HEADER_SIZE
            continue
        start = position + 4
        if size == 0 or size > end - start:
            raise DecompressionError(
                f"snappy: a block states {size} bytes, but {end - start} bytes are left",
                position=position,
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
            if size > _SNAPPY_MAX_RATIO * (stop - start):
                raise DecompressionError(
                    f"snappy: a block of {stop - start} bytes cannot expand to {size} bytes",
                    position=start,
                )
            return size
        shift += 7
    raise DecompressionError(
        "snappy: the stream has no block, or a block does not state its uncompressed size",
        position=start,
    )


def _decompress_zstd(payload: BytesLike, max_output_bytes: int, bound: int) -> BytesLike:
    # One call into memory of the maximum size is the fastest. If the kernel has not supplied this
    # size, scan the frame headers. If the payload could expand much, do not allocate it at once.
    view = byte_view(payload)
    one_shot = min(max_output_bytes, ZSTD_ONE_SHOT_SLACK + ZSTD_ONE_SHOT_RATIO * len(view))
    if not 0 < bound <= one_shot:
        bound = sum([frame.max_output for frame in scan_frames(view)])
    try:
        if bound <= one_shot:
            content = np.empty(bound, np.uint8).data
            return content[: decompress_into(view, content)]
        pieces = list(iter_pieces(view, max_output_bytes))
    except zstd.ZstdError as error:
        raise DecompressionError(f"zstd: {error}", position=0) from error
    if sum(map(len, pieces)) > max_output_bytes:
        raise _too_large("zstd", max_output_bytes)
    return b"".join(pieces)


def _block_limit(descriptor: int) -> int:
    """Returns the maximum size of a block in a zstd frame with this window descriptor; −1 if the
    window exceeds the limit of 128 MiB.
    """
    window = (1 << 10 + (descriptor >> 3)) * (8 + (descriptor & 7)) // 8
    return min(window, _MAX_BLOCK) if window <= _MAX_WINDOW else -1


class Frame(NamedTuple):
    """One zstd frame.

    Attributes:
        start: Position of its first byte.
        stop: Position after its last byte.
        max_output: Upper bound of the uncompressed bytes: the size in the header or, if it has
            none, the sum of the upper bounds of the blocks.
        content_size: Uncompressed size in the header; None if it has none.
    """

    start: int
    stop: int
    max_output: int
    content_size: int | None


def scan_frames(view: memoryview) -> Sequence[Frame]:
    """Returns the frames of a zstd stream in order, except skippable frames. Reads only the headers
    of frames and of blocks.

    Memory: one tuple per frame. A frame has at least 9 bytes.

    Raises:
        DecompressionError: The stream is empty, truncated or followed by other bytes; or a frame
            declares a window above 128 MiB (the limit of Kafka's decoder), or states a content size
            that its blocks cannot reach.
    """
    frames: list[Frame] = []
    end = len(view)
    position = 0
    while True:
        if end - position < 8:
            raise DecompressionError(
                "zstd: the bytes are not a frame, or the frame is truncated", position=position
            )
        if bytes(view[position : position + 4]) == _ZSTD_MAGIC:
            frame = _scan_frame(view, position, end)
            frames.append(frame)
            position = frame.stop
        elif (
            bytes(view[position + 1 : position + 4]) == _SKIPPABLE_TAIL and view[position] >> 4 == 5
        ):
            position += 8 + int.from_bytes(view[position + 4 : position + 8], "little")
            if position > end:
                raise DecompressionError("zstd: a skippable frame is truncated", position=end)
        else:
            raise DecompressionError(
                "zstd: the bytes at this position do not begin a frame", position=position
            )
        if position == end:
            return frames


def _scan_frame(view: memoryview, start: int, end: int) -> Frame:
    descriptor = view[start + 4]
    position = start + 5
    single_segment = descriptor & 0x20
    limit = -1
    if not single_segment:
        limit = _block_limit(view[position])
        position += 1
    position += _DICTIONARY_ID_SIZE[descriptor & 3]
    size_field = descriptor >> 6
    content_size = None
    if size_field or single_segment:
        width = _CONTENT_SIZE_SIZE[size_field] or 1
        content_size = int.from_bytes(view[position : position + width], "little")
        if width == 2:
            content_size += 256
        position += width
        if single_segment and content_size <= _MAX_WINDOW:
            limit = min(content_size, _MAX_BLOCK)
    if limit < 0:
        raise DecompressionError(
            f"zstd: the frame needs a window above the maximum of {_MAX_WINDOW} bytes",
            position=start,
        )
    max_output = 0
    while True:
        if position + 3 > end:
            raise DecompressionError("zstd: the frame is truncated", position=end)
        block = view[position] | view[position + 1] << 8 | view[position + 2] << 16
        size = block >> 3
        kind = block >> 1 & 3
        position += 3
        if kind == _COMPRESSED:
            max_output += limit
            position += size
        elif kind == _RAW:
            max_output += size
            position += size
        elif kind == _RUN_LENGTH:
            max_output += size
            position += 1
        else:
            raise DecompressionError(
                "zstd: a block has the reserved block type", position=position - 3
            )
        if block & 1:
            break
    if descriptor & _CHECKSUM_FLAG:
        position += 4
    if position > end:
        raise DecompressionError("zstd: the frame is truncated", position=end)
    if content_size is not None:
        if content_size > max_output:
            raise DecompressionError(
                f"zstd: the frame states {content_size} bytes, but its blocks contain at most "
                f"{max_output} bytes",
                position=start,
            )
        max_output = content_size
    return Frame(start, position, max_output, content_size)
