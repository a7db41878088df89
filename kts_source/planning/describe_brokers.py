"""How far the tier lags behind its cluster."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from kts_source.planning.cluster_view import ClusterView

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kts_source.options import ScanOptions
    from kts_source.planning.describe import PartitionWatermark
    from kts_source.planning.scan_plan import ScanPlan


def with_brokers(
    watermarks: Iterable[PartitionWatermark], plan: ScanPlan, options: ScanOptions
) -> list[PartitionWatermark]:
    """Watermarks of a plan of tier and brokers, with what the cluster has beyond the tier.

    Raises:
        BrokerError: Brokers refuse, or do not answer.
    """
    assert options.brokers is not None
    sizes: dict[tuple[str, int], int] = {}
    for each in (piece for task in plan.tasks for piece in task.ranges):
        place = each.topic, each.partition
        sizes[place] = sizes.get(place, 0) + each.nominal_bytes
    found = []
    with closing(ClusterView(options.brokers, options)) as view:
        for mark, part in zip(watermarks, plan.partitions, strict=True):
            brokers, ranges = part.brokers, part.surviving.ranges
            assert brokers is not None
            place = part.topic, part.partition
            catalog = part.catalog
            tier_end = ranges[-1].stop if ranges else part.surviving.log_start
            found.append(
                replace(
                    mark,
                    tier_end=tier_end,
                    holes=tuple(span for span in brokers.ranges if span[0] < tier_end),
                    high_watermark=brokers.high_watermark,
                    cluster_stable_offset=brokers.last_stable_offset,
                    local_start=brokers.local_start,
                    broker_offsets=sum(stop - start for start, stop in brokers.ranges),
                    broker_bytes=sizes.get(place, 0),
                    oldest_untiered_ms=view.first_timestamp_ms(view.logs[place], tier_end),
                    catalog_records=None if catalog is None else catalog.records,
                    copies_in_progress=None if catalog is None else catalog.copying,
                    deletions_in_progress=None if catalog is None else catalog.deleting,
                )
            )
    return found
