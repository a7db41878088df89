"""Topic to zstd Parquet: our export against Spark's Kafka source and `df.write.parquet`."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from benchmarks.bench import SPARK_4_0, Bench, Contestant, Timings
from benchmarks.report import Row, at_least
from benchmarks.session import Query

if TYPE_CHECKING:
    from benchmarks.session import Run

_SPEED_GOALS: Final = {"small": 12.0, "large": 5.5}
_PROCESSOR_GOALS: Final = {"small": 8.0, "large": 5.0}


def run(bench: Bench) -> list[Row]:
    """Both sizes; the values are text like JSON, the level of zstd is the same."""
    rows: list[Row] = []
    for name in ("small",) if bench.quick else ("small", "large"):
        rows += _one(bench, name)
    return rows


def _one(bench: Bench, name: str) -> list[Row]:
    """Every run writes into a folder of its own: an export into a full one has nothing to do."""
    broker = bench.broker()
    topic = broker.topics[name]
    folder = bench.folder()
    numbers = itertools.count()

    def target() -> str:
        return str(folder / str(next(numbers)))

    nothing = Query("empty-tasks", {"tasks": "2"}, sink="rows")
    runs: dict[str, list[Run]] = {"ours": [], "kafka": [], "empty": []}
    for number in range((1 if bench.quick else 3) + 1):
        ours = broker.from_tier(name, sink="backfill", target=target())
        kafka = broker.through_broker(name, sink="parquet", target=target())
        for key, contestant in (
            ("ours", Contestant(SPARK_4_0, ours)),
            ("kafka", Contestant(SPARK_4_0, kafka, with_broker=True)),
            ("empty", Contestant(SPARK_4_0, nothing)),
        ):
            run = bench.run(contestant)
            if number:
                runs[key].append(run)
    mine, theirs, empty = (Timings(tuple(found)) for found in runs.values())
    what = f"{topic.value_bytes} B → zstd Parquet"
    against = f"against Spark's Kafka source, {what}"
    return [
        Row(f"our export in Spark 4.0, {what}", topic.records / mine.seconds / 1e6, "M records/s"),
        Row(
            f"Spark's Kafka source, data in the tier, {what}",
            topic.records / theirs.seconds / 1e6,
            "M records/s",
        ),
        at_least(against, mine.times_faster_than(theirs), "×", _SPEED_GOALS[name]),
        at_least(
            f"{against}: times fewer processor seconds, the broker's counted",
            1 / mine.processor_share_of(theirs),
            "×",
            _PROCESSOR_GOALS[name],
        ).noted(
            f"of our {mine.processor:.2f} s, {empty.processor:.2f} s are what a Python data source"
            " that yields nothing takes, however large the topic"
        ),
    ]
