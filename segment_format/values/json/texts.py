"""The kernels that make Arrow's offsets and bytes out of strings found, see `contract`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels.compiled import inlined, kernel
from segment_format.kernels.memory import copy_32, copy_long, load_u8, load_word, store_i32
from segment_format.values.json.scalars import decode_base64
from segment_format.values.json.strings import ONE

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Value

_SIZE_MASK = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_STEP = np.uint64(32)
_SHORT = np.uint64(512)
_TWO = np.uint64(2)
_PADDING = np.uint64(ord("="))


@inlined
def _at(packed: Value, base: Address, arena: Address) -> Value:
    return (arena if packed & ONE else base) + (packed >> _SHIFT)


@inlined
def _size(packed: Value) -> Value:
    return (packed & _SIZE_MASK) >> ONE


@kernel("int64(uint64, int64)")
def texts_size(data: Address, count: Value) -> Value:
    """Bytes of so many strings."""
    total = np.uint64(0)
    for entry in range(count):
        total += _size(load_word(data + np.uint64(8 * entry)))
    return np.int64(total)


@kernel("void(uint64, int64, uint64, uint64, uint64, uint64, uint64)")
def gather_texts(
    data: Address,
    count: Value,
    base: Address,
    stop: Address,
    arena: Address,
    ends: Address,
    to: Address,
) -> None:
    """Writes the strings and, behind a first 0, where they end.

    Args:
        data: The strings.
        count: How many.
        base: The input.
        stop: Where the input ends: nothing behind it is read.
        arena: Strings unescaped; 32 bytes behind it may be read.
        ends: Where to write int32.
        to: Where to write bytes; 32 more may be written.
    """
    start = to
    store_i32(ends, 0)
    for entry in range(count):
        packed = load_word(data + np.uint64(8 * entry))
        size = _size(packed)
        at = _at(packed, base, arena)
        if size <= _SHORT and (packed & ONE or at + size + _STEP <= stop):
            copy_32(to, at)  # nearly always enough, and none too many: no branch to guess
            copied = _STEP
            while copied < size:
                copy_32(to + copied, at + copied)
                copied += _STEP
        else:
            copy_long(to, at, size)
        to += size
        store_i32(ends + np.uint64(4 * entry + 4), np.int64(to - start))


@kernel("void(uint64, int64, uint64, uint64, uint64, uint64)")
def gather_base64(
    data: Address, count: Value, base: Address, arena: Address, ends: Address, to: Address
) -> None:
    """Writes what strings of base64 stand for, as `gather_texts` does; it is never longer."""
    start = to
    store_i32(ends, 0)
    for entry in range(count):
        packed = load_word(data + np.uint64(8 * entry))
        size = np.int64(_size(packed))
        if size > 0:
            at = _at(packed, base, arena)
            behind = at + np.uint64(size)
            size = (size >> 2) * 3
            if load_u8(behind - ONE) == _PADDING:
                size -= 1
                if load_u8(behind - _TWO) == _PADDING:
                    size -= 1
            decode_base64(at, size, to)
            to += np.uint64(size)
        store_i32(ends + np.uint64(4 * entry + 4), np.int64(to - start))
