"""Measures scans without Spark: `kts_source.scan` with one thread and with two threads, and queries
of such a scan in other engines.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import duckdb
import polars as pl
from polars.io.plugins import register_io_source

import kts_source
from benchmarks.engines_parts import decode, read, read_and_decode
from benchmarks.engines_s3 import s3_rows
from benchmarks.engines_sail import against_kafka, against_spark
from benchmarks.engines_threads import drain, thread_rows
from benchmarks.report import Row, at_least, at_most
from benchmarks.tiers import Tier, TierShape, make_tier
from benchmarks.turns import in_turns

if TYPE_CHECKING:
    from benchmarks.bench import Bench
    from benchmarks.turns import Times

_SQL: Final = (
    'select "partition", count(*), sum("offset"), sum(octet_length(value)), max(timestamp)'
    " from {} group by all"
)


def run(bench: Bench) -> list[Row]:
    """Returns all rows. A quick run has a fourth of the bytes. Measurements that this machine
    cannot run are skipped.
    """
    rows = []
    for value_bytes, label, goal in ((100, "100 B", 1.6), (1000, "1 KB", 1.3)):
        shape = TierShape(value_bytes, 1 << 30, partitions=4, segment_bytes=64 << 20)
        if bench.quick:
            shape = replace(shape, log_bytes=1 << 28, segment_bytes=16 << 20)
        tier = make_tier(shape)
        rows += _one_thread(tier, label, bench.repeats + 2)
        rows += thread_rows(tier, label, bench.repeats)
        rows += _aggregates(tier, label, bench.repeats + 2)
        on_sail = partial(against_spark, tier=tier, label=label, goal=goal)
        rows += bench.unless_skipped(f"Sail, {label}", on_sail)
        rows += bench.unless_skipped(f"S3, {label}", partial(s3_rows, tier=tier, label=label))
    rows += _first_rows(tier)
    return rows + bench.unless_skipped("Sail against Spark's Kafka source", against_kafka)


def _one_thread(tier: Tier, label: str, rounds: int) -> list[Row]:
    logs = sorted(tier.path.glob("*/*/*.log"))
    one = logs[0].read_bytes()
    scan = kts_source.scan(tier.options)
    times = in_turns(
        {
            "read": lambda: read(logs),
            "decode": lambda: decode(one, len(logs)),
            "loop": lambda: read_and_decode(logs),
            "one": lambda: drain(scan, 1, tier.records),
        },
        rounds,
    )
    return [
        Row(
            f"scan().to_reader(), one thread, {label}",
            tier.records / times.median("one") / 1e6,
            "M records/s",
        ),
        at_least(
            f"scan().to_reader(), one thread, of the additive bound, {label}",
            times.ratio(("read", "decode"), "one"),
            "×",
            0.9,
        ).noted(
            f"reading the bytes {times.median('read'):.2f} s, decoding from memory"
            f" {times.median('decode'):.2f} s"
        ),
        Row(
            f"a loop that reads a window and decodes it, of the additive bound, {label}",
            times.ratio(("read", "decode"), "loop"),
            "×",
        ).noted(
            "no plan, no checks, no metrics; scan().to_reader() is"
            f" {times.ratio(('loop',), 'one'):.3g} × of this"
        ),
    ]


def _aggregates(tier: Tier, label: str, rounds: int) -> list[Row]:
    """Compares Polars and DuckDB queries of a scan with two bounds: reading the scan without a
    query, and running the queries on data in memory.
    """
    columns = ["partition", "offset", "value", "timestamp"]
    scan = kts_source.scan(tier.options).select(columns)
    table = scan.to_table()
    frame = pl.DataFrame(table)
    by_polars = [
        pl.len(),
        pl.col("offset").sum(),
        pl.col("value").bin.size().sum(),
        pl.col("timestamp").max(),
    ]
    lazy, dataset = scan.to_lazy(threads=1), scan.to_dataset()
    in_threads = scan.to_lazy()
    batches = table.to_batches()
    handed_over = register_io_source(
        lambda *_asked: map(pl.DataFrame, batches), schema=frame.schema, is_pure=True
    )
    connection = duckdb.connect()
    connection.register("tier", dataset)
    connection.register("whole", table)

    def drained() -> None:
        with scan.to_reader(threads=1) as reader:
            for _ in reader:
                pass

    times = in_turns(
        {
            "drained": drained,
            "polars in memory": lambda: frame.lazy().group_by("partition").agg(by_polars).collect(),
            "polars": lambda: lazy.group_by("partition").agg(by_polars).collect(engine="streaming"),
            "polars, threads": lambda: (
                in_threads.group_by("partition").agg(by_polars).collect(engine="streaming")
            ),
            "polars plugin": lambda: (
                handed_over.group_by("partition").agg(by_polars).collect(engine="streaming")
            ),
            "duckdb in memory": lambda: connection.sql(_SQL.format("whole")).to_arrow_table(),
            "duckdb": lambda: connection.sql(_SQL.format("tier")).to_arrow_table(),
        },
        rounds,
    )
    connection.close()
    return _aggregate_rows(times, table.num_rows, label)


def _aggregate_rows(times: Times, records: int, label: str) -> list[Row]:
    rows = [
        at_least(
            f"{name} aggregate, of the stream drained and the same from memory, {label}",
            times.ratio(("drained", f"{name.lower()} in memory"), name.lower()),
            "×",
            0.85,
        ).noted(
            f"drained {times.median('drained'):.2f} s, from memory"
            f" {times.median(f'{name.lower()} in memory'):.2f} s"
        )
        for name in ("Polars", "DuckDB")
    ]
    return [
        *rows,
        Row(
            f"Polars aggregate, of the stream drained and ready batches handed to Polars, {label}",
            times.ratio(("drained", "polars plugin"), "polars"),
            "×",
        ).noted(
            "the same batches from memory through Polars' interface for sources take"
            f" {times.median('polars plugin'):.2f} s: it copies each, and a thread"
            f" reads meanwhile"
        ),
        Row(
            f"Polars aggregate, a reading thread a core, against one, {label}",
            times.ratio(("polars",), "polars, threads"),
            "×",
        ).noted(f"{records / times.median('polars, threads') / 1e6:.3g} M records/s"),
    ]


def _first_rows(tier: Tier) -> list[Row]:
    def ten() -> None:
        assert kts_source.scan(tier.options).limit(10).to_table().num_rows == 10

    times = in_turns({"ten": ten}, 9)
    return [
        at_most(
            "first rows of scan().limit(10), plan included, from a local folder",
            times.median("ten") * 1e3,
            "ms",
            50,
        )
    ]
