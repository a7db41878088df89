"""Builds Arrow map arrays. If a map contains the same key several times, only the last entry with
this key is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from segment_format.kernels import contract as c
from segment_format.kernels.arrow_buffers import (
    allocate,
    copied,
    make_array,
    make_entries,
    pack_bits,
)
from segment_format.kernels.native import load_kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray


class KeyMemory(NamedTuple):
    """Location of the keys of map entries.

    Attributes:
        address: Address of the keys if they are numbers. If they are texts, address of their int32
            offsets: the start of the first text, then the end of each text.
        width: Bytes of a number; 0 if the keys are texts.
        data: Address of the bytes of the texts; not used for numbers.
    """

    address: int
    width: int
    data: int


def make_map(
    kind: pa.DataType,
    rows: int,
    present: NDArray[np.uint8] | NDArray[np.bool_] | None,
    ends: pa.Buffer,
    entries: list[pa.Array],
    keys: KeyMemory,
) -> pa.Array:
    """Returns an Arrow array of maps. If a key is repeated in a map, only the last entry with this
    key is kept.

    Args:
        kind: Type of the maps.
        rows: Number of maps.
        present: A byte for each map, which is 0 if the map is null. `None` if no map is null.
        ends: int32 offsets into the entries: 0, then the end of each map's entries.
        entries: Two arrays: the keys, without nulls, and the values.
        keys: Location of the first array of `entries` in memory.
    """
    kept = _kept_entries(np.frombuffer(ends, np.int32), len(entries[0]), keys)
    if kept is not None:
        mask = pa.Array.from_buffers(pa.bool_(), len(kept), [None, pack_bits(kept)])
        entries = [array.filter(mask) for array in entries]
        kept_before = np.concatenate([[0], np.cumsum(kept)])
        ends = copied(kept_before[np.frombuffer(ends, np.int32)].astype(np.int32))
    return make_array(kind, rows, present, [ends], [make_entries(kind, *entries)])


def _kept_entries(
    ends: NDArray[np.int32], entries: int, keys: KeyMemory
) -> NDArray[np.bool_] | None:
    """Returns a mask of the entries to keep. Returns `None` if no map contains a key several times,
    so all entries are kept.
    """
    sizes = np.diff(ends)
    largest = int(sizes.max()) if len(sizes) else 0
    if largest < 2:
        return None
    kept = np.ones(entries, np.uint8)
    table = np.empty(_table_size(largest) if largest > c.FEW_KEYS else 1, np.int64)
    frame = np.zeros(c.KEY_FRAME_SIZE, np.int64)
    frame[c.KEY_SLOT_ENDS], frame[c.KEY_SLOT_MAPS] = ends.ctypes.data, len(sizes)
    frame[c.KEY_SLOT_KEYS], frame[c.KEY_SLOT_WIDTH] = keys.address, keys.width
    frame[c.KEY_SLOT_DATA] = keys.address if keys.width else keys.data
    frame[c.KEY_SLOT_KEPT], frame[c.KEY_SLOT_TABLE] = kept.ctypes.data, table.ctypes.data
    frame[c.KEY_SLOT_SEED] = _seed()
    return kept.view(np.bool_) if load_kernel("mark_repeated")(frame.ctypes.data) else None


def _table_size(entries: int) -> int:
    size = 16
    while size < 2 * entries:
        size *= 2
    return size


def _seed() -> int:
    """Returns a seed for the hash of keys. The writer of the data cannot predict it, because it is
    the address of newly allocated memory.
    """
    return int(allocate(64).address)
