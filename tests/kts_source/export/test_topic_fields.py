"""Tests that the first run of an export is refused if no value has a field of the schema."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kts_source.cli.app import main
from kts_source.errors import InvalidOptionError
from kts_source.export.topic_fields import TopicFields, check_fields
from kts_source.options import parse_options
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.export.exporting import FORMATS, Lake
from tests.kts_source.read.typed_tier import T0, TOPIC, TOPIC_ID

if TYPE_CHECKING:
    from pathlib import Path

MISSPELLED = "ordr bigint, customr string"
ORDERS: list[Any] = [{"order": n, "customer": f"c{n}"} for n in range(300)]


def topic(
    root: Path, values: list[Any], schema: str = MISSPELLED, **options: str
) -> dict[str, str]:
    """Writes `values` as keys and as values, in two segments, and returns the options that decode
    the values.
    """
    log = LogBuilder()
    writer = AivenTierWriter(str(root), topic=TOPIC, topic_id=TOPIC_ID, partition=0)
    middle = len(values) // 2
    for part in (values[:middle], values[middle:]):
        texts = [None if value is None else json.dumps(value).encode() for value in part]
        log.append([SimpleRecord(text, text or b"", timestamp=T0) for text in texts])
        files = log.roll()
        assert files is not None
        writer.write_segment(files)
    decoded = {"value.format": "json", "value.schema": schema} if schema else {}
    return {"path": str(root), "subscribe": TOPIC, "cache": "false", **decoded, **options}


def data_files(folder: Path) -> list[Path]:
    return [*folder.rglob("*.parquet"), *folder.rglob("*.metadata.json")]


@pytest.mark.parametrize("table_format", FORMATS)
def test_first_run_is_refused_if_no_value_has_a_field_of_the_schema(
    table_format: str, tmp_path: Path
) -> None:
    lake = Lake(tmp_path / "lake", table_format)
    lake.folder.mkdir()
    options = topic(tmp_path / "tier", ORDERS)
    for is_dry in (True, False):
        with pytest.raises(InvalidOptionError) as caught:
            lake.export(options, dry_run=is_dry)
        assert str(caught.value) == (
            "none of 300 values has a field of option 'value.schema', so all decoded fields would"
            " be null. The values have order, customer. Correct 'value.schema' so that it has at"
            " least one of these fields; did you mean 'order' instead of 'ordr', 'customer' instead"
            " of 'customr'? [topic orders]"
        )
        assert data_files(lake.folder) == []
    # Do what the error advises.
    options["value.schema"] = "order bigint, customr string"
    assert lake.export(options).rows == len(ORDERS)
    assert {value["order"] for value in lake.read()["value"].to_pylist()} == set(range(300))


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_command_with_misspelled_schema_ends_with_code_2(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options, table = topic(tmp_path / "tier", ORDERS), tmp_path / "table"
    command = ["export", options["path"], TOPIC, str(table), "--workers", "1", *more]
    assert main([*command, "--value-format", "json", "--value-schema", MISSPELLED]) == 2
    assert "did you mean 'order' instead of 'ordr'" in capsys.readouterr().err
    assert data_files(table) == []


@pytest.mark.parametrize("value", [{"ordr": 1}, {"ordr": None}])
def test_one_value_with_one_field_of_the_schema_is_enough(
    value: dict[str, Any], tmp_path: Path
) -> None:
    # A sample has 16 values of a batch: every value of the first segment, few of 250 values.
    values = [*ORDERS[:9], value, *ORDERS[:10]] if value["ordr"] is None else [*ORDERS, value]
    options = topic(tmp_path / "tier", values)
    lake = Lake(tmp_path, "parquet")
    assert lake.export(options, dry_run=True).rows_read == len(values)
    assert lake.export(options).rows == len(values)


@pytest.mark.parametrize("values", [ORDERS[:19], [*ORDERS[:19], None, None], [{}] * 30])
def test_fewer_than_20_values_with_fields_are_accepted(values: list[Any], tmp_path: Path) -> None:
    options = topic(tmp_path / "tier", values)
    assert Lake(tmp_path, "parquet").export(options).rows == len(values)


def test_keys_without_a_field_of_the_schema_are_refused(tmp_path: Path) -> None:
    schema = {"key.format": "json", "key.schema": "costumer string"}
    options = topic(tmp_path / "tier", ORDERS[:20], "", **schema)
    with pytest.raises(InvalidOptionError, match=r"none of 20 keys .* 'key.schema'.*'customer'"):
        Lake(tmp_path, "parquet").export(options)


def test_keys_that_the_table_lacks_are_not_checked(tmp_path: Path) -> None:
    schema = {"key.format": "json", "key.schema": "costumer string"}
    options = topic(tmp_path / "tier", ORDERS, "order bigint", columns="value,offset", **schema)
    assert Lake(tmp_path, "parquet").export(options).rows == len(ORDERS)


def test_first_run_warns_about_a_field_that_seems_to_be_misspelled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = topic(tmp_path / "tier", ORDERS, "order bigint, customr string, note string")
    lake = Lake(tmp_path, "parquet")
    warning = (
        "topic orders: fields of option 'value.schema' are in none of the sampled values, so they"
        " are null in the table; did you mean 'customer' instead of 'customr'?"
    )
    for _ in range(2):
        lake.export(options)
        assert caplog.messages.count(warning) == 1, "only the first run warns"


def test_later_commits_and_runs_are_not_refused(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    values = [{"ordr": n} for n in range(30)] + ORDERS[:30]
    options = topic(tmp_path / "tier", values, maxSegmentsPerTask="1")
    first = options | {"endingOffsets": json.dumps({TOPIC: {"0": 30}})}
    assert lake.export(first).rows == 30
    assert lake.export(options, dry_run=True).rows_read == 30
    assert lake.export(options).rows == 30
    report = Lake(tmp_path / "other", "delta").export(options, commit_bytes=1)
    assert (report.rows, report.commits) == (60, 2)


def test_misspelled_schema_is_accepted_if_fields_are_added(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "parquet")
    options = topic(tmp_path / "tier", ORDERS)
    assert lake.export(options, on_new_fields="add", dry_run=True).rows_read == len(ORDERS)
    report = lake.export(options, on_new_fields="add")
    assert report.added_fields == ("value.order", "value.customer")


def test_values_are_checked_per_topic_over_all_tasks() -> None:
    source = {"path": "tier", "subscribe": "a,b", "value.format": "json", "value.schema": "id int"}
    formats = parse_options(source).formats
    names = tuple(f"field{n}" for n in range(12))
    known = TopicFields("value", "a", 100, has_known=True, names=("id",))
    other = TopicFields("value", "a", 100, has_known=False, names=("x",))
    few = TopicFields("value", "b", 10, has_known=False, names=names[:8])
    check_fields([known, other, few], formats)
    with pytest.raises(InvalidOptionError) as caught:
        check_fields([other, few, known, replace(few, names=names)], formats)
    assert "none of 20 values has a field" in str(caught.value)
    assert f"have {', '.join(names[:10])}, …. Correct" in str(caught.value)
    assert str(caught.value).endswith("[topic b]")


@pytest.mark.parametrize("seed", range(16))
def test_dry_run_claims_nothing_about_values_that_it_did_not_read(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chooser = random.Random(seed)
    reads_all = chooser.random() < 0.5
    monkeypatch.setattr("kts_source.export.report._SAMPLE_ROWS", 10_000 if reads_all else 1)
    values: list[Any] = [{"ping": n} for n in range(chooser.randint(40, 80))]
    has_order = not reads_all and chooser.random() < 0.6
    if has_order:
        values[-1] = {"order": 1}
    options = topic(tmp_path / "tier", values, "order bigint")
    if not reads_all:
        options["maxSegmentsPerTask"] = "1"
    lake = Lake(tmp_path, "parquet")
    with pytest.raises(InvalidOptionError) as caught:
        lake.export(options, dry_run=True)
    read = f"{len(values)} values" if reads_all else f"{len(values) // 2} sampled values"
    assert f"none of {read} has a field" in str(caught.value)
    advice = "run without the dry run if only other records have such fields"
    assert (advice in str(caught.value)) is not reads_all
    if has_order:  # Do what the error advises.
        assert lake.export(options).rows == len(values)
    else:
        with pytest.raises(InvalidOptionError, match=f"none of {len(values)} values has a field"):
            lake.export(options)
