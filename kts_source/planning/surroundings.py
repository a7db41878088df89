"""Records in each slice of a plan which offsets around it the plan reads.

A task compares the transactions of its slices with the log: see `read.slice_transactions`.
"""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from kts_source.read.task import ScanTask, SegmentSlice, SliceSurroundings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kts_source.layout.remote_segment import SegmentObjects
    from kts_source.planning.lineage import SegmentRange
    from kts_source.planning.scan_plan import PartitionPlan

_OTHER_FIELDS: Final = attrgetter(
    *(field.name for field in fields(SegmentSlice) if field.name != "surroundings")
)
"""A plan has a slice per segment, and `dataclasses.replace` takes twice as long."""


def with_surroundings(
    tasks: Iterable[ScanTask], partitions: Iterable[PartitionPlan], *, read_committed: bool
) -> tuple[ScanTask, ...]:
    """Returns tasks whose slices were changed, with new `SegmentSlice.surroundings`.

    Args:
        tasks: All tasks of a plan; the slices of a partition are in the order of the log.
        partitions: The plans of their partitions.
        read_committed: Whether transactions are compared with the log; without it, the tasks are
            returned unchanged.
    """
    tasks = tuple(tasks)
    if not read_committed:
        return tasks
    ranges = {(part.topic, part.partition): part.surviving.ranges for part in partitions}
    slices: dict[tuple[str, int], list[SegmentSlice]] = {}
    for task in tasks:
        for piece in task.slices:
            slices.setdefault((piece.topic, piece.partition), []).append(piece)
    placed = {
        place: iter(_placed(pieces, ranges.get(place, ()))) for place, pieces in slices.items()
    }
    return tuple(
        ScanTask(
            tuple(next(placed[piece.topic, piece.partition]) for piece in task.slices), task.ranges
        )
        for task in tasks
    )


class Neighbors:
    """Finds the surroundings of slices from the segments before them.

    Runs of one partition come in the order of the log. A run is a segment's slices that have no
    batch between them.
    """

    def __init__(self) -> None:
        self._read_to: int | None = None  # end of the previous run if that is the end of its range
        self._before: SegmentRange | None = None
        self._objects: SegmentObjects | None = None  # of `_before`
        self._has_previous = False  # whether the plan reads up to `_before` without a gap

    def around(
        self, span: SegmentRange, objects: SegmentObjects, start: int, stop: int
    ) -> SliceSurroundings:
        """Return the surroundings of the next run.

        Args:
            span: The range of the log that holds the run.
            objects: Its objects, with the producer snapshot.
            start: First offset of the run.
            stop: One past the last offset of the run.
        """
        before = self._before
        follows = self._read_to == span.start == start
        if before is not None and follows:
            before_stop = before.stop
            around = SliceSurroundings(
                span.stop,
                start,
                stop,
                self._objects,
                before.start if self._has_previous else 0,
                before_stop,
                before_stop < before.segment.stop_offset,
            )
        else:
            around = SliceSurroundings(span.stop, start, stop)
        self._read_to = stop if stop == span.stop else None
        if not follows or objects.size_in_bytes:  # an empty segment has no records
            self._before, self._objects, self._has_previous = span, objects, follows
        return around


def _placed(pieces: Sequence[SegmentSlice], ranges: Sequence[SegmentRange]) -> list[SegmentSlice]:
    """Returns the slices of a partition with their surroundings."""
    spans: dict[str, list[SegmentRange]] = {}
    for span in ranges:  # a segment inside of another one cuts that one's range in two
        spans.setdefault(span.segment.segment_id, []).append(span)
    placed: list[SegmentSlice] = []
    neighbors = Neighbors()
    for run in _runs(pieces):
        first, last = run[0], run[-1]
        start = first.start_offset
        span = next(span for span in spans[first.segment_id] if start < span.stop)
        around = neighbors.around(span, first.objects, start, last.stop_offset)
        placed += [SegmentSlice(*(*_OTHER_FIELDS(piece), around)) for piece in run]
    return placed


def _runs(pieces: Iterable[SegmentSlice]) -> Iterator[list[SegmentSlice]]:
    """Groups slices of one segment that have no batch between them."""
    run: list[SegmentSlice] = []
    for piece in pieces:
        if run and not (run[-1].segment_id == piece.segment_id and _adjoin(run[-1], piece)):
            yield run
            run = []
        run.append(piece)
    if run:
        yield run


def _adjoin(piece: SegmentSlice, following: SegmentSlice) -> bool:
    """Returns whether two slices of a segment have no batch between them."""
    offsets = piece.start_offset, piece.stop_offset
    if offsets == (following.start_offset, following.stop_offset):
        return piece.cut_stop == following.cut_start
    return piece.stop_offset == following.start_offset
