"""From what was planned and read of a partition to its part of the certificate."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from kts_source.finding.certificate import (
    PartitionCertificate,
    Undecided,
    UnreadRange,
    UnservedObjects,
    digest_of_objects,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from kts_source.finding.read_apart import SearchedTask
    from kts_source.layout.remote_segment import ObjectRef
    from kts_source.planning.scan_plan import PartitionPlan
    from kts_source.read.task import SegmentSlice


def certified_as_pruned(part: PartitionPlan) -> PartitionCertificate:
    """Of a partition that was not searched."""
    left_out = "partitionerPruning: none of the keys belongs to this partition"
    nothing = replace(part, undecided=(), orphans=(), stop=part.start, wanted_stop=part.start)
    found = certified(nothing, (), (), None)
    return replace(found, unserved=(), left_out=left_out)


def certified(
    part: PartitionPlan,
    done: Sequence[SearchedTask],
    ruled_out: Collection[ObjectRef],
    planned: Sequence[SegmentSlice] | None,
) -> PartitionCertificate:
    """Of a partition that was searched.

    Args:
        part: The partition.
        done: Its tasks.
        ruled_out: Logs that filters left out.
        planned: All slices of the plan, whether read or ruled out; `None` where a condition on
            offsets or times has left out some.
    """
    unread = [one for each in done for one in each.search.unread]
    for hole in part.surviving.missing:
        start, stop = max(hole.start, part.start), min(hole.stop, part.wanted_stop)
        if start < stop:
            reason = f"no segment holds these offsets, {hole.between}"
            unread.append(UnreadRange(start, stop, reason, None))
    if planned is not None:
        unread += _not_planned(part, planned, unread)
    undecided = tuple(Undecided(one.producer_id, one.first_offset) for one in part.undecided)
    if part.stop < part.wanted_stop:
        reason = "read_committed ends where a transaction is undecided"
        unread.append(UnreadRange(part.stop, part.wanted_stop, reason, None))
    unserved = [
        UnservedObjects((one.segment.objects.log.key,), one.reason)
        for one in part.surviving.skipped
    ]
    unserved += _served_in_part(part)
    unserved += [UnservedObjects(one.keys, one.reason) for one in part.orphans]
    logs = {piece.objects.log for each in done for piece in each.search.task.slices}
    return PartitionCertificate(
        topic=part.topic,
        topic_id=part.topic_id,
        partition=part.partition,
        start=part.start,
        stop=part.stop,
        unread=tuple(sorted(unread, key=lambda one: (one.start, one.stop))),
        undecided=undecided,
        unserved=tuple(unserved),
        left_out=None,
        segments=len(logs),
        stored_bytes=sum(log.size for log in logs),
        objects_digest=digest_of_objects(logs),
        ruled_out=len(ruled_out),
        ruled_out_digest=digest_of_objects(ruled_out),
        records=sum(each.metrics.records + each.metrics.records_skipped_key for each in done),
        matches=sum(each.search.matches for each in done),
    )


def _not_planned(
    part: PartitionPlan, planned: Sequence[SegmentSlice], unread: Sequence[UnreadRange]
) -> Iterator[UnreadRange]:
    """Offsets that nothing accounts for. There are none, but a mistake in a plan must not become a
    proof.
    """
    at = part.start
    covered = [(one.start_offset, one.stop_offset) for one in planned]
    covered += ((one.start, one.stop) for one in unread)
    for start, stop in sorted([*covered, (part.stop, part.stop)]):
        if at < min(start, part.stop):
            reason = "the plan has neither a segment nor a hole for these offsets"
            yield UnreadRange(at, min(start, part.stop), reason, None)
        at = max(at, stop)


def _served_in_part(part: PartitionPlan) -> Iterator[UnservedObjects]:
    """Segments of which the log has some offsets alone; those that are named as skipped are not
    named again.
    """
    named = {one.segment.objects.log.key for one in part.surviving.skipped}
    served: dict[str, list[tuple[int, int]]] = defaultdict(list)
    sizes: dict[str, int] = {}
    for span in part.surviving.ranges:
        key = span.segment.objects.log.key
        served[key].append((span.start, span.stop))
        sizes[key] = span.segment.stop_offset - span.segment.start_offset
    for key, ranges in served.items():
        if key not in named and sum(stop - start for start, stop in ranges) < sizes[key]:
            text = ", ".join(f"[{start}, {stop})" for start, stop in ranges)
            yield UnservedObjects((key,), f"of its offsets, those of the log are {text} alone")
