"""Exports into Delta tables by catalog name with Spark and its own Delta writer.

The tables are written in a separate environment; see `named_delta_side.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.golden_data import expected_table
from tests.integration.kafka_jars import spark_delta_jars
from tests.integration.spark_kafka import run_script
from tests.kts_source.export.exporting import assert_holds

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(720)]

SCRIPT = Path(__file__).with_name("named_delta_side.py")
ALL = list(range(20))
"""Offsets of the tier with two segments of ten records."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    jars = spark_delta_jars("4.0")
    folder = tmp_path_factory.mktemp("named")
    run_script(SCRIPT, {"jars": [str(path) for path in jars], "out": str(folder)}, folder)
    return folder


@pytest.fixture(scope="module")
def outcomes(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "outcomes.json").read_text())
    return values


def test_table_has_all_rows_of_broker_once(folder: Path, outcomes: dict[str, Any]) -> None:
    table = pq.read_table(folder / "golden.parquet")
    assert_holds(table, ["txn"])
    golden = outcomes["golden"]
    assert golden["rows"] == [expected_table("txn", "read_committed").num_rows, 0]
    assert golden["created"] == [True, False]
    assert golden["commits"] == [4, 0]
    assert golden["partitions"] == ["topic", "timestamp_month"]
    assert golden["types"]["timestamp_month"] == "date"


def test_report_has_the_files_that_spark_wrote(outcomes: dict[str, Any]) -> None:
    for name in ("files", "bytes"):
        reported, in_table = outcomes["golden"][name]
        assert reported == in_table > 0


def test_killed_run_resumes_without_missing_or_repeated_rows(outcomes: dict[str, Any]) -> None:
    kills = outcomes["kills"]
    left = {name: offsets for name, offsets, _, _ in kills}
    assert left == {
        "kill_create_empty_0_true": [],
        "kill_run_1_true": ALL[:10],
        "kill_try_commit_1_false": [],
        "kill_try_commit_1_true": ALL[:10],
        "kill_note_0_false": ALL[:10],
    }
    for name, before, after, rows in kills:
        assert after == ALL, name
        assert rows == len(ALL) - len(before), name


def test_commit_with_lost_response_is_found_in_history(outcomes: dict[str, Any]) -> None:
    lost = outcomes["lost_response"]
    assert (lost["rows"], lost["offsets"]) == (20, ALL)


def test_commit_without_rows_records_its_offsets(outcomes: dict[str, Any]) -> None:
    assert outcomes["lost_response"]["held"] == [0, 25]


def test_concurrent_exports_commit_the_same_offsets_once(outcomes: dict[str, Any]) -> None:
    race = outcomes["concurrent_exports"]
    assert [text for text in race["outcomes"] if text.endswith("rows")] == ["20 rows"]
    assert set(race["outcomes"]) <= {"20 rows", "CommitConflictError", "ExportError"}
    assert race["offsets"] == sorted([*ALL, *range(10)])


def test_tables_that_do_not_fit_are_refused(outcomes: dict[str, Any]) -> None:
    errors = outcomes["other_tables"]
    assert "the rows do not fit the table" in errors["other_columns"]
    assert "offset is int there and bigint in the rows" in errors["other_columns"]
    assert "its column name must not be null" in errors["other_columns"]
    assert "is partitioned by topic" in errors["other_parts"]
    assert "the table has the format parquet" in errors["no_delta"]
    assert "files of an export to its path" in errors["by_path"]
    assert "the table has rows of an export by name" in errors["path_of_by_name"]


def test_rows_of_other_writers_do_not_change_the_offsets(outcomes: dict[str, Any]) -> None:
    assert outcomes["history"]["rows"] == 10


def test_restore_before_a_commit_is_an_error(outcomes: dict[str, Any]) -> None:
    assert "RESTORE in version 4 of the table removed" in outcomes["history"]["restored"]


def test_expired_history_is_an_error_and_adds_no_rows(outcomes: dict[str, Any]) -> None:
    history = outcomes["history"]
    assert "the history has expired" in history["expired"]
    assert history["offsets"] == [0, *range(10)]


def test_typed_columns_and_dead_letters_are_written(outcomes: dict[str, Any]) -> None:
    typed = outcomes["typed"]
    assert typed["limited"].startswith("RejectedRowsError")
    assert typed["rejected"] == 20
    assert typed["letters"] == ALL
    assert typed["again"] == 0
    assert typed["types"]["value"] == "struct<a:bigint>"
    assert typed["texts"] == [20, 1]


def test_follow_commits_in_rounds(outcomes: dict[str, Any]) -> None:
    followed = outcomes["follow_and_dry_run"]
    assert followed["rounds"] == [10, 10]
    assert followed["rows"] == 20
    assert followed["offsets"] == ALL


def test_dry_run_creates_no_table(outcomes: dict[str, Any]) -> None:
    assert outcomes["follow_and_dry_run"]["dry"] == [2, False]
