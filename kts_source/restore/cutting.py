"""Finds where to cut a log so that no transaction is open at its end."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from kts_source.planning.isolation import EndStates
from kts_source.planning.side_files import SideFiles
from kts_source.read.segment_source import SegmentSource
from kts_source.tier import open_tier

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kts_source.options import ScanOptions
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
    with closing(open_tier(options)) as tier:
        source = SegmentSource(tier, options.key_ring.loaded())
        return {
            (plan.topic, plan.partition): _end(
                plan, SideFiles(source, max_batch_bytes=options.max_batch_bytes)
            )
            for plan in undecided
        }


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
