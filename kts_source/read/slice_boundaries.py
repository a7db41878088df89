"""Finds the byte positions where a slice begins and ends, and checks that the offset index matches
the log there.

A wrong index would make readers lose rows without an error. So the first 17 bytes at each boundary
must be the start of the batch that the index entry describes.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kts_source.errors import CorruptSegmentError, TieredKafkaError
from kts_source.layout.remote_segment import IndexType
from kts_source.read.segment_source import FIRST_REQUEST_BYTES, SegmentSpan, request_groups
from kts_source.store.joined_store import mirror_of
from segment_format.errors import CorruptRecordError, SegmentFormatError
from segment_format.record.batch_header import MAGIC_2
from segment_format.record.framing import ENTRY_PREFIX_SIZE, read_prefix

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kts_source.read.segment_source import SegmentSource
    from kts_source.read.task import SegmentSlice
    from segment_format.index.sparse_indexes import OffsetIndex
    from segment_format.record.framing import Entry

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Boundary:
    """A byte position in the original segment where a batch begins, or the segment's end.

    Attributes:
        last_offset: Offset in the index entry. It is the last offset of the batches that the broker
            appended at the position in one step. `None` at the segment's start and end, which have
            no entry.
        after_offset: All offsets at or after the position are larger than this offset.
        after_position: Position of the previous index entry, or 0 if there is none.
    """

    position: int
    last_offset: int | None
    after_offset: int
    after_position: int = 0

    def check(self, data: bytes, next_offset: int) -> None:
        """Checks that `data`, the first `ENTRY_PREFIX_SIZE` bytes at the boundary, matches the
        index entry.

        Raises:
            CorruptSegmentError: The bytes are not the start of the batch that the index entry
                describes, or the batch begins below `next_offset`.
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
                "the offset index does not match the log: according to the index, a batch begins at"
                f" this position, and its first offset is from {least} to {self.last_offset}",
                offset=self.last_offset,
                position=self.position,
            )


@dataclass(frozen=True, slots=True)
class SliceSpan(SegmentSpan):
    """The bytes of a slice, or of a part of a slice. If the slice's end must be checked, the span
    also has the first bytes after the slice.

    Attributes:
        first: Start of the slice.
        last: End of the slice; `None` if it was not looked up yet. Then the next span has the rest
            of the slice.
    """

    task_slice: SegmentSlice
    first: Boundary
    last: Boundary | None

    @classmethod
    def of(
        cls,
        task_slice: SegmentSlice,
        start: int,
        stop: int,
        first: Boundary,
        last: Boundary | None = None,
    ) -> SliceSpan:
        """Returns the span of bytes [start, stop) in the slice's original segment."""
        location = task_slice.topic, task_slice.partition, task_slice.start_offset
        return cls(*location, task_slice.objects, start, stop, task_slice, first, last)


def slice_spans(
    slices: Iterable[SegmentSlice], source: SegmentSource, *, early: bool
) -> Iterator[SliceSpan]:
    """Yields the spans to read: one span for each slice that has bytes.

    If `early` is True, the first slice may have two spans. The first span ends at
    `first_request_stop`, and is requested before the offset index is read. Its rows are often
    sufficient for a LIMIT.
    """
    for task_slice in slices:
        start = segment_start(task_slice)
        early_stop = first_request_stop(task_slice, source) if early else 0
        early = False
        if early_stop:
            yield SliceSpan.of(task_slice, 0, early_stop, start)
        with errors_in_span(SliceSpan.of(task_slice, 0, 0, start), source):
            first, last = slice_boundaries(task_slice, source)
        if first.position < last.position:
            stop = stop_of_end_check(last, task_slice.objects.size_in_bytes)
            yield SliceSpan.of(task_slice, max(first.position, early_stop), stop, first, last)


@contextmanager
def errors_in_span(span: SegmentSpan, source: SegmentSource) -> Iterator[None]:
    """Adds the span and its topic, partition, offset and object to errors that the `with` block
    raises. Raises a `SegmentFormatError` as a `CorruptSegmentError` with this location.
    """
    try:
        yield
    except TieredKafkaError as error:
        raise source.error_in_span(error, span) from error.__cause__
    except SegmentFormatError as error:
        from segment_format.transaction_check import ContradictedIntervalsError

        advice = ""
        if isinstance(error, CorruptRecordError) and not isinstance(
            error, ContradictedIntervalsError
        ):
            mirror = " or set fallbackPath" if mirror_of(source.store) is None else ""
            advice = f". Restore the object{mirror}; `kts verify` finds all damaged batches"
        corrupt = CorruptSegmentError(error.message, offset=error.offset, position=error.position)
        raise source.error_in_span(corrupt.advising(advice), span) from error


def slice_boundaries(task_slice: SegmentSlice, source: SegmentSource) -> tuple[Boundary, Boundary]:
    """Returns the start and the end of a slice.

    Moves each cut of the slice to the position of the first offset-index entry at or after the cut;
    without such an entry, to the segment's end. Without a usable index, every cut except 0 moves to
    the segment's end, so the first slice reads the whole segment.

    Raises:
        CorruptSegmentError: The index was usable when the plan was made, but is not usable now. The
            object was changed, and the store did not report the change. Without this error, some
            offsets might be in no slice.
    """
    index = None
    if not task_slice.is_whole:
        stored = source.index(task_slice.objects, IndexType.OFFSET)
        size = task_slice.objects.size_in_bytes
        index = usable_offset_index(stored, task_slice.segment_start, size)
        # A plan has such a slice only if the index was usable.
        is_inside = task_slice.start_offset > task_slice.segment_start
        if index is None and task_slice.cut_start > 0 and is_inside:
            raise CorruptSegmentError(
                "the offset index is invalid, but was valid when the plan was made, so offset"
                f" {task_slice.start_offset} cannot be located; plan again",
                offset=task_slice.start_offset,
            )
    return (
        _boundary(index, task_slice.cut_start, task_slice),
        _boundary(index, task_slice.cut_stop, task_slice),
    )


def segment_start(task_slice: SegmentSlice) -> Boundary:
    """Returns the start of the slice's segment as a boundary."""
    return Boundary(0, None, task_slice.segment_start - 1)


def first_request_stop(task_slice: SegmentSlice, source: SegmentSource) -> int:
    """Returns the end of the bytes that can be requested before the slice's end is looked up.

    Returns 0 if no such request is useful:

    * The slice does not begin at the segment's start.
    * One small request reads the whole slice.
    * The slice is a whole segment that must be read in complete chunks. Then its first request is
      small anyway, and no end is looked up.
    """
    if task_slice.cut_start != 0:
        return 0
    if source.reads_parts(task_slice.objects):
        return FIRST_REQUEST_BYTES if task_slice.cut_stop > FIRST_REQUEST_BYTES else 0
    if task_slice.is_whole:
        return 0
    chunks = task_slice.objects.chunk_index.chunks(0, task_slice.cut_stop)
    first = next(request_groups(chunks, True))
    return first[-1].original_stop if len(first) < len(chunks) else 0


def _boundary(index: OffsetIndex | None, cut: int, task_slice: SegmentSlice) -> Boundary:
    if cut == 0:
        return segment_start(task_slice)
    end = Boundary(task_slice.objects.size_in_bytes, None, task_slice.segment_start - 1)
    if index is None:
        return end
    number = int(index.positions.searchsorted(cut, side="left"))
    if number == len(index.positions):
        return end
    before, position = task_slice.segment_start - 1, 0
    if number:
        before, position = int(index.offsets[number - 1]), int(index.positions[number - 1])
    return Boundary(int(index.positions[number]), int(index.offsets[number]), before, position)


class BoundaryCheck:
    """Checks the bytes at the start and the end of one slice while the slice is read.

    Attributes:
        stop: End of the slice. It must be set before `slice_bytes` receives the window that
            contains the end.
    """

    def __init__(self, start: Boundary) -> None:
        self._start = start
        self.stop: Boundary | None = None
        self._position = start.position
        self._head = b""
        self._tail = b""

    def slice_bytes(self, window: memoryview) -> memoryview:
        """Returns the bytes of the next window that belong to the slice. Compares the first bytes
        of the slice with the index entry.

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

    def first_offset(self, task_slice: SegmentSlice) -> int:
        """Returns the base offset of the first batch in the slice. Call it after the first
        window.
        """
        if self._start.last_offset is None:
            return task_slice.segment_start
        return int.from_bytes(self._head[:8], "big")

    def first_entry(self) -> Entry:
        """Returns the first entry of the slice. Call it after the first window."""
        return read_prefix(self._head, at=self._start.position)

    def stop_offset(self, task_slice: SegmentSlice) -> int:
        """Returns the base offset of the first batch after the slice; at the segment's end, one
        past the segment's last offset. Call it after the last window.
        """
        assert self.stop is not None, "the last span of a slice has its end"
        if self.stop.last_offset is None:
            return task_slice.segment_stop
        return int.from_bytes(self._tail[:8], "big")

    def finish(self, next_offset: int) -> Entry | None:
        """Checks the bytes at the end of the slice. `next_offset` is one past the last offset that
        was read.

        Returns:
            The entry after the slice if it has magic 0 or 1. Its prefix states only its last
            offset, so the caller must decode the entry and check its first offset. `None` if the
            entry has magic 2, or if the slice ends at the segment's end.

        Raises:
            CorruptSegmentError: See `Boundary.check`.
        """
        assert self.stop is not None, "the last span of a slice has its end"
        self.stop.check(self._tail, next_offset)
        if self.stop.last_offset is None:
            return None
        entry = read_prefix(self._tail, at=self.stop.position)
        return None if entry.magic == MAGIC_2 else entry


def stop_of_end_check(stop: Boundary, size: int) -> int:
    """Returns the position up to which a segment of `size` bytes must be read, so that the end of a
    slice can be checked.
    """
    prefix = 0 if stop.last_offset is None else ENTRY_PREFIX_SIZE
    return min(stop.position + prefix, size)


def usable_offset_index(data: bytes | None, base_offset: int, size: int) -> OffsetIndex | None:
    """Parses an offset index. Returns `None` if it is empty, contradicts itself, or has a position
    outside the segment of `size` bytes.

    The result is the same for all slices of a segment, so adjacent slices have a common boundary.
    """
    from segment_format.index.sparse_indexes import OffsetIndex  # the first request needs no index

    try:
        index = OffsetIndex.from_bytes(data, base_offset=base_offset) if data else None
    except SegmentFormatError as error:
        log.warning("the offset index is invalid, so the whole segment is read: %s", error)
        return None
    if index is None or len(index.positions) == 0 or int(index.positions[-1]) >= size:
        return None
    return index
