"""Reads a `FileDescriptorSet`, as `protoc --descriptor_set_out` writes it.

A `FileDescriptorSet` is itself a Protobuf message. The field numbers in this module are those of
`google/protobuf/descriptor.proto`. Extensions, services, and all options except `map_entry` are
ignored. So fields of extensions count as unknown fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator


VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
GROUP: Final = 3
END_GROUP: Final = 4
FIXED32: Final = 5
_SIZES: Final = {FIXED64: 8, FIXED32: 4}
_MOST_VARINT_BYTES: Final = 10
_MASK_64: Final = 2**64 - 1


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Reads the varint at `position`. Returns two values: the unsigned 64-bit number, and the
    position after the varint.

    Raises:
        ValueError: The number has more than ten bytes, or the data ends.
    """
    value = 0
    for index, byte in enumerate(data[position : position + _MOST_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value & _MASK_64, position + index + 1
    raise ValueError(f"the number at byte {position} is truncated or too long")


def read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields (field number, value) for each field of a message. The value is an int if the field is
    a varint, and bytes otherwise.

    Raises:
        ValueError: The message is malformed, or has groups.
    """
    position = 0
    while position < len(data):
        tag, position = read_varint(data, position)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            value, position = read_varint(data, position)
            yield number, value
            continue
        if wire == BYTES:
            size, position = read_varint(data, position)
        elif wire in _SIZES:
            size = _SIZES[wire]
        else:
            raise ValueError(f"wire type {wire} at byte {position} is not supported")
        if size > len(data) - position:
            raise ValueError(f"a field of {size} bytes at byte {position} exceeds the data")
        yield number, data[position : position + size]
        position += size


_SYNTAXES: Final = ("", "proto2", "proto3")
_DEEPEST: Final = 100
_Message = dict[int, list[int | bytes]]


class FieldType(IntEnum):
    """Types of fields, with the numbers of `FieldDescriptorProto.Type`."""

    DOUBLE = 1
    FLOAT = 2
    INT64 = 3
    UINT64 = 4
    INT32 = 5
    FIXED64 = 6
    FIXED32 = 7
    BOOL = 8
    STRING = 9
    GROUP = 10
    MESSAGE = 11
    BYTES = 12
    UINT32 = 13
    ENUM = 14
    SFIXED32 = 15
    SFIXED64 = 16
    SINT32 = 17
    SINT64 = 18


_MAP_FIELDS: Final = [("key", 1, False), ("value", 2, False)]
_NO_KEYS: Final = frozenset(
    {
        *(FieldType.DOUBLE, FieldType.FLOAT, FieldType.BYTES),
        *(FieldType.ENUM, FieldType.MESSAGE, FieldType.GROUP),
    }
)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message.

    Attributes:
        name: Declared name.
        type_name: Full name of the message type or enum type, if it has such a type; empty
            otherwise.
        repeated: True if it is a list or a map.
        has_presence: True if Protobuf distinguishes an absent field from a field with the default
            value.
        oneof: Number of the oneof that contains it; -1 if it is not in a oneof.
        default: Declared default as text, see `FieldDescriptorProto.default_value`; `None` if it
            has none.
    """

    name: str
    number: int
    type: FieldType
    type_name: str
    repeated: bool
    has_presence: bool
    oneof: int
    default: str | None


@dataclass(frozen=True, slots=True)
class Message:
    """A message type.

    Attributes:
        name: Full name, without a leading dot.
        fields: Fields in declared order.
        is_map_entry: True if it is the entry type of a map.
        path: Index into the messages of the file, then an index into the messages nested in that
            message, and so on. Entry types of maps count as nested messages.
    """

    name: str
    fields: tuple[Field, ...]
    is_map_entry: bool
    file: str
    path: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Enum:
    """An enum type.

    Attributes:
        name: Full name, without a leading dot.
        values: Number -> name; the first name, if several names have the same number.
        numbers: Name -> number.
        is_closed: True if the enum's file has syntax proto2. A field of a closed enum counts as
            unknown if its number is not in the enum.
    """

    name: str
    values: dict[int, str]
    numbers: dict[str, int]
    is_closed: bool


@dataclass(frozen=True, slots=True)
class Schema:
    """All message types and enum types of a descriptor set. The keys of the dicts are full
    names.
    """

    messages: dict[str, Message]
    enums: dict[str, Enum]


def read_schema(descriptors: bytes) -> Schema:
    """Reads a `FileDescriptorSet`.

    Raises:
        ValueError: The data is malformed, or a file has a syntax other than proto2 and proto3.
    """
    schema = Schema({}, {})
    try:
        for file in _parts(_parse(descriptors), 1):
            _read_file(file, schema)
    except (ValueError, TypeError) as error:
        raise ValueError(f"not a usable Protobuf FileDescriptorSet: {error}") from error
    return schema


def _read_file(file: _Message, schema: Schema) -> None:
    name, package, syntax = _text(file, 1), _text(file, 2), _text(file, 12)
    if syntax not in _SYNTAXES:
        raise ValueError(f"{name} has syntax {syntax!r}, but only proto2 and proto3 are supported")
    is_proto3 = syntax == "proto3"
    scope = f"{package}." if package else ""
    for index, message in enumerate(_parts(file, 4)):
        _read_message(message, scope, (name, (index,), is_proto3), schema)
    for enum in _parts(file, 5):
        _read_enum(enum, scope, is_proto3, schema)


def _read_message(
    message: _Message, scope: str, location: tuple[str, tuple[int, ...], bool], schema: Schema
) -> None:
    file, path, is_proto3 = location
    name = scope + _text(message, 1)
    if len(path) > _DEEPEST:
        raise ValueError(f"messages are nested more than {_DEEPEST} levels deep")
    if name in schema.messages:
        raise ValueError(f"message {name} is defined twice")
    fields = tuple(_field(field, is_proto3) for field in _parts(message, 2))
    for each in ([field.number for field in fields], [field.name for field in fields]):
        if len(set(each)) < len(fields):
            raise ValueError(f"message {name} has a repeated field name or number")
    is_map_entry = _number(_parse(_bytes(message, 7)), 7) != 0
    if is_map_entry and (
        [(field.name, field.number, field.repeated) for field in fields] != _MAP_FIELDS
        or fields[0].type in _NO_KEYS
    ):
        raise ValueError(f"message {name} is not a valid map entry")
    schema.messages[name] = Message(name, fields, is_map_entry, file, path)
    for index, nested in enumerate(_parts(message, 3)):
        _read_message(nested, f"{name}.", (file, (*path, index), is_proto3), schema)
    for nested in _parts(message, 4):
        _read_enum(nested, f"{name}.", is_proto3, schema)


def _field(field: _Message, is_proto3: bool) -> Field:
    kind = FieldType(_number(field, 5))
    repeated = _number(field, 4) == 3
    declared_optional = _number(field, 17) != 0  # is in a oneof of its own
    in_oneof = 9 in field and not declared_optional
    is_message = kind in (FieldType.MESSAGE, FieldType.GROUP)
    number = _number(field, 3)
    name = _text(field, 1)
    if not 0 < number < 2**29 or not name:
        raise ValueError(f"field {name!r} has no name, or the invalid number {number}")
    return Field(
        name=name,
        number=number,
        type=kind,
        type_name=_text(field, 6).removeprefix("."),
        repeated=repeated,
        has_presence=not repeated
        and (not is_proto3 or is_message or in_oneof or declared_optional),
        oneof=_number(field, 9) if in_oneof else -1,
        default=_text(field, 7) if 7 in field else None,
    )


def _read_enum(enum: _Message, scope: str, is_proto3: bool, schema: Schema) -> None:
    values: dict[int, str] = {}
    numbers: dict[str, int] = {}
    for value in _parts(enum, 2):
        number = _number(value, 2) & 0xFFFFFFFF
        numbers[_text(value, 1)] = number - ((number & 1 << 31) << 1)
    for each, number in numbers.items():
        values.setdefault(number, each)
    name = scope + _text(enum, 1)
    if not values:
        raise ValueError(f"enum {name} has no values")
    schema.enums[name] = Enum(name, values, numbers, is_closed=not is_proto3)


def _parse(data: bytes) -> _Message:
    fields: _Message = {}
    for number, value in read_fields(data):
        fields.setdefault(number, []).append(value)
    return fields


def _parts(message: _Message, number: int) -> list[_Message]:
    return [_parse(_as_bytes(data)) for data in message.get(number, ())]


def _bytes(message: _Message, number: int) -> bytes:
    return _as_bytes(message[number][-1]) if number in message else b""


def _text(message: _Message, number: int) -> str:
    return _bytes(message, number).decode()


def _number(message: _Message, number: int) -> int:
    value = message[number][-1] if number in message else 0
    if isinstance(value, bytes):
        raise TypeError(f"field {number} is not a number")
    return value


def _as_bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise TypeError(f"a field that must be bytes is the number {value}")
    return value
