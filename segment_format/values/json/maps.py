"""Keys of maps inside the kernels: of two entries with one key, the later stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels.compiled import helper, inlined
from segment_format.kernels.memory import load_i64_native, load_u8, load_word, store_i64, store_u8
from segment_format.values.json import contract as c
from segment_format.values.json.keys import arena_end, arena_has
from segment_format.values.json.strings import ONE, same_bytes

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Value

_FEW = np.int64(8)
_SIZE_MASK = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


@inlined
def text_address(frame: Address, packed: Value) -> Value:
    """Where the text of a string (uint64, see `contract`) is."""
    if packed & ONE:
        return load_word(frame + np.uint64(8 * c.ARENA)) + (packed >> _SHIFT)
    return load_word(frame + np.uint64(8 * c.BASE)) + (packed >> _SHIFT)


@inlined
def text_size(packed: Value) -> Value:
    """Its size in bytes (uint64)."""
    return (packed & _SIZE_MASK) >> ONE


@inlined
def _text(data: Address, entry: Value) -> Value:
    return load_word(data + np.uint64(8 * entry))


@helper
def drop_duplicates(
    frame: Address, places: Address, data: Address, first: Value, count: Value
) -> Value:
    """Takes the earlier ones of equal keys back, among `count` entries from `first` on; False if
    the arena has no room for it.
    """
    if count <= _FEW:
        for later in range(first + 1, first + count):
            for earlier in range(first, later):
                if _is_same(frame, _text(data, earlier), _text(data, later)):
                    store_u8(places + np.uint64(earlier), 0)
        return True
    if not arena_has(frame, np.uint64(8 * count)):
        return False
    order = arena_end(frame)
    for place in range(count):
        store_i64(order + np.uint64(8 * place), first + place)
    _sort(frame, data, order, count)
    for place in range(1, count):
        earlier = load_i64_native(order + np.uint64(8 * place - 8))
        later = load_i64_native(order + np.uint64(8 * place))
        if _is_same(frame, _text(data, earlier), _text(data, later)):
            store_u8(places + np.uint64(earlier), 0)
    return True


@inlined
def _is_same(frame: Address, one: Value, other: Value) -> Value:
    size = text_size(one)
    return size == text_size(other) and same_bytes(
        text_address(frame, one), text_address(frame, other), size
    )


@helper
def _is_before(frame: Address, data: Address, one: Value, other: Value) -> Value:
    """An order of entries in which equal keys follow each other, the earlier first."""
    first, second = _text(data, one), _text(data, other)
    size = text_size(first)
    if size != text_size(second):
        return size < text_size(second)
    at, to = text_address(frame, first), text_address(frame, second)
    stop = at + size
    while at < stop:
        byte, against = load_u8(at), load_u8(to)
        if byte != against:
            return byte < against
        at += ONE
        to += ONE
    return one < other


@helper
def _sort(frame: Address, data: Address, order: Address, count: Value) -> None:
    """Heapsort: no input makes it slow."""
    for start in range(count // 2 - 1, -1, -1):
        _sift(frame, data, order, start, count)
    for stop in range(count - 1, 0, -1):
        top = load_i64_native(order)
        store_i64(order, load_i64_native(order + np.uint64(8 * stop)))
        store_i64(order + np.uint64(8 * stop), top)
        _sift(frame, data, order, 0, stop)


@helper
def _sift(frame: Address, data: Address, order: Address, start: Value, stop: Value) -> None:
    root = np.int64(start)
    entry = load_i64_native(order + np.uint64(8 * root))
    while 2 * root + 1 < stop:
        child = 2 * root + 1
        below = load_i64_native(order + np.uint64(8 * child))
        if child + 1 < stop:
            other = load_i64_native(order + np.uint64(8 * child + 8))
            if _is_before(frame, data, below, other):
                child += 1
                below = other
        if not _is_before(frame, data, entry, below):
            break
        store_i64(order + np.uint64(8 * root), below)
        root = child
    store_i64(order + np.uint64(8 * root), entry)
