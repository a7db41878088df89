"""The chunk index of a segment: where in the stored object the bytes of the segment file are.

The segment file is cut into chunks of `originalChunkSize` bytes, the last one shorter or equal;
each is transformed on its own and the results are concatenated. In the manifest's `chunkIndex`:

    type "fixed"     originalChunkSize, originalFileSize, transformedChunkSize,
                     finalTransformedChunkSize
    type "variable"  originalChunkSize, originalFileSize, transformedChunks (see `chunk_sizes`)

All numbers are Java ints. A file of 0 bytes has no chunks.

Source: `io.aiven.kafka.tieredstorage.manifest.index.FixedSizeChunkIndex`, `VariableSizeChunkIndex`.

The list of transformed chunk sizes in a manifest's `transformedChunks`.

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
from abc import ABC, abstractmethod
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk; both ranges are half-open: [position, position + size).

    Attributes:
        id: Number of the chunk, from 0.
        original_position: First byte in the segment file.
        original_size: Bytes in the segment file.
        transformed_position: First byte in the stored `.log` object.
        transformed_size: Bytes in the stored `.log` object.
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
    """What both kinds share: chunk `i` begins at original byte `i * original_chunk_size`."""

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
        """Bytes of the stored `.log` object that the index describes: the sum of all chunks."""

    @abstractmethod
    def _transformed_range(self, index: int) -> tuple[int, int]:
        """Position and size of an existing chunk in the stored object."""

    def chunk(self, index: int) -> Chunk:
        """Chunk number `index`, 0 … chunk_count − 1, in constant time.

        Raises:
            IndexError: There is no such chunk.
        """
        if not 0 <= index < self.chunk_count:
            raise IndexError(f"chunk {index} of {self.chunk_count}")
        original_position = index * self.original_chunk_size
        return Chunk(
            index,
            original_position,
            min(self.original_chunk_size, self.original_file_size - original_position),
            *self._transformed_range(index),
        )

    def chunk_at(self, position: int) -> Chunk | None:
        """The chunk that holds byte `position` of the segment file, None at or beyond its end.

        Raises:
            ValueError: `position` is negative.
        """
        if position < 0:
            raise ValueError(f"negative position {position}")
        if position >= self.original_file_size:
            return None
        return self.chunk(position // self.original_chunk_size)

    def chunks(self, start: int = 0, stop: int | None = None) -> tuple[Chunk, ...]:
        """The chunks that touch bytes [start, stop) of the segment file; `stop` is clipped.

        Raises:
            ValueError: `start` is negative.
        """
        if start < 0:
            raise ValueError(f"negative position {start}")
        stop = self.original_file_size if stop is None else min(stop, self.original_file_size)
        if start >= stop:
            return ()
        size = self.original_chunk_size
        return tuple(self.chunk(index) for index in range(start // size, -(-stop // size)))

    @abstractmethod
    def transformed_stops(self) -> npt.NDArray[np.int64]:
        """End of each chunk in the stored object, exclusive: int64 array, shape (chunks,)."""

    def chunk_at_transformed(self, position: int) -> Chunk | None:
        """The chunk that holds byte `position` of the stored object, None beyond its end.

        Raises:
            ValueError: `position` is negative.
        """
        if position < 0:
            raise ValueError(f"negative position {position}")
        if position >= self.transformed_size:
            return None
        return self.chunk(self._index_at_transformed(position))

    @abstractmethod
    def _index_at_transformed(self, position: int) -> int:
        """Number of the chunk at an existing position of the stored object."""

    def check_object_size(self, size: int) -> None:
        """Refuses a stored `.log` object whose length is not the sum of its chunks.

        Raises:
            InvalidManifestError: The lengths differ: the object is cut, or belongs to another
                manifest.
        """
        if size != self.transformed_size:
            raise InvalidManifestError(
                f"stored object of {size} bytes where its chunks add up to {self.transformed_size}"
            )


def _check_size(member: str, size: int, *, least: int = 0) -> None:
    if not least <= size <= MAX_INT32:
        raise InvalidManifestError(f"{member} {size}")


@dataclass(frozen=True, slots=True)
class FixedChunkIndex(ChunkIndex):
    """The index of an uncompressed segment: all chunks but the last have one size.

    Attributes:
        transformed_chunk_size: Stored size of every chunk but the last; the full-chunk figure,
            unused, with one chunk.
        final_transformed_chunk_size: Stored size of the last chunk.
    """

    original_chunk_size: int
    original_file_size: int
    transformed_chunk_size: int
    final_transformed_chunk_size: int

    def __post_init__(self) -> None:
        _check_size("originalChunkSize", self.original_chunk_size, least=1)
        _check_size("originalFileSize", self.original_file_size)
        _check_size("transformedChunkSize", self.transformed_chunk_size)
        _check_size("finalTransformedChunkSize", self.final_transformed_chunk_size)

    @property
    def transformed_size(self) -> int:
        """Sum of all stored chunk sizes, in bytes."""
        if not self.chunk_count:
            return 0
        return (
            self.chunk_count - 1
        ) * self.transformed_chunk_size + self.final_transformed_chunk_size

    def transformed_stops(self) -> npt.NDArray[np.int64]:
        """See `ChunkIndex.transformed_stops`."""
        stops = np.arange(1, self.chunk_count + 1, dtype=np.int64) * self.transformed_chunk_size
        stops[-1:] = self.transformed_size
        return stops

    def _transformed_range(self, index: int) -> tuple[int, int]:
        is_last = index == self.chunk_count - 1
        size = self.final_transformed_chunk_size if is_last else self.transformed_chunk_size
        return index * self.transformed_chunk_size, size

    def _index_at_transformed(self, position: int) -> int:
        if not self.transformed_chunk_size:
            return self.chunk_count - 1
        return min(position // self.transformed_chunk_size, self.chunk_count - 1)


class VariableChunkIndex(ChunkIndex):
    """The index of a compressed segment: every chunk has a stored size of its own.

    It holds 12 bytes a chunk, at most 126 MB for the longest list that the codec admits.

    Args:
        original_chunk_size: Bytes of the segment file in every chunk but the last.
        original_file_size: Bytes of the segment file.
        transformed_sizes: Stored size of each chunk, or the manifest's text of the list.
        transformed_size: Sum of all stored sizes, for a text that was decoded before: it is decoded
            again when a chunk is asked for. A plan of many segments looks at few of their chunks.

    Raises:
        InvalidManifestError: The text is not a list, or the list not one of this many chunks; with
            `transformed_size` at first use.
    """

    __slots__ = (
        "_sizes",
        "_stops",
        "_text",
        "_total",
        "original_chunk_size",
        "original_file_size",
    )

    def __init__(
        self,
        original_chunk_size: int,
        original_file_size: int,
        transformed_sizes: Sequence[int] | npt.NDArray[np.integer] | str,
        transformed_size: int | None = None,
    ) -> None:
        _check_size("originalChunkSize", original_chunk_size, least=1)
        _check_size("originalFileSize", original_file_size)
        self.original_chunk_size = original_chunk_size
        self.original_file_size = original_file_size
        self._text = transformed_sizes if isinstance(transformed_sizes, str) else None
        self._sizes: npt.NDArray[np.int32] | None = None
        if transformed_size is not None:
            self._total = transformed_size
        elif isinstance(transformed_sizes, str):
            self._hold(decode_chunk_sizes(transformed_sizes))
        else:
            self._hold(checked_sizes(np.array(transformed_sizes, ndmin=1)))

    def _hold(self, sizes: npt.NDArray[np.int32]) -> None:
        """Keeps sizes of 0 … 2^31−1 in an array that nobody else has."""
        # An empty file is no chunk here, one chunk of no bytes upstream.
        if len(sizes) != self.chunk_count and (self.chunk_count or len(sizes) > 1 or sizes.any()):
            raise InvalidManifestError(
                f"{len(sizes)} transformed chunks where {self.original_file_size} bytes in chunks "
                f"of {self.original_chunk_size} make {self.chunk_count}"
            )
        self._stops = sizes.cumsum(dtype=np.int64)
        sizes.setflags(write=False)
        self._stops.setflags(write=False)
        self._total = int(self._stops[-1]) if len(sizes) else 0
        self._sizes = sizes

    @property
    def transformed_sizes(self) -> npt.NDArray[np.int32]:
        """Stored size of each chunk: int32 array, shape (chunks,), read-only."""
        return self._decoded()[0]

    @property
    def transformed_chunks(self) -> str:
        """Text of the list in the manifest it came from (a long list's zstd frame differs between
        zstd versions), or as this library writes it.
        """
        return encode_chunk_sizes(self.transformed_sizes) if self._text is None else self._text

    @property
    def transformed_size(self) -> int:
        """Sum of all stored chunk sizes, in bytes."""
        return self._total

    def _decoded(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Sizes and stops of the chunks."""
        if self._sizes is None:
            assert self._text is not None
            known = self._total
            self._hold(decode_chunk_sizes(self._text))
            if self._total != known:
                raise InvalidManifestError(f"chunks of {self._total} bytes, not {known} as before")
        assert self._sizes is not None
        return self._sizes, self._stops

    def transformed_stops(self) -> npt.NDArray[np.int64]:
        """See `ChunkIndex.transformed_stops`; read-only."""
        return self._decoded()[1]

    def _transformed_range(self, index: int) -> tuple[int, int]:
        sizes, stops = self._decoded()
        size = int(sizes[index])
        return int(stops[index]) - size, size

    def _index_at_transformed(self, position: int) -> int:
        return int(np.searchsorted(self._decoded()[1], position, side="right"))

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
        if self._text is not None:
            return VariableChunkIndex, (*shape, self._text, self._total)
        return VariableChunkIndex, (*shape, self.transformed_sizes)

    def __repr__(self) -> str:
        return (
            f"VariableChunkIndex({self.original_chunk_size}, {self.original_file_size}, "
            f"<{self.chunk_count} sizes, {self.transformed_size} bytes>)"
        )
