"""A sample message with most Protobuf features, and an encoded value of it."""

from __future__ import annotations

import pyarrow as pa
from google.protobuf import descriptor_pb2

from segment_format.values.protobuf.decoder import ProtobufDecoder
from tests.segment_format.values.protobuf.oracle import (
    WELL_KNOWN,
    FieldProto,
    Proto,
    descriptor_set,
    message_class,
)


def sample_file(syntax: str) -> Proto:
    """Returns a file with the messages `s.Order` and `s.Item`."""
    file = descriptor_pb2.FileDescriptorProto(name="s.proto", package="s", syntax=syntax)
    file.dependency.extend(well_known_file.name for well_known_file in WELL_KNOWN)
    state = file.enum_type.add(name="State")
    for number, name in enumerate(("NEW", "PAID", "GONE")):
        state.value.add(name=name, number=number)
    item = file.message_type.add(name="Item")
    item.field.add(name="sku", number=1, type=FieldProto.TYPE_STRING, label=1)
    item.field.add(name="prices", number=2, type=FieldProto.TYPE_SINT32, label=3)
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=FieldProto.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=FieldProto.TYPE_MESSAGE, label=1)
    entry.field[1].type_name = ".s.Item"
    order.oneof_decl.add(name="way")
    for number, (name, kind, label, type_name) in enumerate(
        (
            ("id", FieldProto.TYPE_STRING, 1, ""),
            ("amount", FieldProto.TYPE_DOUBLE, 1, ""),
            ("count", FieldProto.TYPE_UINT64, 1, ""),
            ("state", FieldProto.TYPE_ENUM, 1, ".s.State"),
            ("items", FieldProto.TYPE_MESSAGE, 3, ".s.Item"),
            ("tags", FieldProto.TYPE_MESSAGE, 3, ".s.Order.TagsEntry"),
            ("at", FieldProto.TYPE_MESSAGE, 1, ".google.protobuf.Timestamp"),
            ("took", FieldProto.TYPE_MESSAGE, 1, ".google.protobuf.Duration"),
            ("note", FieldProto.TYPE_MESSAGE, 1, ".google.protobuf.StringValue"),
            ("by_card", FieldProto.TYPE_MESSAGE, 1, ".s.Item"),
            ("by_cash", FieldProto.TYPE_UINT32, 1, ""),
            ("flags", FieldProto.TYPE_BOOL, 3, ""),
            ("states", FieldProto.TYPE_ENUM, 3, ".s.State"),
            ("raw", FieldProto.TYPE_BYTES, 1, ""),
            ("main", FieldProto.TYPE_MESSAGE, 1, ".s.Item"),
        ),
        1,
    ):
        field = order.field.add(name=name, number=number, type=kind, label=label)
        if type_name:
            field.type_name = type_name
        if name.startswith("by_"):
            field.oneof_index = 0
    return file


def sample_value(syntax: str) -> bytes:
    """Returns a value, encoded by Google's library, in which every field of `s.Order` is set."""
    message = message_class(sample_file(syntax), "s.Order")(
        id="Zürich", amount=-2.5, count=2**64 - 1, state=1, flags=[True, False], states=[2, 0]
    )
    for name, prices in (("a", [1, -1]), ("", []), ("é", [2**31 - 1, 7, 7])):
        message.items.add(sku=name, prices=prices)
        message.tags[name].sku = name * 2
        message.tags[name].prices.extend(prices)
    message.at.FromNanoseconds(1_700_000_000_123_456_789)
    message.took.FromNanoseconds(-1_500_000_999)
    message.note.value = "n"
    message.by_card.sku = "card"
    message.by_card.prices.append(5)
    message.raw = b"\xff\0"
    message.main.prices.extend([3, 4])
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def decoder_of(syntax: str, *columns: str) -> ProtobufDecoder:
    """Returns a decoder of `s.Order` for the columns."""
    return ProtobufDecoder(descriptor_set(sample_file(syntax)), "s.Order", columns or None)


def binary(*values: bytes | None) -> pa.Array:
    """Returns the values as a binary array."""
    return pa.array(values, pa.binary())
