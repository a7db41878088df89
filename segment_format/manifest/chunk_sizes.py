"""The list of transformed chunk sizes in a manifest's `transformedChunks`.

Text → standard base64 with padding → one zstd frame with content size → big-endian payload:

    count   i32
    count 0: nothing more
    count 1: i32 size
    count ≥ 2:
        base    i32                       smallest of all sizes but the last
        width   i8, 1 … 4                 bytes a value
        count−1 unsigned values of `width` bytes, each = size − base
        last    i32                       last size itself

Source: `io.aiven.kafka.tieredstorage.manifest.serde.ChunkSizesBinaryCodec` and the chunk index
classes beside it.
"""

from __future__ import annotations

import base64
import struct
import threading
from typing import TYPE_CHECKING, Final

import numpy as np

from segment_format.errors import InvalidManifestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    import zstandard

    ChunkSizes = npt.NDArray[np.int32]

MAX_PAYLOAD_BYTES = 10 << 20  # the plugin's own limit; at width 1 that is 10.5 million chunks
MAX_INT32 = 2**31 - 1
_LEVEL = 3
_MANY = struct.Struct(">iib")
_COUNT = struct.Struct(">i")
_SIZE = struct.Struct(">i")
_LOCAL: Final = threading.local()
# zstd cannot expand a frame below its input by more than a few bytes per 128 KiB block.
_MAX_TEXT_LENGTH = (MAX_PAYLOAD_BYTES + (64 << 10)) * 4 // 3


def decode_chunk_sizes(text: str) -> ChunkSizes:
    """The sizes that a manifest's `transformedChunks` stands for.

    Args:
        text: Base64 of a zstd frame.

    Returns:
        int32 array, shape (chunks,). At most 10 MiB of payload are decompressed (the frame's stated
        size is checked first), which make at most 10.5 million chunks and 120 MB while decoding.

    Raises:
        InvalidManifestError: Not base64, not one zstd frame with content size, a payload beyond 10
            MiB or one that contradicts its own count, width or the range of sizes (0 … 2^31−1).
    """
    import zstandard  # only compressed segments need it

    if len(text) > _MAX_TEXT_LENGTH:
        raise InvalidManifestError(f"transformedChunks of {len(text)} characters")
    try:
        frame = base64.b64decode(text, validate=True)
    except ValueError as error:  # binascii.Error is one
        raise InvalidManifestError("transformedChunks is not base64") from error
    try:
        size = zstandard.get_frame_parameters(frame).content_size
    except zstandard.ZstdError as error:
        raise InvalidManifestError("transformedChunks is not a zstd frame") from error
    if size == zstandard.CONTENTSIZE_UNKNOWN:
        raise InvalidManifestError("transformedChunks is a zstd frame without content size")
    if size > MAX_PAYLOAD_BYTES:
        raise InvalidManifestError(
            f"transformedChunks of {size} bytes, at most {MAX_PAYLOAD_BYTES} are allowed"
        )
    try:
        payload = _decompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise InvalidManifestError("transformedChunks does not decompress") from error
    return unpack_chunk_sizes(payload)


def _decompressor() -> zstandard.ZstdDecompressor:
    """One a thread: making it takes longer than a list does, and threads cannot share it."""
    import zstandard

    found: zstandard.ZstdDecompressor | None = getattr(_LOCAL, "decompressor", None)
    if found is None:
        found = _LOCAL.decompressor = zstandard.ZstdDecompressor()
    return found


def encode_chunk_sizes(sizes: Sequence[int] | npt.NDArray[np.integer]) -> str:
    """The text for a manifest's `transformedChunks`.

    The payload is the plugin's byte for byte; the zstd frame of a long list can differ between zstd
    versions.

    Raises:
        InvalidManifestError: A size is negative or larger than 2^31−1, or the payload exceeds 10
            MiB.
    """
    import zstandard

    payload = pack_chunk_sizes(sizes)
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise InvalidManifestError(f"list of {len(sizes)} chunk sizes is too long for a manifest")
    frame = zstandard.ZstdCompressor(level=_LEVEL).compress(payload)
    return base64.b64encode(frame).decode("ascii")


def unpack_chunk_sizes(payload: bytes) -> ChunkSizes:
    """The sizes in a decompressed payload: int32 array, shape (chunks,).

    Raises:
        InvalidManifestError: The payload contradicts itself.
    """
    if len(payload) < _COUNT.size:
        raise InvalidManifestError(f"chunk size list of {len(payload)} bytes")
    (count,) = _COUNT.unpack_from(payload)
    if count < 0:
        raise InvalidManifestError(f"chunk size list of {count} entries", position=0)
    if count < 2:
        _expect_length(payload, _COUNT.size + count * _SIZE.size)
        return checked_sizes(np.frombuffer(payload, dtype=">i4", offset=_COUNT.size))
    if len(payload) < _MANY.size:
        raise InvalidManifestError(f"chunk size list of {len(payload)} bytes")
    _, base, width = _MANY.unpack_from(payload)
    if base < 0:
        raise InvalidManifestError(f"chunk size list with base {base}", position=4)
    if not 1 <= width <= 4:
        raise InvalidManifestError(f"chunk size list with values of {width} bytes", position=8)
    _expect_length(payload, _MANY.size + (count - 1) * width + _SIZE.size)
    if width == 3:
        wide = np.zeros((count - 1, 4), dtype=np.uint8)
        packed = np.frombuffer(payload, np.uint8, 3 * (count - 1), _MANY.size)
        wide[:, 1:] = packed.reshape(count - 1, 3)
        deltas = wide.view(">u4")[:, 0]
    else:
        deltas = np.frombuffer(payload, f">u{width}", count - 1, _MANY.size)
    most = MAX_INT32 - base
    if most >> 8 * width == 0 and int(deltas.max()) > most:  # else values this wide are smaller
        raise InvalidManifestError("chunk size outside 0 … 2^31−1", position=_MANY.size)
    sizes = np.empty(count, dtype=np.int32)
    sizes[:-1] = deltas
    sizes[:-1] += base
    (last,) = _SIZE.unpack_from(payload, len(payload) - _SIZE.size)
    if last < 0:
        raise InvalidManifestError("chunk size outside 0 … 2^31−1")
    sizes[-1] = last
    return sizes


def pack_chunk_sizes(sizes: Sequence[int] | npt.NDArray[np.integer]) -> bytes:
    """The payload before zstd.

    Raises:
        InvalidManifestError: A size is negative or larger than 2^31−1.
    """
    try:
        array = np.asarray(sizes, dtype=np.int64)
    except OverflowError as error:
        raise InvalidManifestError("chunk size larger than 2^31−1") from error
    checked_sizes(array)
    count = len(array)
    if count < 2:
        return _COUNT.pack(count) + array.astype(">i4").tobytes()
    deltas = array[:-1]
    base = int(deltas.min())
    deltas = deltas - base
    width = max(1, (int(deltas.max()).bit_length() + 7) // 8)
    packed = deltas.astype(">u4").view(np.uint8).reshape(count - 1, 4)[:, 4 - width :]
    return _MANY.pack(count, base, width) + packed.tobytes() + _SIZE.pack(int(array[-1]))


def _expect_length(payload: bytes, expected: int) -> None:
    if len(payload) != expected:
        raise InvalidManifestError(
            f"chunk size list of {len(payload)} bytes where its count and width ask for {expected}"
        )


def checked_sizes(sizes: npt.NDArray[np.integer]) -> ChunkSizes:
    """The sizes as int32.

    Raises:
        InvalidManifestError: A size is negative or larger than 2^31−1.
    """
    if len(sizes) and (int(sizes.min()) < 0 or int(sizes.max()) > MAX_INT32):
        raise InvalidManifestError("chunk size outside 0 … 2^31−1")
    return sizes.astype(np.int32, copy=False)
