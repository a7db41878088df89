"""Tests JSON values that the read decodes because of `value.format=json`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import kts_source
from kts_source.errors import InvalidValueError
from kts_source.options import parse_options
from segment_format.values.json.ddl import parse_ddl
from tests.kts_source.read.typed_tier import write

if TYPE_CHECKING:
    from pathlib import Path

DDL = (
    "country string, amount bigint not null, price decimal(6,2), at timestamp,"
    " user struct<id: int, tags: map<string,array<double>>>"
)
BAD: dict[int, tuple[bytes, str]] = {
    3: (b'{"amount": "7"}', "amount: "),
    12: (b"", ""),
    17: (b'{"country": "CH"}', "amount: "),
    25: (b'{"amount": 1} x', ""),
}
"""Maps the offset of each invalid value in partition 0 to the value and to the beginning of the
reason for the error.
"""


def value(number: int) -> bytes:
    """Returns order `number` as JSON."""
    fields = {
        "user": {"tags": {"k": [number / 4]}, "id": number},
        "amount": number,
        "unknown": [{}],
        "price": 2.5,
        "at": f"2024-05-06T07:08:{number % 60:02}Z",
        "country": "CH" if number % 3 else "Dé",
    }
    return json.dumps(fields).encode()


def row(number: int) -> dict[str, object]:
    """Returns order `number` as a row of the table, but with price and time as text."""
    return {
        "country": "CH" if number % 3 else "Dé",
        "amount": number,
        "price": "2.50",
        "at": f"2024-05-06 07:08:{number % 60:02}+00:00",
        "user": {"id": number, "tags": [("k", [number / 4])]},
    }


def as_rows(rows: list[dict[str, object] | None]) -> list[dict[str, object] | None]:
    """Converts price and time of table rows to text, for comparison with the results of `row`."""
    return [
        fields and fields | {name: str(fields[name]) for name in ("price", "at")} for fields in rows
    ]


def as_json(**options: str) -> dict[str, str]:
    """Returns `options` and the options that decode values as JSON orders."""
    return {"value.format": "json", "value.schema": DDL} | options


@pytest.fixture
def damaged(tmp_path: Path) -> dict[str, str]:
    values: list[bytes | None] = [value(number) for number in range(30)]
    for number, (bad, _) in BAD.items():
        values[number] = bad
    values[4], values[5] = None, b" null "
    return write(tmp_path / "tier", [values, [value(100)]])


def test_json_value_becomes_a_struct(tmp_path: Path) -> None:
    values: list[bytes | None] = [value(number) for number in range(30)]
    values[4] = None
    scan = kts_source.scan(write(tmp_path, [values, [value(100)]]) | as_json())
    table = scan.to_table()
    table.validate(full=True)
    assert table.schema == scan.schema
    assert table.schema.field("value").type == parse_ddl(DDL)
    expected = [None if number == 4 else row(number) for number in range(30)]
    assert as_rows(table["value"].to_pylist()) == [*expected, row(100)]


def test_value_columns_select_json_fields(damaged: dict[str, str]) -> None:
    options = as_json(**{"value.columns": "user.id, country", "value.mode": "DROPMALFORMED"})
    table = kts_source.scan(damaged | options).select(["offset", "value"]).to_table()
    assert table["value"].type == parse_ddl("country string, user struct<id: int>")
    # Fields that are not selected may be missing or have the wrong type.
    assert table["offset"].to_pylist() == [n for n in range(30) if n not in (12, 25)] + [0]
    assert table["value"][7].as_py() == {"country": "CH", "user": {"id": 7}}


def test_mode_failfast_raises_error_that_names_location_and_field(damaged: dict[str, str]) -> None:
    expected = r"does not match option 'value\.format' \(json\): amount: "
    with pytest.raises(InvalidValueError, match=expected) as raised:
        kts_source.scan(damaged | as_json(columns="value")).to_table(threads=1)
    assert (raised.value.topic, raised.value.partition, raised.value.offset) == ("orders", 0, 3)


def test_mode_permissive_returns_null_and_reason_for_invalid_values(
    damaged: dict[str, str],
) -> None:
    options = as_json(**{"value.mode": "PERMISSIVE"})
    table = kts_source.scan(damaged | options).to_table()
    reasons = table["valueError"].to_pylist()
    assert [n for n, reason in enumerate(reasons) if reason is not None] == list(BAD)
    for number, (_, named) in BAD.items():
        assert reasons[number].startswith(named)
    nulls = [n for n, value in enumerate(table["value"].to_pylist()) if value is None]
    assert nulls == [3, 4, 5, 12, 17, 25]


def test_mode_dropmalformed_skips_rows_with_invalid_values(damaged: dict[str, str]) -> None:
    scan = kts_source.scan(damaged | as_json(**{"value.mode": "DROPMALFORMED"}))
    assert scan.count() == 27
    assert scan.to_table()["offset"].to_pylist() == [n for n in range(30) if n not in BAD] + [0]


def test_json_schema_can_be_an_array_or_scalar_type(tmp_path: Path) -> None:
    options = write(tmp_path, [[b"[1, 2.0]", b"[]"]]) | as_json(**{"value.schema": "array<bigint>"})
    assert kts_source.scan(options).to_table()["value"].to_pylist() == [[1, 2], []]
    # The keys k0 and k1 are not JSON.
    keys = {"key.format": "json", "key.schema": "string", "key.mode": "PERMISSIVE"}
    table = kts_source.scan(write(tmp_path / "keys", [[b"1"]]) | keys).to_table()
    assert table["key"].to_pylist() == [None]
    assert table["keyError"][0].as_py()


def test_json_confluent_header_is_skipped(tmp_path: Path) -> None:
    values = [b"\0\0\0\0\x07" + value(1), None, value(2), b"\0\0\0\0\x09" + BAD[3][0], b""]
    options = as_json(**{"value.format": "json-confluent", "value.mode": "PERMISSIVE"})
    table = kts_source.scan(write(tmp_path, [values]) | options).to_table()
    assert as_rows(table["value"].to_pylist()) == [row(1), None, None, None, None]
    reasons = table["valueError"].to_pylist()
    assert reasons[:2] == [None, None]
    assert "neither byte 0" in reasons[2]
    assert reasons[3].startswith("amount: ")
    assert "shorter than the 5 bytes" in reasons[4]


def test_json_schema_in_ddl_can_be_option_text_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "order.ddl"
    file.write_text(DDL)
    options = {"path": "/x", "subscribe": "t"}
    of_file = parse_options(options | as_json(**{"value.schema": str(file)})).formats
    assert of_file == parse_options(options | as_json()).formats
