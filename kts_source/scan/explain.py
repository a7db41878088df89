"""A plan in words: what is read, what is left out and why, and what it will cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kts_source.scan.estimate import S3_PRICES, Price, estimate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kts_source.scan.plan import PartitionPlan, ScanPlan


def explain(plan: ScanPlan, prices: Mapping[str, Price] = S3_PRICES) -> str:
    """The plan as lines of text.

    Args:
        plan: What to explain.
        prices: Storage class to price.
    """
    work = estimate(plan.tasks)
    slices = sum(len(task.slices) for task in plan.tasks)
    lines = [
        f"{len(plan.tasks)} tasks, {slices} slices, {plan.nominal_bytes:,} bytes of segments",
        f"{work.requests:,} requests for {work.bytes:,} stored bytes,"
        f" about ${work.cost(prices):.4f}",
    ]
    for name, (requests, size) in sorted(work.by_class.items()):
        lines.append(f"  {name}: {requests:,} requests, {size:,} bytes")
    for part in plan.partitions:
        lines.extend(_partition(part))
    return "\n".join(lines)


def _partition(part: PartitionPlan) -> Iterator[str]:
    log = part.surviving
    yield (
        f"{part.topic}-{part.partition} (topic id {part.topic_id}): offsets [{part.start},"
        f" {part.stop}) of [{log.log_start}, {log.stop}); ends: {part.end_reason}"
    )
    for span in log.ranges:
        segment = span.segment
        low, high = max(span.start, part.start), min(span.stop, part.stop)
        what = f"offsets [{low}, {high})" if low < high else "not in the range"
        yield f"  segment {segment.segment_id}: {what}, {segment.objects.size_in_bytes:,} bytes"
    for hole in log.holes:
        yield f"  hole: offsets [{hole.start}, {hole.stop}) before {hole.after.objects.log.key}"
    for gap in log.unverifiable:
        yield f"  gap that cannot be proven: offsets [{gap.start}, {gap.stop})"
    for skipped in log.skipped:
        yield f"  skipped segment {skipped.segment.segment_id}: {skipped.reason}"
    for orphan in part.orphans:
        yield f"  orphans {', '.join(orphan.keys)}: {orphan.reason}"
