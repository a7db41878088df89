"""Tests that fields of values that the schema lacks are reported, refused or added."""

from __future__ import annotations

import json
import logging
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kts_source.errors import InvalidOptionError, SchemaChangedError
from kts_source.export.new_fields import _new_json_fields, may_have_new_fields
from kts_source.export.task import TaskReport
from kts_source.export.topic_fields import TopicFields
from segment_format.values.json.ddl import parse_ddl
from tests.kts_source.export.exporting import FORMATS, Lake
from tests.kts_source.read.typed_tier import OLD, SCHEMA, TOPIC, row, write, write_two_schemas

if TYPE_CHECKING:
    from pathlib import Path

ADDED = [f"value.{field['name']} (schema id 2)" for field in SCHEMA["fields"][4:]]
TYPES = (
    "id bigint, at struct<day: int>, tags array<struct<n: int>>, more map<string, struct<x: int>>"
)


@pytest.fixture
def avro_topic(tmp_path: Path) -> dict[str, str]:
    return write_two_schemas(tmp_path) | {"value.schema": json.dumps(OLD)}


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
    assert 'kts_export_new_fields{target="' + lake.target + '"} 5\n' in report.to_prometheus()


@pytest.mark.parametrize("first", [0, 1])
def test_new_json_field_of_every_second_record_is_reported(first: int, tmp_path: Path) -> None:
    values = [{"id": n} | ({"new": n} if n % 2 == first else {}) for n in range(200)]
    report = Lake(tmp_path, "parquet").export(json_topic(tmp_path / "tier", values))
    assert report.new_fields == ("value.new",)


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


ADD: dict[str, Any] = {"on_new_fields": "add"}


def values_of(lake: Lake) -> list[dict[str, Any]]:
    """Returns the values of all rows, in the order of offsets."""
    return list(lake.read().sort_by("offset")["value"].to_pylist())


@pytest.mark.parametrize("table_format", FORMATS)
def test_new_json_fields_are_added_in_the_wave_that_finds_them(
    table_format: str, tmp_path: Path
) -> None:
    values: list[Any] = [{"id": n, "at": {"day": n}, "more": {"k": {"x": n}}} for n in range(20)]
    # Only one row has the new fields, so a sample of rows would miss them.
    values[13] |= {"at": {"day": 13, "hour": 7}, "city": "Bern", "more": {"k": {"x": 13, "y": 2.5}}}
    values[13]["list"] = [{"a": 1}]
    lake = Lake(tmp_path, table_format)
    report = lake.export(json_topic(tmp_path / "tier", values), **ADD)
    assert (report.rows, report.rows_read, report.new_fields) == (20, 20, ())
    assert report.added_fields == ("value.at.hour", "value.more.y", "value.city", "value.list")
    rows = values_of(lake)
    assert rows[13]["at"] == {"day": 13, "hour": 7}
    assert (rows[13]["city"], rows[13]["list"]) == ("Bern", [{"a": 1}])
    assert rows[13]["more"] == [("k", {"x": 13, "y": 2.5})]
    assert [row["city"] for number, row in enumerate(rows) if number != 13] == [None] * 19
    assert [row["id"] for row in rows] == list(range(20))


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_later_run_adds_fields_and_writes_fields_added_before(
    table_format: str, tmp_path: Path
) -> None:
    lake = Lake(tmp_path, table_format)
    values: list[Any] = [{"id": n} for n in range(10)]
    values += [{"id": n, "city": f"c{n}"} for n in range(10, 30)]
    topic = json_topic(tmp_path / "tier", values)
    ends = [topic | {"endingOffsets": json.dumps({TOPIC: {"0": stop}})} for stop in (10, 20)]
    assert lake.export(ends[0], **ADD).added_fields == ()
    assert lake.export(ends[1], **ADD).added_fields == ("value.city",)
    assert lake.export(topic, **ADD).added_fields == ()
    assert [row["city"] for row in values_of(lake)] == [None] * 10 + [
        f"c{n}" for n in range(10, 30)
    ]


@pytest.mark.parametrize("table_format", FORMATS)
def test_fields_of_a_new_avro_writer_schema_are_added(
    table_format: str, avro_topic: dict[str, str], tmp_path: Path
) -> None:
    lake = Lake(tmp_path, table_format)
    report = lake.export(avro_topic, **ADD)
    assert (report.rows, list(report.added_fields), report.new_fields) == (20, ADDED, ())
    figures = report.figures()
    assert (figures["new_fields"], figures["added_fields"]) == (0, len(ADDED))
    rows = values_of(lake)
    assert [{name: value[name] for name in row(0)} for value in rows[10:]] == [
        row(number) for number in range(10, 20)
    ]
    assert [value["note"] for value in rows[:10]] == [None] * 10
    assert [value["day"] is None for value in rows] == [True] * 10 + [False] * 10


def test_files_that_tasks_wrote_without_new_fields_are_deleted(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    values = [{"id": n, "new": n} if n % 7 else {"id": "malformed"} for n in range(20)]
    topic = json_topic(tmp_path / "tier", values)
    letters = tmp_path / "letters"
    report = lake.export(topic, **ADD, dead_letters=str(letters))
    assert (report.rows, report.rejected) == (17, 3)
    files = [path for path in (tmp_path / "table").rglob("*.parquet") if path.is_file()]
    assert len(files) == report.files
    assert len([path for path in letters.rglob("*") if path.is_file()]) == 2


@pytest.mark.parametrize(
    ("first", "other", "message"),
    [
        (1, "text", r"value\.new is int64 in some records and string in others"),
        ([1], ["text"], r"value\.new is int64 in some records and string in others"),
    ],
)
def test_new_json_field_with_different_types_is_an_error_that_names_it(
    first: object, other: object, message: str, tmp_path: Path
) -> None:
    lake = Lake(tmp_path, "delta")
    values = [{"id": n, "new": first if n < 10 else other} for n in range(20)]
    with pytest.raises(SchemaChangedError, match=message):
        lake.export(json_topic(tmp_path / "two", values), **ADD)
    values = [{"id": n, "new": first if n % 2 else other} for n in range(10)]
    with pytest.raises(SchemaChangedError, match=r"new is .*; specify a schema in option 'value"):
        lake.export(json_topic(tmp_path / "one", values), **ADD)
    assert lake.read().num_rows == 0


def test_new_field_with_integers_and_fractions_becomes_double(tmp_path: Path) -> None:
    values = [{"id": n, "new": 1 if n < 10 else 1.5} for n in range(20)]
    lake = Lake(tmp_path, "delta")
    lake.export(json_topic(tmp_path / "tier", values), **ADD)
    assert [row["new"] for row in values_of(lake)] == [1.0] * 10 + [1.5] * 10


def test_field_that_is_always_empty_is_reported_and_not_added(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lake = Lake(tmp_path, "delta")
    values: list[Any] = [{"id": n, "empty": [], "null": None, "new": n} for n in range(10)]
    report = lake.export(json_topic(tmp_path / "tier", values), **ADD)
    assert report.added_fields == ("value.new",)
    assert report.new_fields == ("value.empty", "value.null")
    assert len(warnings(caplog)) == 2
    assert "no record shows its type" in warnings(caplog)[0]


def test_more_than_100_new_fields_are_an_error(tmp_path: Path) -> None:
    values = [{"id": n, f"user-{n}": 1} for n in range(110)]
    topic = json_topic(tmp_path / "tier", values, maxSegmentsPerTask="20")
    with pytest.raises(SchemaChangedError, match=r"more than 100 fields .* declare a map"):
        Lake(tmp_path, "parquet").export(topic, **ADD)


@pytest.mark.parametrize("on_new_fields", ["warn", "add"])
def test_empty_value_is_skipped_when_new_fields_are_searched(
    on_new_fields: str, tmp_path: Path
) -> None:
    values: list[bytes | None] = [b'\0\0\0\0\1{"id": 1, "new": 2}', b""]
    topic = write(tmp_path / "tier", [values]) | {
        "value.format": "json-confluent",
        "value.schema": "id bigint",
        "value.mode": "PERMISSIVE",
    }
    lake = Lake(tmp_path, "delta")
    report = lake.export(topic, on_new_fields=on_new_fields)
    assert report.rows == 2
    assert (*report.new_fields, *report.added_fields) == ("value.new",)


def test_new_field_with_a_name_that_delta_rejects_is_an_error(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    topic = json_topic(tmp_path / "tier", [{"id": 1}, {"id": 2, "a b": 1}])
    with pytest.raises(InvalidOptionError, match="has the name 'a b'") as caught:
        lake.export(topic, **ADD)
    assert "value.a b in topic orders, partition 0, offset 1" in str(caught.value)
    # Do what the error advises.
    assert "set on_new_fields='warn' to export without new fields" in str(caught.value)
    assert lake.export(topic, on_new_fields="warn").rows == 2


def test_on_new_fields_add_is_refused_with_selected_or_undecoded_fields(tmp_path: Path) -> None:
    topic = json_topic(tmp_path / "tier", [{"id": 1}])
    for options, message in (
        (topic | {"value.columns": "id"}, "'value.columns' selects some"),
        ({"path": topic["path"], "subscribe": TOPIC}, "needs decoded keys or values"),
    ):
        with pytest.raises(InvalidOptionError, match=message):
            Lake(tmp_path, "delta").export(options, **ADD)


def avro_record(*types: Any) -> dict[str, Any]:  # noqa: ANN401  # any Avro type
    fields = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(types)]
    return {"type": "record", "name": "R", "fields": fields}


def write_avro(
    folder: Path, schemas: list[dict[str, Any]], values: list[bytes | None]
) -> dict[str, str]:
    """Writes values of `schemas`, whose ids start at 1. The first is the schema of the export."""
    registry = folder / "schemas"
    registry.mkdir(parents=True)
    for number, schema in enumerate(schemas, 1):
        (registry / f"{number}.avsc").write_text(json.dumps(schema))
    return write(folder / "tier", [values]) | {
        "value.format": "avro-confluent",
        "value.schema-registry.url": str(registry),
        "value.schema": json.dumps(schemas[0]),
        "maxSegmentsPerTask": "1",
    }


@pytest.mark.parametrize("count", [1, 10], ids=["one-task", "two-tasks"])
def test_new_avro_field_with_different_types_is_an_error_that_names_it(
    count: int, tmp_path: Path
) -> None:
    schemas = [avro_record("int"), avro_record("int", "int"), avro_record("int", "string")]
    values: list[bytes | None] = [b"\0\0\0\0\2\2\4" for _ in range(count)]
    values.append(b"\0\0\0\0\3\2\2x")
    topic = write_avro(tmp_path, schemas, values)
    lake = Lake(tmp_path, "delta")
    with pytest.raises(SchemaChangedError, match=r"value\.f1 is .* on_new_fields='warn'") as caught:
        lake.export(topic | {"value.mode": "PERMISSIVE"}, **ADD)
    if count == 1:
        place = caught.value.topic, caught.value.partition, caught.value.offset
        assert place == (TOPIC, 0, 1)
    else:
        assert "value.f1 (schema id 2) in topic orders, partition 0, offset 0" in str(caught.value)
        assert "value.f1 (schema id 3) in topic orders, partition 0, offset 10" in str(caught.value)
    assert lake.read().num_rows == 0


@pytest.mark.parametrize("count", [1, 10], ids=["one-task", "two-tasks"])
@pytest.mark.parametrize("first", [2, 3])
def test_new_avro_field_gets_the_wider_type_in_any_order(
    first: int, count: int, tmp_path: Path
) -> None:
    schemas = [avro_record("int"), avro_record("int", "int"), avro_record("int", "long")]
    ids = [first] * count + [5 - first]
    values: list[bytes | None] = [bytes([0, 0, 0, 0, number, 2, 4]) for number in ids]
    topic = write_avro(tmp_path, schemas, values)
    lake = Lake(tmp_path, "delta")
    lake.export(topic | {"value.mode": "PERMISSIVE"}, **ADD)
    assert values_of(lake) == [{"f0": 1, "f1": 2}] * len(ids)
    assert lake.read().schema.field("value").type.field("f1").type == pa.int64()


@pytest.mark.parametrize("stop", [10, 20], ids=["two-runs", "two-commits"])
@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("long", b"\4", r"value\.f1 is int32 in the table and int64 in the rows"),
        ("string", b"\2x", r"value\.f1 is int.* string .*offset 10"),
    ],
)
def test_new_avro_field_with_another_type_after_a_commit_is_an_error(
    kind: str, value: bytes, message: str, stop: int, tmp_path: Path
) -> None:
    schemas = [avro_record("int"), avro_record("int", "int"), avro_record("int", kind)]
    values: list[bytes | None] = [b"\0\0\0\0\2\2\4"] * 10
    values += [b"\0\0\0\0\3\2" + value] * 10
    topic = write_avro(tmp_path, schemas, values) | {"value.mode": "PERMISSIVE"}
    lake = Lake(tmp_path, "delta")
    lake.export(topic | {"endingOffsets": json.dumps({TOPIC: {"0": 10}})}, **ADD)
    assert values_of(lake) == [{"f0": 1, "f1": 2}] * 10
    if stop == 20:
        lake = Lake(tmp_path / "other", "delta")
    with pytest.raises(SchemaChangedError, match=message) as caught:
        lake.export(topic, commit_bytes=1, **ADD)
    assert values_of(lake) == [{"f0": 1, "f1": 2}] * 10
    if kind == "long":
        assert "value.f1 (schema id 3) in topic orders, partition 0, offset 10" in str(caught.value)
        # Do what the error advises.
        assert "into another table; if the type differs" in str(caught.value)
        lake = Lake(tmp_path / "advice", "delta")
        schema = json.dumps(avro_record("int", ["null", "long"])).replace(
            '"name": "f1"', '"name": "f1", "default": null'
        )
        lake.export(topic | {"value.schema": schema}, commit_bytes=1, **ADD)
        assert values_of(lake) == [{"f0": 1, "f1": 2}] * 20


@pytest.mark.parametrize(
    ("kinds", "encoded", "expected"),
    [
        (("long", "int"), (b"\4", b"\4"), [2, 2]),
        (
            (
                {"type": "enum", "name": "E", "symbols": ["a", "b"]},
                {"type": "enum", "name": "E", "symbols": ["c", "d", "e"]},
            ),
            (b"\2", b"\2"),
            ["b", "d"],
        ),
        (
            (
                {"type": "record", "name": "F", "fields": [{"name": "x", "type": "int"}]},
                {"type": "record", "name": "F", "fields": [{"name": "y", "type": "int"}]},
            ),
            (b"\2", b"\2"),
            [{"x": 1, "y": None}, {"x": None, "y": 1}],
        ),
        (
            ({"type": "array", "items": "int"}, {"type": "array", "items": ["null", "int"]}),
            (b"\2\2\0", b"\2\0\0"),
            [[1], [None]],
        ),
    ],
    ids=["number", "enum", "record", "items"],
)
def test_new_avro_field_with_a_compatible_type_after_a_commit_is_read(
    kinds: tuple[object, object],
    encoded: tuple[bytes, bytes],
    expected: list[Any],
    tmp_path: Path,
) -> None:
    schemas = [avro_record("int"), *map(avro_record, ("int", "int"), kinds)]
    values: list[bytes | None] = [b"\0\0\0\0\2\2" + encoded[0]] * 10
    values += [b"\0\0\0\0\3\2" + encoded[1]] * 10
    topic = write_avro(tmp_path, schemas, values) | {"value.mode": "PERMISSIVE"}
    lake = Lake(tmp_path, "delta")
    assert lake.export(topic, commit_bytes=1, **ADD).commits == 2
    rows = [value["f1"] for value in values_of(lake)]
    assert rows == [expected[0]] * 10 + [expected[1]] * 10


def test_new_avro_field_of_a_type_that_has_changed_is_an_error(tmp_path: Path) -> None:
    def address(*types: str) -> dict[str, Any]:
        return avro_record(*types) | {"name": "Address"}

    schemas = [avro_record(address("int")), avro_record(address("int", "int"), "Address")]
    topic = write_avro(tmp_path, schemas, [b"\0\0\0\0\1\2", b"\0\0\0\0\2\2\4\6\10"])
    message = r"different types named Address.* on_new_fields='warn'.*topic orders, .*offset 1"
    lake = Lake(tmp_path, "delta")
    with pytest.raises(SchemaChangedError, match=message):
        lake.export(topic, **ADD)
    assert lake.export(topic, on_new_fields="warn").rows == 2


def test_new_avro_fields_of_many_schema_ids_are_counted_once(tmp_path: Path) -> None:
    schemas = [avro_record("int")] + [avro_record("int", *["int"] * 30)] * 4
    values: list[bytes | None] = [bytes([0, 0, 0, 0, number, *[2] * 31]) for number in range(2, 6)]
    report = Lake(tmp_path, "parquet").export(write_avro(tmp_path, schemas, values), **ADD)
    assert report.added_fields == tuple(f"value.f{n} (schema id 2)" for n in range(1, 31))


def test_task_report_with_new_schemas_survives_a_round_trip() -> None:
    report = TaskReport(
        number=1,
        new_fields={"value.a": "offset 1"},
        new_schemas={"value": "a bigint"},
        topic_fields=(TopicFields("value", TOPIC, 20, has_known=False, names=("a",)),),
    )
    assert TaskReport.from_text(report.to_text()) == report


NAMES = st.sampled_from(["id", "at", "day", "tags", "n", "more", "k", "x", "new"])
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)


@given(st.lists(st.none() | st.dictionaries(NAMES, DOCUMENTS, max_size=4) | DOCUMENTS, max_size=5))
@example([{"id": 1, "at": {"day": 2}, "tags": [{"n": 1}], "more": {"any": {"x": 1}}}])
@example([{"more": {"any": {"y": None}}}])
@example([{"tags": [[], {"m": []}]}])
@example([None, {"id": 1 << 70}, {"ID": 1}])
def test_arrow_check_finds_every_document_with_new_fields(values: list[Any]) -> None:
    texts = pa.array([None if v is None else json.dumps(v, indent=1).encode() for v in values])
    kind = parse_ddl(TYPES)
    expected = any(True for value in values for _ in _new_json_fields(value, kind, "value"))
    assert may_have_new_fields(texts.cast(pa.binary()), kind) or not expected


def test_arrow_check_finds_nothing_in_values_without_new_fields() -> None:
    value = {"id": 1, "at": {"day": 2}, "tags": [{"n": 1}], "more": {"a": {"x": 1}, "b": None}}
    texts = pa.array([json.dumps(value, indent=1).encode(), None, b"{}"], pa.binary())
    assert not may_have_new_fields(texts, parse_ddl(TYPES))
    assert not may_have_new_fields(texts.slice(1, 1), parse_ddl(TYPES))


def test_arrow_check_finds_new_fields_between_parts_of_an_invalid_value() -> None:
    chance = random.Random(34)
    kind = parse_ddl(TYPES)
    for _ in range(200):
        text = json.dumps({"id": 1, "tags": [{"n": 1}, {"n": 2}], "more": {"a": {"x": 1}}})
        cut = chance.randrange(1, len(text))
        documents = [{"id": n} | chance.choice([{}, {"new": n}]) for n in range(2)]
        values = [text[:cut].encode(), *(json.dumps(d).encode() for d in documents)]
        values.append(
            chance.choice([text[cut:], f"{text[cut:]} {{}}", f"{text[cut:]} {{}} {{}}"]).encode()
        )
        expected = any("new" in document for document in documents)
        assert may_have_new_fields(pa.array(values, pa.binary()), kind) or not expected, values


UNDECODABLE = [
    b'{"id": 1, "\xff": 2}',
    b'{"id": 1, "at": {"\xff": 2}}',
    b'{"id": 1, "\\ud800": 2}',
    b'{"id": 1, "new": NaN}',
    b'\xef\xbb\xbf{"id": 1, "new": 2}',
    '{"id": 1, "new": 2}'.encode("utf-16"),
]


@pytest.mark.parametrize("on_new_fields", ["warn", "fail", "add"])
@pytest.mark.parametrize("value", UNDECODABLE)
def test_fields_of_values_that_cannot_be_decoded_are_not_new(
    value: bytes, on_new_fields: str, tmp_path: Path
) -> None:
    topic = write(tmp_path, [[b'{"id": 0}', value]])
    options = topic | {"value.format": "json", "value.schema": TYPES, "value.mode": "PERMISSIVE"}
    lake = Lake(tmp_path, "parquet")
    report = lake.export(options, on_new_fields=on_new_fields)
    assert (report.rows, report.new_fields, report.added_fields) == (2, (), ())
    assert values_of(lake)[1] is None
