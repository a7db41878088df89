"""Compares Sail with the newest Spark and with Spark 4.0. All three run one PySpark aggregate over
all columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.bench import NEWEST_SPARK, SAIL_SERVER, SPARK_4_0, Contestant
from benchmarks.report import Row, at_least, at_most
from benchmarks.session import Query

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.bench import Bench, Timings
    from benchmarks.tiers import Tier


def against_spark(bench: Bench, tier: Tier, label: str, goal: float) -> list[Row]:
    """Compares this library's source on Sail with this library's source on Spark.

    Raises:
        SkippedError: Sail or Spark 4.0 is missing.
    """
    query = Query("tiered-kafka", tier.options, sink="aggregate")
    names = (SAIL_SERVER, NEWEST_SPARK, SPARK_4_0)
    contestants = {name: Contestant(name, query) for name in names}
    _check_row_counts(bench, contestants, tier.records)
    timings = bench.in_turns(contestants)
    sail, newest = timings[SAIL_SERVER], timings[NEWEST_SPARK]
    label = f"{label}, aggregate of all columns"
    return [
        *_speeds(timings, tier.records, label),
        at_least(
            f"Sail against the newest Spark, {label}", sail.times_faster_than(newest), "×", goal
        ),
        at_most(
            f"Sail's processor time of the newest Spark's, {label}",
            sail.processor_share_of(newest),
            "×",
            0.5,
        ),
    ]


def against_kafka(bench: Bench) -> list[Row]:
    """Compares this library on Sail, which reads the tier directly, with Spark's Kafka source,
    which reads the same tiered data through a broker.

    Raises:
        SkippedError: Sail, Spark 4.0 or a broker is missing.
    """
    broker = bench.broker()
    topic = next(candidate for candidate in broker.topics.values() if candidate.value_bytes == 100)
    contestants = {
        SAIL_SERVER: Contestant(SAIL_SERVER, broker.from_tier(topic.name, sink="aggregate")),
        "Spark's Kafka source": Contestant(
            SPARK_4_0, broker.through_broker(topic.name, sink="aggregate")
        ),
    }
    _check_row_counts(bench, contestants, topic.records)
    timings = bench.in_turns(contestants)
    label = "100 B, data in the tier, aggregate of all columns"
    return [
        *_speeds(timings, topic.records, label),
        at_least(
            f"Sail against Spark's Kafka source, {label}",
            timings[SAIL_SERVER].times_faster_than(timings["Spark's Kafka source"]),
            "×",
            4.5,
        ),
    ]


def _check_row_counts(bench: Bench, contestants: Mapping[str, Contestant], records: int) -> None:
    for name, contestant in contestants.items():
        row_count = bench.run(contestant).rows
        if row_count != records:
            raise AssertionError(f"{name} returned {row_count} of {records} rows")


def _speeds(timings: Mapping[str, Timings], records: int, label: str) -> list[Row]:
    return [
        Row(f"{name}, {label}", records / contestant_timings.seconds / 1e6, "M records/s").noted(
            f"{contestant_timings.processor / records * 1e9:.0f} ns of processor time a record"
        )
        for name, contestant_timings in timings.items()
    ]
