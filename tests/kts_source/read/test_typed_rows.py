"""Tests keys and values that are decoded during the read: options `key.…` and `value.…`."""

from __future__ import annotations

import json
import logging
import pickle
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import kts_source
from kts_source.errors import InvalidOptionError, InvalidValueError, RegistryError
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.read.task_metrics import read_metrics
from tests.kts_source.read.typed_tier import OLD, SCHEMA, as_avro, avro, row, write
from tests.schema_registry import PASSWORD, USER, Registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BAD = {3: b"\x05", 17: b"", 25: avro(25) + b"x"}
"""Maps the offset of each invalid value in partition 0 to the value."""
REASONS = {
    3: "country: a length is negative or exceeds the value",
    17: "country: the value ends too early",
    25: "bytes follow after the end of the value",
}


@pytest.fixture
def good(tmp_path: Path) -> dict[str, str]:
    values: list[bytes | None] = [avro(number) for number in range(30)]
    values[4] = None
    return write(tmp_path / "tier", [values, [avro(100)]])


@pytest.fixture
def damaged(tmp_path: Path) -> dict[str, str]:
    values: list[bytes | None] = [BAD.get(number, avro(number)) for number in range(30)]
    values[4] = None
    return write(tmp_path / "tier", [values, [avro(100)]])


def select_known_fields(rows: list[dict[str, object]]) -> list[object]:
    """Returns the rows with only the fields that `typed_tier.row` returns."""
    names = row(0)
    return [fields and {name: fields[name] for name in names} for fields in rows]


def test_avro_value_becomes_a_struct(good: dict[str, str]) -> None:
    scan = kts_source.scan(good | as_avro())
    table = scan.to_table()
    assert table.schema == scan.schema
    assert tuple(table.schema.names) == parse_options(good).columns
    assert table.schema.field("value").type.field("at").type == pa.timestamp("us", tz="UTC")
    assert select_known_fields(table["value"].to_pylist()) == [
        *(None if number == 4 else row(number) for number in range(30)),
        row(100),
    ]
    assert table["key"].to_pylist()[:2] == [b"k0", b"k1"]
    assert str(table["value"][0].as_py()["price"]) == "2.56"


def test_avro_columns_select_fields(good: dict[str, str]) -> None:
    options = as_avro(**{"value.columns": "amount, country"})
    table = kts_source.scan(good | options | {"columns": "offset,value"}).to_table()
    assert table.schema.field("value").type.names == ["country", "amount"]
    assert table["value"][7].as_py() == {"country": "CH", "amount": 7}


def test_unselected_columns_are_not_decoded(damaged: dict[str, str]) -> None:
    options = damaged | as_avro()
    assert kts_source.scan(options).count() == 31
    assert kts_source.scan(options).select(["key"]).to_table().num_rows == 31


def test_failfast_error_names_location_and_path(damaged: dict[str, str]) -> None:
    with pytest.raises(InvalidValueError) as raised:
        kts_source.scan(damaged | as_avro(columns="value")).to_table(threads=1)
    error = raised.value
    assert (error.topic, error.partition, error.offset) == ("orders", 0, 3)
    assert REASONS[3] in str(error)
    assert "value.format' (avro)" in str(error)


def test_failfast_returns_the_rows_before_the_malformed_one(damaged: dict[str, str]) -> None:
    scan = kts_source.scan(damaged | as_avro())
    assert select_known_fields(scan.limit(3).to_table()["value"].to_pylist()) == [
        row(0),
        row(1),
        row(2),
    ]
    with pytest.raises(InvalidValueError) as raised:
        scan.limit(4).to_table()
    assert raised.value.offset == 3


@pytest.mark.parametrize(("bad", "offset", "column"), [(5, 5, "value"), (11, 10, "key")])
def test_failfast_error_names_the_first_bad_row_of_any_column(
    bad: int, offset: int, column: str, tmp_path: Path
) -> None:
    values: list[bytes | None] = [avro(number) for number in range(20)]
    values[bad] = b""
    # The keys are k0 to k19.
    fixed = json.dumps({"type": "fixed", "name": "F", "size": 2})
    options = write(tmp_path, [values]) | as_avro(**{"key.format": "avro", "key.schema": fixed})
    with pytest.raises(InvalidValueError, match=f"the {column} does not match") as raised:
        kts_source.scan(options).to_table()
    assert raised.value.offset == offset


def test_permissive_returns_null_and_reason(damaged: dict[str, str]) -> None:
    scan = kts_source.scan(damaged | as_avro(**{"value.mode": "permissive"}))
    table = scan.to_table()
    assert table.schema == scan.schema
    assert table.column_names[-1] == "valueError"
    errors = table["valueError"].to_pylist()
    assert {n: error for n, error in enumerate(errors) if error is not None} == REASONS
    nulls = [n for n, value in enumerate(table["value"].to_pylist()) if value is None]
    assert nulls == [3, 4, 17, 25]
    alone = scan.select(["valueError", "offset"]).to_table()
    assert alone["valueError"].to_pylist() == errors
    assert alone.column_names == ["valueError", "offset"]


@pytest.mark.parametrize("mode", ["PERMISSIVE", "DROPMALFORMED"])
def test_raw_column_returns_bytes(mode: str, damaged: dict[str, str]) -> None:
    options = as_avro(columns="offset,VALUERAW,value", **{"value.mode": mode})
    table = kts_source.scan(damaged | options).to_table()
    assert table.column_names == ["offset", "valueRaw", "value"]
    assert table.schema.field("valueRaw").type == pa.binary()
    raw = [None if n == 4 else BAD.get(n, avro(n)) for n in range(30)]
    if mode == "DROPMALFORMED":
        raw = [content for n, content in enumerate(raw) if n not in BAD]
    assert table["valueRaw"].to_pylist() == [*raw, avro(100)]
    assert select_known_fields(table["value"].drop_null().to_pylist())[-1] == row(100)


def test_raw_column_is_returned_with_the_decoded_column(good: dict[str, str]) -> None:
    table = kts_source.scan(good | as_avro(columns="value,valueRaw")).to_table()
    assert table["valueRaw"].to_pylist()[3:5] == [avro(3), None]
    assert select_known_fields(table["value"].to_pylist())[3:5] == [row(3), None]


def test_scan_of_only_raw_columns_decodes_nothing(damaged: dict[str, str]) -> None:
    options = damaged | as_avro(**{"key.format": "utf8"})
    table = kts_source.scan(options).select(["valueRaw", "keyRaw"]).to_table()
    assert table["valueRaw"][3].as_py() == BAD[3]
    assert table["keyRaw"][3].as_py() == b"k3"
    assert "valueRaw" not in kts_source.scan(options).columns
    with pytest.raises(InvalidOptionError, match="'valueRaw', which is not a column"):
        parse_options(damaged | {"columns": "valueRaw"})


def test_dropmalformed_skips_and_counts_rows(
    damaged: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = damaged | as_avro(**{"value.mode": "DROPMALFORMED"})
    options["metricsPath"] = str(tmp_path / "metrics")
    scan = kts_source.scan(options)
    with caplog.at_level(logging.WARNING):
        table = scan.to_table()
    kept_offsets = [number for number in range(30) if number not in BAD]
    assert table["offset"].to_pylist() == [*kept_offsets, 0]
    assert "rows cannot be decoded and are skipped: " in caplog.text
    assert f"{len(BAD)} rows, offsets {min(BAD)} to {max(BAD)}" in caplog.text
    # The number of rows does not depend on the selected columns.
    assert scan.count() == 28
    assert scan.select(["key"]).to_table().num_rows == 28
    lines = read_metrics(str(tmp_path / "metrics"), {})
    assert sum(task_metrics.malformed for task_metrics in lines) == 9


def test_values_of_several_writer_schemas_are_decoded(tmp_path: Path) -> None:
    folder = tmp_path / "schemas"
    folder.mkdir()
    (folder / "7.avsc").write_text(json.dumps(SCHEMA))
    (folder / "300.avsc").write_text(json.dumps(OLD))
    (folder / "9.json").write_text("{}")
    (folder / "10.avsc").write_text(r'{"type": "enum", "name": "E", "symbols": ["\ud800"]}')

    def framed(schema_id: int, value: bytes) -> bytes:
        return b"\0" + schema_id.to_bytes(4, "big") + value

    values: list[bytes | None] = []
    for number in range(20):
        old = number % 3 == 1
        values.append(framed(300 if old else 7, avro(number, old=old)))
    values += [framed(8, avro(1)), framed(9, avro(1)), avro(1), None, framed(10, b"\0")]
    options = write(tmp_path / "tier", [values]) | {
        "value.format": "avro-confluent",
        "value.schema": json.dumps(SCHEMA),
        "value.schema-registry.url": str(folder),
        "value.mode": "PERMISSIVE",
    }
    table = kts_source.scan(options).to_table()
    rows = [row(number, old=number % 3 == 1) for number in range(20)]
    assert select_known_fields(table["value"].to_pylist()) == [*rows, None, None, None, None, None]
    reasons = table["valueError"].to_pylist()
    assert reasons[:20] == [None] * 20
    assert "the folder has no schema 8" in reasons[20]
    assert "the schema is of type JSON, but Avro is required" in reasons[21]
    assert "neither byte 0" in reasons[22]
    assert reasons[23] is None
    assert "surrogates not allowed" in reasons[24]
    gone = options | {"value.schema-registry.url": str(tmp_path / "gone")}
    with pytest.raises(RegistryError, match="the folder of schemas") as raised:
        kts_source.scan(gone).to_table()
    assert raised.value.topic == "orders"


def test_reason_is_short_for_long_writer_schemas(tmp_path: Path) -> None:
    folder = tmp_path / "schemas"
    folder.mkdir()
    records = [{"type": "record", "name": "n" * 400 + str(n), "fields": []} for n in range(99)]
    field = {"name": "country", "type": records}
    (folder / "7.avsc").write_text(json.dumps({**SCHEMA, "fields": [field]}))
    options = write(tmp_path / "tier", [[b"\0\0\0\0\7\0"]]) | {
        "value.format": "avro-confluent",
        "value.schema": json.dumps(SCHEMA),
        "value.schema-registry.url": str(folder),
    }
    with pytest.raises(InvalidValueError) as raised:
        kts_source.scan(options).to_table()
    assert len(str(raised.value)) < 1000
    table = kts_source.scan(options | {"value.mode": "PERMISSIVE"}).to_table()
    (reason,) = table["valueError"].to_pylist()
    assert reason.startswith("schema 7: field 'country': union of record nnn")
    assert len(reason) <= 300


@pytest.fixture
def registry_server() -> Iterator[Registry]:
    server = Registry({})
    with server.serving():
        yield server


def test_registry_receives_one_request_per_writer_schema(
    registry_server: Registry, tmp_path: Path
) -> None:
    line = {"type": "record", "name": "shop.Line", "fields": [{"name": "n", "type": "int"}]}
    fields = [{"name": "a", "type": "long"}, {"name": "line", "type": "shop.Line"}]
    cart = {"type": "record", "name": "shop.Cart", "fields": fields}
    reference = {"name": "shop.Line", "subject": "line", "version": 3}
    registry_server.documents |= {
        "/schemas/ids/21": {"schema": json.dumps(cart), "references": [reference]},
        "/subjects/line/versions/3": {"schema": json.dumps(line)},
        "/schemas/ids/22": {"schema": json.dumps({**cart, "fields": fields[:1]})},
    }
    whole = {
        **cart,
        "fields": [fields[0], {"name": "line", "type": ["null", line], "default": None}],
    }
    values = [b"\0\0\0\0\x15\x02\x04", b"\0\0\0\0\x16\x06", b"\0\0\0\0\x63\0"] * 8
    user = registry_server.url.replace("://", f"://{USER}:{PASSWORD}@")
    options = write(tmp_path, [[*values]]) | {
        "value.format": "avro-confluent",
        "value.schema": json.dumps(whole),
        "value.schema-registry.url": user,
        "value.mode": "PERMISSIVE",
    }
    scan = kts_source.scan(options)
    for _ in range(2):
        table = scan.to_table(threads=1)
        assert table["value"].to_pylist()[:3] == [
            {"a": 1, "line": {"n": 2}},
            {"a": 3, "line": None},
            None,
        ]
        assert "has no schema at" in table["valueError"][2].as_py()
    assert sorted(registry_server.asked) == [
        "/schemas/ids/21?subject=orders-value",
        "/schemas/ids/22?subject=orders-value",
        "/schemas/ids/99",
        "/schemas/ids/99?subject=orders-value",
        "/subjects/line/versions/3",
    ]
    assert PASSWORD not in repr(scan) + scan.plan.to_json() + repr(scan.task_reader)
    refused = options | {"value.schema-registry.url": registry_server.url}
    with pytest.raises(RegistryError, match="401") as raised:
        kts_source.scan(refused).to_table()
    assert raised.value.partition == 0


def test_utf8_format_returns_text(tmp_path: Path) -> None:
    values = [b"a", "né".encode(), b"\xff", None, b""]
    options = write(tmp_path, [values]) | {"key.format": "utf8", "value.format": "UTF8"}
    with pytest.raises(InvalidValueError, match="not UTF-8") as raised:
        kts_source.scan(options).to_table()
    assert raised.value.offset == 2
    scan = kts_source.scan(options | {"value.mode": "permissive", "where": "value <> 'a'"})
    table = scan.to_table()
    table.validate(full=True)
    assert table["key"].to_pylist() == ["k1", "k2", "k4"]
    assert table["value"].to_pylist() == ["né", None, ""]
    assert table["valueError"].to_pylist() == [None, "text that is not UTF-8", None]


def test_typed_scan_can_be_pickled(good: dict[str, str]) -> None:
    scan = kts_source.scan(good | as_avro())
    again = pickle.loads(pickle.dumps(scan))
    assert again.to_table().equals(scan.to_table())
    # A plan does not contain the value format, so a plan with the option equals one without it.
    plain = kts_source.scan(good)
    typed = json.loads(scan.plan.to_json())
    assert typed == json.loads(plain.plan.to_json())


def test_plan_can_be_replayed_with_or_without_value_format(
    good: dict[str, str], tmp_path: Path
) -> None:
    options = good | as_avro(**{"value.mode": "PERMISSIVE"})
    file = tmp_path / "plan.json"
    file.write_text(plan_scan(parse_options(options)).to_json())
    replayed = {**options, "planFile": str(file)}
    assert kts_source.scan(replayed).to_table().equals(kts_source.scan(options).to_table())
    raw = {**good, "planFile": str(file)}
    assert kts_source.scan(raw).to_table().equals(kts_source.scan(good).to_table())


def test_polars_and_duckdb_can_select_fields_of_a_decoded_value(good: dict[str, str]) -> None:
    pl = pytest.importorskip("polars")
    duckdb = pytest.importorskip("duckdb")
    scan = kts_source.scan(good | as_avro(**{"value.columns": "country,amount"}))
    frame = scan.to_lazy().filter(pl.col("value").struct.field("amount") > 20).collect()
    assert frame["offset"].to_list() == [*range(21, 30), 0]
    orders = scan.to_dataset()  # noqa: F841 - DuckDB finds it by its name
    query = "select value.country, sum(value.amount) from orders where value.amount > 20 group by 1"
    sums: dict[str, int] = {}
    for number in (*range(21, 30), 100):
        country = "CH" if number % 3 else "DE"
        sums[country] = sums.get(country, 0) + number
    assert dict(duckdb.sql(query).fetchall()) == sums
