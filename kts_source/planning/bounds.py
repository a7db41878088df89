"""From what the user asked for to offsets of one partition.

`earliest` is the log start, `latest` the tier's end. Offsets outside what the tier holds are an
error that says why, or are clamped with a warning. A timestamp stands for the first offset whose
record is dated at or after it, as a broker's ListOffsets answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from kts_source.errors import DataLossError, InvalidOptionError, OffsetOutOfRangeError
from kts_source.options.requested_bounds import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    Bound,
    EarliestBound,
    LatestBound,
    OffsetsBound,
    TimestampBound,
)
from kts_source.planning.lineage import PartitionLog
from kts_source.texts import some

if TYPE_CHECKING:
    from kts_source.layout.layout import Orphan
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.options import ScanOptions
    from kts_source.planning.isolation import Decisions

log = logging.getLogger(__name__)

TimestampLookup: TypeAlias = Callable[[int], tuple[PartitionLog, int | None]]
"""Timestamp in ms to the first offset dated at or after it, or `None`, and the log with all holes
below that offset that may hold an earlier one.
"""


@dataclass(frozen=True, slots=True)
class Place:
    """The partition a bound is resolved for.

    Attributes:
        orphans: Objects that belong to no whole segment.
    """

    topic: str
    partition: int
    orphans: tuple[Orphan, ...] = ()

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    def in_parts(self, start: int, stop: int) -> str:
        """What there is of segments that begin in [start, stop), for a text; empty if nothing."""
        found = [
            str(orphan)
            for orphan in self.orphans
            if orphan.base_offset is not None and start <= orphan.base_offset < stop
        ]
        return f"; only parts of segments are there: {some(found)}" if found else ""


def resolve_start(
    bound: Bound,
    place: Place,
    partition: PartitionLog,
    *,
    lookup: TimestampLookup,
    unmatched_is_latest: bool,
    fail_on_data_loss: bool,
) -> int:
    """The first offset to read, inclusive.

    Raises:
        OffsetOutOfRangeError: Outside what the tier holds, or no offset has the timestamp.
        DataLossError: The first offset that has the timestamp may be one of those missing.
    """
    wanted = _wanted(bound, place)
    if wanted is None or wanted == EARLIEST_OFFSET:
        return partition.log_start
    if isinstance(bound, OffsetsBound):
        return _checked("startingOffsets", wanted, place, partition, fail_on_data_loss)
    partition, offset = lookup(wanted)
    check_no_holes(
        place,
        partition,
        partition.log_start,
        partition.stop if offset is None else offset,
        fail_on_data_loss=fail_on_data_loss,
        note=f", where records dated at or after {wanted} ms may have been",
    )
    if offset is not None:
        return offset
    if unmatched_is_latest:
        return partition.stop
    raise OffsetOutOfRangeError(
        f"{place}: no record in the tier is dated at or after {wanted} ms"
        " (startingOffsetsByTimestampStrategy=latest makes the range empty instead)"
    )


def resolve_stop(
    bound: Bound,
    place: Place,
    partition: PartitionLog,
    *,
    lookup: TimestampLookup,
    fail_on_data_loss: bool,
) -> int:
    """The offset to read up to, exclusive, before transactions are looked at.

    Raises:
        OffsetOutOfRangeError: Outside what the tier holds.
    """
    wanted = _wanted(bound, place)
    if wanted is None or wanted == LATEST_OFFSET:
        return partition.stop
    if isinstance(bound, OffsetsBound):
        return _checked("endingOffsets", wanted, place, partition, fail_on_data_loss)
    partition, offset = lookup(wanted)
    return partition.stop if offset is None else offset


def named_partitions(bound: Bound) -> Mapping[str, Mapping[int, int]] | None:
    """Topic to partition of a bound that names partitions; `None` for one that holds for all."""
    if isinstance(bound, EarliestBound | LatestBound | TimestampBound):
        return None
    return bound.offsets if isinstance(bound, OffsetsBound) else bound.timestamps_ms


def check_named(
    options: ScanOptions, held: AbstractSet[tuple[str, int]], topics: AbstractSet[str]
) -> None:
    """As in Spark, a bound in JSON must name exactly the partitions that are read.

    Args:
        options: Whose bounds.
        held: Topic and partition of all that is read.
        topics: Of these, partitions that hold nothing may be named.

    Raises:
        InvalidOptionError: It names others, or not all.
    """
    for option, bound in (("starting", options.starting), ("ending", options.ending)):
        named = named_partitions(bound)
        if named is None:
            continue
        pairs = {(topic, number) for topic, numbers in named.items() for number in numbers}
        extra = {pair for pair in pairs - held if pair[0] not in topics}
        for problem, what in ((held - pairs, "does not name"), (extra, "names")):
            if problem:
                names = ", ".join(f"{topic}-{number}" for topic, number in sorted(problem))
                raise InvalidOptionError(
                    f"the {option} offsets must name the partitions that are read (−2 earliest,"
                    f" −1 latest): the option {what} {names}"
                )


def _wanted(bound: Bound, place: Place) -> int | None:
    if isinstance(bound, TimestampBound):
        return bound.timestamp_ms
    named = named_partitions(bound)
    return None if named is None else named[place.topic][place.partition]


def _checked(
    option: str, offset: int, place: Place, partition: PartitionLog, fail_on_data_loss: bool
) -> int:
    if partition.log_start <= offset <= partition.stop:
        return offset
    reason = "not tiered yet" if offset > partition.stop else "below the log start"
    text = (
        f"{place}: {option} asks for offset {offset}, which is {reason}: the tier holds"
        f" [{partition.log_start}, {partition.stop}){place.in_parts(offset, offset + 1)}"
    )
    if fail_on_data_loss:
        raise OffsetOutOfRangeError(f"{text}; failOnDataLoss=false reads what there is")
    log.warning("%s; reading what there is", text)
    return min(max(offset, partition.log_start), partition.stop)


def check_order(place: Place, start: int, stop: int) -> None:
    """Refuses a range that ends before it begins, as Spark's Kafka source does.

    Raises:
        InvalidOptionError: `start` is above `stop`.
    """
    if start > stop:
        raise InvalidOptionError(
            f"{place}: the starting offset {start} lies above the ending offset {stop}"
        )


def check_decided(
    bound: Bound, place: Place, stop: int, decided: int, reason: str, *, fail_on_data_loss: bool
) -> None:
    """Refuses an ending offset above the first undecided transaction.

    Ends that name no offset (`latest`, −1, timestamps) are where they can be: never refused.

    Raises:
        OffsetOutOfRangeError: The user named the offset and allowed no loss.
    """
    if decided >= stop:
        return
    wanted = _wanted(bound, place) if isinstance(bound, OffsetsBound) else None
    if wanted is None or wanted == LATEST_OFFSET or not fail_on_data_loss:
        return
    raise OffsetOutOfRangeError(
        f"{place}: endingOffsets asks for offset {wanted}, but read_committed ends at offset"
        f" {decided}: {reason}; failOnDataLoss=false reads what there is"
    )


def check_lineage_known(place: Place, damaged: RemoteSegment, *, fail_on_data_loss: bool) -> None:
    """Raises `DataLossError` for a damaged segment whose leader epoch may be newer than all that
    checkpoints tell of, or warns where loss is allowed.
    """
    text = (
        f"{place}: the newest leader epoch may be that of offsets [{damaged.start_offset},"
        f" {damaged.stop_offset}), whose checkpoint is lost: nothing tells which segments belong to"
        f" the log{place.in_parts(damaged.start_offset, damaged.stop_offset)}"
    )
    if fail_on_data_loss:
        raise DataLossError(f"{text}; failOnDataLoss=false reads them as if they did")
    log.warning("%s; read as if they did", text)


def check_outcomes(
    place: Place,
    partition: PartitionLog,
    decisions: Decisions,
    *,
    fail_on_data_loss: bool,
) -> None:
    """Raises `DataLossError` when transactions may have ended in a hole, or warns where loss is
    allowed: whether their records are visible is lost with it. The same where nothing tells what
    was open behind a hole.
    """
    gap = decisions.unknown_behind
    if gap is not None:
        text = (
            f"{place}: producer snapshots from offset {gap.stop} on are not usable, and no segment"
            f" in the tier holds offsets [{gap.start}, {gap.stop}), so nothing tells which"
            " transactions were open there"
        )
        if fail_on_data_loss:
            raise DataLossError(f"{text}; failOnDataLoss=false takes it that none was")
        log.warning("%s; read as if none was", text)
    lost = decisions.lost
    if not lost:
        return
    producers = ", ".join(f"{txn.producer_id} since offset {txn.first_offset}" for txn in lost)
    oldest = min(txn.first_offset for txn in lost)
    holes = "; ".join(
        f"[{hole.start}, {hole.stop})" for hole in partition.missing if hole.start > oldest
    )
    text = (
        f"{place}: no segment in the tier holds offsets {holes}, where transactions of these"
        f" producers may have ended: {producers}"
    )
    if fail_on_data_loss:
        raise DataLossError(f"{text}; failOnDataLoss=false leaves their records out")
    log.warning("%s; their records are left out", text)


def check_no_holes(
    place: Place,
    partition: PartitionLog,
    start: int,
    stop: int,
    *,
    fail_on_data_loss: bool,
    note: str = "",
) -> None:
    """Raises `DataLossError` when a hole lies in [start, stop), or warns where loss is allowed.

    Gaps that need not be holes count: nothing in the tier shows that there was no record.

    Args:
        place: For the text, as is `note`, its end.
        partition: Whose holes.
        start: First offset that matters.
        stop: One past the last.
        fail_on_data_loss: Whether to raise.
        note: Why the holes matter.
    """
    if start >= stop:
        return
    missing = [hole for hole in partition.missing if hole.start < stop and hole.stop > start]
    if not missing:
        return
    parts = []
    for hole in missing:
        before = hole.before.objects.log.key if hole.before else "the log start"
        parts.append(
            f"[{max(hole.start, start)}, {min(hole.stop, stop)}) between {before} and"
            f" {hole.after.objects.log.key}{place.in_parts(hole.start, hole.stop)}"
        )
        if hole in partition.unverifiable:
            parts[-1] += " (none are missing if compaction removed the last records before them)"
    text = f"{place}: no segment in the tier holds offsets {'; '.join(parts)}{note}"
    if fail_on_data_loss:
        raise DataLossError(f"{text}; failOnDataLoss=false skips them")
    log.warning("%s; skipped", text)
