"""Nulls below null structs: what stands there by chance is hidden from who looks at a field alone.

Arrow leaves open what the fields of a null struct hold, and some engines read a field without its
struct. Fields that are declared not to be null stay so: else Parquet's writer would refuse them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from segment_format.kernels.pool_memory import copied

if TYPE_CHECKING:
    from numpy.typing import NDArray


def with_nulls_below(array: pa.Array) -> pa.Array:
    """An array in which all fields of a null struct that may be null are, at each depth.

    Values and offsets are those of the array.

    Args:
        array: With an offset of 0, and so its children.
    """
    return _below(array, None, nullable=True)


def _below(array: pa.Array, above: NDArray[np.uint8] | None, *, nullable: bool) -> pa.Array:
    """The array with nulls where a bit of `above` is 0.

    Args:
        array: Which.
        above: Validity bits of the struct it is a field of; `None` where that is nowhere null.
        nullable: Whether it may be null itself; its fields are in any case.
    """
    kind = array.type
    if pa.types.is_null(kind):
        return array
    own = array.buffers()[: kind.num_buffers]
    bits = None
    if array.null_count:
        bits = np.frombuffer(own[0], np.uint8)[: (len(array) + 7) // 8]
    if above is not None:
        bits = above if bits is None else bits & above
        if nullable:
            own[0] = copied(bits)
    children = None
    if pa.types.is_struct(kind):
        children = [
            _below(array.field(index), bits, nullable=field.nullable)
            for index, field in enumerate(kind)
        ]
    elif pa.types.is_list(kind):
        children = [_below(array.values, None, nullable=True)]
    elif pa.types.is_map(kind):
        entries = pa.struct([kind.key_field, kind.item_field])
        pairs = [array.keys, _below(array.items, None, nullable=True)]
        size = len(array.keys)
        children = [pa.Array.from_buffers(entries, size, [None], 0, children=pairs)]
    elif above is None:
        return array
    return pa.Array.from_buffers(kind, len(array), own, children=children)
