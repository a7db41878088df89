"""Plans scans whose only source is the tier.

Reads the segments of a partition completely, or only the segments that are needed for a window of
offsets. For a window, it reads the manifests of:

* the first segment, for the log start;
* the last segment by offset, and the segments that were uploaded last, for lineage and end of the
  tier;
* segments that begin at or above the start of a later upload, which may be from the leader of
  another branch;
* segments that begin in the window, and earlier segments until the start of the window is covered.

The result is exact, because each offset is served by the last segment that has it
(`lineage.cover`). In unusual cases all segments are read: there are no upload times, a manifest is
invalid, a segment has a higher epoch or end than the newest segment, or there is an abandoned
branch or a hole.

The times in the listing show which uploads are newest. A tool that copies the bucket may reset
these times. Then the last segment by offset is still read, and every epoch is still compared. One
case cannot be detected: after two unclean elections, all segments of the leader's branch in the
tier may have lower epochs than an abandoned branch. Until the first segment with the leader's epoch
is copied, the tier does not show which branch survived, and different windows may choose different
branches.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final, TypeAlias

from kts_source.errors import TieredKafkaError
from kts_source.layout.find_layout import find_layout
from kts_source.layout.remote_segment import IndexType
from kts_source.options.selection import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    OffsetsBound,
    TimestampBound,
    TimestampsBound,
)
from kts_source.planning.bounds import Place, first_offset_at_or_after
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
from kts_source.planning.segment_catalog import (
    DiscoveredTopic,
    SegmentCatalog,
    discover,
    has_puffin_files,
    iceberg_hint,
)
from kts_source.planning.sources import SourceLog, SourcePartition
from kts_source.texts import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Executor

    from kts_source.layout.layout import Layout, SegmentEntry
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.options import ScanOptions
    from kts_source.planning.segment_catalog import ListedPartition
    from kts_source.planning.side_files import SideFiles
    from kts_source.tier import Tier
    from segment_format.index.checkpoints import EpochEntry

log = logging.getLogger(__name__)

_Evidence: TypeAlias = "tuple[Sequence[EpochEntry], RemoteSegment, Sequence[RemoteSegment]]"

NEWEST_UPLOADS: Final = 4
"""Number of newest uploads to search for the lineage, because a former leader may finish its copy
last.
"""
_MAX_UPLOADS: Final = 16
"""Maximum number of newest uploads. If more objects have the newest time, the times are not upload
times.
"""


class TierSource:
    """A `Source` that lists the selected partitions of a tier."""

    def __init__(
        self, options: ScanOptions, tier: Tier, describing: Executor, pool: Executor
    ) -> None:
        self._options = options
        self._topics: Sequence[DiscoveredTopic] = ()
        self._pool = pool
        self._catalog = SegmentCatalog(
            tier, layout_of(options), describing, fail_on_data_loss=options.fail_on_data_loss
        )

    @property
    def topics(self) -> set[str]:
        """Names of the selected topics. Bounds in JSON may name any partition of these topics."""
        return {topic.topic for topic in self._topics}

    @property
    def asked(self) -> Mapping[str, Sequence[int]]:
        """Numbers of the partitions that the options select, by topic."""
        return {topic.topic: topic.asked_partitions for topic in self._topics}

    def partitions(self) -> list[SourcePartition]:
        """Lists the selected partitions that have segments, ascending by topic and number."""
        self._topics = discover(self._options, self._catalog, self._pool)
        listed = [each for topic in self._topics for each in topic.partitions]
        self._catalog.expect(len(listed))
        return [
            SourcePartition(
                each.topic, each.topic_id, each.partition, each, partial(self._open_log, each)
            )
            for each in listed
        ]

    def _open_log(
        self, listed: ListedPartition, side_files: SideFiles, is_resumed: bool
    ) -> TierLog:
        options = self._options
        in_part = can_plan_in_part(
            options, listed.topic, listed.partition, from_the_start=not is_resumed
        )
        explain = partial(self._explain_hole, listed.topic)
        return open_tier_log(options, listed, side_files, in_part=in_part, explain=explain)

    def _explain_hole(self, topic: str) -> str:
        return iceberg_hint(self._catalog.store, topic) if self._has_puffin_files else ""

    @cached_property
    def _has_puffin_files(self) -> bool:
        """Whether the store has files of the plugin's Iceberg mode. Listed once, because many
        partitions may have holes.
        """
        try:
            return has_puffin_files(self._catalog.store, "")
        except TieredKafkaError:  # the missing offsets are the more important error
            return False

    def finish(self) -> list[str]:
        """Returns notes for the user about the selected topics."""
        return [note for topic in self._topics for note in topic.notes]


def layout_of(options: ScanOptions) -> Layout:
    """Returns a new layout for a plan that reads only the tier. Each plan needs its own layout."""
    return find_layout(
        options.layout, end_of_log=options.end_of_log, paths=1 + len(options.disk_paths)
    )


def can_plan_in_part(
    options: ScanOptions, topic: str, partition: int, *, from_the_start: bool = True
) -> bool:
    """Returns whether a partition can be planned without reading all of its manifests.

    Timestamps of records may be in any order, so a bound by timestamp needs all manifests. If
    option `maxTimestampAheadMs` limits how far timestamps may be ahead of uploads, a part of the
    manifests is enough. `from_the_start` is True if a scan without a start offset begins at the log
    start.
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
    """Returns two values: the entries of the newest leader-epoch checkpoint, and the segment that
    has this checkpoint. If no segment has one, returns an empty sequence and `None`. Raises
    `CorruptSegmentError` if the checkpoint is invalid.
    """
    kind = IndexType.LEADER_EPOCH
    checkpoints = [*segments, *(segment for segment in damaged if kind in segment.objects.indexes)]
    if not checkpoints:
        return (), None
    newest = newest_segment(checkpoints)
    return side_files.leader_epochs(newest).entries, newest


def open_tier_log(
    options: ScanOptions,
    listed: ListedPartition,
    side_files: SideFiles,
    *,
    in_part: bool,
    keeps_from: int | None = None,
    explain: Callable[[], str] | None = None,
) -> TierLog:
    """Opens the log of a listed partition. `TierLog` and `Place` describe the arguments."""
    return TierLog(
        Place(
            listed.topic,
            listed.partition,
            listed.orphans,
            options.fail_on_data_loss,
            explain_hole=explain,
            mirror=side_files.mirror,
        ),
        listed,
        side_files,
        in_part=in_part,
        max_ahead_ms=options.max_timestamp_ahead_ms,
        keeps_from=keeps_from,
    )


class TierLog(SourceLog):
    """The log of one partition in the tier. Segments are read when they are needed. Not
    thread-safe.

    Args:
        location: The partition, and whether data loss is an error.
        listed: The segments of the partition, at least one, complete or damaged.
        in_part: True to read only the segments that are needed, False to read all segments.
        max_ahead_ms: Maximum time in ms by which a record's timestamp may be after the upload of
            its segment; `None` = no limit.
        keeps_from: First offset to include although it is below the log start, if its segment still
            exists; `None` = begin at the log start.
    """

    def __init__(
        self,
        location: Place,
        listed: ListedPartition,
        side_files: SideFiles,
        *,
        in_part: bool,
        max_ahead_ms: int | None = None,
        keeps_from: int | None = None,
    ) -> None:
        super().__init__(location, listed.topic_id, side_files)
        self.listed = listed
        self._max_ahead_ms = max_ahead_ms
        self._keeps_from = MAX_OFFSET if keeps_from is None else keeps_from
        self._bases = [entry.base_offset for entry in listed.entries]
        self._uploads = [_uploaded_ms(entry) for entry in listed.entries] if in_part else []
        self._lineage: tuple[EpochEntry, ...] = ()
        self.is_complete = False
        # Retention is deleting damaged segments below the first complete segment. Other damaged
        # segments may have a higher end or epoch than all complete segments, so then all segments
        # are read.
        self._damaged = listed.damaged()
        self._evidence: _Evidence | None = None
        is_above = any(
            segment.stop_offset > self._bases[0] for segment in self._damaged if self._bases
        )
        if not in_part or is_above or not self._bases or not self._find_ends():
            self._read_all()

    @property
    def contradiction(self) -> str | None:
        """Message about evidence that the newest leader-epoch checkpoint is wrong, or `None`.
        Computed once, after all segments were read.
        """
        if self._evidence is not None:
            newest = self._evidence[1]
            evidence = *self._evidence, self.side_files
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

    def last_batch_stop(self) -> int:
        """Returns one past the last offset of the last batch, which is read from the log.

        The end offset in the last manifest is not used: manifests have no checksum, and no later
        segment confirms it. A reader that continues at a too high end would skip records of the
        next segment.
        """
        stop = self.log.stop
        while stop > self.log.log_start:
            ranges = self.covering(stop - 1, stop).ranges
            last = next((span for span in ranges if span.start < stop <= span.stop), None)
            if last is None or stop != last.segment.stop_offset:
                return stop
            end = self.side_files.last_batch_stop(last.segment)
            if end is None or end >= stop:
                return stop
            if end > last.start:
                return end
            stop = last.start  # the segment has no batch of these offsets
        return stop

    def approximate_stop(self, offset: int, count: int) -> int:
        """Returns the approximate end of a run of `count` segments, which begins with the segment
        that contains `offset`.
        """
        number = bisect_right(self._bases, offset) + count - 1
        if self.is_complete or number >= len(self._bases):
            return self.log.stop
        return max(self._bases[number], offset + 1)

    def covering(self, start: int, stop: int) -> PartitionLog:
        """Returns the log with at least the ranges that contain offsets in [start, stop). If the
        descriptions of a few segments are not sufficient, reads all segments.
        """
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
        """Returns two values, like `SourceLog.decided`: the log and the outcomes of its
        transactions. Reads later segments until the outcome of every transaction is known, or the
        tier ends.
        """
        ahead = 1
        end = stop
        while True:
            log = self.covering(start, end)
            try:
                decisions = decide(log, start, stop, self.side_files)
            except UnknownStartError:  # bad snapshots: earlier segments record open transactions
                self._read_all()
                continue
            if self.is_complete or not decisions.undecided or log.ranges[-1].stop >= log.stop:
                return log, decisions
            following = bisect_left(self._bases, log.ranges[-1].stop) + ahead
            more = self._bases[following] if following < len(self._bases) else log.stop
            end = min(max(more, end + 1), log.stop)
            ahead *= 2

    def first_offset_at_or_after(self, timestamp_ms: int) -> int | None:
        """Returns the offset of the first record dated at or after `timestamp_ms`, or `None`. If
        possible, reads only segments that were uploaded late enough to contain it.
        """
        if not self.is_complete:
            assert self._max_ahead_ms is not None
            since = timestamp_ms - self._max_ahead_ms
            recent = [number for number, upload in enumerate(self._uploads) if upload >= since]
            offset = self._first_offset_in(recent, timestamp_ms)
            # Read the log from the last segment that is certainly too old up to the offset, so that
            # a hole in between is found.
            last_old = self._bases[max(recent[0] - 1, 0)] if recent else self.log.stop
            self.covering(
                max(last_old, self.log.log_start), self.log.stop if offset is None else offset
            )
            if not self.is_complete:
                return offset
        return first_offset_at_or_after(self.log, timestamp_ms, self.side_files)

    def _first_offset_in(self, recent: Sequence[int], timestamp_ms: int) -> int | None:
        """Searches the segments at indexes `recent` for the first record with a timestamp at or
        after `timestamp_ms`. Returns `None` if there is none, or if a dead branch may exist (see
        `_has_no_dead_branch`); in the second case, reads all segments first.
        """
        begin, size = 0, 2
        while begin < len(recent):
            spans = self._usable(recent[begin : begin + size])
            if spans is None:
                self._read_all()
                return None
            low = self.log.log_start
            served = [replace(s, start=max(s.start, low)) for s in spans if s.stop > low]
            served.sort(key=lambda span: span.start)
            covered = replace(self.log, ranges=tuple(served))
            offset = first_offset_at_or_after(covered, timestamp_ms, self.side_files)
            if offset is not None:
                return offset
            begin, size = begin + size, 2 * size
        return None

    def _read_all(self) -> None:
        self.is_complete = True
        segments = self.listed.all()
        self.is_empty = not segments and not self._damaged
        lineage, newest = newest_lineage(segments, self._damaged, self.side_files)
        checkpoint = lineage
        if lineage and self._keeps_from < lineage[0].start_offset:
            lineage = self._with_older_epochs(segments, lineage)
        first = self._bases[0] if lineage and self._bases else None
        epoch = -1 if newest is None else last_epoch(newest)
        self.unknown_lineage = next(iter(with_unknown_epoch(self._damaged, epoch, first)), None)
        self.log = partition_log(segments, lineage, self._damaged)
        self._evidence = None if newest is None else (checkpoint, newest, segments)
        self._contradiction = None

    def _with_older_epochs(
        self, segments: Sequence[RemoteSegment], lineage: Sequence[EpochEntry]
    ) -> Sequence[EpochEntry]:
        """Returns the lineage, preceded by earlier entries from the newest checkpoint of the
        segments that begin below the log start.
        """
        start = lineage[0].start_offset
        below = [
            segment
            for segment in segments
            if segment.start_offset < start and segment.stop_offset > self._keeps_from
        ]
        if not below:
            return lineage
        older = self.side_files.leader_epochs(newest_segment(below)).entries
        return joined_lineage(older, lineage)

    def _find_ends(self) -> bool:
        """Finds log start and end from the descriptions of a few segments. Returns False if they
        may be wrong, so that all segments must be read.
        """
        entries = self.listed.entries
        uploads = self._uploads
        threshold = sorted(uploads)[-NEWEST_UPLOADS:][0]
        first = range(bisect_right(self._bases, self._bases[0]))
        numbers = {*first, *range(self._group_start(len(entries) - 1), len(entries))}
        latest = {number for number, upload in enumerate(uploads) if upload >= threshold}
        latest |= _superseded(self._bases, uploads)
        if min(uploads) < 0 or len(latest) > _MAX_UPLOADS or len(numbers | latest) == len(entries):
            return False
        wanted = sorted(numbers | latest)
        segments = self.listed.described(wanted)
        if len(segments) < len(wanted):
            return False
        newest = newest_segment(segments)
        self._lineage = tuple(self.side_files.leader_epochs(newest).entries)
        spans = [usable_range(segment, self._lineage) for segment in segments]
        stop = max((span.stop for span in spans if span is not None), default=-1)
        if not self._lineage or stop < 0 or not newest.leader_epochs:
            return False
        checkpoint_start = self._lineage[0].start_offset
        has_start = any(
            segment.stop_offset <= checkpoint_start
            or (span is not None and span.start == max(segment.start_offset, checkpoint_start))
            for segment, span in zip(segments, spans, strict=True)
            if segment.start_offset == self._bases[0]
        )
        log_start = min(max(self._bases[0], checkpoint_start), stop)
        newest_ms = max(segment.max_timestamp_ms for segment in segments)
        self.log = PartitionLog(
            self._lineage, log_start, stop, (), (), (), end_timestamp_ms=newest_ms
        )
        has_start &= self._keeps_from >= log_start
        damaged = [usable_range(segment, self._lineage) for segment in self._damaged]
        return has_start and all(
            map(self._has_no_dead_branch, (*segments, *self._damaged), (*spans, *damaged))
        )

    def _usable(self, numbers: Iterable[int]) -> list[SegmentRange] | None:
        """Returns, for each segment at an index in `numbers`, the offsets that may be read from it.
        Returns `None` if a dead branch may exist (see `_has_no_dead_branch`).
        """
        wanted = list(numbers)
        segments = self.listed.described(wanted)
        spans = [usable_range(segment, self._lineage) for segment in segments]
        if len(segments) < len(wanted) or not all(map(self._has_no_dead_branch, segments, spans)):
            return None
        return [span for span in spans if span is not None]

    def _has_no_dead_branch(self, segment: RemoteSegment, usable: SegmentRange | None) -> bool:
        """Returns whether all offsets of a segment above the log start belong to the lineage and
        are below the known end of the log. If not, there may be dead branches, so all segments must
        be read. `usable` has the offsets of the segment that belong to the lineage.
        """
        if not segment.leader_epochs or segment.leader_epochs[-1].epoch > self._lineage[-1].epoch:
            return False
        log_start = self._lineage[0].start_offset
        if segment.stop_offset <= log_start:
            return True
        expected = SegmentRange(segment, max(segment.start_offset, log_start), segment.stop_offset)
        return usable == expected and expected.stop <= self.log.stop

    def _group_start(self, number: int) -> int:
        """Returns the index of the first entry with the base offset of the entry at index
        `number`.
        """
        return bisect_left(self._bases, self._bases[max(number, 0)])


def _superseded(bases: Sequence[int], uploads: Sequence[int]) -> set[int]:
    """Returns the indexes of the entries that may be superseded, because a later upload has a lower
    base offset, or because another entry has the same base offset.

    The later upload may be a second copy of the segment, or come from the leader of another branch.
    Epochs alone do not show which: that leader's segments may have the same epochs.
    """
    numbers = set()
    lowest = MAX_OFFSET
    for number in sorted(range(len(bases)), key=lambda n: (uploads[n], n), reverse=True):
        if bases[number] >= lowest:
            numbers.add(number)
        lowest = min(lowest, bases[number])
    twins = {number for number, base in enumerate(bases[1:]) if base == bases[number]}
    return numbers | twins | {number + 1 for number in twins}


def _uploaded_ms(entry: SegmentEntry) -> int:
    """Returns when the last object of a segment was written (ms since 1970); −1 if the store does
    not report it.
    """
    written = [info.last_modified_ms for _, info in entry.objects]
    times = [time_ms for time_ms in written if time_ms is not None]
    return max(times, default=-1) if len(times) == len(written) else -1
