"""Types, selections, bad rows and bounds."""

from __future__ import annotations

import datetime
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, struct_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from segment_format.values.protobuf import memory
from segment_format.values.protobuf.columns import Selection, selection_of
from segment_format.values.protobuf.decoder import ProtobufDecoder
from segment_format.values.protobuf.message_index import write_message_index
from tests.segment_format.values.protobuf.generated import Writer, random_file
from tests.segment_format.values.protobuf.oracle import (
    Oracle,
    Row,
    descriptor_set,
    message_class,
    rows_of,
)
from tests.segment_format.values.protobuf.sample import sample_file, sample_value

if TYPE_CHECKING:
    from segment_format.values.decoded import ValueDecoder

SYNTAXES = ("proto2", "proto3")


def decoder_of(syntax: str, *columns: str) -> ProtobufDecoder:
    return ProtobufDecoder(descriptor_set(sample_file(syntax)), "s.Order", columns or None)


def binary(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_columns_of_a_sample(syntax: str) -> None:
    decoder: ValueDecoder = decoder_of(syntax)
    decoded = decoder.decode(binary(sample_value(syntax), None, b""))
    decoded.array.validate(full=True)
    assert not decoded.bad
    element = pa.field("element", pa.int32(), nullable=False)
    item = pa.struct([("sku", pa.string()), ("prices", pa.list_(element))])
    assert decoded.array.type == pa.struct(
        [
            ("id", pa.string()),
            ("amount", pa.float64()),
            ("count", pa.decimal128(20, 0)),
            ("state", pa.string()),
            ("items", pa.list_(pa.field("element", item, nullable=False))),
            ("tags", pa.map_(pa.string(), pa.field("value", item, nullable=False))),
            ("at", pa.timestamp("us", tz="UTC")),
            ("took", pa.duration("us")),
            ("note", pa.string()),
            ("by_card", item),
            ("by_cash", pa.int64()),
            ("flags", pa.list_(pa.field("element", pa.bool_(), nullable=False))),
            ("states", pa.list_(pa.field("element", pa.string(), nullable=False))),
            ("raw", pa.binary()),
            ("main", item),
        ]
    )
    full, null, empty = decoded.array.to_pylist()
    utc = datetime.UTC
    full["tags"].sort()  # Google's library writes them in an order of its own
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
def test_each_truncation_and_flip_is_what_upb_says(syntax: str) -> None:
    file, data = sample_file(syntax), sample_value(syntax)
    values = [data[:size] for size in range(len(data))]
    for at in range(len(data)):
        values += [data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :] for bit in range(8)]
    oracle = Oracle(file, "s.Order")
    decoded = decoder_of(syntax).decode(binary(*values))
    decoded.array.validate(full=True)
    expected = [oracle.row(value) for value in values]
    assert rows_of(decoded.array) == expected
    assert [each.row for each in decoded.bad] == [
        row for row, wanted in enumerate(expected) if wanted is None
    ]
    assert 100 < len(decoded.bad) < len(values)


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_maps_are_those_of_upb(syntax: str) -> None:
    """Of values without unknown fields in entries, upb reads maps as maps."""
    entries = b"\x32\x00" + b"\x32\x03\x0a\x01k" + b"\x32\x05\x12\x03\x0a\x01v"
    entries += b"\x32\x08\x0a\x01k\x12\x03\x0a\x01w" + b"\x32\x08\x12\x03\x0a\x01x\x0a\x01j"
    entries += b"\x32\x0b\x12\x03\x0a\x01y\x12\x04\x10\x06\x10\x08"
    decoded = decoder_of(syntax, "tags").decode(binary(entries, b"", entries + entries[:2]))
    decoded.array.validate(full=True)
    for value, row in zip(
        (entries, b"", entries + entries[:2]), rows_of(decoded.array), strict=True
    ):
        tags = message_class(sample_file(syntax), "s.Order").FromString(value).tags
        found = {key: (item["sku"] or "", item["prices"]) for key, item in row["tags"].items()}
        assert found == {key: (item.sku, list(item.prices)) for key, item in tags.items()}


@pytest.mark.parametrize("count", [1, 12, 13, 40, 1000])
def test_a_map_keeps_the_last_of_each_key(count: int) -> None:
    random = Random(count)
    keys = [
        random.choice((b"", b"a", b"key number", b"k%d" % random.randrange(count)))
        for _ in range(count)
    ]
    value = b"".join(
        b"\x32" + bytes([len(key) + 10]) + b"\x0a" + bytes([len(key)]) + key
        + b"\x12\x06\x0a\x04" + b"%04d" % at
        for at, key in enumerate(keys)
    )  # fmt: skip
    decoded = decoder_of("proto3", "tags.value.sku").decode(binary(b"", value, value))
    decoded.array.validate(full=True)
    expected = {key.decode(): {"sku": f"{at:04}"} for at, key in enumerate(keys)}
    assert [row["tags"] for row in rows_of(decoded.array)] == [{}, expected, expected]


def test_bad_rows_do_not_touch_others_and_are_named() -> None:
    random = Random(5)
    good = [sample_value("proto3"), b"", sample_value("proto3")[:40] + b"", b"\x0a\x01a"]
    good = [value for value in good if Oracle(sample_file("proto3"), "s.Order").row(value)]
    values = [random.choice(good) for _ in range(300)]
    before = rows_of(decoder_of("proto3").decode(binary(*values)).array)
    wrong = {
        b"\x0a\x01\xff": ("id", "not valid UTF-8"),
        b"\x0a\x05a": ("id", "a length that goes beyond the end, or is none"),
        b"\x2a\x07\x0a\x02aa\x12\x01\x80": (
            "items.prices",
            "packed numbers that do not end with their length",
        ),
        b"\x32\x05\x12\x03\x0a\x01\xff": ("tags.value.sku", "not valid UTF-8"),
        b"\x00": ("", "no valid tag: a field number of 0, an unknown wire type, or too long"),
        b"\x1a\x00\x18\x80": ("count", "a number that does not end in time"),
        b"\x3a\x0b\x08" + b"\xff" * 8 + b"\x7f\x10": ("at", "a number that does not end in time"),
        b"\x3a\x0a\x08" + b"\xff" * 8 + b"\x7f": (
            "at",
            "a time beyond what 64 bits of microseconds hold",
        ),
        b"\x0c": ("", "a group without its begin or end"),
    }
    rows = sorted(random.sample(range(300), 40))
    chosen = {row: random.choice(list(wrong)) for row in rows}
    for row, value in chosen.items():
        values[row] = sample_value("proto3") + value if value != b"\x0a\x05a" else value
    decoded = decoder_of("proto3").decode(binary(*values))
    decoded.array.validate(full=True)
    after = rows_of(decoded.array)
    assert [each.row for each in decoded.bad] == rows
    for each in decoded.bad:
        path, reason = wrong[chosen[each.row]]
        assert each.reason == reason
        assert path in (each.path, f"{each.path}.seconds", each.path.rpartition(".")[0])
    for row in range(300):
        assert after[row] == (None if row in chosen else before[row])


def paths_of(kind: pa.DataType, prefix: str = "") -> list[str]:
    if pa.types.is_list(kind):
        return paths_of(kind.value_type, prefix)
    if pa.types.is_map(kind):
        return [f"{prefix}value", *paths_of(kind.item_type, f"{prefix}value.")]
    paths = []
    for field in kind if pa.types.is_struct(kind) else ():
        paths.append(prefix + field.name)
        paths += paths_of(field.type, f"{prefix}{field.name}.")
    return paths


def selected(row: Row, kind: pa.DataType, selection: Selection | None) -> Row:
    if row is None or selection is None:
        return row
    if pa.types.is_list(kind):
        return [selected(each, kind.value_type, selection) for each in row]
    if pa.types.is_map(kind):
        below = selection.get("value")
        return {key: selected(each, kind.item_type, below) for key, each in row.items()}
    return {
        field.name: selected(row[field.name], field.type, selection[field.name])
        for field in kind
        if field.name in selection
    }


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32 - 1))
def test_a_selection_is_all_and_then_that_part(seed: int) -> None:
    random = Random(seed)
    file = random_file(random)
    everything = ProtobufDecoder(descriptor_set(file), "t.Top")
    paths = paths_of(everything.type)
    chosen = random.sample(paths, random.randrange(len(paths) + 1))
    part = ProtobufDecoder(descriptor_set(file), "t.Top", chosen)
    writer = Writer(file, random, faults=0.02)
    values = binary(*(writer.value() for _ in range(20)))
    whole = everything.decode(values)
    few = part.decode(values)
    few.array.validate(full=True)
    assert few.array.type == part.type
    assert {each.row for each in few.bad} <= {each.row for each in whole.bad}
    selection = selection_of(chosen)
    for row, (all_of, found) in enumerate(
        zip(rows_of(whole.array), rows_of(few.array), strict=True)
    ):
        if all_of is not None:
            assert found == selected(all_of, everything.type, selection), (row, chosen)


def test_fields_are_chosen_in_the_messages_order() -> None:
    assert [field.name for field in decoder_of("proto3", "state", "id").type] == ["id", "state"]
    assert decoder_of("proto3", "main.sku").type == pa.struct(
        [("main", pa.struct([("sku", pa.string())]))]
    )
    assert decoder_of("proto3", "main.sku", "main").type == decoder_of("proto3", "main").type


def test_a_member_of_a_oneof_that_is_not_wanted_clears_the_wanted() -> None:
    decoder = decoder_of("proto3", "by_cash")
    card = b"\x52\x03\x0a\x01c"
    values = binary(b"\x58\x05", b"\x58\x05" + card, card + b"\x58\x05", b"\x58\x05\x50\x01")
    assert decoder.decode(values).array.field(0).to_pylist() == [5, None, 5, 5]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (("nope",), "s.Order has no field nope; it has amount, "),
        (("main.nope",), "s.Order.main has no field nope; it has prices, sku"),
        (("id.x",), "s.Order.id has no fields to choose"),
        (("at.seconds",), "s.Order.at is a google.protobuf.Timestamp, which has no fields"),
        (("tags.sku",), "s.Order.tags has no field sku; it has key, value"),
    ],
)
def test_what_is_no_field_is_refused(columns: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decoder_of("proto3", *columns)


def test_recursion_is_refused_by_name_unless_it_is_not_wanted() -> None:
    file = descriptor_pb2.FileDescriptorProto()
    struct_pb2.DESCRIPTOR.CopyToProto(file)
    with pytest.raises(ValueError, match=r"message google\.protobuf\.Struct contains itself"):
        ProtobufDecoder(descriptor_set(file), "google.protobuf.Struct")
    decoder = ProtobufDecoder(
        descriptor_set(file), "google.protobuf.Value", ["string_value", "number_value"]
    )
    values = [struct_pb2.Value(string_value="a"), struct_pb2.Value(number_value=2)]
    values.append(struct_pb2.Value(struct_value=struct_pb2.Struct()))
    decoded = decoder.decode(binary(*(value.SerializeToString() for value in values)))
    assert decoded.array.to_pylist() == [
        {"number_value": None, "string_value": "a"},
        {"number_value": 2.0, "string_value": None},
        {"number_value": None, "string_value": None},
    ]


def test_types_that_are_missing_are_named() -> None:
    data = descriptor_set(sample_file("proto3"))
    with pytest.raises(ValueError, match=r"message s\.Nope is not in the descriptor set"):
        ProtobufDecoder(data, "s.Nope")
    file = sample_file("proto3")
    del file.message_type[0]
    with pytest.raises(ValueError, match=r"s\.Order\.items: message s\.Item is not in"):
        ProtobufDecoder(descriptor_set(file), "s.Order")


def test_too_many_columns_are_refused() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="w.proto", syntax="proto3")
    file.message_type.add(name="M0").field.add(name="x", number=1, type=5, label=1)
    for level in range(1, 40):
        message = file.message_type.add(name=f"M{level}")
        for number in (1, 2):
            message.field.add(
                name=f"f{number}", number=number, type=11, label=1, type_name=f".M{level - 1}"
            )
    with pytest.raises(ValueError, match="more than 20000 columns"):
        ProtobufDecoder(descriptor_set(file), "M39")


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
def test_a_well_known_type_may_be_the_value(name: str, data: bytes, expected: Row) -> None:
    decoder = ProtobufDecoder(b"", f"google.protobuf.{name}")
    decoded = decoder.decode(binary(data, None, b"\x0f", data))
    decoded.array.validate(full=True)
    assert rows_of(decoded.array) == [expected, None, None, expected]
    assert [each.row for each in decoded.bad] == [2]


def test_values_may_be_a_slice_and_none_and_of_no_other_type() -> None:
    value = sample_value("proto3")
    decoder = decoder_of("proto3")
    values = binary(*([b"\xff", None] * 9), value, None, value, b"\xff")
    decoded = decoder.decode(values.slice(17, 4))
    assert rows_of(decoded.array) == rows_of(decoder.decode(binary(None, value, None, value)).array)
    for empty in (binary(), values.slice(3, 0), pa.nulls(0, pa.binary())):
        assert decoder.decode(empty).array == pa.array([], decoder.type)
    assert decoder.decode(pa.nulls(3, pa.binary())).array.null_count == 3
    with pytest.raises(ValueError, match=r"pa\.binary"):
        decoder.decode(pa.array([b""], pa.large_binary()))


def test_framed_values_are_those_behind_their_message_index() -> None:
    decoder = decoder_of("proto3")
    assert decoder.message_index == (1,)
    value = sample_value("proto3")
    head, index = b"\0\0\0\0\7", write_message_index((1,))
    values = binary(
        *(head + index + value, None, head + b"\0" + value, head + b"\x82\0\2" + value),
        *(head, head + index, head + b"\4\0\2"),
    )
    decoded = decoder.decode_framed(values, 5)
    (good,) = rows_of(decoder.decode(binary(value)).array)
    (empty,) = rows_of(decoder.decode(binary(b"")).array)
    assert rows_of(decoded.array) == [good, None, None, good, None, empty, None]
    assert [(each.row, each.path, each.reason) for each in decoded.bad] == [
        (2, "", "a message of index [0], not [1]"),
        (4, "", "no message index behind 5 bytes: no whole number at byte 5"),
        (6, "", "a message of index [0, 1], not [1]"),
    ]


def test_memory_is_bounded_and_the_row_that_takes_too_much_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "_MOST_BYTES", 100_000)
    monkeypatch.setattr(memory, "_BYTES_PER_BYTE", 2)
    values = binary(b"\x2a\x00", b"\x2a\x00" * 50_000, b"\x0a\x01a", b"\x2a\x00\x2a\x00")
    decoded = decoder_of("proto3").decode(values)
    decoded.array.validate(full=True)
    (bad,) = decoded.bad
    assert (bad.row, bad.path) == (1, "items")
    assert "too much memory" in bad.reason
    rows = decoded.array.to_pylist()
    assert rows[1] is None
    assert [rows[0]["items"], rows[2]["id"], rows[3]["items"]] == [
        [{"sku": "", "prices": []}],
        "a",
        [{"sku": "", "prices": []}] * 2,
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a\xff\xff\xff\xff\x07",
        b"\x0a\xff\xff\xff\xff\x0f",
        b"\x62\xff\xff\xff\xff\x07" + b"\x01" * 100,
        b"\x0a" + b"\xff" * 9 + b"\x7f",
        b"\x2a\xff\xff\xff\xff\x07\x0a\xff\xff\xff\xff\x07",
    ],
)
def test_lengths_in_the_data_take_no_memory(data: bytes) -> None:
    before = pa.default_memory_pool().max_memory()
    decoded = decoder_of("proto3").decode(binary(data))
    assert len(decoded.bad) == 1
    assert pa.default_memory_pool().max_memory() - before < 1 << 20


def test_what_was_unusual_is_no_measure_for_what_comes() -> None:
    decoder = decoder_of("proto3")
    decoder.decode(binary(b"\x2a\x00" * 500_000))
    before = pa.total_allocated_bytes()
    decoded = decoder.decode(binary(*[b"\x2a\x00"] * 100))
    assert pa.total_allocated_bytes() - before < 1 << 20
    assert not decoded.bad


def test_all_memory_is_arrows_own() -> None:
    decoder = decoder_of("proto2")
    value = sample_value("proto2")
    values = binary(value, None, b"\xff", value + value)
    before = pa.total_allocated_bytes()
    array = decoder.decode(values).array
    assert pa.total_allocated_bytes() - before >= array.get_total_buffer_size()


def test_threads_share_a_decoder() -> None:
    decoder = decoder_of("proto3")
    file, random = sample_file("proto3"), Random(3)
    values = [sample_value("proto3"), b"", b"\xff", b"\x2a\x00" * 200]
    oracle = Oracle(file, "s.Order")
    chosen = [[random.choice(values) for _ in range(random.randrange(500))] for _ in range(16)]
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda some: decoder.decode(binary(*some)), chosen))
    expected = {value: oracle.row(value) for value in values}
    for some, decoded in zip(chosen, results, strict=True):
        assert rows_of(decoded.array) == [expected[value] for value in some]
