"""From stored bytes back to segment bytes, (AES-GCM) then (zstd) a chunk; and the way round.

    stored chunk    original → one zstd frame with content size (if `compression`) → AES-GCM message
                    (if encrypted)
    stored index    original → AES-GCM message (if encrypted and not empty); never compressed

Source: `io.aiven.kafka.tieredstorage.transform` (the `…TransformChunkEnumeration` and
`…DetransformChunkEnumeration` classes).
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from segment_format.errors import ChunkError, DecompressionError, DecryptionError
from segment_format.manifest.encryption import AES_OVERHEAD, decrypt, encrypt
from segment_format.record.compression import scan_frames
from segment_format.reused_memory import writable_bytes

if TYPE_CHECKING:
    from zstandard import ZstdDecompressor

    from segment_format.manifest.chunk_index import Chunk
    from segment_format.manifest.segment_manifest import IndexRange

_LEVEL = 3
_local = threading.local()


@dataclass(slots=True)
class RestoreTimes:
    """Seconds spent so far; whoever restores chunks one after the other may have them added up."""

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
    """The segment bytes of one stored chunk.

    Args:
        stored: Exactly the bytes [transformed_position, transformed_stop) of the `.log` object.
        chunk: Its entry in the chunk index.
        compression: The manifest's `compression`.
        data_key: The unwrapped data key, or None for a segment that is not encrypted.
        aad: The manifest's AAD; required with `data_key`.
        times: Where the time is added.

    Returns:
        `chunk.original_size` bytes; `stored` itself when nothing had to be undone. Nothing larger
        than `chunk.transformed_size` or `chunk.original_size` is allocated, whatever the frame
        claims.

    Raises:
        ChunkError: A length is not the chunk index's, or the zstd frame is not valid.
        DecryptionError: The message does not authenticate.
    """
    if len(stored) != chunk.transformed_size:
        raise ChunkError(
            f"chunk {chunk.id}: {len(stored)} bytes stored where the manifest says "
            f"{chunk.transformed_size}",
            position=chunk.original_position,
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
        raise ChunkError(
            f"chunk {chunk.id}: {len(data)} bytes where the manifest says {chunk.original_size}",
            position=chunk.original_position,
        )
    return data


def restore_index(
    stored: bytes | memoryview,
    index_range: IndexRange,
    *,
    data_key: bytes | None = None,
    aad: bytes | None = None,
) -> bytes | memoryview:
    """The side file in one blob of the `.indexes` object.

    Args:
        stored: Exactly the bytes [position, stop) of `index_range`.
        index_range: Where the manifest says the blob is.
        data_key: The unwrapped data key, or None for a segment that is not encrypted.
        aad: The manifest's AAD; required with `data_key`.

    Returns:
        The file as Kafka wrote it; a blob of size 0 is an empty file, encrypted or not.

    Raises:
        ChunkError: The length is not the manifest's.
        DecryptionError: The message does not authenticate.
    """
    if len(stored) != index_range.size:
        raise ChunkError(
            f"index blob: {len(stored)} bytes stored where the manifest says {index_range.size}"
        )
    if data_key is None or not index_range.size:
        return stored
    return _decrypt(stored, data_key, aad, "index blob", index_range.position)


def transform_chunk(
    original: bytes | memoryview,
    *,
    compression: bool,
    data_key: bytes | None = None,
    aad: bytes | None = None,
) -> bytes:
    """What the plugin stores for one chunk of a segment."""
    data = bytes(original)
    if compression:
        import zstandard

        data = zstandard.ZstdCompressor(level=_LEVEL).compress(data)
    return data if data_key is None else encrypt(data, data_key=data_key, aad=_required(aad))


def transform_index(
    original: bytes | memoryview, *, data_key: bytes | None = None, aad: bytes | None = None
) -> bytes:
    """What the plugin stores for one side file."""
    if data_key is None or not original:
        return bytes(original)
    return encrypt(original, data_key=data_key, aad=_required(aad))


def _required(aad: bytes | None) -> bytes:
    if aad is None:
        raise ValueError("a data key needs the manifest's AAD")
    return aad


def _decrypt(
    data: bytes | memoryview, data_key: bytes, aad: bytes | None, what: str, position: int
) -> memoryview:
    if len(data) < AES_OVERHEAD:
        raise ChunkError(
            f"{what}: {len(data)} bytes are too few for an encrypted message", position=position
        )
    try:
        return decrypt(data, data_key=data_key, aad=_required(aad))
    except DecryptionError as error:
        raise DecryptionError(f"{what}: {error.message}", position=position) from None


def _decompress(data: bytes | memoryview, chunk: Chunk) -> memoryview:
    import zstandard  # only compressed segments need it

    try:
        frames = scan_frames(memoryview(data))
    except DecompressionError as error:
        raise _chunk_error(chunk, f"zstd frame does not decompress: {error.message}") from error
    if len(frames) != 1 or (frames[0].start, frames[0].stop) != (0, len(data)):
        raise _chunk_error(chunk, "zstd frame does not decompress: it is not alone")
    size = frames[0].content_size
    if size is None or size != chunk.original_size:
        stated = "no size" if size is None else f"{size} bytes"
        raise _chunk_error(
            chunk, f"zstd frame states {stated}, the manifest {chunk.original_size} bytes"
        )
    restored = writable_bytes(size)
    try:
        with _decompressor().stream_reader(data) as reader:
            length = reader.readinto(restored)
            more = len(reader.read(1))
    except zstandard.ZstdError as error:
        raise _chunk_error(chunk, "zstd frame does not decompress") from error
    if length != size or more:
        raise _chunk_error(chunk, f"zstd frame holds {length + more} bytes")
    return restored.toreadonly()


def _decompressor() -> ZstdDecompressor:
    # One context per thread: making one costs as much as a small chunk, sharing one is not safe.
    import zstandard

    try:
        found: ZstdDecompressor = _local.decompressor
    except AttributeError:
        found = _local.decompressor = zstandard.ZstdDecompressor()
    return found


def _chunk_error(chunk: Chunk, message: str) -> ChunkError:
    return ChunkError(f"chunk {chunk.id}: {message}", position=chunk.original_position)
