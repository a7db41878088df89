"""Which segment serves which offset: the surviving log of one partition, each offset once.

Segments overlap after leader changes and retried uploads, and belong to dead branches after
unclean elections. The leader-epoch checkpoint of the newest segment is the lineage: it says which
epoch owns which offsets, and its first entry carries the log start that retention and
DeleteRecords moved (`LeaderEpochFileCache.truncateFromStart`). Within one epoch there is one
leader, so two segments that fit the lineage hold the same batches where they overlap; of those
that hold an offset the one that begins last serves it. Source:
KIP-405, `RemoteLogMetadataCache`, `RemoteLogManager.isRemoteSegmentWithinLeaderEpochs`.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from segment_format.index.checkpoints import EpochEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kts_source.layout.remote_segment import RemoteSegment

MAX_OFFSET: Final = (1 << 63) - 1

BELOW_LOG_START: Final = "below the log start"
COVERED: Final = "its offsets are read from another segment"
DEAD_BRANCH: Final = "not of the surviving lineage"


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """Offsets [start, stop) that are read from `segment`."""

    segment: RemoteSegment
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class SkippedSegment:
    """A segment of which all, or the offsets that the reason names, is not read, and why."""

    segment: RemoteSegment
    reason: str


@dataclass(frozen=True, slots=True)
class Hole:
    """Offsets [start, stop) that no segment covers, and the segments on both sides.

    Attributes:
        before: `None` when the hole begins at the log start.
        after: Where the log ends in the hole, the first of the lost segments.
    """

    start: int
    stop: int
    before: RemoteSegment | None
    after: RemoteSegment

    @property
    def between(self) -> str:
        """Its neighbours, for a text."""
        before = self.before.objects.log.key if self.before else "the log start"
        return f"between {before} and {self.after.objects.log.key}"


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """The surviving log of one partition, as far as it is tiered.

    Attributes:
        lineage: The checkpoint entries of the newest segment, ascending.
        log_start: First offset a consumer may see.
        stop: One past the last tiered offset.
        ranges: In offset order, without overlap.
        holes: In offset order; none lies below `log_start`.
        unverifiable: Likewise, but behind segments whose end the tier does not tell exactly: there
            may have been nothing.
    """

    lineage: tuple[EpochEntry, ...]
    log_start: int
    stop: int
    ranges: tuple[SegmentRange, ...]
    holes: tuple[Hole, ...]
    skipped: tuple[SkippedSegment, ...]
    unverifiable: tuple[Hole, ...] = ()

    @property
    def missing(self) -> tuple[Hole, ...]:
        """All offsets that no segment holds, in order: a gap that may be none is a hole until the
        user says otherwise.
        """
        return tuple(sorted((*self.holes, *self.unverifiable), key=lambda hole: hole.start))


def last_epoch(segment: RemoteSegment) -> int:
    """The newest leader epoch in a segment; −1 where it tells none."""
    return segment.leader_epochs[-1].epoch if segment.leader_epochs else -1


def epoch_at(entries: Sequence[EpochEntry], offset: int) -> int:
    """The epoch that owns an offset; −1 below the first entry."""
    number = bisect_right(entries, offset, key=lambda entry: entry.start_offset)
    return entries[number - 1].epoch if number else -1


def newest_segment(segments: Iterable[RemoteSegment]) -> RemoteSegment:
    """The segment whose checkpoint is the lineage: a higher epoch wins over a higher offset."""
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
    """Damaged segments of a newer epoch than all that tell of the lineage, or that do not tell
    their own: who knows which segments live.

    Args:
        damaged: See `partition_log`.
        newest: The last epoch of the segment whose checkpoint is the lineage; −1 where none is.
        first_whole: First offset of the first whole segment; `None` where none is, or where there
            is no lineage.
    """
    return [
        one
        for one in damaged
        if last_epoch(one) > newest
        or (first_whole is not None and one.stop_offset > first_whole and not one.leader_epochs)
    ]


def partition_log(
    segments: Sequence[RemoteSegment],
    lineage: Sequence[EpochEntry],
    damaged: Sequence[RemoteSegment] = (),
) -> PartitionLog:
    """Chooses, of one partition and one topic id, the segment for every offset.

    Args:
        segments: Candidates in any order; at least one where none is damaged.
        lineage: Entries of the newest segment's leader-epoch checkpoint, ascending.
        damaged: Segments that were whole once and lack objects. They serve nothing, but what they
            tell of the log holds: their epochs count, and what they alone held is a hole. Those
            below all others are being deleted.
    """
    checkpoint_start = lineage[0].start_offset if lineage else 0
    lineage = with_epochs(lineage, damaged)
    usable = {id(segment): usable_range(segment, lineage) for segment in segments}
    candidates = [span for span in usable.values() if span is not None]
    spans = (usable_range(segment, lineage) for segment in damaged)
    lost = [span for span in spans if span is not None and span.stop > checkpoint_start]
    if candidates:
        stop = max(span.stop for span in candidates)
        # Stragglers below the log start count: the tier did reach back that far, so what is missing
        # between the log start and the first segment above it is a hole.
        stragglers = (s.start_offset for s in segments if s.stop_offset <= checkpoint_start)
        first_tiered = min([*(span.start for span in candidates), *stragglers])
        log_start = min(max(first_tiered, checkpoint_start), stop)
    else:
        first_lost = min((span.start for span in lost), default=checkpoint_start)
        log_start = stop = max(first_lost, checkpoint_start)
    ranges, missing = cover(candidates, log_start, stop)
    # Behind these there may be more offsets of the same segment, without a record in them.
    loose = {
        span.stop
        for span in ranges
        if span.stop == span.segment.stop_offset and not span.segment.end_is_exact
    }
    for hole in missing:  # a lost segment proves that there were offsets
        if any(span.start < hole.stop and span.stop > hole.start for span in lost):
            loose.discard(hole.start)
    holes = [hole for hole in missing if hole.start not in loose]
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
        tuple(hole for hole in missing if hole.start in loose),
    )


def with_epochs(
    lineage: Sequence[EpochEntry], damaged: Iterable[RemoteSegment]
) -> Sequence[EpochEntry]:
    """The lineage as it went on in epochs that only damaged segments tell of: a leader's log ends
    where the next one's begins.
    """
    newest = lineage[-1].epoch if lineage else -1
    told: dict[int, int] = {}
    for segment in damaged:
        for epoch, start, _ in epoch_ranges(segment):
            if epoch > newest:
                told[epoch] = min(start, told.get(epoch, start))
    for entry in [EpochEntry(epoch, start) for epoch, start in sorted(told.items())]:
        lineage = [*(one for one in lineage if one.start_offset < entry.start_offset), entry]
    return lineage


def joined_lineage(older: Sequence[EpochEntry], newer: Sequence[EpochEntry]) -> list[EpochEntry]:
    """A lineage that was cut off at a log start, with what it had told before.

    Args:
        older: Entries of an earlier checkpoint of the same log.
        newer: Entries of a later one, at least one. Its first may begin at the log start only.
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
    """The offsets of `segment` that belong to the lineage, from its first such offset to its first
    divergence.

    Epochs older than the lineage's first lie below the log start, where the checkpoint no longer
    tells them apart; they are given the benefit of the doubt and cut off by the log start.
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


def epoch_ranges(segment: RemoteSegment) -> Iterator[tuple[int, int, int]]:
    """The epochs that own offsets [start, stop) of the segment. Where one is said to begin below
    the segment, it says nothing about offsets that the segment does not hold.
    """
    stops = [*(entry.start_offset for entry in segment.leader_epochs[1:]), segment.stop_offset]
    for entry, stop in zip(segment.leader_epochs, stops, strict=False):
        low, high = max(entry.start_offset, segment.start_offset), min(stop, segment.stop_offset)
        if low < high:
            yield entry.epoch, low, high


def _owned(epoch: int, lineage: Sequence[EpochEntry]) -> tuple[int, int] | None:
    """Offsets [start, stop) that `epoch` owns in the lineage."""
    for number, entry in enumerate(lineage):
        if entry.epoch == epoch:
            after = lineage[number + 1].start_offset if number + 1 < len(lineage) else MAX_OFFSET
            return entry.start_offset, after
    return None


def cover(
    candidates: Iterable[SegmentRange], log_start: int, stop: int
) -> tuple[tuple[SegmentRange, ...], tuple[Hole, ...]]:
    """Chooses the candidate for every offset of [log_start, stop): of those that hold it, the one
    that begins last, as a broker's floor lookup does.

    So which segment serves an offset depends only on segments that begin at or below it, down to
    the first that holds it: a plan of a few offsets needs to know no others.
    """
    # Stacks: the next range to begin is at the end, and the last one that began. Of retried uploads
    # the least segment id is read, and named beside holes.
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
        ranges.append(
            best
            if (best.start, best.stop) == (position, end)
            else SegmentRange(best.segment, position, end)
        )
        position = end
    return tuple(ranges), tuple(holes)


def _precedence(span: SegmentRange) -> tuple[int, int, int]:
    return span.start, span.segment.start_offset, span.stop


def _below_log_start(ranges: Sequence[SegmentRange], log_start: int) -> Iterator[SkippedSegment]:
    """What the first segment holds below its first leader epoch, which a broker does not serve from
    the tier: DeleteRecords moved the log start, or it is of message formats 0 and 1, that have no
    epochs.
    """
    segment = ranges[0].segment if ranges else None
    if segment is not None and segment.start_offset < log_start == ranges[0].start:
        yield SkippedSegment(
            segment,
            f"offsets [{segment.start_offset}, {log_start}) lie below the first leader epoch:"
            " deleted, or written in a message format without leader epochs",
        )


def _reason(
    segment: RemoteSegment, usable: SegmentRange | None, log_start: int, checkpoint_start: int
) -> str:
    # Where the tier begins above the checkpoint's start, only a segment of the lineage is too old.
    if segment.stop_offset <= (checkpoint_start if usable is None else log_start):
        return BELOW_LOG_START
    return DEAD_BRANCH if usable is None else COVERED
