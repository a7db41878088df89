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
from typing import TYPE_CHECKING, Protocol, TypeAlias

from kts_source.errors import DataLossError, InvalidOptionError, OffsetOutOfRangeError
from kts_source.options.selection import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    Bound,
    EarliestBound,
    LatestBound,
    OffsetsBound,
    TimestampBound,
)
from kts_source.planning.lineage import PartitionLog
from kts_source.texts import printable, some

if TYPE_CHECKING:
    from kts_source.layout.layout import Orphan
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.options import ScanOptions
    from kts_source.planning.isolation import Decisions
    from kts_source.planning.scan_plan import PartitionPlan

log = logging.getLogger(__name__)

TimestampLookup: TypeAlias = Callable[[int], tuple[PartitionLog, int | None]]
"""Timestamp in ms to the first offset dated at or after it, or `None`, and the log with all holes
below that offset that may hold an earlier one.
"""
BoundsOf: TypeAlias = Callable[[PartitionLog, TimestampLookup], tuple[int, int]]
"""A partition's log and timestamp look-up to the offsets [start, stop) that are read of it."""


class Progress(Protocol):
    """What a reader has of the topics already; a plan goes on behind it."""

    def bounds_of(self, topic: str, topic_id: str, partition: int) -> BoundsOf | None:
        """What finds the offsets of a partition that are still to be read; `None` where the reader
        has none of it, and the options alone decide.
        """
        ...

    def first_missing(self, part: PartitionPlan) -> int:
        """The first offset of a planned partition that is still to be read; its end for none."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """The partition whose bounds are resolved and checked.

    Attributes:
        orphans: Objects that belong to no whole segment.
        fail_on_data_loss: Whether what is missing is an error; a warning otherwise.
        holder: What holds the offsets.
        beyond: What offsets above its end are.
    """

    topic: str
    partition: int
    orphans: tuple[Orphan, ...] = ()
    fail_on_data_loss: bool = True
    holder: str = "the tier"
    beyond: str = "not tiered yet"

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

    def raise_or_warn(self, text: str, error: type[DataLossError] = DataLossError) -> None:
        """Raises an error about the partition, or warns where loss is allowed."""
        if self.fail_on_data_loss:
            raise error(f"{self}: {text}")
        log.warning("%s: %s", self, printable(text))


def requested_bounds(
    options: ScanOptions, place: Place, partition: PartitionLog, lookup: TimestampLookup
) -> tuple[int, int]:
    """The offsets [start, stop) that the options ask for, before transactions are looked at.

    Raises:
        OffsetOutOfRangeError: A bound lies outside what the tier holds, or no offset has the
            timestamp of the start.
        DataLossError: The first offset that has the timestamp may be one of those missing.
        InvalidOptionError: The range ends before it begins, as in Spark's Kafka source.
    """
    start = resolve_start(options, place, partition, lookup)
    stop = _resolve_stop(options.ending, place, partition, lookup)
    if start > stop:
        raise InvalidOptionError(
            f"{place}: the starting offset {start} lies above the ending offset {stop}"
        )
    return start, stop


def resolve_start(
    options: ScanOptions, place: Place, partition: PartitionLog, lookup: TimestampLookup
) -> int:
    """The first offset that the options ask for.

    Raises:
        OffsetOutOfRangeError: See `requested_bounds`.
        DataLossError: Likewise.
    """
    wanted = wanted_of(options.starting, place)
    if wanted is None or wanted == EARLIEST_OFFSET:
        return partition.log_start
    if isinstance(options.starting, OffsetsBound):
        return _clamped("startingOffsets", wanted, place, partition)
    partition, offset = lookup(wanted)
    check_no_holes(
        place,
        partition,
        partition.log_start,
        partition.stop if offset is None else offset,
        note=f", where records dated at or after {wanted} ms may have been",
    )
    if offset is not None:
        return offset
    if options.timestamp_strategy == "latest":
        return partition.stop
    raise OffsetOutOfRangeError(
        f"{place}: no record in {place.holder} is dated at or after {wanted} ms"
        " (startingOffsetsByTimestampStrategy=latest makes the range empty instead)"
    )


def _resolve_stop(
    bound: Bound, place: Place, partition: PartitionLog, lookup: TimestampLookup
) -> int:
    wanted = wanted_of(bound, place)
    if wanted is None or wanted == LATEST_OFFSET:
        return partition.stop
    if isinstance(bound, OffsetsBound):
        return _clamped("endingOffsets", wanted, place, partition)
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
    """As in Spark, a bound in JSON must name exactly the partitions that are read, `held`; of
    `topics`, also partitions that hold nothing may be named.

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


def wanted_of(bound: Bound, place: Place) -> int | None:
    """The number that a bound has for a partition; `None` where it names an end of the log."""
    if isinstance(bound, TimestampBound):
        return bound.timestamp_ms
    named = named_partitions(bound)
    return None if named is None else named[place.topic][place.partition]


def _clamped(option: str, offset: int, place: Place, partition: PartitionLog) -> int:
    """An offset that the user named, if the tier holds it or loss is allowed."""
    if partition.log_start <= offset <= partition.stop:
        return offset
    reason = place.beyond if offset > partition.stop else "below the log start"
    place.raise_or_warn(
        f"{option} asks for offset {offset}, which is {reason}: {place.holder} holds"
        f" [{partition.log_start}, {partition.stop}){place.in_parts(offset, offset + 1)}"
        "; failOnDataLoss=false reads what there is",
        OffsetOutOfRangeError,
    )
    return min(max(offset, partition.log_start), partition.stop)


def check_decided(bound: Bound, place: Place, stop: int, decided: int, reason: str) -> None:
    """Refuses an ending offset above the first undecided transaction.

    Ends that name no offset (`latest`, −1, timestamps) are where they can be: never refused.

    Raises:
        OffsetOutOfRangeError: The user named the offset and allowed no loss.
    """
    wanted = wanted_of(bound, place) if isinstance(bound, OffsetsBound) else None
    if decided >= stop or wanted in (None, LATEST_OFFSET) or not place.fail_on_data_loss:
        return
    raise OffsetOutOfRangeError(
        f"{place}: endingOffsets asks for offset {wanted}, but read_committed ends at offset"
        f" {decided}: {reason}; failOnDataLoss=false reads what there is"
    )


def check_lineage_known(place: Place, damaged: RemoteSegment) -> None:
    """Raises `DataLossError` for a damaged segment whose leader epoch may be newer than all that
    checkpoints tell of, or warns where loss is allowed.
    """
    place.raise_or_warn(
        f"the newest leader epoch may be that of offsets [{damaged.start_offset},"
        f" {damaged.stop_offset}), whose checkpoint is lost: nothing tells which segments belong to"
        f" the log{place.in_parts(damaged.start_offset, damaged.stop_offset)}"
        "; failOnDataLoss=false reads them as if they did"
    )


def refuse_contradiction(place: Place, evidence: str) -> None:
    """Raises `DataLossError`, or warns where loss is allowed, if the tier contradicts the lineage
    that drops some of its segments.
    """
    place.raise_or_warn(
        f"{evidence}. Segments would be left out on this evidence. Restore the damaged side file"
        " from a replica or a version of the bucket, or set failOnDataLoss=false to read the log by"
        " the newest checkpoint"
    )


def check_outcomes(place: Place, partition: PartitionLog, decisions: Decisions) -> None:
    """Raises `DataLossError` when transactions may have ended in a hole, or warns where loss is
    allowed: whether their records are visible is lost with it. The same where nothing tells what
    was open behind a hole.
    """
    gap = decisions.unknown_behind
    if gap is not None:
        place.raise_or_warn(
            f"producer snapshots from offset {gap.stop} on are not usable, and no segment in"
            f" {place.holder} holds offsets [{gap.start}, {gap.stop}), so nothing tells which"
            " transactions were open there; failOnDataLoss=false takes it that none was"
        )
    lost = decisions.lost
    if not lost:
        return
    producers = ", ".join(f"{txn.producer_id} since offset {txn.first_offset}" for txn in lost)
    oldest = min(txn.first_offset for txn in lost)
    holes = "; ".join(
        f"[{hole.start}, {hole.stop})" for hole in partition.missing if hole.start > oldest
    )
    place.raise_or_warn(
        f"no segment in {place.holder} holds offsets {holes}, where transactions of these producers"
        f" may have ended: {producers}; failOnDataLoss=false leaves their records out"
    )


def check_no_holes(
    place: Place, partition: PartitionLog, start: int, stop: int, note: str = ""
) -> None:
    """Raises `DataLossError` when a hole lies in [start, stop), or warns where loss is allowed.

    Gaps that need not be holes count: nothing in the tier shows that there was no record. `note`
    says why the holes matter.
    """
    if start >= stop:
        return
    missing = [hole for hole in partition.missing if hole.start < stop and hole.stop > start]
    if not missing:
        return
    parts = []
    for hole in missing:
        parts.append(
            f"[{max(hole.start, start)}, {min(hole.stop, stop)}) {hole.between}"
            f"{place.in_parts(hole.start, hole.stop)}"
        )
        if hole in partition.unverifiable:
            parts[-1] += " (none are missing if compaction removed the last records before them)"
    place.raise_or_warn(
        f"no segment in {place.holder} holds offsets {'; '.join(parts)}{note}"
        "; failOnDataLoss=false skips them"
    )
