"""Tests tables with typed columns and cached registry schemas that earlier code wrote."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest

import kts_source
from kts_source import backfill
from kts_source.errors import RegistryUnavailableError, TieredKafkaError
from tests.golden_data import expected_table
from tests.stored.stable_store import register_stable_store, scan_rows, store_path
from tests.stored.test_tables import enter_copy, read_stored_table, rows_by_position
from tests.stored.typed_samples import (
    CACHED_SOURCE,
    TYPED_PLAN,
    TYPED_TABLE_SAMPLES,
    TYPED_TABLES,
    V2,
    WIDER,
    write_typed_tier,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.stored.typed_samples import TypedSample

V2_DIGEST = "55cfb5777e21ac556c28283bc93080aa9a8e70cac57212c3e690455b4bf58333"
SAMPLES = {sample.name: sample for sample in TYPED_TABLES}


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes the tier with all segments, including those added after the first exports."""
    folder = tmp_path_factory.mktemp("typed-tier")
    write_typed_tier(folder, first=False)
    return folder


@pytest.fixture(autouse=True)
def single_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)


def test_stored_samples_have_their_recorded_checksums() -> None:
    digest = hashlib.sha256()
    for path in sorted(path for path in V2.rglob("*") if path.is_file()):
        name = path.relative_to(V2).as_posix()
        digest.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    assert digest.hexdigest() == V2_DIGEST, "stored samples must never change"


@pytest.mark.parametrize(
    ("table_format", "sample"),
    TYPED_TABLE_SAMPLES,
    ids=[f"{table_format}-{sample.name}" for table_format, sample in TYPED_TABLE_SAMPLES],
)
def test_backfill_continues_typed_table(
    table_format: str,
    sample: TypedSample,
    tier: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enter_copy(table_format, tmp_path, monkeypatch)
    before, after = sample.expected(first=True), sample.expected()
    assert_typed(sample, table_format, first=True)
    report = backfill(None, source=sample.source(tier), **sample.backfill_arguments(table_format))
    assert report.rows == len(after) - len(before) > 0
    assert_typed(sample, table_format)


def assert_typed(sample: TypedSample, table_format: str, *, first: bool = False) -> None:
    """Asserts that the table has the expected rows. Ignores the field `day`, which has a default
    value.
    """
    table = read_stored_table(sample, table_format)
    typed_values = {
        position: columns["value"] for position, columns in rows_by_position(table).items()
    }
    rows = {
        position: {
            "value": typed_value
            and {name: field for name, field in typed_value.items() if name != "day"}
        }
        for position, typed_value in typed_values.items()
    }
    assert rows == sample.expected(first=first)


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_backfill_with_schema_evolution_adds_field_to_stored_table(
    table_format: str, tier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter_copy(table_format, tmp_path, monkeypatch)
    sample = SAMPLES["typed-avro"]
    source = {**sample.source(tier), "value.schema": json.dumps(WIDER)}
    arguments = sample.backfill_arguments(table_format)
    with pytest.raises(TieredKafkaError, match="more"):
        backfill(None, source=source, **arguments)
    assert_typed(sample, table_format, first=True)
    backfill(None, source=source, **arguments, schema_evolution="add")
    table = read_stored_table(sample, table_format)
    typed_values = [value for value in table["value"].to_pylist() if value]
    assert {value.pop("more") for value in typed_values} == {None}
    expected = sample.expected().values()
    assert len(typed_values) == sum(columns["value"] is not None for columns in expected)


@pytest.mark.parametrize("table_format", ["parquet", "delta", "iceberg"])
def test_backfill_continues_typed_dead_letters(
    table_format: str, tier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter_copy(table_format, tmp_path, monkeypatch)
    sample = SAMPLES["typed-json"]

    def letters() -> list[tuple[int, bytes]]:
        table = ds.dataset("typed-json/dead_letters", format="parquet").to_table()
        return sorted(zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True))

    assert letters() == [(number, b"{") for number in (3, 10)]
    backfill(None, source=sample.source(tier), **sample.backfill_arguments(table_format))
    assert letters() == [(number, b"{") for number in (3, 10, 17)]


@pytest.mark.parametrize("table_format", ["parquet", "delta", "iceberg"])
def test_backfill_with_other_value_options_than_the_stored_table_raises(
    table_format: str, tier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter_copy(table_format, tmp_path, monkeypatch)
    sample = SAMPLES["typed-json"]
    source = sample.source(tier)
    for changes in ({"value.mode": "PERMISSIVE"}, {"key.format": "raw"}):
        with pytest.raises(TieredKafkaError, match="created with other settings"):
            backfill(None, source={**source, **changes}, **sample.backfill_arguments(table_format))


def test_stored_typed_plan_is_replayed(tmp_path: Path) -> None:
    register_stable_store()
    options = TYPED_PLAN.source(store_path(TYPED_PLAN, tmp_path)) | {"cache": "false"}
    file = tmp_path / "plan.json"
    file.write_text(kts_source.plan(options).to_json())
    expected = []
    for row in (
        expected_table("txn", "read_committed").select(["partition", "offset", "value"]).to_pylist()
    ):
        try:
            value = json.loads(row["value"])
        except (ValueError, TypeError):
            continue
        if value["n"] < 500 and value["t"].startswith("s") and row["offset"] < 1000:
            expected.append((row["partition"], row["offset"], value["n"], value["t"]))
    rows = [
        (row["partition"], row["offset"], row["value"]["n"], row["value"]["t"])
        for row in scan_rows({**options, "planFile": str(file)}).to_pylist()
    ]
    assert len(expected) > 5
    assert rows == sorted(expected)
    other_where = TYPED_PLAN.options["where"].replace("500", "501")
    with pytest.raises(TieredKafkaError, match="where"):
        scan_rows({**options, "planFile": str(file), "where": other_where})


def test_schemas_cached_without_subject_are_requested_again(tier: Path, tmp_path: Path) -> None:
    """The old cache entries contain no subject, so their schema ids may belong to another context.
    The request to the registry fails, because no server listens.
    """
    shutil.copytree(V2 / "schemas", tmp_path / "cache", copy_function=shutil.copyfile)
    source = {**CACHED_SOURCE, "path": tier.as_uri(), "cacheDir": str(tmp_path / "cache")}
    with pytest.raises(RegistryUnavailableError, match=r"/schemas/ids/1\?subject="):
        kts_source.scan(source).to_table()
