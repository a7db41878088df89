"""Contains the kernel that marks map entries whose key is repeated later in the same map."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels import contract as c
from segment_format.kernels.compiled import helper, inlined, kernel
from segment_format.kernels.primitives import (
    frame_at,
    load_i64_native,
    load_u8,
    load_u32_native,
    store_i64,
    store_u8,
)

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Frame, Value

_PRIME = np.uint64(0x100000001B3)
_BASIS = np.uint64(0xCBF29CE484222325)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(32)


@inlined
def _end(ends: Address, number: Value) -> Value:
    return np.int64(load_u32_native(ends + np.uint64(4 * number)))


@inlined
def _key_start(keys: Address, width: Value, number: Value) -> Value:
    """Returns the position of the first byte of key number `number`. A key ends where the next key
    starts.
    """
    if width == 0:
        return _end(keys, number)
    return width * number


@helper
def _same(data: Address, keys: Address, width: Value, first: Value, second: Value) -> Value:
    start, other = _key_start(keys, width, first), _key_start(keys, width, second)
    size = _key_start(keys, width, first + 1) - start
    if size != _key_start(keys, width, second + 1) - other:
        return False
    for byte in range(size):
        if load_u8(data + np.uint64(start + byte)) != load_u8(data + np.uint64(other + byte)):
            return False
    return True


@helper
def _hash(data: Address, keys: Address, width: Value, number: Value, seed: Value) -> Value:
    value = _BASIS ^ seed
    for byte in range(_key_start(keys, width, number), _key_start(keys, width, number + 1)):
        value = (value ^ load_u8(data + np.uint64(byte))) * _PRIME
    return np.int64((value * _MIX) >> _SHIFT)


@helper
def _mark_by_table(first: Value, stop: Value, frame: Frame) -> Value:
    """Marks each entry of a map whose key is repeated later in the map. Returns the number of
    marked entries. Uses a hash table.

    The loop begins at the last entry, so the last of several equal keys is not marked.
    """
    keys, width = np.uint64(frame[c.KEY_SLOT_KEYS]), frame[c.KEY_SLOT_WIDTH]
    data = np.uint64(frame[c.KEY_SLOT_DATA])
    kept = np.uint64(frame[c.KEY_SLOT_KEPT])
    table, seed = np.uint64(frame[c.KEY_SLOT_TABLE]), np.uint64(frame[c.KEY_SLOT_SEED])
    size = np.int64(16)
    while size < 2 * (stop - first):
        size *= 2
    for index in range(size):
        store_i64(table + np.uint64(8 * index), np.int64(-1))
    repeated = np.int64(0)
    number = stop - 1
    while number >= first:
        index = _hash(data, keys, width, number, seed) & (size - 1)
        other = load_i64_native(table + np.uint64(8 * index))
        while other >= 0 and not _same(data, keys, width, other, number):
            index = (index + 1) & (size - 1)
            other = load_i64_native(table + np.uint64(8 * index))
        if other >= 0:
            store_u8(kept + np.uint64(number), np.int64(0))
            repeated += 1
        else:
            store_i64(table + np.uint64(8 * index), number)
        number -= 1
    return repeated


@kernel
def mark_repeated(state: Address) -> Value:
    """Marks each entry whose key is repeated later in the same map. Returns the number of marked
    entries.

    Args:
        state: Address of a frame with `KEY_FRAME_SIZE` slots.
    """
    frame = frame_at(state, c.KEY_FRAME_SIZE)
    ends = np.uint64(frame[c.KEY_SLOT_ENDS])
    keys, width = np.uint64(frame[c.KEY_SLOT_KEYS]), frame[c.KEY_SLOT_WIDTH]
    data = np.uint64(frame[c.KEY_SLOT_DATA])
    kept = np.uint64(frame[c.KEY_SLOT_KEPT])
    repeated = np.int64(0)
    for each in range(frame[c.KEY_SLOT_MAPS]):
        first, stop = _end(ends, each), _end(ends, each + 1)
        if stop - first > c.FEW_KEYS:
            repeated += _mark_by_table(first, stop, frame)
            continue
        for number in range(first, stop - 1):
            for later in range(number + 1, stop):
                if _same(data, keys, width, number, later):
                    store_u8(kept + np.uint64(number), np.int64(0))
                    repeated += 1
                    break
    return repeated
