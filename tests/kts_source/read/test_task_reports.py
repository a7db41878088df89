"""Compares the metrics of a task with the requests that its store received."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from kts_source import metrics
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.read.read_task import run_task
from kts_source.read.task_metrics import TaskPlace
from kts_source.store.local_store import LocalStore
from tests.golden_data import expected_table, tier_options

if TYPE_CHECKING:
    from pathlib import Path

    from kts_source.read.task_metrics import TaskMetrics
    from kts_source.store.object_store import Data


@pytest.fixture
def request_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that receives the size in bytes of each range requested from a store."""
    sizes: list[int] = []
    original = LocalStore.get_range

    def counted(
        self: LocalStore, key: str, start: int, stop: int, *, version: str | None = None
    ) -> Data:
        sizes.append(stop - start)
        return original(self, key, start, stop, version=version)

    monkeypatch.setattr(LocalStore, "get_range", counted)
    return sizes


def test_metrics_count_requests_and_bytes_of_the_store(request_sizes: list[int]) -> None:
    options = parse_options(tier_options("wide", maxSegmentsPerTask="1"))
    for task in plan_scan(options).tasks:
        request_sizes.clear()
        ended: list[TaskMetrics] = []
        list(run_task(task, options, on_end=ended.append))
        (metrics_of_task,) = ended
        assert (metrics_of_task.requests, metrics_of_task.bytes) == (
            len(request_sizes),
            sum(request_sizes),
        )


def test_each_task_logs_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kts_source.read.read_task")
    options = parse_options(tier_options("encrypted", maxSegmentsPerTask="1"))
    tasks = plan_scan(options).tasks
    ended: list[TaskMetrics] = []
    rows = sum(
        batch.num_rows for task in tasks for batch in run_task(task, options, on_end=ended.append)
    )
    lines = [
        record.message for record in caplog.records if record.name == "kts_source.read.read_task"
    ]
    assert lines == [str(task_metrics) for task_metrics in ended]
    assert len(lines) == len(tasks) > 1
    assert rows == expected_table("encrypted", "read_committed").num_rows
    assert sum(task_metrics.rows for task_metrics in ended) == rows
    assert sum(task_metrics.decrypt_seconds for task_metrics in ended) > 0


def test_metrics_count_cache_hits(tmp_path: Path, request_sizes: list[int]) -> None:
    folder = tmp_path / "metrics"
    options = parse_options(
        tier_options(
            "codecs",
            cacheDir=str(tmp_path / "cache"),
            chunkCacheBytes="64m",
            metricsPath=str(folder),
        )
    )
    tasks = plan_scan(options).tasks
    for scan in ("first", "second"):
        request_sizes.clear()
        for number, task in enumerate(tasks):
            list(run_task(task, options, TaskPlace(scan, 0, number)))
        assert bool(request_sizes) == (scan == "first")
    summary = metrics.summary(str(folder))
    first, second = (summary.of_scan(scan).total for scan in ("first", "second"))
    assert first["bytes"] > 0
    assert (first["cache_hits"], second["cache_misses"]) == (0, 0)
    assert (second["requests"], second["bytes"]) == (0, 0)
    assert second["cache_hits"] == first["cache_misses"] > 0
    assert second["cache_bytes"] == first["bytes"]
    assert second["rows"] == first["rows"] > 0
