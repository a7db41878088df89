"""Checks the CPU affinity of planning threads, and how many of them run concurrently."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from benchmarks.simulated import TOPIC, SimulatedTier
from kts_source.layout.aiven import AivenLayout
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.planning.segment_catalog import PLANNING_THREADS
from kts_source.tier import Tier

if TYPE_CHECKING:
    from collections.abc import Callable

_list_partition = AivenLayout.list_partition
_describe = AivenLayout.describe


def plan_with(partitions: int, monkeypatch: pytest.MonkeyPatch, note: Callable[[], object]) -> None:
    """Plans a scan of `partitions` partitions. Each thread calls `note` before it lists a
    partition.
    """

    def listing(self: AivenLayout, *arguments: object) -> object:
        note()
        return _list_partition(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(AivenLayout, "list_partition", listing)
    tier = SimulatedTier(partitions, 2, latency_seconds=0)
    plan = plan_scan(parse_options({"path": "/", "subscribe": TOPIC}), Tier(tier))
    assert len(plan.partitions) == partitions


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system binds no threads")
def test_planning_threads_keep_cpu_affinity_of_process(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.sched_getaffinity(0)
    seen: list[set[int]] = []

    def describing(self: AivenLayout, *arguments: object) -> object:
        seen.append(os.sched_getaffinity(0))
        return _describe(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(AivenLayout, "describe", describing)
    plan_with(2, monkeypatch, lambda: seen.append(os.sched_getaffinity(0)))
    assert len(seen) >= 4
    assert all(affinity == before for affinity in seen)


def test_planning_lists_96_partitions_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert PLANNING_THREADS == 96
    plan_with(96, monkeypatch, threading.Barrier(96, timeout=60).wait)
