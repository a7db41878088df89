"""The whole scan through Spark into `noop`, against prebuilt batches of the same schema."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from benchmarks.report import Row, at_least
from benchmarks.sparks import CeilingSource, start_spark
from benchmarks.tiers import Tier, TierShape, make_tier
from kts_source import register
from kts_source.options import parse_options
from kts_source.scan.planner import plan_scan
from kts_source.table import DEFAULT_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GOAL = 0.7


def run(*, quick: bool) -> list[Row]:
    """Full scans of 100 B and 1 KB records, and the value column alone."""
    log_bytes = 128 << 20 if quick else 512 << 20
    repeats = 3 if quick else 7
    spark = start_spark()
    register(spark)
    spark.dataSource.register(CeilingSource)
    rows = []
    try:
        for value_bytes in (100, 1000):
            tier = make_tier(TierShape(value_bytes, log_bytes))
            for columns in (DEFAULT_COLUMNS, ("value",), ("offset",)):
                rows += _compare(spark, tier, columns, repeats)
    finally:
        spark.stop()
    return rows


def _compare(spark: SparkSession, tier: Tier, columns: tuple[str, ...], repeats: int) -> list[Row]:
    names = ",".join(columns)
    options = {**tier.options, "columns": names, "targetPartitionBytes": "64m"}
    tasks = len(plan_scan(parse_options(options)).tasks)

    def ours() -> DataFrame:
        return spark.read.format("tiered-kafka").options(**options).load()

    def ceiling() -> DataFrame:
        shape = {
            "columns": names,
            "rows": str(tier.records),
            "tasks": str(tasks),
            "valueBytes": str(tier.shape.value_bytes),
        }
        return spark.read.format("transport-ceiling").options(**shape).load()

    seconds: dict[str, list[float]] = {"ours": [], "ceiling": []}
    for number in range(repeats + 1):
        for name, frame in (("ours", ours()), ("ceiling", ceiling())):
            started = time.perf_counter()
            frame.write.format("noop").mode("overwrite").save()
            if number:  # the first round warms up
                seconds[name].append(time.perf_counter() - started)
    ratio = statistics.median(
        ceiling / ours for ours, ceiling in zip(seconds["ours"], seconds["ceiling"], strict=True)
    )
    what = f"{tier.shape.value_bytes} B records, {'all columns' if len(columns) > 1 else names}"
    speed = tier.records / statistics.median(seconds["ours"]) / 1e6
    best = tier.records / statistics.median(seconds["ceiling"]) / 1e6
    goal = (at_least if len(columns) > 1 else _plain)(
        f"scan, {what}: share of the transport ceiling", ratio, "×", GOAL
    )
    return [
        Row(f"scan, {what}", speed, "M records/s"),
        Row(f"transport ceiling, {what}", best, "M records/s"),
        goal,
    ]


def _plain(name: str, value: float, unit: str, _least: float) -> Row:
    return Row(name, value, unit)
