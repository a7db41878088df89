"""Measures reads from brokers.

Compares reads of hot data, which is still on the broker's disk, with Spark's Kafka source and with
a consumer. Also measures scans of tier and brokers together, the additional planning time with
brokers, and the time to open a connection.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks.bench import SPARK_4_0, Bench, Contestant, Timings, ceiling
from benchmarks.brokers import PARTITIONS
from benchmarks.consumer import consumed
from benchmarks.hybrid_child import in_a_child
from benchmarks.hybrid_cluster import MANY, PLAIN, VALUE_BYTES, ZSTD, HotCluster, hot_cluster
from benchmarks.report import Row, at_least, at_most
from benchmarks.session import Query
from kts_source.columns import DEFAULT_COLUMNS
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan

if TYPE_CHECKING:
    from collections.abc import Mapping

_CODECS: Final = {PLAIN: "none", ZSTD: "zstd"}
_CLIENT_GOALS: Final = {PLAIN: 10, ZSTD: 6}
_WORDS: Final = {PLAIN: "codec none", ZSTD: "zstd batches"}
_TAIL: Final = 0.1
_UNIT: Final = "M records/s"


def run(bench: Bench) -> list[Row]:
    """Runs all measurements on one broker and returns their rows."""
    bench.need("java", "mvn")
    with hot_cluster(bench.folder(), quick=bench.quick, say=bench.say) as hot:
        rows: list[Row] = []
        for topic in _CODECS:
            rows += _hot(bench, hot, topic)
        rows += _mixed(bench, hot)
        for topic in _CODECS:
            rows += _client(bench, hot, topic)
        return rows + _plan(bench, hot) + _logins(hot)


def _hot(bench: Bench, hot: HotCluster, topic: str) -> list[Row]:
    """Reads all hot data with Spark's own source and with this library, in the same Spark."""
    ours = hot.ours(topic)
    records = hot.records(topic)
    tasks = len(plan_scan(parse_options(ours.options)).tasks)
    prebuilt = partial(ceiling, DEFAULT_COLUMNS, rows=records, tasks=tasks, value_bytes=VALUE_BYTES)
    contestants = {
        "kafka": Contestant(SPARK_4_0, hot.spark_kafka(topic), other_pid=hot.pid),
        "ours": Contestant(SPARK_4_0, ours, other_pid=hot.pid),
        "ceiling": Contestant(SPARK_4_0, prebuilt()),
        "libraries": Contestant(SPARK_4_0, prebuilt(logs=hot.logs(topic), codec=_CODECS[topic])),
    }
    timings = bench.in_turns(contestants)
    mine, theirs = timings["ours"], timings["kafka"]
    label = f"{VALUE_BYTES} B, {_WORDS[topic]}, hot on the broker, all columns → noop"
    return [
        Row(f"ours, brokers only, {label}", records / mine.seconds / 1e6, _UNIT),
        Row(f"Spark's Kafka source, {label}", records / theirs.seconds / 1e6, _UNIT),
        at_least(
            f"brokers only, against Spark's Kafka source, {label}",
            mine.times_faster_than(theirs),
            "×",
            2.2,
        ).noted(_bounds_note(timings)),
        at_most(
            "brokers only, processor time of Spark's Kafka source's, the broker's counted,"
            f" {label}",
            mine.processor_share_of(theirs),
            "×",
            0.55,
        ).noted(_processor_note(timings, records)),
    ]


def _bounds_note(timings: Mapping[str, Timings]) -> str:
    """Returns a note with two bounds for any source in Python: the speed of prebuilt batches alone,
    and of prebuilt batches while libraries process the same bytes.
    """
    alone, libraries = (
        timings[name].times_faster_than(timings["kafka"]) for name in ("ceiling", "libraries")
    )
    return (
        f"ready batches, handed to Spark: {alone:.2f} ×; while libraries read,"
        f" check, decompress and copy the same bytes from disk: {libraries:.2f} ×"
    )


def _processor_note(timings: Mapping[str, Timings], records: int) -> str:
    """Returns a note with the processor time per record in the JVM, in Python and in the broker."""
    texts = []
    for name, words in (("ours", "ours"), ("kafka", "theirs"), ("ceiling", "the ceiling")):
        parts = (
            timings[name].median(lambda run: run.jvm),
            timings[name].median(lambda run: run.python),
            timings[name].median(lambda run: run.other),
        )
        jvm, python, broker = (seconds / records * 1e9 for seconds in parts)
        texts.append(f"{words} {jvm:.0f} JVM, {python:.0f} Python, {broker:.0f} broker")
    return f"processor ns a record: {'; '.join(texts)}"


def _mixed(bench: Bench, hot: HotCluster) -> list[Row]:
    """Reads the same rows twice: once all from the tier, and once the newest tenth from the broker
    and the rest from the tier.
    """
    path, share = hot.tier_without_newest(PLAIN, _TAIL, bench.folder())
    full_query = hot.ours(PLAIN, **hot.tier())
    options = {
        key: text for key, text in full_query.options.items() if not key.startswith("kafka.")
    }
    timings = bench.in_turns(
        {
            "tier": Contestant(SPARK_4_0, Query(full_query.source, options)),
            "with brokers": Contestant(SPARK_4_0, full_query),
            "mixed": Contestant(SPARK_4_0, hot.ours(PLAIN, **hot.tier(path)), other_pid=hot.pid),
        }
    )
    records = hot.records(PLAIN)
    label = f"{100 - share * 100:.0f} % tier and {share * 100:.0f} % brokers"
    beside = timings["with brokers"].times_faster_than(timings["tier"])
    return [
        Row(f"all in the tier, {VALUE_BYTES} B", records / timings["tier"].seconds / 1e6, _UNIT),
        Row(f"{label}, {VALUE_BYTES} B", records / timings["mixed"].seconds / 1e6, _UNIT),
        at_least(
            f"{label}, against all in the tier, {VALUE_BYTES} B",
            timings["mixed"].times_faster_than(timings["tier"]),
            "×",
            0.9,
        ).noted(f"all in the tier, with brokers asked for the plan: {beside:.2f} ×"),
    ]


def _client(bench: Bench, hot: HotCluster, topic: str) -> list[Row]:
    """Compares a task of this library without Spark with a consumer of confluent-kafka. Each runs
    in a separate process.
    """
    partition_records = 25_000 if bench.quick else 500_000
    starts = {number: stop - partition_records for number, stop in hot.stops[topic].items()}
    options = dict(hot.ours(topic).options)
    ours, theirs = [], []
    for _ in range(bench.repeats):
        ours.append(in_a_child("reading", options))
        theirs.append(
            consumed(hot.cluster.bootstrap, topic, starts, partition_records * PARTITIONS)
        )
    ratio = statistics.median(
        their.processor / our["processor"] for our, their in zip(ours, theirs, strict=True)
    )
    label = f"{VALUE_BYTES} B, {_WORDS[topic]}"
    parts = {
        name: statistics.median(run[name] for run in ours) * 1e9
        for name in ("processor", "seconds", "fetching", "decoding")
    }
    their = statistics.median(run.processor for run in theirs) * 1e9
    note = (
        f"client's processor ns a record: {parts['processor']:.0f} against {their:.0f}; of ours"
        f" {parts['fetching']:.0f} are fetching, {parts['decoding']:.0f} decoding"
    )
    return [
        Row(f"brokers → Arrow without Spark, {label}", 1e3 / parts["seconds"], _UNIT),
        Row(
            f"confluent-kafka → Arrow, {label}",
            statistics.median(run.speed for run in theirs) / 1e6,
            _UNIT,
        ),
        at_least(
            f"brokers → Arrow without Spark, against confluent-kafka → Arrow, by core, {label}",
            ratio,
            "×",
            _CLIENT_GOALS[topic],
        ).noted(note),
    ]


def _plan(bench: Bench, hot: HotCluster) -> list[Row]:
    """Compares the time to plan the tier alone with the time to plan tier and brokers. Each plan
    runs in a new process.
    """
    tier = {**hot.tier(), "subscribe": MANY}
    union = {**tier, "kafka.bootstrap.servers": hot.cluster.bootstrap}
    alone, with_brokers = [], []
    for _ in range(bench.repeats):
        alone.append(in_a_child("planning", tier))
        with_brokers.append(in_a_child("planning", union))
    assert with_brokers[0]["partitions"] == hot.many
    assert with_brokers[0]["aborted"] >= hot.many // 6
    more = statistics.median(
        run["seconds"] - run_alone["seconds"]
        for run, run_alone in zip(with_brokers, alone, strict=True)
    )
    label = f"plan of {hot.many} partitions"
    return [
        Row(f"{label}, tier alone", statistics.median(run["seconds"] for run in alone), "s"),
        Row(
            f"{label}, with brokers", statistics.median(run["seconds"] for run in with_brokers), "s"
        ),
        at_most(
            f"{label}, what brokers add, a transaction open at the tier's end in a third of them",
            more,
            "s",
            2,
        ).noted("in fresh processes: loading the protocol library is among it"),
    ]


def _logins(hot: HotCluster) -> list[Row]:
    """Measures the time in which a task opens a connection with SCRAM-SHA-512 over TLS."""
    options = {**hot.ours(PLAIN).options, **hot.scram(), "minPartitions": "4"}
    figures = in_a_child("logins", options)
    label = "a connection with SCRAM-SHA-512 over TLS"
    return [
        at_most(label, figures["median"] * 1e3, "ms", 60).noted(
            f"the longest of all took {figures['longest'] * 1e3:.0f} ms, the first of the process"
            f" {figures['first'] * 1e3:.0f}"
        ),
        at_most(
            f"{label}: opened by {figures['tasks']:.0f} tasks of a worker, one broker",
            figures["opened"],
            "",
            1,
        ),
        Row("loading the protocol library, once a worker", figures["loading"] * 1e3, "ms").noted(
            "only where a task has a broker range; from the files in the page cache"
        ),
    ]
