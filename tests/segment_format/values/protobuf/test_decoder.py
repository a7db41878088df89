"""Tests column types, bad rows and slices."""

from __future__ import annotations

import datetime
from decimal import Decimal
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from segment_format.values.protobuf.decoder import ProtobufDecoder
from tests.segment_format.values.protobuf.oracle import (
    Oracle,
    Row,
    message_class,
    rows_of,
)
from tests.segment_format.values.protobuf.sample import (
    binary,
    decoder_of,
    sample_file,
    sample_value,
)

if TYPE_CHECKING:
    from segment_format.values.decoded import ValueDecoder

SYNTAXES = ("proto2", "proto3")


def _list_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind, nullable=False))


ITEM_TYPE = pa.struct([("sku", pa.string()), ("prices", _list_of(pa.int32()))])
SAMPLE_TYPE = pa.struct(
    [
        ("id", pa.string()),
        ("amount", pa.float64()),
        ("count", pa.decimal128(20, 0)),
        ("state", pa.string()),
        ("items", _list_of(ITEM_TYPE)),
        ("tags", pa.map_(pa.string(), pa.field("value", ITEM_TYPE, nullable=False))),
        ("at", pa.timestamp("us", tz="UTC")),
        ("took", pa.duration("us")),
        ("note", pa.string()),
        ("by_card", ITEM_TYPE),
        ("by_cash", pa.int64()),
        ("flags", _list_of(pa.bool_())),
        ("states", _list_of(pa.string())),
        ("raw", pa.binary()),
        ("main", ITEM_TYPE),
    ]
)


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_sample_decodes_to_columns(syntax: str) -> None:
    decoder: ValueDecoder = decoder_of(syntax)
    decoded = decoder.decode(binary(sample_value(syntax), None, b""))
    decoded.array.validate(full=True)
    assert not decoded.bad
    assert decoded.array.type == SAMPLE_TYPE
    full, null, empty = decoded.array.to_pylist()
    utc = datetime.UTC
    full["tags"].sort()  # Google's library writes them in its own order
    assert full == {
        "id": "Zürich",
        "amount": -2.5,
        "count": Decimal(2**64 - 1),
        "state": "PAID",
        "items": [
            {"sku": "a", "prices": [1, -1]},
            {"sku": "", "prices": []},
            {"sku": "é", "prices": [2**31 - 1, 7, 7]},
        ],
        "tags": [
            ("", {"sku": "", "prices": []}),
            ("a", {"sku": "aa", "prices": [1, -1]}),
            ("é", {"sku": "éé", "prices": [2**31 - 1, 7, 7]}),
        ],
        "at": datetime.datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=utc),
        "took": datetime.timedelta(seconds=-1, microseconds=-500_000),
        "note": "n",
        "by_card": {"sku": "card", "prices": [5]},
        "by_cash": None,
        "flags": [True, False],
        "states": ["GONE", "NEW"],
        "raw": b"\xff\0",
        "main": {"sku": "" if syntax == "proto3" else None, "prices": [3, 4]},
    }
    assert null is None
    absent = {"id": "", "amount": 0.0, "count": Decimal(0), "state": "NEW", "raw": b""}
    lists: dict[str, Row] = {"items": [], "tags": [], "flags": [], "states": []}
    none = dict.fromkeys(("at", "took", "note", "by_card", "by_cash", "main"))
    if syntax == "proto2":
        absent = dict.fromkeys(absent)
    assert empty == absent | lists | none


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_truncated_or_flipped_values_match_upb(syntax: str) -> None:
    file, data = sample_file(syntax), sample_value(syntax)
    values = [data[:size] for size in range(len(data))]
    for position in range(len(data)):
        values += [
            data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :]
            for bit in range(8)
        ]
    oracle = Oracle(file, "s.Order")
    decoded = decoder_of(syntax).decode(binary(*values))
    decoded.array.validate(full=True)
    expected = [oracle.row(value) for value in values]
    assert rows_of(decoded.array) == expected
    assert [error.row for error in decoded.bad] == [
        row for row, row_expected in enumerate(expected) if row_expected is None
    ]
    assert 100 < len(decoded.bad) < len(values)


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_maps_match_upb(syntax: str) -> None:
    """Compares with the map field as upb decodes it. No value has unknown fields, because upb drops
    map entries with unknown fields.
    """
    entries = b"\x32\x00" + b"\x32\x03\x0a\x01k" + b"\x32\x05\x12\x03\x0a\x01v"
    entries += b"\x32\x08\x0a\x01k\x12\x03\x0a\x01w" + b"\x32\x08\x12\x03\x0a\x01x\x0a\x01j"
    entries += b"\x32\x0b\x12\x03\x0a\x01y\x12\x04\x10\x06\x10\x08"
    decoded = decoder_of(syntax, "tags").decode(binary(entries, b"", entries + entries[:2]))
    decoded.array.validate(full=True)
    for value, row in zip(
        (entries, b"", entries + entries[:2]), rows_of(decoded.array), strict=True
    ):
        tags = message_class(sample_file(syntax), "s.Order").FromString(value).tags
        tags_found = {key: (item["sku"] or "", item["prices"]) for key, item in row["tags"].items()}
        assert tags_found == {key: (item.sku, list(item.prices)) for key, item in tags.items()}


@pytest.mark.parametrize("count", [1, 12, 13, 40, 1000])
def test_map_keeps_last_value_of_each_key(count: int) -> None:
    random = Random(count)
    keys = [
        random.choice((b"", b"a", b"key number", b"k%d" % random.randrange(count)))
        for _ in range(count)
    ]
    value = b"".join(
        b"\x32" + bytes([len(key) + 10]) + b"\x0a" + bytes([len(key)]) + key
        + b"\x12\x06\x0a\x04" + b"%04d" % position
        for position, key in enumerate(keys)
    )  # fmt: skip
    decoded = decoder_of("proto3", "tags.value.sku").decode(binary(b"", value, value))
    decoded.array.validate(full=True)
    expected = {key.decode(): {"sku": f"{position:04}"} for position, key in enumerate(keys)}
    assert [row["tags"] for row in rows_of(decoded.array)] == [{}, expected, expected]


def test_bad_rows_do_not_change_other_rows() -> None:
    random = Random(5)
    good = [sample_value("proto3"), b"", sample_value("proto3")[:40] + b"", b"\x0a\x01a"]
    good = [value for value in good if Oracle(sample_file("proto3"), "s.Order").row(value)]
    values = [random.choice(good) for _ in range(300)]
    before = rows_of(decoder_of("proto3").decode(binary(*values)).array)
    wrong = {
        b"\x0a\x01\xff": ("id", "not valid UTF-8"),
        b"\x0a\x05a": ("id", "a length is invalid or exceeds the value"),
        b"\x2a\x07\x0a\x02aa\x12\x01\x80": (
            "items.prices",
            "packed numbers do not end with their length",
        ),
        b"\x32\x05\x12\x03\x0a\x01\xff": ("tags.value.sku", "not valid UTF-8"),
        b"\x00": ("", "an invalid tag: field number 0, an unknown wire type, or too long"),
        b"\x1a\x00\x18\x80": ("count", "a number is truncated or too long"),
        b"\x3a\x0b\x08" + b"\xff" * 8 + b"\x7f\x10": ("at", "a number is truncated or too long"),
        b"\x3a\x0a\x08" + b"\xff" * 8 + b"\x7f": (
            "at",
            "the time does not fit 64 bits of microseconds",
        ),
        b"\x0c": ("", "a group has no start or no end"),
    }
    rows = sorted(random.sample(range(300), 40))
    chosen = {row: random.choice(list(wrong)) for row in rows}
    for row, value in chosen.items():
        values[row] = sample_value("proto3") + value if value != b"\x0a\x05a" else value
    decoded = decoder_of("proto3").decode(binary(*values))
    decoded.array.validate(full=True)
    after = rows_of(decoded.array)
    assert [error.row for error in decoded.bad] == rows
    for error in decoded.bad:
        path, reason = wrong[chosen[error.row]]
        assert error.reason == reason
        assert path in (error.path, f"{error.path}.seconds", error.path.rpartition(".")[0])
    for row in range(300):
        assert after[row] == (None if row in chosen else before[row])


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("Timestamp", b"\x08\x01\x10\xe8\x07", 1_000_001),
        ("Duration", b"\x08\x02", 2_000_000),
        ("Int64Value", b"\x08\x05", 5),
        ("StringValue", b"\x0a\x01a", "a"),
        ("BoolValue", b"", False),
    ],
)
def test_value_of_a_well_known_type_decodes(name: str, data: bytes, expected: Row) -> None:
    decoder = ProtobufDecoder(b"", f"google.protobuf.{name}")
    decoded = decoder.decode(binary(data, None, b"\x0f", data))
    decoded.array.validate(full=True)
    assert rows_of(decoded.array) == [expected, None, None, expected]
    assert [error.row for error in decoded.bad] == [2]


def test_slices_and_nulls_decode_and_large_binary_input_raises() -> None:
    value = sample_value("proto3")
    decoder = decoder_of("proto3")
    values = binary(*([b"\xff", None] * 9), value, None, value, b"\xff")
    decoded = decoder.decode(values.slice(17, 4))
    assert rows_of(decoded.array) == rows_of(decoder.decode(binary(None, value, None, value)).array)
    for empty in (binary(), values.slice(3, 0), pa.nulls(0, pa.binary())):
        assert decoder.decode(empty).array == pa.array([], decoder.type)
    assert decoder.decode(pa.nulls(3, pa.binary())).array.null_count == 3
    with pytest.raises(TypeError, match=r"pa\.binary"):
        decoder.decode(pa.array([b""], pa.large_binary()))


def test_decode_from_reads_each_message_from_its_start_position() -> None:
    decoder = decoder_of("proto3", "count")
    values = binary(b"xx\x18\x05", b"xx", None, b"xx", b"x\x18\x06")
    starts = np.array([2, 2, 9, 3, -1], np.int32)
    decoded = decoder.decode_from(values, starts, {4: "for a reason"})
    count = [None if row is None else int(row["count"]) for row in decoded.array.to_pylist()]
    assert count == [5, 0, None, None, None]
    assert [(error.row, error.reason) for error in decoded.bad] == [
        (3, "no message begins there"),
        (4, "for a reason"),
    ]
