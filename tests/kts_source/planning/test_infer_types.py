"""Checks that a scan without a schema infers the type of JSON values from sampled records."""

from __future__ import annotations

import json
import logging
import pickle
import shutil
from typing import TYPE_CHECKING

import pytest

import kts_source
from kts_source.errors import InvalidOptionError, InvalidValueError
from kts_source.options import parse_any_options, parse_options
from kts_source.planning.infer_types import with_types
from segment_format.values.json.ddl import parse_ddl
from tests.kts_source.read.typed_tier import write

if TYPE_CHECKING:
    from pathlib import Path

JSON = {"value.format": "json"}


def encode_value(number: int, **fields: object) -> bytes:
    return json.dumps({"amount": number, **fields}).encode()


def infer_schema(options: dict[str, str]) -> str:
    (form,) = with_types(parse_any_options(options)).formats
    return form.schema


def test_schema_is_inferred_from_oldest_and_newest_records_of_each_partition(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values: list[bytes | None] = [encode_value(number) for number in range(1800)]
    values[499] = encode_value(0, old=True)
    values[700] = encode_value(0, between=1)  # not in the sample
    values[1300] = encode_value(0, new="x")
    values[1799] = None
    options = write(tmp_path, [values, [encode_value(1, other=[1.5])]]) | JSON
    with caplog.at_level(logging.INFO):
        table = kts_source.scan(options).to_table()
    ddl = "amount bigint, old boolean, new string, other array<double>"
    assert table.schema.field("value").type == parse_ddl(ddl)
    assert f"'value.schema', as 1001 records show it: {ddl}" in caplog.text
    assert table["value"][700].as_py() == {"amount": 0, "old": None, "new": None, "other": None}
    assert table["value"][1799].as_py() is None


def test_pickled_scan_keeps_inferred_schema(tmp_path: Path) -> None:
    options = write(tmp_path, [[encode_value(1)]]) | JSON
    scan = pickle.loads(pickle.dumps(kts_source.scan(options)))
    shutil.rmtree(tmp_path)
    write(tmp_path, [[encode_value(2, later=1)]])
    assert scan.schema.field("value").type == parse_ddl("amount bigint")
    assert scan.select(["value"]).to_table()["value"].to_pylist() == [{"amount": 2}]


def test_schema_is_inferred_only_from_selected_records(tmp_path: Path) -> None:
    options = (
        write(tmp_path, [[encode_value(1), encode_value(2), b'{"amount": "x"}'], [b"[1]"]]) | JSON
    )
    selection = {"assign": '{"orders": [0]}', "endingOffsets": '{"orders": {"0": 2}}'}
    del options["subscribe"]
    assert infer_schema(options | selection) == "amount bigint"
    with pytest.raises(InvalidOptionError, match=r"needs option 'value.schema': amount is an int"):
        infer_schema(options | {"assign": '{"orders": [0]}'})


def test_schema_is_inferred_if_starting_offsets_are_latest(tmp_path: Path) -> None:
    options = write(tmp_path, [[encode_value(1)]]) | JSON | {"startingOffsets": "latest"}
    assert infer_schema(options) == "amount bigint"


def test_schema_is_inferred_from_values_with_confluent_header(tmp_path: Path) -> None:
    values = [
        b"\0\0\0\0\x07" + encode_value(3),
        None,
        b"\0",
        b"{}",
        b"\1" + bytes(16) + encode_value(4),
    ]
    options = write(tmp_path, [values]) | {"value.format": "json-confluent"}
    assert infer_schema(options) == "amount bigint"
    # The keys k0, k1, … are not JSON.
    with pytest.raises(InvalidOptionError, match=r"'key.schema': no type can .*no sample is valid"):
        kts_source.scan(options | {"key.format": "json"})


def test_topic_without_records_requires_schema(tmp_path: Path) -> None:
    options = write(tmp_path, [[encode_value(1)]]) | JSON
    empty = options | {"endingOffsets": '{"orders": {"0": 0}}'}
    with pytest.raises(InvalidOptionError, match="the sample has no record from which"):
        kts_source.scan(empty)
    with pytest.raises(InvalidOptionError, match="all samples are null or empty"):
        kts_source.scan(write(tmp_path / "nulls", [[None, b"{}"]]) | JSON)


def test_value_columns_select_inferred_fields(tmp_path: Path) -> None:
    options = write(tmp_path, [[encode_value(1, user={"id": 1, "name": "x"})]]) | JSON
    table = kts_source.scan(options | {"value.columns": "user.name"}).to_table()
    assert table["value"].to_pylist() == [{"user": {"name": "x"}}]
    with pytest.raises(InvalidOptionError, match=r"'value.schema': there is no field 'x'"):
        kts_source.scan(options | {"value.columns": "x"})


def test_value_of_other_type_than_inferred_raises_invalid_value_error(tmp_path: Path) -> None:
    values: list[bytes | None] = [encode_value(number) for number in range(1200)]
    values[600] = b'{"amount": "x"}'
    options = write(tmp_path, [values]) | JSON
    with pytest.raises(InvalidValueError, match="amount: ") as error:
        kts_source.scan(options).to_table()
    assert error.value.offset == 600


def test_type_of_json_format_without_schema_raises_value_error() -> None:
    (form,) = parse_options({"path": "/x", "subscribe": "t", "value.format": "json"}).formats
    with pytest.raises(ValueError, match=r"needs .value.schema."):
        _ = form.type


def test_condition_on_inferred_fields_filters_rows(tmp_path: Path) -> None:
    options = (
        write(tmp_path, [[encode_value(1), encode_value(2), None, encode_value(3, other="x")]])
        | JSON
    )
    table = kts_source.scan(options).where("value.amount > 1 AND value.other IS NULL").to_table()
    assert table["value"].to_pylist() == [{"amount": 2, "other": None}]
    with pytest.raises(InvalidOptionError, match=r"value\.amount needs option 'value\.schema'"):
        kts_source.scan(options | {"where": "value.amount > 1"})
