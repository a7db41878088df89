"""Tests exports without Spark: rows, repeated and incremental runs, file statistics, refused
arguments.
"""

from __future__ import annotations

import datetime
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from kts_source.errors import FingerprintError, InvalidOptionError, RangeGapError, RangeOverlapError
from kts_source.export import task_writer
from kts_source.export.task_writer import LocalExecutor
from tests.golden_data import (
    TOPICS,
    assert_same_rows,
    expected_table,
    partition_summaries,
    summary,
    topic_summary,
)
from tests.kts_source.export.exporting import FORMATS, Lake, assert_holds, row_locations, source
from tests.quick import only

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(tmp_path, request.param)


def offsets_option(topic: str, offsets: dict[int, int]) -> str:
    numbers = ", ".join(f'"{partition}": {offset}' for partition, offset in offsets.items())
    return f'{{"{topic}": {{{numbers}}}}}'


def test_export_of_every_topic_contains_all_rows(lake: Lake) -> None:
    report = lake.export(source(TOPICS, targetPartitionBytes="1m"), commit_bytes=1 << 40)
    assert_holds(lake.read(), TOPICS)
    assert report.commits == 1
    assert report.rows == sum(expected_table(name, "read_committed").num_rows for name in TOPICS)


@pytest.mark.parametrize("partition_by", only(1, [["topic", "date(timestamp)"], ["topic"]]))
def test_partitioned_table_contains_all_rows(lake: Lake, partition_by: list[str]) -> None:
    topics = ("txn", "timeline", "wide")
    lake.export(source(topics), partition_by=partition_by)
    table = lake.read()
    assert_holds(table, topics)
    if "timestamp_date" in table.column_names:
        days = table["timestamp"].cast(pa.timestamp("us")).cast(pa.date32())
        assert pc.all(pc.equal(table["timestamp_date"].cast(pa.date32()), days)).as_py()


def test_duckdb_reads_the_exported_rows(lake: Lake) -> None:
    lake.export(source(("txn", "wide")), partition_by=["topic"])
    expected = sorted(
        location
        for topic in ("txn", "wide")
        for location in row_locations(expected_table(topic, "read_committed"))
    )
    assert lake.duckdb_rows() == expected


def test_read_uncommitted_export_of_three_columns_contains_all_rows(lake: Lake) -> None:
    options = source("txn", isolationLevel="read_uncommitted", columns="value,partition,offset")
    del options["includeHeaders"]
    lake.export(options)
    table = lake.read()
    assert set(table.column_names) == {"value", "partition", "offset"}
    assert_same_rows(table, expected_table("txn", "read_uncommitted"))


def test_second_run_writes_nothing(lake: Lake) -> None:
    first = lake.export(source())
    second = lake.export(source())
    assert first.commits > 1
    assert (second.rows, second.files, second.commits, second.ranges) == (0, 0, 0, ())
    assert_holds(lake.read(), ["txn"])


def test_incremental_run_appends_the_new_offsets(lake: Lake) -> None:
    ends = {0: 1000, 1: 7}
    lake.export(source(endingOffsets=offsets_option("txn", ends)))
    locations = {(location[1], location[2]) for location in row_locations(lake.read())}
    assert all(offset < ends[partition] for partition, offset in locations)
    report = lake.export(source())
    assert {span.partition: span.start for span in report.ranges} == ends
    assert_holds(lake.read(), ["txn"])


def test_export_of_second_topic_keeps_rows_of_the_first(lake: Lake) -> None:
    lake.export(source("txn"))
    lake.export(source(("txn", "codecs"), targetPartitionBytes="1m"))
    assert_holds(lake.read(), ["txn", "codecs"])


def test_recreated_topic_is_identified_by_its_id(lake: Lake) -> None:
    current = topic_summary("recreated")["topicId"]
    lake.export(source("recreated"))
    previous = expected_table("recreated-previous", "read_committed")
    ids = {
        entry["topicId"] for entry in summary()["topics"] if entry["topic"].startswith("recreated")
    }
    (other,) = ids - {current}
    lake.export(source("recreated", topicId=other))
    rows = lake.read().num_rows
    assert rows == expected_table("recreated", "read_committed").num_rows + previous.num_rows


def test_error_of_gap_after_the_table_names_its_offsets(lake: Lake) -> None:
    starts = {
        number: partition["tier_start_offset"]
        for number, partition in partition_summaries("txn").items()
    }
    lake.export(source(endingOffsets=offsets_option("txn", dict.fromkeys(starts, 500))))
    with pytest.raises(RangeGapError, match=r"offsets \[500, 900\) of txn-[01] were not requested"):
        lake.export(source(startingOffsets=offsets_option("txn", dict.fromkeys(starts, 900))))


def test_error_of_overlap_without_resume_names_its_offsets(lake: Lake) -> None:
    lake.export(source(endingOffsets=offsets_option("txn", {0: 500, 1: 500})))
    with pytest.raises(RangeOverlapError, match=r"txn-[01]: offsets \[\d+, 500\) were requested"):
        lake.export(source(), resume=False)
    lake.export(source(startingOffsets=offsets_option("txn", {0: 500, 1: 500})), resume=False)
    assert_holds(lake.read(), ["txn"])


def test_export_of_offsets_before_the_start_of_the_table_raises(lake: Lake) -> None:
    lake.export(source(startingOffsets=offsets_option("txn", {0: 500, 1: 500})))
    with pytest.raises(RangeOverlapError, match=r"offsets \[20, 500\) were requested"):
        lake.export(source(startingOffsets=offsets_option("txn", {0: 20, 1: 20})))


def keep_all(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


@pytest.mark.parametrize(
    ("changed", "arguments"),
    [
        ({"isolationLevel": "read_uncommitted"}, {}),
        ({"includeHeaders": "false"}, {}),
        ({}, {"transform": keep_all}),
        ({}, {"partition_by": ["topic"]}),
    ],
    ids=["isolation", "columns", "transform", "partitioning"],
)
def test_export_with_changed_options_into_existing_table_is_refused(
    lake: Lake, changed: dict[str, str], arguments: dict[str, Any]
) -> None:
    lake.export(source(endingOffsets=offsets_option("txn", {0: 500, 1: 500})))
    before = row_locations(lake.read())
    with pytest.raises(FingerprintError, match="created with other settings"):
        lake.export(source(**changed), **arguments)
    assert row_locations(lake.read()) == before


@pytest.mark.slow
def test_export_in_several_processes_contains_all_rows(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "parquet")
    lake.export(source(("txn", "encrypted")), executor=LocalExecutor(2), commit_bytes=1 << 40)
    assert_holds(lake.read(), ["txn", "encrypted"])


def test_parquet_statistics_match_offsets_and_timestamps_of_the_file(lake: Lake) -> None:
    lake.export(source("txn"))
    for path in sorted(lake.folder.rglob("*.parquet")):
        if "metadata" in path.parts or "_delta_log" in path.parts:
            continue
        rows = pq.read_table(path, columns=["offset", "timestamp"])
        metadata = pq.read_metadata(path)
        names = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
        for name in ("offset", "timestamp"):
            groups = [
                metadata.row_group(group).column(names.index(name)).statistics
                for group in range(metadata.num_row_groups)
            ]
            bounds = pc.min_max(rows[name]).as_py()
            assert min(group.min for group in groups) == bounds["min"]
            assert max(group.max for group in groups) == bounds["max"]


def test_bounds_in_delta_log_match_the_rows_of_each_file(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    lake.export(source("txn"), partition_by=["date(timestamp)"])
    actions: Any = DeltaTable(lake.target).get_add_actions(flatten=True)
    files_found = pa.table(actions).to_pylist()
    assert len(files_found) > 2
    for action in files_found:
        rows = pq.read_table(f"{lake.target}/{action['path']}")
        offsets, times = pc.min_max(rows["offset"]).as_py(), pc.min_max(rows["timestamp"]).as_py()
        assert (action["min.offset"], action["max.offset"]) == (offsets["min"], offsets["max"])
        assert (action["min.timestamp"], action["max.timestamp"]) == (times["min"], times["max"])
        assert action["num_records"] == rows.num_rows
        days = {value.date() for value in rows["timestamp"].to_pylist()}
        assert days == {action["partition.timestamp_date"]}


def test_iceberg_skips_files_by_bounds_in_its_manifests(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "iceberg")
    lake.export(source("txn"), partition_by=["date(timestamp)"])
    catalog = load_catalog("lake", **lake.catalog)
    try:
        table = catalog.load_table(lake.target)
        scanned = table.inspect.files().to_pylist()
        assert len(scanned) > 2
        for entry in scanned:
            rows = pq.read_table(entry["file_path"].removeprefix("file://"))
            bounds, expected = (
                entry["readable_metrics"]["offset"],
                pc.min_max(rows["offset"]).as_py(),
            )
            assert (bounds["lower_bound"], bounds["upper_bound"]) == (
                expected["min"],
                expected["max"],
            )
        few = table.scan(row_filter="offset < 100").plan_files()
        assert 0 < len(list(few)) < len(scanned)
    finally:
        catalog.close()


@pytest.mark.parametrize("row_group_rows", [1 << 20, 50])
def test_rows_within_a_file_are_sorted(lake: Lake, row_group_rows: int) -> None:
    lake.export(source("txn"), sort_within_files=["value", "offset"], row_group_rows=row_group_rows)
    assert_holds(lake.read(), ["txn"])
    files = [path for path in lake.folder.rglob("*.parquet") if "_delta_log" not in path.parts]
    assert files
    for path in files:
        values = pq.read_table(path, columns=["value"])["value"].to_pylist()
        present = [value for value in values if value is not None]
        assert present == sorted(present)


def test_sort_beyond_the_memory_limit_loses_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_writer, "MAX_HELD_BYTES", 1)
    lake = Lake(tmp_path, "parquet")
    lake.export(source("txn"), sort_within_files=["value"])
    assert_holds(lake.read(), ["txn"])


@pytest.mark.parametrize("target_file_bytes", [1, 20_000])
def test_small_target_file_bytes_make_many_files(lake: Lake, target_file_bytes: int) -> None:
    report = lake.export(
        source("txn", targetPartitionBytes="10m"),
        target_file_bytes=target_file_bytes,
        row_group_rows=50,
    )
    assert report.files > 2
    assert_holds(lake.read(), ["txn"])


def only_big(batch: pa.RecordBatch) -> pa.RecordBatch | None:
    """A transform that returns only rows with a value of more than 60 bytes, with changed
    columns.
    """
    sizes = pc.binary_length(batch.column("value"))
    rows = batch.filter(pc.fill_null(pc.greater(sizes, 60), False))
    if rows.num_rows == 0:
        return None
    return pa.RecordBatch.from_arrays(
        [rows.column("partition"), rows.column("offset"), pc.binary_length(rows.column("value"))],
        names=["p", "o", "size"],
    )


def test_transform_may_change_columns(lake: Lake) -> None:
    lake.export(source("txn"), transform=only_big)
    expected = expected_table("txn", "read_committed")
    sizes = pc.binary_length(expected["value"])
    mask = pc.fill_null(pc.greater(sizes, 60), False)
    rows_expected = sorted(
        zip(
            expected.filter(mask)["partition"].to_pylist(),
            expected.filter(mask)["offset"].to_pylist(),
            sizes.filter(mask).to_pylist(),
            strict=True,
        )
    )
    table = lake.read()
    rows = sorted(zip(*(table[name].to_pylist() for name in ("p", "o", "size")), strict=True))
    assert rows == rows_expected
    assert lake.export(source("txn"), transform=only_big).rows == 0


def drop_all(batch: pa.RecordBatch) -> pa.RecordBatch | None:
    return None


def test_offsets_advance_without_rows_to_write(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "parquet")
    first = lake.export(source("txn"), transform=drop_all)
    assert (first.rows, first.files) == (0, 0)
    assert first.ranges
    assert lake.export(source("txn"), transform=drop_all).commits == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"partition_by": ["nosuch"]}, "nosuch"),
        ({"partition_by": ["date(offset)"]}, "needs a timestamp"),
        ({"partition_by": ["value"]}, "a table cannot be partitioned by type"),
        ({"partition_by": ["minute(timestamp)"]}, "must be a column"),
        ({"partition_by": "topic"}, "must be a list of columns"),
        ({"sort_within_files": ["nosuch"]}, "nosuch"),
        ({"compression": "rar"}, "compression"),
        ({"row_group_rows": 0}, "row_group_rows"),
        ({"export_id": "_x"}, "export_id"),
    ],
)
def test_invalid_arguments_are_refused(lake: Lake, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidOptionError, match=text):
        lake.export(source("txn"), **arguments)


def test_report_contains_row_count_offset_ranges_and_skipped_offsets(lake: Lake) -> None:
    report = lake.export(source("txn"))
    text, plain = str(report), report.to_dict()
    assert f"{report.rows:,} rows in {report.files:,} files" in text
    assert "skipped txn-0 [3675, 3963): open transaction" in text
    assert plain["rows"] == report.rows == expected_table("txn", "read_committed").num_rows
    assert plain["requests"] > 0
    assert {span["partition"]: span["stop"] for span in plain["ranges"]} == {0: 3675, 1: 3671}


@pytest.mark.parametrize("compact", [False, True])
def test_every_task_writes_its_metrics(tmp_path: Path, compact: bool) -> None:
    folder = tmp_path / "metrics"
    Lake(tmp_path, "delta").export(
        source("txn", metricsPath=str(folder), where="key is not null"),
        commit_bytes=1 << 40,
        compact=compact,
    )
    lines = [
        json.loads(line)
        for path in folder.rglob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert len({(line["scan"], line["partition"]) for line in lines}) == len(lines) > 1
    assert {line["outcome"] for line in lines} == {"done"}
    keys = expected_table("txn", "read_committed")["key"]
    assert sum(line["rows"] for line in lines) == len(keys) - keys.null_count
    assert all(line["requests"] and line["bytes"] for line in lines)


def test_date_partitions_are_utc_days(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "parquet")
    lake.export(source("txn"), partition_by=["date(timestamp)"])
    folders = {path.name for path in (tmp_path / "table").iterdir() if path.name != "_kts"}
    days = {
        value.astimezone(datetime.UTC).date().isoformat()
        for value in expected_table("txn", "read_committed")["timestamp"].to_pylist()
    }
    assert folders == {f"timestamp_date={day}" for day in days}
