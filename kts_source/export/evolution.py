"""Typed columns of an export beside those that its table has: what is new, and what contradicts.

A table goes on with the columns it was begun with. With schema evolution, fields that only the rows
have are added to it, nullable and behind the others; those that only the table has are null in the
new rows. Everything else is a contradiction: a type does not change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from kts_source.errors import SchemaChangedError

if TYPE_CHECKING:
    from collections.abc import Iterable

_SHOWN: Final = 4000
_TEXTS: Final = (pa.types.is_large_string, pa.types.is_string_view)
_BYTES: Final = (pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)


class _ContradictionError(Exception):
    """What cannot be one column."""


def united(
    table: pa.Schema, rows: pa.Schema, typed: Iterable[str], uri: str, *, evolves: bool
) -> pa.Schema:
    """The columns of the rows as the table shall have them.

    Args:
        table: What it has.
        rows: What is to be written.
        typed: Names of columns that are decoded; the others are left as they are.
        uri: The table, for errors.
        evolves: Whether fields may be added to the table, and may be missing in the rows.

    Raises:
        SchemaChangedError: They contradict each other, or differ and must not.
    """
    for name in typed:
        if name not in table.names or name not in rows.names:
            continue  # whether there may be such columns is not decided here
        there, here = table.field(name).type, rows.field(name).type
        try:
            kind = _united(there, here, name)
        except _ContradictionError as error:
            raise _changed(name, there, here, str(error), uri) from None
        if not evolves and not (_same(kind, there) and _same(kind, here)):
            reason = "fields are new or gone; schema_evolution='add' adds new ones to the table"
            raise _changed(name, there, here, reason, uri)
        rows = rows.set(rows.get_field_index(name), rows.field(name).with_type(kind))
    return rows


def lacks(table: pa.Schema, columns: pa.Schema, typed: Iterable[str]) -> bool:
    """Whether the table lacks some field of the typed columns; `columns` are `united` with it."""
    return any(
        not _same(_united(table.field(name).type, columns.field(name).type, name),
                  table.field(name).type)
        for name in typed
        if name in table.names and name in columns.names
    )  # fmt: skip


def conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows with columns of these types; fields that they lack are null."""
    columns = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _same(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether both have the same fields, whatever their order and however lists call their items.

    Both are parts of what is united, so types of the same fields are the same.
    """
    if pa.types.is_struct(one):
        return {field.name for field in one} == {field.name for field in other} and all(
            _same(field.type, other.field(field.name).type) for field in one
        )
    if pa.types.is_map(one):
        return _same(one.item_type, other.item_type)
    if _is_list(one):
        return _same(one.value_type, other.value_type)
    return True


def _united(there: pa.DataType, here: pa.DataType, path: str) -> pa.DataType:
    if pa.types.is_struct(there) and pa.types.is_struct(here):
        return _united_struct(there, here, path)
    if pa.types.is_map(there) and pa.types.is_map(here):
        key = _united(there.key_type, here.key_type, f"{path}.key")
        item = _field(there.item_field, here.item_field, f"{path}.value")
        return pa.map_(key, item)
    if _is_list(there) and _is_list(here):
        element = _field(there.value_field, here.value_field, f"{path}.element")
        return pa.list_(element.with_name(here.value_field.name))
    if _plain(there) != _plain(here):
        raise _ContradictionError(f"{path} is {there} there and {here} in the rows")
    return _plain(here)


def _united_struct(there: pa.DataType, here: pa.DataType, path: str) -> pa.DataType:
    known = {field.name: field for field in there}
    new = {field.name: field for field in here}
    by_case = {name.lower(): name for name in known}
    fields = [
        _field(field, new[name], f"{path}.{name}")
        if name in new
        else field.with_type(_canonical(field.type))
        for name, field in known.items()
    ]
    for name, field in new.items():
        if name in known:
            continue
        if (other := by_case.setdefault(name.lower(), name)) != name:
            raise _ContradictionError(f"{path}.{name} and {path}.{other} differ in case only")
        fields.append(field.with_nullable(True))
    missing = [name for name, field in known.items() if name not in new and not field.nullable]
    if missing:
        raise _ContradictionError(f"{path}.{missing[0]} must not be null, and the rows lack it")
    return pa.struct(fields)


def _field(there: pa.Field, here: pa.Field, path: str) -> pa.Field:
    if here.nullable and not there.nullable:
        raise _ContradictionError(f"{path} must not be null there and may be null in the rows")
    kind = _united(there.type, here.type, path)
    return pa.field(here.name, kind, nullable=there.nullable)


def _canonical(kind: pa.DataType) -> pa.DataType:
    """A type as decoders make it, whatever libraries of tables take for it."""
    return _united(kind, kind, "")


def _plain(kind: pa.DataType) -> pa.DataType:
    """The same of a type without fields."""
    if any(is_it(kind) for is_it in _TEXTS):
        return pa.string()
    if any(is_it(kind) for is_it in _BYTES):
        return pa.binary()
    return kind


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _changed(
    name: str, there: pa.DataType, here: pa.DataType, reason: str, uri: str
) -> SchemaChangedError:
    texts = [text if len(text := str(kind)) <= _SHOWN else f"{text[:_SHOWN]}…"
             for kind in (_canonical(there), here)]  # fmt: skip
    return SchemaChangedError(
        f"the rows' column {name} is not the table's: {reason}. The table has {texts[0]}, the rows"
        f" have {texts[1]}. Export into another table, or read with the schema it was begun with",
        uri=uri,
    )
