"""What the fields of a message become in Arrow, and which of them are wanted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from segment_format.values.protobuf import contract as c
from segment_format.values.protobuf.schema import Field, FieldType
from segment_format.values.protobuf.wire import BYTES, FIXED32, FIXED64, VARINT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from segment_format.values.protobuf.schema import Enum as EnumType

Selection = dict[str, "Selection | None"]
"""Names of fields wanted, each with what is wanted of it; None for all."""


class Kind(Enum):
    """How a column is made of what the kernel fills."""

    NUMBER = auto()
    BOOL = auto()
    TEXT = auto()
    ENUM = auto()
    MOMENT = auto()  # of seconds and nanoseconds
    STRUCT = auto()
    LIST = auto()
    MAP = auto()


@dataclass(frozen=True, slots=True)
class Column:
    """A column and where the kernel fills it.

    Attributes:
        kind: How it is made.
        name: Of its field.
        type: In Arrow.
        level: That of its rows.
        present: The column that says which of its rows are there; −1 for all.
        values: The column of its numbers; −1 without. A moment's seconds; its nanoseconds are next.
        child_level: Of a text's bytes, of the elements of a list or map; −1 without.
        children: Fields of a struct, the element of a list, key and value of a map.
        enum: Whose names it has.
        default: What stands where nothing is present; None for null.
    """

    kind: Kind
    name: str
    type: pa.DataType
    level: int
    present: int = -1
    values: int = -1
    child_level: int = -1
    children: tuple[Column, ...] = ()
    enum: EnumType | None = None
    default: pa.Scalar | None = None


@dataclass(frozen=True, slots=True)
class Number:
    """How numbers of a type are read and stored.

    Attributes:
        op: The kernel's.
        wire: Wire type.
        width: Bytes of a stored one.
        type: In Arrow.
    """

    op: int
    wire: int
    width: int
    type: pa.DataType


_DECIMAL: Final = pa.decimal128(20, 0)
NUMBERS: Final = {
    FieldType.DOUBLE: Number(c.RAW64, FIXED64, 8, pa.float64()),
    FieldType.FLOAT: Number(c.RAW32, FIXED32, 4, pa.float32()),
    FieldType.INT64: Number(c.INT64, VARINT, 8, pa.int64()),
    FieldType.UINT64: Number(c.UINT64, VARINT, 16, _DECIMAL),
    FieldType.INT32: Number(c.INT32, VARINT, 4, pa.int32()),
    FieldType.FIXED64: Number(c.FIXED64, FIXED64, 16, _DECIMAL),
    FieldType.FIXED32: Number(c.FIXED32, FIXED32, 8, pa.int64()),
    FieldType.BOOL: Number(c.BOOL, VARINT, 1, pa.bool_()),
    FieldType.UINT32: Number(c.UINT32, VARINT, 8, pa.int64()),
    FieldType.SFIXED32: Number(c.RAW32, FIXED32, 4, pa.int32()),
    FieldType.SFIXED64: Number(c.RAW64, FIXED64, 8, pa.int64()),
    FieldType.SINT32: Number(c.SINT32, VARINT, 4, pa.int32()),
    FieldType.SINT64: Number(c.SINT64, VARINT, 8, pa.int64()),
}
"""Field type -> how it is read. A number of 64 bits without sign fits no other Arrow type that
Spark has.
"""
OPEN_ENUM: Final = Number(c.INT32, VARINT, 4, pa.string())
CLOSED_ENUM: Final = Number(c.CLOSED_ENUM, VARINT, 4, pa.string())
TEXTS: Final = {FieldType.STRING: (c.TEXT, pa.string()), FieldType.BYTES: (c.BINARY, pa.binary())}
"""Field type -> op and Arrow type."""
TEXT_WIRE: Final = BYTES

MOMENTS: Final = {
    "google.protobuf.Timestamp": pa.timestamp("us", tz="UTC"),
    "google.protobuf.Duration": pa.duration("us"),
}
WRAPPERS: Final = {
    f"google.protobuf.{name}Value": kind
    for name, kind in {
        "Double": FieldType.DOUBLE,
        "Float": FieldType.FLOAT,
        "Int64": FieldType.INT64,
        "UInt64": FieldType.UINT64,
        "Int32": FieldType.INT32,
        "UInt32": FieldType.UINT32,
        "Bool": FieldType.BOOL,
        "String": FieldType.STRING,
        "Bytes": FieldType.BYTES,
    }.items()
}


def implicit_field(name: str, number: int, kind: FieldType) -> Field:
    """A field of a well-known type, whose descriptor a descriptor set may lack."""
    return Field(name, number, kind, "", repeated=False, has_presence=False, oneof=-1, default=None)


MOMENT_FIELDS: Final = (
    implicit_field("seconds", 1, FieldType.INT64),
    implicit_field("nanos", 2, FieldType.INT32),
)


def selection_of(columns: Iterable[str]) -> Selection:
    """A tree of paths such as `user.id`; a path without more takes all below it."""
    selection: Selection = {}
    for path in columns:
        *parents, last = path.split(".")
        below: Selection | None = selection
        for name in parents:
            if below is not None:
                below = below.setdefault(name, {})
        if below is not None:
            below[last] = None
    return selection


def default_of(field: Field, column: Column) -> pa.Scalar | None:
    """The declared default of a field of one value.

    Raises:
        ValueError: It is none of that type.
    """
    text = field.default
    if text is None:
        return None
    try:
        value: object = text
        if column.enum is not None:
            value = column.enum.values[column.enum.numbers[text]]
        elif field.type is FieldType.BYTES:
            value = text.encode("latin-1").decode("unicode_escape").encode("latin-1")
        elif field.type is FieldType.BOOL:
            value = {"true": True, "false": False}[text]
        elif field.type in (FieldType.FLOAT, FieldType.DOUBLE):
            value = float(text)
        elif field.type in NUMBERS:
            value = int(text)
        return pa.scalar(value, column.type)
    except (ValueError, KeyError, OverflowError, pa.ArrowException) as error:
        raise ValueError(f"field {field.name} has the default {text!r}") from error
