"""Segment bytes cut into chunks, transformed and indexed as the storage plugin does it.

    fixed     plain or only encrypted: all transformed chunks but the last have one size
    variable  compressed: base64 of a zstd frame (with content size) of the list of sizes

    list of sizes   i32 count; 1 size: i32; more: i32 base, i8 width, (size - base) of `width` bytes
                    each for all but the last, i32 last

Source: `io.aiven.kafka.tieredstorage.manifest.index` (`ChunkIndex`, `serde.ChunkSizesBinaryCodec`).
"""

from __future__ import annotations

import base64
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_INT_MAX = (1 << 31) - 1
_ZSTD_LEVEL = 3


def write_chunk_sizes(sizes: Sequence[int]) -> bytes:
    """The binary list of transformed chunk sizes, before zstd and base64.

    Raises:
        ValueError: A size below 0 or above 2^31 - 1.
    """
    if any(not 0 <= size <= _INT_MAX for size in sizes):
        raise ValueError("chunk sizes are 0 to 2^31 - 1")
    if len(sizes) < 2:
        return struct.pack(f">i{len(sizes)}i", len(sizes), *sizes)
    *others, last = sizes
    base = min(others)
    width = max(1, ((max(others) - base).bit_length() + 7) // 8)
    return b"".join(
        [
            struct.pack(">iib", len(sizes), base, width),
            *((size - base).to_bytes(width, "big") for size in others),
            struct.pack(">i", last),
        ]
    )


def transform_log(
    log: bytes,
    *,
    chunk_size: int,
    compression: bool,
    encrypt: Callable[[bytes], bytes] | None,
) -> tuple[bytes, dict[str, object]]:
    """The stored `.log` object of a segment and the manifest's `chunkIndex`.

    Args:
        log: The segment file.
        chunk_size: Bytes of every original chunk but the last.
        compression: One zstd frame per chunk, with its content size.
        encrypt: Makes a message of a chunk, 28 bytes longer; None leaves it plain.
    """
    import zstandard

    chunks = [log[start : start + chunk_size] for start in range(0, len(log), chunk_size)]
    stored = chunks
    if compression:
        compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
        stored = [compressor.compress(chunk) for chunk in stored]
    if encrypt is not None:
        stored = [encrypt(chunk) for chunk in stored]
    index: dict[str, object] = {
        "type": "variable" if compression else "fixed",
        "originalChunkSize": chunk_size,
        "originalFileSize": len(log),
    }
    sizes = [len(chunk) for chunk in stored]
    if compression:
        frame = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(write_chunk_sizes(sizes))
        index["transformedChunks"] = base64.b64encode(frame).decode()
    else:
        overhead = len(stored[0]) - len(chunks[0]) if stored else 0
        index["transformedChunkSize"] = chunk_size + overhead
        index["finalTransformedChunkSize"] = sizes[-1] if sizes else 0
    return b"".join(stored), index
