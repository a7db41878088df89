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
    from collections.abc import Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.planning.scan_plan import ScanPlan, SegmentName
    from kts_source.predicate.implied_ranges import Region
    from kts_source.predicate.model import Predicate


def narrowed(plan: ScanPlan, where: Predicate, whole: Predicate) -> ScanPlan:
    """The plan without the slices and ranges in which no row matches.

    No request is made: offsets, places and the newest timestamp of each segment decide. A timestamp
    that is out of order among its neighbors may be wrong, so that segment is read.

    Args:
        plan: Made for the same rows, or for more.
        where: Rows for which it is not true are not wanted.
        whole: The same together with what the plan was made with before.
    """
    boxes: dict[tuple[str, int], Region] = {}
    earlier: set[SegmentName] = set()
    for part in plan.partitions:
        box = region(specialised(where, part.topic, part.partition))
        boxes[part.topic, part.partition] = box
        segments = [span.segment for span in part.surviving.ranges]
        earlier.update(map(segment_name, _all_earlier(segments, first_millisecond(box))))
    tasks = (_narrowed_task(task, boxes, earlier) for task in plan.tasks)
    kept = tuple(task for task in tasks if task.slices or task.ranges)
    placed = with_surroundings(kept, plan.partitions, read_committed=plan.read_committed)
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
    earlier: AbstractSet[SegmentName],
) -> ScanTask:
    slices = []
    for part in task.slices:
        box = boxes[part.topic, part.partition]
        start = max(part.start_offset, box.first_offset)
        stop = min(part.stop_offset, box.last_offset + 1)
        if start < stop and not box.is_empty and segment_name(part) not in earlier:
            slices.append(replace(part, start_offset=start, stop_offset=stop))
    ranges = []
    for piece in task.ranges:
        box = boxes[piece.topic, piece.partition]
        start = max(piece.start_offset, box.first_offset)
        stop = min(piece.stop_offset, box.last_offset + 1)
        if start < stop and not box.is_empty:
            ranges.append(piece.part(start, stop))
    return ScanTask(tuple(slices), tuple(ranges))


def _all_earlier(segments: Sequence[RemoteSegment], timestamp_ms: int) -> Iterator[RemoteSegment]:
    """Yields the segments of a partition of which each record is dated before a timestamp."""
    is_earlier = [segment.is_dated_before(timestamp_ms) for segment in segments]
    for at, segment in enumerate(segments):
        if not is_earlier[at]:
            continue
        is_last = at + 1 == len(segments) or not is_earlier[at + 1]
        if is_last and at:
            before = segments[at - 1].max_timestamp_ms
            if not is_earlier[at - 1] or before > segment.max_timestamp_ms:
                continue  # a changed digit of its manifest looks like this
        yield segment
