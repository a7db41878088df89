"""Exports into Iceberg tables by catalog name with Spark and its own Iceberg writer.

The tables are written in a separate environment; see `named_iceberg_side.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.golden_data import expected_table
from tests.integration.iceberg_catalogs import front_of, rest_catalog
from tests.integration.kafka_jars import spark_lake_jars
from tests.integration.spark_kafka import run_script
from tests.kts_source.export.exporting import assert_holds

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(720)]

SCRIPT = Path(__file__).with_name("named_iceberg_side.py")
ALL = list(range(20))
"""Offsets of the tier with two segments of ten records."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    jars = spark_lake_jars()
    folder = tmp_path_factory.mktemp("named")
    with rest_catalog(tmp_path_factory.mktemp("rest")) as url, front_of(url) as front:
        front.unsupported = '"ref-name":"kts_'
        spec = {"jars": [str(path) for path in jars], "rest": url, "refusing": front.url}
        run_script(SCRIPT, {**spec, "out": str(folder)}, folder)
    return folder


@pytest.fixture(scope="module")
def outcomes(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "outcomes.json").read_text())
    return values


def test_table_has_all_rows_of_broker_once(folder: Path, outcomes: dict[str, Any]) -> None:
    assert_holds(pq.read_table(folder / "golden.parquet"), ["txn"])
    golden = outcomes["golden"]
    assert golden["rows"] == [expected_table("txn", "read_committed").num_rows, 0]
    assert golden["created"] == [True, False]
    assert golden["commits"] == [4, 0]
    assert golden["partitions"] == ["topic", "timestamp_month"]
    assert golden["branches"] == 0


def test_report_has_the_files_that_spark_wrote(outcomes: dict[str, Any]) -> None:
    for name in ("files", "bytes"):
        reported, in_table = outcomes["golden"][name]
        assert reported == in_table > 0


def test_killed_run_resumes_without_missing_or_repeated_rows(outcomes: dict[str, Any]) -> None:
    kills = outcomes["kills"]["kills"]
    assert {name: offsets for name, offsets, _, _ in kills} == {
        "kill_create_empty_0_true": [],
        "kill_run_1_true": ALL[:10],
        "kill_stage_0_false": [],
        "kill_append_0_false": [],
        "kill_append_0_true": [],
        "kill_publish_0_true": ALL[:10],
    }
    for name, before, after, rows in kills:
        assert after == ALL, name
        assert rows == len(ALL) - len(before), name


def test_next_run_removes_branches_of_killed_runs(outcomes: dict[str, Any]) -> None:
    assert outcomes["kills"]["branches"] == 0


def test_commit_with_lost_response_is_found_in_the_table(outcomes: dict[str, Any]) -> None:
    lost = outcomes["lost_response"]
    assert (lost["rows"], lost["offsets"]) == (20, ALL)


def test_commit_without_rows_records_its_offsets(outcomes: dict[str, Any]) -> None:
    assert outcomes["lost_response"]["held"] == [0, 25]


@pytest.mark.parametrize(
    ("name", "others"), [("concurrent_exports", range(10)), ("concurrent_first_commits", ())]
)
def test_concurrent_exports_commit_the_same_offsets_once(
    name: str, others: range | tuple[int, ...], outcomes: dict[str, Any]
) -> None:
    race = outcomes[name]
    assert [text for text in race["outcomes"] if text.endswith("rows")] == ["20 rows"]
    assert set(race["outcomes"]) <= {"20 rows", "CommitConflictError", "ExportError"}
    assert race["offsets"] == sorted([*ALL, *others])


def test_run_whose_branch_was_removed_commits_nothing(outcomes: dict[str, Any]) -> None:
    lost = outcomes["lost_branch"]
    assert lost["error"].startswith("CommitConflictError")
    assert lost["offsets"] == ALL


@pytest.mark.parametrize("first", ["pyiceberg", "spark"])
def test_both_writers_continue_each_others_table(first: str, outcomes: dict[str, Any]) -> None:
    turns = outcomes["both_writers"][first]
    assert turns["rows"] == [10] * 4
    assert turns["offsets"] == list(range(40))


def test_tables_that_do_not_fit_are_refused(outcomes: dict[str, Any]) -> None:
    errors = outcomes["changed_tables"]
    assert "offset is int there and bigint in the rows" in errors["columns"]
    assert "its column name must not be null" in errors["columns"]
    assert "is partitioned by identity(topic)" in errors["parts"]


def test_rollback_or_replacement_of_the_table_is_an_error(outcomes: dict[str, Any]) -> None:
    errors = outcomes["changed_tables"]
    assert errors["rolled_back"].startswith("DataLossError")
    assert "the table was rolled back to" in errors["rolled_back"]
    assert errors["replaced"].startswith("DataLossError")


def test_table_that_is_dropped_during_a_run_is_an_error(outcomes: dict[str, Any]) -> None:
    assert outcomes["changed_tables"]["dropped"].startswith("ExportError")


def test_typed_columns_and_dead_letters_are_written(outcomes: dict[str, Any]) -> None:
    assert outcomes["typed"] == {"rejected": 20, "again": 0, "type": "struct<a:bigint>"}


def test_follow_commits_in_rounds_and_dry_run_creates_no_table(outcomes: dict[str, Any]) -> None:
    followed = outcomes["follow_and_dry_run"]
    assert followed["rounds"] == [10, 10]
    assert followed["offsets"] == ALL
    assert followed["dry"] == [2, False]


@pytest.mark.parametrize("catalog", ["rest", "hadoop", "hive"])
def test_killed_run_resumes_in_other_catalogs(catalog: str, outcomes: dict[str, Any]) -> None:
    outcome = outcomes["catalogs"][catalog]
    assert outcome["offsets"] == [[], ALL]
    assert outcome["rows"] == [len(ALL), 0]
    assert outcome["branches"] == 0


@pytest.mark.parametrize("catalog", ["rest", "hadoop", "hive"])
def test_concurrent_exports_commit_once_in_other_catalogs(
    catalog: str, outcomes: dict[str, Any]
) -> None:
    race = outcomes["catalogs"][catalog]["race"]
    assert [text for text in race["outcomes"] if text.endswith("rows")] == ["20 rows"]
    assert race["offsets"] == ALL


def test_catalog_that_refuses_branches_is_an_error(outcomes: dict[str, Any]) -> None:
    outcome = outcomes["unsuitable_catalogs"]["refusing"]
    assert outcome["error"].startswith("ExportError")
    assert "no branch can be created" in outcome["error"]
    assert "not here" in outcome["error"]  # response of the catalog
    assert outcome["offsets"] == []


def test_hadoop_catalog_in_object_store_is_refused(outcomes: dict[str, Any]) -> None:
    outcome = outcomes["unsuitable_catalogs"]["store"]
    assert outcome["error"].startswith("UnsupportedTargetError")
    assert "a rename can replace the commit of another run" in outcome["error"]
    assert outcome["offsets"] == []
