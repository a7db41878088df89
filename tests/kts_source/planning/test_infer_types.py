"""JSON without a schema: a sample tells the type, once, before anything is read."""

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


def value(number: int, **fields: object) -> bytes:
    return json.dumps({"amount": number, **fields}).encode()


def schema_of(options: dict[str, str]) -> str:
    (form,) = with_types(parse_any_options(options)).formats
    return form.schema


def test_the_oldest_and_the_newest_records_of_each_partition_tell(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values: list[bytes | None] = [value(number) for number in range(1800)]
    values[499] = value(0, old=True)
    values[700] = value(0, between=1)  # seen by nobody
    values[1300] = value(0, new="x")
    values[1799] = None
    options = write(tmp_path, [values, [value(1, other=[1.5])]]) | JSON
    with caplog.at_level(logging.INFO):
        table = kts_source.scan(options).to_table()
    ddl = "amount bigint, old boolean, new string, other array<double>"
    assert table.schema.field("value").type == parse_ddl(ddl)
    assert f"'value.schema', as 1001 records show it: {ddl}" in caplog.text
    assert table["value"][700].as_py() == {"amount": 0, "old": None, "new": None, "other": None}
    assert table["value"][1799].as_py() is None


def test_it_is_fixed_in_what_travels(tmp_path: Path) -> None:
    options = write(tmp_path, [[value(1)]]) | JSON
    scan = pickle.loads(pickle.dumps(kts_source.scan(options)))
    shutil.rmtree(tmp_path)
    write(tmp_path, [[value(2, later=1)]])
    assert scan.schema.field("value").type == parse_ddl("amount bigint")
    assert scan.select(["value"]).to_table()["value"].to_pylist() == [{"amount": 2}]


def test_only_what_is_selected_tells(tmp_path: Path) -> None:
    options = write(tmp_path, [[value(1), value(2), b'{"amount": "x"}'], [b"[1]"]]) | JSON
    of_one = {"assign": '{"orders": [0]}', "endingOffsets": '{"orders": {"0": 2}}'}
    del options["subscribe"]
    assert schema_of(options | of_one) == "amount bigint"
    with pytest.raises(InvalidOptionError, match=r"needs option 'value.schema': amount is an int"):
        schema_of(options | {"assign": '{"orders": [0]}'})


def test_a_stream_that_begins_at_the_end(tmp_path: Path) -> None:
    options = write(tmp_path, [[value(1)]]) | JSON | {"startingOffsets": "latest"}
    assert schema_of(options) == "amount bigint"


def test_keys_and_confluents_header(tmp_path: Path) -> None:
    values = [b"\0\0\0\0\x07" + value(3), None, b"\0", b"{}", b"\1" + bytes(16) + value(4)]
    options = write(tmp_path, [values]) | {"value.format": "json-confluent"}
    assert schema_of(options) == "amount bigint"
    # Keys are k0, k1, …
    with pytest.raises(InvalidOptionError, match=r"'key.schema': no type can .*no sample is valid"):
        kts_source.scan(options | {"key.format": "json"})


def test_a_topic_without_records_tells_nothing(tmp_path: Path) -> None:
    options = write(tmp_path, [[value(1)]]) | JSON
    empty = options | {"endingOffsets": '{"orders": {"0": 0}}'}
    with pytest.raises(InvalidOptionError, match=r"needs option .value.schema.: no record shows"):
        kts_source.scan(empty)
    with pytest.raises(InvalidOptionError, match="all samples are null or empty"):
        kts_source.scan(write(tmp_path / "nulls", [[None, b"{}"]]) | JSON)


def test_only_some_fields(tmp_path: Path) -> None:
    options = write(tmp_path, [[value(1, user={"id": 1, "name": "x"})]]) | JSON
    table = kts_source.scan(options | {"value.columns": "user.name"}).to_table()
    assert table["value"].to_pylist() == [{"user": {"name": "x"}}]
    with pytest.raises(InvalidOptionError, match=r"'value.schema': there is no field 'x'"):
        kts_source.scan(options | {"value.columns": "x"})


def test_what_the_sample_did_not_show_is_malformed(tmp_path: Path) -> None:
    values: list[bytes | None] = [value(number) for number in range(1200)]
    values[600] = b'{"amount": "x"}'
    options = write(tmp_path, [values]) | JSON
    with pytest.raises(InvalidValueError, match="amount: ") as raised:
        kts_source.scan(options).to_table()
    assert raised.value.offset == 600


def test_who_asks_for_a_type_too_early_is_told() -> None:
    (form,) = parse_options({"path": "/x", "subscribe": "t", "value.format": "json"}).formats
    with pytest.raises(ValueError, match=r"needs .value.schema. here"):
        _ = form.type


def test_a_condition_on_fields_that_a_sample_told(tmp_path: Path) -> None:
    options = write(tmp_path, [[value(1), value(2), None, value(3, other="x")]]) | JSON
    found = kts_source.scan(options).where("value.amount > 1 AND value.other IS NULL").to_table()
    assert found["value"].to_pylist() == [{"amount": 2, "other": None}]
    with pytest.raises(InvalidOptionError, match=r"value\.amount needs option 'value\.schema'"):
        kts_source.scan(options | {"where": "value.amount > 1"})
