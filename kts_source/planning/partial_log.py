"""The surviving log of a partition as far as a query needs it: all of it, or the segments around
the offsets that are wanted.

A window needs the manifests of few segments: the first (where the log begins), the last by offset,
some of the newest uploads (one of them has the lineage, and where the tier ends) and those that a
later upload began at or below (by a leader of another branch, perhaps), those that begin in the
window, and earlier ones until its start is covered. That is exact because a segment serves the
offsets that no later one holds (`lineage.cover`). Whatever does not look like the plain case (no
upload times, a manifest that cannot be read, an epoch or an end above the newest's, a branch that
died, a hole) makes it look at all of them.

Which uploads are newest is taken from the times in the listing. Where a tool copied the bucket and
set them anew, the last by offset still counts, and so does every epoch that is met. One case is out
of reach: after two unclean elections the leader's branch may know only epochs below those that a
dead branch left in the tier. Until the first segment of its own epoch is copied the tier does not
tell which one lives, and a window far from the dead one may follow the other.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

from kts_source.layout.remote_segment import IndexType
from kts_source.options.selection import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    OffsetsBound,
    TimestampBound,
    TimestampsBound,
)
from kts_source.planning.isolation import Decisions, UnknownStartError, decide
from kts_source.planning.lineage import (
    MAX_OFFSET,
    PartitionLog,
    SegmentRange,
    cover,
    joined_lineage,
    last_epoch,
    newest_segment,
    partition_log,
    usable_range,
    with_unknown_epoch,
)
from kts_source.planning.lineage_evidence import contradiction, unconfirmed_start
from kts_source.planning.timestamps import first_offset_at_or_after
from kts_source.texts import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kts_source.layout.layout import SegmentEntry
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.options import ScanOptions
    from kts_source.planning.segment_catalog import ListedPartition
    from kts_source.planning.side_files import SideFiles
    from segment_format.index.checkpoints import EpochEntry

log = logging.getLogger(__name__)

_Evidence: TypeAlias = "tuple[Sequence[EpochEntry], RemoteSegment, Sequence[RemoteSegment]]"

NEWEST_UPLOADS: Final = 4
"""So many of the newest uploads are looked at: a leader of the past may finish its copy last."""
_MANY_UPLOADS: Final = 16
"""At the same time; more of them say that the times are not of uploads."""


def can_plan_in_part(
    options: ScanOptions, topic: str, partition: int, *, from_the_start: bool = True
) -> bool:
    """Whether a partition can be planned without looking at all of its segments.

    Timestamps need all, as records are dated in any order, unless something bounds how far ahead.
    `from_the_start` says whether a start that names no offset is the log start.
    """
    bounds = (options.starting, options.ending)
    if any(isinstance(bound, TimestampBound | TimestampsBound) for bound in bounds):
        return options.max_timestamp_ahead_ms is not None
    starting, ending = (
        bound.offsets.get(topic, {}).get(partition) if isinstance(bound, OffsetsBound) else None
        for bound in bounds
    )
    from_the_start &= starting is None or starting == EARLIEST_OFFSET
    to_the_end = ending is None or ending == LATEST_OFFSET
    return not (from_the_start and to_the_end)


def newest_lineage(
    segments: Sequence[RemoteSegment], damaged: Iterable[RemoteSegment], side_files: SideFiles
) -> tuple[Sequence[EpochEntry], RemoteSegment | None]:
    """Returns the checkpoint of the newest segment that has one, and that segment; nothing and
    `None` if no segment has one.

    Raises:
        CorruptSegmentError: The checkpoint is not valid, or contradicts its segment.
    """
    kind = IndexType.LEADER_EPOCH
    checkpoints = [*segments, *(one for one in damaged if kind in one.objects.indexes)]
    if not checkpoints:
        return (), None
    newest = newest_segment(checkpoints)
    return side_files.leader_epochs(newest).entries, newest


class PartitionView:
    """One partition's log, read as far as it is asked for. Used by one thread at a time.

    Args:
        listed: Its segments, at least one, whole or damaged.
        side_files: Reads checkpoints and what bounds need.
        in_part: Whether a part of the log will do.
        max_ahead_ms: No record is dated later after its upload; `None` = nothing is assumed.
        keeps_from: Offsets from here on belong to the log although its start has passed them, as
            far as their segments are still there; `None` = the log start is where it is.

    Attributes:
        log: Log start and end; ranges only when all segments are known.
        is_complete: Whether every segment was looked at.
        is_empty: Whether none of the listed segments can be read any more.
        unknown_lineage: A damaged segment of a newer epoch than all that tell of the lineage, or
            that does not tell its own: who knows which segments live.
    """

    log: PartitionLog

    def __init__(
        self,
        listed: ListedPartition,
        side_files: SideFiles,
        *,
        in_part: bool,
        max_ahead_ms: int | None = None,
        keeps_from: int | None = None,
    ) -> None:
        self._listed = listed
        self._side_files = side_files
        self._max_ahead_ms = max_ahead_ms
        self._keeps_from = MAX_OFFSET if keeps_from is None else keeps_from
        self._bases = [entry.base_offset for entry in listed.entries]
        self._uploads = [_uploaded_ms(entry) for entry in listed.entries] if in_part else []
        self._lineage: tuple[EpochEntry, ...] = ()
        self.is_complete = False
        self.is_empty = False
        # What is damaged below the first whole segment is being deleted; what is not, may tell of
        # an end or an epoch that no whole one knows of.
        self._damaged = listed.damaged()
        self.unknown_lineage: RemoteSegment | None = None
        self._evidence: _Evidence | None = None
        self._contradiction: str | None = None
        above = any(one.stop_offset > self._bases[0] for one in self._damaged if self._bases)
        if not in_part or above or not self._bases or not self._frame():
            self._read_all()

    @property
    def contradiction(self) -> str | None:
        """What other segments say against the lineage that drops some of them; `None` if nothing
        does. Looked for once, when all segments are known.
        """
        if self._evidence is not None:
            newest = self._evidence[1]
            evidence = *self._evidence, self._side_files
            self._evidence = None
            self._contradiction = contradiction(self.log, *evidence)
            if (deleted := unconfirmed_start(*evidence)) is not None:
                log.warning(
                    "%s-%s: offsets [%s, %s) of the tier are not read, because the newest"
                    " leader-epoch checkpoint says that the log starts at %s. No other checkpoint"
                    " says so yet, which is normal after DeleteRecords: %s",
                    *(newest.topic, newest.partition, *deleted, deleted[1]),
                    printable(newest.objects.log.key),
                )
        return self._contradiction

    def border(self, offset: int, segments: int) -> int:
        """Where about so many segments from an offset on end: what to ask for at a time."""
        at = bisect_right(self._bases, offset) + segments - 1
        if self.is_complete or at >= len(self._bases):
            return self.log.stop
        return max(self._bases[at], offset + 1)

    def covering(self, start: int, stop: int) -> PartitionLog:
        """The log with all ranges of offsets [start, stop), and perhaps all others."""
        if self.is_complete or start >= stop:
            return self.log
        first = self._group_start(bisect_right(self._bases, start) - 1)
        last = bisect_left(self._bases, stop)
        step = 1
        while (spans := self._usable(range(first, last))) is not None:
            end = max((span.stop for span in spans), default=-1)
            if end >= stop:
                ranges, holes = cover(spans, start, end)
                if not holes:
                    near = tuple(span for span in ranges if span.start < stop)
                    return replace(self.log, ranges=near)
            if first == 0:
                break
            first = self._group_start(max(first - step, 0))
            step *= 2
        self._read_all()
        return self.log

    def decided(self, start: int, stop: int) -> tuple[PartitionLog, Decisions]:
        """The log around [start, stop) and the outcome of its transactions; looks ahead until all
        that can be is decided.
        """
        ahead = 1
        end = stop
        while True:
            known = self.covering(start, end)
            try:
                decisions = decide(known, start, stop, self._side_files)
            except UnknownStartError:  # bad snapshots: what was open is told further down
                self._read_all()
                continue
            if self.is_complete or not decisions.undecided or known.ranges[-1].stop >= known.stop:
                return known, decisions
            following = bisect_left(self._bases, known.ranges[-1].stop) + ahead
            more = self._bases[following] if following < len(self._bases) else known.stop
            end = min(max(more, end + 1), known.stop)
            ahead *= 2

    def first_offset_at_or_after(self, timestamp_ms: int) -> int | None:
        """The first tiered offset whose record is dated at or after `timestamp_ms`; `None` when
        there is none. What is missing below it, and may be dated so, is among the log's holes then.
        """
        if not self.is_complete:
            assert self._max_ahead_ms is not None
            since = timestamp_ms - self._max_ahead_ms
            recent = [number for number, upload in enumerate(self._uploads) if upload >= since]
            found = self._first_in(recent, timestamp_ms)
            # A hole shows between the last segment that is surely too old and the one found.
            last_old = self._bases[max(recent[0] - 1, 0)] if recent else self.log.stop
            self.covering(
                max(last_old, self.log.log_start), self.log.stop if found is None else found
            )
            if not self.is_complete:
                return found
        return first_offset_at_or_after(self.log, timestamp_ms, self._side_files)

    def _first_in(self, recent: Sequence[int], timestamp_ms: int) -> int | None:
        """The first offset dated so in some segments; looks at all where one is not plain."""
        at, size = 0, 2
        while at < len(recent):
            spans = self._usable(recent[at : at + size])
            if spans is None:
                self._read_all()
                return None
            low = self.log.log_start
            served = [replace(s, start=max(s.start, low)) for s in spans if s.stop > low]
            served.sort(key=lambda span: span.start)
            part = replace(self.log, ranges=tuple(served))
            found = first_offset_at_or_after(part, timestamp_ms, self._side_files)
            if found is not None:
                return found
            at, size = at + size, 2 * size
        return None

    def _read_all(self) -> None:
        self.is_complete = True
        segments = self._listed.all()
        self.is_empty = not segments and not self._damaged
        lineage, newest = newest_lineage(segments, self._damaged, self._side_files)
        checkpoint = lineage
        if lineage and self._keeps_from < lineage[0].start_offset:
            lineage = self._reaching_back(segments, lineage)
        first = self._bases[0] if lineage and self._bases else None
        known = -1 if newest is None else last_epoch(newest)
        self.unknown_lineage = next(iter(with_unknown_epoch(self._damaged, known, first)), None)
        self.log = partition_log(segments, lineage, self._damaged)
        self._evidence = None if newest is None else (checkpoint, newest, segments)
        self._contradiction = None

    def _reaching_back(
        self, segments: Sequence[RemoteSegment], lineage: Sequence[EpochEntry]
    ) -> Sequence[EpochEntry]:
        """The lineage with what the segments below the log start know of the time before it."""
        start = lineage[0].start_offset
        below = [
            segment
            for segment in segments
            if segment.start_offset < start and segment.stop_offset > self._keeps_from
        ]
        if not below:
            return lineage
        older = self._side_files.leader_epochs(newest_segment(below)).entries
        return joined_lineage(older, lineage)

    def _frame(self) -> bool:
        """Finds where the log begins and ends from few segments; False where that is not safe."""
        entries = self._listed.entries
        uploads = self._uploads
        threshold = sorted(uploads)[-NEWEST_UPLOADS:][0]
        first = range(bisect_right(self._bases, self._bases[0]))
        numbers = {*first, *range(self._group_start(len(entries) - 1), len(entries))}
        latest = {number for number, upload in enumerate(uploads) if upload >= threshold}
        latest |= _overtaken(self._bases, uploads)
        if min(uploads) < 0 or len(latest) > _MANY_UPLOADS or len(numbers | latest) == len(entries):
            return False
        wanted = sorted(numbers | latest)
        segments = self._listed.described(wanted)
        if len(segments) < len(wanted):
            return False
        newest = newest_segment(segments)
        self._lineage = tuple(self._side_files.leader_epochs(newest).entries)
        spans = [usable_range(segment, self._lineage) for segment in segments]
        stop = max((span.stop for span in spans if span is not None), default=-1)
        if not self._lineage or stop < 0 or not newest.leader_epochs:
            return False
        checkpoint_start = self._lineage[0].start_offset
        begins = any(
            segment.stop_offset <= checkpoint_start
            or (span is not None and span.start == max(segment.start_offset, checkpoint_start))
            for segment, span in zip(segments, spans, strict=True)
            if segment.start_offset == self._bases[0]
        )
        log_start = min(max(self._bases[0], checkpoint_start), stop)
        self.log = PartitionLog(self._lineage, log_start, stop, (), (), ())
        begins &= self._keeps_from >= log_start
        return begins and all(map(self._is_plain, (*segments, *self._damaged)))

    def _usable(self, numbers: Iterable[int]) -> list[SegmentRange] | None:
        """What these segments may serve; `None` when one of them is not as expected."""
        wanted = list(numbers)
        segments = self._listed.described(wanted)
        if len(segments) < len(wanted) or not all(map(self._is_plain, segments)):
            return None
        spans = (usable_range(segment, self._lineage) for segment in segments)
        return [span for span in spans if span is not None]

    def _is_plain(self, segment: RemoteSegment) -> bool:
        """Whether nothing about a segment contradicts the lineage and the end found before, and
        all of it above the log start is of the lineage: where branches died, a newer one may too.
        """
        if not segment.leader_epochs or segment.leader_epochs[-1].epoch > self._lineage[-1].epoch:
            return False
        log_start = self._lineage[0].start_offset
        if segment.stop_offset <= log_start:
            return True
        whole = SegmentRange(segment, max(segment.start_offset, log_start), segment.stop_offset)
        return usable_range(segment, self._lineage) == whole and whole.stop <= self.log.stop

    def _group_start(self, number: int) -> int:
        """The first entry with the base offset of this one."""
        return bisect_left(self._bases, self._bases[max(number, 0)])


def _overtaken(bases: Sequence[int], uploads: Sequence[int]) -> set[int]:
    """Entries that share their base, or after which something was uploaded that begins lower: by a
    leader of another branch, who may not know of a higher epoch that is on theirs, or by one who
    tried again.
    """
    found = set()
    lowest = MAX_OFFSET
    for number in sorted(range(len(bases)), key=lambda one: (uploads[one], one), reverse=True):
        if bases[number] >= lowest:
            found.add(number)
        lowest = min(lowest, bases[number])
    twins = {number for number, base in enumerate(bases[1:]) if base == bases[number]}
    return found | twins | {number + 1 for number in twins}


def _uploaded_ms(entry: SegmentEntry) -> int:
    """When the last object of a segment was written; −1 when the store does not tell."""
    written = [info.last_modified_ms for _, info in entry.objects]
    known = [time_ms for time_ms in written if time_ms is not None]
    return max(known, default=-1) if len(known) == len(written) else -1
