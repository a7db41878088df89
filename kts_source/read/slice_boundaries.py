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
    from segment_format.index.sparse_indexes import OffsetIndex

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
        """Compares the `ENTRY_PREFIX_SIZE` bytes at the boundary with what the index says of them.

        Raises:
            CorruptSegmentError: They are not the start of the batch that the index describes, or
                it begins below `next_offset`.
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

    Raises:
        CorruptSegmentError: The index is not usable, and it was when the plan was made: a store
            may not tell that an object has changed. No slice of these offsets may begin at 0 then.
    """
    index = None
    if not part.is_whole:
        stored = reader.index(part.objects, IndexType.OFFSET)
        index = usable_offset_index(stored, part.segment_start, part.objects.size_in_bytes)
        # Only a usable index makes a plan begin behind 0 for an offset inside of the segment.
        if index is None and part.cut_start > 0 and part.start_offset > part.segment_start:
            raise CorruptSegmentError(
                "the offset index cannot be used, and it could when the plan was made: nothing"
                f" tells where offset {part.start_offset} is; plan again",
                offset=part.start_offset,
            )
    return _boundary(index, part.cut_start, part), _boundary(index, part.cut_stop, part)


def segment_start(part: SegmentSlice) -> Boundary:
    """Where a slice begins that no cut begins."""
    return Boundary(0, None, part.segment_start - 1)


def first_request_stop(part: SegmentSlice, reader: SegmentSource) -> int:
    """How far the first request may read before anybody looks up where the slice ends: at the
    beginning of a segment, unless the slice is that short. 0 elsewhere, and where the request is
    as small in any case with nothing to look up.
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
    if cut == 0:
        return segment_start(part)
    end = Boundary(part.objects.size_in_bytes, None, part.segment_start - 1)
    if index is None:
        return end
    number = int(index.positions.searchsorted(cut, side="left"))
    if number == len(index.positions):
        return end
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

    def first_offset(self, part: SegmentSlice) -> int:
        """First offset of the slice's bytes, once the first ones have passed."""
        if self._start.last_offset is None:
            return part.segment_start
        return int.from_bytes(self._head[:8], "big")

    def stop_offset(self, part: SegmentSlice) -> int:
        """First offset after the slice's bytes, once all have passed."""
        assert self.stop is not None, "the last span of a slice tells its end"
        if self.stop.last_offset is None:
            return part.segment_stop
        return int.from_bytes(self._tail[:8], "big")

    def finish(self, next_offset: int) -> None:
        """To be called when all bytes have passed; `next_offset` is one past their last offset.

        Raises:
            CorruptSegmentError: See `Boundary.check`.
        """
        assert self.stop is not None, "the last span of a slice tells its end"
        self.stop.check(self._tail, next_offset)


def checked_stop(stop: Boundary, size: int) -> int:
    """One past the last byte to read of a segment of `size` bytes to check the boundary, too."""
    prefix = 0 if stop.last_offset is None else ENTRY_PREFIX_SIZE
    return min(stop.position + prefix, size)


def usable_offset_index(data: bytes | None, base_offset: int, size: int) -> OffsetIndex | None:
    """An offset index whose positions may serve as boundaries; `None` when it is empty or
    contradicts itself.

    The answer depends on nothing but the file, so all slices of a segment agree on it.
    """
    from segment_format.index.sparse_indexes import OffsetIndex  # the first bytes are read without

    try:
        index = OffsetIndex.from_bytes(data, base_offset=base_offset) if data else None
    except SegmentFormatError as error:
        log.warning("offset index not usable, reading the segment whole: %s", error)
        return None
    if index is None or len(index.positions) == 0 or int(index.positions[-1]) >= size:
        return None
    return index
