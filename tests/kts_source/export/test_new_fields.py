"""Tests that fields of values which the schema lacks are reported once, or fail the export."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from kts_source.errors import SchemaChangedError
from tests.kts_source.export.exporting import Lake
from tests.kts_source.read.typed_tier import OLD, SCHEMA, TOPIC, avro, write

if TYPE_CHECKING:
    from pathlib import Path

ADDED = [f"value.{field['name']} (schema id 2)" for field in SCHEMA["fields"][4:]]
TYPES = (
    "id bigint, at struct<day: int>, tags array<struct<n: int>>, more map<string, struct<x: int>>"
)


@pytest.fixture
def avro_topic(tmp_path: Path) -> dict[str, str]:
    """Writes ten values with an earlier schema, then ten with a later one."""
    registry = tmp_path / "schemas"
    registry.mkdir()
    for number, schema in enumerate((OLD, SCHEMA), 1):
        (registry / f"{number}.avsc").write_text(json.dumps(schema))
    values: list[bytes | None] = [b"\0\0\0\0\1" + avro(n, old=True) for n in range(10)]
    values += [b"\0\0\0\0\2" + avro(number) for number in range(10, 20)]
    return write(tmp_path / "tier", [values]) | {
        "value.format": "avro-confluent",
        "value.schema-registry.url": str(registry),
        "value.schema": json.dumps(OLD),
    }


def json_topic(folder: Path, values: list[Any], **options: str) -> dict[str, str]:
    texts: list[bytes | None] = [json.dumps(value).encode() for value in values]
    return write(folder, [texts]) | {
        "value.format": "json",
        "value.schema": TYPES,
        "maxSegmentsPerTask": "1",
        **options,
    }


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and "not in the schema" in record.getMessage()
    ]


def test_new_avro_fields_are_reported_with_the_schema_id(
    avro_topic: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lake = Lake(tmp_path, "delta")
    first = avro_topic | {"endingOffsets": json.dumps({TOPIC: {"0": 10}})}
    assert lake.export(first).new_fields == ()
    assert not warnings(caplog)
    report = lake.export(avro_topic)
    assert list(report.new_fields) == ADDED
    assert report.rows == 10
    assert warnings(caplog) == [
        f"{name} is not in the schema, so it is not written" for name in ADDED
    ]
    assert f"not in the schema, so not written: {ADDED[0]}" in str(report)


def test_new_json_fields_are_reported_once_at_any_depth(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = [
        {"id": 1, "new": {"a": 1}},
        {"id": 2, "at": {"day": 1, "hour": 2}, "new": 3},
        {"id": 3, "tags": [{"n": 1}, {"m": 2}], "more": {"k": {"y": 1}}},
        {"id": 4, "ID": 5, "more": {"unknown key": {"x": 1}}, "tags": None},
    ] * 5
    lake = Lake(tmp_path, "parquet")
    report = lake.export(json_topic(tmp_path / "tier", values))
    expected = ["value.new", "value.at.hour", "value.tags.m", "value.more.y", "value.ID"]
    assert sorted(report.new_fields) == sorted(expected)
    assert len(warnings(caplog)) == len(expected)


def test_export_fails_before_the_commit_if_new_fields_are_not_allowed(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    topic = json_topic(tmp_path / "tier", [{"id": n, "new": n} for n in range(12)])
    with pytest.raises(SchemaChangedError, match=r"fields that the schema lacks: value\.new"):
        lake.export(topic, on_new_fields="fail")
    assert lake.read().num_rows == 0
    # Do what the error advises.
    topic |= {"value.schema": f"{TYPES}, new bigint"}
    report = lake.export(topic, on_new_fields="fail", schema_evolution="add")
    assert (report.rows, report.new_fields) == (12, ())


def test_field_excluded_by_value_columns_is_not_reported_as_new(tmp_path: Path) -> None:
    options = {"value.columns": "id"}
    topic = json_topic(tmp_path / "tier", [{"id": 1, "at": {"day": 1}}], **options)
    assert Lake(tmp_path, "parquet").export(topic).new_fields == ()
