"""Scans without Spark: `kts_source.scan` in one thread and two, and the engines on top of it."""

from __future__ import annotations

import multiprocessing
import pickle
import statistics
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import duckdb
import polars as pl

import kts_source
from benchmarks.engines_s3 import s3_rows
from benchmarks.engines_sail import against_kafka, against_spark
from benchmarks.report import Row, at_least, at_most
from benchmarks.tiers import Tier, TierShape, make_tier
from kts_source.columns import DEFAULT_COLUMNS, PARTITION, TOPIC
from kts_source.read.read_settings import FOR_ENGINES
from segment_format.arrow import RecordDecoder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection
    from pathlib import Path

    from benchmarks.bench import Bench
    from kts_source.read.task import ScanTask

_WINDOW: Final = 8 << 20
_SQL: Final = (
    'select "partition", count(*), sum("offset"), sum(octet_length(value)), max(timestamp)'
    " from {} group by all"
)


def run(bench: Bench) -> list[Row]:
    """All rows; a quick run has a fourth of the bytes. What this machine cannot run is left out."""
    rows = []
    for value_bytes, what, least in ((100, "100 B", 1.6), (1000, "1 KB", 1.3)):
        shape = TierShape(value_bytes, 1 << 30, partitions=4, segment_bytes=64 << 20)
        if bench.quick:
            shape = replace(shape, log_bytes=1 << 28, segment_bytes=16 << 20)
        tier = make_tier(shape)
        rows += _stream(tier, what, bench.repeats + 2)
        rows += _aggregates(tier, what, bench.repeats + 2)
        on_sail = partial(against_spark, tier=tier, what=what, least=least)
        rows += bench.unless_skipped(f"Sail, {what}", on_sail)
        rows += bench.unless_skipped(f"S3, {what}", partial(s3_rows, tier=tier, what=what))
    rows += _first_rows(tier)
    return rows + bench.unless_skipped("Sail against Spark's Kafka source", against_kafka)


@dataclass(slots=True)
class _Times:
    """Seconds of several actions, taken in turns."""

    seconds: dict[str, list[float]]

    def ratio(self, of: Sequence[str], by: str) -> float:
        """The median over rounds of what some take together, by what one takes."""
        rounds = zip(*(self.seconds[name] for name in of), strict=True)
        each = zip(map(sum, rounds), self.seconds[by], strict=True)
        return statistics.median(together / alone for together, alone in each)

    def median(self, name: str) -> float:
        """Seconds of one."""
        return statistics.median(self.seconds[name])


def _in_turns(actions: dict[str, Callable[[], object]], rounds: int) -> _Times:
    found: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(rounds + 1):
        for name, action in actions.items():
            began = time.perf_counter()
            action()
            if number:  # the first one warms up
                found[name].append(time.perf_counter() - began)
    return _Times(found)


def _stream(tier: Tier, what: str, rounds: int) -> list[Row]:
    logs = sorted(tier.path.glob("*/*/*.log"))
    one = logs[0].read_bytes()
    scan = kts_source.scan(tier.options)
    tasks = scan.tasks

    def drained(threads: int) -> None:
        with scan.to_reader(threads=threads, ordered=False) as reader:
            rows = sum(batch.num_rows for batch in reader)
        assert rows == tier.records

    with _Processes(pickle.dumps(scan.task_reader), [tasks[::2], tasks[1::2]]) as processes:
        times = _in_turns(
            {
                "read": lambda: _read(logs),
                "decode": lambda: _decode(one, len(logs)),
                "one": lambda: drained(1),
                "two": lambda: drained(2),
                "processes": processes.run,
            },
            rounds,
        )
    speed = tier.records / times.median("one") / 1e6
    return [
        Row(f"scan().to_reader(), one thread, {what}", speed, "M records/s"),
        at_least(
            f"scan().to_reader(), one thread, of the additive bound, {what}",
            times.ratio(("read", "decode"), "one"),
            "×",
            0.9,
        ).noted(
            f"reading the bytes {times.median('read'):.2f} s, decoding from memory"
            f" {times.median('decode'):.2f} s"
        ),
        at_least(
            f"two threads, of two processes, {what}", times.ratio(("processes",), "two"), "×", 0.9
        ).noted(f"{tier.records / times.median('two') / 1e6:.3g} M records/s"),
    ]


def _read(logs: Sequence[Path]) -> None:
    memory = memoryview(bytearray(_WINDOW))
    for path in logs:
        with path.open("rb", buffering=0) as file:
            while file.readinto(memory):
                pass


def _decode(log: bytes, repeats: int) -> None:
    view = memoryview(log)
    for _ in range(repeats):
        decoder = RecordDecoder(
            columns=DEFAULT_COLUMNS,
            constants={TOPIC: "bench", PARTITION: 0},
            max_rows=FOR_ENGINES.rows,
            max_bytes=FOR_ENGINES.size,
        )
        for start in range(0, len(log), _WINDOW):
            for _ in decoder.feed(view[start : start + _WINDOW]):
                pass
        for _ in decoder.finish():
            pass


class _Processes:
    """Processes that read their tasks each time they are told to."""

    def __init__(self, reader: bytes, shares: Sequence[Sequence[ScanTask]]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._workers = []
        for share in shares:
            mine, theirs = context.Pipe()
            worker = context.Process(target=_worker, args=(theirs, reader, share), daemon=True)
            worker.start()
            self._pipes.append(mine)
            self._workers.append(worker)

    def __enter__(self) -> _Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.send(False)
        for worker in self._workers:
            worker.join(30)

    def run(self) -> None:
        """All tasks once."""
        for pipe in self._pipes:
            pipe.send(True)
        for pipe in self._pipes:
            pipe.recv()


def _worker(pipe: Connection, pickled: bytes, tasks: Sequence[ScanTask]) -> None:
    reader = pickle.loads(pickled)
    while pipe.recv():
        pipe.send(sum(batch.num_rows for task in tasks for batch in reader(task)))


def _aggregates(tier: Tier, what: str, rounds: int) -> list[Row]:
    """Polars and DuckDB over the stream, against the stream and the same from memory."""
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
    lazy, dataset = scan.to_lazy(), scan.to_dataset()
    connection = duckdb.connect()
    connection.register("tier", dataset)
    connection.register("whole", table)

    def drained() -> None:
        with scan.to_reader(threads=1) as reader:
            for _ in reader:
                pass

    times = _in_turns(
        {
            "drained": drained,
            "polars in memory": lambda: frame.lazy().group_by("partition").agg(by_polars).collect(),
            "polars": lambda: lazy.group_by("partition").agg(by_polars).collect(engine="streaming"),
            "duckdb in memory": lambda: connection.sql(_SQL.format("whole")).to_arrow_table(),
            "duckdb": lambda: connection.sql(_SQL.format("tier")).to_arrow_table(),
        },
        rounds,
    )
    connection.close()
    return [
        at_least(
            f"{name} aggregate, of the stream drained and the same from memory, {what}",
            times.ratio(("drained", f"{name.lower()} in memory"), name.lower()),
            "×",
            0.85,
        ).noted(
            f"drained {times.median('drained'):.2f} s, from memory"
            f" {times.median(f'{name.lower()} in memory'):.2f} s"
        )
        for name in ("Polars", "DuckDB")
    ]


def _first_rows(tier: Tier) -> list[Row]:
    def ten() -> None:
        assert kts_source.scan(tier.options).limit(10).to_table().num_rows == 10

    times = _in_turns({"ten": ten}, 9)
    return [
        at_most(
            "first rows of scan().limit(10), plan included, from a local folder",
            times.median("ten") * 1e3,
            "ms",
            50,
        )
    ]
