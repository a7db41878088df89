"""Maps of which some have a key twice: the last one wins, as everywhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numba.core import types

from segment_format.kernels.compiled import helper, inlined, kernel
from segment_format.kernels.memory import load_u8, load_u32_native
from segment_format.kernels.pool_memory import allocate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from segment_format.kernels.compiled import Address, Value

_PRIME = np.uint64(0x100000001B3)
_BASIS = np.uint64(0xCBF29CE484222325)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(32)


@inlined
def _end(ends: Address, number: Value) -> Value:
    return np.int64(load_u32_native(ends + np.uint64(4 * number)))


@helper
def _same(data: Address, keys: Address, first: Value, second: Value) -> Value:
    at, other = _end(keys, first), _end(keys, second)
    size = _end(keys, first + 1) - at
    if size != _end(keys, second + 1) - other:
        return False
    for byte in range(size):
        if load_u8(data + np.uint64(at + byte)) != load_u8(data + np.uint64(other + byte)):
            return False
    return True


@helper
def _hash(data: Address, keys: Address, number: Value, seed: Value) -> Value:
    found = _BASIS ^ seed
    for byte in range(_end(keys, number), _end(keys, number + 1)):
        found = (found ^ load_u8(data + np.uint64(byte))) * _PRIME
    return (found * _MIX) >> _SHIFT


_COUNT = types.int64
_ADDRESS = types.uint64


@kernel(
    _COUNT(
        _ADDRESS,
        _COUNT,
        _ADDRESS,
        _ADDRESS,
        types.Array(types.bool_, 1, "C"),
        types.Array(types.int64, 1, "C"),
        _ADDRESS,
    )
)
def mark_repeated(
    ends: Address,
    maps: Value,
    keys: Address,
    data: Address,
    kept: Value,
    table: Value,
    seed: Value,
) -> Value:
    """Marks entries whose key comes again in the same map; how many they are.

    Args:
        ends: Of the maps' entries: int32, behind a leading one.
        maps: How many maps there are.
        keys: Ends of the keys' bytes: int32, behind a leading one.
        data: Their bytes.
        kept: Per entry; set to False for those that are marked.
        table: Room for a power of 2 of numbers, twice as many as the largest map has, or more.
        seed: Of hashes, so that nobody can choose keys that have the same.
    """
    repeated = 0
    for one in range(maps):
        first, stop = _end(ends, one), _end(ends, one + 1)
        if stop - first < 2:
            continue
        if stop - first <= 8:
            for number in range(first, stop - 1):
                for later in range(number + 1, stop):
                    if _same(data, keys, number, later):
                        kept[number] = False
                        repeated += 1
                        break
            continue
        size = 16
        while size < 2 * (stop - first):
            size *= 2
        table[:size] = -1
        number = stop - 1
        while number >= first:
            place = np.int64(_hash(data, keys, number, seed)) & (size - 1)
            while table[place] >= 0 and not _same(data, keys, table[place], number):
                place = (place + 1) & (size - 1)
            if table[place] >= 0:
                kept[number] = False
                repeated += 1
            else:
                table[place] = number
            number -= 1
    return repeated


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
    kept = np.ones(len(keys), np.bool_)
    room = 16
    while room < 2 * largest:
        room *= 2
    table = np.empty(room if largest > 8 else 1, np.int64)
    _, key_ends, data = keys.buffers()
    repeated = mark_repeated(
        ends.ctypes.data, len(sizes), key_ends.address, data.address, kept, table, _seed()
    )
    if not repeated:
        return ends, children
    counted: NDArray[Any] = np.concatenate([[0], np.cumsum(kept)])
    return counted[ends].astype(np.int32), [child.filter(pa.array(kept)) for child in children]


def _seed() -> int:
    """Not to be foreseen from outside: where new memory stands."""
    return int(allocate(64).address)
