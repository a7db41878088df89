"""Compresses payloads as Kafka clients other than the Java producer do.

librdkafka, sarama, franz-go and other clients write compressed frames that the Java producer does
not write: frames with a content size or a checksum, frames with other block sizes, and several
frames in one payload. Kafka accepts and stores all of these frames.
"""

from __future__ import annotations

import functools
import gzip
import struct
import zlib
from typing import TYPE_CHECKING

from segment_format.testing.batches import compress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Compressor = Callable[[bytes], bytes]


def foreign_compressors(codec: str) -> Mapping[str, Compressor]:
    """Returns functions that compress a payload as other Kafka clients do, by name of the variant.
    Returns an empty mapping if `codec` is not gzip, snappy, lz4 or zstd.
    """
    return _COMPRESSORS.get(codec, {})


def _halves(compressor: Compressor, payload: bytes) -> bytes:
    middle = len(payload) // 2
    return compressor(payload[:middle]) + compressor(payload[middle:])


def _gzip_named(payload: bytes) -> bytes:
    deflate = zlib.compressobj(9, wbits=-15)
    body = deflate.compress(payload) + deflate.flush()
    # Flag 0x08 of the gzip header means that a zero-terminated file name follows it.
    header = bytes.fromhex("1f8b0808" + "78563412" + "0203") + b"records\x00"
    return header + body + struct.pack("<II", zlib.crc32(payload), len(payload))


def _gzip_garbage(payload: bytes) -> bytes:
    return gzip.compress(payload, mtime=0) + b"\x00\x01garbage"


def _snappy_raw(payload: bytes) -> bytes:
    import cramjam

    return bytes(cramjam.snappy.compress_raw(payload))


def _snappy_small_blocks(payload: bytes) -> bytes:
    out = bytes.fromhex("82534e4150505900" + "00000001" + "00000001")
    for start in range(0, len(payload), 100):
        block = _snappy_raw(payload[start : start + 100])
        out += struct.pack(">i", len(block)) + block
    return out


def _lz4_frame(payload: bytes, *, block_size: int, content_size: bool, checksums: bool) -> bytes:
    import lz4.frame

    packed: bytes = lz4.frame.compress(
        payload,
        block_size=block_size,
        block_linked=False,
        content_checksum=checksums,
        block_checksum=checksums,
        store_size=content_size,
    )
    return packed


def _zstd_frame(payload: bytes, *, level: int, content_size: bool, checksum: bool) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(
        level=level, write_content_size=content_size, write_checksum=checksum
    ).compress(payload)


def _zstd_skippable(payload: bytes) -> bytes:
    skippable = struct.pack("<II", 0x184D2A50, 3) + b"abc"
    return skippable + compress("zstd", payload) + skippable


_COMPRESSORS: Mapping[str, Mapping[str, Compressor]] = {
    "gzip": {
        "named file": _gzip_named,
        "two members": functools.partial(_halves, functools.partial(gzip.compress, mtime=0)),
        "trailing garbage": _gzip_garbage,
    },
    "snappy": {
        "raw block": _snappy_raw,
        "small blocks": _snappy_small_blocks,
        "two streams": functools.partial(_halves, functools.partial(compress, "snappy")),
    },
    "lz4": {
        "256 KiB blocks": functools.partial(
            _lz4_frame, block_size=5, content_size=False, checksums=False
        ),
        "4 MiB blocks, content size": functools.partial(
            _lz4_frame, block_size=7, content_size=True, checksums=False
        ),
        "checksums": functools.partial(
            _lz4_frame, block_size=4, content_size=False, checksums=True
        ),
    },
    "zstd": {
        "content size": functools.partial(_zstd_frame, level=1, content_size=True, checksum=False),
        "checksum": functools.partial(_zstd_frame, level=9, content_size=False, checksum=True),
        "two frames": functools.partial(_halves, functools.partial(compress, "zstd")),
        "skippable frames": _zstd_skippable,
    },
}
