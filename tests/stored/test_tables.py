"""Tests that exports continue tables that earlier code wrote, and that each row is stored once.

The Iceberg locations in the samples are relative to the current folder, so each test changes into a
copy.
"""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from kts_source import backfill
from kts_source.errors import TieredKafkaError
from tests.stored.samples import TABLE_FORMATS, TABLE_SAMPLES, TABLES, V3
from tests.stored.topics import NOT_JSON, expected_rows, write_tier

if TYPE_CHECKING:
    from pathlib import Path

    from tests.stored.samples import TableSample, Values
    from tests.stored.topics import RowPosition

SAMPLES = {sample.name: sample for sample in TABLES}


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes the tier with all segments, including those added after the first exports."""
    folder = tmp_path_factory.mktemp("tier")
    write_tier(folder, first=False)
    return folder


@pytest.fixture(autouse=True)
def single_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    # With one CPU, `backfill` starts no worker processes, which is faster.
    monkeypatch.setattr(os, "cpu_count", lambda: 1)


def enter_copy(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(V3 / "tables" / name, tmp_path / name)
    monkeypatch.chdir(tmp_path / name)


def read_stored_table(sample: TableSample, table_format: str) -> pa.Table:
    """Reads the table in the current folder with deltalake, PyArrow or PyIceberg."""
    arguments = sample.backfill_arguments(table_format)
    if table_format == "delta":
        return DeltaTable(arguments["target"]).to_pyarrow_table()
    if table_format == "parquet":
        return ds.dataset(arguments["target"], format="parquet", partitioning="hive").to_table()
    properties = dict(arguments["catalog"])
    catalog = load_catalog(properties.pop("name"), **properties)
    try:
        return catalog.load_table(arguments["target"]).scan().to_arrow()
    finally:
        catalog.close()


def to_plain(name: str, values: pa.ChunkedArray) -> list[Any]:
    if name == "timestamp":
        values = values.cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    if name == "headers":
        return [
            [(header["key"], header["value"]) for header in headers]
            for headers in values.to_pylist()
        ]
    return list(values.to_pylist())


def rows_by_position(table: pa.Table) -> dict[RowPosition, Values]:
    """Returns the rows by topic, partition and offset; fails if an offset occurs twice."""
    columns = {name: to_plain(name, table[name]) for name in table.column_names}
    positions = list(zip(columns["topic"], columns["partition"], columns["offset"], strict=True))
    assert len(positions) == len(set(positions))
    others = [name for name in columns if name not in ("topic", "partition", "offset")]
    return {
        position: {name: columns[name][row] for name in others}
        for row, position in enumerate(positions)
    }


def assert_rows(table: pa.Table, expected: dict[RowPosition, Values]) -> None:
    rows = rows_by_position(table)
    assert sorted(rows) == sorted(expected)
    for position, values in expected.items():
        for name, value in values.items():
            assert rows[position][name] == value, (position, name)


@pytest.mark.parametrize(
    ("table_format", "sample"),
    TABLE_SAMPLES,
    ids=[f"{table_format}-{sample.name}" for table_format, sample in TABLE_SAMPLES],
)
def test_backfill_continues_stored_table(
    table_format: str,
    sample: TableSample,
    tier: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enter_copy(table_format, tmp_path, monkeypatch)
    arguments = sample.backfill_arguments(table_format)
    before = sample.expected(first=True)
    assert_rows(read_stored_table(sample, table_format), before)
    if (table_format, sample.name) == ("parquet", "compacted"):
        # A folder of Parquet files can be compacted only once; the earlier code refused it, too.
        with pytest.raises(TieredKafkaError, match="compact into a new folder"):
            backfill(None, source=sample.source(tier), **arguments)
        assert_rows(read_stored_table(sample, table_format), before)
        return
    report = backfill(None, source=sample.source(tier), **arguments)
    after = sample.expected()
    assert after != before
    assert after.keys() & before.keys()
    assert_rows(read_stored_table(sample, table_format), after)
    assert report.rows >= len(after.keys() - before.keys())
    if sample.name not in ("plain", "compacted"):
        return
    again = backfill(None, source=sample.source(tier), **arguments)
    assert (again.rows, again.commits) == (0, 0)
    assert_rows(read_stored_table(sample, table_format), after)


@pytest.mark.parametrize("table_format", TABLE_FORMATS)
def test_backfill_with_other_settings_than_the_stored_table_raises(
    table_format: str, tier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter_copy(table_format, tmp_path, monkeypatch)
    others: dict[str, dict[str, Any]] = {
        "function": {"transform": None},
        "filtered": {},
        "partitioned": {"partition_by": ["topic"]},
    }
    for name, changes in others.items():
        sample = SAMPLES[name]
        source = sample.source(tier)
        if name == "filtered":
            del source["where"]
        arguments = {**sample.backfill_arguments(table_format), **changes}
        with pytest.raises(TieredKafkaError, match="created with other settings"):
            backfill(None, source=source, **arguments)
        assert_rows(read_stored_table(sample, table_format), sample.expected(first=True))


@pytest.mark.parametrize("table_format", TABLE_FORMATS)
def test_backfill_continues_stored_dead_letters(
    table_format: str, tier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter_copy(table_format, tmp_path, monkeypatch)
    sample = SAMPLES["rejecting"]

    def letters() -> list[RowPosition]:
        return sorted(
            rows_by_position(
                # Earlier files have no headers.
                ds.dataset("rejecting/dead_letters", format="parquet").to_table(
                    columns=["topic", "partition", "offset"]
                )
            )
        )

    def rejected(*, first: bool) -> list[RowPosition]:
        rows = expected_rows(sample.topics, first=first)
        return sorted(position for position, row in rows.items() if row.value == NOT_JSON)

    assert letters() == rejected(first=True)
    backfill(None, source=sample.source(tier), **sample.backfill_arguments(table_format))
    assert letters() == rejected(first=False)
    assert len(rejected(first=True)) < len(rejected(first=False))


def test_backfill_completes_a_partly_published_commit(
    tier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter_copy("half-published", tmp_path, monkeypatch)
    sample = SAMPLES["plain"]
    backfill(None, source=sample.source(tier), **sample.backfill_arguments("parquet"))
    assert_rows(read_stored_table(sample, "parquet"), sample.expected())


def test_date_partitions_match_timestamps_of_records(
    tier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter_copy("parquet", tmp_path, monkeypatch)
    sample = SAMPLES["partitioned"]
    backfill(None, source=sample.source(tier), **sample.backfill_arguments("parquet"))
    dates = duckdb.execute(
        'select topic, "partition", "offset", timestamp_date::varchar'
        " from read_parquet('partitioned/table/**/*.parquet', hive_partitioning=true)"
    ).fetchall()
    expected = [
        (*position, datetime.fromtimestamp(values["timestamp"] / 1000, UTC).date().isoformat())
        for position, values in sample.expected().items()
    ]
    assert sorted(dates) == sorted(expected)
