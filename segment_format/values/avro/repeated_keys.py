"""Maps of which some have a key twice: the last one wins, as everywhere else."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from segment_format.kernels import object_code
from segment_format.kernels.pool_memory import allocate
from segment_format.values.avro import key_contract as c

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


def without_repeated_keys(
    ends: NDArray[np.int32], children: list[pa.Array]
) -> tuple[NDArray[np.int32], list[pa.Array]]:
    """The same maps with each key once, with its last value.

    Args:
        ends: Of the maps' entries, behind a leading 0.
        children: Keys, without nulls, and values.

    Returns:
        Ends and children; the same objects where no key comes twice.
    """
    keys = children[0]
    sizes = np.diff(ends)
    largest = int(sizes.max()) if len(sizes) else 0
    if largest < 2:
        return ends, children
    kept = np.ones(len(keys), np.uint8)
    table = np.empty(table_size(largest) if largest > c.FEW else 1, np.int64)
    _, key_ends, data = keys.buffers()
    frame = np.zeros(c.FRAME_SIZE, np.int64)
    frame[c.ENDS], frame[c.MAPS] = ends.ctypes.data, len(sizes)
    frame[c.KEYS], frame[c.DATA] = key_ends.address, data.address
    frame[c.KEPT], frame[c.TABLE] = kept.ctypes.data, table.ctypes.data
    frame[c.SEED] = _seed()
    if not _kernel()(frame):
        return ends, children
    mask = kept.view(np.bool_)
    counted: NDArray[Any] = np.concatenate([[0], np.cumsum(mask)])
    return counted[ends].astype(np.int32), [child.filter(pa.array(mask)) for child in children]


def table_size(entries: int) -> int:
    """Places of the table for a map of so many."""
    size = 16
    while size < 2 * entries:
        size *= 2
    return size


@lru_cache(1)
def _kernel() -> Callable[[NDArray[np.int64]], int]:
    found = object_code.load_of_frame("mark_repeated")
    if found is not None:
        return found
    from segment_format.values.avro.mark_repeated import mark_repeated  # brings in numba

    return mark_repeated


def _seed() -> int:
    """Not to be foreseen from outside: where new memory stands."""
    return int(allocate(64).address)
