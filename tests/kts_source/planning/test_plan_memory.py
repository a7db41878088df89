"""Bounds the memory that a plan takes for each segment."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

from benchmarks.simulated import TOPIC, SimulatedTier
from kts_source.cache.caches import Caches, CacheSettings
from kts_source.cache.disk_cache import CacheLimits
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.planning.segment_catalog import ListedPartition
from kts_source.tier import Tier

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

PARTITIONS, SEGMENTS = 2, 200
MAX_BYTES = 2100
"""A plan of a million segments then fits into 2 GiB."""


def bytes_per_segment(caches: Caches) -> float:
    """Plans a scan and returns the bytes that its plan keeps for each segment."""
    options = parse_options({"path": "/", "subscribe": TOPIC})
    tier = Tier(SimulatedTier(PARTITIONS, SEGMENTS, latency_seconds=0), caches)
    tracemalloc.start()
    try:
        plan = plan_scan(options, tier)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    segments = sum(len(partition.surviving.ranges) for partition in plan.partitions)
    assert segments == PARTITIONS * SEGMENTS
    return kept / segments


def test_plan_keeps_at_most_2100_bytes_for_each_segment(tmp_path: Path) -> None:
    imports, caches = (
        Caches(CacheSettings(index=CacheLimits(1 << 30, 900), folder=str(tmp_path / name)))
        for name in ("imports", "measured")
    )
    bytes_per_segment(imports)  # also counts modules that the first plan imports
    cold, warm = bytes_per_segment(caches), bytes_per_segment(caches)
    assert max(cold, warm) < MAX_BYTES


def test_plan_releases_listing_of_each_planned_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[tuple[int, int]] = []
    save = ListedPartition.save

    def saving(self: ListedPartition, *, releases: bool = False) -> None:
        before = len(self.entries)
        save(self, releases=releases)
        listed.append((before, len(self.entries)))

    monkeypatch.setattr(ListedPartition, "save", saving)
    tier = SimulatedTier(PARTITIONS, 2, latency_seconds=0)
    plan = plan_scan(parse_options({"path": "/", "subscribe": TOPIC}), Tier(tier))
    assert len(plan.partitions) == PARTITIONS
    assert listed == [(2, 0)] * PARTITIONS
