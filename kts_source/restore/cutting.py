"""Finds offsets at which no transaction is open: where to cut a log, and where the local log of a
partition begins whose older segments brokers serve from the tier.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from kts_source.planning.isolation import EndStates
from kts_source.planning.side_files import SideFiles
from kts_source.read.segment_source import SegmentSource
from kts_source.tier import open_tier

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kts_source.options import ScanOptions
    from kts_source.planning.lineage import PartitionLog, SegmentRange
    from kts_source.planning.partition_plan import PartitionPlan


def ends_without_open_transactions(
    plans: Iterable[PartitionPlan], options: ScanOptions
) -> dict[tuple[str, int], int]:
    """Returns where to cut each log with undecided transactions, by topic and partition: the
    highest end offset at which no transaction is open.

    Raises:
        TieredKafkaError: A segment or side file cannot be read.
    """
    undecided = [plan for plan in plans if plan.undecided]
    if not undecided:
        return {}
    with _side_files(options) as side_files:
        return {(plan.topic, plan.partition): _end(plan, side_files) for plan in undecided}


def local_starts(
    plans: Iterable[PartitionPlan], options: ScanOptions, ends: Mapping[tuple[str, int], int]
) -> dict[tuple[str, int], int]:
    """Returns the offset at which each local log begins if brokers serve the segments below it from
    the tier, by topic and partition: the highest offset between two segments at which no
    transaction is open. It is the log start if there is no such offset.

    A replica that begins at another offset loses the transactions that are open there. Then
    consumers with `read_committed` receive records that were aborted later.

    Args:
        plans: The partitions.
        options: Options of the tier.
        ends: One past the last offset to restore, if this is not the end of the tier.

    Raises:
        TieredKafkaError: A segment or side file cannot be read.
    """
    starts = {}
    with _side_files(options) as side_files:
        for plan in plans:
            log = plan.surviving
            pair = plan.topic, plan.partition
            starts[pair] = _local_start(log, ends.get(pair, log.stop), side_files)
    return starts


@contextmanager
def _side_files(options: ScanOptions) -> Iterator[SideFiles]:
    with closing(open_tier(options)) as tier:
        source = SegmentSource(tier, options.key_ring.loaded())
        yield SideFiles(source, max_batch_bytes=options.max_batch_bytes)


def _local_start(log: PartitionLog, end: int, side_files: SideFiles) -> int:
    count = 0
    while count < len(log.ranges) and _is_served_whole(log.ranges[count], count == 0, end):
        count += 1
    states = EndStates(log, side_files)
    while count and (
        # A new replica begins with this snapshot.
        side_files.snapshot(log.ranges[count - 1].segment) is None or states.open_after(count - 1)
    ):
        count -= 1
    if not count:
        return log.log_start
    # Segments can end before the next one begins, because offsets without records do not count.
    return min(log.ranges[count].start, end) if count < len(log.ranges) else end


def _is_served_whole(span: SegmentRange, is_first: bool, end: int) -> bool:
    """Returns whether a broker can serve a segment: all its offsets up to `end` belong to the log,
    and its largest timestamp, which lookups by time and retention need, is known.
    """
    segment = span.segment
    return (
        span.stop == segment.stop_offset <= end
        and (is_first or span.start == segment.start_offset)
        and segment.objects.size_in_bytes > 0
        and segment.max_timestamp_ms >= 0
    )


def _end(plan: PartitionPlan, side_files: SideFiles) -> int:
    surviving = plan.surviving
    end = plan.stop
    while end > surviving.log_start:
        ranges = tuple(
            replace(span, stop=min(span.stop, end)) for span in surviving.ranges if span.start < end
        )
        states = EndStates(replace(surviving, ranges=ranges, stop=end), side_files)
        # A transaction that is open at `end` would lose its marker, so the log must end before its
        # first record. Repeat, because another transaction may be open at the new end.
        first = min(states.open_after(len(ranges) - 1).values(), default=end)
        if first >= end:
            return end
        end = first
    return surviving.log_start
