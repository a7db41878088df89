"""The kernel that finds keys that come again in the same map."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba.core import types

from segment_format.kernels.compiled import helper, inlined, kernel
from segment_format.kernels.primitives import (
    load_i64_native,
    load_u8,
    load_u32_native,
    store_i64,
    store_u8,
)
from segment_format.values.avro import key_contract as c

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Frame, Value

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
    return np.int64((found * _MIX) >> _SHIFT)


@helper
def _mark_by_table(
    first: Value, stop: Value, keys: Address, data: Address, kept: Address, table: Address,
    seed: Value,
) -> Value:  # fmt: skip
    """From the last entry to the first, so that the last of equal keys is the one that is kept."""
    size = np.int64(16)
    while size < 2 * (stop - first):
        size *= 2
    for place in range(size):
        store_i64(table + np.uint64(8 * place), np.int64(-1))
    repeated = np.int64(0)
    number = stop - 1
    while number >= first:
        place = _hash(data, keys, number, seed) & (size - 1)
        other = load_i64_native(table + np.uint64(8 * place))
        while other >= 0 and not _same(data, keys, other, number):
            place = (place + 1) & (size - 1)
            other = load_i64_native(table + np.uint64(8 * place))
        if other >= 0:
            store_u8(kept + np.uint64(number), np.int64(0))
            repeated += 1
        else:
            store_i64(table + np.uint64(8 * place), number)
        number -= 1
    return repeated


@kernel(types.int64(types.Array(types.int64, 1, "C")))
def mark_repeated(frame: Frame) -> Value:
    """Marks entries whose key comes again in the same map; how many they are."""
    ends = np.uint64(frame[c.ENDS])
    keys = np.uint64(frame[c.KEYS])
    data = np.uint64(frame[c.DATA])
    kept = np.uint64(frame[c.KEPT])
    repeated = np.int64(0)
    for one in range(frame[c.MAPS]):
        first, stop = _end(ends, one), _end(ends, one + 1)
        if stop - first > c.FEW:
            table, seed = np.uint64(frame[c.TABLE]), np.uint64(frame[c.SEED])
            repeated += _mark_by_table(first, stop, keys, data, kept, table, seed)
            continue
        for number in range(first, stop - 1):
            for later in range(number + 1, stop):
                if _same(data, keys, number, later):
                    store_u8(kept + np.uint64(number), np.int64(0))
                    repeated += 1
                    break
    return repeated
