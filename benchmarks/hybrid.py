"""Measures brokers: hot data against Spark's Kafka source and a consumer, tier and brokers in one
scan, the cost of brokers for a plan, and the cost of a connection.
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
    """Runs all parts on one broker."""
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
    what = f"{VALUE_BYTES} B, {_WORDS[topic]}, hot on the broker, all columns → noop"
    return [
        Row(f"ours, brokers only, {what}", records / mine.seconds / 1e6, _UNIT),
        Row(f"Spark's Kafka source, {what}", records / theirs.seconds / 1e6, _UNIT),
        at_least(
            f"brokers only, against Spark's Kafka source, {what}",
            mine.times_faster_than(theirs),
            "×",
            2.2,
        ).noted(_bounds(timings)),
        at_most(
            f"brokers only, processor time of Spark's Kafka source's, the broker's counted, {what}",
            mine.processor_share_of(theirs),
            "×",
            0.55,
        ).noted(_spent(timings, records)),
    ]


def _bounds(timings: Mapping[str, Timings]) -> str:
    """Returns the bounds for any source in Python, from the same run."""
    alone, libraries = (
        timings[name].times_faster_than(timings["kafka"]) for name in ("ceiling", "libraries")
    )
    return (
        f"ready batches, handed to Spark: {alone:.2f} ×; while libraries read,"
        f" check, decompress and copy the same bytes from disk: {libraries:.2f} ×"
    )


def _spent(timings: Mapping[str, Timings], records: int) -> str:
    """Returns how the processor time is spent."""
    texts = []
    for name, words in (("ours", "ours"), ("kafka", "theirs"), ("ceiling", "the ceiling")):
        parts = (
            timings[name].median(lambda run: run.jvm),
            timings[name].median(lambda run: run.python),
            timings[name].median(lambda run: run.other),
        )
        jvm, python, broker = (part / records * 1e9 for part in parts)
        texts.append(f"{words} {jvm:.0f} JVM, {python:.0f} Python, {broker:.0f} broker")
    return f"processor ns a record: {'; '.join(texts)}"


def _mixed(bench: Bench, hot: HotCluster) -> list[Row]:
    """Reads the same rows, all from the tier, or the newest tenth from the broker only."""
    path, share = hot.tier_without_newest(PLAIN, _TAIL, bench.folder())
    whole = hot.ours(PLAIN, **hot.tier())
    options = {key: text for key, text in whole.options.items() if not key.startswith("kafka.")}
    timings = bench.in_turns(
        {
            "tier": Contestant(SPARK_4_0, Query(whole.source, options)),
            "with brokers": Contestant(SPARK_4_0, whole),
            "mixed": Contestant(SPARK_4_0, hot.ours(PLAIN, **hot.tier(path)), other_pid=hot.pid),
        }
    )
    records = hot.records(PLAIN)
    what = f"{100 - share * 100:.0f} % tier and {share * 100:.0f} % brokers"
    beside = timings["with brokers"].times_faster_than(timings["tier"])
    return [
        Row(f"all in the tier, {VALUE_BYTES} B", records / timings["tier"].seconds / 1e6, _UNIT),
        Row(f"{what}, {VALUE_BYTES} B", records / timings["mixed"].seconds / 1e6, _UNIT),
        at_least(
            f"{what}, against all in the tier, {VALUE_BYTES} B",
            timings["mixed"].times_faster_than(timings["tier"]),
            "×",
            0.9,
        ).noted(f"all in the tier, with brokers asked for the plan: {beside:.2f} ×"),
    ]


def _client(bench: Bench, hot: HotCluster, topic: str) -> list[Row]:
    """Compares a task without Spark with confluent-kafka, each in its own process."""
    each = 25_000 if bench.quick else 500_000
    starts = {number: stop - each for number, stop in hot.stops[topic].items()}
    options = dict(hot.ours(topic).options)
    ours, theirs = [], []
    for _ in range(bench.repeats):
        ours.append(in_a_child("reading", options))
        theirs.append(consumed(hot.cluster.bootstrap, topic, starts, each * PARTITIONS))
    ratio = statistics.median(
        their.processor / our["processor"] for our, their in zip(ours, theirs, strict=True)
    )
    what = f"{VALUE_BYTES} B, {_WORDS[topic]}"
    parts = {
        name: statistics.median(one[name] for one in ours) * 1e9
        for name in ("processor", "seconds", "fetching", "decoding")
    }
    their = statistics.median(one.processor for one in theirs) * 1e9
    note = (
        f"client's processor ns a record: {parts['processor']:.0f} against {their:.0f}; of ours"
        f" {parts['fetching']:.0f} are fetching, {parts['decoding']:.0f} decoding"
    )
    return [
        Row(f"brokers → Arrow without Spark, {what}", 1e3 / parts["seconds"], _UNIT),
        Row(
            f"confluent-kafka → Arrow, {what}",
            statistics.median(one.speed for one in theirs) / 1e6,
            _UNIT,
        ),
        at_least(
            f"brokers → Arrow without Spark, against confluent-kafka → Arrow, by core, {what}",
            ratio,
            "×",
            _CLIENT_GOALS[topic],
        ).noted(note),
    ]


def _plan(bench: Bench, hot: HotCluster) -> list[Row]:
    """Measures a plan in a new process, for the tier alone and with brokers."""
    tier = {**hot.tier(), "subscribe": MANY}
    union = {**tier, "kafka.bootstrap.servers": hot.cluster.bootstrap}
    alone, both = [], []
    for _ in range(bench.repeats):
        alone.append(in_a_child("planning", tier))
        both.append(in_a_child("planning", union))
    assert both[0]["partitions"] == hot.many
    assert both[0]["aborted"] >= hot.many // 6
    more = statistics.median(
        with_["seconds"] - without["seconds"] for with_, without in zip(both, alone, strict=True)
    )
    what = f"plan of {hot.many} partitions"
    return [
        Row(f"{what}, tier alone", statistics.median(one["seconds"] for one in alone), "s"),
        Row(f"{what}, with brokers", statistics.median(one["seconds"] for one in both), "s"),
        at_most(
            f"{what}, what brokers add, a transaction open at the tier's end in a third of them",
            more,
            "s",
            2,
        ).noted("in fresh processes: loading the protocol library is among it"),
    ]


def _logins(hot: HotCluster) -> list[Row]:
    """Measures a connection with SCRAM-SHA-512 over TLS, as a task opens it."""
    options = {**hot.ours(PLAIN).options, **hot.scram(), "minPartitions": "4"}
    figures = in_a_child("logins", options)
    what = "a connection with SCRAM-SHA-512 over TLS"
    return [
        at_most(what, figures["median"] * 1e3, "ms", 60).noted(
            f"the longest of all took {figures['longest'] * 1e3:.0f} ms, the first of the process"
            f" {figures['first'] * 1e3:.0f}"
        ),
        at_most(
            f"{what}: opened by {figures['tasks']:.0f} tasks of a worker, one broker",
            figures["opened"],
            "",
            1,
        ),
        Row("loading the protocol library, once a worker", figures["loading"] * 1e3, "ms").noted(
            "only where a task has a broker range; from the files in the page cache"
        ),
    ]
