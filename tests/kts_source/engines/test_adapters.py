"""Checks that Polars and DuckDB queries of a scan return all matching rows, and read only the
needed tasks and columns.
"""

from __future__ import annotations

import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kts_source
from kts_source.columns import ALL_COLUMNS
from kts_source.engines import base_scan
from kts_source.engines.conditions import columns_in, implied_condition
from kts_source.predicate.model import And, Column, Compare, Op
from kts_source.read.read_settings import read_schema
from tests.golden_data import (
    ISOLATION_LEVELS,
    TOPICS,
    IsolationLevel,
    assert_same_rows,
    expected_table,
    tier_options,
)
from tests.quick import only

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from kts_source.read.task import ScanTask

MIDDLE: datetime = sorted(expected_table("txn", "read_committed")["timestamp"].to_pylist())[2000]


def create_scan(topic: str = "txn", **options: str) -> kts_source.Scan:
    defaults = {"includeHeaders": "true", "targetPartitionBytes": "32k"}
    return kts_source.scan(tier_options(topic, **{**defaults, **options}))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[ScanTask]:
    """Returns a list to which every task is appended when its read starts."""
    tasks: list[ScanTask] = []
    real = base_scan.TaskRun._read

    def counted(self: base_scan.TaskRun, number: int) -> Iterator[pa.RecordBatch]:
        tasks.append(self.tasks[number])
        return real(self, number)

    monkeypatch.setattr(base_scan.TaskRun, "_read", counted)
    return tasks


@pytest.mark.parametrize("level", only(1, ISOLATION_LEVELS))
@pytest.mark.parametrize("topic", TOPICS)
def test_adapters_return_all_rows(topic: str, level: IsolationLevel) -> None:
    expected = expected_table(topic, level)
    base = create_scan(topic, isolationLevel=level)
    assert_same_rows(_spark_types(base.to_polars()), expected)
    assert_same_rows(_spark_types(base.to_lazy().collect()), expected)
    tier = base.to_dataset()
    with closing(duckdb.connect()) as connection:
        connection.register("tier", tier)
        result = connection.sql("select * from tier").to_arrow_table()
        (counted,) = connection.sql("select count(*) from tier").to_arrow_table()["count_star()"]
    assert counted.as_py() == expected.num_rows
    assert_same_rows(result.cast(expected.schema), expected)


def _spark_types(frame: pl.DataFrame) -> pa.Table:
    """Converts a Polars frame to the column types of the golden tables. Polars itself has only
    large string types.
    """
    return frame.to_arrow().cast(expected_table("txn", "read_committed").schema)


POLARS: dict[str, tuple[Callable[[], pl.Expr], str]] = {
    "offset and partition": (
        lambda: (pl.col("offset") >= 1500) & (pl.col("partition") == 1),
        '"offset" >= 1500 and "partition" = 1',
    ),
    "literal first": (lambda: pl.lit(400) > pl.col("offset"), '400 > "offset"'),
    "or": (
        lambda: (pl.col("offset") < 9) | (pl.col("partition") == 1),
        '"offset" < 9 or "partition" = 1',
    ),
    "not": (lambda: ~(pl.col("offset") < 1200), 'not ("offset" < 1200)'),
    "membership": (lambda: pl.col("offset").is_in([3, 5, 700]), '"offset" in (3, 5, 700)'),
    "null keys": (lambda: pl.col("key").is_null(), "key is null"),
    "bytes": (lambda: pl.col("key") == b"k7", "key = 'k7'::blob"),
    "time": (
        lambda: pl.col("timestamp") < MIDDLE,
        f"timestamp < timestamptz '{MIDDLE.isoformat()}'",
    ),
    "cannot be translated": (
        lambda: (pl.col("value").bin.size() % 3 == 1) & (pl.col("offset") > 600),
        'octet_length(value) % 3 = 1 and "offset" > 600',
    ),
    "two columns": (
        lambda: (pl.col("offset") + pl.col("partition")) % 7 == 0,
        '("offset" + "partition") % 7 = 0',
    ),
    "no matching row": (lambda: pl.col("partition") == 77, '"partition" = 77'),
}


@pytest.mark.parametrize("level", only(1, ISOLATION_LEVELS))
@pytest.mark.parametrize("name", POLARS)
def test_pushed_conditions_return_the_same_rows_as_filters_in_memory(
    name: str, level: IsolationLevel
) -> None:
    expression, sql = POLARS[name]
    base = create_scan(isolationLevel=level)
    all_rows = pl.from_arrow(expected_table("txn", level))
    assert isinstance(all_rows, pl.DataFrame)
    order = ["partition", "offset"]
    expected = all_rows.filter(expression()).select("offset", "partition", "value").sort(order)
    for engine in ("in-memory", "streaming"):
        lazy = base.to_lazy().filter(expression()).select("offset", "partition", "value")
        assert lazy.collect(engine=engine).sort(order).equals(expected)
    with closing(duckdb.connect()) as connection:
        connection.execute("set timezone = 'UTC'")
        connection.register("tier", base.to_dataset())
        result = connection.sql(
            f'select "offset", "partition", value from tier where {sql} order by all'
        )
        rows = pl.from_arrow(result.to_arrow_table())
    assert isinstance(rows, pl.DataFrame)
    assert rows.sort(order).equals(expected)


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_polars_applies_limit_and_filter_in_query_order(engine: Any) -> None:  # noqa: ANN401  # Polars has its own Literal
    all_rows = create_scan().to_polars()
    lazy = create_scan().to_lazy()
    odd = pl.col("offset") % 2 == 1
    for predicate in (odd, pl.col("offset") > 12):
        result = lazy.head(30).filter(predicate).collect(engine=engine)
        assert result.equals(all_rows.head(30).filter(predicate))
    result = lazy.filter(pl.col("offset") > 100).head(7).collect(engine=engine)
    assert result.equals(all_rows.filter(pl.col("offset") > 100).head(7))
    limited = create_scan().limit(40).to_lazy().filter(pl.col("offset") > 35).collect(engine=engine)
    assert limited.equals(all_rows.head(40).filter(pl.col("offset") > 35))
    assert lazy.select(pl.len()).collect(engine=engine).item() == len(all_rows)
    joined = lazy.join(lazy, on=["partition", "offset"]).collect(engine=engine)
    assert len(joined) == len(all_rows)


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
@pytest.mark.parametrize(("threads", "target"), [(1, "32k"), (3, "32k"), (None, "1g")])
def test_polars_scan_reads_tasks_in_other_threads(
    threads: int | None,
    target: str,
    engine: Any,  # noqa: ANN401  # Polars has its own Literal
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readers: list[str] = []
    real = base_scan.TaskRun._read

    def noted(self: base_scan.TaskRun, number: int) -> Iterator[pa.RecordBatch]:
        readers.append(threading.current_thread().name)
        return real(self, number)

    monkeypatch.setattr(base_scan.TaskRun, "_read", noted)
    base = create_scan("codecs" if target == "1g" else "txn", targetPartitionBytes=target)
    all_rows = base.to_polars()
    readers.clear()
    lazy = base.to_lazy(threads=threads)
    assert lazy.collect(engine=engine).equals(all_rows), "in the same order"
    assert len(readers) == len(base.tasks)
    assert {name.rpartition("-")[0] for name in readers} == {"kts-read"}
    assert len(set(readers)) <= (threads or len(base.tasks))
    assert lazy.filter(pl.col("offset") > 5).head(7).collect(engine=engine).height == 7
    wrong = (pl.col("offset") + 1000).cast(pl.Int8) > 0
    with pytest.raises(pl.exceptions.PolarsError, match="conversion"):
        lazy.filter(wrong).collect(engine=engine)
    # If a query stops early, a Polars thread closes the source after the result was returned.
    began = time.monotonic()
    while [thread for thread in threading.enumerate() if thread.name.startswith("kts-")]:
        assert time.monotonic() - began < 30
        time.sleep(0.001)


def test_polars_refuses_zero_threads() -> None:
    with pytest.raises(ValueError, match="threads must be at least 1, not 0"):
        create_scan().to_lazy(threads=0)


def test_dataset_of_a_limited_scan_applies_the_limit_before_filters() -> None:
    all_rows = create_scan().to_table()
    result = create_scan().limit(40).to_dataset().to_table(filter=pc.field("offset") > 35)
    assert result.equals(all_rows.slice(0, 40).filter(pc.field("offset") > 35))


def test_adapters_read_only_matching_tasks(read: list[ScanTask]) -> None:
    base = create_scan()
    task_count = len(base.tasks)

    def count_tasks(action: Callable[[], object]) -> int:
        read.clear()
        action()
        return len(read)

    lazy = base.to_lazy()
    late = (pl.col("offset") >= 3000) & (pl.col("partition") == 1)
    assert 0 < count_tasks(lambda: lazy.filter(late).collect()) < task_count // 3
    assert count_tasks(lambda: lazy.filter(pl.col("partition") == 9).collect()) == 0
    assert count_tasks(lambda: lazy.head(5).collect()) == 1
    tier = base.to_dataset()
    with closing(duckdb.connect()) as connection:
        connection.register("tier", tier)

        def run_query(condition: str) -> None:
            connection.sql(f"select max(key) from tier where {condition}").fetchall()

        assert (
            0
            < count_tasks(lambda: run_query('"offset" >= 3000 and "partition" = 1'))
            < task_count // 3
        )
        assert count_tasks(lambda: run_query("timestamp > timestamptz '2100-01-01'")) == 0
        assert count_tasks(lambda: run_query("topic = 'other'")) == 0
        assert count_tasks(lambda: run_query("octet_length(value) > 3")) == task_count


def test_adapters_decode_only_selected_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    columns: list[tuple[str, ...]] = []
    real = kts_source.Scan.batches

    def noted(self: kts_source.Scan, **arguments: Any) -> Any:  # noqa: ANN401
        columns.append(self.columns)
        return real(self, **arguments)

    monkeypatch.setattr(kts_source.Scan, "batches", noted)
    base = create_scan()
    base.to_lazy().filter(pl.col("partition") == 1).select(pl.col("offset").sum()).collect()
    assert set(columns.pop()) == {"offset", "partition"}
    with closing(duckdb.connect()) as connection:
        connection.register("tier", base.to_dataset())
        connection.sql('select sum("offset") from tier where octet_length(value) > 5').fetchall()
    assert set(columns.pop()) == {"offset", "value"}


def test_duckdb_query_with_limit_does_not_read_all_tasks(read: list[ScanTask]) -> None:
    base = create_scan("wide", targetPartitionBytes="8k")
    task_count = len(base.tasks)
    assert task_count > 20
    with closing(duckdb.connect()) as connection:
        connection.register("tier", base.to_dataset())
        assert len(connection.sql("select key from tier limit 3").fetchall()) == 3
    assert len(read) < task_count


OFFSET, PARTITION, TIMESTAMP = pc.field("offset"), pc.field("partition"), pc.field("timestamp")
INSTANT = pa.scalar(1_700_000_000_123_456, pa.timestamp("us", tz="UTC"))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (OFFSET >= 5, Compare(Op.GE, Column("offset"), 5)),
        (
            (OFFSET < 5) & (PARTITION == 1),
            And((Compare(Op.LT, Column("offset"), 5), Compare(Op.EQ, Column("partition"), 1))),
        ),
        (TIMESTAMP > INSTANT, Compare(Op.GT, Column("timestamp"), 1_700_000_000_123_456)),
        (pc.field("topic") == "a-b.c", Compare(Op.EQ, Column("topic"), b"a-b.c")),
        ((OFFSET < 5) | (PARTITION == 1), None),
        (~(OFFSET < 5), None),
        (OFFSET < 5.5, None),
        (PARTITION + 1 == 5, None),
        (OFFSET < PARTITION, None),
        (pc.is_in(OFFSET, pa.array([1, 2])), None),
        (
            pc.field("topic") == 'a" and (offset < 5) and "',
            Compare(Op.EQ, Column("topic"), b'a" and (offset < 5) and "'),
        ),
        (pc.field("topic") == b"orders", None),
        (pc.scalar(5) > OFFSET, Compare(Op.LT, Column("offset"), 5)),
        (pa.scalar(5, pa.uint64()) > OFFSET, None),
        (pa.scalar(None, pa.int64()) == OFFSET, None),
        (pc.field(4) > 5, None),
        (OFFSET.cast(pa.int8()) == 5, None),
        (pc.field("x)) and (offset == 3) and ((y") == 5, None),
        (pa.scalar(1, pa.timestamp("ns", "UTC")) == TIMESTAMP, None),
        (pa.scalar(1, pa.timestamp("us")) == TIMESTAMP, None),
        (
            pa.scalar(2, pa.timestamp("s", "Asia/Tokyo")) > TIMESTAMP,
            Compare(Op.LT, Column("timestamp"), 2_000_000),
        ),
        (pa.scalar(1 << 62, pa.timestamp("s", "UTC")) > TIMESTAMP, None),
        (pc.field("key") == b"offset < 5", None),
        ((OFFSET != 5), None),
        (
            ((OFFSET < 5) | (PARTITION == 1)) & (OFFSET > 2),
            Compare(Op.GT, Column("offset"), 2),
        ),
        (
            (pc.field("topic") == ") and (offset < 5") & (PARTITION <= 3),
            And(
                (
                    Compare(Op.EQ, Column("topic"), b") and (offset < 5"),
                    Compare(Op.LE, Column("partition"), 3),
                )
            ),
        ),
    ],
)
def test_implied_condition_is_the_part_of_a_condition_that_can_be_pushed_down(
    expression: pc.Expression, expected: object
) -> None:
    assert implied_condition(expression, read_schema(ALL_COLUMNS)) == expected


def test_columns_in_returns_the_columns_that_an_expression_reads() -> None:
    condition = (OFFSET < 5) & (pc.binary_length(pc.field("value")) > PARTITION)
    columns = ("key", "value", "valueError", "partition", "offset")
    assert columns_in(condition, columns) == ("value", "partition", "offset")
    nested = pc.field("value", "amount") > 5
    assert columns_in(nested & pc.field("valueError").is_null(), columns) == ("value", "valueError")
    assert columns_in(pc.field("value", "offset key") > 5, columns) == ("value",)
    assert columns_in(pc.field("value.offset") == "partition", columns) == ()
    assert columns_in(pc.field(1) > 5, columns) == columns, "a field index may mean any column"
