"""Tier and brokers as one log: which segments lie on the leader's branch, and what is left to
brokers.

A segment is used only if all of it that is not below the log start lies on the leader's branch: the
producer snapshot and the transaction index of one that a branch cuts tell another history. Whatever
no such segment holds (the tail, copies under way, holes, dead branches) brokers serve.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kts_source.planning.lineage import (
    BELOW_LOG_START,
    COVERED,
    PartitionLog,
    SegmentRange,
    SkippedSegment,
    cover,
    epoch_ranges,
)
from segment_format.index.checkpoints import EpochEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kts_source.layout.remote_segment import RemoteSegment

NOT_OF_THE_LEADER = "not all of it is on the leader's branch"
NOT_USABLE = "its side files are not usable"


@dataclass(frozen=True, slots=True)
class OffsetSpan:
    """Offsets [start, stop)."""

    start: int
    stop: int


def claimed_epochs(segments: Iterable[RemoteSegment]) -> set[int]:
    """The leader epochs that segments name."""
    return {entry.epoch for segment in segments for entry in segment.leader_epochs}


def union_log(
    segments: Sequence[RemoteSegment],
    log_start: int,
    end: int,
    owned: Mapping[int, tuple[int, int]],
    not_usable: frozenset[str] = frozenset(),
) -> PartitionLog:
    """The log of a partition from its start to its end, with the ranges that the tier serves.

    Args:
        segments: Of this topic id, in any order.
        log_start: First offset a consumer may see.
        end: One past the last.
        owned: The epochs of the leader's branch, at least those that segments claim, with their
            offsets.
        not_usable: Ids of segments that brokers serve for another reason.
    """
    low = log_start
    candidates, skipped = [], []
    for segment in segments:
        if segment.stop_offset <= low:
            skipped.append(SkippedSegment(segment, BELOW_LOG_START))
        elif segment.segment_id in not_usable:
            skipped.append(SkippedSegment(segment, NOT_USABLE))
        elif not _is_owned(segment, low, owned):
            skipped.append(SkippedSegment(segment, NOT_OF_THE_LEADER))
        elif segment.start_offset < end:
            start = max(segment.start_offset, low)
            candidates.append(SegmentRange(segment, start, segment.stop_offset))
    ranges: tuple[SegmentRange, ...] = ()
    if candidates:
        first = min(span.start for span in candidates)
        chosen, _ = cover(candidates, first, max(span.stop for span in candidates))
        ranges = tuple(
            SegmentRange(span.segment, span.start, min(span.stop, end))
            for span in chosen
            if span.start < end
        )
    used = {span.segment.segment_id for span in ranges}
    skipped += [
        SkippedSegment(span.segment, COVERED)
        for span in candidates
        if span.segment.segment_id not in used
    ]
    lineage = tuple(EpochEntry(epoch, span[0]) for epoch, span in sorted(owned.items()))
    return PartitionLog(lineage, low, end, ranges, (), tuple(skipped))


def _is_owned(segment: RemoteSegment, log_start: int, owned: Mapping[int, tuple[int, int]]) -> bool:
    at = max(segment.start_offset, log_start)
    for epoch, low, high in epoch_ranges(segment):
        if high <= at:
            continue
        mine = owned.get(epoch)
        if low > at or mine is None or max(low, at) < mine[0] or high > mine[1]:
            return False
        at = high
    return at >= segment.stop_offset


def runs(ranges: Iterable[SegmentRange]) -> Iterator[tuple[SegmentRange, ...]]:
    """Ranges that follow each other without a gap, together."""
    run: list[SegmentRange] = []
    for span in ranges:
        if run and run[-1].stop != span.start:
            yield tuple(run)
            run = []
        run.append(span)
    if run:
        yield tuple(run)


def between(ranges: Iterable[SegmentRange], start: int, stop: int) -> Iterator[OffsetSpan]:
    """The offsets of [start, stop) that no range holds."""
    at = start
    for span in ranges:
        if span.stop <= at:
            continue
        if span.start >= stop:
            break
        if span.start > at:
            yield OffsetSpan(at, span.start)
        at = span.stop
    if at < stop:
        yield OffsetSpan(at, stop)
