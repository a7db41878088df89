"""The tier watermark: up to which offset a reader that has only the tier may serve a partition."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kts_source.options import READ_COMMITTED, ScanOptions, parse_options
from kts_source.options.bounds import EarliestBound, LatestBound
from kts_source.scan.planner import plan_scan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.remote.store import RangeStore
    from kts_source.scan.plan import PartitionPlan


@dataclass(frozen=True, slots=True)
class PartitionWatermark:
    """What the tier alone can serve of one partition.

    Attributes:
        log_start: First offset a consumer may see, inclusive.
        tier_end: One past the last tiered offset: the end for `read_uncommitted`.
        tier_end_timestamp_ms: Largest timestamp of the last segment, markers included; −1 unknown.
        last_stable_offset: The end for `read_committed`, exclusive.
        reason: Why `read_committed` ends there.
        segments: Segments that serve the offsets.
        stored_bytes: Their log objects together.
        original_bytes: The same before compression and encryption.
        holes: Missing offsets as [start, stop) pairs.
        unverifiable: Gaps that may or may not have held records, likewise.
        skipped: Segments that are not read, with the reason.
        orphans: Objects that belong to no segment.
    """

    topic: str
    topic_id: str
    partition: int
    log_start: int
    tier_end: int
    tier_end_timestamp_ms: int
    last_stable_offset: int
    reason: str
    segments: int
    stored_bytes: int
    original_bytes: int
    holes: tuple[tuple[int, int], ...]
    unverifiable: tuple[tuple[int, int], ...]
    skipped: tuple[str, ...]
    orphans: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TierDescription:
    """Watermarks of the selected partitions, in order of topic and partition."""

    partitions: tuple[PartitionWatermark, ...]

    def to_arrow(self) -> pa.Table:
        """One row a partition; holes and the like as lists."""
        names = [field.name for field in fields(PartitionWatermark)]
        columns: dict[str, list[Any]] = {
            name: [_plain(getattr(part, name)) for part in self.partitions] for name in names
        }
        return pa.table({name: pa.array(columns[name], _TYPES[name]) for name in names})

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas is optional
        """The same as a pandas DataFrame; needs pandas."""
        return self.to_arrow().to_pandas()


_PAIRS = pa.list_(pa.list_(pa.int64(), 2))
_TYPES = {
    "topic": pa.string(),
    "topic_id": pa.string(),
    "partition": pa.int32(),
    "log_start": pa.int64(),
    "tier_end": pa.int64(),
    "tier_end_timestamp_ms": pa.int64(),
    "last_stable_offset": pa.int64(),
    "reason": pa.string(),
    "segments": pa.int64(),
    "stored_bytes": pa.int64(),
    "original_bytes": pa.int64(),
    "holes": _PAIRS,
    "unverifiable": _PAIRS,
    "skipped": pa.list_(pa.string()),
    "orphans": pa.list_(pa.string()),
}


def _plain(value: object) -> object:
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def describe(
    options: Mapping[str, str] | ScanOptions, store: RangeStore | None = None
) -> TierDescription:
    """The watermarks of the selected partitions.

    Holes are reported, not raised; bounds among the options are ignored.

    Args:
        options: As for the data source.
        store: The tier; opened from the options when not given.

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
    )
    return TierDescription(tuple(_watermark(p) for p in plan_scan(whole, store).partitions))


def _watermark(part: PartitionPlan) -> PartitionWatermark:
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
        reason=part.end_reason,
        segments=len(used),
        stored_bytes=sum(segment.objects.log.size for segment in used),
        original_bytes=sum(segment.objects.size_in_bytes for segment in used),
        holes=tuple((hole.start, hole.stop) for hole in log.holes),
        unverifiable=tuple((gap.start, gap.stop) for gap in log.unverifiable),
        skipped=tuple(f"{s.segment.segment_id}: {s.reason}" for s in log.skipped),
        orphans=tuple(f"{', '.join(o.keys)}: {o.reason}" for o in part.orphans),
    )
