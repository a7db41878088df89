"""Scans without Spark: `kts_source.scan` in one thread and two, and the engines on top of it."""

from __future__ import annotations

import multiprocessing
import pickle
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import duckdb
import polars as pl
from polars.io.plugins import register_io_source

import kts_source
from benchmarks.engines_parts import decode, read, read_and_decode
from benchmarks.engines_s3 import s3_rows
from benchmarks.engines_sail import against_kafka, against_spark
from benchmarks.report import Row, at_least, at_most
from benchmarks.tiers import Tier, TierShape, make_tier

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection
    from pathlib import Path

    from benchmarks.bench import Bench
    from kts_source.read.task import ScanTask

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

    reader = pickle.dumps(scan.task_reader)
    halves = [_reading(reader, tasks[share::2]) for share in (0, 1)]
    decoding = partial(_decoding, logs[0], len(logs) // 2)
    with (
        _Processes([partial(_reading, reader, tasks[share::2]) for share in (0, 1)]) as processes,
        _Processes([decoding, decoding]) as decoders,
        _Processes(
            [partial(partial, read_and_decode, logs[share::2]) for share in (0, 1)]
        ) as loops,
        ThreadPoolExecutor(2) as pool,
    ):
        times = _in_turns(
            {
                "read": lambda: read(logs),
                "decode": lambda: decode(one, len(logs)),
                "loop": lambda: read_and_decode(logs),
                "one": lambda: drained(1),
                "two": lambda: drained(2),
                "processes": processes.run,
                "threads, nothing handed over": lambda: list(pool.map(lambda half: half(), halves)),
                "threads that loop": lambda: list(
                    pool.map(read_and_decode, [logs[::2], logs[1::2]])
                ),
                "processes that loop": loops.run,
                "threads that decode": lambda: list(
                    pool.map(decode, [one, one], [len(logs) // 2] * 2)
                ),
                "processes that decode": decoders.run,
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
        Row(
            f"a loop that reads a window and decodes it, of the additive bound, {what}",
            times.ratio(("read", "decode"), "loop"),
            "×",
        ).noted(
            "no plan, no checks, no metrics; scan().to_reader() is"
            f" {times.ratio(('loop',), 'one'):.3g} × of it"
        ),
        at_least(
            f"two threads, of two processes, {what}", times.ratio(("processes",), "two"), "×", 0.9
        ).noted(f"{tier.records / times.median('two') / 1e6:.3g} M records/s"),
        Row(
            f"two threads that hand nothing over, of two processes, {what}",
            times.ratio(("processes",), "threads, nothing handed over"),
            "×",
        ).noted("each thread reads its share of the tasks and lets the batches go"),
        Row(
            f"two threads that read a window and decode it, of two processes that do, {what}",
            times.ratio(("processes that loop",), "threads that loop"),
            "×",
        ).noted("no plan, no checks, nothing handed over: what the system and memory allow"),
        Row(
            f"two threads that only decode, from memory, of two processes that do, {what}",
            times.ratio(("processes that decode",), "threads that decode"),
            "×",
        ).noted("nothing is read and nothing handed over"),
    ]


class _Processes:
    """Processes that do their work each time they are told to.

    Args:
        works: For each, what gives its work once it has started.
    """

    def __init__(self, works: Sequence[Callable[[], Callable[[], object]]]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._workers = []
        for work in works:
            mine, theirs = context.Pipe()
            worker = context.Process(target=_worker, args=(theirs, work), daemon=True)
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
        """All of it once."""
        for pipe in self._pipes:
            pipe.send(True)
        for pipe in self._pipes:
            pipe.recv()


def _worker(pipe: Connection, work: Callable[[], Callable[[], object]]) -> None:
    action = work()
    while pipe.recv():
        action()
        pipe.send(True)


def _reading(pickled: bytes, tasks: Sequence[ScanTask]) -> Callable[[], object]:
    reader = pickle.loads(pickled)
    return lambda: sum(batch.num_rows for task in tasks for batch in reader(task))


def _decoding(path: Path, repeats: int) -> Callable[[], object]:
    log = path.read_bytes()
    return lambda: decode(log, repeats)


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

    times = _in_turns(
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
    rows = [
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
    return [
        *rows,
        Row(
            f"Polars aggregate, of the stream drained and ready batches handed to Polars, {what}",
            times.ratio(("drained", "polars plugin"), "polars"),
            "×",
        ).noted(
            "the same batches from memory through Polars' interface for sources take"
            f" {times.median('polars plugin'):.2f} s: it makes its own layout of each, and a thread"
            f" reads meanwhile"
        ),
        Row(
            f"Polars aggregate, a reading thread a core, against one, {what}",
            times.ratio(("polars",), "polars, threads"),
            "×",
        ).noted(f"{table.num_rows / times.median('polars, threads') / 1e6:.3g} M records/s"),
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
