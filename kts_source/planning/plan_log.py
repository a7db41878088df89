"""The plan of one partition's log: bounds, holes, transactions, slices."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from kts_source.planning.assemble import PlannedPartition
from kts_source.planning.bounds import (
    check_decided,
    check_lineage_known,
    check_no_holes,
    check_outcomes,
    refuse_contradiction,
)
from kts_source.planning.isolation import Decisions, check_ends
from kts_source.planning.scan_plan import PartitionPlan
from kts_source.planning.slicing import bounded, spans
from segment_format.isolation import NO_ABORTED

if TYPE_CHECKING:
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.options import ScanOptions
    from kts_source.planning.bounds import BoundsOf, Place
    from kts_source.planning.lineage import PartitionLog, SegmentRange
    from kts_source.planning.scan_plan import DiskPart
    from kts_source.planning.side_files import SideFiles

log = logging.getLogger(__name__)


class LogView(Protocol):
    """A partition's log, read as far as it is asked for; see `PartitionView`."""

    @property
    def log(self) -> PartitionLog:
        """Log start and end; perhaps without ranges."""
        ...

    @property
    def unknown_lineage(self) -> RemoteSegment | None:
        """A damaged segment that may be newer than all that tell of the lineage."""
        ...

    @property
    def contradiction(self) -> str | None:
        """What the tier says against the lineage that drops some of its segments."""
        ...

    def covering(self, start: int, stop: int) -> PartitionLog:
        """The log with all ranges of offsets [start, stop)."""
        ...

    def decided(self, start: int, stop: int) -> tuple[PartitionLog, Decisions]:
        """The log around [start, stop) and the outcome of its transactions."""
        ...

    def first_offset_at_or_after(self, timestamp_ms: int) -> int | None:
        """The first offset whose record is dated so; `None` when there is none."""
        ...


def end_of_batches(view: LogView, side_files: SideFiles) -> int:
    """Returns one past the last offset of the log's last batch, if its last segment can be read.

    No later segment confirms where the last one ends, and the end in its manifest has no checksum.
    A reader that continues after an end that is too high leaves records of the next segment out.
    """
    stop = view.log.stop
    while stop > view.log.log_start:
        last = _range_of(view.covering(stop - 1, stop), stop - 1)
        if last is None or stop != last.segment.stop_offset:
            return stop
        end = side_files.end_of_batches(last.segment)
        if end is None or end >= stop:
            return stop
        if end > last.start:
            return end
        stop = last.start  # the segment has no batch of these offsets
    return stop


def _range_of(log: PartitionLog, offset: int) -> SegmentRange | None:
    return next((span for span in log.ranges if span.start <= offset < span.stop), None)


def plan_log(
    options: ScanOptions,
    place: Place,
    topic_id: str,
    side_files: SideFiles,
    view: LogView,
    bounds_of: BoundsOf,
    disks: DiskPart | None = None,
    *,
    with_slices: bool = True,
    records_end: bool = False,
) -> PlannedPartition:
    """Plans what is read of a log; `disks` tells of those that it is read from, beside a tier.
    The plan is to be run only `with_slices`. With `records_end` the reader records the end of the
    plan and continues there, so the end must not lie above the last batch.

    Raises:
        TieredKafkaError: See `requested_bounds` and the checks of `bounds`.
    """
    if view.unknown_lineage is not None:
        check_lineage_known(place, view.unknown_lineage)
    if view.contradiction is not None:
        refuse_contradiction(place, view.contradiction)

    def lookup(timestamp_ms: int) -> tuple[PartitionLog, int | None]:
        found = view.first_offset_at_or_after(timestamp_ms)
        return view.log, found

    start, stop = bounds_of(view.log, lookup)
    if records_end and start < stop == view.log.stop:
        stop = max(start, end_of_batches(view, side_files))
    side_files.bounds = start, stop
    surviving = view.covering(start, stop)
    check_no_holes(place, surviving, start, stop)
    decisions = Decisions(NO_ABORTED, max(start, stop), ())
    if start < stop and options.read_committed:
        surviving, decisions = view.decided(start, stop)
    for skipped in surviving.skipped:
        log.info("%s: segment %s not read: %s", place, skipped.segment.segment_id, skipped.reason)
    check_outcomes(place, surviving, decisions)
    plan = PartitionPlan(
        place.topic,
        topic_id,
        place.partition,
        surviving,
        place.orphans,
        start,
        decisions.stop,
        stop,
        decisions.undecided,
        disks=disks,
    )
    check_decided(options.ending, place, stop, plan.stop, plan.end_reason)
    slices = [*bounded(spans(plan, decisions, options, side_files))] if with_slices else []
    read = [(part.start_offset, part.stop_offset) for part in slices]
    check_ends(surviving, decisions, read, side_files)
    return PlannedPartition(plan, [*slices], len(decisions.aborted))
