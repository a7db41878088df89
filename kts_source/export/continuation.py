"""Where an export continues: behind the offsets that the table holds, and never with a silent gap.

A table grows upwards only. Offsets that it holds are not read again, so the tier need not have them
any more.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kts_source.errors import ExportError, RangeGapError, RangeOverlapError
from kts_source.export.ranges import held_range
from kts_source.export.report import Skipped
from kts_source.options.requested_bounds import OffsetsBound
from kts_source.planning.bounds import Place, requested_bounds

if TYPE_CHECKING:
    from kts_source.export.ranges import CommittedRanges, OffsetRange
    from kts_source.options import ScanOptions
    from kts_source.planning.bounds import BoundsOf, TimestampLookup
    from kts_source.planning.lineage import PartitionLog
    from kts_source.planning.scan_plan import PartitionPlan

log = logging.getLogger(__name__)

GONE = "no longer in the tier"


@dataclass(frozen=True, slots=True)
class Continuation:
    """What a table holds, as the planner asks for it (`planning.bounds.Progress`).

    Attributes:
        resume: See `plan_export`.
        skipped: Gains what is left out because loss is allowed. Planning threads share it.
    """

    options: ScanOptions
    committed: CommittedRanges
    resume: bool
    skipped: list[Skipped] = field(default_factory=list)

    def bounds_of(self, topic: str, topic_id: str, partition: int) -> BoundsOf | None:
        """See `Progress.bounds_of`."""
        held = held_range(self.committed, topic, topic_id, partition)
        if held is None:
            return None
        place = Place(topic, partition, fail_on_data_loss=self.options.fail_on_data_loss)

        def bounds(tier: PartitionLog, lookup: TimestampLookup) -> tuple[int, int]:
            def shorter(timestamp_ms: int) -> tuple[PartitionLog, int | None]:
                found = _held_offset_dated(tier, timestamp_ms, held)
                log, offset = (tier, found) if found is not None else lookup(timestamp_ms)
                return _with_held(log, held), offset

            known, look = (_with_held(tier, held), shorter) if self.resume else (tier, lookup)
            start, stop = requested_bounds(self.options, place, known, look)
            first = self._first(place, held, start, stop, tier.log_start)
            return min(first, tier.stop), min(max(stop, first), tier.stop)

        return bounds

    def first_missing(self, part: PartitionPlan) -> int:
        """See `Progress.first_missing`."""
        held = held_range(self.committed, part.topic, part.topic_id, part.partition)
        if held is None:
            return part.start
        place = Place(part.topic, part.partition)
        return self._first(place, held, part.start, part.stop, part.surviving.log_start)

    def _first(self, place: Place, held: OffsetRange, start: int, stop: int, log_start: int) -> int:
        """The first of offsets [start, stop) to write; `stop` when there is none."""
        if start >= stop:
            return stop
        holds = f"the table holds [{held.start}, {held.stop})"
        if start < held.start:
            end = min(stop, held.start)
            text = f"{place}: offsets [{start}, {end}) were asked for, and {holds}: a table grows"
            error = RangeOverlapError(
                f"{text} upwards only. Export them into another table, or go on with"
                f" startingOffsets from {held.start} to {held.stop}; failOnDataLoss=false leaves"
                " them out, and the report names them",
                topic=place.topic,
                partition=place.partition,
                offset=start,
            )
            self._leave_out(place, start, end, "below what the table holds", error)
        if not self.resume and start < held.stop and stop > held.start:
            low, high = max(start, held.start), min(stop, held.stop)
            raise RangeOverlapError(
                f"{place}: offsets [{low}, {high}) were asked for, and {holds}; resume=True"
                " continues behind them",
                topic=place.topic,
                partition=place.partition,
                offset=low,
            )
        first = held.stop
        if first >= stop:
            return stop
        if first < log_start:
            end = min(log_start, stop)
            self._leave_out(place, first, end, GONE, _gap(place, first, end, f"are {GONE}", holds))
            first = end
        if start > first:
            raise _gap(place, first, start, "were not asked for", holds)
        return first

    def _leave_out(
        self, place: Place, start: int, stop: int, reason: str, error: ExportError
    ) -> None:
        if self.options.fail_on_data_loss:
            raise error
        left_out = Skipped(place.topic, place.partition, start, stop, reason)
        # A partition is planned again where a part of its log did not tell enough.
        if left_out not in self.skipped:
            log.warning("%s: offsets [%d, %d) are left out: %s", place, start, stop, reason)
            self.skipped.append(left_out)


def left_out_by_bounds(
    options: ScanOptions, part: PartitionPlan, held: OffsetRange | None
) -> list[Skipped]:
    """Offsets that the options name and the tier does not hold, where loss is allowed."""

    def named(bound: object) -> int:
        offsets = bound.offsets if isinstance(bound, OffsetsBound) else {}
        return offsets.get(part.topic, {}).get(part.partition, -1)

    tier = part.surviving
    start, stop = named(options.starting), named(options.ending)
    low, above = tier.log_start, max(tier.stop, start)
    if held is not None:
        low, above = min(low, held.start), max(above, held.stop)
    if stop >= 0:
        low = min(low, stop)
    found = []
    if 0 <= start < low:
        found.append(Skipped(part.topic, part.partition, start, low, GONE))
    if stop > above:
        found.append(Skipped(part.topic, part.partition, above, stop, "not tiered yet"))
    return found


def _gap(place: Place, start: int, stop: int, reason: str, holds: str) -> RangeGapError:
    return RangeGapError(
        f"offsets [{start}, {stop}) of {place} {reason}, and {holds}: the table would lack them",
        topic=place.topic,
        partition=place.partition,
        offset=start,
    )


def _with_held(tier: PartitionLog, held: OffsetRange) -> PartitionLog:
    """The log with what the table holds of it, as bounds see it."""
    return replace(
        tier,
        log_start=min(tier.log_start, held.start),
        stop=max(tier.stop, held.stop),
        holes=tuple(hole for hole in tier.holes if hole.stop > held.stop),
        unverifiable=tuple(hole for hole in tier.unverifiable if hole.stop > held.stop),
    )


def _held_offset_dated(tier: PartitionLog, timestamp_ms: int, held: OffsetRange) -> int | None:
    """An offset that the table holds, where the first one dated at or after a time is among them by
    what manifests tell: then nobody needs to know which.
    """
    for span in tier.ranges:
        segment = span.segment
        if not segment.is_dated_before(timestamp_ms):
            # The record of that time may lie outside the range of a clipped segment.
            is_whole = (span.start, span.stop) == (segment.start_offset, segment.stop_offset)
            is_held = held.start <= span.start and span.stop <= held.stop
            is_sure = segment.max_timestamp_ms > 0 and is_whole and is_held
            return span.start if is_sure else None
    return None
