"""Leaves out of a plan what no row of a condition can lie in.

Only tasks become smaller: the offsets of each partition, its end and its holes stay what they were.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kts_source.planning.pruning import fingerprint
from kts_source.planning.scan_plan import segment_name
from kts_source.planning.surroundings import with_surroundings
from kts_source.predicate.implied_ranges import first_millisecond, region, specialised
from kts_source.predicate.model import And
from kts_source.read.task import ScanTask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.planning.scan_plan import ScanPlan, SegmentName
    from kts_source.predicate.implied_ranges import Region
    from kts_source.predicate.model import Predicate
    from kts_source.read.task import SegmentSlice


def narrowed(plan: ScanPlan, where: Predicate, whole: Predicate) -> ScanPlan:
    """The plan without the slices and ranges in which no row matches.

    No request is made: offsets, places and the newest timestamp of each segment decide.

    Args:
        plan: Made for the same rows, or for more.
        where: Rows for which it is not true are not wanted.
        whole: The same together with what the plan was made with before.
    """
    segments = {
        segment_name(span.segment): span.segment
        for part in plan.partitions
        for span in part.surviving.ranges
    }
    boxes: dict[tuple[str, int], Region] = {}
    for part in plan.partitions:
        boxes[part.topic, part.partition] = region(specialised(where, part.topic, part.partition))
    tasks = (_narrowed_task(task, boxes, segments) for task in plan.tasks)
    kept = tuple(task for task in tasks if task.slices or task.ranges)
    placed = with_surroundings(kept, plan.partitions)
    return replace(plan, tasks=placed, where=fingerprint(whole))


def conjunction(*terms: Predicate | None) -> Predicate | None:
    """All of the conditions together; `None` where there is none."""
    given = tuple(dict.fromkeys(term for term in terms if term is not None))
    if len(given) < 2:
        return given[0] if given else None
    return And(given)


def _narrowed_task(
    task: ScanTask,
    boxes: Mapping[tuple[str, int], Region],
    segments: Mapping[SegmentName, RemoteSegment],
) -> ScanTask:
    slices = []
    for part in task.slices:
        box = boxes[part.topic, part.partition]
        start = max(part.start_offset, box.first_offset)
        stop = min(part.stop_offset, box.last_offset + 1)
        if start < stop and not box.is_empty and not _all_earlier(part, box, segments):
            slices.append(replace(part, start_offset=start, stop_offset=stop))
    ranges = []
    for piece in task.ranges:
        box = boxes[piece.topic, piece.partition]
        start = max(piece.start_offset, box.first_offset)
        stop = min(piece.stop_offset, box.last_offset + 1)
        if start < stop and not box.is_empty:
            ranges.append(piece.part(start, stop))
    return ScanTask(tuple(slices), tuple(ranges))


def _all_earlier(
    part: SegmentSlice, box: Region, segments: Mapping[SegmentName, RemoteSegment]
) -> bool:
    """Whether each record of the segment is dated before what is wanted."""
    segment = segments.get(segment_name(part))
    return segment is not None and segment.is_dated_before(first_millisecond(box))
