"""Tests exports with `verify=True`, which detects rows that other writers deleted, replaced or
copied.
"""

from __future__ import annotations

import shutil
import signal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog

from kts_source.cli.app import kts
from kts_source.errors import DataLossError, ExportError
from kts_source.export import verify
from kts_source.export.follow import RoundMetrics, follow
from kts_source.export.task_writer import LocalExecutor
from tests.golden_data import summary, topic_summary
from tests.kts_source.export.exporting import FORMATS, Lake, source

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.table import Table

    from kts_source.export.report import BackfillReport

HALF = '{"txn": {"0": 500, "1": 500}}'


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(tmp_path, request.param)


def exported(lake: Lake, **arguments: Any) -> BackfillReport:  # noqa: ANN401
    options = arguments.pop("options", None) or source()
    return lake.export(options, **arguments)


def verified(lake: Lake, **arguments: Any) -> str:  # noqa: ANN401
    """Runs an export with `verify=True` and checks that it writes no new rows. Returns the results
    of the verification, one per line.
    """
    report = exported(lake, verify=True, **arguments)
    assert report.rows == 0
    assert report.verified
    assert all(line in str(report) for line in report.verified)
    return "\n".join(report.verified)


def tier_arguments() -> list[str]:
    """Returns the command-line arguments with which `kts export` selects the same rows as
    `source()`.
    """
    options = source()
    arguments = [options.pop("path"), options.pop("subscribe")]
    for name, value in options.items():
        arguments += ["-o", f"{name}={value}"]
    return arguments


def iceberg(lake: Lake) -> Table:
    return load_catalog("lake", **lake.catalog).load_table(lake.target)


def parquet_files(lake: Lake) -> list[Path]:
    return sorted((lake.folder / "table").glob("**/kts-*.parquet"))


@pytest.mark.parametrize("partition_by", [(), ("topic", "date(timestamp)"), ("partition",)])
def test_verify_of_intact_table_reports_the_number_of_rows(
    lake: Lake, partition_by: tuple[str, ...]
) -> None:
    options = source(("txn", "timeline"))
    rows = exported(lake, options=options, partition_by=partition_by).rows
    text = verified(lake, options=options, partition_by=partition_by)
    assert f"verified {rows:,} rows of" in text
    assert "no row is missing or stored twice" in text
    assert "not verified" not in text


def test_verify_checks_the_table_before_new_rows_are_written(lake: Lake) -> None:
    first = exported(lake, options=source(endingOffsets=HALF), verify=True)
    assert first.verified == ("verified nothing: the table has no rows of the planned partitions",)
    second = exported(lake, verify=True)
    assert f"verified {first.rows:,} rows of 2 partitions" in second.verified[0]
    assert f"verified {first.rows + second.rows:,} rows" in verified(lake)


def test_verify_accepts_rows_excluded_by_where(lake: Lake) -> None:
    options = source(where="offset < 900")
    rows = exported(lake, options=options).rows
    assert f"verified {rows:,} rows" in verified(lake, options=options)


def test_verify_ignores_rows_of_other_topics_and_other_exports(lake: Lake) -> None:
    rows = exported(lake).rows
    exported(lake, options=source("timeline"))
    exported(lake, export_id="second", second_copy=True)
    text = verified(lake)
    assert f"verified {rows:,} rows of 2 partitions" in text
    assert "rows of other topics" in text


def test_verify_of_recreated_topic_compares_rows_of_both_topic_ids(lake: Lake) -> None:
    current = topic_summary("recreated")["topicId"]
    ids = [t["topicId"] for t in summary()["topics"] if t["topic"].startswith("recreated")]
    (other,) = set(ids) - {current}
    rows = exported(lake, options=source("recreated")).rows
    rows += exported(lake, options=source("recreated", topicId=other)).rows
    text = verified(lake, options=source("recreated", topicId=other))
    assert f"verified {rows:,} rows" in text
    assert "several topics of one name (recreated-0" in text


def test_verify_accepts_rows_in_dead_letters(lake: Lake) -> None:
    arguments: dict[str, Any] = {
        "dead_letters": str(lake.folder / "letters"),
        "options": source(**{"value.format": "json", "value.schema": "id bigint"}),
    }
    report = exported(lake, **arguments)
    assert report.rejected
    assert f"verified {report.rows:,} rows" in verified(lake, **arguments)


def test_verify_command_prints_its_result(lake: Lake) -> None:
    rows = exported(lake).rows
    arguments = ["export", *tier_arguments(), lake.target, "--table-format", lake.table_format]
    if lake.table_format == "iceberg":
        for name, value in {**lake.catalog, "name": "lake"}.items():
            arguments += ["--catalog", f"{name}={value}"]
    result = CliRunner().invoke(kts, [*arguments, "--workers", "1", "--verify"])
    assert result.exit_code == 0, result.output
    assert f"verified {rows:,} rows of 2 partitions" in result.output


def test_follow_verifies_the_table_only_in_its_first_round(lake: Lake) -> None:
    exported(lake)
    rounds: list[RoundMetrics] = []

    def on_round(metrics: RoundMetrics, _total: BackfillReport) -> None:
        rounds.append(metrics)
        if len(rounds) == 2:
            signal.raise_signal(signal.SIGTERM)

    settings = lake.settings(verify=True, follow=True)
    report = follow(
        source(), settings, LocalExecutor(1), on_round=on_round, pause=lambda _seconds: None
    )
    assert [metrics.outcome for metrics in rounds] == ["idle", "idle"]
    assert len(report.verified) == 1


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_verify_accepts_compacted_table(tmp_path: Path, table_format: str) -> None:
    lake = Lake(tmp_path, table_format)
    options = {"compact": True, "options": source("compacted", where="key is not null")}
    rows = exported(lake, **options).rows
    assert f"verified {rows:,} rows" in verified(lake, **options)


def test_verify_compares_only_row_counts_if_table_has_no_offset_column(lake: Lake) -> None:
    options = source(columns="topic,partition,value", includeHeaders="false")
    rows = exported(lake, options=options).rows
    text = verified(lake, options=options)
    assert f"at least the {rows:,} rows" in text
    assert "not verified: its columns do not show" in text


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.Table.from_batches([batch, batch]).combine_chunks().to_batches()[0]


def test_verify_accepts_transform_that_duplicates_rows(lake: Lake) -> None:
    rows = exported(lake, transform=doubled).rows
    text = verified(lake, transform=doubled)
    assert f"at least the {rows:,} rows" in text
    assert "not verified: its transform decides" in text


# -- Delta


@pytest.fixture
def delta(tmp_path: Path) -> Lake:
    return Lake(tmp_path, "delta")


@pytest.mark.parametrize("partition_by", [(), ("partition",)])
def test_verify_passes_after_delta_optimize(delta: Lake, partition_by: tuple[str, ...]) -> None:
    rows = exported(delta, partition_by=partition_by).rows
    result = DeltaTable(delta.target).optimize.compact()
    assert result["numFilesRemoved"] > 1
    assert f"verified {rows:,} rows" in verified(delta, partition_by=partition_by)


def test_verify_reports_optimized_delta_table_of_two_exports_as_unverified(delta: Lake) -> None:
    exported(delta)
    exported(delta, export_id="second", second_copy=True)
    DeltaTable(delta.target).optimize.compact()
    assert "other exports write to this table" in verified(delta)


def test_verify_fails_after_another_writer_deleted_delta_rows(delta: Lake) -> None:
    exported(delta, options=source(endingOffsets=HALF))
    DeltaTable(delta.target).delete("partition = 1 and offset = 7")
    with pytest.raises(DataLossError, match=r"version \d+ of the table \(DELETE, by another") as e:
        exported(delta, verify=True)
    assert (e.value.topic, e.value.partition, e.value.offset) == ("txn", 1, 0)
    assert "restore the version of the table that had the rows" in str(e.value)
    assert "append the missing rows of that version" in str(e.value)
    assert exported(delta).rows > 0, "nothing was written before the check"


def test_verify_fails_after_delta_rows_were_deleted_after_optimize(delta: Lake) -> None:
    exported(delta)
    DeltaTable(delta.target).optimize.compact()
    DeltaTable(delta.target).delete("offset < 10")
    with pytest.raises(DataLossError, match="DELETE"):
        verified(delta)


def test_verify_fails_after_delta_overwrite_with_fewer_rows(delta: Lake) -> None:
    exported(delta)
    rows = delta.read()
    write_deltalake(delta.target, rows.slice(0, 10), mode="overwrite")
    with pytest.raises(DataLossError, match=r"version \d+ of the table \(WRITE"):
        verified(delta)
    write_deltalake(delta.target, rows, mode="overwrite")
    assert "no row is missing" in verified(delta)


def test_verify_fails_after_rows_were_appended_again_to_delta(delta: Lake) -> None:
    exported(delta)
    rows = delta.read()
    copy = rows.slice(2, 1)
    write_deltalake(delta.target, copy, mode="append")
    with pytest.raises(ExportError, match="more than one row with this offset") as raised:
        verified(delta)
    assert raised.value.offset == copy["offset"][0].as_py()


def test_verify_fails_for_delta_row_above_the_exported_offsets(delta: Lake) -> None:
    exported(delta)
    rows = delta.read().slice(0, 1)
    column = rows.schema.get_field_index("offset")
    beyond = rows.set_column(column, rows.schema.field(column), pa.array([10**6], pa.int64()))
    write_deltalake(delta.target, beyond, mode="append")
    with pytest.raises(ExportError, match=r"records only offsets \[0, \d+\)") as raised:
        verified(delta)
    assert raised.value.offset == 10**6


def test_verify_ignores_delta_rows_of_other_topics(delta: Lake) -> None:
    exported(delta)
    rows = delta.read().slice(0, 5)
    column = rows.schema.get_field_index("topic")
    other = rows.set_column(column, rows.schema.field(column), pa.array(["other"] * 5))
    write_deltalake(delta.target, other, mode="append")
    assert "not verified: 5 rows of other topics" in verified(delta)


def test_verify_fails_after_a_delta_data_file_was_removed(delta: Lake) -> None:
    exported(delta)
    sorted((delta.folder / "table" / "kts").glob("**/*.parquet"))[0].unlink()
    with pytest.raises(DataLossError, match="data file of the table does not exist"):
        verified(delta)


def test_verify_fails_for_deleted_rows_of_a_delta_table_with_transform(delta: Lake) -> None:
    exported(delta, transform=doubled)
    DeltaTable(delta.target).delete("offset < 10")
    with pytest.raises(DataLossError, match="DELETE"):
        verified(delta, transform=doubled)


def test_verify_fails_for_deleted_rows_of_a_compacted_delta_table(delta: Lake) -> None:
    options = {"compact": True, "options": source("compacted", where="key is not null")}
    exported(delta, **options)
    least = pc.min(delta.read()["offset"]).as_py()
    DeltaTable(delta.target).delete(f"offset = {least}")
    with pytest.raises(DataLossError, match="DELETE"):
        verified(delta, **options)


# -- Iceberg


@pytest.fixture
def ice(tmp_path: Path) -> Lake:
    return Lake(tmp_path, "iceberg")


def test_verify_fails_after_another_writer_deleted_iceberg_rows(ice: Lake) -> None:
    exported(ice)
    iceberg(ice).delete("offset < 10")
    with pytest.raises(DataLossError, match=r"snapshot \d+ of the table \(overwrite, by another"):
        verified(ice)


def test_verify_fails_after_iceberg_overwrite_only_if_rows_are_missing(ice: Lake) -> None:
    exported(ice)
    rows = ice.read()
    iceberg(ice).overwrite(rows)
    assert "no row is missing" in verified(ice)
    iceberg(ice).overwrite(rows.slice(5))
    with pytest.raises(DataLossError, match="by another writer") as raised:
        verified(ice)
    assert raised.value.topic == "txn"


def test_verify_fails_after_rows_were_appended_again_to_iceberg(ice: Lake) -> None:
    exported(ice)
    iceberg(ice).append(ice.read().slice(0, 1))
    with pytest.raises(ExportError, match="more than one row with this offset"):
        verified(ice)


# -- Parquet folders


@pytest.fixture
def folder(tmp_path: Path) -> Lake:
    return Lake(tmp_path, "parquet")


def test_verify_fails_after_a_file_of_a_folder_was_removed(folder: Lake) -> None:
    exported(folder)
    file = parquet_files(folder)[0]
    file.unlink()
    with pytest.raises(DataLossError, match=f"file {file.name} of the folder is missing") as raised:
        verified(folder)
    assert raised.value.topic == "txn"
    assert raised.value.offset is not None


def test_verify_fails_after_a_file_of_a_folder_was_replaced(folder: Lake) -> None:
    exported(folder)
    file = parquet_files(folder)[0]
    pq.write_table(pq.read_table(file).slice(1), file)
    with pytest.raises(DataLossError, match="bytes but was committed with"):
        verified(folder)


@pytest.mark.parametrize("name", ["copy.parquet", "copy.PARQUET", "copy.parq", "copy.pq"])
def test_verify_fails_after_a_file_of_a_folder_was_duplicated(folder: Lake, name: str) -> None:
    exported(folder, partition_by=["partition"])
    file = parquet_files(folder)[0]
    shutil.copy(file, file.with_name(name))
    with pytest.raises(ExportError, match="more than one row with this offset") as raised:
        verified(folder, partition_by=["partition"])
    assert name in str(raised.value)


def test_verify_fails_for_an_invalid_parquet_file_in_a_folder(folder: Lake) -> None:
    exported(folder)
    file = parquet_files(folder)[0]
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(ExportError, match="cannot be read as Parquet"):
        verified(folder)


def test_verify_reports_folder_file_with_foreign_schema_as_not_verified(folder: Lake) -> None:
    rows = exported(folder).rows
    other = pa.table({"topic": ["txn"], "partition": ["west"], "offset": ["a"]})
    pq.write_table(other, folder.folder / "table" / "other.parquet")
    text = verified(folder)
    assert f"verified {rows:,} rows" in text
    assert "not verified: 1 rows of other topics" in text


# -- limited memory


def test_verify_reads_files_several_times_if_bitmap_memory_is_limited(
    folder: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "MAX_CHUNKS", 1)
    rows = exported(folder).rows
    assert f"verified {rows:,} rows of 2 partitions" in verified(folder)
    last = parquet_files(folder)[-1]
    shutil.copy(last, last.with_name("copy.parquet"))
    with pytest.raises(ExportError, match="more than one row with this offset") as raised:
        verified(folder)
    assert raised.value.partition == 1
