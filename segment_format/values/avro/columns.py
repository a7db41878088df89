"""Converts a reader's schema to Arrow columns, with the types that Spark's `from_avro` returns.

| Avro | Arrow |
|---|---|
| boolean, int, long, float, double | bool, int32, int64, float32, float64 |
| string, enum, uuid as string | utf8 |
| bytes, fixed, duration, uuid as fixed | binary |
| decimal | decimal128 |
| date | date32 |
| timestamp-millis, timestamp-micros | timestamp[us, UTC] |
| local-timestamp-millis, local-timestamp-micros | timestamp[us] |
| time-millis; time-micros, (local-)timestamp-nanos | int32; int64 |
| record, array, map | struct, list, map |
| union of null and a type | that type |
| union of int and long, of float and double | int64, float64 |
| other unions | struct of member0, member1, … without the type null; all but one are null |

Programs write to the buffers of the columns. A table contains the addresses of these buffers; the
table entry of a column is called *slot*. A *level* is a group of columns with equal numbers of
rows. Level 0 has one row per decoded value. Each array or map has a level with one row per item.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from segment_format.values.avro import schema as s
from segment_format.values.avro.kinds import BYTES, FIXED, ITEMS, NOTHING, STRUCT
from segment_format.values.avro.schema import AvroSchemaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from segment_format.values.avro.schema import Schema


_KINDS: Final = {
    s.BOOLEAN: (pa.bool_(), 1),
    s.INT: (pa.int32(), 4),
    s.LONG: (pa.int64(), 8),
    s.FLOAT: (pa.float32(), 4),
    s.DOUBLE: (pa.float64(), 8),
}
_TEXTS: Final = {s.STRING: pa.string(), s.BYTES: pa.binary()}
_UTC: Final = pa.timestamp("us", tz="UTC")
_LOCAL: Final = pa.timestamp("us")
_LOGICAL: Final = {
    s.DATE: pa.date32(),
    s.TIMESTAMP_MILLIS: _UTC,
    s.TIMESTAMP_MICROS: _UTC,
    s.LOCAL_MILLIS: _LOCAL,
    s.LOCAL_MICROS: _LOCAL,
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column and its children.

    Attributes:
        kind: Form of the buffers: one of the constants `NOTHING` to `STRUCT`.
        width: Bytes of a value if the kind is `FIXED`. A bool takes one byte until it is packed.
        slot: Number of the column's slot. The slots of the children have the next numbers.
        level: Number of the column's level; 0 if it has one row per decoded value.
        nullable: True if it has a validity buffer.
        children: Columns of a record's fields, a union's members, an array's items, or a map's keys
            and values.
        items: Number of the level of the children if the kind is `ITEMS`; else -1.
    """

    type: pa.DataType
    kind: int
    width: int
    slot: int
    level: int
    nullable: bool
    children: tuple[Column, ...] = ()
    items: int = -1

    @property
    def stop(self) -> int:
        """First slot number after the slots of the column and its children."""
        return self.children[-1].stop if self.children else self.slot + 1


def columns_of(schema: Schema) -> Column:
    """Returns the column for a reader's schema, with its children. The column is nullable, because
    bad values become null.
    """
    return _Numbering().column(schema, 0, nullable=True)


def resolved_union(union: s.Union) -> tuple[bool, tuple[Schema, ...]]:
    """Returns whether the union has the type null, and its other types. The types int and long
    together become long; float and double together become double.
    """
    others = tuple(branch for branch in union.branches if branch != s.Primitive(s.NULL))
    nullable = len(others) < len(union.branches)
    for narrow, wide in ((s.INT, s.LONG), (s.FLOAT, s.DOUBLE)):
        pair = s.Primitive(narrow), s.Primitive(wide)
        if len(others) == 2 and all(branch in pair for branch in others):
            return nullable, (s.Primitive(wide),)
    return nullable, others


class _Numbering:
    """Creates columns, and assigns numbers to their slots and levels in the order of the schema."""

    def __init__(self) -> None:
        self._slots = 0
        self._levels = 1

    def column(self, schema: Schema, level: int, *, nullable: bool) -> Column:
        if isinstance(schema, s.Union):
            has_null, others = resolved_union(schema)
            if not others:
                return self._leaf(pa.null(), NOTHING, 0, level, nullable=False)
            if len(others) == 1:
                return self.column(others[0], level, nullable=nullable or has_null)
            slot = self._next_slot()
            members = tuple(self.column(branch, level, nullable=True) for branch in others)
            names = [f"member{number}" for number in range(len(members))]
            return _struct(slot, level, names, members, nullable=nullable or has_null)
        if isinstance(schema, s.Record):
            slot = self._next_slot()
            fields = tuple(
                self.column(field.type, level, nullable=False) for field in schema.fields
            )
            names = [field.name for field in schema.fields]
            return _struct(slot, level, names, fields, nullable=nullable)
        if isinstance(schema, s.Array | s.Map):
            return self._items(schema, level, nullable=nullable)
        if isinstance(schema, s.Primitive) and schema.kind == s.NULL:
            return self._leaf(pa.null(), NOTHING, 0, level, nullable=False)
        if schema_logical(schema) == s.DECIMAL:
            assert isinstance(schema, s.Primitive | s.Fixed)
            assert schema.logical is not None
            digits = pa.decimal128(schema.logical.precision, schema.logical.scale)
            return self._leaf(digits, FIXED, 16, level, nullable=nullable)
        if isinstance(schema, s.Fixed):
            return self._leaf(pa.binary(), BYTES, 0, level, nullable=nullable)
        if isinstance(schema, s.Enum):
            return self._leaf(pa.string(), BYTES, 0, level, nullable=nullable)
        if schema.kind in _TEXTS:
            return self._leaf(_TEXTS[schema.kind], BYTES, 0, level, nullable=nullable)
        plain, width = _KINDS[schema.kind]
        kind = _LOGICAL.get(schema_logical(schema) or "", plain)
        return self._leaf(kind, FIXED, width, level, nullable=nullable)

    def _next_slot(self) -> int:
        self._slots += 1
        return self._slots - 1

    def _leaf(
        self, kind: pa.DataType, slot_kind: int, width: int, level: int, *, nullable: bool
    ) -> Column:
        return Column(kind, slot_kind, width, self._next_slot(), level, nullable)

    def _items(self, schema: s.Array | s.Map, level: int, *, nullable: bool) -> Column:
        slot, items = self._next_slot(), self._levels
        self._levels += 1
        if isinstance(schema, s.Array):
            item = self.column(schema.items, items, nullable=False)
            kind = pa.list_(pa.field("element", item.type))
            return Column(kind, ITEMS, 0, slot, level, nullable, (item,), items)
        key = self._leaf(pa.string(), BYTES, 0, items, nullable=False)
        value = self.column(schema.values, items, nullable=False)
        kind = pa.map_(key.type, value.type)
        return Column(kind, ITEMS, 0, slot, level, nullable, (key, value), items)


def _struct(
    slot: int, level: int, names: list[str], columns: tuple[Column, ...], *, nullable: bool
) -> Column:
    kind = pa.struct(
        [pa.field(name, column.type) for name, column in zip(names, columns, strict=True)]
    )
    return Column(kind, STRUCT, 0, slot, level, nullable, columns)


def schema_logical(schema: Schema) -> str | None:
    """Returns the name of the schema's logical type; `None` if it has none."""
    if isinstance(schema, s.Primitive | s.Fixed) and schema.logical is not None:
        return schema.logical.name
    return None


def projected(schema: Schema, paths: Sequence[str]) -> Schema:
    """Returns the schema with only the fields that `paths` select. The fields keep their order.

    Args:
        schema: A record, or a union of null and a record.
        paths: Paths of fields: names joined by dots. The path of a record selects all its fields.

    Raises:
        AvroSchemaError: A path does not name a field, or selects a field inside a type that is
            neither a record nor a union of null and a record.
    """
    return _projected(schema, [tuple(path.split(".")) for path in paths], ())


def _projected(schema: Schema, paths: Sequence[tuple[str, ...]], above: tuple[str, ...]) -> Schema:
    if any(not path for path in paths):
        return schema
    if isinstance(schema, s.Union):
        others = [branch for branch in schema.branches if isinstance(branch, s.Record)]
        if (
            len(others) == 1
            and len(schema.branches) == 2
            and s.Primitive(s.NULL) in schema.branches
        ):
            return s.Union(
                tuple(
                    _projected(branch, paths, above) if isinstance(branch, s.Record) else branch
                    for branch in schema.branches
                )
            )
    if not isinstance(schema, s.Record):
        where = f"field {'.'.join(above)!r}" if above else "the value"
        raise AvroSchemaError(f"{where} is not a record, so it has no field {'.'.join(paths[0])!r}")
    names = [field.name for field in schema.fields]
    for path in paths:
        if path[0] not in names:
            wrong = ".".join((*above, path[0]))
            raise AvroSchemaError(f"there is no field {wrong!r}; the fields are {', '.join(names)}")
    fields = []
    for field in schema.fields:
        below = [path[1:] for path in paths if path[0] == field.name]
        if below:
            kind = _projected(field.type, below, (*above, field.name))
            # A default may have fields that are not selected. They are ignored, as in the type.
            fields.append(replace(field, type=kind))
    return replace(schema, fields=tuple(fields))
