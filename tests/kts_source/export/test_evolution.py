"""Tests exports into a table after the value schema gained fields, lost fields, or changed
types.
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

import kts_source
from kts_source.errors import SchemaChangedError
from kts_source.export.row_schema import conform_rows, lacks_fields, unite_schemas
from tests.kts_source.export.exporting import FORMATS, Lake
from tests.kts_source.read.typed_tier import OLD, SCHEMA, TOPIC, row, write, write_two_schemas

if TYPE_CHECKING:
    from pathlib import Path

    from kts_source.export.tables.export_table import Commit, ExportTable

NEW_FIELDS = [field["name"] for field in SCHEMA["fields"][4:]]


@pytest.fixture
def topic(tmp_path: Path) -> dict[str, str]:
    return write_two_schemas(tmp_path)


def of_schema(topic: dict[str, str], schema: dict[str, Any], stop: int = 20) -> dict[str, str]:
    ends = {"endingOffsets": json.dumps({TOPIC: {"0": stop}})}
    return topic | ends | {"value.schema": json.dumps(schema)}


def values_of(lake: Lake) -> list[dict[str, Any]]:
    table = lake.read()
    values = zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True)
    return [value for _, value in sorted(values, key=lambda pair: pair[0])]


def assert_all_fields(lake: Lake) -> None:
    """Asserts that the fields of the later schema are null in the first ten rows and set in the
    last ten.
    """
    values = values_of(lake)
    assert [{name: value[name] for name in row(0)} for value in values[10:]] == [
        row(number) for number in range(10, 20)
    ]
    for number, value in enumerate(values[:10]):
        assert (value["country"], value["amount"]) == (row(number)["country"], number)
        assert [value[name] for name in NEW_FIELDS] == [None] * len(NEW_FIELDS)
    assert len(values) == 20


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_schema_evolution_adds_fields(
    table_format: str, topic: dict[str, str], tmp_path: Path
) -> None:
    lake = Lake(tmp_path, table_format)
    lake.export(of_schema(topic, OLD, 10), partition_by=["value.country"])
    before = values_of(lake)
    with pytest.raises(SchemaChangedError, match=r"schema_evolution='add'") as raised:
        lake.export(of_schema(topic, SCHEMA), partition_by=["value.country"])
    assert "the table lacks value.note, value.tags, " in str(raised.value)
    assert values_of(lake) == before
    add: Any = {"partition_by": ["value.country"], "schema_evolution": "add"}
    assert lake.export(of_schema(topic, SCHEMA), **add).rows == 10
    assert_all_fields(lake)
    assert lake.export(of_schema(topic, SCHEMA), **add).rows == 0


def test_schema_evolution_adds_fields_to_folder(topic: dict[str, str], tmp_path: Path) -> None:
    lake = Lake(tmp_path, "parquet")
    lake.export(of_schema(topic, OLD, 10))
    with pytest.raises(SchemaChangedError, match=r"the table lacks .*value\.note") as raised:
        lake.export(of_schema(topic, SCHEMA))
    assert "the rows lack" not in raised.value.message
    assert lake.export(of_schema(topic, SCHEMA), schema_evolution="add").rows == 10
    # Readers assume that all files have the columns of the first one, unless a schema is given.
    columns = kts_source.scan(of_schema(topic, SCHEMA)).schema
    table = ds.dataset(lake.target, schema=columns).to_table().sort_by("offset")
    assert table["value"].to_pylist()[9]["note"] is None
    assert table["value"].to_pylist()[10]["note"] == "n10"
    assert table.num_rows == 20


@pytest.mark.parametrize("table_format", FORMATS)
def test_removed_fields_become_null(
    table_format: str, topic: dict[str, str], tmp_path: Path
) -> None:
    lake = Lake(tmp_path, table_format)
    lake.export(of_schema(topic, SCHEMA, 10))
    later = of_schema(topic, OLD)
    with pytest.raises(SchemaChangedError, match=r"the rows lack .*value\.note") as raised:
        lake.export(later)
    assert "the table lacks" not in raised.value.message
    assert "on_new_fields='add'" in raised.value.message  # schema_evolution='add' writes nulls
    assert lake.export(later, schema_evolution="add").rows == 10
    values = values_of(lake)
    assert [value["note"] for value in values[10:]] == [None] * 10
    assert [value["amount"] for value in values] == list(range(20))
    # The files contain all columns in the table's order, so readers need no rule for missing
    # fields.
    files = [path for path in lake.folder.rglob("*.parquet") if "checkpoint" not in path.name]
    fields = {tuple(pq.read_schema(path).field("value").type.names) for path in files}
    assert fields == {tuple(field["name"] for field in SCHEMA["fields"])}


def with_field(name: str, kind: Any) -> dict[str, Any]:  # noqa: ANN401
    fields = [
        {**field, "type": kind} if field["name"] == name else field for field in OLD["fields"]
    ]
    return {**OLD, "fields": fields}


@pytest.mark.parametrize("table_format", FORMATS)
def test_error_of_contradicting_schemas_shows_both_schemas(
    table_format: str, topic: dict[str, str], tmp_path: Path
) -> None:
    lake = Lake(tmp_path, table_format)
    lake.export(of_schema(topic, OLD, 10))
    for evolution in ("none", "add"):
        with pytest.raises(SchemaChangedError) as raised:
            lake.export(
                of_schema(topic, with_field("amount", "double")), schema_evolution=evolution
            )
        assert "value.amount is int64 in the table and double in the rows" in str(raised.value)
        assert "The table has struct<country: string, amount: int64" in str(raised.value)
        assert "the rows have struct<country: string, amount: double" in str(raised.value)
    assert len(values_of(lake)) == 10


def test_delta_commits_columns_before_data(
    topic: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path, "delta")
    lake.export(of_schema(topic, OLD, 10))

    def killed(*_: object, **__: object) -> None:
        raise SystemExit

    later = of_schema(topic, SCHEMA)
    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", killed)
        with pytest.raises(SystemExit):
            lake.export(later, schema_evolution="add")
    # The columns exist, but no row was written and no offset recorded.
    between = DeltaTable(lake.target)
    assert between.version() == 1
    assert [value["note"] for value in values_of(lake)] == [None] * 10
    assert lake.export(later, schema_evolution="add").rows == 10
    assert_all_fields(lake)
    entries = [
        [next(iter(json.loads(line))) for line in path.read_text().splitlines()]
        for path in sorted((tmp_path / "table" / "_delta_log").glob("*.json"))
    ]
    assert [("metaData" in entry, "add" in entry) for entry in entries] == [
        (True, True),
        (True, False),
        (False, True),
    ]


def test_delta_supports_times_without_zone(topic: dict[str, str], tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    few = {**OLD, "fields": OLD["fields"][:2]}
    lake.export(of_schema(topic, few, 10))
    lake.export(of_schema(topic, SCHEMA), schema_evolution="add")
    protocol = DeltaTable(lake.target).protocol()
    assert "timestampNtz" in (protocol.writer_features or ())
    assert "timestampNtz" in (protocol.reader_features or ())
    assert [value["local"] is None for value in values_of(lake)] == [True] * 10 + [False] * 10


def test_iceberg_gets_columns_and_files_in_one_commit(
    topic: dict[str, str], tmp_path: Path
) -> None:
    lake = Lake(tmp_path, "iceberg")
    lake.export(of_schema(topic, OLD, 10))
    catalog = load_catalog("lake", **lake.catalog)
    before = catalog.load_table(lake.target).metadata
    lake.export(of_schema(topic, SCHEMA), schema_evolution="add")
    after = catalog.load_table(lake.target).metadata
    catalog.close()
    assert len(after.metadata_log) == len(before.metadata_log) + 1
    assert len(after.schemas) == len(before.schemas) + 1
    assert len(after.snapshots) == len(before.snapshots) + 1


@dataclass
class AfterAnother:
    """Wraps a table. Before its first commit, a second export adds the new columns and commits its
    own rows.
    """

    lake: Lake
    options: dict[str, str]
    table: ExportTable
    is_first: bool = True

    def commit(self, commit: Commit) -> bool:
        if self.is_first:
            self.is_first = False
            other: dict[str, Any] = {"export_id": "other", "second_copy": True}
            self.lake.export(self.options, schema_evolution="add", **other)
        return self.table.commit(commit)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self.table, name)


@pytest.mark.parametrize("table_format", FORMATS)
def test_export_succeeds_after_concurrent_export_added_the_same_columns(
    table_format: str, topic: dict[str, str], tmp_path: Path
) -> None:
    lake = Lake(tmp_path, table_format)
    lake.export(of_schema(topic, OLD, 10))
    later = of_schema(topic, SCHEMA)
    with closing(lake.table(schema_evolution="add")) as table:
        racing: Any = AfterAnother(lake, later, table)
        assert lake.export(later, table=racing, schema_evolution="add").rows == 10
    assert len(values_of(lake)) == 10 + 20 + 10


BASE = pa.struct(
    [("a", pa.int64()), ("l", pa.list_(pa.struct([("x", pa.string())]))),
     ("m", pa.map_(pa.string(), pa.struct([("y", pa.int32())])))]
)  # fmt: skip
MORE = pa.struct(
    [("m", pa.map_(pa.string(), pa.struct([("y", pa.int32()), ("z", pa.bool_())]))),
     ("l", pa.list_(pa.struct([("w", pa.float64()), ("x", pa.string())]))), ("a", pa.int64()),
     pa.field("b", pa.struct([pa.field("c", pa.int32(), nullable=False)]), nullable=False)]
)  # fmt: skip
BOTH = pa.struct(
    [("a", pa.int64()), ("l", pa.list_(pa.struct([("x", pa.string()), ("w", pa.float64())]))),
     ("m", pa.map_(pa.string(), pa.struct([("y", pa.int32()), ("z", pa.bool_())]))),
     ("b", pa.struct([pa.field("c", pa.int32(), nullable=False)]))]
)  # fmt: skip


def schema(kind: pa.DataType) -> pa.Schema:
    return pa.schema([("value", kind), ("offset", pa.int64())])


def test_fields_at_any_depth_are_merged_in_the_order_of_the_table() -> None:
    united = unite_schemas(schema(BASE), schema(MORE), ["value"], "t", evolves=True)
    assert united == schema(BOTH)
    assert united.field("value").type.field("b").nullable
    assert lacks_fields(schema(BASE), united, ["value"])
    assert not lacks_fields(united, united, ["value"])
    assert unite_schemas(united, schema(BASE), ["value"], "t", evolves=True) == united
    assert unite_schemas(schema(BASE), schema(BASE), ["value"], "t", evolves=False) == schema(BASE)
    # Table libraries return the same schema with large types.
    wide = pa.struct(
        [("a", pa.int64()), ("l", pa.large_list(pa.struct([("x", pa.large_string())]))),
         ("m", pa.map_(pa.large_string(), pa.struct([("y", pa.int32())])))]
    )  # fmt: skip
    assert unite_schemas(schema(wide), schema(BASE), ["value"], "t", evolves=False) == schema(BASE)


def test_rows_are_written_with_the_columns_of_the_table() -> None:
    values: list[Any] = [{"a": 1, "l": [{"x": "p"}, None], "m": [("k", {"y": 2})]}, None,
              {"a": None, "l": None, "m": []}]  # fmt: skip
    rows = pa.RecordBatch.from_arrays(
        [pa.array([None, *values], BASE)[1:], pa.array([0, 1, 2])], schema=schema(BASE)
    )
    adapted = conform_rows(rows, schema(BOTH))
    adapted.validate(full=True)
    assert adapted["value"].to_pylist() == [
        {"a": 1, "l": [{"x": "p", "w": None}, None], "m": [("k", {"y": 2, "z": None})], "b": None},
        None,
        {"a": None, "l": None, "m": [], "b": None},
    ]


@pytest.mark.parametrize(
    ("table_type", "row_type", "reason"),
    [
        (pa.int64(), pa.int32(), "value is int64 in the table and int32"),
        (pa.string(), pa.struct([("a", pa.int64())]), "value is string in the table"),
        (pa.struct([("a", pa.int64())]), pa.struct([("A", pa.int64())]), "differ only in case"),
        (pa.decimal128(6, 2), pa.decimal128(6, 3), "decimal128"),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), "timestamp"),
        (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64()), "value.value is"),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), "value.element is int32"),
        (
            pa.struct([pa.field("a", pa.int64(), nullable=False)]),
            pa.struct([("a", pa.int64())]),
            "value.a must not be null in the table, but may",
        ),
        (
            pa.struct([pa.field("a", pa.int64(), nullable=False), ("b", pa.int64())]),
            pa.struct([("b", pa.int64())]),
            "value.a must not be null in the table, but the rows lack it",
        ),
    ],
)
def test_contradicting_schemas_are_refused(
    table_type: pa.DataType, row_type: pa.DataType, reason: str
) -> None:
    for evolves in (False, True):
        with pytest.raises(SchemaChangedError, match=reason):
            unite_schemas(schema(table_type), schema(row_type), ["value"], "t", evolves=evolves)


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_schema_evolution_adds_fields_within_lists_and_maps(
    table_format: str, tmp_path: Path
) -> None:
    first = {"l": [{"x": "p"}, None], "m": {"k": {"y": 2}}, "s": {"t": {"a": 1}}}
    later = {
        "l": [{"x": "q", "w": 1.5}, None],
        "m": {"k": {"y": 2, "z": True}},
        "s": {"t": {"a": 1, "b": [7]}, "u": "v"},
    }
    values: list[bytes | None] = [json.dumps(first).encode()] * 10
    values += [json.dumps(later).encode()] * 10
    topic = write(tmp_path / "tier", [values]) | {"value.format": "json"}
    narrow = (
        "l array<struct<x: string>>, m map<string, struct<y: int>>, s struct<t: struct<a: int>>"
    )
    wide = (
        "l array<struct<x: string, w: double>>, m map<string, struct<y: int, z: boolean>>,"
        " s struct<t: struct<a: int, b: array<int>>, u: string>"
    )
    ends = {"endingOffsets": json.dumps({TOPIC: {"0": 10}})}
    lake = Lake(tmp_path, table_format)
    lake.export(topic | ends | {"value.schema": narrow})
    lake.export(topic | {"value.schema": wide}, schema_evolution="add")
    table_values = values_of(lake)
    assert table_values[0] == {
        "l": [{"x": "p", "w": None}, None],
        "m": [("k", {"y": 2, "z": None})],
        "s": {"t": {"a": 1, "b": None}, "u": None},
    }
    assert table_values[10] == {**later, "m": [("k", {"y": 2, "z": True})]}
    assert lake.export(topic | {"value.schema": wide}).rows == 0
