"""Checks that nullable fields are null wherever their struct is null."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def check_nulls_below(array: pa.Array, above: pa.Array | None = None) -> None:
    """Fails if a field of a null struct has a value, at any depth. `above` is True in the rows
    where an enclosing struct is null, or None without an enclosing struct.
    """
    kind = array.type
    if pa.types.is_struct(kind):
        nulls = array.is_null() if above is None else pc.or_(above, array.is_null())
        for index, declared in enumerate(kind):
            field = array.field(index)  # `flatten()` would hide the values
            if declared.nullable:
                assert not pc.any(pc.and_(nulls, field.is_valid())).as_py(), (declared, array)
            else:
                assert not field.null_count, (declared, array)
            check_nulls_below(field, nulls)
    elif pa.types.is_list(kind):
        check_nulls_below(array.values)
    elif pa.types.is_map(kind):
        check_nulls_below(array.items)
