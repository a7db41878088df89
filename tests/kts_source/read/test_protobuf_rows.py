"""Tests Protobuf values that the read decodes because of `value.format=protobuf`."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

import kts_source
from kts_source.errors import InvalidOptionError, InvalidValueError
from kts_source.options import parse_options
from tests.kts_source.read.typed_tier import write
from tests.segment_format.values.protobuf.oracle import descriptor_set
from tests.segment_format.values.protobuf.sample import (
    binary,
    decoder_of,
    sample_file,
    sample_value,
)

if TYPE_CHECKING:
    from pathlib import Path

WHOLE = sample_value("proto3")
VALUES: list[bytes | None] = [WHOLE, None, b"", b"\x0a\x02x", b"\x20\x09", b"\x0a\x01\xff"]
"""A complete value, a null, an empty value, a truncated text, an unknown enum number 9, and invalid
UTF-8.
"""
BAD = [3, 5]


def as_protobuf(folder: Path, **options: str) -> dict[str, str]:
    """Writes a descriptor file to `folder`. Returns `options` and the options that use the file."""
    file = folder / "order.desc"
    file.write_bytes(descriptor_set(sample_file("proto3")))
    named = {"value.schema": str(file), "value.message": "s.Order"}
    return {"value.format": "protobuf"} | named | options


@pytest.fixture
def tier(tmp_path: Path) -> dict[str, str]:
    return write(tmp_path / "tier", [VALUES * 5])


def test_protobuf_value_becomes_a_struct(tier: dict[str, str], tmp_path: Path) -> None:
    scan = kts_source.scan(tier | as_protobuf(tmp_path, **{"value.mode": "PERMISSIVE"}))
    table = scan.to_table()
    table.validate(full=True)
    assert table.schema == scan.schema
    decoder = decoder_of("proto3")
    assert table.schema.field("value").type == decoder.type
    decoded = decoder.decode(binary(*VALUES))
    assert [error.row for error in decoded.bad] == BAD
    assert table["value"].to_pylist() == decoded.array.to_pylist() * 5
    first, null, empty, _, unknown = table["value"].to_pylist()[:5]
    assert (first["id"], first["amount"], first["count"]) == ("Zürich", -2.5, 2**64 - 1)
    assert null is None
    assert (empty["id"], empty["state"], empty["note"], empty["main"]) == ("", "NEW", None, None)
    assert unknown["state"] == "9"
    reasons = table["valueError"].to_pylist()[:6]
    assert [n for n, reason in enumerate(reasons) if reason is not None] == BAD
    assert all(reasons[n].startswith("id: ") for n in BAD)


def test_value_columns_select_protobuf_fields(tier: dict[str, str], tmp_path: Path) -> None:
    options = as_protobuf(
        tmp_path, **{"value.columns": "main.prices,amount", "value.mode": "DROPMALFORMED"}
    )
    scan = kts_source.scan(tier | options)
    rows = scan.to_table()["value"].to_pylist()
    assert rows[:2] == [{"amount": -2.5, "main": {"prices": [3, 4]}}, None]
    # The contents of skipped fields are not checked, but a field must end inside the value.
    assert len(rows) == scan.count() == 25


def test_mode_failfast_raises_error_that_names_location_and_field(
    tier: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(InvalidValueError, match=r"\(protobuf\): id: ") as raised:
        kts_source.scan(tier | as_protobuf(tmp_path)).to_table(threads=1)
    assert raised.value.offset == 3


def test_protobuf_confluent_header_is_skipped(tmp_path: Path) -> None:
    head = b"\0\0\0\0\x07"
    # Message s.Order is the second message of its file. Index 0 refers to the first message.
    values: list[bytes | None] = [head + b"\2\2" + WHOLE, None, head + b"\0" + WHOLE, WHOLE]
    options = as_protobuf(
        tmp_path, **{"value.format": "protobuf-confluent", "value.mode": "PERMISSIVE"}
    )
    table = kts_source.scan(write(tmp_path / "tier", [values]) | options).to_table()
    expected = decoder_of("proto3").decode(binary(WHOLE, None, None, None)).array.to_pylist()
    assert table["value"].to_pylist() == expected
    reasons = table["valueError"].to_pylist()
    assert reasons[:2] == [None, None]
    assert reasons[2] == "message index [0], not [1]"
    assert "neither byte 0" in reasons[3]


def test_pickled_scan_needs_no_descriptor_file(tier: dict[str, str], tmp_path: Path) -> None:
    options = as_protobuf(tmp_path, **{"value.mode": "PERMISSIVE"})
    scan = kts_source.scan(tier | options)
    expected = scan.to_table()
    (tmp_path / "order.desc").unlink()
    assert pickle.loads(pickle.dumps(scan)).to_table().equals(expected)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"value.message": "s.Nothing"}, "'value.schema' or 'value.message': .*Nothing"),
        ({"value.columns": "nothing"}, "or 'value.columns': .*nothing"),
    ],
)
def test_unknown_message_or_field_raises_invalid_option_error(
    tmp_path: Path, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(InvalidOptionError, match=reason):
        parse_options({"path": "/x", "subscribe": "t"} | as_protobuf(tmp_path, **options))
