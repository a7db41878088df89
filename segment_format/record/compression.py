"""From a batch's stored payload to its records' bytes, within a bound on memory.

One stream per batch (magic 2) or per wrapper value (magic 0 and 1), without length prefix or
uncompressed size. Brokers store the producer's bytes, so a log holds whatever client libraries
write; "what Kafka accepts" is the specification:

| codec | accepted |
|---|---|
| 1 gzip | one member or several; what follows the last is ignored |
| 2 snappy | xerial streams, or one bare raw block: see `segment_format.record.snappy` |
| 3 lz4 | one LZ4 frame: see `segment_format.record.lz4_frame` |
| 4 zstd | any number of zstd and skippable frames, and nothing else |

Three cases differ from Kafka: see "Codecs" in the package's README. Too few or too many records in
an otherwise valid stream are the record decoder's to notice.

Source: `org.apache.kafka.common.compress.*`, `Lz4BlockInputStream`, snappy-java's
`SnappyInputStream`.
"""

from __future__ import annotations

import threading
import zlib
from typing import TYPE_CHECKING, Final

import zstandard

from segment_format._cursor import byte_view
from segment_format.errors import DecompressionError, UnsupportedCompressionError
from segment_format.record.batch_header import CompressionType
from segment_format.record.lz4_frame import decompress_lz4
from segment_format.record.snappy import decompress_snappy
from segment_format.record.zstd_frames import scan_frames

if TYPE_CHECKING:
    from segment_format._cursor import BytesLike

DEFAULT_MAX_BATCH_BYTES: Final = 256 << 20
"""Default bound on the decompressed bytes of one batch, 256 MiB.

Brokers take batches of 1 MiB unless told otherwise, so this leaves room for a compression ratio of
256, or for topics whose `max.message.bytes` was raised; a task's memory stays within what Spark
gives a Python worker.
"""

# Plain integers: comparing with members of the enumeration costs as much as small batches do.
_NONE, _GZIP, _SNAPPY, _LZ4, _ZSTD = (int(codec) for codec in CompressionType)

_GZIP_WBITS = 31  # a zlib window of 2^15 bytes, with gzip header and trailer
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_TRAILER_AND_HEADER = 18

_ZSTD_ONE_SHOT_SLACK = 256 << 10
_ZSTD_ONE_SHOT_RATIO = 32
_ZSTD_READ = 1 << 20


class _ZstdContext(threading.local):
    """One decompressor per thread: making one costs more than decompressing a small batch."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor()


_zstd = _ZstdContext()


def decompress(
    codec: int,
    payload: BytesLike,
    *,
    magic: int = 2,
    max_output_bytes: int = DEFAULT_MAX_BATCH_BYTES,
    zstd_bound: int = -1,
) -> BytesLike:
    """The uncompressed bytes of one batch's records.

    Memory: at most twice `max_output_bytes` (the pieces and their join), plus up to 128 MiB that
    the zstd library takes for a frame that declares a window of that size. A size that the payload
    merely claims is never allocated unless the payload is long enough to be able to expand to it.

    Args:
        codec: Number from the batch's attributes; 0 returns `payload` itself.
        payload: Stored bytes, without the batch header.
        magic: Magic of the entry: zstd exists only from magic 2 on, and magic 0 has its own LZ4
            header checksum.
        max_output_bytes: Most bytes that may come out.
        zstd_bound: Bytes that the payload cannot expand beyond, if it is one zstd frame and nothing
            else; −1 if nobody has looked.

    Returns:
        Contiguous bytes: `bytes`, a memoryview or a uint8 array. May share memory with `payload`.

    Raises:
        UnsupportedCompressionError: A codec number Kafka does not define, or not for this magic.
        DecompressionError: The payload is not valid for its codec, or grows past the bound;
            `position` counts from the payload's first byte.
    """
    if codec == _ZSTD and magic >= 2:
        return _decompress_zstd(payload, max_output_bytes, zstd_bound)
    if codec == _LZ4:
        return decompress_lz4(payload, magic=magic, max_output_bytes=max_output_bytes)
    if codec == _SNAPPY:
        return decompress_snappy(payload, max_output_bytes=max_output_bytes)
    if codec == _GZIP:
        return _decompress_gzip(payload, max_output_bytes)
    if codec == _NONE:
        return payload
    raise UnsupportedCompressionError(f"codec number {codec} with magic {magic}")


def _decompress_zstd(payload: BytesLike, max_output_bytes: int, bound: int) -> BytesLike:
    # The library's one-shot call is the fastest, but it reads one frame, silently ignores what
    # follows, and needs to be told a size. Walking the frames first (a few dozen bytes of headers)
    # supplies both and finds truncation and garbage.
    view = byte_view(payload)
    one_shot = min(max_output_bytes, _ZSTD_ONE_SHOT_SLACK + _ZSTD_ONE_SHOT_RATIO * len(view))
    decompressor = _zstd.decompressor
    try:
        if 0 < bound <= one_shot:
            return decompressor.decompress(view, max_output_size=bound)
        frames = scan_frames(view)
        if sum(frame.max_output for frame in frames) <= one_shot:
            return b"".join(
                decompressor.decompress(
                    view[frame.start : frame.stop], max_output_size=frame.max_output
                )
                for frame in frames
                if frame.max_output
            )
        pieces: list[bytes] = []
        total = 0
        with decompressor.stream_reader(view, read_across_frames=True) as reader:
            while piece := reader.read(min(_ZSTD_READ, max_output_bytes - total + 1)):
                total += len(piece)
                if total > max_output_bytes:
                    raise _too_large("zstd", max_output_bytes)
                pieces.append(piece)
        return b"".join(pieces)
    except zstandard.ZstdError as error:
        raise DecompressionError(f"zstd: {error}", position=0) from error


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
            raise DecompressionError("gzip: the member is cut", position=position)
        rest = member.unused_data
        if len(rest) <= _GZIP_TRAILER_AND_HEADER or not _begins_gzip_member(rest):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        position = len(view) - len(rest)


def _begins_gzip_member(data: bytes) -> bool:
    # What Java's GZIPInputStream asks before it goes on; anything else after a member is ignored.
    return data.startswith(_GZIP_MAGIC) and data[2] == zlib.DEFLATED


def _too_large(codec: str, max_output_bytes: int) -> DecompressionError:
    return DecompressionError(
        f"{codec}: the payload expands to more than {max_output_bytes} bytes", position=0
    )
