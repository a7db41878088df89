"""A type with only the fields that are wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence


def projected(kind: pa.DataType, columns: Sequence[str]) -> pa.DataType:
    """The type with the fields of some paths alone, in the type's order.

    Args:
        kind: A struct.
        columns: Names of fields, joined by dots where a field is a struct itself. One that names a
            struct is all of it. A name may have dots of its own.

    Raises:
        ValueError: A path that names no field, or a type without fields.
    """
    return _projected(kind, tuple(columns), "")


def _projected(kind: pa.DataType, columns: tuple[str, ...], above: str) -> pa.DataType:
    if not pa.types.is_struct(kind):
        where = f"field {above!r}" if above else "the value"
        raise ValueError(f"{where} is a {kind}, so it has no field {columns[0]!r}")
    names = [field.name for field in kind]
    below: dict[str, list[str | None]] = {}
    for column in columns:
        # The whole name first, then the longest: names may have dots.
        fitting = [name for name in names if column == name or column.startswith(f"{name}.")]
        if not fitting:
            wrong = f"{above}.{column}" if above else column
            raise ValueError(f"there is no field {wrong!r}; there are {', '.join(names)}")
        name = max(fitting, key=len)
        rest = None if column == name else column[len(name) + 1 :]
        below.setdefault(name, []).append(rest)
    fields = []
    for field in kind:
        wanted = below.get(field.name, [])
        if None in wanted:
            fields.append(field)
        elif wanted:
            path = f"{above}.{field.name}" if above else field.name
            inner = tuple(rest for rest in wanted if rest is not None)
            fields.append(field.with_type(_projected(field.type, inner, path)))
    return pa.struct(fields)
