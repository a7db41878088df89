"""Kernel functions that parse strings and numbers of JSON (RFC 8259).

If a function that returns an address fails, it returns an error code of `contract` instead. All
codes are smaller than any address, so a caller can distinguish them from addresses.

    number = [ "-" ] ( "0" / digit1-9 *digit ) [ "." 1*digit ]
             [ ( "e" / "E" ) [ "+" / "-" ] 1*digit ]

A double is computed as w * 10^q, where w is the integer that consists of all digits. If w and
10^|q| are exact doubles, one product or quotient gives the nearest double (Clinger); otherwise a
product of 128 bits is used (Eisel and Lemire). If there are more than 19 digits, w is truncated to
the first 19. Usually w and w + 1 give the same double, which is then the result. If not, the result
is `OPEN`, and Python's `float` rounds the number later. Using Arrow's cast from text instead takes
12 % more time on records of ten fields with two doubles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels.compiled import helper, inlined
from segment_format.kernels.primitives import (
    VECTOR_SIZE,
    bits_double,
    copy_long,
    double_bits,
    end_mask,
    high_mask,
    leading_zeros,
    load_u8,
    load_u32,
    load_word,
    multiply_high,
    special_mask,
    store_u8,
    trailing_zeros,
    utf8_size,
)
from segment_format.values.json import contract as c

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Value

ONE = np.uint64(1)
_TWO = np.uint64(2)
_FOUR = np.uint64(4)
_SIX = np.uint64(6)
_STEP = np.uint64(VECTOR_SIZE)
_NOTHING = np.uint64(0)
LAST_CODE = np.uint64(c.LAST_CODE)
_ALL = np.uint64(0xFFFFFFFF)

QUOTE = np.uint64(ord('"'))
BACKSLASH = np.uint64(ord("\\"))
SPACE = np.uint64(0x20)
_TAB = np.uint64(0x09)
_LINE = np.uint64(0x0A)
_RETURN = np.uint64(0x0D)

_HIGH_FIRST = np.int64(0xD800)
_LOW_FIRST = np.int64(0xDC00)
_SURROGATE_STOP = np.int64(0xE000)


@inlined
def skip_space(address: Address, stop: Address) -> Value:
    """Returns the address of the next byte that is not white space, or `stop` if there is none."""
    while address < stop:
        byte = load_u8(address)
        if byte > SPACE or (byte != SPACE and byte != _LINE and byte != _RETURN and byte != _TAB):
            break
        address += ONE
    return address


@inlined
def scan_string(address: Address, stop: Address) -> Value:
    """Finds the end of a string and checks the string. `address` is the first byte after the
    opening quote.

    Returns (address of the closing quote or an error code, whether the string has escapes).
    """
    cursor = address
    mask = special_mask(cursor)
    while mask == _NOTHING and stop - cursor > _STEP:
        cursor += _STEP
        mask = special_mask(cursor)
    cursor += trailing_zeros(mask)
    escaped = np.int64(0)
    if mask == _NOTHING or cursor >= stop:
        cursor = np.uint64(c.BAD_STRING_END)
    elif load_u8(cursor) != QUOTE:
        cursor, escaped = _scan_rest(address, cursor, stop)
    return cursor, escaped


@helper
def _scan_rest(start: Address, address: Address, stop: Address) -> Value:
    """Continues `scan_string` at `address`, the first byte of the string that is not plain ASCII
    text. Returns the same values as `scan_string`. `start` is the first byte of the string.
    """
    escaped = np.int64(0)
    high = _NOTHING
    cursor = address
    while True:
        mask = end_mask(cursor)
        size = trailing_zeros(mask)
        if mask == _NOTHING:
            size = _STEP
        size = min(size, stop - cursor)
        high |= high_mask(cursor) & (_ALL >> (_STEP - size))
        cursor += size
        if cursor >= stop:
            return np.uint64(c.BAD_STRING_END), escaped
        if mask == _NOTHING:
            continue
        byte = load_u8(cursor)
        if byte == QUOTE:
            break
        if byte != BACKSLASH:
            return np.uint64(c.BAD_CONTROL), escaped
        escaped = np.int64(1)
        cursor = _escape_end(cursor, stop)
        if cursor <= LAST_CODE:
            return cursor, escaped
    if high != _NOTHING:
        _, malformed = utf8_size(start, cursor - start)
        if malformed > 0:
            return np.uint64(c.BAD_UTF8), escaped
    return cursor, escaped


@inlined
def _hex_digit(byte: Value) -> Value:
    digit = np.int64(byte) - 48
    letter = (np.int64(byte) | 32) - 97
    if digit >= 0 and digit <= 9:
        return digit
    if letter >= 0 and letter <= 5:
        return letter + 10
    return np.int64(-1)


@inlined
def _hex(address: Address) -> Value:
    """Returns the number that the four hexadecimal digits at `address` represent. Returns a
    negative number if they are malformed.
    """
    first = _hex_digit(load_u8(address))
    second = _hex_digit(load_u8(address + ONE))
    third = _hex_digit(load_u8(address + _TWO))
    fourth = _hex_digit(load_u8(address + np.uint64(3)))
    if first < 0 or second < 0 or third < 0 or fourth < 0:
        return np.int64(-1)
    return first << 12 | second << 8 | third << 4 | fourth


@inlined
def _plain_escape(kind: Value) -> Value:
    """Returns the byte that an escape represents. `kind` is the byte after the backslash. Returns a
    negative number if the escape is invalid, or is an escape of a code point (u and four digits).
    """
    if kind == np.uint64(ord("n")):
        return np.int64(10)
    if kind == QUOTE:
        return np.int64(kind)
    if kind == BACKSLASH:
        return np.int64(kind)
    if kind == np.uint64(ord("/")):
        return np.int64(kind)
    if kind == np.uint64(ord("t")):
        return np.int64(9)
    if kind == np.uint64(ord("r")):
        return np.int64(13)
    if kind == np.uint64(ord("b")):
        return np.int64(8)
    if kind == np.uint64(ord("f")):
        return np.int64(12)
    return np.int64(-1)


@helper
def _escape_end(address: Address, stop: Address) -> Value:
    """Checks the escape at `address`. Returns the address after it, or an error code. A surrogate
    pair counts as one escape.
    """
    if stop - address < _TWO:
        return np.uint64(c.BAD_STRING_END)
    kind = load_u8(address + ONE)
    if kind != np.uint64(ord("u")):
        if _plain_escape(kind) >= 0:
            return address + _TWO
        return np.uint64(c.BAD_ESCAPE)
    if stop - address < _SIX:
        return np.uint64(c.BAD_ESCAPE)
    unit = _hex(address + _TWO)
    if unit < 0:
        return np.uint64(c.BAD_ESCAPE)
    address += _SIX
    if unit < _HIGH_FIRST or unit >= _SURROGATE_STOP:
        return address
    if unit >= _LOW_FIRST or stop - address < _SIX:
        return np.uint64(c.BAD_SURROGATE)
    if load_u8(address) != BACKSLASH or load_u8(address + ONE) != np.uint64(ord("u")):
        return np.uint64(c.BAD_SURROGATE)
    unit = _hex(address + _TWO)
    if unit < _LOW_FIRST or unit >= _SURROGATE_STOP:
        return np.uint64(c.BAD_SURROGATE)
    return address + _SIX


@inlined
def _put_utf8(to: Address, point: Value) -> Value:
    """Writes the code point `point` as UTF-8 to `to`. Returns the address after the written
    bytes.
    """
    if point < 0x80:
        store_u8(to, point)
        return to + ONE
    if point < 0x800:
        store_u8(to, 0xC0 | point >> 6)
        store_u8(to + ONE, 0x80 | (point & 0x3F))
        return to + _TWO
    if point < 0x10000:
        store_u8(to, 0xE0 | point >> 12)
        store_u8(to + ONE, 0x80 | (point >> 6 & 0x3F))
        store_u8(to + _TWO, 0x80 | (point & 0x3F))
        return to + np.uint64(3)
    store_u8(to, 0xF0 | point >> 18)
    store_u8(to + ONE, 0x80 | (point >> 12 & 0x3F))
    store_u8(to + _TWO, 0x80 | (point >> 6 & 0x3F))
    store_u8(to + np.uint64(3), 0x80 | (point & 0x3F))
    return to + _FOUR


@helper
def unescape(address: Address, end: Address, to: Address) -> Value:
    """Decodes the escapes of a string, and writes the result to `to`. `scan_string` must have
    accepted the string. Returns the address after the written bytes.

    The result is never longer than the string with escapes.
    """
    while address < end:
        cursor = address
        mask = end_mask(cursor)
        while mask == _NOTHING and end - cursor > _STEP:
            cursor += _STEP
            mask = end_mask(cursor)
        cursor = min(cursor + trailing_zeros(mask), end)
        copy_long(to, address, cursor - address)
        to += cursor - address
        address = cursor
        if address >= end:
            break
        kind = load_u8(address + ONE)
        if kind != np.uint64(ord("u")):
            store_u8(to, _plain_escape(kind))
            to += ONE
            address += _TWO
            continue
        point = _hex(address + _TWO)
        address += _SIX
        if point >= _HIGH_FIRST and point < _LOW_FIRST:
            low = _hex(address + _TWO)
            address += _SIX
            point = 0x10000 + ((point - _HIGH_FIRST) << 10) + (low - _LOW_FIRST)
        to = _put_utf8(to, point)
    return to


@inlined
def is_word(address: Address, stop: Address, word: Value) -> Value:
    """Returns whether the four bytes at `address` equal `word`, which is a big-endian number."""
    return stop - address >= _FOUR and load_u32(address) == word


@inlined
def same_bytes(first: Address, second: Address, size: Value) -> Value:
    """Returns whether the `size` (uint64) bytes at two addresses are equal."""
    left = size
    while left >= np.uint64(8):
        if load_word(first) != load_word(second):
            return False
        first += np.uint64(8)
        second += np.uint64(8)
        left -= np.uint64(8)
    while left > _NOTHING:
        if load_u8(first) != load_u8(second):
            return False
        first += ONE
        second += ONE
        left -= ONE
    return True


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
"""Maximum exponent. A number has at most 2^31 digits, so they cannot compensate a larger exponent.
"""

_MAX_EXACT = np.uint64(1 << 53)
_INFINITY = np.uint64(0x7FF << 52)
_SIGN = np.uint64(1 << 63)
_HIDDEN = np.uint64(1 << 52)
_LOW_NINE = np.uint64(0x1FF)
OPEN = np.uint64((1 << 64) - 1)
"""Marks a number that the kernel could not round, so that Python rounds it later. No parsed double
has these bits.
"""


@inlined
def _digits_of(word: Value) -> Value:
    """Returns how many of the eight bytes in `word` are digits, up to the first byte that is not a
    digit.
    """
    others = ((word & _HIGH_HALVES) ^ _ZEROS) | (((word + _SIXES) & _HIGH_HALVES) ^ _ZEROS)
    return trailing_zeros(others) >> np.uint64(3)


@inlined
def _value_of(digits: Value) -> Value:
    """Returns the number that eight digits represent. Each byte of `digits` is the value of a
    digit, from 0 to 9.
    """
    digits = digits * np.uint64(10) + (digits >> _EIGHT)
    first = (digits & _PAIRS) * _FIRST_FACTORS
    second = ((digits >> np.uint64(16)) & _PAIRS) * _SECOND_FACTORS
    return ((first + second) >> np.uint64(32)) & _LOW_HALF


@inlined
def take_digits(address: Address, stop: Address, value: Value, table: Address) -> Value:
    """Reads the decimal digits at `address`, and appends them to the digits of the number `value`.

    Returns (value modulo 2^64, address after the digits).
    """
    while True:
        word = load_word(address)
        count = min(_digits_of(word), stop - address)
        if count < _EIGHT:
            break
        value = value * np.uint64(100000000) + _value_of(word - _ZEROS)
        address += _EIGHT
    if count > _NOTHING:
        digits = (word - _ZEROS) << (np.uint64(64) - (count << np.uint64(3)))
        value = value * load_word(table + (count << np.uint64(3))) + _value_of(digits)
    return value, address + count


@inlined
def _skip_digits(address: Address, stop: Address) -> Value:
    """Skips digits. Returns the address of the first byte that is not a digit; `stop` if all bytes
    are digits.
    """
    while True:
        count = min(_digits_of(load_word(address)), stop - address)
        address += count
        if count < _EIGHT:
            return address


@inlined
def skip_number(address: Address, stop: Address) -> Value:
    """Skips the number at `address`. Makes the same checks as `take_number`.

    Returns the address after the number, or an error code.
    """
    if address < stop and load_u8(address) == MINUS:
        address += ONE
    end = _skip_digits(address, stop)
    if end == address or (end - address > ONE and load_u8(address) == _ZERO):
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
def take_exponent(address: Address, stop: Address) -> Value:
    """Parses the exponent after the "e" of a number. Returns (exponent, address after it or an
    error code). The absolute value of the exponent is limited, so that it cannot overflow.
    """
    negative = False
    if address < stop:
        sign = load_u8(address)
        negative = sign == MINUS
        if negative or sign == _PLUS:
            address += ONE
    first = address
    exponent = np.int64(0)
    while address < stop:
        digit = np.int64(load_u8(address)) - 48
        if digit < 0 or digit > 9:
            break
        exponent = min(exponent * 10 + digit, _MOST_EXPONENT)
        address += ONE
    if address == first:
        address = np.uint64(c.BAD_NUMBER)
    if negative:
        exponent = -exponent
    return exponent, address


@inlined
def take_number(address: Address, stop: Address, table: Address) -> Value:
    """Parses the number at `address`. Ignores its sign.

    Returns (all digits as an integer modulo 2^64, number of digits, exponent of ten, address after
    the number or an error code).
    """
    if address < stop and load_u8(address) == MINUS:
        address += ONE
    value, end = take_digits(address, stop, _NOTHING, table)
    count = end - address
    exponent = np.int64(0)
    if count == _NOTHING or (count > ONE and load_u8(address) == _ZERO):
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
    address: Address, end: Address, value: Value, count: Value, exponent: Value, table: Address
) -> Value:
    """Returns the bits of the double that is nearest to a number. `take_number` has parsed the
    number.

    Returns the bits of infinity if the number is too large for a double. Returns `OPEN` if this
    function cannot determine the nearest double.
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
        bits = _nearest_of_many(address, end, exponent, table)
    if load_u8(address) == MINUS and bits != OPEN:
        bits |= _SIGN
    return bits


@inlined
def _ten(table: Address, exponent: Value) -> Value:
    return bits_double(load_word(table + np.uint64(c.DOUBLES_AT) + np.uint64(8 * exponent)))


@helper
def nearest(value: Value, exponent: Value, table: Address) -> Value:
    """Returns the bits of the double that is nearest to value * 10^exponent. Ties are rounded to
    even.
    """
    if value == _NOTHING or exponent < np.int64(c.MIN_POWER):
        return _NOTHING
    if exponent > np.int64(c.MAX_POWER):
        return _INFINITY
    zeros = leading_zeros(value)
    value <<= zeros
    five = table + np.uint64(c.FIVES_AT) + np.uint64(16 * (exponent - c.MIN_POWER))
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
        return mantissa >> ONE  # the smallest normal double if it was rounded up
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
def _nearest_of_many(address: Address, end: Address, exponent: Value, table: Address) -> Value:
    """Returns the bits of the nearest double of a number with more than 19 digits, without the
    sign. Uses the first 19 significant digits. May return infinity or `OPEN`, see `double_of`.
    """
    value = _NOTHING
    taken = np.int64(0)
    dropped = np.int64(0)
    cut = np.int64(0)
    while address < end:
        byte = load_u8(address)
        address += ONE
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
def exact_number(address: Address, end: Address, scale: Value) -> Value:
    """Multiplies the absolute value of a valid number by 10^scale, and returns it as an integer of
    128 bits.

    Returns (upper half, lower half, status). The status is the number of digits, at most 38. On
    failure, it is the negated error code `NOT_EXACT` or `OUT_OF_RANGE`.
    """
    stop = address
    last = _NOTHING  # address after the last digit that is not 0
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
    # The last significant digit has the value 10^power.
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
    while address < last:
        byte = load_u8(address)
        address += ONE
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
