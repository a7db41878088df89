"""Reads a manifest's `chunkIndex`, which maps positions in a segment file to positions in the
stored object.

The plugin splits the segment file into chunks of `originalChunkSize` bytes; the last one may be
shorter. It transforms (compresses, encrypts) each chunk separately and concatenates the results:

    type "fixed"     originalChunkSize, originalFileSize, transformedChunkSize,
                     finalTransformedChunkSize
    type "variable"  originalChunkSize, originalFileSize, transformedChunks

All numbers are Java ints. A file of 0 bytes has no chunks. `transformedChunks` is standard base64
with padding. It contains one zstd frame, which states its content size. The decompressed payload is
big-endian:

    count   i32
    count 0: nothing more
    count 1: i32 size
    count ≥ 2:
        base    i32                       smallest of all sizes but the last
        width   i8, 1 … 4                 bytes of a value
        count−1 unsigned values of `width` bytes, each = size − base
        last    i32                       last size itself

Source: `FixedSizeChunkIndex`, `VariableSizeChunkIndex` and `serde.ChunkSizesBinaryCodec` in
`io.aiven.kafka.tieredstorage.manifest`.
"""

from __future__ import annotations

import base64
import functools
import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from segment_format.errors import InvalidManifestError

if TYPE_CHECKING:
    import numpy.typing as npt

    ChunkSizes = npt.NDArray[np.int32]

MAX_PAYLOAD_BYTES: Final = 10 << 20
"""Limit of a decompressed payload, as in the plugin: 10.5 million chunks with one byte per size."""
MAX_INT32: Final = 2**31 - 1
_MANY: Final = struct.Struct(">iib")
_COUNT: Final = struct.Struct(">i")
_SIZE: Final = struct.Struct(">i")
# zstd cannot expand a frame below its input by more than a few bytes per 128 KiB block.
_MAX_TEXT_LENGTH: Final = (MAX_PAYLOAD_BYTES + (64 << 10)) * 4 // 3


def decode_chunk_sizes(text: str) -> ChunkSizes:
    """Decodes `transformedChunks` of a manifest. Returns the stored size of each chunk: int32
    array, shape (chunks,).

    A payload may have at most 10 MiB, which is checked before it is decompressed. Such a payload
    has at most 10.5 million chunks, and takes 120 MB of memory to decode.

    Raises:
        InvalidManifestError: The text is not base64 of one zstd frame with content size. Or the
            payload has more than 10 MiB, does not match its count and width, or contains a size
            outside 0 … 2^31−1.
    """
    from segment_format.zstd_library import decompress_into, zstd  # for compressed segments only

    if len(text) > _MAX_TEXT_LENGTH:
        raise InvalidManifestError(f"transformedChunks is too long: {len(text)} characters")
    try:
        frame = base64.b64decode(text, validate=True)
    except ValueError as error:  # binascii.Error is one
        raise InvalidManifestError("transformedChunks is not base64") from error
    try:
        size = zstd.get_frame_info(frame).decompressed_size
        is_one_frame = zstd.get_frame_size(frame) == len(frame)
    except zstd.ZstdError as error:
        raise InvalidManifestError("transformedChunks is not a zstd frame") from error
    if size is None:
        raise InvalidManifestError("transformedChunks is a zstd frame without content size")
    if size > MAX_PAYLOAD_BYTES:
        raise InvalidManifestError(
            f"transformedChunks has {size} bytes; at most {MAX_PAYLOAD_BYTES} are allowed"
        )
    payload = bytearray(size)
    try:
        length = decompress_into(memoryview(frame), memoryview(payload))
    except zstd.ZstdError as error:
        raise InvalidManifestError("transformedChunks does not decompress") from error
    if length != size or not is_one_frame:
        raise InvalidManifestError(
            "transformedChunks must be one zstd frame with as many bytes as the frame declares, and"
            " nothing after it"
        )
    return unpack_chunk_sizes(bytes(payload))


def unpack_chunk_sizes(payload: bytes) -> ChunkSizes:
    """Returns the stored chunk sizes from a decompressed payload: int32 array, shape (chunks,).

    Raises:
        InvalidManifestError: The payload does not match its count and width, or contains a size
            outside 0 … 2^31−1.
    """
    if len(payload) < _COUNT.size:
        raise InvalidManifestError(f"the chunk size list is truncated after {len(payload)} bytes")
    (count,) = _COUNT.unpack_from(payload)
    if count < 0:
        raise InvalidManifestError(
            f"the chunk size list states a negative count: {count}", position=0
        )
    if count < 2:
        _check_length(payload, _COUNT.size + count * _SIZE.size)
        sizes = np.frombuffer(payload, dtype=">i4", offset=_COUNT.size).astype(np.int32)
        if count and sizes[0] < 0:
            raise InvalidManifestError("a chunk size is outside 0 … 2^31−1")
        return sizes
    if len(payload) < _MANY.size:
        raise InvalidManifestError(f"the chunk size list is truncated after {len(payload)} bytes")
    _, base, width = _MANY.unpack_from(payload)
    if base < 0:
        raise InvalidManifestError(f"the chunk size list has the negative base {base}", position=4)
    if not 1 <= width <= 4:
        raise InvalidManifestError(
            f"the chunk size list has values of {width} bytes; 1 to 4 are valid", position=8
        )
    _check_length(payload, _MANY.size + (count - 1) * width + _SIZE.size)
    if width == 3:
        wide = np.zeros((count - 1, 4), dtype=np.uint8)
        packed = np.frombuffer(payload, np.uint8, 3 * (count - 1), _MANY.size)
        wide[:, 1:] = packed.reshape(count - 1, 3)
        deltas = wide.view(">u4")[:, 0]
    else:
        deltas = np.frombuffer(payload, f">u{width}", count - 1, _MANY.size)
    max_delta = MAX_INT32 - base
    # If the limit needs more than `width` bytes, no value can exceed it.
    if max_delta >> 8 * width == 0 and int(deltas.max()) > max_delta:
        raise InvalidManifestError("a chunk size is outside 0 … 2^31−1", position=_MANY.size)
    sizes = np.empty(count, dtype=np.int32)
    sizes[:-1] = deltas
    sizes[:-1] += base
    (last,) = _SIZE.unpack_from(payload, len(payload) - _SIZE.size)
    if last < 0:
        raise InvalidManifestError("a chunk size is outside 0 … 2^31−1")
    sizes[-1] = last
    return sizes


@functools.lru_cache(maxsize=64)
def _shared(chunk_size: int) -> int:
    """Returns the same object for equal chunk sizes, because all segments of a plan have one."""
    return chunk_size


def _check_length(payload: bytes, expected: int) -> None:
    if len(payload) != expected:
        raise InvalidManifestError(
            f"the chunk size list has {len(payload)} bytes, but its count and width need {expected}"
        )


@dataclass(frozen=True, slots=True)
class Chunk:
    """Describes one chunk: its byte range in the segment file, and its byte range in the stored
    object. Both ranges are [position, position + size).

    Attributes:
        id: Number of the chunk, from 0.
        original_position: Position of the chunk's first byte in the segment file.
        original_size: Number of bytes in the segment file.
        transformed_position: Position of the chunk's first byte in the stored `.log` object.
        transformed_size: Number of bytes in the stored `.log` object.
    """

    id: int
    original_position: int
    original_size: int
    transformed_position: int
    transformed_size: int

    @property
    def original_stop(self) -> int:
        """End of the chunk in the segment file, exclusive."""
        return self.original_position + self.original_size

    @property
    def transformed_stop(self) -> int:
        """End of the chunk in the stored object, exclusive."""
        return self.transformed_position + self.transformed_size


class ChunkIndex(ABC):
    """The chunks of a segment. Chunk `i` begins at byte `i * original_chunk_size` of the segment
    file.
    """

    __slots__ = ()
    original_chunk_size: int
    original_file_size: int

    @property
    def chunk_count(self) -> int:
        """Number of chunks."""
        return -(-self.original_file_size // self.original_chunk_size)

    @property
    @abstractmethod
    def transformed_size(self) -> int:
        """Size of the stored `.log` object in bytes, which is the sum of all stored chunk sizes."""

    @abstractmethod
    def transformed_stops(self) -> npt.NDArray[np.int64]:
        """Returns the end of each chunk in the stored object, in bytes and exclusive. The array has
        shape (chunks,).
        """

    @abstractmethod
    def _transformed_range(self, index: int) -> tuple[int, int]:
        """Returns `(position, size)` of chunk number `index` in the stored object, in bytes. The
        chunk must exist.
        """

    def chunk(self, index: int) -> Chunk:
        """Returns the chunk with number `index` (0 … chunk_count − 1) in constant time.

        Raises:
            IndexError: There is no such chunk.
        """
        if not 0 <= index < self.chunk_count:
            raise IndexError(
                f"there is no chunk {index}: the segment has {self.chunk_count} chunks"
            )
        original_position = index * self.original_chunk_size
        return Chunk(
            index,
            original_position,
            min(self.original_chunk_size, self.original_file_size - original_position),
            *self._transformed_range(index),
        )

    def chunks(self, start: int = 0, stop: int | None = None) -> tuple[Chunk, ...]:
        """Returns the chunks that contain at least one of the bytes [start, stop) of the segment
        file. A `stop` of `None`, or after the end of the file, means the end of the file.

        Raises:
            ValueError: `start` is negative.
        """
        if start < 0:
            raise ValueError(f"the position {start} is negative")
        stop = self.original_file_size if stop is None else min(stop, self.original_file_size)
        if start >= stop:
            return ()
        size = self.original_chunk_size
        return tuple(self.chunk(index) for index in range(start // size, -(-stop // size)))

    def check_object_size(self, size: int) -> None:
        """Checks that the size of a stored `.log` object equals the sum of its stored chunk sizes.

        Raises:
            InvalidManifestError: The sizes differ, because the object is truncated or belongs to
                another manifest.
        """
        if size != self.transformed_size:
            raise InvalidManifestError(
                f"the object has {size} bytes, but its chunks add up to {self.transformed_size}"
            )


def _check_size(member: str, size: int, *, minimum: int = 0) -> None:
    if not minimum <= size <= MAX_INT32:
        raise InvalidManifestError(f"{member} is out of range: {size}")


@dataclass(frozen=True, slots=True)
class FixedChunkIndex(ChunkIndex):
    """The chunk index of an uncompressed segment: all chunks except the last have the same stored
    size.

    Attributes:
        original_chunk_size: Bytes of the segment file in every chunk except the last.
        transformed_chunk_size: Stored size of every chunk except the last, in bytes.
        final_transformed_chunk_size: Stored size of the last chunk, in bytes.
    """

    original_chunk_size: int
    original_file_size: int
    transformed_chunk_size: int
    final_transformed_chunk_size: int

    def __post_init__(self) -> None:
        _check_size("originalChunkSize", self.original_chunk_size, minimum=1)
        _check_size("originalFileSize", self.original_file_size)
        _check_size("transformedChunkSize", self.transformed_chunk_size)
        _check_size("finalTransformedChunkSize", self.final_transformed_chunk_size)

    @property
    def transformed_size(self) -> int:
        """See `ChunkIndex.transformed_size`."""
        if not self.chunk_count:
            return 0
        size = (self.chunk_count - 1) * self.transformed_chunk_size
        return size + self.final_transformed_chunk_size

    def transformed_stops(self) -> npt.NDArray[np.int64]:
        """See `ChunkIndex.transformed_stops`."""
        stops = np.arange(1, self.chunk_count + 1, dtype=np.int64) * self.transformed_chunk_size
        stops[-1:] = self.transformed_size
        return stops

    def _transformed_range(self, index: int) -> tuple[int, int]:
        is_last = index == self.chunk_count - 1
        size = self.final_transformed_chunk_size if is_last else self.transformed_chunk_size
        return index * self.transformed_chunk_size, size


class VariableChunkIndex(ChunkIndex):
    """The chunk index of a compressed segment. Its chunks have different stored sizes.

    It uses 12 bytes of memory per chunk, and at most 126 MB, but only after a chunk was needed:
    the constructor checks the sizes and keeps their sum. So a plan of a million segments holds no
    sizes.

    Args:
        original_chunk_size: Bytes of the segment file in every chunk except the last.
        original_file_size: Size of the segment file in bytes.
        transformed_chunks: The manifest's text `transformedChunks` with the stored sizes.
        transformed_size: Sum of all stored sizes in bytes, if the text was decoded before. If
            given, the constructor does not decode the text, which saves time if a plan has many
            segments and reads few of them.

    Raises:
        InvalidManifestError: The text is invalid, or does not contain one size for each chunk of
            the file. If `transformed_size` is given, the error is raised when the chunks are first
            used, not by the constructor.
    """

    __slots__ = (
        "_sizes",
        "_stops",
        "_total",
        "original_chunk_size",
        "original_file_size",
        "transformed_chunks",
    )

    def __init__(
        self,
        original_chunk_size: int,
        original_file_size: int,
        transformed_chunks: str,
        transformed_size: int | None = None,
    ) -> None:
        _check_size("originalChunkSize", original_chunk_size, minimum=1)
        _check_size("originalFileSize", original_file_size)
        self.original_chunk_size = _shared(original_chunk_size)
        self.original_file_size = original_file_size
        self.transformed_chunks = transformed_chunks
        self._sizes: ChunkSizes | None = None
        if transformed_size is None:
            transformed_size = int(self._decode().sum(dtype=np.int64))
        self._total = transformed_size

    def _decode(self) -> ChunkSizes:
        """Decodes and checks the text `transformedChunks`."""
        sizes = decode_chunk_sizes(self.transformed_chunks)
        # For an empty file, the plugin writes one chunk with 0 bytes. It is ignored here.
        if len(sizes) != self.chunk_count and (self.chunk_count or len(sizes) > 1 or sizes.any()):
            raise InvalidManifestError(
                f"the manifest has {len(sizes)} transformed chunks where {self.original_file_size}"
                f" bytes in chunks of {self.original_chunk_size} bytes make {self.chunk_count}"
            )
        return sizes

    def _decoded(self) -> tuple[ChunkSizes, npt.NDArray[np.int64]]:
        """Returns two arrays with one entry per chunk: the stored size, and the end of the chunk in
        the stored object. Decodes the text if necessary.
        """
        if self._sizes is None:
            sizes = self._decode()
            stops = sizes.cumsum(dtype=np.int64)
            total = int(stops[-1]) if len(sizes) else 0
            if total != self._total:
                raise InvalidManifestError(
                    f"the chunks have {total} bytes, but {self._total} bytes are stated"
                )
            sizes.setflags(write=False)
            stops.setflags(write=False)
            self._stops, self._sizes = stops, sizes
        return self._sizes, self._stops

    @property
    def transformed_sizes(self) -> ChunkSizes:
        """Stored size of each chunk: int32 array, shape (chunks,), read-only."""
        return self._decoded()[0]

    @property
    def transformed_size(self) -> int:
        """See `ChunkIndex.transformed_size`."""
        return self._total

    def transformed_stops(self) -> npt.NDArray[np.int64]:
        """See `ChunkIndex.transformed_stops`. The array is read-only."""
        return self._decoded()[1]

    def _transformed_range(self, index: int) -> tuple[int, int]:
        sizes, stops = self._decoded()
        size = int(sizes[index])
        return int(stops[index]) - size, size

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, VariableChunkIndex)
            and self.original_chunk_size == other.original_chunk_size
            and self.original_file_size == other.original_file_size
            and np.array_equal(self.transformed_sizes, other.transformed_sizes)
        )

    def __hash__(self) -> int:
        return hash((self.original_chunk_size, self.original_file_size, self.transformed_size))

    def __reduce__(self) -> tuple[object, ...]:
        shape = (self.original_chunk_size, self.original_file_size)
        return VariableChunkIndex, (*shape, self.transformed_chunks, self._total)

    def __repr__(self) -> str:
        return (
            f"VariableChunkIndex({self.original_chunk_size}, {self.original_file_size}, "
            f"<{self.chunk_count} sizes, {self.transformed_size} bytes>)"
        )
