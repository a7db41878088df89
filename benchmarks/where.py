"""Searches for one key in many records. Compares option `where` with Spark's Kafka source. Also
measures reads that select fewer columns.
"""

from __future__ import annotations

import os
import time
from typing import Final

import google_crc32c
import numpy as np

from benchmarks.bench import (
    NEWEST_SPARK,
    SPARK_4_0,
    Bench,
    Contestant,
    SkippedError,
    Timings,
    ceiling,
)
from benchmarks.report import Row, at_least
from benchmarks.session import Query
from benchmarks.tiers import Tier, TierShape, make_tier
from kts_source.columns import DEFAULT_COLUMNS

_PARTITIONS: Final = 6
_CORES: Final = 2
_LARGE: Final = 512 << 20
"""Task size at which Spark's own cost per task takes most of the time of a task that returns almost
no rows.
"""
_PIECE_BYTES: Final = 2 << 20
_VALUE_BYTES: Final = 100
_WHAT: Final = "WHERE key = …"


def run(bench: Bench) -> list[Row]:
    """Measures the search for one key. The number of rows is checked, so that no source can skip
    work.
    """
    log_bytes = (96 << 20) if bench.quick else (6200 << 20)
    tier = make_tier(TierShape(_VALUE_BYTES, log_bytes, partitions=_PARTITIONS))
    tasks = max(_PARTITIONS, tier.stored_bytes // _LARGE)
    contestants = {
        "usual": Contestant(NEWEST_SPARK, _ours(tier)),
        "large": Contestant(NEWEST_SPARK, _ours(tier, targetPartitionBytes=str(_LARGE))),
        "empty": Contestant(NEWEST_SPARK, Query("empty-tasks", {"tasks": str(tasks)})),
    }
    kafka_records = _add_kafka(bench, contestants)
    timings = bench.in_turns(contestants, repeats=_rounds(bench))
    for name in ("usual", "large"):
        _check_rows(timings[name], _PARTITIONS)
    label = f"{_WHAT}, {tier.records / 1e6:.1f} M records of 100 B"
    usual, large = timings["usual"].seconds, timings["large"].seconds
    least = _seconds_of_bytes(tier) / _CORES + timings["empty"].seconds
    rows = [
        Row(f"ours, {label}: scanned", tier.records / usual / 1e6, "M records/s"),
        Row(
            f"ours, {label}, targetPartitionBytes=512m: scanned",
            tier.records / large / 1e6,
            "M records/s",
        ).noted(
            f"{large:.2f} s; to read the bytes and check their CRC, and Spark's tasks with nothing"
            f" to do: {least:.2f} s"
        ),
        Row(f"ours, {label}: bytes scanned", tier.stored_bytes / large / 1e9, "GB/s"),
    ]
    if kafka_records:
        rows += _against_kafka(timings, kafka_records, tier.records, least)
    return rows + _columns(bench)


def _rounds(bench: Bench) -> int:
    return min(bench.repeats, 3)


def _literal(number: int) -> str:
    return f"X'{number.to_bytes(8, 'big').hex()}'"


def _ours(tier: Tier, **options: str) -> Query:
    condition = f"key = {_literal(tier.records_per_partition // 2)}"
    wanted = {"columns": "partition,offset,value", "where": condition}
    return Query("tiered-kafka", {**tier.options, **wanted, **options}, sink="rows")


def _check_rows(timings: Timings, count: int) -> None:
    if timings.runs[0].rows != count:
        raise AssertionError(f"{timings.runs[0].rows} rows have the key, not {count}")


def _seconds_of_bytes(tier: Tier) -> float:
    """Returns the seconds to read the tier's logs and compute their CRC-32C, on one core."""
    buffer = np.empty(_PIECE_BYTES, np.uint8)
    began = time.perf_counter()
    for path in sorted(tier.path.glob("*/*/*.log")):
        with path.open("rb", buffering=0) as file:
            while size := os.readv(file.fileno(), [buffer.data]):
                google_crc32c.value(buffer[:size])
    return time.perf_counter() - began


def _add_kafka(bench: Bench, contestants: dict[str, Contestant]) -> int:
    """Adds a contestant with Spark's Kafka source, if available. Returns the number of records that
    it reads.
    """
    from benchmarks.brokers import some_key

    try:
        broker = bench.broker()
        bench.session(SPARK_4_0)
    except SkippedError as skipped:
        bench.report.skipped["WHERE on Spark's Kafka source"] = str(skipped)
        return 0
    topic = broker.topics["small"]
    number = int.from_bytes(some_key(topic), "big")
    query = broker.through_broker("small", where=f"key = {_literal(number)}", sink="rows")
    contestants["kafka"] = Contestant(SPARK_4_0, query)
    return topic.records


def _against_kafka(
    timings: dict[str, Timings], kafka_records: int, records: int, least: float
) -> list[Row]:
    """Compares the time per scanned record, because the topic of Spark's Kafka source is smaller.
    That source's speed per record does not depend on the size of the topic.
    """
    from benchmarks.brokers import PARTITIONS

    _check_rows(timings["kafka"], PARTITIONS)
    each = timings["kafka"].seconds / kafka_records
    rows = [
        Row(
            f"Spark's Kafka source, {_WHAT}, data in the tier, 100 B: scanned",
            1 / each / 1e6,
            "M records/s",
        )
    ]
    name = f"against Spark's Kafka source, {_WHAT}, records scanned a second"
    scale = records / kafka_records
    usual = timings["usual"].times_faster_than(timings["kafka"]) * scale
    large = timings["large"].times_faster_than(timings["kafka"]) * scale
    note = f"{each * records / least:.3g} × is what bytes, their CRC and Spark's tasks leave"
    return [
        *rows,
        Row(name, usual, "×"),
        at_least(f"{name}, targetPartitionBytes=512m", large, "×", 25).noted(note),
    ]


def _columns(bench: Bench) -> list[Row]:
    size = (96 if bench.quick else 1536) << 20
    tier = make_tier(TierShape(_VALUE_BYTES, size, partitions=_PARTITIONS))
    narrow = Query("tiered-kafka", {**tier.options, "columns": "offset"})
    tasks = max(_PARTITIONS, tier.stored_bytes >> 27)
    bounds = {
        name: ceiling(columns, rows=tier.records, tasks=tasks, value_bytes=_VALUE_BYTES)
        for name, columns in (("ceiling", DEFAULT_COLUMNS), ("narrow ceiling", ("offset",)))
    }
    queries = {"all": Query("tiered-kafka", tier.options), "offset": narrow, **bounds}
    timings = bench.in_turns(
        {name: Contestant(NEWEST_SPARK, query) for name, query in queries.items()},
        repeats=_rounds(bench),
    )
    handed = timings["narrow ceiling"].times_faster_than(timings["ceiling"])
    share = timings["offset"].times_faster_than(timings["narrow ceiling"])
    return [
        Row("columns=offset, 100 B", tier.records / timings["offset"].seconds / 1e6, "M records/s"),
        at_least(
            "columns=offset against all columns, 100 B",
            timings["offset"].times_faster_than(timings["all"]),
            "×",
            3.5,
        ).noted(
            f"ready batches: {handed:.3g} ×; columns=offset runs at {share:.3g} of their speed"
        ),
    ]
