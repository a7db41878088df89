"""Compiles a message type to tables for the kernel and to a tree of Arrow columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from segment_format.values.protobuf import contract as c
from segment_format.values.protobuf.schema import (
    BYTES,
    FIXED32,
    FIXED64,
    GROUP,
    VARINT,
    Field,
    FieldType,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from segment_format.values.protobuf.schema import Enum as EnumType
    from segment_format.values.protobuf.schema import Message, Schema

    Numbers = NDArray[np.int64]


Selection = dict[str, "Selection | None"]
"""Maps names of wanted fields to the selection inside each of them; `None` = all fields."""


class Kind(Enum):
    """Method by which an Arrow column is built from the columns that the kernel has filled."""

    NUMBER = auto()
    BOOL = auto()
    TEXT = auto()
    ENUM = auto()
    MOMENT = auto()  # seconds and nanoseconds
    STRUCT = auto()
    LIST = auto()
    MAP = auto()


@dataclass(frozen=True, slots=True)
class Column:
    """Describes how one Arrow column is built from the columns that the kernel has filled ("kernel
    columns").

    Attributes:
        kind: Method of building the column.
        level: Number of the level (see `contract`) that has one entry per row of this column.
        present: Index of the kernel column that states whether each row is present; -1 if all rows
            are present.
        values: Index of the kernel column with the numbers; -1 if the column has no numbers. For a
            Timestamp or Duration, this kernel column has the seconds, and the next kernel column
            has the nanoseconds.
        child_level: For a text, the level with one entry per byte. For a list or map, the level
            with one entry per element. -1 for other types.
        children: Fields of a struct, the element of a list, or key and value of a map.
        enum: Enum with the names for the numbers; `None` for other types.
        default: Value of rows in which the field is absent; `None` if they are null.
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
    """Describes how numbers of a Protobuf type are decoded.

    Attributes:
        op: Operation of the kernel that decodes the number.
        width: Size of a decoded number in bytes.
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
"""Maps a field type to its decoding. Unsigned 64-bit numbers become decimals, because Spark
supports no other Arrow type for them.
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
    """Returns a field of a well-known type, such as Timestamp, whose descriptor may be missing."""
    return Field(name, number, kind, "", repeated=False, has_presence=False, oneof=-1, default=None)


MOMENT_FIELDS: Final = (
    implicit_field("seconds", 1, FieldType.INT64),
    implicit_field("nanos", 2, FieldType.INT32),
)


def selection_of(columns: Iterable[str]) -> Selection:
    """Converts paths such as `user.id` to a tree of names. A path selects a field and all fields in
    it.
    """
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
    """Returns the declared default of a field that is not repeated; `None` if it has none.

    Raises:
        ValueError: The default does not have the type of the field.
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
        raise ValueError(f"field {field.name} has the invalid default {text!r}") from error


_MAX_COLUMNS: Final = 20_000
_OFFSET_BYTES: Final = 4
_SPARSE: Final = 4
_NO_NUMBERS: Final = (0,)


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A compiled message type. `contract` defines the layout of the tables.

    Attributes:
        root: Column of the decoded values.
        dense: For each node, a table from field number to the index in `entries`; -1 if the node
            does not have this field. Nodes with few fields but large field numbers have no such
            table.
        entries: Table with a row for each field of each node.
        names: For each row of `entries`, the name of the field.
        columns: Table of kernel columns.
        kids: For each level, its child levels.
        enums: For each closed enum, its numbers in ascending order.
        text_levels: Levels whose entries are the bytes of texts.
        entry_bytes: For each level, the total size in bytes of one entry in its columns, offsets
            and texts.
    """

    root: Column
    nodes: Numbers
    dense: Numbers
    entries: Numbers
    names: tuple[str, ...]
    columns: Numbers
    levels: Numbers
    kids: Numbers
    enums: Numbers
    text_levels: frozenset[int]
    entry_bytes: tuple[int, ...]


def compile_message(schema: Schema, name: str, selection: Selection | None) -> Program:
    """Compiles a message type. The result decodes only the selected fields, or all fields if
    `selection` is `None`.

    Raises:
        ValueError: The message or a type that it uses is missing, a selected field does not exist,
            a message contains itself, or there are too many columns.
    """
    return _Compiler(schema).program(name, selection)


class _Compiler:
    """Compiles a message type. Assigns numbers to columns, levels and entries in the order of the
    tree of fields.

    So the columns of a field (including nested fields) have consecutive numbers, and so do its
    levels. The kernel clears a field by clearing these two ranges.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._nodes: list[tuple[int, ...]] = []
        self._dense: list[int] = []
        self._entries: list[dict[int, int]] = []
        self._names: list[str] = []
        self._columns: list[tuple[int, int]] = []
        self._parents: list[int] = [-1]
        self._enums: list[int] = []
        self._text_levels: list[int] = []

    def program(self, name: str, selection: Selection | None) -> Program:
        present = self._column(1, 0)
        column, node = self._message(name, name, 0, selection, ())
        assert node == 0
        kids: list[list[int]] = [[] for _ in self._parents]
        for kid, parent in enumerate(self._parents):
            if parent >= 0:
                kids[parent].append(kid)
        bytes_of = [_OFFSET_BYTES * len(below) for below in kids]
        for width, level in self._columns:
            bytes_of[level] += width
        for level in self._text_levels:
            bytes_of[level] += 1
        levels = []
        start = 0
        for parent, below in zip(self._parents, kids, strict=True):
            levels.append((parent, start, len(below)))
            start += len(below)
        return Program(
            root=replace(column, present=present),
            nodes=_numbers([number for node in self._nodes for number in node]),
            dense=_numbers(self._dense),
            entries=_numbers(
                [entry.get(key, 0) for entry in self._entries for key in range(c.ENTRY_SIZE)]
            ),
            names=tuple(self._names),
            columns=_numbers([number for column in self._columns for number in column]),
            levels=_numbers([number for level in levels for number in level]),
            kids=_numbers([kid for below in kids for kid in below]),
            enums=_numbers(self._enums),
            text_levels=frozenset(self._text_levels),
            entry_bytes=tuple(bytes_of),
        )

    def _column(self, width: int, level: int) -> int:
        if len(self._columns) + len(self._parents) >= _MAX_COLUMNS:
            raise ValueError(
                f"the message has more than {_MAX_COLUMNS} columns; select some of them"
            )
        self._columns.append((width, level))
        return len(self._columns) - 1

    def _level(self, parent: int) -> int:
        self._parents.append(parent)
        return len(self._parents) - 1

    def _node(self, fields: Sequence[Field]) -> tuple[int, int]:
        """Adds a node with the given fields. They must be in ascending order of their numbers.
        Returns two values: the index of the node, and the index of its first row in the table of
        entries.
        """
        node, first = len(self._nodes), len(self._entries)
        numbers = [field.number for field in fields]
        last = max(numbers, default=-1)
        size = last + 1 if last < _SPARSE * (len(fields) + _SPARSE) else 0
        self._nodes.append((len(self._dense), size, first, len(fields)))
        table = [-1] * size
        for index, number in enumerate(numbers):
            if size:
                table[number] = first + index
            self._entries.append({c.NUMBER: number})
            self._names.append(fields[index].name)
        self._dense += table
        return node, first

    def _message(
        self, name: str, path: str, level: int, selection: Selection | None, trail: tuple[str, ...]
    ) -> tuple[Column, int]:
        """Compiles a message type at one position in the tree of fields. Returns its column, and
        the index of its node. The caller must set `present` of the column. `trail` contains the
        names of the message types around the position, outermost first.
        """
        if selection == {} and trail:  # only presence
            return Column(Kind.STRUCT, "", pa.struct([]), level), self._node(())[0]
        if name in MOMENTS or name in WRAPPERS:
            if selection is not None:
                raise ValueError(f"{path} is a {name}, which has no fields to select")
            if name in MOMENTS:
                node, first = self._node(MOMENT_FIELDS)
                seconds, _ = (
                    self._value(field, path, level, first + index, None, trail)
                    for index, field in enumerate(MOMENT_FIELDS)
                )
                return Column(Kind.MOMENT, "", MOMENTS[name], level, values=seconds.values), node
            field = implicit_field("value", 1, WRAPPERS[name])
            node, first = self._node((field,))
            return self._value(field, path, level, first, None, trail), node
        message = self._schema.messages.get(name)
        if message is None:
            raise ValueError(f"{path}: message {name} is not in the descriptor set")
        if name in trail:
            raise ValueError(
                f"{path}: message {name} contains itself, which columns cannot represent; select"
                " columns without it"
            )
        wanted = _wanted(message, path, selection)
        node, first = self._node(wanted)
        oneofs = {field.oneof: self._column(4, level) for field in wanted if field.oneof >= 0}
        children = {}
        for index, field in enumerate(wanted):
            entry = first + index
            below: Selection | None = {}  # an unselected member of a oneof clears the others
            if selection is None:
                below = None
            elif field.name in selection:
                below = selection[field.name]
            column = self._field(field, path, level, entry, below, (*trail, name))
            self._entries[entry][c.ONEOF] = oneofs.get(field.oneof, -1)
            if selection is None or field.name in selection:
                children[field.name] = column
        ordered = [children[field.name] for field in message.fields if field.name in children]
        kind = pa.struct([pa.field(child.name, child.type) for child in ordered])
        return Column(Kind.STRUCT, "", kind, level, children=tuple(ordered)), node

    def _field(
        self,
        field: Field,
        path: str,
        level: int,
        entry: int,
        selection: Selection | None,
        trail: tuple[str, ...],
    ) -> Column:
        path = f"{path}.{field.name}"
        if not field.repeated:
            first_column, first_level = len(self._columns), len(self._parents)
            present = self._column(1, level) if field.has_presence else -1
            column = self._value(field, path, level, entry, selection, trail)
            self._entries[entry].update(
                {
                    c.PRESENT: present,
                    c.FIRST_COLUMN: first_column,
                    c.STOP_COLUMN: len(self._columns),
                    c.FIRST_LEVEL: first_level,
                    c.STOP_LEVEL: len(self._parents),
                }
            )
            default = None
            if field.default is not None and field.has_presence and field.oneof < 0:
                default = default_of(field, column)
            return replace(column, name=field.name, present=present, default=default)
        elements = self._level(level)
        first_column, first_level = len(self._columns), len(self._parents)
        message = self._schema.messages.get(field.type_name)
        is_map = message is not None and message.is_map_entry
        if is_map and selection is not None:
            selection = {"key": None, "value": None} | selection
        column = self._value(field, path, elements, entry, selection, trail)
        self._entries[entry].update(
            {
                c.PRESENT: -1,
                c.REPEATED: 1,
                c.FIRST_COLUMN: first_column,
                c.STOP_COLUMN: len(self._columns),
                c.FIRST_LEVEL: first_level,
                c.STOP_LEVEL: len(self._parents),
            }
        )
        if is_map:
            key, value = column.children
            kind = pa.map_(key.type, pa.field("value", value.type, nullable=False))
            children = (replace(key, present=-1), replace(value, present=-1, default=None))
            return Column(
                Kind.MAP, field.name, kind, level, child_level=elements, children=children
            )
        kind = pa.list_(pa.field("element", column.type, nullable=False))
        return Column(Kind.LIST, field.name, kind, level, child_level=elements, children=(column,))

    def _value(
        self,
        field: Field,
        path: str,
        level: int,
        entry: int,
        selection: Selection | None,
        trail: tuple[str, ...],
    ) -> Column:
        """Compiles the type of a field, and returns the column of the value. Writes to row `entry`
        of the table of entries how the field is decoded.
        """
        row = self._entries[entry]
        row.update({c.LEVEL: level, c.ONEOF: -1, c.PRESENT: -1})
        if field.type in (FieldType.MESSAGE, FieldType.GROUP):
            is_group = field.type is FieldType.GROUP
            row[c.OP] = c.GROUP if is_group else c.MESSAGE
            row[c.WIRE] = GROUP if is_group else TEXT_WIRE
            column, row[c.NODE] = self._message(field.type_name, path, level, selection, trail)
            return column
        if selection:
            raise ValueError(f"{path} has no fields to select")
        if field.type in TEXTS:
            row[c.OP], kind = TEXTS[field.type]
            row[c.WIRE] = TEXT_WIRE
            row[c.TEXT_LEVEL] = self._level(level)
            self._text_levels.append(row[c.TEXT_LEVEL])
            return Column(Kind.TEXT, "", kind, level, child_level=row[c.TEXT_LEVEL])
        enum = None
        if field.type is FieldType.ENUM:
            enum = self._schema.enums.get(field.type_name)
            if enum is None:
                raise ValueError(f"{path}: enum {field.type_name} is not in the descriptor set")
            number = CLOSED_ENUM if enum.is_closed else OPEN_ENUM
            if enum.is_closed:
                row[c.ENUM], row[c.ENUM_SIZE] = len(self._enums), len(enum.values)
                self._enums += sorted(enum.values)
                entry_type = self._schema.messages.get(trail[-1])
                row[c.DROPS] = int(entry_type is not None and entry_type.is_map_entry)
        else:
            number = NUMBERS[field.type]
        row.update({c.OP: number.op, c.WIRE: number.wire, c.WIDTH: number.width})
        row[c.COLUMN] = self._column(number.width, level)
        kind = Kind.NUMBER
        if enum is not None:
            kind = Kind.ENUM
        elif field.type is FieldType.BOOL:
            kind = Kind.BOOL
        return Column(kind, "", number.type, level, values=row[c.COLUMN], enum=enum)


def _wanted(message: Message, path: str, selection: Selection | None) -> list[Field]:
    """Returns the selected fields, and all other members of the oneofs that contain a selected
    field. The fields are in ascending order of their numbers.
    """
    if selection is None:
        return sorted(message.fields, key=lambda field: field.number)
    names = {field.name for field in message.fields}
    if missing := selection.keys() - names:
        available = ", ".join(sorted(names))
        raise ValueError(f"{path} has no field {', '.join(sorted(missing))}; it has {available}")
    oneofs = {field.oneof for field in message.fields if field.name in selection} - {-1}
    wanted = [field for field in message.fields if field.name in selection or field.oneof in oneofs]
    return sorted(wanted, key=lambda field: field.number)


def _numbers(numbers: Sequence[int]) -> Numbers:
    # The array is never empty, so that it has an address.
    return np.array(numbers or _NO_NUMBERS, np.int64)
