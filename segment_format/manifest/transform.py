"""Restores the original bytes of chunks and side files (indexes, producer snapshot, checkpoint).

Reverses the steps with which the plugin stores chunks and side files:

    chunk        original → one zstd frame with content size (if `compression`) → AES-GCM message
                 (if encrypted)
    side file    original → AES-GCM message (if encrypted and not empty); never compressed

Source: the `…DetransformChunkEnumeration` classes in `io.aiven.kafka.tieredstorage.transform`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from segment_format.errors import ChunkError, DecompressionError, DecryptionError
from segment_format.manifest.encryption import AES_OVERHEAD, decrypt
from segment_format.record.compression import scan_frames
from segment_format.reused_memory import writable_bytes
from segment_format.zstd_library import decompress_into, zstd

if TYPE_CHECKING:
    from segment_format.manifest.chunk_index import Chunk
    from segment_format.manifest.segment_manifest import IndexRange


@dataclass(slots=True)
class RestoreTimes:
    """Seconds that each step took in total. `restore_chunk` adds to them."""

    decrypt: float = 0.0
    decompress: float = 0.0


def restore_chunk(
    stored: bytes | memoryview,
    chunk: Chunk,
    *,
    compression: bool,
    data_key: bytes | None = None,
    aad: bytes | None = None,
    times: RestoreTimes | None = None,
) -> bytes | memoryview:
    """Decrypts and decompresses one stored chunk. Returns the bytes of the chunk in the segment
    file.

    Args:
        stored: Exactly the bytes [transformed_position, transformed_stop) of the `.log` object.
        chunk: Entry of the chunk in the chunk index.
        compression: True if the chunk is compressed: `compression` of the manifest.
        data_key: The unwrapped data key, or `None` for a segment that is not encrypted.
        aad: The manifest's AAD; required with `data_key`.
        times: The seconds that each step takes are added to it.

    Returns:
        `chunk.original_size` bytes; `stored` itself if it is neither encrypted nor compressed. No
        allocation exceeds the larger of `chunk.transformed_size` and `chunk.original_size`, even if
        the zstd frame states a larger size.

    Raises:
        ChunkError: The stored or restored size differs from the chunk index, or the zstd frame is
            invalid.
        DecryptionError: The message does not authenticate.
    """
    if len(stored) != chunk.transformed_size:
        raise _chunk_error(
            chunk,
            f"{len(stored)} stored bytes were read, but the manifest states "
            f"{chunk.transformed_size} bytes",
        )
    data = stored
    times = times or RestoreTimes()
    if data_key is not None:
        began = time.perf_counter()
        data = _decrypt(data, data_key, aad, f"chunk {chunk.id}", chunk.original_position)
        times.decrypt += time.perf_counter() - began
    if compression:
        began = time.perf_counter()
        restored = _decompress(data, chunk)
        times.decompress += time.perf_counter() - began
        return restored
    if len(data) != chunk.original_size:
        raise _chunk_error(
            chunk, f"it has {len(data)} bytes, but the manifest states {chunk.original_size}"
        )
    return data


def restore_index(
    stored: bytes | memoryview,
    index_range: IndexRange,
    *,
    data_key: bytes | None = None,
    aad: bytes | None = None,
) -> bytes | memoryview:
    """Decrypts one side file, if it is encrypted. Returns the bytes of the file.

    Args:
        stored: Exactly the bytes [position, stop) of `index_range`.
        index_range: Range of the side file, from the manifest.
        data_key: The unwrapped data key, or `None` for a segment that is not encrypted.
        aad: The manifest's AAD; required with `data_key`.

    Returns:
        The bytes of the file as Kafka wrote it. If `stored` is empty, the file is empty, even in an
        encrypted segment.

    Raises:
        ChunkError: The length differs from the manifest.
        DecryptionError: The message does not authenticate.
    """
    if len(stored) != index_range.size:
        raise ChunkError(
            f"index blob: {len(stored)} stored bytes were read, but the manifest states "
            f"{index_range.size} bytes"
        )
    if data_key is None or not index_range.size:
        return stored
    return _decrypt(stored, data_key, aad, "index blob", index_range.position)


def _decrypt(
    data: bytes | memoryview, data_key: bytes, aad: bytes | None, what: str, position: int
) -> memoryview:
    if len(data) < AES_OVERHEAD:
        raise ChunkError(
            f"{what}: {len(data)} bytes are too few for an encrypted message", position=position
        )
    if aad is None:
        raise ValueError("`aad` is missing: decryption with a data key needs the manifest's AAD")
    try:
        return decrypt(data, data_key=data_key, aad=aad)
    except DecryptionError as error:
        raise DecryptionError(f"{what}: {error.message}", position=position) from None


def _decompress(data: bytes | memoryview, chunk: Chunk) -> memoryview:
    try:
        frames = scan_frames(memoryview(data))
    except DecompressionError as error:
        raise _chunk_error(chunk, f"zstd frame does not decompress: {error.message}") from error
    if len(frames) != 1 or (frames[0].start, frames[0].stop) != (0, len(data)):
        raise _chunk_error(chunk, "the chunk is not exactly one zstd frame")
    size = frames[0].content_size
    if size is None or size != chunk.original_size:
        stated = "no size" if size is None else f"{size} bytes"
        raise _chunk_error(
            chunk,
            f"the zstd frame states {stated}, but the manifest states {chunk.original_size} bytes",
        )
    restored = writable_bytes(size)
    try:
        length = decompress_into(memoryview(data), restored)
    except zstd.ZstdError as error:
        raise _chunk_error(chunk, "zstd frame does not decompress") from error
    if length != size:
        raise _chunk_error(
            chunk, f"the zstd frame contains {length} bytes, but states {size} bytes"
        )
    return restored.toreadonly()


def _chunk_error(chunk: Chunk, message: str) -> ChunkError:
    return ChunkError(f"chunk {chunk.id}: {message}", position=chunk.original_position)
