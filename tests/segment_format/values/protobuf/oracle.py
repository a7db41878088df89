"""Decodes values with Google's library (upb), as a reference for the kernel.

Returns the same Python values as `rows_of` for the columns of the tested decoder.

The oracle reads with a modified schema. Maps become lists of entries, because upb drops entries
with unknown fields. Every message has a field, because upb accepts field 0 in empty messages and
rejects it in other messages. proto2 becomes edition 2023 with closed enums, because upb then checks
UTF-8.
"""

from __future__ import annotations

import itertools
import math
import struct
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    message_factory,
    timestamp_pb2,
    unknown_fields,
    wrappers_pb2,
)
from google.protobuf.message import DecodeError

Proto: TypeAlias = Any
"""A message or descriptor. The type is `Any`, because google.protobuf has no type information."""
Row: TypeAlias = Any
"""A value as plain Python."""
FieldProto = descriptor_pb2.FieldDescriptorProto
_UNUSED = "unused"
WELL_KNOWN = (timestamp_pb2.DESCRIPTOR, duration_pb2.DESCRIPTOR, wrappers_pb2.DESCRIPTOR)


def is_repeated(field: Proto) -> bool:
    """Returns whether a field descriptor is repeated, for old and new versions of `protobuf`."""
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == field.LABEL_REPEATED)


class Oracle:
    """Decodes values of a message type.

    Args:
        file: The file of the message. It imports only well-known types.
        message: The full name of the message.
    """

    def __init__(self, file: Proto, message: str) -> None:
        twin = descriptor_pb2.FileDescriptorProto()
        twin.CopyFrom(file)
        self._is_proto2 = file.syntax != "proto3"
        self._maps: set[str] = set()
        if self._is_proto2:
            twin.syntax = "editions"
            twin.edition = descriptor_pb2.EDITION_2023
            twin.options.features.enum_type = descriptor_pb2.FeatureSet.CLOSED
        for message_type in twin.message_type:
            self._change(message_type, f"{file.package}.")
        self._class = message_class(twin, message)

    def _change(self, message: Proto, scope: str) -> None:
        name = scope + message.name
        if message.options.map_entry:
            self._maps.add(name)
            message.options.ClearField("map_entry")
        if not message.field:
            message.field.add(name=_UNUSED, number=536_000_001, type=5, label=1)
        for field in message.field if self._is_proto2 else ():
            if field.type == FieldProto.TYPE_GROUP:
                field.type = FieldProto.TYPE_MESSAGE
                field.options.features.message_encoding = descriptor_pb2.FeatureSet.DELIMITED
            if field.label == FieldProto.LABEL_REQUIRED:
                field.label = FieldProto.LABEL_OPTIONAL  # missing required fields are accepted
        for nested in message.nested_type:
            self._change(nested, f"{name}.")

    def row(self, data: bytes) -> Row:
        """Decodes a value to the Python value that `rows_of` returns; None if the value is bad."""
        try:
            return self._message(self._class.FromString(data))
        except (DecodeError, OverflowError):
            return None

    def _message(self, message: Proto) -> Row:
        name = message.DESCRIPTOR.full_name
        if name == "google.protobuf.Timestamp":
            return _micros(message.seconds, message.nanos // 1000)
        if name == "google.protobuf.Duration":
            micros = abs(message.nanos) // 1000
            return _micros(message.seconds, micros if message.nanos > 0 else -micros)
        if name.startswith("google.protobuf."):
            (field,) = message.DESCRIPTOR.fields
            return self._single(message.value, field)
        return {
            field.name: self._field(message, field)
            for field in message.DESCRIPTOR.fields
            if field.name != _UNUSED
        }

    def _field(self, message: Proto, field: Proto) -> Row:
        value = getattr(message, field.name)
        if is_repeated(field):
            if field.message_type is not None and field.message_type.full_name in self._maps:
                return {
                    entry.key: self._single(entry.value, entry.DESCRIPTOR.fields_by_name["value"])
                    for entry in value
                    if not _is_dropped(entry)
                }
            return [self._single(item, field) for item in value]
        if field.has_presence and not message.HasField(field.name):
            if field.containing_oneof is not None or not field.has_default_value:
                return None
            value = field.default_value
        return self._single(value, field)

    def _single(self, value: Row, field: Proto) -> Row:
        if field.message_type is not None:
            return self._message(value)
        if field.enum_type is not None:
            enum_value = field.enum_type.values_by_number.get(value)
            return str(value) if enum_value is None else enum_value.name
        if field.type in (FieldProto.TYPE_UINT64, FieldProto.TYPE_FIXED64):
            return Decimal(value)
        return _bits(value) if isinstance(value, float) else value


def _micros(seconds: int, micros: int) -> int:
    if abs(seconds) > 2**63 // 10**6 - 3:
        raise OverflowError
    return seconds * 10**6 + micros


def _is_dropped(entry: Proto) -> bool:
    enum = entry.DESCRIPTOR.fields_by_name["value"].enum_type
    if enum is None or not enum.is_closed:
        return False
    unknown = unknown_fields.UnknownFieldSet(entry)
    return any(field.field_number == 2 and field.wire_type == 0 for field in unknown)


def message_class(file: Proto, message: str) -> Proto:
    """Returns the Python class for the message type `message`, which `file` defines."""
    pool = descriptor_pool.DescriptorPool()
    for well_known_file in WELL_KNOWN:
        pool.AddSerializedFile(well_known_file.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(message))


def descriptor_set(file: Proto) -> bytes:
    """Returns a descriptor set of the file, as written by `protoc --descriptor_set_out`."""
    data: bytes = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    return data


def rows_of(array: pa.Array) -> list[Row]:
    """Converts an array to Python values: structs and maps become dicts, floats become their
    bits.
    """
    kind = array.type
    valid = array.is_valid().to_pylist()
    rows: list[Row]
    if pa.types.is_struct(kind):
        columns = {field.name: rows_of(array.field(index)) for index, field in enumerate(kind)}
        rows = [
            {name: column[row] for name, column in columns.items()} for row in range(len(array))
        ]
    elif pa.types.is_map(kind):
        keys, items = rows_of(array.keys), rows_of(array.items)
        rows = []
        for start, stop in _ranges(array):
            rows.append(dict(zip(keys[start:stop], items[start:stop], strict=True)))
            assert len(rows[-1]) == stop - start, "duplicate key"
    elif pa.types.is_list(kind):
        values = rows_of(array.values)
        rows = [values[start:stop] for start, stop in _ranges(array)]
    elif pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        rows = array.cast(pa.int64()).to_pylist()
    elif pa.types.is_floating(kind):
        rows = [value if value is None else _bits(value) for value in array.to_pylist()]
    else:
        rows = array.to_pylist()
    return [row if is_present else None for row, is_present in zip(rows, valid, strict=True)]


def _ranges(array: pa.Array) -> list[tuple[int, int]]:
    offsets = array.offsets.to_pylist()
    return list(itertools.pairwise(offsets))


def _bits(value: float) -> bytes:
    return b"nan" if math.isnan(value) else struct.pack("<d", value)
