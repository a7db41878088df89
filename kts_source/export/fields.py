"""Fields of columns that are structs, by their path: `value.user.id`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterator

_LISTS: Final = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column of a Parquet file, which is one without fields or items.

    Attributes:
        path: As Parquet's writers name it: `value.tags.list.element`.
        is_inner: Whether it is a field of a column, or an item of one.
        repeats: Whether a row may have it several times.
    """

    path: str
    type: pa.DataType
    is_inner: bool
    repeats: bool


def leaves(schema: pa.Schema) -> Iterator[Leaf]:
    """The columns of a file of such rows, in its order."""
    for field in schema:
        yield from _leaves(field.name, field.type, is_inner=False, repeats=False)


def _leaves(path: str, kind: pa.DataType, *, is_inner: bool, repeats: bool) -> Iterator[Leaf]:
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves(f"{path}.{field.name}", field.type, is_inner=True, repeats=repeats)
    elif pa.types.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", kind.key_type, is_inner=True, repeats=True)
        yield from _leaves(f"{path}.key_value.value", kind.item_type, is_inner=True, repeats=True)
    elif any(is_list(kind) for is_list in _LISTS):
        yield from _leaves(f"{path}.list.element", kind.value_type, is_inner=True, repeats=True)
    else:
        yield Leaf(path, kind, is_inner, repeats)


def type_at(schema: pa.Schema, path: str) -> pa.DataType | None:
    """The type of a column, or of a field of one; `None` where there is none."""
    if path in schema.names:
        return schema.field(path).type
    first, *rest = path.split(".")
    if first not in schema.names:
        return None
    kind = schema.field(first).type
    for name in rest:
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            return None
        kind = kind.field(kind.get_field_index(name)).type
    return kind


def column_at(rows: pa.RecordBatch | pa.Table, path: str) -> pa.Array | pa.ChunkedArray:
    """A column, or a field of one, which is null where what holds it is.

    Args:
        rows: They have it: `type_at` knows its type.
        path: Names joined by dots.
    """
    if path in rows.schema.names:
        return rows.column(path)
    first, *rest = path.split(".")
    return pc.struct_field(rows.column(first), rest)
