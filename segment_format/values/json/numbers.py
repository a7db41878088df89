"""Numbers of RFC 8259 inside the kernels: the nearest double, or what is exactly meant.

    number = [ "-" ] ( "0" / digit1-9 *digit ) [ "." 1*digit ]
             [ ( "e" / "E" ) [ "+" / "-" ] 1*digit ]

A double comes from the digits as an integer w and a power of ten q: by one exact product or
quotient where both are exact (Clinger), else by a product of 128 bits (Eisel and Lemire). Where
there are more than 19 digits, w is cut off, and w and w + 1 mostly give the same double; where they
do not, the number is left open, and Python's `float` decides it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels.compiled import helper, inlined
from segment_format.kernels.primitives import load_u8, load_word
from segment_format.values.json import contract as c
from segment_format.values.json import contract as powers
from segment_format.values.json.strings import ONE
from segment_format.values.memory import (
    bits_double,
    double_bits,
    leading_zeros,
    multiply_high,
    trailing_zeros,
)

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Value

_NOTHING = np.uint64(0)
_EIGHT = np.uint64(8)
_ZERO = np.uint64(ord("0"))
_ZEROS = np.uint64(0x3030303030303030)
_HIGH_HALVES = np.uint64(0xF0F0F0F0F0F0F0F0)
_SIXES = np.uint64(0x0606060606060606)
_PAIRS = np.uint64(0x000000FF000000FF)
_FIRST_FACTORS = np.uint64(100 + (1000000 << 32))
_SECOND_FACTORS = np.uint64(1 + (10000 << 32))
_LOW_HALF = np.uint64(0xFFFFFFFF)

MINUS = np.uint64(ord("-"))
_PLUS = np.uint64(ord("+"))
_POINT = np.uint64(ord("."))
_E = np.uint64(ord("e"))
_CASE = np.uint64(0x20)
_MOST_EXPONENT = np.int64(10**11)
"""Beyond what digits, at most 2^31 of them, could make up for."""

_MAX_EXACT = np.uint64(1 << 53)
_INFINITY = np.uint64(0x7FF << 52)
_SIGN = np.uint64(1 << 63)
_HIDDEN = np.uint64(1 << 52)
_LOW_NINE = np.uint64(0x1FF)
OPEN = np.uint64((1 << 64) - 1)
"""No double that a number can give: left open."""


@inlined
def _digits_of(word: Value) -> Value:
    """How many of eight bytes are digits, from the first on."""
    others = ((word & _HIGH_HALVES) ^ _ZEROS) | (((word + _SIXES) & _HIGH_HALVES) ^ _ZEROS)
    return trailing_zeros(others) >> np.uint64(3)


@inlined
def _value_of(digits: Value) -> Value:
    """What eight digits, each as its value in a byte, stand for."""
    digits = digits * np.uint64(10) + (digits >> _EIGHT)
    first = (digits & _PAIRS) * _FIRST_FACTORS
    second = ((digits >> np.uint64(16)) & _PAIRS) * _SECOND_FACTORS
    return ((first + second) >> np.uint64(32)) & _LOW_HALF


@inlined
def take_digits(at: Address, stop: Address, value: Value, table: Address) -> Value:
    """(the value with the digits at `at` behind its own, modulo 2^64; behind the digits)."""
    while True:
        word = load_word(at)
        count = min(_digits_of(word), stop - at)
        if count < _EIGHT:
            break
        value = value * np.uint64(100000000) + _value_of(word - _ZEROS)
        at += _EIGHT
    if count > _NOTHING:
        digits = (word - _ZEROS) << (np.uint64(64) - (count << np.uint64(3)))
        value = value * load_word(table + (count << np.uint64(3))) + _value_of(digits)
    return value, at + count


@inlined
def _skip_digits(at: Address, stop: Address) -> Value:
    """Behind the digits at `at`."""
    while True:
        count = min(_digits_of(load_word(at)), stop - at)
        at += count
        if count < _EIGHT:
            return at


@inlined
def skip_number(at: Address, stop: Address) -> Value:
    """Behind the number at `at`, or a code: `take_number` without the value."""
    if at < stop and load_u8(at) == MINUS:
        at += ONE
    end = _skip_digits(at, stop)
    if end == at or (end - at > ONE and load_u8(at) == _ZERO):
        return np.uint64(c.BAD_NUMBER)
    if end < stop and load_u8(end) == _POINT:
        first = end + ONE
        end = _skip_digits(first, stop)
        if end == first:
            return np.uint64(c.BAD_NUMBER)
    if end < stop and load_u8(end) | _CASE == _E:
        _, end = take_exponent(end + ONE, stop)
    return end


@inlined
def take_exponent(at: Address, stop: Address) -> Value:
    """(exponent, behind it or a code) of what follows an "e", cut off where it is large."""
    negative = False
    if at < stop:
        sign = load_u8(at)
        negative = sign == MINUS
        if negative or sign == _PLUS:
            at += ONE
    first = at
    exponent = np.int64(0)
    while at < stop:
        digit = np.int64(load_u8(at)) - 48
        if digit < 0 or digit > 9:
            break
        exponent = min(exponent * 10 + digit, _MOST_EXPONENT)
        at += ONE
    if at == first:
        at = np.uint64(c.BAD_NUMBER)
    if negative:
        exponent = -exponent
    return exponent, at


@inlined
def take_number(at: Address, stop: Address, table: Address) -> Value:
    """(all digits as an integer modulo 2^64, how many, exponent of ten, behind the number or a
    code) of the number at `at`, whose sign counts for nothing.
    """
    if at < stop and load_u8(at) == MINUS:
        at += ONE
    value, end = take_digits(at, stop, _NOTHING, table)
    count = end - at
    exponent = np.int64(0)
    if count == _NOTHING or (count > ONE and load_u8(at) == _ZERO):
        end = np.uint64(c.BAD_NUMBER)
    elif end < stop:
        following = load_u8(end)
        if following == _POINT:
            first = end + ONE
            value, end = take_digits(first, stop, value, table)
            count += end - first
            exponent = -np.int64(end - first)
            if exponent == 0:
                end = np.uint64(c.BAD_NUMBER)
            elif end < stop:
                following = load_u8(end)
        if end > np.uint64(c.LAST_CODE) and end < stop and following | _CASE == _E:
            power, end = take_exponent(end + ONE, stop)
            exponent += power
    return value, count, exponent, end


@inlined
def double_of(
    at: Address, end: Address, value: Value, count: Value, exponent: Value, table: Address
) -> Value:
    """Bits of the nearest double to what `take_number` has found from `at` to `end`; infinity where
    it is beyond all doubles, `OPEN` where it takes more than this to tell.
    """
    if (
        count <= np.uint64(19)
        and value <= _MAX_EXACT
        and exponent >= np.int64(-22)
        and exponent <= np.int64(22)
    ):
        number = np.float64(value)
        if exponent < 0:
            number /= _ten(table, -exponent)
        else:
            number *= _ten(table, exponent)
        bits = double_bits(number)
    elif count <= np.uint64(19):
        bits = nearest(value, exponent, table)
    else:
        bits = _nearest_of_many(at, end, exponent, table)
    if load_u8(at) == MINUS and bits != OPEN:
        bits |= _SIGN
    return bits


@inlined
def _ten(table: Address, exponent: Value) -> Value:
    return bits_double(load_word(table + np.uint64(powers.DOUBLES_AT) + np.uint64(8 * exponent)))


@helper
def nearest(value: Value, exponent: Value, table: Address) -> Value:
    """Bits of the double nearest to value · 10^exponent, ties to even; infinity if beyond all."""
    if value == _NOTHING or exponent < np.int64(powers.LEAST):
        return _NOTHING
    if exponent > np.int64(powers.MOST):
        return _INFINITY
    zeros = leading_zeros(value)
    value <<= zeros
    five = table + np.uint64(powers.FIVES_AT) + np.uint64(16 * (exponent - powers.LEAST))
    factor = load_word(five)
    high = multiply_high(value, factor)
    low = value * factor
    if high & _LOW_NINE == _LOW_NINE:
        more = multiply_high(value, load_word(five + _EIGHT))
        low += more
        if more > low:
            high += ONE
    upper = high >> np.uint64(63)
    shift = upper + np.uint64(9)
    mantissa = high >> shift
    power = ((217706 * exponent) >> 16) + 63 + np.int64(upper) - np.int64(zeros) + 1023
    if power <= 0:
        if power <= -63:
            return _NOTHING
        mantissa >>= np.uint64(1 - power)
        mantissa += mantissa & ONE
        return mantissa >> ONE  # the least normal one, if it has rounded up to that
    if (
        low <= ONE
        and exponent >= np.int64(-4)
        and exponent <= np.int64(23)
        and mantissa & np.uint64(3) == ONE
        and mantissa << shift == high
    ):
        mantissa &= ~ONE
    mantissa += mantissa & ONE
    mantissa >>= ONE
    if mantissa >= np.uint64(1 << 53):
        mantissa = _HIDDEN
        power += 1
    if power >= 0x7FF:
        return _INFINITY
    return (mantissa & ~_HIDDEN) | np.uint64(power) << np.uint64(52)


@helper
def _nearest_of_many(at: Address, end: Address, exponent: Value, table: Address) -> Value:
    """As `double_of` without the sign, from the first 19 digits that count."""
    value = _NOTHING
    taken = np.int64(0)
    dropped = np.int64(0)
    cut = np.int64(0)
    while at < end:
        byte = load_u8(at)
        at += ONE
        digit = np.int64(byte) - 48
        if digit < 0 or digit > 9:
            if byte | _CASE == _E:
                break
            continue
        if taken < 19:
            value = value * np.uint64(10) + np.uint64(digit)
            taken += value != _NOTHING
        else:
            dropped += 1
            cut |= digit
    exponent += dropped
    bits = nearest(value, exponent, table)
    if cut != 0 and bits != nearest(value + ONE, exponent, table):
        return OPEN
    return bits


@helper
def exact_number(at: Address, end: Address, scale: Value) -> Value:
    """(upper half, lower half, status) of a number, found right before, times 10^scale, without its
    sign, as an integer of 128 bits.

    The status is the number of its digits, at most 38, or a code, negative: `NOT_EXACT` or
    `OUT_OF_RANGE`.
    """
    stop = at
    last = _NOTHING  # behind the last digit that is not 0
    point = _NOTHING
    seen = False
    while stop < end:
        byte = load_u8(stop)
        if byte | _CASE == _E:
            break
        if byte == _POINT:
            point = stop
        stop += ONE
        if byte > _ZERO and byte != _POINT:
            last = stop
            seen = True
    if not seen:
        return _NOTHING, _NOTHING, np.int64(0)
    power = np.int64(0)
    if stop < end:
        power, _ = take_exponent(stop + ONE, end)
    # The last digit that counts stands for 10^power.
    if point == _NOTHING:
        power += np.int64(stop - last)
    elif last > point:
        power -= np.int64(last - point) - 1
    else:
        power += np.int64(point - last)
    power += scale
    high = _NOTHING
    low = _NOTHING
    count = np.int64(0)
    while at < last:
        byte = load_u8(at)
        at += ONE
        if byte < _ZERO or (byte == _ZERO and count == 0):
            continue
        if count == 38:
            return high, low, np.int64(-c.OUT_OF_RANGE if power >= 0 else -c.NOT_EXACT)
        high, low = _times_ten(high, low, byte - _ZERO)
        count += 1
    if power < 0:
        return high, low, np.int64(-c.NOT_EXACT)
    if count + power > 38:
        return high, low, np.int64(-c.OUT_OF_RANGE)
    for _ in range(power):
        high, low = _times_ten(high, low, _NOTHING)
    return high, low, count + power


@inlined
def _times_ten(high: Value, low: Value, digit: Value) -> Value:
    ten = np.uint64(10)
    product = low * ten
    total = product + digit
    carry = multiply_high(low, ten)
    if total < product:
        carry += ONE
    return high * ten + carry, total
