"""Compares this library with Spark's own Kafka source and with a consumer, on the same records."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks.bench import NEWEST_SPARK, SPARK_4_0, Bench, Contestant, Timings, ceiling
from benchmarks.consumer import consumed
from benchmarks.report import Row, at_least, at_most
from benchmarks.session import Query
from kts_source.columns import DEFAULT_COLUMNS
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.brokers import FilledBroker, Topic

_SMALL: Final = "small"
_HOUR_MS: Final = 3_600_000
# First measured on a quiet machine. The Kafka source's processor time includes the broker's.
_PROCESSOR_SHARE: Final = {"small": 0.55, "large": 0.6}


def run(bench: Bench) -> list[Row]:
    """Measures full scans, one column, an hour of thirty days, and ten rows."""
    broker = bench.broker()
    rows: list[Row] = []
    for name in ("small",) if bench.quick else ("small", "large"):
        topic = broker.topics[name]
        _check_row_counts(bench, broker, topic)
        rows += _full_scans(bench, broker, topic)
        rows += _one_column(bench, broker, topic)
    rows += _window(bench, broker, broker.topics[_SMALL])
    rows += _limit(bench, broker)
    rows += _consumer(bench, broker)
    return rows


def _words(topic: Topic) -> str:
    return f"{topic.value_bytes} B"


def _tasks(query: Query) -> int:
    return len(plan_scan(parse_options(query.options)).tasks)


def _check_row_counts(bench: Bench, broker: FilledBroker, topic: Topic) -> None:
    """Checks that all readers return all rows. If they did not, the comparison would be invalid."""
    ours = broker.from_tier(topic.name, sink="count")
    from_brokers = broker.from_brokers(f"{topic.name}-hot", sink="count")
    contestants = {
        "kafka": Contestant(SPARK_4_0, broker.through_broker(topic.name, sink="count")),
        "hot": Contestant(SPARK_4_0, broker.through_broker(f"{topic.name}-hot", sink="count")),
        "ours": Contestant(SPARK_4_0, ours),
        "ours, hot": Contestant(SPARK_4_0, from_brokers),
        "ours, newest": Contestant(NEWEST_SPARK, ours),
    }
    for name, contestant in contestants.items():
        row_count = bench.run(contestant).rows
        if row_count != topic.records:
            raise AssertionError(
                f"{name} returned {row_count} of {topic.records} rows of {topic.name}"
            )


def _full_scans(bench: Bench, broker: FilledBroker, topic: Topic) -> list[Row]:
    ours = broker.from_tier(topic.name)
    bounds = _bound_queries(bench, broker, topic, DEFAULT_COLUMNS, _tasks(ours))
    pid = broker.broker.pid
    parquet = bench.folder() / topic.name
    bench.run(
        Contestant(NEWEST_SPARK, broker.from_tier(topic.name, sink="parquet", target=str(parquet)))
    )
    timings = bench.in_turns(
        {
            "tier": Contestant(SPARK_4_0, broker.through_broker(topic.name), other_pid=pid),
            "hot": Contestant(SPARK_4_0, broker.through_broker(f"{topic.name}-hot"), other_pid=pid),
            "ours": Contestant(SPARK_4_0, ours),
            "ours, hot": Contestant(
                SPARK_4_0, broker.from_brokers(f"{topic.name}-hot"), other_pid=pid
            ),
            **{name: Contestant(SPARK_4_0, query) for name, query in bounds.items()},
            "ours, newest": Contestant(NEWEST_SPARK, ours),
            **{f"{name}, newest": Contestant(NEWEST_SPARK, bounds[name]) for name in bounds},
            "parquet, newest": Contestant(NEWEST_SPARK, Query("parquet", {"path": str(parquet)})),
        }
    )
    return _full_scan_rows(topic, timings)


def _full_scan_speeds(topic: Topic, timings: Mapping[str, Timings], label: str) -> list[Row]:
    names = {
        "tier": "Spark's Kafka source, data in the tier",
        "hot": "Spark's Kafka source, data hot on the broker",
        "ours": "ours, Spark 4.0",
        "ours, hot": "ours, data hot on the broker, Spark 4.0",
        "ceiling": "transport ceiling, Spark 4.0",
        "ours, newest": "ours, newest Spark, Unix sockets",
        "ceiling, newest": "transport ceiling, newest Spark, Unix sockets",
        "parquet, newest": "Spark's Parquet reader, newest Spark",
    }
    return [
        row
        for key, name in names.items()
        for row in _speeds(f"{name}, {label}", topic.records, timings[key])
    ]


def _full_scan_rows(topic: Topic, timings: Mapping[str, Timings]) -> list[Row]:
    label = f"{_words(topic)}, all columns → noop"
    rows = _full_scan_speeds(topic, timings, label)
    mine, newest, tier = timings["ours"], timings["ours, newest"], timings["tier"]
    hot = mine.times_faster_than(timings["hot"])
    against_hot = f"against Spark's Kafka source, data hot, {label}, same pyspark"
    rows += [
        at_least(
            f"against Spark's Kafka source, data in the tier, {label}, same pyspark",
            mine.times_faster_than(tier),
            "×",
            2.7,
        ).noted(_bounds_note(timings, "tier")),
        at_least(
            f"against Spark's Kafka source, data in the tier, {label}, newest pyspark",
            newest.times_faster_than(tier),
            "×",
            3,
        ).noted(_bounds_note(timings, "tier", session=", newest")),
        (
            at_least(against_hot, hot, "×", 2.5)
            if topic.name == _SMALL
            else Row(against_hot, hot, "×")
        ).noted(_bounds_note(timings, "hot")),
        Row(
            f"against Spark's Kafka source, data hot, {label}, same pyspark, both from the broker",
            timings["ours, hot"].times_faster_than(timings["hot"]),
            "×",
        ),
        Row(
            f"processor time of Spark's Kafka source's, data hot, {label}, both with the broker's",
            timings["ours, hot"].processor_share_of(timings["hot"]),
            "×",
        ),
        at_most(
            f"processor time of the transport ceiling's, {label}, same pyspark",
            mine.processor_share_of(timings["ceiling"]),
            "×",
            1.15,
        ),
        at_most(
            f"processor time of Spark's Kafka source's and its broker's, {label}",
            mine.processor_share_of(tier),
            "×",
            _PROCESSOR_SHARE[topic.name],
        ).noted(_bounds_note(timings, "tier", Timings.processor_share_of)),
        Row(
            f"of Spark's Parquet reader, {label}, newest pyspark",
            newest.times_faster_than(timings["parquet, newest"]),
            "×",
        ),
    ]
    for suffix, key in (("Spark 4.0", ""), ("newest Spark", ", newest")):
        share = timings[f"ours{key}"].times_faster_than(timings[f"ceiling{key}"])
        note = "held to its goal in longer scans, see there"
        name = f"share of the transport ceiling, {label}, {suffix}, codec none"
        rows.append(Row(name, share, "×").noted(note))
    return rows


def _bound_queries(
    bench: Bench, broker: FilledBroker, topic: Topic, columns: Sequence[str], tasks: int
) -> dict[str, Query]:
    """Returns the queries whose speed is the upper bound of the comparison, by name. `ceiling`
    returns prebuilt batches. `libraries`, which is missing in a quick run, also processes the
    topic's logs with libraries.
    """
    query = partial(
        ceiling, columns, rows=topic.records, tasks=tasks, value_bytes=topic.value_bytes
    )
    bounds = {"ceiling": query()}
    if not bench.quick:
        bounds["libraries"] = query(logs=broker.logs(topic.name))
    return bounds


def _bounds_note(
    timings: Mapping[str, Timings],
    peer: str,
    ratio: Callable[[Timings, Timings], float] = Timings.times_faster_than,
    *,
    session: str = "",
) -> str:
    """Returns a note with the bounds for any source in Python. In a quick run, the only bound is
    that of prebuilt batches.
    """
    alone = ratio(timings[f"ceiling{session}"], timings[peer])
    words = f"ready batches, handed to Spark: {alone:.2f} ×"
    libraries = timings.get(f"libraries{session}")
    if libraries is None:
        return words
    return (
        f"{words}; with our shortcuts between tasks, while libraries read, check and copy the"
        f" same bytes: {ratio(libraries, timings[peer]):.2f} ×"
    )


def _speeds(name: str, records: int, timings: Timings) -> list[Row]:
    return [
        Row(name, records / timings.seconds / 1e6, "M records/s"),
        Row(f"{name}: processor", timings.processor / records * 1e6, "s/M records"),
    ]


def _one_column(bench: Bench, broker: FilledBroker, topic: Topic) -> list[Row]:
    ours = broker.from_tier(topic.name, options={"columns": "value"})
    bounds = _bound_queries(bench, broker, topic, ("value",), _tasks(ours))
    timings = bench.in_turns(
        {
            "tier": Contestant(SPARK_4_0, broker.through_broker(topic.name, select=("value",))),
            "ours": Contestant(SPARK_4_0, ours),
            **{name: Contestant(SPARK_4_0, query) for name, query in bounds.items()},
        },
        repeats=1 if bench.quick else 3,
    )
    label = f"{_words(topic)}, select value"
    return [
        Row(f"ours, {label}", topic.records / timings["ours"].seconds / 1e6, "M records/s"),
        at_least(
            f"share of the value-only ceiling, {label}",
            timings["ours"].times_faster_than(timings["ceiling"]),
            "×",
            0.9,
        ),
        at_least(
            f"against Spark's Kafka source, data in the tier, {label}",
            timings["ours"].times_faster_than(timings["tier"]),
            "×",
            4,
        ).noted(_bounds_note(timings, "tier")),
    ]


def _window(bench: Bench, broker: FilledBroker, topic: Topic) -> list[Row]:
    """Compares reads of the hour in the middle of the tiered days."""
    start = topic.date_ms(0.5)
    stop = start + _HOUR_MS
    bounds = {"startingTimestamp": str(start), "endingTimestamp": str(stop)}
    where = f"timestamp >= timestamp_millis({start}) and timestamp < timestamp_millis({stop})"
    query = broker.through_broker(topic.name, sink="count", options=bounds)
    # The option endingOffsets would override the end timestamp.
    query = Query(
        query.source,
        {name: text for name, text in query.options.items() if name != "endingOffsets"},
        sink="count",
    )
    contestants = {
        "filter": Contestant(
            SPARK_4_0, broker.through_broker(topic.name, where=where, sink="count")
        ),
        "bounds": Contestant(SPARK_4_0, query),
        "ours": Contestant(SPARK_4_0, broker.from_tier(topic.name, sink="count", options=bounds)),
        "empty": Contestant(SPARK_4_0, Query("empty-tasks", {"tasks": "1"}, sink="count")),
    }
    timings = bench.in_turns(contestants, repeats=1 if bench.quick else 3)
    counts = {name: timings[name].runs[0].rows for name in ("filter", "bounds", "ours")}
    if len(set(counts.values())) != 1 or not counts["ours"]:
        raise AssertionError(f"the queries of the hour return different row counts: {counts}")
    label = "one hour of 30 days, count(*)"
    options = "Spark's Kafka source with its timestamp options"
    bound = (
        f"a Python data source that yields nothing takes {timings['empty'].seconds:.2f} s in the"
        " same run, and no source in Python can take less"
    )
    return [
        Row(f"ours, {label}", timings["ours"].seconds, "s"),
        Row(
            f"Spark's Kafka source with its timestamp options, {label}",
            timings["bounds"].seconds,
            "s",
        ),
        at_least(
            f"against Spark's Kafka source with WHERE timestamp, {label}",
            timings["ours"].times_faster_than(timings["filter"]),
            "×",
            20,
        ).noted(
            f"the filter reads all {topic.records / 1e6:.2g} M records, here and in years of them;"
            f" {bound}"
        ),
        at_least(
            f"against {options}, {label}",
            timings["ours"].times_faster_than(timings["bounds"]),
            "×",
            3,
        ).noted(bound),
    ]


def _limit(bench: Bench, broker: FilledBroker) -> list[Row]:
    timings = bench.in_turns(
        {
            "tier": Contestant(SPARK_4_0, broker.through_broker(_SMALL, sink="limit")),
            "ours": Contestant(SPARK_4_0, broker.from_tier(_SMALL, sink="limit")),
            "ours, newest": Contestant(NEWEST_SPARK, broker.from_tier(_SMALL, sink="limit")),
        }
    )
    ratio = timings["ours"].times_faster_than(timings["tier"])
    note = (
        "Spark kills a Python worker that LIMIT ends, so the next one starts cold: imports, kernels"
    )
    return [
        Row("ours, limit 10, Spark 4.0", timings["ours"].seconds, "s"),
        Row("ours, limit 10, newest Spark", timings["ours, newest"].seconds, "s"),
        Row("Spark's Kafka source, limit 10", timings["tier"].seconds, "s"),
        Row("against Spark's Kafka source, limit 10", ratio, "×").noted(note),
    ]


def _consumer(bench: Bench, broker: FilledBroker) -> list[Row]:
    """Measures a consumer of confluent-kafka that reads from the broker's disk in one process, and
    converts its messages to Arrow.
    """
    rows = []
    for name in ("small",) if bench.quick else ("small", "large"):
        topic = broker.topics[f"{name}-hot"]
        record_count = min(topic.records // 2, 50_000 if bench.quick else 500_000)
        consumer = consumed(
            broker.broker.bootstrap, topic.name, dict.fromkeys(topic.stops, 0), record_count
        )
        label = f"confluent-kafka → Arrow, one process, {_words(topic)}, data hot"
        rows += [
            Row(label, consumer.speed / 1e6, "M records/s"),
            Row(f"{label}: processor", consumer.processor * 1e6, "s/M records"),
        ]
    return rows
