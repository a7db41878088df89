"""How far a tier lags behind the disks of brokers that are gone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kts_source.store.joined_store import is_beside

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kts_source.planning.describe import PartitionWatermark
    from kts_source.planning.scan_plan import PartitionPlan, ScanPlan
    from kts_source.planning.side_files import SideFiles


def with_disks(
    watermarks: Iterable[PartitionWatermark], plan: ScanPlan, side_files: SideFiles
) -> list[PartitionWatermark]:
    """Watermarks of a plan of tier and disks, with what the disks have beyond the tier."""
    sizes: dict[tuple[str, int], int] = {}
    for each in (piece for task in plan.tasks for piece in task.slices):
        if is_beside(each.objects.log.key):
            place = each.topic, each.partition
            sizes[place] = sizes.get(place, 0) + each.nominal_bytes
    found = []
    for mark, part in zip(watermarks, plan.partitions, strict=True):
        if part.disks is None:  # no replica of it is left
            found.append(mark)
            continue
        used = [span.segment for span in part.surviving.ranges]
        tiered = [segment for segment in used if not is_beside(segment.objects.log.key)]
        found.append(
            replace(
                mark,
                tier_end=part.tier_end,
                tier_end_timestamp_ms=tiered[-1].max_timestamp_ms if tiered else -1,
                segments=len(tiered),
                stored_bytes=sum(segment.objects.log.size for segment in tiered),
                original_bytes=sum(segment.objects.size_in_bytes for segment in tiered),
                high_watermark=part.disks.high_watermark,
                local_start=part.disks.local_start,
                disk_offsets=sum(span.stop - span.start for span in part.disk_ranges),
                disk_bytes=sizes.get((part.topic, part.partition), 0),
                oldest_untiered_ms=_oldest_untiered(part, side_files),
            )
        )
    return found


def _oldest_untiered(part: PartitionPlan, side_files: SideFiles) -> int | None:
    """When the first record behind the tier is dated; `None` where there is none."""
    for span in part.disk_ranges:
        if span.start < part.tier_end:
            continue
        index = side_files.offset_index(span.segment)
        position = 0 if index is None else index.lookup(span.start).position
        times = side_files.record_times(span.segment, position, dated_from_ms=-1)
        for offset, dated_ms in times:
            if span.start <= offset < span.stop:
                return dated_ms
    return None
