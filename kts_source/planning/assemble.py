"""From planned partitions to the plan: slices cut to size, packed into tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kts_source.planning.isolation import report_isolation
from kts_source.planning.pruning import fingerprint
from kts_source.planning.replay import made_with
from kts_source.planning.scan_plan import PartitionPlan, ScanPlan
from kts_source.planning.slicing import bounded, cut, cut_range, pack, target_bytes
from kts_source.read.task import SegmentSlice

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kts_source.broker.broker_range import BrokerRange
    from kts_source.options import ScanOptions


@dataclass(frozen=True, slots=True)
class PlannedPartition:
    """A partition's plan, what is read of it in offset order, and how many aborted transactions
    have data there.
    """

    plan: PartitionPlan
    spans: list[SegmentSlice | BrokerRange]
    aborted: int


def assembled(
    options: ScanOptions,
    planned: Sequence[PlannedPartition],
    notes: Iterable[str],
    asked: Mapping[str, Sequence[int]],
) -> ScanPlan:
    """The plan of all partitions; `asked` are those that were asked for, by topic."""
    report_isolation([(one.plan, one.aborted) for one in planned])
    wanted = [span for one in planned for span in one.spans]
    target = target_bytes(wanted, options)
    pieces = bounded(
        part
        for span in wanted
        for part in (
            cut(span, target)
            if isinstance(span, SegmentSlice)
            else cut_range(span, target, options.max_records_per_partition)
        )
    )
    return ScanPlan(
        tuple(one.plan for one in planned),
        tuple(pack(pieces, target, options)),
        options.columns,
        fingerprint(options.where),
        tuple(notes),
        made_with(options, asked),
    )
