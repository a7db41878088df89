"""The plan of one scan: partitions and tasks, with their explanation for people."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kts_source.planning.estimate import S3_PRICES, estimate
from kts_source.planning.partition_plan import PlanContent, segment_name, with_surroundings
from kts_source.planning.plan_json import plan_from_json, plan_to_json
from kts_source.read.task import ScanTask
from kts_source.store.joined_store import is_beside
from kts_source.texts import format_bytes, printable, rows_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kts_source.layout.remote_segment import ObjectRef
    from kts_source.planning.estimate import Price
    from kts_source.planning.partition_plan import (
        BrokerPart,
        CatalogPart,
        DiskPart,
        PartitionPlan,
        SegmentName,
    )


class ScanPlan(PlanContent):
    """A fixed list of byte ranges, and the skipped objects and offsets.

    Attributes:
        partitions: The plan of each partition.
        tasks: In order of topic, partition and offset.
        columns: Columns of the table, in order.
        where: The predicate that the tasks were narrowed for, as text; `None` = they have all rows.
        notes: For people: which incarnation of a topic is read, and which partitions are empty.
        made_with: Options that the plan depends on, by name.
    """

    __slots__ = ()

    def explain(self, prices: Mapping[str, Price] | None = None) -> str:
        """Explains which offsets are read, which are left out and why, and the estimated cost.

        Args:
            prices: Storage class to price; default: list prices of S3.
        """
        return explain(self) if prices is None else explain(self, prices)

    def _repr_html_(self) -> str:
        """Returns a table for notebooks with a row per partition; `explain` says more."""
        work = estimate(self.tasks)
        title = (
            f"Plan: {len(self.tasks):,} tasks, {work.requests:,} requests,"
            f" {format_bytes(work.bytes)}, about ${work.cost():.4f}"
        )
        rows = [
            (p.topic_partition, p.start, p.stop, len(p.surviving.ranges), p.end_reason)
            for p in self.partitions
        ]
        return rows_table(title, ("partition", "start", "stop", "segments", "ends"), rows)

    def to_json(self) -> str:
        """Returns the plan as JSON, for option `planFile`. It has no secret."""
        return plan_to_json(self)

    @classmethod
    def from_json(cls, text: str) -> ScanPlan:
        """Reads the JSON of `to_json`.

        Raises:
            InvalidOptionError: The text is not a plan, or a plan of another version.
        """
        content = plan_from_json(text)
        return cls(
            content.partitions,
            content.tasks,
            content.columns,
            content.where,
            content.notes,
            content.made_with,
        )

    def from_offsets(self, starts: Sequence[int]) -> ScanPlan:
        """Returns the plan without the offsets below `starts`.

        Args:
            starts: One offset for each of `partitions`, not below its start.
        """
        partitions = tuple(
            replace(partition, start=start)
            for partition, start in zip(self.partitions, starts, strict=True)
        )
        first = {
            (partition.topic, partition.partition): partition.start for partition in partitions
        }
        tasks = []
        for task in self.tasks:
            slices = tuple(
                replace(piece, start_offset=max(piece.start_offset, start))
                for piece in task.slices
                if piece.stop_offset > (start := first[piece.topic, piece.partition])
            )
            ranges = tuple(
                piece.from_offset(start)
                for piece in task.ranges
                if piece.stop_offset > (start := first[piece.topic, piece.partition])
            )
            if slices or ranges:
                tasks.append(ScanTask(slices, ranges))
        placed = with_surroundings(tasks, partitions, read_committed=self.read_committed)
        return replace(self, partitions=partitions, tasks=placed)

    @property
    def nominal_bytes(self) -> int:
        """Original segment bytes that the tasks cover."""
        return sum(task.nominal_bytes for task in self.tasks)

    def objects_read(self) -> list[ObjectRef]:
        """Returns the objects that tasks will read: logs, and indexes to look up boundaries."""
        slices = [piece for task in self.tasks for piece in task.slices]
        # A log without a byte may have no object.
        logs = dict.fromkeys(piece.objects.log for piece in slices if piece.objects.size_in_bytes)
        indexes = dict.fromkeys(piece.offset_index.source for piece in slices if not piece.is_whole)
        return [*logs, *indexes]


def explain(plan: ScanPlan, prices: Mapping[str, Price] = S3_PRICES) -> str:
    """Explains which offsets a plan reads, which it leaves out and why, and the estimated cost.

    Args:
        plan: The plan.
        prices: Storage class to price.
    """
    work = estimate(plan.tasks)
    slices = sum(len(task.slices) for task in plan.tasks)
    ranges = [piece for task in plan.tasks for piece in task.ranges]
    tier_bytes = plan.nominal_bytes - sum(piece.nominal_bytes for piece in ranges)
    lines = [
        f"{len(plan.tasks)} tasks, {slices} slices, {tier_bytes:,} bytes of segments",
        f"{work.requests:,} requests for {work.bytes:,} stored bytes,"
        f" about ${work.cost(prices):.4f}",
    ]
    for name, (requests, size) in sorted(work.by_class.items()):
        lines.append(f"  {name}: {requests:,} requests, {size:,} bytes")
    on_disk = [p for task in plan.tasks for p in task.slices if is_beside(p.objects.log.key)]
    if on_disk:
        size = sum(piece.nominal_bytes for piece in on_disk)
        lines.append(f"{len(on_disk)} of the slices, {size:,} bytes, are of brokers' disks")
    if ranges:
        offsets = sum(piece.stop_offset - piece.start_offset for piece in ranges)
        size = plan.nominal_bytes - tier_bytes
        lines.append(
            f"{len(ranges)} ranges of {offsets:,} offsets from brokers, about {size:,} bytes"
        )
    lines += plan.notes
    kept = None if plan.where is None else _kept_offsets(plan)
    if kept is not None:
        lines.append(_explain_where(plan, kept))
    for partition in plan.partitions:
        lines.extend(_explain_partition(partition, kept))
    return "\n".join(map(printable, lines))


def _kept_offsets(plan: ScanPlan) -> dict[SegmentName, tuple[int, int]]:
    """Returns what tasks read of each segment: start of the first slice, stop of the last."""
    kept: dict[SegmentName, tuple[int, int]] = {}
    for task in plan.tasks:
        for piece in task.slices:
            name = segment_name(piece)
            start, stop = kept.get(name, (piece.start_offset, piece.stop_offset))
            kept[name] = min(start, piece.start_offset), max(stop, piece.stop_offset)
    return kept


def _explain_where(plan: ScanPlan, kept: Mapping[SegmentName, tuple[int, int]]) -> str:
    skipped = narrowed = size = 0
    for partition in plan.partitions:
        for segment, low, high in partition.wanted_ranges():
            offsets = kept.get(segment_name(segment))
            if offsets is None:
                skipped += 1
                size += segment.objects.size_in_bytes
            else:
                narrowed += offsets != (low, high)
    return (
        f"where leaves out {skipped} segments of {size:,} bytes and narrows {narrowed} by offsets"
        " and times; rows of the others are decided by the tasks"
    )


def _explain_partition(
    partition: PartitionPlan, kept: Mapping[SegmentName, tuple[int, int]] | None
) -> Iterator[str]:
    log = partition.surviving
    yield (
        f"{partition.topic_partition} (topic id {partition.topic_id}): offsets [{partition.start},"
        f" {partition.stop}) of [{log.log_start}, {log.stop}); ends: {partition.end_reason}"
    )
    for span in log.ranges:
        segment = span.segment
        low, high = max(span.start, partition.start), min(span.stop, partition.stop)
        text = f"offsets [{low}, {high})" if low < high else "not in the range"
        if kept is not None and low < high:
            offsets = kept.get(segment_name(segment))
            if offsets is None:
                text += ", left out by where"
            elif offsets != (low, high):
                text += f", where leaves [{offsets[0]}, {offsets[1]})"
        kind = "disk" if is_beside(segment.objects.log.key) else "segment"
        yield f"  {kind} {segment.segment_id}: {text}, {segment.objects.size_in_bytes:,} bytes"
    if partition.brokers is not None:
        yield from _explain_brokers(partition, partition.brokers)
    if partition.disks is not None:
        yield _explain_disks(partition, partition.disks)
    if partition.catalog is not None:
        yield from _explain_catalog(partition.catalog)
    for hole in log.holes:
        yield f"  hole: offsets [{hole.start}, {hole.stop}) {hole.between}"
    for gap in log.unverifiable:
        yield f"  gap that cannot be proven: offsets [{gap.start}, {gap.stop})"
    for skipped in log.skipped:
        yield f"  skipped segment {skipped.segment.segment_id}: {skipped.reason}"
    for orphan in partition.orphans:
        yield f"  orphans {', '.join(orphan.keys)}: {orphan.reason}"


def _explain_brokers(partition: PartitionPlan, brokers: BrokerPart) -> Iterator[str]:
    local = "unknown" if brokers.local_start is None else str(brokers.local_start)
    yield (
        f"  cluster: high watermark {brokers.high_watermark}, last stable offset"
        f" {brokers.last_stable_offset}, local start {local}, leader epoch {brokers.leader_epoch};"
        f" the tier ends at {partition.tier_end}, {brokers.high_watermark - partition.tier_end}"
        " offsets behind"
    )
    for start, stop in brokers.ranges:
        low, high = max(start, partition.start), min(stop, partition.stop)
        if low < high:
            yield f"  brokers: offsets [{low}, {high})"


def _explain_disks(partition: PartitionPlan, disks: DiskPart) -> str:
    watermark = "not recorded" if disks.high_watermark is None else str(disks.high_watermark)
    offsets = sum(span.stop - span.start for span in partition.disk_ranges)
    return (
        f"  disks: high watermark {watermark}, local start {disks.local_start}, in {disks.folder};"
        f" the tier ends at {partition.tier_end}, {partition.surviving.stop - partition.tier_end}"
        f" offsets behind; {offsets} offsets are on disk alone"
    )


def _explain_catalog(catalog: CatalogPart) -> Iterator[str]:
    yield (
        f"  catalog: {catalog.records:,} records of __remote_log_metadata-{catalog.partition},"
        f" offsets [{catalog.start}, {catalog.stop}); segments: {catalog.live} live,"
        f" {catalog.copying} being copied, {catalog.deleting} being deleted"
    )
    for start, stop in catalog.not_named:
        yield f"  not in the catalog: offsets [{start}, {stop}), which are not on the leader's disk"
