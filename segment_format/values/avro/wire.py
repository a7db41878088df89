"""What stands in Avro's bytes, read at an address: numbers, text, decimals. Part of the kernel.

Numbers are zig-zag varints of at most 10 bytes that hold no more than 64 bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels.compiled import helper, inlined
from segment_format.kernels.memory import copy_long, load_u8, load_word, store_i64
from segment_format.kernels.utf8 import utf8_size
from segment_format.kernels.varint import zigzag

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Value

TRUNCATED = np.uint64(0)
"""Instead of the next address: the number goes on beyond the end."""
TOO_LONG = np.uint64(1)
"""Instead of the next address: it has more than 64 bits."""
_ONE = np.uint64(1)
_SEVEN = np.uint64(7)
_EIGHT = np.uint64(8)
_STEP = np.uint64(16)
_TOP = np.uint64(63)
_LOW = np.uint64(0x7F)
_MORE = np.uint64(0x80)
_FF = np.uint64(0xFF)
_ZERO = np.uint64(0)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_HIGH_BITS = np.uint64(0x8080808080808080)
_LAST_BYTE = np.uint64(56)


@helper
def _long_number(at: Address, stop: Address) -> Value:
    raw = _ZERO
    shift = _ZERO
    while at < stop:
        byte = load_u8(at)
        at += _ONE
        if shift == _TOP and byte > _ONE:
            return np.int64(0), TOO_LONG
        raw |= (byte & _LOW) << shift
        if byte < _MORE:
            return zigzag(raw), at
        shift += _SEVEN
    return np.int64(0), TRUNCATED


@inlined
def read_long(at: Address, stop: Address) -> Value:
    """The number at `at` and the address behind it, or `TRUNCATED` or `TOO_LONG`."""
    if stop - at >= np.uint64(2) and at < stop:
        first = load_u8(at)
        if first < _MORE:
            return zigzag(first), at + _ONE
        second = load_u8(at + _ONE)
        if second < _MORE:
            return zigzag((first & _LOW) | second << _SEVEN), at + np.uint64(2)
    return _long_number(at, stop)


@inlined
def _mask(size: Value) -> Value:
    """Of the first `size` (0 to 8) bytes of a word; a shift by 64 bits is none."""
    half = size << np.uint64(2)
    return ((_ONE << half) << half) - _ONE


@inlined
def copy_text(target: Address, source: Address, size: Value, limit: Address) -> Value:
    """Copies `size` bytes (int64), 16 at a time; whether some may not be ASCII.

    Up to 16 bytes too many are written, and read, but none at or behind `limit`.
    """
    left = np.uint64(size)
    if limit - source < left + _STEP:
        copy_long(target, source, left)
        return True
    high = _ZERO
    while left > _STEP:
        first = load_word(source)
        second = load_word(source + _EIGHT)
        store_i64(target, np.int64(first))
        store_i64(target + _EIGHT, np.int64(second))
        high |= first | second
        source += _STEP
        target += _STEP
        left -= _STEP
    first = load_word(source)
    second = load_word(source + _EIGHT)
    store_i64(target, np.int64(first))
    store_i64(target + _EIGHT, np.int64(second))
    in_first = min(left, _EIGHT)
    high |= (first & _mask(in_first)) | (second & _mask(left - in_first))
    return high & _HIGH_BITS != _ZERO


@helper
def is_utf8(address: Address, size: Value) -> Value:
    """Whether bytes are UTF-8: nothing overlong, no surrogates, nothing above U+10FFFF."""
    _, malformed = utf8_size(address, np.uint64(size))
    return malformed == 0


@helper
def copy_decimal(target: Address, at: Address, size: Value, high: Value, low: Value) -> Value:
    """Writes a big-endian two's complement number of any size as 16 bytes, little-endian.

    Args:
        target: Where to.
        at: Where it stands.
        size: Its bytes, int64; none are 0.
        high: With `low`, what it must be below, without its sign; uint64.
        low: The lower half.

    Returns:
        Whether it is below.
    """
    negative = size > 0 and load_u8(at) >= _MORE
    fill = _FF if negative else _ZERO
    while size > 16:
        if load_u8(at) != fill:
            return False
        at += _ONE
        size -= 1
    upper = _ALL if negative else _ZERO
    lower = upper
    for _ in range(size):
        upper = upper << _EIGHT | lower >> _LAST_BYTE
        lower = lower << _EIGHT | load_u8(at)
        at += _ONE
    if (upper >> _TOP != _ZERO) != negative:
        return False
    store_i64(target, np.int64(lower))
    store_i64(target + _EIGHT, np.int64(upper))
    if negative:
        lower = ~lower + _ONE
        upper = ~upper
        if lower == _ZERO:
            upper += _ONE
    return upper < high or (upper == high and lower < low)
