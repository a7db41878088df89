"""The tier watermark: up to which offset a reader that has only the tier may serve a partition."""

from __future__ import annotations

import logging
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kts_source.errors import CorruptSegmentError
from kts_source.libraries import require
from kts_source.options import READ_COMMITTED, ScanOptions, parse_options
from kts_source.options.selection import EarliestBound, LatestBound
from kts_source.planning.planner import plan_scan
from kts_source.planning.side_files import SideFiles
from kts_source.read.segment_source import SegmentSource
from kts_source.texts import format_bytes, rows_table
from kts_source.tier import Tier, open_tier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.planning.scan_plan import PartitionPlan, ScanPlan
    from kts_source.store.object_store import ObjectStore

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PartitionWatermark:
    """What the tier alone can serve of one partition.

    Attributes:
        log_start: First offset a consumer may see, inclusive.
        tier_end: One past the last tiered offset: the end for `read_uncommitted`.
        tier_end_timestamp_ms: Largest timestamp of the last segment, markers included; −1 unknown.
        last_stable_offset: The end for `read_committed`, exclusive.
        last_stable_timestamp_ms: Some batch below it, in the last segment that has any, is dated so
            and none is known to be dated later: the segment's largest timestamp, or inside of a
            segment what its time index tells, which leaves out the last few batches. No record is
            read for it; `None` where neither tells.
        reason: Why `read_committed` ends there.
        segments: Segments that serve the offsets.
        stored_bytes: Their log objects together.
        original_bytes: The same before compression and encryption.
        holes: Missing offsets as [start, stop) pairs.
        unverifiable: Gaps that may or may not have held records, likewise.
        skipped: Segments that are not read, with the reason.
        orphans: Objects that belong to no segment.
        high_watermark: The cluster's end of the log, or the highest that its disks recorded; this
            and what follows is `None` where neither was asked.
        cluster_stable_offset: The cluster's last stable offset.
        local_start: First offset on the leader's own disk, or on the one that is read; `None` also
            where the leader does not tell.
        broker_offsets: Offsets that only brokers serve: holes of the tier, and what lies behind it.
        broker_bytes: About how many bytes that is.
        oldest_untiered_ms: When the first batch behind the tier began; `None` where there is none.
        disk_offsets: Offsets that only disks serve (option `tailPath`).
        disk_bytes: How many bytes of their segments are read for it.
        catalog_records: Records read of the partition of `__remote_log_metadata` that tells of this
            one; this and what follows is `None` where the tier was listed.
        copies_in_progress: Segments that brokers have begun to copy and not finished.
        deletions_in_progress: Segments that they have begun to delete and not finished.
    """

    topic: str
    topic_id: str
    partition: int
    log_start: int
    tier_end: int
    tier_end_timestamp_ms: int
    last_stable_offset: int
    last_stable_timestamp_ms: int | None
    reason: str
    segments: int
    stored_bytes: int
    original_bytes: int
    holes: tuple[tuple[int, int], ...]
    unverifiable: tuple[tuple[int, int], ...]
    skipped: tuple[str, ...]
    orphans: tuple[str, ...]
    high_watermark: int | None = None
    cluster_stable_offset: int | None = None
    local_start: int | None = None
    broker_offsets: int | None = None
    broker_bytes: int | None = None
    oldest_untiered_ms: int | None = None
    disk_offsets: int | None = None
    disk_bytes: int | None = None
    catalog_records: int | None = None
    copies_in_progress: int | None = None
    deletions_in_progress: int | None = None


@dataclass(frozen=True, slots=True)
class TierDescription:
    """Watermarks of the selected partitions, in order of topic and partition."""

    partitions: tuple[PartitionWatermark, ...]

    def to_arrow(self) -> pa.Table:
        """One row a partition; holes and the like as lists."""
        rows = [asdict(part) for part in self.partitions]
        return pa.Table.from_pylist(rows, _SCHEMA)

    def _repr_html_(self) -> str:
        """A table for notebooks: a row a partition."""
        header = ("partition", "log start", "tier end", "last stable", "segments", "bytes", "")
        rows = [
            (
                f"{part.topic}-{part.partition}",
                part.log_start,
                part.tier_end,
                part.last_stable_offset,
                part.segments,
                format_bytes(part.stored_bytes),
                f"{len(part.holes)} holes" if part.holes else part.reason,
            )
            for part in self.partitions
        ]
        return rows_table("Tier", header, rows)

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas is optional
        """The same as a pandas DataFrame.

        Raises:
            InvalidOptionError: pandas is not installed.
        """
        require("pandas", "pandas", "to_pandas()")
        return self.to_arrow().to_pandas()


_PAIRS = pa.list_(pa.list_(pa.int64(), 2))
_SCHEMA = pa.schema(
    {
        "topic": pa.string(),
        "topic_id": pa.string(),
        "partition": pa.int32(),
        "log_start": pa.int64(),
        "tier_end": pa.int64(),
        "tier_end_timestamp_ms": pa.int64(),
        "last_stable_offset": pa.int64(),
        "last_stable_timestamp_ms": pa.int64(),
        "reason": pa.string(),
        "segments": pa.int64(),
        "stored_bytes": pa.int64(),
        "original_bytes": pa.int64(),
        "holes": _PAIRS,
        "unverifiable": _PAIRS,
        "skipped": pa.list_(pa.string()),
        "orphans": pa.list_(pa.string()),
        "high_watermark": pa.int64(),
        "cluster_stable_offset": pa.int64(),
        "local_start": pa.int64(),
        "broker_offsets": pa.int64(),
        "broker_bytes": pa.int64(),
        "oldest_untiered_ms": pa.int64(),
        "disk_offsets": pa.int64(),
        "disk_bytes": pa.int64(),
        "catalog_records": pa.int64(),
        "copies_in_progress": pa.int64(),
        "deletions_in_progress": pa.int64(),
    }
)


@dataclass(frozen=True, slots=True)
class DescribedPlan:
    """A description, and the plan of a full read that it follows from.

    Attributes:
        description: What `describe` gives.
        plan: Every partition from its log start to its last stable offset.
        uri: Root of the tier, free of credentials.
    """

    description: TierDescription
    plan: ScanPlan
    uri: str


def describe(
    options: Mapping[str, str] | ScanOptions, store: ObjectStore | None = None
) -> TierDescription:
    """The watermarks of the selected partitions. With brokers among the options, also what the
    cluster holds beyond the tier.

    Holes are reported, not raised; bounds and a plan file among the options are ignored.

    Args:
        options: As for the data source.
        store: The tier; opened from the options when not given.

    Raises:
        TieredKafkaError: As planning does, holes aside.
    """
    tier = None if store is None else Tier(store)
    return described_plan(options, tier, tasks=False).description


def described_plan(
    options: Mapping[str, str] | ScanOptions, tier: Tier | None = None, *, tasks: bool = True
) -> DescribedPlan:
    """As `describe`, with the plan; of the tier alone it has `tasks` only if they are wanted.

    Raises:
        TieredKafkaError: As planning does, holes aside.
    """
    parsed = options if isinstance(options, ScanOptions) else parse_options(options)
    whole = replace(
        parsed,
        starting=EarliestBound(),
        ending=LatestBound(),
        isolation_level=READ_COMMITTED,
        fail_on_data_loss=False,
        plan_file=None,
    )
    opening = closing(open_tier(whole)) if tier is None else nullcontext(tier)
    with opening as opened:
        plan = plan_scan(whole, opened, tasks=tasks, is_read=False)
        reader = SegmentSource(opened, whole.key_ring.loaded())
        side_files = SideFiles(reader, max_batch_bytes=whole.max_batch_bytes)
        found = [_watermark(part, side_files) for part in plan.partitions]
        uri = opened.store.uri(whole.key_prefix)
        if whole.tail_paths:
            from kts_source.planning.describe_disks import with_disks

            found = with_disks(found, plan, side_files)
    if whole.brokers is not None:
        from kts_source.planning.describe_brokers import with_brokers

        found = with_brokers(found, plan, whole)
    return DescribedPlan(TierDescription(tuple(found)), plan, uri)


def _stable_timestamp(part: PartitionPlan, side_files: SideFiles) -> int | None:
    below = [span for span in part.surviving.ranges if span.start < part.stop]
    if not below:
        return None
    segment = below[-1].segment
    if min(part.stop, below[-1].stop) == segment.stop_offset:
        return segment.max_timestamp_ms if segment.max_timestamp_ms >= 0 else None
    try:
        times = side_files.time_index(segment)
    except CorruptSegmentError as error:  # of a key that only this segment needs, perhaps
        log.warning("no timestamp of the last stable offset: %s", error)
        return None
    if times is None:
        return None
    # An entry is the largest timestamp of all batches up to its offset.
    earlier = times.timestamps[times.offsets < part.stop]
    return int(earlier[-1]) if len(earlier) and earlier[-1] >= 0 else None


def _watermark(part: PartitionPlan, side_files: SideFiles) -> PartitionWatermark:
    log = part.surviving
    used = [span.segment for span in log.ranges]
    return PartitionWatermark(
        topic=part.topic,
        topic_id=part.topic_id,
        partition=part.partition,
        log_start=log.log_start,
        tier_end=log.stop,
        tier_end_timestamp_ms=used[-1].max_timestamp_ms if used else -1,
        last_stable_offset=part.stop,
        last_stable_timestamp_ms=_stable_timestamp(part, side_files),
        reason=part.end_reason,
        segments=len(used),
        stored_bytes=sum(segment.objects.log.size for segment in used),
        original_bytes=sum(segment.objects.size_in_bytes for segment in used),
        holes=tuple((hole.start, hole.stop) for hole in log.holes),
        unverifiable=tuple((gap.start, gap.stop) for gap in log.unverifiable),
        skipped=tuple(f"{s.segment.segment_id}: {s.reason}" for s in log.skipped),
        orphans=tuple(f"{', '.join(o.keys)}: {o.reason}" for o in part.orphans),
    )
