"""Compares two ways to write a topic to zstd Parquet: this library's export, and Spark's Kafka
source with `df.write.parquet`.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

from benchmarks.bench import SPARK_4_0, Bench, Contestant, Timings
from benchmarks.export_bounds import in_a_process, measure_parts
from benchmarks.report import Row, at_least
from benchmarks.session import Query

if TYPE_CHECKING:
    from benchmarks.session import Run

_SPEED_GOALS: Final = {"small": 12.0, "large": 5.5}
_PROCESSOR_GOALS: Final = {"small": 8.0, "large": 5.0}
_CORES: Final = 2
_BOUND_BYTES: Final = 256 << 20
"""Bytes of values that are written from memory, as a comparison."""


def run(bench: Bench) -> list[Row]:
    """Measures both record sizes. The values are JSON-like text. Both writers use the same zstd
    level.
    """
    rows: list[Row] = []
    for name in ("small",) if bench.quick else ("small", "large"):
        rows += _compare_topic(bench, name)
    return rows


def _compare_topic(bench: Bench, name: str) -> list[Row]:
    """Compares the two ways for topic `name`. Every run writes to an empty folder, because an
    export into a folder with all rows would write nothing.
    """
    broker = bench.broker()
    topic = broker.topics[name]
    target = bench.folder() / "written"
    nothing = Query("empty-tasks", {"tasks": "2"}, sink="rows")
    runs: dict[str, list[Run]] = {"ours": [], "kafka": [], "empty": []}
    for number in range((1 if bench.quick else 3) + 1):
        ours = broker.from_tier(name, sink="backfill", target=str(target))
        kafka = broker.through_broker(name, sink="parquet", target=str(target))
        for key, contestant in (
            ("ours", Contestant(SPARK_4_0, ours)),
            ("kafka", Contestant(SPARK_4_0, kafka, other_pid=broker.broker.pid)),
            ("empty", Contestant(SPARK_4_0, nothing)),
        ):
            run = bench.run(contestant)
            shutil.rmtree(target, ignore_errors=True)
            if number:
                runs[key].append(run)
    mine, theirs, empty = (Timings(tuple(measured)) for measured in runs.values())
    options = broker.from_tier(name).options
    parts = in_a_process(measure_parts, options, "none", 3, _BOUND_BYTES // topic.value_bytes)
    # Processor seconds to write all rows from memory.
    writing = parts.write / parts.records * topic.records
    label = f"{topic.value_bytes} B → zstd Parquet"
    against = f"against Spark's Kafka source, {label}"
    alone = theirs.seconds / (writing / _CORES + empty.seconds)
    jvm, python = (mine.median(lambda run: run.jvm), mine.median(lambda run: run.python))
    return [
        Row(f"our export in Spark 4.0, {label}", topic.records / mine.seconds / 1e6, "M records/s"),
        Row(
            f"Spark's Kafka source, data in the tier, {label}",
            topic.records / theirs.seconds / 1e6,
            "M records/s",
        ),
        at_least(against, mine.times_faster_than(theirs), "×", _SPEED_GOALS[name]).noted(
            f"{mine.seconds:.2f} s against {theirs.seconds:.2f}; a Python data source that yields"
            f" nothing takes {empty.seconds:.2f} s, writing the rows from memory {writing:.2f} s of"
            f" one core: these steps alone would allow {alone:.3g} ×"
        ),
        at_least(
            f"{against}: times fewer processor seconds, the broker's counted",
            1 / mine.processor_share_of(theirs),
            "×",
            _PROCESSOR_GOALS[name],
        ).noted(
            f"ours {jvm:.2f} s JVM and {python:.2f} s Python, theirs {theirs.processor:.2f} s; a"
            f" Python data source that yields nothing takes {empty.processor:.2f} s, writing the"
            f" rows from memory {writing:.2f} s: these steps alone would allow"
            f" {theirs.processor / (writing + empty.processor):.3g} ×"
        ),
    ]
