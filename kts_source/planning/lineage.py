"""Chooses exactly one segment or other source to serve each offset of a partition.

Segments overlap after leader changes and repeated uploads. Some segments belong to branches of the
log that an unclean leader election abandoned. The leader-epoch checkpoint of the newest segment is
the lineage: the leader epochs of the log and the first offset of each. An epoch *owns* its offsets:
from its first offset up to the first offset of the next epoch. The first offset of the lineage is
the log start, which retention and DeleteRecords raise (`LeaderEpochFileCache.truncateFromStart`).
Each epoch has only one leader, so overlapping segments of the lineage have equal batches. If
several segments have an offset, it is read from the segment that begins last.

`partition_log` builds the log from a tier alone. `union_log` builds the log from a tier and its
brokers, or from a tier and the brokers' disks. `union_log` uses a segment only if all offsets of
the segment above the log start belong to the surviving branch. Otherwise, the producer snapshot and
the transaction index of the segment would describe transactions of another branch. All other
offsets are read from the brokers or disks: the tail of the log, copies in progress, and holes in
the tier.

Source: KIP-405, `RemoteLogMetadataCache`, `RemoteLogManager.isRemoteSegmentWithinLeaderEpochs`.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from segment_format.index.checkpoints import EpochEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kts_source.layout.remote_segment import RemoteSegment

MAX_OFFSET: Final = (1 << 63) - 1

BELOW_LOG_START: Final = "below the log start"
COVERED: Final = "its offsets are read from another segment"
DEAD_BRANCH: Final = "not of the surviving lineage"
NOT_OF_THE_LEADER: Final = "some of its offsets are not on the leader's branch"
NOT_USABLE: Final = "its side files are not usable"


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """Offsets [start, stop) to read from `segment`."""

    segment: RemoteSegment
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class OffsetSpan:
    """Offsets [start, stop)."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class SkippedSegment:
    """A segment that is not read. If `reason` names offsets, only these offsets of the segment are
    not read.
    """

    segment: RemoteSegment
    reason: str


@dataclass(frozen=True, slots=True)
class Hole:
    """Offsets [start, stop) that no segment has.

    Attributes:
        before: The segment below the hole; `None` if the hole begins at the log start.
        after: The segment above the hole, or a segment in the hole that lost its objects. If there
            is neither, because the log on disks ends with the hole, this is the segment below.
    """

    start: int
    stop: int
    before: RemoteSegment | None
    after: RemoteSegment

    @property
    def between(self) -> str:
        """Text for an error message that names the objects before and after the hole."""
        before = self.before.objects.log.key if self.before else "the log start"
        return f"between {before} and {self.after.objects.log.key}"


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """The log of one partition, without branches that a leader election abandoned.

    Attributes:
        lineage: The leader epochs and their first offsets, ascending.
        log_start: First offset that a consumer may see.
        stop: One past the last offset of the log.
        ranges: Offsets that segments serve, in ascending order and without overlap.
        holes: Offsets that had records but are in no segment, ascending. All are above `log_start`.
        unverifiable: Gaps after segments whose exact end is unknown, so that the gaps may never
            have had records.
        end_timestamp_ms: Newest timestamp of the segments at the end of the log. Set if `ranges`
            may lack these segments; otherwise, and if the timestamp is unknown, −1.
    """

    lineage: tuple[EpochEntry, ...]
    log_start: int
    stop: int
    ranges: tuple[SegmentRange, ...]
    holes: tuple[Hole, ...]
    skipped: tuple[SkippedSegment, ...]
    unverifiable: tuple[Hole, ...] = ()
    end_timestamp_ms: int = -1

    @property
    def newest_ms(self) -> int | None:
        """Newest known timestamp of the segments in ms; `None` if no timestamp is known."""
        timestamps = (span.segment.max_timestamp_ms for span in self.ranges)
        newest = max(self.end_timestamp_ms, max(timestamps, default=-1))
        return newest if newest >= 0 else None

    @property
    def missing(self) -> tuple[Hole, ...]:
        """All holes and unverifiable gaps, ascending by offset."""
        return tuple(sorted((*self.holes, *self.unverifiable), key=lambda hole: hole.start))


def last_epoch(segment: RemoteSegment) -> int:
    """Returns the newest leader epoch in a segment; −1 if it has no leader epochs."""
    return segment.leader_epochs[-1].epoch if segment.leader_epochs else -1


def epoch_at(entries: Sequence[EpochEntry], offset: int) -> int:
    """Returns the epoch that owns an offset; −1 if the offset is below the first entry."""
    number = bisect_right(entries, offset, key=lambda entry: entry.start_offset)
    return entries[number - 1].epoch if number else -1


def newest_segment(segments: Iterable[RemoteSegment]) -> RemoteSegment:
    """Returns the segment with the newest leader-epoch checkpoint: the segment with the highest
    leader epoch. If several have it, returns the one with the highest end offset.
    """
    return max(
        segments,
        key=lambda segment: (
            last_epoch(segment),
            segment.end_offset,
            segment.event_timestamp_ms or -1,
            segment.segment_id,
        ),
    )


def with_unknown_epoch(
    damaged: Iterable[RemoteSegment], newest: int, first_whole: int | None
) -> list[RemoteSegment]:
    """Returns the damaged segments that have an unknown leader epoch, or a newer epoch than the
    lineage. Because of them, it is uncertain which segments belong to the surviving branch.

    Args:
        damaged: Segments that lost objects.
        newest: Last epoch of the newest segment that has a checkpoint; −1 if no segment has a
            checkpoint.
        first_whole: First offset of the first complete segment; `None` if there is no complete
            segment or no lineage. A segment with an unknown epoch is returned only if it ends above
            this offset.
    """
    return [
        segment
        for segment in damaged
        if last_epoch(segment) > newest
        or (
            first_whole is not None
            and segment.stop_offset > first_whole
            and not segment.leader_epochs
        )
    ]


def partition_log(
    segments: Sequence[RemoteSegment],
    lineage: Sequence[EpochEntry],
    damaged: Sequence[RemoteSegment] = (),
) -> PartitionLog:
    """Builds the log of one partition and topic id from the segments of a tier.

    Args:
        segments: Complete segments, in any order. Must not be empty if `damaged` is empty.
        lineage: Entries of the newest segment's leader-epoch checkpoint, ascending.
        damaged: Segments that lost objects. They serve no offsets, but their epochs extend the
            lineage, and offsets that only they contained are a hole. Damaged segments below all
            complete segments are not holes, because retention is deleting them.
    """
    checkpoint_start = lineage[0].start_offset if lineage else 0
    lineage = with_epochs(lineage, damaged)
    usable = {id(segment): usable_range(segment, lineage) for segment in segments}
    candidates = [span for span in usable.values() if span is not None]
    spans = (usable_range(segment, lineage) for segment in damaged)
    lost = [span for span in spans if span is not None and span.stop > checkpoint_start]
    if candidates:
        stop = max(span.stop for span in candidates)
        # Include segments below the log start, because they prove that the tier had these offsets.
        # So offsets that are missing between the log start and the first segment are a hole.
        expired = (s.start_offset for s in segments if s.stop_offset <= checkpoint_start)
        first_tiered = min([*(span.start for span in candidates), *expired])
        log_start = min(max(first_tiered, checkpoint_start), stop)
    else:
        first_lost = min((span.start for span in lost), default=checkpoint_start)
        log_start = stop = max(first_lost, checkpoint_start)
    ranges, missing = cover(candidates, log_start, stop)
    # Ends of ranges whose segment may have further offsets without records.
    inexact_ends = {
        span.stop
        for span in ranges
        if span.stop == span.segment.stop_offset and not span.segment.end_is_exact
    }
    for hole in missing:  # a lost segment proves that the offsets existed
        if any(span.start < hole.stop and span.stop > hole.start for span in lost):
            inexact_ends.discard(hole.start)
    holes = [hole for hole in missing if hole.start not in inexact_ends]
    if above := [span for span in lost if span.stop > stop]:
        before = ranges[-1].segment if ranges else None
        after = min(above, key=_precedence).segment
        holes.append(Hole(stop, max(span.stop for span in above), before, after))
    used = {id(chosen.segment) for chosen in ranges}
    skipped = tuple(
        SkippedSegment(segment, _reason(segment, usable[id(segment)], log_start, checkpoint_start))
        for segment in segments
        if id(segment) not in used
    )
    return PartitionLog(
        tuple(lineage),
        log_start,
        max([stop, *(span.stop for span in lost)]),
        ranges,
        tuple(holes),
        (*_below_log_start(ranges, log_start), *skipped),
        tuple(hole for hole in missing if hole.start in inexact_ends),
    )


def union_log(
    segments: Iterable[RemoteSegment],
    log_start: int,
    end: int,
    owned: Mapping[int, tuple[int, int]],
    not_usable: frozenset[str] = frozenset(),
) -> PartitionLog:
    """Builds the log of a partition from a tier and from brokers or disks, which serve all offsets
    that the tier lacks.

    Args:
        segments: The segments of this topic id in the tier, in any order.
        log_start: First offset that a consumer may see.
        end: One past the last offset of the log.
        owned: For each leader epoch in the segments of the surviving branch, the offsets [start,
            stop) that it owns on this branch.
        not_usable: Ids of segments whose offsets the brokers or disks must serve.
    """
    candidates, skipped = [], []
    for segment in segments:
        if segment.stop_offset <= log_start:
            skipped.append(SkippedSegment(segment, BELOW_LOG_START))
        elif segment.segment_id in not_usable:
            skipped.append(SkippedSegment(segment, NOT_USABLE))
        elif not _is_on_branch(segment, log_start, owned):
            skipped.append(SkippedSegment(segment, NOT_OF_THE_LEADER))
        elif segment.start_offset < end:
            start = max(segment.start_offset, log_start)
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
    return PartitionLog(lineage, log_start, end, ranges, (), tuple(skipped))


def _is_on_branch(
    segment: RemoteSegment, log_start: int, owned: Mapping[int, tuple[int, int]]
) -> bool:
    position = max(segment.start_offset, log_start)
    for epoch, low, high in epoch_ranges(segment):
        if high <= position:
            continue
        branch = owned.get(epoch)
        if low > position or branch is None:
            return False
        if max(low, position) < branch[0] or high > branch[1]:
            return False
        position = high
    return position >= segment.stop_offset


def runs(ranges: Iterable[SegmentRange]) -> Iterator[tuple[SegmentRange, ...]]:
    """Groups adjacent ranges. A new group begins with each range that does not start where the
    range before it ends.
    """
    run: list[SegmentRange] = []
    for span in ranges:
        if run and run[-1].stop != span.start:
            yield tuple(run)
            run = []
        run.append(span)
    if run:
        yield tuple(run)


def between(
    ranges: Iterable[SegmentRange | OffsetSpan], start: int, stop: int
) -> Iterator[OffsetSpan]:
    """Yields the parts of [start, stop) that are in none of the ascending ranges."""
    position = start
    for span in ranges:
        if span.stop <= position:
            continue
        if span.start >= stop:
            break
        if span.start > position:
            yield OffsetSpan(position, span.start)
        position = span.stop
    if position < stop:
        yield OffsetSpan(position, stop)


def with_epochs(
    lineage: Sequence[EpochEntry], damaged: Iterable[RemoteSegment]
) -> Sequence[EpochEntry]:
    """Returns the lineage, extended by epochs that occur only in damaged segments. An added epoch
    begins at its first offset in the damaged segments, and the epoch before it ends there, because
    the log of one leader ends where the log of the next leader begins.
    """
    newest = lineage[-1].epoch if lineage else -1
    first_offsets: dict[int, int] = {}
    for segment in damaged:
        for epoch, start, _ in epoch_ranges(segment):
            if epoch > newest:
                first_offsets[epoch] = min(start, first_offsets.get(epoch, start))
    for epoch, start in sorted(first_offsets.items()):
        kept = [entry for entry in lineage if entry.start_offset < start]
        lineage = [*kept, EpochEntry(epoch, start)]
    return lineage


def joined_lineage(older: Sequence[EpochEntry], newer: Sequence[EpochEntry]) -> list[EpochEntry]:
    """Returns lineage `newer`, preceded by the epochs of `older` that `newer` lost when the log
    start moved. Both are checkpoints of one log. The first entry of `newer` may have the log start
    instead of the first offset of its epoch.
    """
    first = newer[0]
    before = [entry for entry in older if entry.start_offset < first.start_offset]
    same = [entry for entry in before if entry.epoch == first.epoch]
    return [
        *(entry for entry in before if entry.epoch < first.epoch),
        *(same or [first]),
        *newer[1:],
    ]


def usable_range(segment: RemoteSegment, lineage: Sequence[EpochEntry]) -> SegmentRange | None:
    """Returns the offsets of a segment that belong to the lineage: from the first such offset up to
    the next offset that belongs to another branch. Returns `None` if the segment has no offset of
    the lineage.

    Offsets with epochs older than the lineage do not end the range. They are below the log start,
    where the checkpoint no longer has entries, and the caller excludes them.
    """
    if not lineage or not segment.leader_epochs:
        return SegmentRange(segment, segment.start_offset, segment.stop_offset)
    start = stop = None
    for epoch, epoch_start, epoch_stop in epoch_ranges(segment):
        owned = _owned(epoch, lineage)
        if owned is None:
            if epoch < lineage[0].epoch:
                continue
            break
        low, high = max(epoch_start, owned[0]), min(epoch_stop, owned[1])
        if low >= high:
            if epoch_start >= owned[1]:
                break
            continue
        if stop is not None and low != stop:
            break
        start = low if start is None else start
        stop = high
        if high < epoch_stop:
            break
    if start is None or stop is None:
        return None
    return SegmentRange(segment, start, stop)


def owned_offsets(lineage: Sequence[EpochEntry]) -> dict[int, tuple[int, int]]:
    """Returns the offsets [start, stop) that each epoch of a lineage owns."""
    stops = [*(entry.start_offset for entry in lineage[1:]), MAX_OFFSET]
    return {
        entry.epoch: (entry.start_offset, stop) for entry, stop in zip(lineage, stops, strict=False)
    }


def _owned(epoch: int, lineage: Sequence[EpochEntry]) -> tuple[int, int] | None:
    for number, entry in enumerate(lineage):
        if entry.epoch == epoch:
            after = lineage[number + 1].start_offset if number + 1 < len(lineage) else MAX_OFFSET
            return entry.start_offset, after
    return None


def epoch_ranges(segment: RemoteSegment) -> Iterator[tuple[int, int, int]]:
    """Yields each leader epoch of a segment, with the start and the end (exclusive) of its offsets
    in the segment.
    """
    entries, start, stop = segment.leader_epochs, segment.start_offset, segment.stop_offset
    for number, entry in enumerate(entries, 1):
        low = max(entry.start_offset, start)
        high = min(entries[number].start_offset, stop) if number < len(entries) else stop
        if low < high:
            yield entry.epoch, low, high


def cover(
    candidates: Iterable[SegmentRange], log_start: int, stop: int
) -> tuple[tuple[SegmentRange, ...], tuple[Hole, ...]]:
    """Chooses a segment for every offset of [log_start, stop). If several candidates have an
    offset, uses the candidate with the highest start offset, as a broker does (floor lookup).

    So only segments that begin at or below an offset affect the choice for it, and a plan of a few
    offsets needs no later segments.

    Returns:
        The chosen ranges, and the holes, both ascending.
    """
    # `waiting` and `holding` are stacks. If a segment was uploaded repeatedly, the upload with the
    # smallest segment id is used.
    by_id = sorted(candidates, key=lambda span: span.segment.segment_id, reverse=True)
    waiting = sorted({_precedence(span): span for span in by_id}.values(), key=_precedence)
    waiting.reverse()
    holding: list[SegmentRange] = []
    ranges: list[SegmentRange] = []
    holes: list[Hole] = []
    position = log_start
    while position < stop:
        while waiting and waiting[-1].start <= position:
            holding.append(waiting.pop())
        while holding and holding[-1].stop <= position:
            holding.pop()
        following = min(waiting[-1].start, stop) if waiting else stop
        if not holding:
            before = ranges[-1].segment if ranges else None
            holes.append(Hole(position, following, before, waiting[-1].segment))
            position = following
            continue
        best = holding[-1]
        end = min(best.stop, following) if following < stop else best.stop
        is_whole = (best.start, best.stop) == (position, end)
        ranges.append(best if is_whole else SegmentRange(best.segment, position, end))
        position = end
    return tuple(ranges), tuple(holes)


def _precedence(span: SegmentRange) -> tuple[int, int, int]:
    return span.start, span.segment.start_offset, span.stop


def _below_log_start(ranges: Sequence[SegmentRange], log_start: int) -> Iterator[SkippedSegment]:
    """Yields the segment of the first range if it has offsets below the start of its first leader
    epoch.

    A broker does not serve these offsets from the tier: DeleteRecords raised the log start above
    them, or their batches have message format 0 or 1, which has no leader epochs.
    """
    segment = ranges[0].segment if ranges else None
    if segment is not None and segment.start_offset < log_start == ranges[0].start:
        yield SkippedSegment(
            segment,
            f"offsets [{segment.start_offset}, {log_start}) are below the first leader epoch:"
            " deleted, or written in a message format without leader epochs",
        )


def _reason(
    segment: RemoteSegment, usable: SegmentRange | None, log_start: int, checkpoint_start: int
) -> str:
    # `log_start` may be higher than the start of the checkpoint, because the tier begins higher. It
    # applies only to segments of the lineage; for other segments, use the start of the checkpoint.
    if segment.stop_offset <= (checkpoint_start if usable is None else log_start):
        return BELOW_LOG_START
    return DEAD_BRANCH if usable is None else COVERED
