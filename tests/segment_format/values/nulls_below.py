"""Whether fields are null wherever their struct is."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def check_nulls_below(array: pa.Array) -> None:
    """Fails for a field of a null struct that shows a value, at any depth."""
    kind = array.type
    if pa.types.is_struct(kind):
        for index in range(kind.num_fields):
            field = array.field(index)  # not `flatten()`, which hides them
            shown = pc.and_(array.is_null(), field.is_valid())
            assert not pc.any(shown).as_py(), (kind.field(index), array)
            check_nulls_below(field)
    elif pa.types.is_list(kind):
        check_nulls_below(array.values)
    elif pa.types.is_map(kind):
        check_nulls_below(array.items)
