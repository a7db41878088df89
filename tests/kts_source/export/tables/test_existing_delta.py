"""Tests exports into existing Delta tables. Unsupported tables are refused before any row is
written.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction, create_table_with_add_actions

from kts_source.errors import ExportError, InvalidOptionError, UnsupportedTargetError
from tests.kts_source.export.exporting import Lake
from tests.kts_source.export.tables.rows import by_country, tier_of

if TYPE_CHECKING:
    from pathlib import Path

OFFSET = {"name": "offset", "type": "long", "nullable": True, "metadata": {}}
COUNTRY = {"name": "country", "type": "string", "nullable": True, "metadata": {}}
TEXTS = ["CH", "DE", "CH"]


def begin_table(
    lake: Lake,
    fields: list[dict[str, Any]],
    *,
    partitions: list[str] | None = None,
    properties: dict[str, str] | None = None,
    versions: tuple[int, int] = (1, 2),
    features: list[str] | None = None,
) -> None:
    """Creates an empty Delta table: writes a first log entry with only the protocol and
    metadata.
    """
    protocol: dict[str, Any] = {"minReaderVersion": versions[0], "minWriterVersion": versions[1]}
    if features is not None:
        protocol["writerFeatures"] = features
        if versions[0] == 3:
            protocol["readerFeatures"] = features
    metadata = {
        "id": "8ce1c9e4-1111-4c33-9c1b-000000000000",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": partitions or [],
        "configuration": properties or {},
        "createdTime": 1,
    }
    folder = lake.folder / "table" / "_delta_log"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}.json").write_text(
        f"{json.dumps({'protocol': protocol})}\n{json.dumps({'metaData': metadata})}\n"
    )


def ruled(name: str, value: Any = "1") -> dict[str, Any]:  # noqa: ANN401
    return {**OFFSET, "metadata": {name: value}}


def mapped(field: dict[str, Any], number: int) -> dict[str, Any]:
    names = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"c{number}"}
    return {**field, "metadata": names}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path, "delta")


def export(lake: Lake, **arguments: Any) -> None:  # noqa: ANN401
    source = tier_of(lake.folder / "tier", TEXTS)
    lake.export(source, transform=by_country, **arguments)


def assert_refused(lake: Lake, match: str, kind: type[Exception], **arguments: Any) -> None:  # noqa: ANN401
    before = DeltaTable(lake.target).version()
    with pytest.raises(kind, match=match):
        export(lake, **arguments)
    assert DeltaTable(lake.target).version() == before


@pytest.mark.parametrize(
    ("begun", "match"),
    [
        ({"partitions": ["country"]}, "by country, but the export has partition_by no column"),
        ({"properties": {"delta.constraints.c": "offset > 1"}}, r"constraint \(delta.constraints"),
        (
            {
                "fields": [mapped(OFFSET, 1), mapped(COUNTRY, 2)],
                "properties": {"delta.columnMapping.mode": "name"},
                "versions": (2, 5),
            },
            "column mapping",
        ),
        ({"fields": [ruled("delta.generationExpression"), COUNTRY]}, "rule of column offset"),
        ({"fields": [ruled("delta.invariants"), COUNTRY]}, "rule of column offset"),
        ({"fields": [ruled("delta.identity.start", 1), COUNTRY]}, r"offset \(delta.identity.st"),
        (
            {
                "fields": [
                    OFFSET,
                    COUNTRY,
                    {
                        "name": "deep",
                        "type": {"type": "struct", "fields": [ruled("delta.invariants")]},
                        "nullable": True,
                        "metadata": {},
                    },
                ]
            },
            "rule of column offset",
        ),
        ({"versions": (1, 6)}, "writer version 6"),
        ({"versions": (1, 7), "features": ["rowTracking", "domainMetadata"]}, "domainM.*, rowTra"),
        ({"versions": (1, 7), "features": ["identityColumns"]}, "requires identityColumns"),
        ({"versions": (1, 7), "features": ["inCommitTimestamp"]}, "requires inCommitTimestamp"),
        ({"versions": (1, 7), "features": ["clustering"]}, "requires clustering"),
        (
            {"properties": {"delta.setTransactionRetentionDuration": "interval 1 days"}},
            "deletes txn actions .* = interval 1 days.* Unset the property",
        ),
    ],
)
def test_delta_table_with_unsupported_features_is_refused_before_any_row(
    lake: Lake, begun: dict[str, Any], match: str
) -> None:
    begin_table(lake, begun.pop("fields", [OFFSET, COUNTRY]), **begun)
    assert_refused(lake, match, UnsupportedTargetError)
    assert not list((lake.folder / "table").rglob("*.parquet"))


def test_export_with_other_partition_columns_than_the_table_is_refused(lake: Lake) -> None:
    begin_table(lake, [OFFSET, COUNTRY])
    match = "by no column, but the export has partition_by country"
    assert_refused(lake, match, UnsupportedTargetError, partition_by=["country"])


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ([{**OFFSET, "type": "integer"}, COUNTRY], "offset is integer there and long in the rows"),
        ([OFFSET, {**COUNTRY, "nullable": False}], "country must not be null there"),
        ([OFFSET], "it has no column country"),
        ([OFFSET, {**COUNTRY, "name": "Country"}], "it has no column country"),
        ([OFFSET, COUNTRY, {**COUNTRY, "name": "c", "nullable": False}], "column c must not be"),
    ],
)
def test_table_with_mismatching_columns_raises_error_that_names_them(
    lake: Lake, fields: list[dict[str, Any]], match: str
) -> None:
    begin_table(lake, fields)
    assert_refused(lake, match, ExportError)


@pytest.mark.parametrize(
    "begun",
    [
        {"versions": (3, 7), "features": ["deletionVectors"]},
        {"properties": {"delta.appendOnly": "true"}},
        {"versions": (1, 4), "properties": {"delta.enableChangeDataFeed": "true"}},
        {"versions": (1, 7), "features": ["appendOnly", "invariants", "checkConstraints"]},
    ],
)
def test_table_features_that_do_not_affect_an_export_are_accepted(
    lake: Lake, begun: dict[str, Any]
) -> None:
    extra = {**COUNTRY, "name": "extra"}
    begin_table(lake, [OFFSET, COUNTRY, extra], **begun)
    export(lake)
    table = DeltaTable(lake.target)
    assert pa.table(table.get_add_actions(flatten=True))["num_records"].to_pylist() == [3]
    if "deletionVectors" not in begun.get(
        "features", ()
    ):  # delta-rs does not read tables with this feature
        rows = table.to_pyarrow_table().sort_by("offset")
        assert rows["country"].to_pylist() == TEXTS
        assert rows["extra"].null_count == 3


def test_partition_columns_in_another_order_are_accepted(lake: Lake) -> None:
    day = {**COUNTRY, "name": "day", "type": "date"}
    begin_table(lake, [OFFSET, COUNTRY, day], partitions=["day", "country"])
    source = tier_of(lake.folder / "tier", TEXTS)

    def with_day(batch: pa.RecordBatch) -> pa.RecordBatch:
        days = pa.array(range(batch.num_rows), pa.int32()).cast(pa.date32())
        return by_country(batch).append_column("day", days)

    lake.export(source, partition_by=["country", "day"], transform=with_day)
    table = DeltaTable(lake.target)
    assert table.to_pyarrow_table().sort_by("offset")["country"].to_pylist() == TEXTS
    assert table.metadata().partition_columns == ["day", "country"]


def test_partitioning_by_every_column_is_refused(lake: Lake) -> None:
    with pytest.raises(InvalidOptionError, match="contains all columns"):
        export(lake, partition_by=["country", "offset"])


def test_append_only_delta_table_refuses_compaction(lake: Lake) -> None:
    begin_table(lake, [OFFSET], properties={"delta.appendOnly": "true"})
    with pytest.raises(UnsupportedTargetError, match="accepts only appends"):
        lake.export(tier_of(lake.folder / "tier", TEXTS), compact=True)


def test_unsigned_integer_columns_are_refused(lake: Lake) -> None:
    def unsigned(batch: pa.RecordBatch) -> pa.RecordBatch:
        huge = pa.array([2**64 - 1] * batch.num_rows, pa.uint64())
        return pa.RecordBatch.from_arrays([huge], names=["huge"])

    with pytest.raises(ExportError, match="huge is uint64, and tables have signed"):
        lake.export(tier_of(lake.folder / "tier", TEXTS), transform=unsigned)


def test_delta_transactions_contain_last_updated(lake: Lake) -> None:
    before = time.time_ns() // 1_000_000
    lake.export(tier_of(lake.folder / "tier", TEXTS), compact=True)
    lines = (lake.folder / "table" / "_delta_log" / f"{0:020d}.json").read_text().splitlines()
    transactions = [action["txn"] for action in map(json.loads, lines) if "txn" in action]
    assert {transaction["appId"].rpartition("/")[2] for transaction in transactions} >= {
        "0",
        "start",
        "newest",
        "compact",
    }
    assert all(
        before <= transaction["lastUpdated"] <= time.time_ns() // 1_000_000
        for transaction in transactions
    )


def test_delta_table_with_transaction_retention_is_refused(lake: Lake) -> None:
    export(lake)
    retention = {"delta.setTransactionRetentionDuration": "interval 0 seconds"}
    DeltaTable(lake.target).alter.set_table_properties(retention)
    assert_refused(lake, "Unset the property", ExportError)
    assert DeltaTable(lake.target).to_pyarrow_table().num_rows == len(TEXTS)


def test_delta_table_without_recorded_offsets_is_refused(lake: Lake) -> None:
    export(lake)
    table = DeltaTable(lake.target)
    (row,) = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    schema = table.schema()
    for path in (lake.folder / "table" / "_delta_log").iterdir():
        path.unlink()
    add = AddAction(row["path"], row["size_bytes"], {}, 0, True, json.dumps({"numRecords": 3}))
    create_table_with_add_actions(lake.target, schema, [add])
    assert_refused(lake, "no longer records which offsets", ExportError)


def test_error_of_delta_rs_is_one_line_that_begins_with_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "Kernel error -> Generic S3 error\n   \x1b[31m↳\x1b[0m Error performing GET http://host/x"
        "\n     \x1b[31m↳\x1b[0m client error (Connect)\n       \x1b[31m↳\x1b[0m Connection refused"
    )

    def fail(*_arguments: object, **_options: object) -> None:
        raise OSError(text)

    monkeypatch.setattr("deltalake.DeltaTable", fail)
    with pytest.raises(ExportError) as raised:
        Lake(tmp_path, "delta").table().load()
    assert raised.value.message == (
        "the Delta table cannot be opened: Connection refused (OSError: Kernel error -> Generic S3"
        " error: Error performing GET http://host/x: client error (Connect))"
    )


def test_error_of_delta_rs_has_no_stack_trace(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    log = tmp_path / "table" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text('{"metaData": tru')
    with pytest.raises(
        ExportError, match="the Delta table cannot be opened: DeltaError: "
    ) as raised:
        lake.table().load()
    assert "\n" not in raised.value.message
    assert "0: <unknown>" not in raised.value.message
