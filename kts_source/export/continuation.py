"""Where an export continues: behind the offsets that the table holds, and never with a silent gap.

A table grows upwards only. Offsets that it holds are not read again, so the tier need not have them
any more.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kts_source.errors import (
    DataLossError,
    ExportError,
    OffsetOutOfRangeError,
    RangeGapError,
    RangeOverlapError,
)
from kts_source.export.ranges import held_range, topic_identity
from kts_source.export.report import Skipped
from kts_source.options.selection import EARLIEST_OFFSET, OffsetsBound
from kts_source.planning.bounds import Place, requested_bounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kts_source.export.ranges import CommittedRanges, OffsetRange
    from kts_source.export.tables.export_table import TableState
    from kts_source.options import ScanOptions
    from kts_source.planning.bounds import BoundsOf, TimestampLookup
    from kts_source.planning.lineage import PartitionLog
    from kts_source.planning.partition_plan import PartitionPlan

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


def check_rollback(options: ScanOptions, state: TableState) -> None:
    """Checks that the table still has the rows of the offsets it records.

    Raises:
        DataLossError: An earlier state of the table was restored, and loss is not allowed.
    """
    text = state.rollback() if state.fingerprint else None
    if text is None:
        return
    text = (
        f"the table records offsets whose rows it no longer has: {text}. Restore the newest state"
        " that the export committed, or export into another table"
    )
    if options.fail_on_data_loss:
        raise DataLossError(f"{text}; failOnDataLoss=false continues without these rows")
    log.warning("%s; continuing without these rows", text)


def check_logs(
    options: ScanOptions, partitions: Sequence[PartitionPlan], state: TableState
) -> None:
    """Checks that the logs that were planned are those that the table has records of.

    Args:
        options: What was asked for.
        partitions: As planned.
        state: What the table holds.

    Raises:
        DataLossError: A log ends below the table, another leader wrote the offsets that the table
            has, a topic was created again, or a new partition has lost its first records.
    """
    if not state.fingerprint:
        return
    topics: dict[tuple[str, str], bool] = {}
    unknown = []
    for part in partitions:
        held = held_range(state.committed, part.topic, part.topic_id, part.partition)
        topic = part.topic, part.topic_id
        topics[topic] = topics.get(topic, False) or held is not None
        if held is None:
            unknown.append(part)
        else:
            _check_log(options, part, held)
    for part in unknown:
        # Earlier versions do not record where partitions begin that they have not written yet.
        if topics[part.topic, part.topic_id] and state.has_recorded(part.topic):
            _check_new(options, part)
    for (name, topic_id), is_held in topics.items():
        is_chosen = name in options.topic_ids or "" in options.topic_ids
        if is_held or is_chosen:
            continue
        before = state.previous_id(name, topic_identity(name, topic_id))
        if before is not None:
            _check_recreated(options, name, before, topic_id)


def epoch_before(part: PartitionPlan, stop: int, options: ScanOptions) -> int | None:
    """Returns the leader epoch that owns offset `stop - 1`; `None` if that is unknown."""
    # A plan file with brokers has the epochs of the tier's segments only.
    if options.plan_file is not None and part.brokers is not None:
        return None
    epochs = [entry.epoch for entry in part.surviving.lineage if entry.start_offset < stop]
    return epochs[-1] if epochs else None


def _check_log(options: ScanOptions, part: PartitionPlan, held: OffsetRange) -> None:
    place = Place(part.topic, part.partition, fail_on_data_loss=options.fail_on_data_loss)
    stop = part.surviving.stop
    if held.stop > stop:
        if options.plan_file is None:  # an old plan ends earlier and has nothing new
            place.raise_or_warn(
                f"the log ends at offset {stop}, and the table holds [{held.start}, {held.stop}):"
                " records of the table were lost in an unclean election or with their segments, or"
                " were read from brokers or disks that the options no longer name. Export into"
                " another table; failOnDataLoss=false keeps the table's rows and continues at"
                f" offset {held.stop}"
            )
        return
    owner = epoch_before(part, held.stop, options)
    if None not in (owner, held.epoch) and owner != held.epoch:
        place.raise_or_warn(
            f"the table holds [{held.start}, {held.stop}), and leader epoch {held.epoch} wrote the"
            f" last of these records; in the log it is of epoch {owner} now: an unclean election"
            " replaced records that the table has. Export into another table;"
            f" failOnDataLoss=false keeps the table's rows and continues at offset {held.stop}"
        )


def _check_new(options: ScanOptions, part: PartitionPlan) -> None:
    place = Place(part.topic, part.partition, fail_on_data_loss=options.fail_on_data_loss)
    first = part.surviving.log_start
    starting = options.starting
    named = starting.offsets if isinstance(starting, OffsetsBound) else {}
    is_named = named.get(part.topic, {}).get(part.partition, EARLIEST_OFFSET) != EARLIEST_OFFSET
    if first == 0 or part.start != first or is_named:
        return
    place.raise_or_warn(
        f"the partition is new to the table and begins at offset {first}: offsets [0, {first}) may"
        " have been deleted before they were exported. Name the offset in startingOffsets, or set"
        f" failOnDataLoss=false, to export it from offset {first}",
        OffsetOutOfRangeError,
    )


def _check_recreated(options: ScanOptions, topic: str, before: str, now: str) -> None:
    text = (
        f"topic {topic} was created again: the table has records of {before}, and the topic has id"
        f" {now} now. Records of the earlier topic that were not exported are not read any more"
    )
    if options.fail_on_data_loss:
        raise DataLossError(
            f"{text}. Export into another table; option topicId with the new id, or"
            " failOnDataLoss=false, adds its records to this table",
            topic=topic,
        )
    log.warning("%s", text)


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
