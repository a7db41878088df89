"""Payload compression with the framing that the Java producer writes.

    gzip    one RFC 1952 member, no name, no time, operating system 255
    snappy  xerial stream: 82 "SNAPPY" 00, i32 version 1, i32 compatible 1, then (i32 length, raw
            block) per 32 KiB
    lz4     LZ4 frame v1: 64 KiB independent blocks, no checksums, no content size, EndMark
    zstd    one streaming frame without a content size

Source: `org.apache.kafka.common.compress.*Compression`, `Lz4BlockOutputStream`.
"""

from __future__ import annotations

import struct
import zlib

CODEC_NUMBERS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Codec name -> the number in bits 0-2 of a batch's attributes."""

_XERIAL_HEADER = bytes.fromhex("82534e4150505900" + "00000001" + "00000001")
_XERIAL_BLOCK_BYTES = 32 << 10
_GZIP_HEADER = bytes.fromhex("1f8b08000000000000ff")
_LZ4_HEADER = bytes.fromhex("04224d18" + "6040" + "82")
_LZ4_HEADER_MAGIC_0 = bytes.fromhex("04224d18" + "6040" + "1a")
_LZ4_BLOCK_BYTES = 64 << 10
_LZ4_STORED = 1 << 31
_LZ4_END_MARK = bytes(4)


def codec_number(codec: str) -> int:
    """The number of the codec called `codec`.

    Raises:
        ValueError: Kafka has no codec of that name.
    """
    try:
        return CODEC_NUMBERS[codec]
    except KeyError:
        raise ValueError(f"codec {codec!r} is none of {', '.join(CODEC_NUMBERS)}") from None


def compress(codec: str, payload: bytes, *, magic: int = 2) -> bytes:
    """`payload` as the Java producer would store it.

    Args:
        codec: none, gzip, snappy, lz4 or zstd.
        payload: The records of one batch, or the inner entries of one legacy wrapper.
        magic: Magic of the batch; magic 0 has the old LZ4 header checksum, and magic 0 and 1 know
            no zstd.

    Raises:
        ValueError: Unknown codec, or zstd with magic 0 or 1.
    """
    if magic < 2 and codec == "zstd":
        raise ValueError("message sets of magic 0 and 1 cannot use zstd")
    if codec == "none":
        return payload
    if codec == "gzip":
        return _gzip(payload)
    if codec == "snappy":
        return _snappy(payload)
    if codec == "lz4":
        return _lz4(payload, magic)
    codec_number(codec)
    return _zstd(payload)


def _gzip(payload: bytes) -> bytes:
    deflate = zlib.compressobj(wbits=-15)
    body = deflate.compress(payload) + deflate.flush()
    trailer = struct.pack("<II", zlib.crc32(payload), len(payload) & 0xFFFFFFFF)
    return _GZIP_HEADER + body + trailer


def _snappy(payload: bytes) -> bytes:
    import cramjam

    out = [_XERIAL_HEADER]
    for start in range(0, len(payload), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(payload[start : start + _XERIAL_BLOCK_BYTES]))
        out += [struct.pack(">i", len(block)), block]
    return b"".join(out)


def _lz4(payload: bytes, magic: int) -> bytes:
    import lz4.block

    out = [_LZ4_HEADER_MAGIC_0 if magic == 0 else _LZ4_HEADER]
    for start in range(0, len(payload), _LZ4_BLOCK_BYTES):
        block = payload[start : start + _LZ4_BLOCK_BYTES]
        packed = lz4.block.compress(block, store_size=False)
        if len(packed) < len(block):
            out += [struct.pack("<I", len(packed)), packed]
        else:
            out += [struct.pack("<I", len(block) | _LZ4_STORED), block]
    out.append(_LZ4_END_MARK)
    return b"".join(out)


def _zstd(payload: bytes) -> bytes:
    import zstandard

    # A streaming object does not know the size beforehand, so the frame states none: as in Java.
    stream = zstandard.ZstdCompressor(level=3).compressobj()
    return stream.compress(payload) + stream.flush()
