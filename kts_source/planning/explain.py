"""A plan in words: what is read, what is left out and why, and what it will cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kts_source.planning.estimate import S3_PRICES, Price, estimate
from kts_source.planning.scan_plan import segment_name
from kts_source.store.joined_store import is_beside
from kts_source.texts import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kts_source.planning.scan_plan import (
        BrokerPart,
        CatalogPart,
        DiskPart,
        PartitionPlan,
        ScanPlan,
        SegmentName,
    )


def explain(plan: ScanPlan, prices: Mapping[str, Price] = S3_PRICES) -> str:
    """The plan as lines of text; `prices` by storage class."""
    work = estimate(plan.tasks)
    slices = sum(len(task.slices) for task in plan.tasks)
    ranges = [part for task in plan.tasks for part in task.ranges]
    tier_bytes = plan.nominal_bytes - sum(part.nominal_bytes for part in ranges)
    lines = [
        f"{len(plan.tasks)} tasks, {slices} slices, {tier_bytes:,} bytes of segments",
        f"{work.requests:,} requests for {work.bytes:,} stored bytes,"
        f" about ${work.cost(prices):.4f}",
    ]
    for name, (requests, size) in sorted(work.by_class.items()):
        lines.append(f"  {name}: {requests:,} requests, {size:,} bytes")
    on_disk = [p for task in plan.tasks for p in task.slices if is_beside(p.objects.log.key)]
    if on_disk:
        size = sum(part.nominal_bytes for part in on_disk)
        lines.append(f"{len(on_disk)} of the slices, {size:,} bytes, are of brokers' disks")
    if ranges:
        offsets = sum(part.stop_offset - part.start_offset for part in ranges)
        size = plan.nominal_bytes - tier_bytes
        lines.append(
            f"{len(ranges)} ranges of {offsets:,} offsets from brokers, about {size:,} bytes"
        )
    lines += plan.notes
    kept = None if plan.where is None else _kept(plan)
    if kept is not None:
        lines.append(_where(plan, kept))
    for part in plan.partitions:
        lines.extend(_partition(part, kept))
    return "\n".join(map(printable, lines))


def _kept(plan: ScanPlan) -> dict[SegmentName, tuple[int, int]]:
    """What the tasks read of each segment, from the first slice's start to the last one's stop."""
    kept: dict[SegmentName, tuple[int, int]] = {}
    for task in plan.tasks:
        for part in task.slices:
            key = segment_name(part)
            start, stop = kept.get(key, (part.start_offset, part.stop_offset))
            kept[key] = min(start, part.start_offset), max(stop, part.stop_offset)
    return kept


def _where(plan: ScanPlan, kept: Mapping[SegmentName, tuple[int, int]]) -> str:
    out = cut = size = 0
    for part in plan.partitions:
        for span, low, high in part.wanted_ranges():
            segment = span.segment
            left = kept.get(segment_name(segment))
            if left is None:
                out += 1
                size += segment.objects.size_in_bytes
            else:
                cut += left != (low, high)
    return (
        f"where leaves out {out} segments of {size:,} bytes and narrows {cut} by offsets and times;"
        " rows of the others are decided by the tasks"
    )


def _partition(
    part: PartitionPlan, kept: Mapping[SegmentName, tuple[int, int]] | None
) -> Iterator[str]:
    log = part.surviving
    yield (
        f"{part.topic_partition} (topic id {part.topic_id}): offsets [{part.start},"
        f" {part.stop}) of [{log.log_start}, {log.stop}); ends: {part.end_reason}"
    )
    for span in log.ranges:
        segment = span.segment
        low, high = max(span.start, part.start), min(span.stop, part.stop)
        what = f"offsets [{low}, {high})" if low < high else "not in the range"
        if kept is not None and low < high:
            left = kept.get(segment_name(segment))
            if left is None:
                what += ", left out by where"
            elif left != (low, high):
                what += f", where leaves [{left[0]}, {left[1]})"
        kind = "disk" if is_beside(segment.objects.log.key) else "segment"
        yield f"  {kind} {segment.segment_id}: {what}, {segment.objects.size_in_bytes:,} bytes"
    if part.brokers is not None:
        yield from _brokers(part, part.brokers)
    if part.disks is not None:
        yield from _disks(part, part.disks)
    if part.catalog is not None:
        yield from _catalog(part.catalog)
    for hole in log.holes:
        yield f"  hole: offsets [{hole.start}, {hole.stop}) {hole.between}"
    for gap in log.unverifiable:
        yield f"  gap that cannot be proven: offsets [{gap.start}, {gap.stop})"
    for skipped in log.skipped:
        yield f"  skipped segment {skipped.segment.segment_id}: {skipped.reason}"
    for orphan in part.orphans:
        yield f"  orphans {', '.join(orphan.keys)}: {orphan.reason}"


def _brokers(part: PartitionPlan, brokers: BrokerPart) -> Iterator[str]:
    seam = part.surviving.ranges[-1].stop if part.surviving.ranges else part.surviving.log_start
    local = "unknown" if brokers.local_start is None else str(brokers.local_start)
    yield (
        f"  cluster: high watermark {brokers.high_watermark}, last stable offset"
        f" {brokers.last_stable_offset}, local start {local}, leader epoch {brokers.leader_epoch};"
        f" the tier ends at {seam}, {brokers.high_watermark - seam} offsets behind"
    )
    for start, stop in brokers.ranges:
        low, high = max(start, part.start), min(stop, part.stop)
        if low < high:
            yield f"  brokers: offsets [{low}, {high})"


def _disks(part: PartitionPlan, disks: DiskPart) -> Iterator[str]:
    seam, log = part.tier_end, part.surviving
    mark = "not recorded" if disks.high_watermark is None else str(disks.high_watermark)
    local = sum(span.stop - span.start for span in part.disk_ranges)
    yield (
        f"  disks: high watermark {mark}, local start {disks.local_start}, in {disks.folder}; the"
        f" tier ends at {seam}, {log.stop - seam} offsets behind; {local} offsets are on disk alone"
    )


def _catalog(catalog: CatalogPart) -> Iterator[str]:
    yield (
        f"  catalog: {catalog.records:,} records of __remote_log_metadata-{catalog.partition},"
        f" offsets [{catalog.start}, {catalog.stop}); segments: {catalog.live} live,"
        f" {catalog.copying} being copied, {catalog.deleting} being deleted"
    )
    for start, stop in catalog.not_named:
        yield f"  not in the catalog: offsets [{start}, {stop}), which are not on the leader's disk"
