"""Scans many kinds of topics with the newest Spark. Compares each scan with prebuilt batches of the
same schema.

Also measures how much time each stage of a scan takes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks.alone import Alone, measure_alone
from benchmarks.bench import NEWEST_SPARK, Bench, Contestant, Timings, ceiling
from benchmarks.hour import hour_rows
from benchmarks.report import Row, at_least
from benchmarks.session import Query
from benchmarks.tiers import Tier, TierShape, make_tier
from kts_source.columns import DEFAULT_COLUMNS
from kts_source.metrics import summary
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan

if TYPE_CHECKING:
    from collections.abc import Mapping

TASKS: Final = 12
_ADDITIVE_GOAL: Final = 0.9
_CEILING_GOAL: Final = 0.9
_TINY_GOAL: Final = 0.5
_ABORTS_REPEATS: Final = 11
"""Number of measured rounds. Single runs differ by 3 %, which is as much as the goal allows."""
_LIBRARIES: Final = (
    "ready batches, while libraries read, decompress, check and copy the bytes: {:.2f};"
    " the scan reaches {:.2f} of that"
)
_QUICK: Final = ("codec none", "zstd batches", "zstd+AES tier", "one record a batch", "count(*)")


@dataclass(frozen=True, slots=True)
class Workload:
    """A kind of topic, and how it is read.

    Attributes:
        goal: Bound that the scan is compared with: `ceiling` for prebuilt batches, `additive` for
            the sum of the stages measured alone, `tiny` for prebuilt batches with a lower goal for
            tiny batches. Empty for no goal.
    """

    shape: TierShape
    goal: str = ""
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    sink: str = "noop"


def _workloads(value_bytes: int, log_bytes: int) -> dict[str, Workload]:
    plain = TierShape(value_bytes, log_bytes, partitions=6, segment_bytes=log_bytes // 12)
    # Large enough that the fixed costs of a query are a small part.
    long = replace(plain, log_bytes=4 * log_bytes, segment_bytes=4 * log_bytes // 12)
    longer = replace(plain, log_bytes=2 * log_bytes, segment_bytes=2 * log_bytes // 12)
    text = replace(longer, payload="json")
    found = {
        "codec none": Workload(long, "ceiling"),
        "zstd batches": Workload(replace(text, codec="zstd"), "additive"),
        "lz4 batches": Workload(replace(text, codec="lz4"), "additive"),
        "zstd tier": Workload(replace(text, compression=True), "additive"),
        "zstd+AES tier": Workload(replace(text, compression=True, encryption=True), "additive"),
    }
    if value_bytes == 100:
        many = replace(plain, partitions=200, segment_bytes=log_bytes // 200)
        tiny = replace(plain, batch_bytes=0)
        found |= {
            "snappy batches": Workload(replace(plain, payload="json", codec="snappy")),
            "gzip batches": Workload(replace(plain, payload="json", codec="gzip")),
            "batches of 1 MB": Workload(replace(plain, batch_bytes=1 << 20)),
            "one record a batch": Workload(tiny, "tiny"),
            "200 partitions": Workload(many),
            "count(*)": Workload(plain, sink="count"),
            "sum(offset), columns=offset": Workload(plain, columns=("offset",), sink="sum"),
        }
    return found


def run(bench: Bench) -> list[Row]:
    """Returns the rows of all workloads. Measures transactions first, because they need a broker
    and many rounds.
    """
    rows = bench.unless_skipped("transactions with 5 % aborts", _aborts)
    log_bytes = (48 << 20) if bench.quick else (768 << 20)
    for value_bytes in (100,) if bench.quick else (100, 1000):
        workloads = _workloads(value_bytes, log_bytes)
        if bench.quick:
            workloads = {name: workloads[name] for name in _QUICK}
        rows += _compare(bench, workloads, value_bytes)
    return rows + hour_rows(bench)


def _query(tier: Tier, workload: Workload, **more: str) -> Query:
    # Slices are split by work, and compressed bytes count as more work. Uses as many tasks as the
    # ceiling.
    tasks = plan_scan(parse_options({**tier.options, "targetPartitionBytes": "64g"})).tasks
    work = sum(task_slice.work for task in tasks for task_slice in task.slices)
    options = {
        **tier.options,
        "columns": ",".join(workload.columns),
        "targetPartitionBytes": str(work // TASKS + 1),
        "maxSegmentsPerTask": "64",
        **more,
    }
    return Query("tiered-kafka", options, sink=workload.sink)


def _compare(bench: Bench, workloads: Mapping[str, Workload], value_bytes: int) -> list[Row]:
    tiers = {name: make_tier(workload.shape) for name, workload in workloads.items()}
    plain = tiers["codec none"]
    row_bytes = plain.shape.log_bytes / plain.records
    lengths = sorted({workload.shape.log_bytes for workload in workloads.values()})
    counts = {length: int(length / row_bytes) // TASKS * TASKS for length in lengths}
    prebuilt = partial(ceiling, DEFAULT_COLUMNS, tasks=TASKS, value_bytes=value_bytes)
    contestants = {
        f"ceiling of {length}": Contestant(NEWEST_SPARK, prebuilt(rows=counts[length]))
        for length in lengths
    }
    contestants |= {
        f"libraries, {name}": Contestant(
            NEWEST_SPARK,
            prebuilt(
                rows=tiers[name].records // TASKS * TASKS,
                logs=f"{tiers[name].path}/*/*/*.log",
                codec=workload.shape.codec,
                key=str(tiers[name].key_file),
            ),
        )
        for name, workload in workloads.items()
        if workload.goal in ("ceiling", "additive")
    }
    contestants |= {
        name: Contestant(NEWEST_SPARK, _query(tiers[name], workload))
        for name, workload in workloads.items()
    }
    timings = bench.in_turns(contestants, repeats=1 if bench.quick else 4)
    words = f"{value_bytes} B"
    longest = timings[f"ceiling of {lengths[-1]}"]
    title = f"transport ceiling, {words}"
    rows = [Row(title, _speed(longest, counts[lengths[-1]]), "M records/s")]
    for name, workload in workloads.items():
        bound = timings[f"ceiling of {workload.shape.log_bytes}"]
        bound_rows = counts[workload.shape.log_bytes]
        if workload.sink == "count":
            assert timings[name].runs[0].rows == tiers[name].records
        alone = measure_alone(workload.shape, repeats=3 if bench.quick else 7)
        mine = timings[name]
        libraries = timings.get(f"libraries, {name}")
        rows += _one(
            f"{words}, {name}", workload, tiers[name], mine, bound, bound_rows, alone, libraries
        )
        if workload.sink == "noop":
            bench.report.budgets[f"{words}, {name}"] = _budget(
                bench, workload, tiers[name], mine, alone, bound, bound_rows
            )
    return rows


def _speed(timings: Timings, records: int) -> float:
    return records / timings.seconds / 1e6


def _one(
    title: str,
    workload: Workload,
    tier: Tier,
    mine: Timings,
    bound: Timings,
    bound_rows: int,
    alone: Alone,
    libraries: Timings | None,
) -> list[Row]:
    rows = [Row(f"scan, {title}", _speed(mine, tier.records), "M records/s")]
    share = mine.times_faster_than(bound) * tier.records / bound_rows
    name = f"scan, {title}: share of the transport ceiling"
    if workload.goal == "tiny":
        rows.append(at_least(name, share, "×", _TINY_GOAL))
    elif workload.goal == "ceiling":
        assert libraries is not None
        theirs = libraries.times_faster_than(bound) * tier.records / bound_rows
        note = _LIBRARIES.format(theirs, mine.times_faster_than(libraries))
        rows.append(at_least(name, share, "×", _CEILING_GOAL).noted(note))
    elif workload.columns == DEFAULT_COLUMNS:
        rows.append(Row(name, share, "×"))
    if workload.goal == "additive":
        added = bound.processor / bound_rows + alone.total
        used = mine.processor / tier.records
        parts = {
            "used": used,
            "ceiling": bound.processor / bound_rows,
            "codec": alone.codec,
            "chunks": alone.chunk,
            "AES": alone.decrypt,
            "plain decode": alone.plain,
        }
        figures = ", ".join(f"{stage} {seconds * 1e9:.0f}" for stage, seconds in parts.items())
        assert libraries is not None
        theirs = libraries.processor / tier.records
        note = _LIBRARIES.format(added / theirs, theirs / used)
        row = at_least(f"scan, {title}: of the additive bound", added / used, "×", _ADDITIVE_GOAL)
        rows.append(row.noted(f"{note}; processor ns a record: {figures}"))
    return rows


def _budget(
    bench: Bench,
    workload: Workload,
    tier: Tier,
    timings: Timings,
    alone: Alone,
    bound: Timings,
    bound_rows: int,
) -> dict[str, float]:
    """Returns nanoseconds per record of each stage. `_budget` in `results` explains the stages."""
    folder = bench.folder()
    bench.run(Contestant(NEWEST_SPARK, _query(tier, workload, metricsPath=str(folder))))
    total = summary(str(folder)).total
    task_seconds = {
        name: float(total[f"{name}_seconds"]) / tier.records
        for name in ("fetch", "decrypt", "decompress", "decode")
    }
    rest = max(0.0, task_seconds["decode"] - alone.frame - alone.crc - alone.codec)
    python = timings.median(lambda run: run.python) / tier.records
    stages = {
        "fetch": task_seconds["fetch"],
        "decrypt": task_seconds["decrypt"],
        "chunk": task_seconds["decompress"],
        "frame": alone.frame,
        "CRC": alone.crc,
        "codec": alone.codec,
        "decode → Arrow": rest,
        "Python → JVM": max(0.0, python - sum(task_seconds.values())),
        "JVM": timings.median(lambda run: run.jvm) / tier.records,
        "ceiling": bound.processor / bound_rows,
    }
    return {name: seconds * 1e9 for name, seconds in stages.items()}


def _aborts(bench: Bench) -> list[Row]:
    """Reads a topic of a real broker with 5 % of its records in aborted transactions."""
    broker = bench.broker()
    levels = ("read_committed", "read_uncommitted")
    timings = bench.in_turns(
        {
            level: Contestant(
                NEWEST_SPARK, broker.from_tier("aborts", options={"isolationLevel": level})
            )
            for level in levels
        },
        repeats=1 if bench.quick else _ABORTS_REPEATS,
    )
    counts = [
        bench.run(
            Contestant(
                NEWEST_SPARK,
                broker.from_tier("aborts", sink="count", options={"isolationLevel": level}),
            )
        ).rows
        for level in levels
    ]
    left_out = 1 - counts[0] / counts[1]
    assert 0.02 < left_out < 0.12, counts  # a quick run has few transactions
    committed, uncommitted = (timings[level] for level in levels)
    return [
        Row("scan, 100 B, transactions: records left out as aborted", left_out * 100, "%"),
        at_least(
            "scan, 100 B, transactions: read_committed by read_uncommitted, per record scanned",
            committed.times_faster_than(uncommitted),
            "×",
            0.97,
        ),
    ]
