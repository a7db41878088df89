"""Checks that compaction keeps the latest visible record of every key, with any memory limit."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import load_catalog

from kts_source.errors import (
    CommitConflictError,
    ExportError,
    FingerprintError,
    InvalidOptionError,
    UnsupportedTargetError,
)
from kts_source.export import compaction as buckets
from kts_source.export import compaction as compact
from kts_source.export.compaction import SpreadTask
from kts_source.export.ranges import PartitionKey
from kts_source.export.task import TaskReport
from kts_source.export.task_writer import LocalExecutor
from tests.golden_data import expected_table, topic_summary
from tests.kts_source.export import exporting
from tests.kts_source.export.exporting import FORMATS, Lake
from tests.kts_source.export.killing import Killed
from tests.quick import only

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from kts_source.export.tables.export_table import Commit
    from kts_source.export.task import ExportJob, RunnableTask

TOPIC = "compacted"


def source(topics: str | tuple[str, ...], **options: str) -> dict[str, str]:
    """Returns options that read only records with a key. Golden topics also contain records without
    a key, which compaction refuses.
    """
    return exporting.source(topics, where="key is not null", **options)


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(tmp_path, request.param)


def latest_records(
    topic: str,
    *,
    below: int = 1 << 62,
    tombstones: str = "keep",
    retention_ms: int = 86_400_000,
    isolation_level: Any = "read_committed",  # noqa: ANN401
) -> dict[tuple[int, bytes], dict[str, Any]]:
    """Returns the records below offset `below` that Kafka's log cleaner would keep, as a map from
    partition and key to the row.
    """
    latest: dict[tuple[int, bytes], dict[str, Any]] = {}
    newest: dict[int, Any] = {}
    for row in expected_table(topic, isolation_level).to_pylist():
        if row["offset"] >= below or row["key"] is None:
            continue
        latest[row["partition"], row["key"]] = row
        time = row["timestamp"].timestamp() * 1000
        newest[row["partition"]] = max(newest.get(row["partition"], time), time)

    def stays(row: dict[str, Any]) -> bool:
        if row["value"] is not None or tombstones == "keep":
            return True
        horizon = newest[row["partition"]] - retention_ms
        return tombstones == "remove-old" and row["timestamp"].timestamp() * 1000 >= horizon

    return {location: row for location, row in latest.items() if stays(row)}


def assert_compacted(table: pa.Table, expected: dict[tuple[int, bytes], dict[str, Any]]) -> None:
    rows = table.to_pylist()
    rows_by_key = {(row["partition"], row["key"]): row for row in rows}
    assert len(rows) == len(rows_by_key)
    assert rows_by_key.keys() == expected.keys()
    for key, row in expected.items():
        for name in ("topic", "partition", "offset", "value", "timestamp"):
            assert rows_by_key[key][name] == row[name]


def test_compaction_keeps_latest_records(lake: Lake) -> None:
    report = lake.export(source(TOPIC), compact=True)
    table = lake.read()
    expected = latest_records(TOPIC)
    assert_compacted(table, expected)
    assert set(table["topicId"].to_pylist()) == {topic_summary(TOPIC)["topicId"]}
    assert report.rows == len(expected) < report.rows_read
    assert lake.export(source(TOPIC), compact=True).commits == 0
    assert not list(lake.folder.rglob("spill/*"))


def test_uncommitted_records_do_not_replace_the_latest_record(tmp_path: Path) -> None:
    assert latest_records("txn") != latest_records("txn", isolation_level="read_uncommitted")
    lake = Lake(tmp_path, "parquet")
    lake.export(source("txn"), compact=True)
    assert_compacted(lake.read(), latest_records("txn"))


@pytest.mark.parametrize("tombstones", ["keep", "remove", "remove-old"])
def test_tombstones_are_kept_or_dropped_as_configured(tmp_path: Path, tombstones: str) -> None:
    retention_ms = 1000
    expected = latest_records(TOPIC, tombstones=tombstones, retention_ms=retention_ms)
    lake = Lake(tmp_path, "parquet")
    lake.export(
        source(TOPIC), compact=True, tombstones=tombstones, delete_retention_ms=retention_ms
    )
    assert_compacted(lake.read(), expected)


def test_golden_compacted_topic_has_tombstones_as_latest_records() -> None:
    rows = latest_records(TOPIC)
    assert any(row["value"] is None for row in rows.values())
    kept = latest_records(TOPIC, tombstones="remove")
    assert len(kept) < len(rows)


def test_compaction_with_tiny_memory_keeps_latest_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "HELD_BYTES", 20_000)
    monkeypatch.setattr(compact, "BUCKET_BYTES", 100_000)
    lake = Lake(tmp_path, "parquet")
    lake.export(source(TOPIC), compact=True)
    assert_compacted(lake.read(), latest_records(TOPIC))


def ending(offset: int, topic: str = TOPIC) -> str:
    """Returns the option `endingOffsets` that ends all partitions of `topic` at `offset`."""
    numbers = range(len(topic_summary(topic)["partitions"]))
    return json.dumps({topic: {str(number): offset for number in numbers}})


NO_REPORT = TaskReport(number=0)
RUNS = {"compacted": (300, 301, 900, 1700, 2968), "txn": (500, 1200, 3000, 3671)}


class Watched(LocalExecutor):
    """Runs tasks. `read` contains topic, partition, start and stop offset of each slice that they
    read.
    """

    def __init__(self) -> None:
        super().__init__(1)
        self.read: list[tuple[str, int, int, int]] = []

    def run(self, tasks: Sequence[RunnableTask], job: ExportJob) -> Iterator[TaskReport]:
        for task in tasks:
            if isinstance(task, SpreadTask):
                self.read += [
                    (
                        task_slice.topic,
                        task_slice.partition,
                        task_slice.start_offset,
                        task_slice.stop_offset,
                    )
                    for task_slice in task.scan.slices
                ]
        yield from super().run(tasks, job)


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
@pytest.mark.parametrize("topic", only(1, RUNS))
@pytest.mark.parametrize("tombstones", only(1, ["remove-old", "keep", "remove"]))
def test_compaction_in_several_runs_equals_compaction_in_one_run(
    tmp_path: Path, table_format: str, topic: str, tombstones: str
) -> None:
    lake = Lake(tmp_path, table_format)
    rules: dict[str, Any] = {
        "compact": True,
        "tombstones": tombstones,
        "delete_retention_ms": 400_000,
        "partition_by": ["topic"],
    }
    executor = Watched()
    for stop in RUNS[topic]:
        options = source(topic, endingOffsets=ending(stop, topic))
        report = lake.export(options, executor=executor, **rules)
        expected = latest_records(topic, below=stop, tombstones=tombstones, retention_ms=400_000)
        assert_compacted(lake.read(), expected)
        assert report.rows == len(expected)
    once = Lake(tmp_path / "once", table_format)
    once.folder.mkdir()
    once.export(options, **rules)
    columns = [name for name in once.read().column_names if name != "headers"]
    order = [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
    merged, compacted_once = (
        written_lake.read().select(columns).sort_by(order) for written_lake in (lake, once)
    )
    assert merged.equals(compacted_once)
    # No run read a slice that an earlier run had read.
    spans = sorted((topic, number, start) for topic, number, start, _ in executor.read)
    assert len(spans) == len(set(spans))


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_compacted_table_stores_the_newest_timestamp_of_all_read_records(
    tmp_path: Path, table_format: str
) -> None:
    lake = Lake(tmp_path, table_format)
    for stop in (900, 2968):
        lake.export(source(TOPIC, endingOffsets=ending(stop)), compact=True)
    key = PartitionKey(topic_summary(TOPIC)["topicId"], 0)
    newest_known = lake.table(compact=True).load().newest_ms
    rows = expected_table(TOPIC, "read_committed").to_pylist()
    newest = max(row["timestamp"] for row in rows if row["key"] is not None)
    assert newest_known(key) == newest.timestamp() * 1000
    assert compact.newest_timestamps([], {key: 5}.get) == {}
    report = dataclasses.replace(NO_REPORT, newest_ms=((*key, 3),))
    assert compact.newest_timestamps([report], {key: 5}.get) == {key: 5}
    assert compact.newest_timestamps([report], {key: 2}.get) == {key: 3}
    assert compact.newest_timestamps([report], lambda _key: None) == {key: 3}


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_compaction_killed_before_commit_changes_nothing(
    tmp_path: Path, table_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path, table_format)
    lake.export(source(TOPIC, endingOffsets=ending(900)), compact=True)
    table = lake.table(compact=True)

    def dies(commit: Commit) -> None:
        raise Killed("commit")

    monkeypatch.setattr(table, "commit", dies)
    with pytest.raises(Killed):
        lake.export(source(TOPIC), table=table, compact=True)
    assert_compacted(lake.read(), latest_records(TOPIC, below=900))
    lake.export(source(TOPIC), compact=True)
    assert_compacted(lake.read(), latest_records(TOPIC))
    assert lake.export(source(TOPIC), compact=True).commits == 0


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_merge_keeps_concurrently_committed_rows_and_raises_commit_conflict(
    tmp_path: Path, table_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path, table_format)
    lake.export(source(TOPIC, endingOffsets=ending(900)), compact=True)
    table = lake.table(compact=True)
    commit = table.commit
    extra = lake.read().slice(0, 1)

    def too_late(commit_data: Commit) -> None:
        if table_format == "delta":
            write_deltalake(lake.target, extra, mode="append")
        else:
            catalog = load_catalog("lake", **lake.catalog)
            catalog.load_table(lake.target).append(extra)
            catalog.close()
        commit(commit_data)

    monkeypatch.setattr(table, "commit", too_late)
    with pytest.raises(CommitConflictError, match="another writer changed the table"):
        lake.export(source(TOPIC), table=table, compact=True)
    assert lake.read().num_rows == len(latest_records(TOPIC, below=900)) + 1
    # The next run merges the current files, which have several records of a key.
    lake.export(source(TOPIC), compact=True)
    assert_compacted(lake.read(), latest_records(TOPIC))


def test_compaction_rebuilds_table_that_lacks_columns_needed_for_merge(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    columns = "key,topic,partition,offset"
    for stop in (900, 2968):
        options = source(TOPIC, endingOffsets=ending(stop), columns=columns)
        lake.export(options, compact=True, tombstones="remove")
    expected = latest_records(TOPIC, tombstones="remove")
    offsets_found = {
        (row["partition"], row["key"]): row["offset"] for row in lake.read().to_pylist()
    }
    assert offsets_found == {location: row["offset"] for location, row in expected.items()}


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_second_compaction_updates_table_to_latest_records(
    tmp_path: Path, table_format: str
) -> None:
    lake = Lake(tmp_path, table_format)
    lake.export(source(TOPIC, endingOffsets=ending(300)), compact=True)
    assert_compacted(lake.read(), latest_records(TOPIC, below=300))
    lake.export(source(TOPIC), compact=True)
    assert_compacted(lake.read(), latest_records(TOPIC))
    with pytest.raises(FingerprintError, match="compact"):
        lake.export(source((TOPIC, "txn")), compact=True)


def test_second_compaction_into_a_parquet_folder_is_refused(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "parquet")
    lake.export(source(TOPIC, endingOffsets=f'{{"{TOPIC}":{{"0":300}}}}'), compact=True)
    with pytest.raises(UnsupportedTargetError, match="cannot be replaced in one step"):
        lake.export(source(TOPIC), compact=True)
    assert_compacted(lake.read(), latest_records(TOPIC, below=300))


def test_compaction_that_would_remove_rows_of_other_writers_raises(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    write_deltalake(lake.target, expected_table("txn", "read_committed"))
    with pytest.raises(ExportError, match="would remove"):
        lake.export(source(TOPIC), compact=True)


def test_compaction_of_record_without_key_is_refused(tmp_path: Path) -> None:
    topic = "codecs"
    assert any(row["key"] is None for row in expected_table(topic, "read_committed").to_pylist())
    with pytest.raises(ExportError, match=rf"without a key.*topic {topic}, partition 0, offset \d"):
        Lake(tmp_path, "parquet").export(exporting.source(topic), compact=True)


def test_compaction_with_many_buckets_keeps_latest_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact, "BUCKET_BYTES", 100_000)
    lake = Lake(tmp_path, "parquet")
    lake.export(source(TOPIC), compact=True, partition_by=["topic"], executor=LocalExecutor(1))
    assert_compacted(lake.read(), latest_records(TOPIC))


def test_invalid_compaction_arguments_are_refused(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "parquet")
    with pytest.raises(InvalidOptionError, match="tombstones"):
        lake.settings(compact=True, tombstones="bury")
    with pytest.raises(InvalidOptionError, match="cannot be combined with transform"):
        lake.settings(compact=True, sort_within_files=["key"])


ROWS = st.lists(
    st.tuples(st.sampled_from(["x", "y"]), st.integers(0, 2), st.binary(max_size=2)), max_size=40
)


@settings(deadline=None)
@given(ROWS, st.randoms(use_true_random=False))
def test_latest_returns_the_highest_offset_of_each_key(
    rows: list[tuple[str, int, bytes]],
    random: Any,  # noqa: ANN401
) -> None:
    numbered = list(enumerate(rows))
    expected = {row: offset for offset, row in numbered}
    random.shuffle(numbered)
    table = pa.table(
        {
            "topicId": pa.array([row[0] for _, row in numbered], pa.string()),
            "partition": pa.array([row[1] for _, row in numbered], pa.int32()),
            "key": pa.array([row[2] for _, row in numbered], pa.binary()),
            "offset": pa.array([offset for offset, _ in numbered], pa.int64()),
        }
    )
    latest = buckets.latest(table).to_pylist()
    assert len(latest) == len(expected)
    assert {
        (row["topicId"], row["partition"], row["key"]): row["offset"] for row in latest
    } == expected
