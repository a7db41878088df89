"""One key in many records: option `where` against Spark's Kafka source; fewer columns."""

from __future__ import annotations

from typing import Final

from benchmarks.bench import NEWEST_SPARK, SPARK_4_0, Bench, Contestant, SkippedError, Timings
from benchmarks.report import Row, at_least
from benchmarks.session import Query
from benchmarks.tiers import Tier, TierShape, make_tier

_PARTITIONS: Final = 6


def run(bench: Bench) -> list[Row]:
    """The key's rows are counted, so that nobody skips work."""
    log_bytes = (96 << 20) if bench.quick else (6200 << 20)
    tier = make_tier(TierShape(100, log_bytes, partitions=_PARTITIONS))
    repeats = 1 if bench.quick else 3
    ours = bench.in_turns({"ours": Contestant(NEWEST_SPARK, _ours(tier))}, repeats=repeats)["ours"]
    if ours.runs[0].rows != _PARTITIONS:
        raise AssertionError(f"{ours.runs[0].rows} rows have the key")
    what = f"WHERE key = …, {tier.records / 1e6:.1f} M records of 100 B"
    speed = tier.records / ours.seconds
    rows = [
        Row(f"ours, {what}", ours.seconds, "s"),
        Row(f"ours, {what}: scanned", speed / 1e6, "M records/s"),
        Row(
            f"ours, {what}: stored bytes scanned",
            tier.stored_bytes / ours.seconds / 1e9,
            "GB/s",
        ),
    ]
    try:
        rows += _against_kafka(bench, speed, repeats)
    except SkippedError as skipped:
        bench.report.skipped["WHERE on Spark's Kafka source"] = str(skipped)
    return rows + _columns(bench)


def _literal(number: int) -> str:
    return f"X'{number.to_bytes(8, 'big').hex()}'"


def _ours(tier: Tier) -> Query:
    condition = f"key = {_literal(tier.records_per_partition // 2)}"
    options = {**tier.options, "columns": "partition,offset,value", "where": condition}
    return Query("tiered-kafka", options, sink="rows")


def _against_kafka(bench: Bench, speed: float, repeats: int) -> list[Row]:
    """Per record scanned: the Kafka source's topic is smaller, and its speed does not depend on
    that.
    """
    from benchmarks.brokers import PARTITIONS, some_key

    broker = bench.broker()
    topic = broker.topics["small"]
    number = int.from_bytes(some_key(topic), "big")
    query = broker.through_broker("small", where=f"key = {_literal(number)}", sink="rows")
    timings = bench.in_turns({"kafka": Contestant(SPARK_4_0, query)}, repeats=repeats)["kafka"]
    if timings.runs[0].rows != PARTITIONS:
        raise AssertionError(f"{timings.runs[0].rows} rows have the key")
    theirs = topic.records / timings.seconds
    name = "Spark's Kafka source, WHERE key = …, data in the tier, 100 B: scanned"
    return [
        Row(name, theirs / 1e6, "M records/s"),
        at_least(
            "against Spark's Kafka source, WHERE key = …, records scanned a second",
            speed / theirs,
            "×",
            25,
        ),
    ]


def _columns(bench: Bench) -> list[Row]:
    tier = make_tier(TierShape(100, (96 if bench.quick else 1536) << 20, partitions=_PARTITIONS))
    query = Query("tiered-kafka", tier.options)
    narrow = Query("tiered-kafka", {**tier.options, "columns": "offset"})
    found: dict[str, Timings] = bench.in_turns(
        {"all": Contestant(NEWEST_SPARK, query), "offset": Contestant(NEWEST_SPARK, narrow)},
        repeats=1 if bench.quick else 5,
    )
    return [
        Row("columns=offset, 100 B", tier.records / found["offset"].seconds / 1e6, "M records/s"),
        at_least(
            "columns=offset against all columns, 100 B",
            found["offset"].times_faster_than(found["all"]),
            "×",
            3.5,
        ),
    ]
