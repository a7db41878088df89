"""Fields of decoded columns, found by name as Spark finds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from kts_source.predicate.model import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence


FindField = Callable[[tuple[str, ...]], tuple[tuple[str, ...], pa.DataType]]
"""Names from the top down, in any case, to the names as they are and the field's type. Raises
`ValueError` where there is no such field.
"""


def find_field(kind: pa.DataType, path: Sequence[str]) -> tuple[tuple[str, ...], pa.DataType]:
    """A field's names as the type spells them, and its type.

    Args:
        kind: Of the decoded column.
        path: Names in any case, from the top down.

    Raises:
        ValueError: There is no such field, or there are two that differ by case alone.
    """
    exact: tuple[str, ...] = ()
    for name in path:
        above = f"field {'.'.join(exact)!r}" if exact else "the column"
        if not pa.types.is_struct(kind):
            raise ValueError(f"is not there: {above} is a {_short(kind)}")
        names = [field.name for field in kind]
        found = [one for one in names if one.lower() == name.lower()]
        if not found:
            raise ValueError(f"is not there: {above} has no field {name!r}, but {', '.join(names)}")
        if len(found) > 1:
            raise ValueError(f"may be any of {', '.join(found)}, which differ by case alone")
        exact += (found[0],)
        kind = kind.field(kind.get_field_index(found[0])).type
    return exact, kind


def kind_of(type: pa.DataType) -> Kind:
    """What a field of a type may be compared with.

    Raises:
        ValueError: Arrays and maps, which no predicate looks at.
    """
    for fits, kind in _KINDS:
        if fits(type):
            return kind
    raise ValueError(f"is a {_short(type)}, which a predicate cannot look at")


def _is_instant(type: pa.DataType) -> bool:
    return pa.types.is_timestamp(type) and type.tz is not None


_KINDS: Final = (
    (pa.types.is_string, Kind.BYTES),
    (pa.types.is_binary, Kind.BYTES),
    (pa.types.is_boolean, Kind.BOOLEAN),
    (pa.types.is_signed_integer, Kind.NUMBER),
    (pa.types.is_floating, Kind.DOUBLE),
    (pa.types.is_decimal, Kind.DECIMAL),
    (pa.types.is_date32, Kind.DATE),
    (_is_instant, Kind.INSTANT),
    (pa.types.is_timestamp, Kind.LOCAL),
    (pa.types.is_duration, Kind.DURATION),
    (pa.types.is_struct, Kind.STRUCT),
)


def _short(type: pa.DataType) -> str:
    names = ((pa.types.is_map, "map"), (pa.types.is_list, "array"), (pa.types.is_struct, "struct"))
    return next((name for fits, name in names if fits(type)), str(type))
