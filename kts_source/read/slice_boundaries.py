"""Where a slice really begins and ends: offset-index entries, checked against the batches that
stand there.

An index that does not fit its log would lose rows without a trace where an offset bound relies on
it, so the first 17 bytes at each boundary must be the start of a batch that the entry describes.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kts_source.errors import CorruptSegmentError
from kts_source.layout.remote_segment import IndexType
from kts_source.read.segment_source import FIRST_REQUEST_BYTES, request_groups
from segment_format.errors import SegmentFormatError
from segment_format.record.framing import ENTRY_PREFIX_SIZE, read_prefix

if TYPE_CHECKING:
    from kts_source.read.segment_source import SegmentSource
    from kts_source.read.task import SegmentSlice
    from segment_format.index.offset_index import OffsetIndex

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Boundary:
    """A position in the original segment where a batch begins, or its end.

    Attributes:
        last_offset: Last offset of what was appended at the position; `None` at the segment's
            start and end.
        after_offset: Every offset at or behind the position is larger.
    """

    position: int
    last_offset: int | None
    after_offset: int

    def check(self, data: bytes, next_offset: int) -> None:
        """Compares the bytes at the boundary with what the index says of them.

        Args:
            data: The `ENTRY_PREFIX_SIZE` bytes at the boundary.
            next_offset: Least offset that the batch there may begin with.

        Raises:
            CorruptSegmentError: They are not the start of the batch that the index describes.
        """
        if self.last_offset is None:
            return
        least = max(self.after_offset + 1, next_offset)
        try:
            fits = least <= read_prefix(data).offset <= self.last_offset
        except SegmentFormatError:
            fits = False
        if not fits:
            raise CorruptSegmentError(
                "the offset index does not fit the log: a batch of offsets in"
                f" [{least}, {self.last_offset}] should begin here",
                offset=self.last_offset,
                position=self.position,
            )


def slice_boundaries(part: SegmentSlice, reader: SegmentSource) -> tuple[Boundary, Boundary]:
    """The boundaries that the slice's cuts stand for.

    Each cut is moved to the first offset-index entry at or beyond it, or to the segment's end.
    Without a usable index all inner cuts move to the end, so the slice that begins at 0 reads the
    segment.
    """
    size = part.objects.size_in_bytes
    index = None
    if not part.is_whole:
        stored = reader.index(part.objects, IndexType.OFFSET)
        index = usable_offset_index(stored, part.segment_start, size)
    return _boundary(index, part.cut_start, part), _boundary(index, part.cut_stop, part)


def segment_start(part: SegmentSlice) -> Boundary:
    """Where a slice begins that no cut begins."""
    return Boundary(0, None, part.segment_start - 1)


def sure_stop(part: SegmentSlice, reader: SegmentSource) -> int:
    """End of the first request's bytes where the slice has them wherever it turns out to end: a
    segment's first slice, unless it is that short. 0 where it is not, or the request would be as
    small in any case, and nothing is to be looked up.
    """
    if part.cut_start != 0:
        return 0
    if reader.reads_parts(part.objects):
        return FIRST_REQUEST_BYTES if part.cut_stop > FIRST_REQUEST_BYTES else 0
    if part.is_whole:
        return 0
    chunks = part.objects.chunk_index.chunks(0, part.cut_stop)
    first = next(request_groups(chunks, True))
    return first[-1].original_stop if len(first) < len(chunks) else 0


def _boundary(index: OffsetIndex | None, cut: int, part: SegmentSlice) -> Boundary:
    size = part.objects.size_in_bytes
    if cut == 0:
        return segment_start(part)
    if cut == size or index is None:
        return Boundary(size, None, part.segment_start - 1)
    number = int(index.positions.searchsorted(cut, side="left"))
    if number == len(index.positions):
        return Boundary(size, None, part.segment_start - 1)
    before = int(index.offsets[number - 1]) if number else part.segment_start - 1
    return Boundary(int(index.positions[number]), int(index.offsets[number]), before)


class BoundaryCheck:
    """Follows the bytes of one slice and compares its boundaries with the index as they pass.

    Attributes:
        stop: Where the slice ends; may be told later than bytes that are surely before it.
    """

    def __init__(self, start: Boundary) -> None:
        self._start = start
        self.stop: Boundary | None = None
        self._position = start.position
        self._head = b""
        self._tail = b""

    def inside(self, window: memoryview) -> memoryview:
        """What of the next bytes belongs to the slice.

        Raises:
            CorruptSegmentError: See `Boundary.check`.
        """
        if len(self._head) < ENTRY_PREFIX_SIZE:
            self._head += bytes(window[: ENTRY_PREFIX_SIZE - len(self._head)])
            if len(self._head) == ENTRY_PREFIX_SIZE:
                self._start.check(self._head, self._start.after_offset + 1)
        size = len(window)
        if self.stop is not None:
            size = max(0, min(size, self.stop.position - self._position))
        self._tail += bytes(window[size:])
        self._position += len(window)
        return window[:size]

    def finish(self, next_offset: int) -> None:
        """To be called when all bytes have passed.

        Args:
            next_offset: One past the last offset of the batches inside.

        Raises:
            CorruptSegmentError: See `Boundary.check`.
        """
        assert self.stop is not None, "the last span of a slice tells its end"
        self.stop.check(self._tail, next_offset)


def peek_stop(stop: Boundary, size: int) -> int:
    """One past the last byte to read so that the boundary at the end can be checked too."""
    return (
        stop.position if stop.last_offset is None else min(stop.position + ENTRY_PREFIX_SIZE, size)
    )


def usable_offset_index(data: bytes | None, base_offset: int, size: int) -> OffsetIndex | None:
    """An offset index whose positions may serve as boundaries; `None` when it is empty or
    contradicts itself.

    The answer depends on nothing but the file, so all slices of a segment agree on it.
    """
    from segment_format.index.offset_index import OffsetIndex  # the first bytes are read without

    try:
        index = OffsetIndex.from_bytes(data, base_offset=base_offset) if data else None
    except SegmentFormatError as error:
        log.warning("offset index not usable, reading the segment whole: %s", error)
        return None
    if index is None or len(index.positions) == 0 or int(index.positions[-1]) >= size:
        return None
    return index
