"""What one listing shows of a partition: where it begins and ends, and which segments are between.

Manifests are read as they are asked for, so a look at years of history costs no more than the next
batch needs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kts_source.errors import DataLossError
from kts_source.planning.bounds import Place, refuse_contradiction
from kts_source.planning.isolation import decide
from kts_source.planning.partial_log import PartitionView
from kts_source.planning.plan_log import end_of_batches, plan_log
from kts_source.streaming.admission import PendingSegment, dated
from kts_source.streaming.batch import bounds_left
from kts_source.streaming.lag import PartitionLag

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kts_source.options import ScanOptions
    from kts_source.planning.assemble import PlannedPartition
    from kts_source.planning.bounds import TimestampLookup
    from kts_source.planning.lineage import Hole, PartitionLog, SegmentRange
    from kts_source.planning.segment_catalog import ListedPartition
    from kts_source.planning.side_files import SideFiles
    from kts_source.streaming.batch import BatchRange
    from segment_format.isolation import OpenTransaction

_FIRST_SEGMENTS: Final = 2
_MOST_SEGMENTS: Final = 256


class PartitionLook:
    """A partition of one incarnation of a topic, as one listing shows it.

    Args:
        options: What is read.
        part: The listing.
        side_files: Of its segments.
        keeps_from: See `PartitionView`.
        in_part: Whether a part of the log will do.

    Attributes:
        view: The log.
        is_empty: Whether the tier has no segment of it.
    """

    def __init__(
        self,
        options: ScanOptions,
        part: ListedPartition,
        side_files: SideFiles,
        *,
        keeps_from: int | None = None,
        in_part: bool = True,
    ) -> None:
        self.part = part
        self.side_files = side_files
        self.place = Place(part.topic, part.partition, part.orphans, options.fail_on_data_loss)
        self._options = options
        self._stable: tuple[bool, int] | None = None
        self._before_holes: dict[int, int] = {}
        self.view = PartitionView(
            part,
            side_files,
            in_part=in_part,
            max_ahead_ms=options.max_timestamp_ahead_ms,
            keeps_from=keeps_from,
        )
        self.is_empty = self.view.is_empty
        if self.view.contradiction is not None:
            refuse_contradiction(self.place, self.view.contradiction)

    @property
    def log(self) -> PartitionLog:
        """As far as it is known."""
        return self.view.log

    @property
    def written_stop(self) -> int:
        """One past the last tiered offset."""
        return self.log.stop

    @property
    def is_complete(self) -> bool:
        """Whether every segment was looked at."""
        return self.view.is_complete

    def end(self) -> int:
        """One past the last offset that may be read: for `read_committed` the tier's last stable
        offset.
        """
        view = self.view
        # What a part of the log said may be wrong where it did not do.
        while self._stable is None or self._stable[0] != view.is_complete:
            stop = view.log.stop
            end = stop
            if stop > view.log.log_start:
                end = max(end_of_batches(view, self.side_files), view.log.log_start)
            if self._options.read_committed and end > view.log.log_start:
                _, decisions = view.decided(end - 1, end)
                end = _first(decisions.undecided, end)
            if stop == view.log.stop:
                self._stable = view.is_complete, end
        return self._stable[1]

    def end_before(self, hole: Hole) -> int:
        """The same, where the log is known up to a hole only."""
        if hole.start not in self._before_holes:
            self._before_holes[hole.start] = self._end_before(hole)
        return self._before_holes[hole.start]

    def _end_before(self, hole: Hole) -> int:
        whole = self.view.log
        ranges = tuple(span for span in whole.ranges if span.stop <= hole.start)
        if not self._options.read_committed or not ranges:
            return hole.start
        known = replace(
            whole,
            stop=hole.start,
            ranges=ranges,
            holes=_below(whole.holes, hole.start),
            unverifiable=_below(whole.unverifiable, hole.start),
        )
        decisions = decide(known, hole.start - 1, hole.start, self.side_files)
        return _first(decisions.undecided, hole.start)

    def epoch_of(self, offset: int) -> int | None:
        """The leader epoch that owns an offset; `None` where the tier does not tell."""
        epochs = [one.epoch for one in self.log.lineage if one.start_offset <= offset]
        return epochs[-1] if epochs else None

    def first_offset_at_or_after(self, timestamp_ms: int) -> int | None:
        """The first offset whose record is dated so; `None` when there is none."""
        return self.view.first_offset_at_or_after(timestamp_ms)

    def lag(self, position: int) -> PartitionLag:
        """What is unread from an offset on."""
        end = self.end()
        offsets = max(end - position, 0)
        if not offsets:
            return PartitionLag(end, 0, 0, None, self.log.log_start)
        # The time of what was read last: the next record is hardly older.
        before = self.view.covering(max(position - 1, self.log.log_start), position + 1)
        dates = [
            span.segment.max_timestamp_ms
            for span in before.ranges
            if span.start <= position and span.stop >= position
        ]
        dated = [date for date in dates if date >= 0]
        size, oldest = self._stored_bytes(position), min(dated, default=None)
        return PartitionLag(end, offsets, size, oldest, self.log.log_start)

    def _stored_bytes(self, position: int) -> int:
        """About how many bytes of the listed segments are behind an offset."""
        entries = self.part.entries
        size = 0
        for number, entry in enumerate(entries):
            is_last = number + 1 == len(entries)
            stop = self.log.stop if is_last else entries[number + 1].base_offset
            log = entry.object("log")
            if stop <= position or log is None:
                continue
            offsets = max(stop - entry.base_offset, 1)
            unread = stop - max(entry.base_offset, position)
            size += log.size * min(unread, offsets) // offsets
        return size

    def plan(self, wanted: BatchRange) -> PlannedPartition:
        """The plan of some of its offsets. What has been lost since the batch was fixed is an
        error, or left out with a warning.

        Raises:
            DataLossError: Offsets have gone, or the end is not decided, unless loss is allowed.
        """

        def bounds_of(log: PartitionLog, _: TimestampLookup) -> tuple[int, int]:
            return bounds_left(self.place, wanted, log.log_start, log.stop)

        options, view = self._options, self.view
        try:
            while True:
                in_part = not view.is_complete
                planned = plan_log(
                    options, self.place, wanted.topic_id, self.side_files, view, bounds_of
                )
                # What a part of the log said may be wrong where it did not do.
                if not (in_part and view.is_complete):
                    break
        finally:
            self.part.save()
        plan = planned.plan
        if plan.stop < plan.wanted_stop:
            self.place.raise_or_warn(
                f"the batch that ends at offset {wanted.stop} holds offsets from {plan.stop} on"
                f" that are not decided: {plan.end_reason}. It was begun with"
                " isolationLevel=read_uncommitted: finish it so; failOnDataLoss=false leaves them"
                " out",
                DataLossError,
            )
        return planned

    def pending(self, start: int, stop: int) -> Iterator[PendingSegment]:
        """The segments of offsets [start, stop), ascending. Holes are passed over; where one shows
        that was not known, the log has become known as a whole, and nothing more comes.
        """
        at, count = start, _FIRST_SEGMENTS
        while at < stop:
            knew_all = self.view.is_complete
            upto = min(self.view.border(at, count), stop)
            known = self.view.covering(at, upto)
            if upto <= at or (self.view.is_complete and not knew_all):
                return
            for span in known.ranges:
                low, high = max(span.start, at), min(span.stop, upto)
                if low < high:
                    yield _pending(span, low, high)
            at, count = upto, min(2 * count, _MOST_SEGMENTS)


def _below(holes: Sequence[Hole], offset: int) -> tuple[Hole, ...]:
    return tuple(hole for hole in holes if hole.stop < offset)


def _first(undecided: Sequence[OpenTransaction], stop: int) -> int:
    return min([stop, *(one.first_offset for one in undecided)])


def _pending(span: SegmentRange, start: int, stop: int) -> PendingSegment:
    segment = span.segment
    size = segment.objects.size_in_bytes
    offsets = segment.stop_offset - segment.start_offset
    if stop - start < offsets:
        size = size * (stop - start) // offsets
    return PendingSegment(start, stop, size, dated(segment.max_timestamp_ms))
