"""Checks that `kts_source.scan` returns the same rows as a Kafka consumer, as Arrow tables and
without Spark.
"""

from __future__ import annotations

import gc
import importlib.util
import pickle
import signal
import subprocess
import sys
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kts_source
from kts_source import metrics
from kts_source.engines import base_scan
from kts_source.errors import InvalidOptionError, MissingExtraError, TieredKafkaError
from kts_source.planning import planner
from kts_source.read import read_task as run_task_module
from kts_source.read.read_task import read_task
from kts_source.spark.sail import read_few_batches
from tests.golden_data import (
    ISOLATION_LEVELS,
    TIER,
    TOPICS,
    IsolationLevel,
    assert_same_rows,
    expected_table,
    tier_options,
)
from tests.quick import only

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kts_source.planning.scan_plan import ScanPlan
    from kts_source.read.read_settings import ReadSettings


def create_scan(topic: str = "txn", **options: str) -> kts_source.Scan:
    return kts_source.scan(tier_options(topic, includeHeaders="true", **options))


def positions(table: pa.Table) -> list[tuple[str, int, int]]:
    columns = (table[name].to_pylist() for name in ("topic", "partition", "offset"))
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize("level", only(1, ISOLATION_LEVELS))
@pytest.mark.parametrize("topic", TOPICS)
def test_scan_returns_all_rows(topic: str, level: IsolationLevel) -> None:
    scan = create_scan(topic, isolationLevel=level, targetPartitionBytes="64k")
    expected = expected_table(topic, level)
    table = scan.to_table(threads=2)
    assert_same_rows(table, expected)
    assert positions(table) == sorted(positions(table))
    assert scan.to_table(threads=1).equals(table), "reads must have the same order"
    with scan.to_reader(threads=3, ordered=False) as reader:
        assert_same_rows(reader.read_all(), expected)
    assert scan.count(threads=2) == expected.num_rows
    by_tasks = [batch for task in scan.tasks for batch in scan.read_task(task)]
    assert_same_rows(pa.Table.from_batches(by_tasks, scan.schema), expected)


def test_select_chooses_and_orders_columns() -> None:
    selected = create_scan().select(["offset", "Key", "leaderEpoch"])
    assert selected.columns == ("offset", "key", "leaderEpoch")
    table = selected.to_table()
    assert table.schema.names == ["offset", "key", "leaderEpoch"]
    assert table.schema.equals(selected.schema)
    assert table.num_rows == expected_table("txn", "read_committed").num_rows
    with pytest.raises(InvalidOptionError, match="did you mean 'offset'"):
        selected.select(["ofset"])
    with pytest.raises(InvalidOptionError, match="at least one column"):
        selected.select([])


@pytest.mark.parametrize("level", ISOLATION_LEVELS)
@pytest.mark.parametrize(
    ("condition", "mask"),
    [
        (
            "offset >= 1500 AND partition = 1",
            lambda t: (t["offset"] >= 1500) & (t["partition"] == 1),
        ),
        ("key IS NULL OR offset < 17", lambda t: t["key"].isna() | (t["offset"] < 17)),
        ("topic = 'nothing'", lambda t: t["offset"] < 0),
        ("value LIKE '%1%'", lambda t: t["value"].map(lambda v: v is not None and b"1" in v)),
    ],
)
def test_where_returns_only_matching_rows(
    level: IsolationLevel, condition: str, mask: object
) -> None:
    expected = expected_table("txn", level)
    frame = expected.to_pandas()
    keep = mask(frame)  # type: ignore[operator]
    expected_rows = expected.filter(pa.array(keep.fillna(False).astype(bool)))
    base = create_scan(isolationLevel=level, targetPartitionBytes="32k")
    assert_same_rows(base.where(condition).to_table(threads=2), expected_rows)
    assert base.where(condition).count() == expected_rows.num_rows
    # Scans derived from the base scan do not change the base scan.
    assert_same_rows(base.to_table(), expected)


def test_repeated_calls_of_where_return_rows_that_match_all_conditions() -> None:
    base = create_scan(where="offset >= 100")
    table = base.where("offset < 300").where("partition = 0").select(["offset"]).to_table()
    expected = expected_table("txn", "read_committed")
    mask = pc.and_(
        pc.and_(pc.greater_equal(expected["offset"], 100), pc.less(expected["offset"], 300)),
        pc.equal(expected["partition"], 0),
    )
    assert table["offset"].to_pylist() == expected.filter(mask)["offset"].to_pylist()


def test_where_refuses_times_without_a_zone() -> None:
    with pytest.raises(InvalidOptionError, match="time zone"):
        create_scan().where("timestamp > '2024-01-01 00:00:00'")
    assert create_scan(timeZone="UTC").where("timestamp > '2020-01-01 00:00:00'").count() > 0


def test_limit_returns_first_rows_and_reads_less_than_half_of_the_tasks() -> None:
    base = create_scan(targetPartitionBytes="32k")
    all_rows = base.to_table()
    for rows in (0, 1, 10, 5000, 10**9):
        assert base.limit(rows).to_table().equals(all_rows.slice(0, rows)), rows
    assert base.limit(5).limit(9).to_table().num_rows == 5
    read: list[int] = []
    base.limit(10).to_reader(progress=lambda done, _all: read.append(done)).read_all()
    assert len(read) < len(base.tasks) // 2
    with pytest.raises(ValueError, match="-1"):
        base.limit(-1)
    with pytest.raises(InvalidOptionError, match="before limit"):
        base.limit(5).where("offset > 1")


def test_task_of_limited_scan_ends_after_the_last_requested_row(tmp_path: Path) -> None:
    base = create_scan(metricsPath=tmp_path.as_uri())
    assert base.limit(10).to_table().num_rows == 10
    (task,) = base.tasks[:1]
    assert sum(batch.num_rows for batch in base.limit(10).read_task(task)) == 10
    assert [task.rows for task in metrics.summary(str(tmp_path)).tasks] == [10, 10]


def test_slow_start_is_used_only_by_reads_that_may_end_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow_starts: list[bool] = []
    real = read_task

    def noted(task: Any, reader: Any, settings: ReadSettings, **options: Any) -> Any:  # noqa: ANN401
        slow_starts.append(settings.read_ahead.slow_start)
        return real(task, reader, settings, **options)

    monkeypatch.setattr(run_task_module, "read_task", noted)
    base = create_scan(targetPartitionBytes="256k")
    first, *rest = base.tasks
    assert rest

    def starts_of(read: Callable[[], object]) -> list[bool]:
        slow_starts.clear()
        read()
        return slow_starts

    assert starts_of(lambda: base.to_table(threads=1)) == [False] * len(base.tasks)
    assert starts_of(lambda: list(base.batches())) == [True, *[False] * len(rest)]
    assert starts_of(lambda: base.limit(5).to_table()) == [True]
    assert starts_of(lambda: list(base.read_task(first))) == [False]
    assert starts_of(lambda: list(base.limit(5).read_task(first))) == [True]
    assert starts_of(lambda: list(read_few_batches(first, base.task_reader.options))) == [False]


def test_scans_derived_from_one_scan_share_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[ScanPlan] = []
    real = planner.plan_scan

    def counted(*arguments: object) -> ScanPlan:
        plans.append(real(*arguments))  # type: ignore[arg-type]
        return plans[-1]

    monkeypatch.setattr(base_scan, "plan_scan", counted)
    base = create_scan()
    first = base.where("offset > 100").limit(3)
    assert plans == [], "deriving a scan must not plan"
    assert first.to_table().num_rows == 3
    restored = pickle.loads(pickle.dumps(base))
    for scan in (base, base.select(["key"]), base.where("partition = 0"), restored):
        assert scan.count() > 0
    assert len(plans) == 1


def test_tasks_are_read_in_another_process(tmp_path: Path) -> None:
    base = create_scan(targetPartitionBytes="64k").where("partition = 1").select(["offset"])
    (tmp_path / "reader").write_bytes(pickle.dumps(base.task_reader))
    (tmp_path / "tasks").write_bytes(pickle.dumps(base.tasks))
    program = (
        "import pickle, pathlib, sys\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "read = pickle.loads((folder / 'reader').read_bytes())\n"
        "tasks = pickle.loads((folder / 'tasks').read_bytes())\n"
        "print(sum(batch.num_rows for task in tasks for batch in read(task)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert int(done.stdout) == base.count() > 0


def test_repr_shows_no_credential() -> None:
    source = {
        "path": "s3://bucket",
        "subscribe": "orders",
        "s3.access-key-id": "the-id-of-a-key",
        "s3.secret-access-key": "the-secret-of-a-key",
    }
    scan = kts_source.scan(source).where("offset > 5").limit(3)
    for text in (repr(scan), scan._repr_html_(), repr(scan.task_reader)):
        assert "of-a-key" not in text
    assert "offset" in scan._repr_html_()


def test_tasks_contain_no_credentials() -> None:
    keys = {"s3.access-key-id": "the-id-of-a-key", "s3.secret-access-key": "the-secret-of-a-key"}
    scan = create_scan(**keys)
    assert scan.tasks
    assert b"of-a-key" not in pickle.dumps(scan.tasks)
    assert "of-a-key" not in repr(scan.tasks)
    assert b"the-secret-of-a-key" in pickle.dumps(scan.task_reader), (
        "the reader needs it to open the store"
    )


def test_html_of_scan_shows_partitions_only_after_planning() -> None:
    scan = create_scan()
    assert "txn-0" not in scan._repr_html_()
    _ = scan.plan
    assert "txn-0" in scan._repr_html_()
    assert "[0, " in scan._repr_html_()


def test_closed_reader_ends_its_threads() -> None:
    base = create_scan(targetPartitionBytes="32k")
    for threads in (1, 3):
        reader = base.to_reader(threads=threads)
        reader.read_next_batch()
        reader.close()
        del reader
        gc.collect()
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("kts-")]


def test_scan_error_names_its_location(tmp_path: Path) -> None:
    for file in (TIER / "tiered").rglob("*"):
        if file.is_file() and "/txn-" in str(file):
            copy = tmp_path / file.relative_to(TIER)
            copy.parent.mkdir(parents=True, exist_ok=True)
            data = bytearray(file.read_bytes())
            if file.name.startswith("0" * 20) and file.suffix == ".log":
                data[200] ^= 1
            copy.write_bytes(bytes(data))
    source = tier_options("txn", path=tmp_path.as_uri())
    for threads in (1, 2):
        with pytest.raises(TieredKafkaError, match="txn"):
            kts_source.scan(source).to_table(threads=threads)


def test_scan_converts_to_pandas_and_arrow_streams() -> None:
    base = create_scan("codecs")
    expected = expected_table("codecs", "read_committed")
    frame = base.to_pandas()
    assert frame["offset"].sum() == pc.sum(expected["offset"]).as_py()
    assert isinstance(frame["offset"].dtype, pd.ArrowDtype)
    assert pa.table(base).num_rows == expected.num_rows
    assert pa.schema(base).equals(base.schema)
    assert pa.RecordBatchReader.from_stream(base).read_all().num_rows == expected.num_rows


def test_progress_reports_bytes_of_tasks() -> None:
    base = create_scan(targetPartitionBytes="32k")
    reports: list[tuple[int, int]] = []
    with closing(
        base.batches(threads=2, progress=lambda *report: reports.append(report))
    ) as batches:
        assert sum(batch.num_rows for batch in batches) > 0
    assert reports[-1] == (base.plan.nominal_bytes, base.plan.nominal_bytes)
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)


def test_scan_refuses_options_that_only_streams_support() -> None:
    with pytest.raises(InvalidOptionError, match="latest"):
        create_scan(startingOffsets="latest")


@pytest.mark.parametrize(
    ("method", "library"),
    [
        ("to_pandas", "pandas"),
        ("to_polars", "polars"),
        ("to_lazy", "polars"),
        ("to_ray", "ray.data"),
    ],
)
def test_error_names_the_missing_library(
    method: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(MissingExtraError, match=rf"{library}\. Install it with: pip install"):
        getattr(create_scan(), method)()


_ENDLESS = """
import os, sys, time
import kts_source
from kts_source.engines.base_scan import TaskRun
from tests.golden_data import tier_options

real = TaskRun._read

def endless(self, number):
    while True:
        yield from real(self, number)
        os.write(1, b"read\\n")  # one write per line, because several threads write
        time.sleep(0.01)

TaskRun._read = endless
scan = kts_source.scan(tier_options("txn", targetPartitionBytes="32k"))
with scan.to_reader(threads=int(sys.argv[1])) as reader:
    for batch in reader:
        pass
"""


@pytest.mark.parametrize("threads", [1, 3])
def test_ctrl_c_stops_a_read_immediately(threads: int) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", _ENDLESS, str(threads)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "read\n"
        child.send_signal(signal.SIGINT)
        _, stderr = child.communicate(timeout=20)
    assert "KeyboardInterrupt" in stderr
    assert child.returncode != 0
