"""Scalars inside the kernels: from what was found in the text to a place; each gives a status."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels.compiled import helper, inlined
from segment_format.kernels.memory import load_u8, load_word, store_i32, store_i64, store_u8
from segment_format.values.frames import address_in, get, put
from segment_format.values.json import contract as c
from segment_format.values.json.instructions import bits_double, bits_single, single_bits
from segment_format.values.json.keys import arena_end, arena_has
from segment_format.values.json.numbers import MINUS, OPEN, double_of, exact_number
from segment_format.values.json.scalars import ZONE, base64_size, days_of, micros_of
from segment_format.values.json.strings import ONE, unescape

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Value

_NOTHING = np.uint64(0)
_NINETEEN = np.uint64(19)
_MOST_INT64 = np.uint64((1 << 63) - 1)
_MOST_INT32 = np.uint64((1 << 31) - 1)
_MAGNITUDE = np.uint64((1 << 63) - 1)
_INFINITY = np.uint64(0x7FF << 52)
_SINGLE_INFINITY = np.uint64(0x7F800000)
_SINGLE_SIGN = np.uint64(0x80000000)
_BEYOND_SINGLES = float.fromhex("0x1p128")
_LAST_HALF = float.fromhex("0x1.ffffffp127")
_OPEN_DOUBLE = np.uint64(0x7FF8 << 48)
_OPEN_SINGLE = np.uint64(0x7FC00000)
_OPEN_SINGLE_BITS = np.uint64(0x3FFFFF)


@inlined
def put_text(
    frame: Address, node: Address, entry: Value, at: Address, end: Address, escaped: Value
) -> Value:
    """Where a string stands, its escapes replaced."""
    packed = (at - address_in(frame, c.BASE)) << np.uint64(32) | (end - at) << ONE
    status = np.int64(c.DONE)
    if escaped:
        packed, status = _unescaped(frame, at, end)
    if status == c.DONE:
        store_i64(address_in(node, c.DATA) + np.uint64(8 * entry), np.int64(packed))
        store_u8(address_in(node, c.PLACES) + np.uint64(entry), 1)
    return status


@helper
def _unescaped(frame: Address, at: Address, end: Address) -> Value:
    """(string in the arena, status)."""
    if not arena_has(frame, end - at):
        return _NOTHING, np.int64(c.GROW_ARENA)
    first = arena_end(frame)
    behind = unescape(at, end, first)
    position = first - address_in(frame, c.ARENA)
    put(frame, c.ARENA_SIZE, np.int64(position + (behind - first)))
    return position << np.uint64(32) | (behind - first) << ONE | ONE, np.int64(c.DONE)


@inlined
def _integer(
    at: Address, end: Address, value: Value, count: Value, exponent: Value, most: Value
) -> Value:
    """(the number, status) where it is a whole one up to `most`, or to `-most - 1`."""
    status = np.int64(c.DONE)
    if exponent != 0 or count > _NINETEEN:
        value, status = _exact_integer(at, end)
    negative = load_u8(at) == MINUS
    if status == c.DONE and value > most + np.uint64(negative):
        status = np.int64(c.OUT_OF_RANGE)
    number = np.int64(value)
    return -number if negative else number, status


@inlined
def put_number(
    frame: Address,
    node: Address,
    entry: Value,
    at: Address,
    end: Address,
    value: Value,
    count: Value,
    exponent: Value,
    table: Address,
) -> Value:
    """What `take_number` has found from `at` to `end`."""
    op = get(node, c.OP)
    data = address_in(node, c.DATA)
    if op == c.INT64:
        number, status = _integer(at, end, value, count, exponent, _MOST_INT64)
        if status == c.DONE:
            store_i64(data + np.uint64(8 * entry), number)
        return status
    if op == c.DOUBLE:
        bits = double_of(at, end, value, count, exponent, table)
        status = np.int64(c.DONE)
        if bits & _MAGNITUDE >= _INFINITY:
            bits, status = _no_double(frame, node, entry, at, end, bits)
        store_i64(data + np.uint64(8 * entry), np.int64(bits))
        return status
    return _put_other(frame, node, entry, at, end, value, count, exponent, table)


@helper
def _exact_integer(at: Address, end: Address) -> Value:
    """(magnitude, status)."""
    high, low, status = exact_number(at, end, 0)
    if status < 0:
        return low, -status
    if high != _NOTHING:
        return low, np.int64(c.OUT_OF_RANGE)
    return low, np.int64(c.DONE)


@helper
def _no_double(
    frame: Address, node: Address, entry: Value, at: Address, end: Address, bits: Value
) -> Value:
    """(a NaN with the number of what is left open, status)."""
    if bits != OPEN:
        return bits, np.int64(c.OUT_OF_RANGE)
    number, status = _leave_open(frame, node, entry, at, end)
    return _OPEN_DOUBLE | number, status


@helper
def _leave_open(frame: Address, node: Address, entry: Value, at: Address, end: Address) -> Value:
    """(number of what is left open, status)."""
    number = get(frame, c.OPEN_COUNT)
    if number >= get(frame, c.OPEN_ROOM):
        put(frame, c.WANTED, number + 1)
        return _NOTHING, np.int64(c.GROW_OPEN)
    to = address_in(frame, c.OPEN) + np.uint64(8 * c.OPEN_SIZE * number)
    put(to, 0, get(node, c.NUMBER))
    put(to, 1, entry)
    put(to, 2, np.int64(at - address_in(frame, c.BASE)))
    put(to, 3, np.int64(end - at))
    put(to, 4, get(frame, c.ROW_UNDER_WAY))
    put(frame, c.OPEN_COUNT, number + 1)
    return np.uint64(number), np.int64(c.DONE)


@helper
def _put_other(
    frame: Address,
    node: Address,
    entry: Value,
    at: Address,
    end: Address,
    value: Value,
    count: Value,
    exponent: Value,
    table: Address,
) -> Value:
    op = get(node, c.OP)
    data = address_in(node, c.DATA)
    if op == c.INT32:
        number, status = _integer(at, end, value, count, exponent, _MOST_INT32)
        if status == c.DONE:
            store_i32(data + np.uint64(4 * entry), number)
        return status
    if op == c.SINGLE:
        status = np.int64(c.DONE)
        bits = double_of(at, end, value, count, exponent, table)
        if bits != OPEN:
            bits = _single_of(bits)
        if bits == OPEN:
            open_number, status = _leave_open(frame, node, entry, at, end)
            bits = _OPEN_SINGLE | (open_number & _OPEN_SINGLE_BITS)
        elif bits & ~_SINGLE_SIGN == _SINGLE_INFINITY:
            return np.int64(c.OUT_OF_RANGE)
        store_i32(data + np.uint64(4 * entry), np.int64(bits))
        return status
    return _put_decimal(node, data + np.uint64(16 * entry), at, end, value, count, exponent, table)


@helper
def _single_of(bits: Value) -> Value:
    """Bits of the float32 nearest to a number, from those of the double nearest to it; `OPEN` where
    that double lies in the middle of two.
    """
    number = bits_double(bits & _MAGNITUDE)
    single = single_bits(number)
    nearest = bits_single(single)
    if number == _LAST_HALF:
        return OPEN
    if single < _SINGLE_INFINITY and nearest != number:
        other = single + ONE if number > nearest else single - ONE
        neighbour = _BEYOND_SINGLES if other == _SINGLE_INFINITY else bits_single(other)
        if (nearest + neighbour) * 0.5 == number:
            return OPEN
    if bits != bits & _MAGNITUDE:
        single |= _SINGLE_SIGN
    return single


@helper
def _put_decimal(
    node: Address,
    to: Address,
    at: Address,
    end: Address,
    value: Value,
    count: Value,
    exponent: Value,
    table: Address,
) -> Value:
    scale = get(node, c.SCALE)
    precision = get(node, c.PRECISION)
    high = _NOTHING
    shift = exponent + scale
    digits = np.int64(count) + shift
    if shift >= 0 and np.int64(count) <= 18 and digits <= min(precision, 18):
        low = value * load_word(table + np.uint64(8 * shift))
    else:
        high, low, status = exact_number(at, end, scale)
        if status < 0:
            return -status
        if status > precision:
            return np.int64(c.OUT_OF_RANGE)
    if load_u8(at) == MINUS:
        low = ~low + ONE
        high = ~high
        if low == _NOTHING:
            high += ONE
    store_i64(to, np.int64(low))
    store_i64(to + np.uint64(8), np.int64(high))
    return np.int64(c.DONE)


@helper
def put_written(
    frame: Address, node: Address, entry: Value, at: Address, end: Address, escaped: Value
) -> Value:
    """What is written as a string and is none."""
    packed = (at - address_in(frame, c.BASE)) << np.uint64(32) | (end - at) << ONE
    before = get(frame, c.ARENA_SIZE)
    if escaped:
        packed, status = _unescaped(frame, at, end)
        if status != c.DONE:
            return status
        at = address_in(frame, c.ARENA) + (packed >> np.uint64(32))
        end = address_in(frame, c.ARENA) + np.uint64(get(frame, c.ARENA_SIZE))
    op = get(node, c.OP)
    data = address_in(node, c.DATA)
    if op == c.BINARY:
        if base64_size(at, end) < 0:
            return np.int64(c.BAD_BASE64)
        store_i64(data + np.uint64(8 * entry), np.int64(packed))
    else:
        put(frame, c.ARENA_SIZE, before)
        if op == c.DATE:
            value, found = days_of(at, end)
            if not found or end - at != np.uint64(10):
                return np.int64(c.BAD_DATE)
            store_i32(data + np.uint64(4 * entry), value)
        else:
            value, found, zone = micros_of(at, end)
            if not found:
                return np.int64(c.BAD_TIME)
            if (zone == ZONE) != (op == c.TIMESTAMP):
                return np.int64(c.BAD_ZONE)
            store_i64(data + np.uint64(8 * entry), value)
    store_u8(address_in(node, c.PLACES) + np.uint64(entry), 1)
    return np.int64(c.DONE)
