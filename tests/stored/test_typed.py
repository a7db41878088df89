"""Typed tables that earlier code began, and schemas that it kept of a registry."""

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
from tests.stored.samples import V3
from tests.stored.stable_store import path_of, register_stable_store, scanned
from tests.stored.test_tables import held, stored
from tests.stored.typed_samples import (
    KEPT,
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
    """The tier with what came after the first exports."""
    folder = tmp_path_factory.mktemp("typed-tier")
    write_typed_tier(folder, first=False)
    return folder


@pytest.fixture(autouse=True)
def one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)


def enter_copy(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(V3 / "tables" / name, tmp_path / name)
    monkeypatch.chdir(tmp_path / name)


def test_the_samples_are_as_they_were_written() -> None:
    digest = hashlib.sha256()
    for path in sorted(path for path in V2.rglob("*") if path.is_file()):
        name = path.relative_to(V2).as_posix()
        digest.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    assert digest.hexdigest() == V2_DIGEST, "stored samples are never edited nor written anew"


@pytest.mark.parametrize(
    ("table_format", "sample"),
    TYPED_TABLE_SAMPLES,
    ids=[f"{table_format}-{sample.name}" for table_format, sample in TYPED_TABLE_SAMPLES],
)
def test_an_export_goes_on(
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
    """Holds the table to the rows, without what `day` is when nobody wrote it."""
    table = stored(sample, table_format)
    rows = {place: values["value"] for place, values in held(table).items()}
    found = {
        place: {"value": value and {name: one for name, one in value.items() if name != "day"}}
        for place, value in rows.items()
    }
    assert found == sample.expected(first=first)


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_fields_are_added(
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
    values = [one for one in stored(sample, table_format)["value"].to_pylist() if one]
    assert {one.pop("more") for one in values} == {None}
    assert len(values) == sum(one["value"] is not None for one in sample.expected().values())


@pytest.mark.parametrize("table_format", ["parquet", "delta", "iceberg"])
def test_dead_letters_go_on(
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
def test_other_rules_are_refused(
    table_format: str, tier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter_copy(table_format, tmp_path, monkeypatch)
    sample = SAMPLES["typed-json"]
    source = sample.source(tier)
    for others in ({"value.mode": "PERMISSIVE"}, {"key.format": "raw"}):
        with pytest.raises(TieredKafkaError, match="begun with other rules"):
            backfill(None, source={**source, **others}, **sample.backfill_arguments(table_format))


def test_a_plan_is_replayed(tmp_path: Path) -> None:
    register_stable_store()
    options = TYPED_PLAN.source(path_of(TYPED_PLAN, tmp_path)) | {"cache": "false"}
    file = tmp_path / "plan.json"
    file.write_text(kts_source.plan(options).to_json())
    expected = []
    for place in (
        expected_table("txn", "read_committed").select(["partition", "offset", "value"]).to_pylist()
    ):
        try:
            value = json.loads(place["value"])
        except (ValueError, TypeError):
            continue
        if value["n"] < 500 and value["t"].startswith("s") and place["offset"] < 1000:
            expected.append((place["partition"], place["offset"], value["n"], value["t"]))
    found = [
        (row["partition"], row["offset"], row["value"]["n"], row["value"]["t"])
        for row in scanned({**options, "planFile": str(file)}).to_pylist()
    ]
    assert len(expected) > 5
    assert found == sorted(expected)
    other = TYPED_PLAN.options["where"].replace("500", "501")
    with pytest.raises(TieredKafkaError, match="where"):
        scanned({**options, "planFile": str(file), "where": other})


def test_schemas_kept_without_a_subject_are_asked_for_again(tier: Path, tmp_path: Path) -> None:
    """An id alone may be of another context. The registry's address does not answer."""
    shutil.copytree(V2 / "schemas", tmp_path / "cache", copy_function=shutil.copyfile)
    source = {**KEPT, "path": tier.as_uri(), "cacheDir": str(tmp_path / "cache")}
    with pytest.raises(RegistryUnavailableError, match=r"/schemas/ids/1\?subject="):
        kts_source.scan(source).to_table()
