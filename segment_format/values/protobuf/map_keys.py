"""Keys that a map has more than once: the last entry counts.

Few entries are compared in pairs; of many, an order is made by heap sort, whose work is bounded
whatever the keys are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels.compiled import helper, inlined, kernel
from segment_format.kernels.primitives import (
    load_i64_native,
    load_u8,
    load_u32_native,
    load_word,
    store_i32,
    store_u8,
)

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Value

_FEW = 12
_ONE = np.uint64(1)
_FOUR = np.uint64(4)
_EIGHT = np.uint64(8)


@inlined
def _at(base: Address, index: Value) -> Value:
    return np.int64(load_u32_native(base + _FOUR * np.uint64(index)))


@helper
def _compare(keys: Address, width: Value, texts: Address, a: Value, b: Value) -> Value:
    """Order of two keys: negative, 0 if equal, or positive. Any order does."""
    if width == 0:
        start_a, start_b = _at(keys, a), _at(keys, b)
        size = _at(keys, a + 1) - start_a
        difference = size - (_at(keys, b + 1) - start_b)
        if difference != 0:
            return difference
        one = texts + np.uint64(start_a)
        other = texts + np.uint64(start_b)
        stop = one + np.uint64(size)
        while stop - one >= _EIGHT and load_word(one) == load_word(other):
            one += _EIGHT
            other += _EIGHT
        while one < stop:
            difference = np.int64(load_u8(one)) - np.int64(load_u8(other))
            if difference != 0:
                return difference
            one += _ONE
            other += _ONE
        return np.int64(0)
    first = keys + np.uint64(a * width)
    second = keys + np.uint64(b * width)
    if width == 1:
        return np.int64(load_u8(first)) - np.int64(load_u8(second))
    if width == 4:
        return np.int64(load_u32_native(first)) - np.int64(load_u32_native(second))
    # Of 16 bytes only the low 8 are ever set.
    x, y = load_i64_native(first), load_i64_native(second)
    return np.int64(x > y) - np.int64(x < y)


@inlined
def _before(keys: Address, width: Value, texts: Address, a: Value, b: Value) -> Value:
    order = _compare(keys, width, texts, a, b)
    return order < 0 or (order == 0 and a < b)


@helper
def _sink(
    heap: Address, root: Value, size: Value, keys: Address, width: Value, texts: Address
) -> None:
    item = _at(heap, root)
    while 2 * root + 1 < size:
        child = 2 * root + 1
        if child + 1 < size and _before(keys, width, texts, _at(heap, child), _at(heap, child + 1)):
            child += 1
        if not _before(keys, width, texts, item, _at(heap, child)):
            break
        store_i32(heap + _FOUR * np.uint64(root), _at(heap, child))
        root = child
    store_i32(heap + _FOUR * np.uint64(root), item)


@helper
def _sort(heap: Address, size: Value, keys: Address, width: Value, texts: Address) -> None:
    for root in range(size // 2 - 1, -1, -1):
        _sink(heap, root, size, keys, width, texts)
    for last in range(size - 1, 0, -1):
        top, other = _at(heap, 0), _at(heap, last)
        store_i32(heap, other)
        store_i32(heap + _FOUR * np.uint64(last), top)
        _sink(heap, np.int64(0), last, keys, width, texts)


@kernel("int64(uint64, int64, uint64, int64, uint64, uint64, uint64)")
def mark_replaced(
    ends: Address,
    maps: Value,
    keys: Address,
    width: Value,
    texts: Address,
    kept: Address,
    order: Address,
) -> Value:
    """Marks entries whose key comes again in the same map; how many they are.

    Args:
        ends: int32: where the entries of each map begin, and where the last ends.
        maps: How many there are.
        keys: Numbers, or int32 offsets of texts.
        width: Bytes of a number; 0 for texts.
        texts: Their bytes.
        kept: A byte of each entry, set to 0 where it does not count.
        order: Memory for an int32 of each entry.
    """
    replaced = np.int64(0)
    for each in range(maps):
        start, stop = _at(ends, each), _at(ends, each + 1)
        if stop - start <= _FEW:
            for a in range(start, stop - 1):
                for b in range(a + 1, stop):
                    if _compare(keys, width, texts, a, b) == 0:
                        store_u8(kept + np.uint64(a), np.int64(0))
                        replaced += 1
                        break
        else:
            for index in range(start, stop):
                store_i32(order + _FOUR * np.uint64(index), index)
            heap = order + _FOUR * np.uint64(start)
            _sort(heap, stop - start, keys, width, texts)
            for index in range(start, stop - 1):
                at = order + _FOUR * np.uint64(index)
                a = _at(at, 0)
                if _compare(keys, width, texts, a, _at(at, 1)) == 0:
                    store_u8(kept + np.uint64(a), np.int64(0))
                    replaced += 1
    return replaced
