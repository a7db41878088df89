"""Runs measurements of one client in a new process: `reading`, `logins` or `planning`.

`python -m benchmarks.hybrid_child MEASUREMENT OPTIONS` prints one line of JSON.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kts_source.options import ScanOptions

_LOGINS: Final = 21


def in_a_child(measurement: str, options: Mapping[str, str]) -> dict[str, float]:
    """Calls the function `measurement` of this module in a new process, and returns its result."""
    output = subprocess.run(
        [sys.executable, "-m", "benchmarks.hybrid_child", measurement, json.dumps(dict(options))],
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
    ).stdout
    figures: dict[str, float] = json.loads(output.splitlines()[-1])
    return figures


def reading(options: ScanOptions) -> dict[str, float]:
    """Reads all rows of a plan, one task after the other. Returns the total time, and the time in
    the fetch and in the decoder.
    """
    from contextlib import closing

    from kts_source.broker.cluster import borrowed_cluster
    from kts_source.broker.fetch_range import RangeFetcher
    from kts_source.planning.planner import plan_scan
    from kts_source.read.broker_rows import rows_of
    from kts_source.read.read_settings import ReadSettings
    from kts_source.read.read_task import run_task

    assert options.brokers is not None
    tasks = plan_scan(options).tasks
    _drain(run_task(tasks[0], options))  # loads kernels, opens connections
    wall, processor = time.perf_counter(), time.process_time()
    rows = sum(_drain(run_task(task, options)) for task in tasks)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    settings, fetching, decoding = ReadSettings.of(options), 0.0, 0.0
    with borrowed_cluster(options.brokers) as cluster:
        for task in tasks:
            for task_range in task.ranges:
                start = time.process_time()
                fetcher = RangeFetcher(
                    cluster, task_range, max_batch_bytes=settings.max_batch_bytes
                )
                with closing(fetcher.batches()) as answers:
                    for answer in answers:
                        fetching += time.process_time() - start
                        start = time.process_time()
                        _drain(rows_of([answer], task_range, settings))
                        decoding += time.process_time() - start
                        start = time.process_time()
                fetching += time.process_time() - start
    return {
        "rows": rows,
        "seconds": wall / rows,
        "processor": processor / rows,
        "fetching": fetching / rows,
        "decoding": decoding / rows,
    }


def logins(options: ScanOptions) -> dict[str, float]:
    """Measures the time to load the protocol library and to open one connection. Also counts the
    connections that the tasks of one worker open.
    """
    from kts_source.broker.connection import Connection
    from kts_source.planning.planner import plan_scan
    from kts_source.read.read_task import run_task

    assert options.brokers is not None
    settings = options.brokers
    loading = _timed(_load)
    host, port = settings.bootstrap[0]
    first = _timed(lambda: Connection(settings, host, port).close())
    took = [_timed(lambda: Connection(settings, host, port).close()) for _ in range(_LOGINS)]
    tasks = plan_scan(options).tasks
    assert len(tasks) > 1
    with mock.patch.object(
        Connection, "__init__", autospec=True, side_effect=Connection.__init__
    ) as opening:
        for task in tasks:
            _drain(run_task(task, options))
    return {
        "loading": loading,
        "first": first,
        "median": statistics.median(took),
        "longest": max(took),
        "opened": opening.call_count,
        "tasks": len(tasks),
    }


def planning(options: ScanOptions) -> dict[str, float]:
    """Plans once. Returns wall time, processor time, and the numbers of partitions and of aborted
    transactions.
    """
    from kts_source.planning.planner import plan_scan

    seconds, processor = time.perf_counter(), time.process_time()
    plan = plan_scan(options)
    seconds, processor = time.perf_counter() - seconds, time.process_time() - processor
    return {
        "seconds": seconds,
        "processor": processor,
        "partitions": len(plan.partitions),
        "aborted": sum(len(piece.aborted) for task in plan.tasks for piece in task.slices),
    }


def _load() -> None:
    from kts_source.broker.sasl import load_messages

    load_messages()
    import kafka.net.sasl  # noqa: F401


def _drain(batches: Any) -> int:  # noqa: ANN401
    return sum(batch.num_rows for batch in batches)


def _timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


if __name__ == "__main__":
    from kts_source.options import parse_options

    _MEASURE = {"reading": reading, "logins": logins, "planning": planning}
    print(json.dumps(_MEASURE[sys.argv[1]](parse_options(json.loads(sys.argv[2])))))
