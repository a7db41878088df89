"""Checks the CPU affinity of planning threads, and how many of them run concurrently."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.simulated import TOPIC, SimulatedTier
from kts_source.layout.aiven import AivenLayout
from kts_source.options import parse_options
from kts_source.planning import planner
from kts_source.planning.planner import plan_scan
from kts_source.planning.segment_catalog import PLANNING_THREADS
from kts_source.tier import Tier

if TYPE_CHECKING:
    from collections.abc import Callable

    from kts_source.layout.layout import SegmentEntry
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.store.object_store import ObjectStore

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


def test_plan_that_sends_requests_plans_96_partitions_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    barrier = threading.Barrier(96, timeout=60)

    def describing(self: AivenLayout, store: ObjectStore, entry: SegmentEntry) -> RemoteSegment:
        segment = _describe(self, store, entry)
        if entry.base_offset == 0:
            barrier.wait()
        return segment

    monkeypatch.setattr(AivenLayout, "describe", describing)
    plan_with(96, monkeypatch, lambda: None)


class Submitted(Executor):
    """Executor that runs nothing. The test sets the results of `futures`."""

    def __init__(self) -> None:
        super().__init__()
        self.futures: list[Future[Any]] = []

    def submit(self, *_: object, **__: object) -> Future[Any]:  # type: ignore[override]
        """Returns a future without a result."""
        self.futures.append(Future())
        if len(self.futures) < 3:
            self.futures[-1].set_result(len(self.futures))
        return self.futures[-1]


def test_plan_without_requests_plans_8_partitions_at_the_same_time() -> None:
    pool = Submitted()
    requests: list[str] = []
    results = planner._results(pool, plan_scan, range(20), lambda: bool(requests))  # type: ignore[arg-type]
    assert [next(results), next(results)] == [1, 2]  # type: ignore[comparison-overlap]
    assert len(pool.futures) == 2 + 8 - 1
    requests.append("GET")
    pool.futures[2].set_exception(ValueError("damaged"))
    with pytest.raises(ValueError, match="damaged"):
        next(results)
    assert len(pool.futures) == 20
    assert all(future.cancelled() for future in pool.futures[3:])
