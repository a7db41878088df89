"""Measures costs that do not depend on the amount of data: the costs of a task and of a new worker.
Also measures the gain from a second core.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from benchmarks.bench import NEWEST_SPARK, Bench, Contestant
from benchmarks.report import Row, at_most
from benchmarks.session import Query, Session
from benchmarks.tiers import TOPIC, Tier, TierShape, make_tier

if TYPE_CHECKING:
    from collections.abc import Mapping

_CORES: Final = 2
_HEAVY: Final = ("numba", "s3fs", "pandas", "sqlglot", "cryptography")


def run(bench: Bench) -> list[Row]:
    """Returns the rows for tasks, cold start and cores."""
    return [*_task(bench), *_cold(bench), *_cores(bench)]


def _task(bench: Bench) -> list[Row]:
    """Measures the cost of one task: the time difference between a query with many tasks and a
    query with few tasks, divided by the number of additional tasks.

    Costs of the whole query, such as planning, are therefore not included.
    """
    few, many = (20, 60) if bench.quick else (50, 250)
    shape = TierShape(100, many * 16 << 10, partitions=1, segment_bytes=16 << 10)
    tier = make_tier(shape)
    segment_records = tier.records_per_partition // many
    contestants = {}
    for count in (few, many):
        ends = json.dumps({TOPIC: {"0": count * segment_records}})
        options = {**tier.options, "endingOffsets": ends, "maxSegmentsPerTask": "1"}
        contestants[f"ours {count}"] = Contestant(NEWEST_SPARK, Query("tiered-kafka", options))
        empty = Query("empty-tasks", {"tasks": str(count)})
        contestants[f"empty {count}"] = Contestant(NEWEST_SPARK, empty)
    timings = bench.in_turns(contestants)
    cost, used = {}, {}
    for name in ("ours", "empty"):
        pairs = zip(timings[f"{name} {many}"].runs, timings[f"{name} {few}"].runs, strict=True)
        slope = statistics.median(large.seconds - small.seconds for large, small in pairs)
        cost[name] = slope / (many - few) * _CORES * 1000
        work = timings[f"{name} {many}"].processor - timings[f"{name} {few}"].processor
        used[name] = work / (many - few) * 1000
    processor = ", ".join(f"{name} {figure:.1f}" for name, figure in used.items())
    return [
        Row("a task of Spark's that does nothing in Python", cost["empty"], "ms"),
        Row("a task of ours with one small segment", cost["ours"], "ms"),
        at_most(
            "a task, beyond Spark's own empty Python task", cost["ours"] - cost["empty"], "ms", 5
        ).noted(f"processor ms a task, the JVM's among it: {processor}"),
    ]


_IMPORT: Final = """
import sys, time
import pyspark.sql.datasource, pyspark.sql.types
started = time.perf_counter()
import kts_source.spark.datasource
seconds = time.perf_counter() - started
print(seconds, *(name for name in sys.argv[1:] if name in sys.modules))
"""

_FIRST_ROW: Final = """
import json, sys, time
import pyarrow, numpy
started = time.perf_counter()
from kts_source.options import parse_options
from kts_source.read.segment_source import SegmentSource
from kts_source.store.open_store import open_store
from kts_source.read.read_task import read_task
from kts_source.read.read_settings import ReadSettings
from kts_source.planning.planner import plan_scan
options = parse_options(json.loads(sys.argv[1]))
task = plan_scan(options).tasks[0]
planned = time.perf_counter()
reader = SegmentSource(open_store(options.path, options.storage), options.key_ring)
rows = read_task(task, reader, ReadSettings.of(options))
assert next(rows).num_rows
print(planned - started, time.perf_counter() - planned)
rows.close()
"""


def _cold(bench: Bench) -> list[Row]:
    repeats = 2 if bench.quick else 9
    tier = make_tier(TierShape(100, 8 << 20, partitions=1, segment_bytes=8 << 20))
    imports, heavy = [], set()
    plans, first = [], []
    for number in range(repeats + 1):
        words = _fresh(_IMPORT, *_HEAVY)
        figures = _fresh(_FIRST_ROW, json.dumps(tier.options))
        if number:  # bytecode and machine code are on disk after the first round
            imports.append(float(words[0]))
            heavy |= set(words[1:])
            plans.append(float(figures[0]))
            first.append(float(figures[1]))
    return [
        Row(
            "importing the data source, beyond pyspark and pyarrow", statistics.median(imports), "s"
        ),
        at_most("heavy modules that this loads", len(heavy), "", 0).noted(
            f"of {', '.join(_HEAVY)}" + (f": {', '.join(sorted(heavy))}" if heavy else "")
        ),
        Row("a fresh process: options and plan of one segment", statistics.median(plans), "s"),
        Row("a fresh process: from the plan to the first rows", statistics.median(first), "s"),
    ]


def _fresh(code: str, *arguments: str) -> list[str]:
    run = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return run.stdout.split()


def _cores(bench: Bench) -> list[Row]:
    tier = make_tier(TierShape(100, (64 if bench.quick else 768) << 20, segment_bytes=16 << 20))
    seconds: dict[int, list[float]] = {1: [], _CORES: []}
    sessions: Mapping[int, Session] = {
        1: Session(cores=1, unix_sockets=True),
        _CORES: bench.session(NEWEST_SPARK),
    }
    query = _narrow(tier)
    try:
        for number in range(bench.repeats + 1):
            for cores, session in sessions.items():
                run = session.run(query)
                if number:
                    seconds[cores].append(run.seconds)
    finally:
        sessions[1].close()
    pairs = zip(seconds[1], seconds[_CORES], strict=True)
    gain = statistics.median(one_core / two_cores for one_core, two_cores in pairs)
    note = "with one slot, Python and the JVM already share the work of a task on two cores"
    return [
        Row(
            "scan, 100 B, local[1]",
            tier.records / statistics.median(seconds[1]) / 1e6,
            "M records/s",
        ),
        Row("scan, 100 B, local[2] against local[1]", gain, "×").noted(note),
    ]


def _narrow(tier: Tier) -> Query:
    return Query("tiered-kafka", {**tier.options, "targetPartitionBytes": "64m"})
