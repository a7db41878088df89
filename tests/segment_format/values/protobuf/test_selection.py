"""Tests which fields become columns."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, struct_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from segment_format.values.protobuf.decoder import ProtobufDecoder
from segment_format.values.protobuf.program import Selection, selection_of
from tests.segment_format.values.protobuf.generated import Writer, random_file
from tests.segment_format.values.protobuf.oracle import (
    Row,
    descriptor_set,
    rows_of,
)
from tests.segment_format.values.protobuf.sample import (
    binary,
    decoder_of,
    sample_file,
)


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
        return [selected(item, kind.value_type, selection) for item in row]
    if pa.types.is_map(kind):
        below = selection.get("value")
        return {key: selected(value, kind.item_type, below) for key, value in row.items()}
    return {
        field.name: selected(row[field.name], field.type, selection[field.name])
        for field in kind
        if field.name in selection
    }


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32 - 1))
def test_selected_columns_match_full_decode(seed: int) -> None:
    random = Random(seed)
    file = random_file(random)
    everything = ProtobufDecoder(descriptor_set(file), "t.Top")
    paths = paths_of(everything.type)
    chosen = random.sample(paths, random.randrange(len(paths) + 1))
    decoder = ProtobufDecoder(descriptor_set(file), "t.Top", chosen)
    writer = Writer(file, random, faults=0.02)
    values = binary(*(writer.value() for _ in range(20)))
    full = everything.decode(values)
    few = decoder.decode(values)
    few.array.validate(full=True)
    assert few.array.type == decoder.type
    assert {error.row for error in few.bad} <= {error.row for error in full.bad}
    selection = selection_of(chosen)
    for row, (full_row, selected_row) in enumerate(
        zip(rows_of(full.array), rows_of(few.array), strict=True)
    ):
        if full_row is not None:
            assert selected_row == selected(full_row, everything.type, selection), (row, chosen)


def test_selected_fields_keep_the_order_of_the_message() -> None:
    assert [field.name for field in decoder_of("proto3", "state", "id").type] == ["id", "state"]
    assert decoder_of("proto3", "main.sku").type == pa.struct(
        [("main", pa.struct([("sku", pa.string())]))]
    )
    assert decoder_of("proto3", "main.sku", "main").type == decoder_of("proto3", "main").type


def test_later_unselected_member_of_oneof_clears_selected_member() -> None:
    decoder = decoder_of("proto3", "by_cash")
    card = b"\x52\x03\x0a\x01c"
    values = binary(b"\x58\x05", b"\x58\x05" + card, card + b"\x58\x05", b"\x58\x05\x50\x01")
    assert decoder.decode(values).array.field(0).to_pylist() == [5, None, 5, 5]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (("nope",), "s.Order has no field nope; it has amount, "),
        (("main.nope",), "s.Order.main has no field nope; it has prices, sku"),
        (("id.x",), "s.Order.id has no fields to select"),
        (("at.seconds",), "s.Order.at is a google.protobuf.Timestamp, which has no fields"),
        (("tags.sku",), "s.Order.tags has no field sku; it has key, value"),
    ],
)
def test_unknown_field_raises(columns: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decoder_of("proto3", *columns)


def test_recursive_message_raises_only_if_it_is_selected() -> None:
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


def test_missing_message_type_raises() -> None:
    data = descriptor_set(sample_file("proto3"))
    with pytest.raises(ValueError, match=r"message s\.Nope is not in the descriptor set"):
        ProtobufDecoder(data, "s.Nope")
    file = sample_file("proto3")
    del file.message_type[0]
    with pytest.raises(ValueError, match=r"s\.Order\.items: message s\.Item is not in"):
        ProtobufDecoder(descriptor_set(file), "s.Order")


def test_too_many_columns_raise() -> None:
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
