"""Tests exports of decoded keys and values: nested columns, partitions by fields, and dead
letters.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from google.protobuf import descriptor_pb2, duration_pb2
from pyiceberg.catalog import load_catalog

import kts_source
from kts_source.errors import FingerprintError, InvalidOptionError, InvalidValueError
from kts_source.export.transforms import Transformed
from tests.kts_source.export.exporting import FORMATS, Lake
from tests.kts_source.read.typed_tier import as_avro, avro, long, row, text, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BAD = {3: b"\x05", 17: b"", 25: avro(25) + b"x"}


@pytest.fixture
def good(tmp_path: Path) -> dict[str, str]:
    values: list[bytes | None] = [avro(number) for number in range(30)]
    values[4] = None
    return write(tmp_path / "tier", [values, [avro(100)]]) | as_avro()


@pytest.fixture
def damaged(tmp_path: Path) -> dict[str, str]:
    values: list[bytes | None] = [BAD.get(number, avro(number)) for number in range(30)]
    return write(tmp_path / "tier", [values]) | as_avro()


def rows_of(table: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    """Returns a tuple for each row: partition, offset, and the columns in `names`. Sorts by
    partition and offset.
    """
    columns = [table[name].to_pylist() for name in ("partition", "offset", *names)]
    return sorted(zip(*columns, strict=True), key=lambda row_values: row_values[:2])


def select_known_fields(value: dict[str, Any] | None) -> dict[str, Any] | None:
    """Returns `value` with only the fields that `row` contains; returns `None` for a null value."""
    return value and {name: value[name] for name in row(0)}


@pytest.mark.parametrize(
    "partition_by", [(), ("value.country",), ("date(value.at)", "topic", "value.country")]
)
@pytest.mark.parametrize("table_format", FORMATS)
def test_typed_value_is_a_nested_column(
    table_format: str, partition_by: tuple[str, ...], good: dict[str, str], tmp_path: Path
) -> None:
    lake = Lake(tmp_path, table_format)
    report = lake.export(good, partition_by=partition_by)
    assert report.rows == 31
    expected = kts_source.scan(good).to_table()
    table = lake.read()
    names = ("key", "value", "timestamp")
    assert rows_of(table, *names) == rows_of(expected, *names)
    assert [select_known_fields(value) for *_, value in rows_of(table, "value")] == [
        *(None if number == 4 else row(number) for number in range(30)),
        row(100),
    ]
    assert lake.export(good, partition_by=partition_by).rows == 0


@pytest.mark.parametrize("table_format", FORMATS)
def test_partition_by_field_adds_a_column(
    table_format: str, good: dict[str, str], tmp_path: Path
) -> None:
    lake = Lake(tmp_path, table_format)
    lake.export(good, partition_by=["value.country", "date(value.at)"])
    table = lake.read()
    for value, country, day in zip(
        *(table[name].to_pylist() for name in ("value", "value_country", "value_at_date")),
        strict=True,
    ):
        assert country == (value and value["country"])
        if table_format != "parquet":  # partition values in folder names are text
            assert day == (value and value["at"].date())
    folders = {path.name for path in (tmp_path / "table").glob("value_country=*")}
    hive = {f"value_country={name}" for name in ("CH", "DE", "__HIVE_DEFAULT_PARTITION__")}
    assert folders == (hive if table_format == "parquet" else set())


def test_iceberg_scan_prunes_files_by_field_bounds_and_field_partitions(
    good: dict[str, str], tmp_path: Path
) -> None:
    lake = Lake(tmp_path, "iceberg")
    lake.export(good, partition_by=["value.country"])
    catalog = load_catalog("lake", **lake.catalog)
    try:
        table = catalog.load_table(lake.target)
        for condition in ("value_country = 'DE'", "value.country = 'DE'"):
            scan = table.scan(condition)
            assert {task.file.partition[0] for task in scan.plan_files()} == {"DE"}
        assert not list(table.scan("value.amount > 100").plan_files())
        assert {value["country"] for value in scan.to_arrow()["value"].to_pylist()} == {"DE"}
        assert len(scan.to_arrow()) == 10
    finally:
        catalog.close()


@pytest.mark.parametrize("table_format", FORMATS)
def test_files_are_sorted_by_a_field(
    table_format: str, good: dict[str, str], tmp_path: Path
) -> None:
    lake = Lake(tmp_path, table_format)
    lake.export(good, sort_within_files=["value.country", "value.amount"])
    assert rows_of(lake.read(), "value") == rows_of(kts_source.scan(good).to_table(), "value")
    checked = 0
    for path in tmp_path.rglob("*.parquet"):
        values = [value for value in pq.read_table(path)["value"].to_pylist() if value is not None]
        keys = [(value["country"], value["amount"]) for value in values]
        assert keys == sorted(keys)
        checked += len(keys)
    assert checked == 30


def test_parquet_files_and_delta_log_have_statistics_of_fields(
    good: dict[str, str], tmp_path: Path
) -> None:
    lake = Lake(tmp_path, "delta")
    lake.export(good)
    (log,) = (tmp_path / "table" / "_delta_log").glob("*.json")
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    adds = [json.loads(entry["add"]["stats"]) for entry in entries if "add" in entry]
    (table,) = [stats for stats in adds if stats["numRecords"] == 30]
    low, high, nulls = (table[name]["value"] for name in ("minValues", "maxValues", "nullCount"))
    assert (low["country"], high["country"], nulls["country"]) == ("CH", "DE", 1)
    assert (low["amount"], high["amount"], nulls["amount"]) == (0, 29, 1)
    assert low["at"] == "2023-11-14T22:13:20.000Z"
    assert (low["day"], high["day"], nulls["note"]) == ("1970-01-01", "1970-01-30", 16)
    assert "tags" not in nulls
    for path in (tmp_path / "table").rglob("*.parquet"):
        group = pq.ParquetFile(path).metadata.row_group(0)
        columns = {
            group.column(n).path_in_schema: group.column(n) for n in range(group.num_columns)
        }
        assert columns["value.amount"].statistics.has_min_max
        assert columns["value.price"].statistics.has_min_max
        assert columns["value.tags.key_value.value.list.element"].statistics is None


def test_delta_filter_on_a_field_returns_matching_rows(
    good: dict[str, str], tmp_path: Path
) -> None:
    from deltalake import DeltaTable

    lake = Lake(tmp_path, "delta")
    lake.export(good, commit_bytes=1, partition_by=["value.country"])
    dataset = DeltaTable(lake.target).to_pyarrow_dataset()
    table = dataset.to_table(filter=ds.field("value", "amount") > 27)
    assert sorted(value["amount"] for value in table["value"].to_pylist()) == [28, 29, 100]


def test_keys_decoded_as_text_are_exported(tmp_path: Path) -> None:
    options = write(tmp_path / "tier", [[avro(number) for number in range(12)]])
    options |= {"key.format": "utf8", "columns": "key,offset,partition"}
    lake = Lake(tmp_path, "parquet")
    lake.export(options, partition_by=["key"], sort_within_files=["offset"])
    assert [key for *_, key in rows_of(lake.read(), "key")] == [f"k{n}" for n in range(12)]


@pytest.mark.parametrize("table_format", FORMATS)
def test_fields_with_times_beyond_python_datetime_are_written(
    table_format: str, tmp_path: Path
) -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        ],
    }
    far = [(0, 0), (2**63 - 1, 2**31 - 1), (-(2**63), -(2**31))]
    options = write(tmp_path / "tier", [[long(times) + long(day) for times, day in far]])
    options |= {"value.format": "avro", "value.schema": json.dumps(schema)}
    lake = Lake(tmp_path, table_format)
    lake.export(options)
    table = lake.read()["value"].combine_chunks()
    assert sorted(
        zip(
            table.field("at").cast(pa.int64()).to_pylist(),
            table.field("day").cast(pa.int32()).to_pylist(),
            strict=True,
        )
    ) == sorted(far)


def test_malformed_values_fail_the_export_or_are_dropped(
    damaged: dict[str, str], tmp_path: Path
) -> None:
    lake = Lake(tmp_path, "delta")
    with pytest.raises(InvalidValueError) as raised:
        lake.export(damaged)
    assert raised.value.offset == 3
    dropping = damaged | {"value.mode": "DROPMALFORMED"}
    assert lake.export(dropping | {"endingOffsets": '{"orders":{"0":20}}'}).rows == 18
    # Later exports may use another mode, except PERMISSIVE, which writes nulls.
    with pytest.raises(FingerprintError, match="permissive"):
        lake.export(damaged | {"value.mode": "PERMISSIVE"})
    assert lake.export(damaged, dead_letters=str(tmp_path / "letters")).rows == 9
    assert [offset for _, offset in rows_of(lake.read())] == [
        number for number in range(30) if number not in BAD
    ]


@pytest.mark.parametrize("mode", ["FAILFAST", "DROPMALFORMED"])
@pytest.mark.parametrize("table_format", FORMATS)
def test_dead_letters_contain_the_bytes_and_the_reason(
    table_format: str, mode: str, damaged: dict[str, str], tmp_path: Path
) -> None:
    lake = Lake(tmp_path, table_format)
    report = lake.export(damaged | {"value.mode": mode}, dead_letters=str(tmp_path / "letters"))
    assert (report.rows, report.rejected) == (27, 3)
    table = ds.dataset(tmp_path / "letters", format="parquet").to_table()
    reasons = [
        "value: country: a length is negative or exceeds the value",
        "value: country: the value ends too early",
        "value: bytes follow after the end of the value",
    ]
    assert rows_of(table, "topic", "key", "value", "reason") == [
        (0, offset, "orders", b"k%d" % offset, value, reason)
        for (offset, value), reason in zip(BAD.items(), reasons, strict=True)
    ]
    assert [select_known_fields(value) for *_, value in rows_of(lake.read(), "value")] == [
        row(number) for number in range(30) if number not in BAD
    ]


def test_malformed_key_and_value_write_one_dead_letter(tmp_path: Path) -> None:
    options = write(tmp_path / "tier", [[text("x") if n == 10 else avro(n) for n in range(12)]])
    fixed = json.dumps({"type": "fixed", "name": "F", "size": 2})
    options |= as_avro(**{"key.format": "avro", "key.schema": fixed})  # keys are k0 to k11
    lake = Lake(tmp_path, "parquet")
    report = lake.export(options, dead_letters=str(tmp_path / "letters"))
    assert (report.rows, report.rejected) == (10, 2)
    table = ds.dataset(tmp_path / "letters", format="parquet").to_table()
    assert [offset for _, offset in rows_of(table)] == [10, 11]


def test_permissive_mode_exports_malformed_rows_with_a_reason(
    damaged: dict[str, str], tmp_path: Path
) -> None:
    lake = Lake(tmp_path, "iceberg")
    letters = tmp_path / "letters"
    columns = "partition,offset,value,valueError,valueRaw"
    options = damaged | {"value.mode": "PERMISSIVE", "columns": columns}
    assert lake.export(options, dead_letters=str(letters)).rejected == 0
    expected = kts_source.scan(options).to_table()
    names = ("value", "valueError", "valueRaw")
    assert rows_of(lake.read(), *names) == rows_of(expected, *names)
    assert [raw for _, offset, raw in rows_of(lake.read(), "valueRaw") if offset in BAD] == [
        *BAD.values()
    ]
    assert not [path for path in letters.rglob("*") if path.is_file()]


def flat(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A transform of decoded rows. Returns the offset and the field `amount` of the value."""
    amounts = batch.column("value").field("amount")
    return pa.RecordBatch.from_arrays([batch["offset"], amounts], names=["offset", "amount"])


def test_transform_receives_decoded_rows(good: dict[str, str], tmp_path: Path) -> None:
    lake = Lake(tmp_path, "parquet")
    lake.export(good, transform=flat)
    assert sorted(lake.read()["amount"].drop_null().to_pylist())[-2:] == [29, 100]
    with pytest.raises(FingerprintError, match="columns"):
        lake.export(good | {"value.columns": "amount"}, transform=flat)


def test_export_of_typed_columns_into_table_of_bytes_raises(
    good: dict[str, str], tmp_path: Path
) -> None:
    raw = {name: value for name, value in good.items() if not name.startswith("value.")}
    for number, table_format in enumerate(FORMATS):
        folder = tmp_path / str(number)
        folder.mkdir()
        lake = Lake(folder, table_format)
        lake.export(raw)
        for evolution in ("none", "add"):
            with pytest.raises(FingerprintError, match="value: bytes → avro"):
                lake.export(good, schema_evolution=evolution)


def one_field(kind: object) -> str:
    """Returns, as JSON, the Avro schema of a record with one field `a` of type `kind`."""
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]})


def test_export_of_duration_field_raises_only_if_the_field_is_selected(tmp_path: Path) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="d.proto", syntax="proto3")
    file.dependency.append("google/protobuf/duration.proto")
    message = file.message_type.add(name="M")
    kinds = descriptor_pb2.FieldDescriptorProto
    many = message.field.add(name="spans", number=1, type=kinds.TYPE_MESSAGE)
    many.type_name, many.label = ".google.protobuf.Duration", kinds.LABEL_REPEATED
    message.field.add(name="n", number=2, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    duration_file = descriptor_pb2.FileDescriptorProto.FromString(
        duration_pb2.DESCRIPTOR.serialized_pb
    )
    files = descriptor_pb2.FileDescriptorSet(file=[duration_file, file])
    (tmp_path / "d.desc").write_bytes(files.SerializeToString())
    source = write(tmp_path / "tier", [[b"\x10\5", None]]) | {
        "value.format": "protobuf",
        "value.schema": str(tmp_path / "d.desc"),
        "value.message": "M",
    }
    lake = Lake(tmp_path, "delta")
    reason = r"value\.spans\.element is a duration.* option 'value\.columns'"
    with pytest.raises(InvalidOptionError, match=reason):
        lake.export(source)
    assert lake.export(source | {"value.columns": "n"}).rows == 2
    assert lake.read()["value"].to_pylist() == [{"n": 5}, None]


class Unchanged:
    """A `RowTransform` that returns its rows unchanged."""

    fingerprint = "unchanged"

    def apply(self, batch: pa.RecordBatch) -> Transformed:
        return Transformed(batch, ())


def refused() -> Iterator[tuple[dict[str, str], dict[str, Any], str]]:
    empty = {"value.format": "json", "value.schema": "a bigint, s struct<>"}
    keys_alone = {"value.format": "raw", "key.format": "utf8"}
    nothing = {"type": "array", "items": {"type": "map", "values": "null"}}
    yield {}, {"compact": True, "table_format": "delta"}, "compact=True merges keys and values as b"
    yield keys_alone, {"compact": True, "table_format": "iceberg"}, "compact=True merges keys"
    yield {"value.schema": one_field(nothing)}, {}, r"value\.a\.element.* is always null"
    yield {"value.schema": one_field("null"), "value.columns": "a"}, {}, "value.a is always null"
    yield {}, {"transform": Unchanged()}, "Unchanged is a RowTransform"
    yield {}, {"transform": flat, "schema_evolution": "add"}, "with a transform"
    yield {"value.format": "raw"}, {"schema_evolution": "add"}, "decoded keys or values"
    yield {}, {"schema_evolution": "all"}, "schema_evolution must be one of"
    yield {}, {"partition_by": ["value.nothing"]}, "not a column"
    yield {}, {"partition_by": ["value"]}, "a table cannot be partitioned by type"
    yield {}, {"partition_by": ["value.tags"]}, "a table cannot be partitioned by type"
    yield {}, {"sort_within_files": ["value"]}, "name a field"
    yield {}, {"sort_within_files": ["value.nothing"]}, "do not have"
    yield empty, {}, "without fields"
    yield {"value.format": "json", "value.schema": "`a.b` bigint"}, {}, "has the name"


def test_export_of_json_without_a_schema_raises(tmp_path: Path) -> None:
    source = write(tmp_path / "tier", [[b'{"a": 1}']]) | {"value.format": "json"}
    with pytest.raises(InvalidOptionError, match=r"needs option 'value\.schema': `kts schema`"):
        Lake(tmp_path, "parquet").export(source)


@pytest.mark.parametrize(("options", "arguments", "reason"), list(refused()))
def test_error_of_invalid_typed_export_names_the_option(
    options: dict[str, str],
    arguments: dict[str, Any],
    reason: str,
    good: dict[str, str],
    tmp_path: Path,
) -> None:
    table_format = arguments.pop("table_format", "parquet")
    lake = Lake(tmp_path, table_format)
    source = {name: value for name, value in (good | options).items()
              if options.get("value.format") != "raw" or not name.startswith("value.")}  # fmt: skip
    with pytest.raises(InvalidOptionError, match=reason):
        lake.export(source, **arguments)
    assert lake.read().num_rows == 0 if table_format != "parquet" else True
