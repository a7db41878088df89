"""Kernel functions that write and clear the values of nodes.

Functions named `put_…` return a status. Values of these types are strings in JSON, and have this
format:

    date        YYYY-MM-DD
    timestamp   date ("T" / " ") hh:mm [":" ss ["." 1*9digit]] [zone]
    zone        "Z" / ("+" / "-") hh [[":"] mm], at most 18 hours

Valid years are 0001 to 9999. Leap seconds and the time 24:00 are invalid. Digits after the
microseconds are dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels.compiled import helper, inlined, kernel
from segment_format.kernels.primitives import (
    address_in,
    bits_double,
    bits_single,
    fill_bytes,
    get,
    load_u8,
    load_word,
    put,
    single_bits,
    store_i32,
    store_i64,
    store_u8,
)
from segment_format.values.json import contract as c
from segment_format.values.json.keys import arena_end, arena_has
from segment_format.values.json.tokens import (
    MINUS,
    ONE,
    OPEN,
    double_of,
    exact_number,
    unescape,
)

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Value


_NODE_BYTES = np.uint64(8 * c.NODE_SIZE)


@inlined
def _clear(node: Address, first: Value, count: Value) -> None:
    width = get(node, c.WIDTH)
    fill_bytes(address_in(node, c.PRESENT) + np.uint64(first), 0, np.uint64(count))
    data = address_in(node, c.DATA) + np.uint64(first * width)
    fill_bytes(data, 0, np.uint64(count * width))


@helper
def clear_value(frame: Address, node: Address, entry: Value) -> None:
    """Clears the value of a node in entry `entry`, and the fields of a struct."""
    nodes = address_in(frame, c.NODES)
    level = get(node, c.LEVEL)
    stop = nodes + address_in(node, c.STOP) * _NODE_BYTES
    while node < stop:
        if get(node, c.LEVEL) == level:
            _clear(node, entry, 1)
        node += _NODE_BYTES


@helper
def save_counts(frame: Address, levels: Value) -> None:
    """Saves the number of entries of each level, before a row is read."""
    counts, saved = address_in(frame, c.COUNTS), address_in(frame, c.SAVED)
    for level in range(levels):
        put(saved, level, get(counts, level))


@helper
def clear_row(frame: Address, row: Value) -> None:
    """Clears all values of row `row`, including the entries that its lists and maps have added
    since `save_counts`. Resets the numbers of entries to the saved numbers.
    """
    node = address_in(frame, c.NODES)
    counts, saved = address_in(frame, c.COUNTS), address_in(frame, c.SAVED)
    for _ in range(get(frame, c.NODE_COUNT)):
        level = get(node, c.LEVEL)
        if level == 0:
            _clear(node, row, 1)
        else:
            first = get(saved, level)
            _clear(node, first, get(counts, level) - first)
        node += _NODE_BYTES
    for level in range(get(frame, c.LEVELS)):
        put(counts, level, get(saved, level))


@kernel
def discard_row(frame: Address, row: Value) -> None:
    """Clears the value of row `row` after all rows were read. The entries that its lists and maps
    have added remain, but no row refers to them.
    """
    save_counts(frame, get(frame, c.LEVELS))
    clear_row(frame, row)


_NOTHING = np.uint64(0)
_TWO = np.uint64(2)
_THREE = np.uint64(3)
_FOUR = np.uint64(4)
_DASH = np.uint64(ord("-"))
_COLON = np.uint64(ord(":"))
_PADDING = np.uint64(ord("="))
_DATE_SIZE = np.uint64(10)
_MICROS = np.int64(1_000_000)
_MAX_ZONE = np.int64(18 * 60)
NO_ZONE = np.int64(0)
ZONE = np.int64(1)


@inlined
def _two_digits(address: Address) -> Value:
    """Returns the number that the two digits at `address` represent. Returns a negative number if
    one of the bytes is not a digit.
    """
    first = np.int64(load_u8(address)) - 48
    second = np.int64(load_u8(address + ONE)) - 48
    if first < 0 or first > 9 or second < 0 or second > 9:
        return np.int64(-1)
    return first * 10 + second


@helper
def days_of(address: Address, end: Address) -> Value:
    """Parses the date in the first 10 bytes at `address`. Returns (days since 1970-01-01, whether
    the date is valid).
    """
    none = np.int64(0), False
    if end - address < _DATE_SIZE:
        return none
    century = _two_digits(address)
    year = _two_digits(address + _TWO)
    month = _two_digits(address + np.uint64(5))
    day = _two_digits(address + np.uint64(8))
    if load_u8(address + _FOUR) != _DASH or load_u8(address + np.uint64(7)) != _DASH:
        return none
    if century < 0 or year < 0 or month < 1 or month > 12 or day < 1:
        return none
    year += 100 * century
    if year == 0:
        return none
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    days = np.int64(31)
    if month == 2:
        days = np.int64(29 if leap else 28)
    elif month == 4 or month == 6 or month == 9 or month == 11:
        days = np.int64(30)
    if day > days:
        return none
    # Counts years from March, so that the leap day is the last day of a year.
    if month <= 2:
        year -= 1
        month += 12
    era = year // 400
    in_era = year - era * 400
    in_year = (153 * (month - 3) + 2) // 5 + day - 1
    return era * 146097 + in_era * 365 + in_era // 4 - in_era // 100 + in_year - 719468, True


@helper
def micros_of(address: Address, end: Address) -> Value:
    """Parses a timestamp. If it has a zone, converts it to UTC.

    Returns (microseconds since 1970-01-01T00:00, whether the timestamp is valid, `ZONE` or
    `NO_ZONE`).
    """
    none = np.int64(0), False, NO_ZONE
    days, is_valid = days_of(address, end)
    if not is_valid or end - address < np.uint64(16):
        return none
    between = load_u8(address + _DATE_SIZE)
    if between != np.uint64(ord("T")) and between != np.uint64(ord(" ")):
        return none
    hour = _two_digits(address + np.uint64(11))
    minute = _two_digits(address + np.uint64(14))
    if load_u8(address + np.uint64(13)) != _COLON:
        return none
    if hour < 0 or hour > 23 or minute < 0 or minute > 59:
        return none
    address += np.uint64(16)
    second = np.int64(0)
    micros = np.int64(0)
    if end - address >= _THREE and load_u8(address) == _COLON:
        second = _two_digits(address + ONE)
        if second < 0 or second > 59:
            return none
        address += _THREE
        if address < end and load_u8(address) == np.uint64(ord(".")):
            address += ONE
            count = np.int64(0)
            while address < end:
                digit = np.int64(load_u8(address)) - 48
                if digit < 0 or digit > 9:
                    break
                count += 1
                if count <= 6:
                    micros = micros * 10 + digit
                address += ONE
            if count < 1 or count > 9:
                return none
            for _ in range(count, 6):
                micros *= 10
    zone = NO_ZONE
    offset = np.int64(0)
    if address < end:
        offset, is_valid = _zone_of(address, end)
        if not is_valid:
            return none
        zone = ZONE
    seconds = days * 86400 + hour * 3600 + (minute - offset) * 60 + second
    return seconds * _MICROS + micros, True, zone


@inlined
def _zone_of(address: Address, end: Address) -> Value:
    """Parses a time zone. Returns (offset in minutes east of UTC, whether the zone is valid)."""
    none = np.int64(0), False
    sign = load_u8(address)
    address += ONE
    if sign == np.uint64(ord("Z")):
        return np.int64(0), address == end
    if (sign != np.uint64(ord("+")) and sign != _DASH) or end - address < _TWO:
        return none
    hours = _two_digits(address)
    minutes = np.int64(0)
    address += _TWO
    if address < end:
        if load_u8(address) == _COLON:
            address += ONE
        if end - address != _TWO:
            return none
        minutes = _two_digits(address)
    if hours < 0 or minutes < 0 or minutes > 59:
        return none
    offset = hours * 60 + minutes
    if offset > _MAX_ZONE:
        return none
    return (-offset if sign == _DASH else offset), True


@inlined
def _six_bits(byte: Value) -> Value:
    """Returns the six bits (0 to 63) that a base64 character represents. Returns a negative number
    for other characters.
    """
    code = np.int64(byte)
    if code >= 97 and code <= 122:
        return code - 71
    if code >= 65 and code <= 90:
        return code - 65
    if code >= 48 and code <= 57:
        return code + 4
    if code == 43:
        return np.int64(62)
    if code == 47:
        return np.int64(63)
    return np.int64(-1)


@helper
def base64_size(address: Address, end: Address) -> Value:
    """Returns the size in bytes that a base64 text with padding (RFC 4648) has after decoding.
    Returns a negative number if the text is invalid.
    """
    size = end - address
    if size & _THREE != _NOTHING:
        return np.int64(-1)
    if size == _NOTHING:
        return np.int64(0)
    padding = np.int64(0)
    if load_u8(end - ONE) == _PADDING:
        padding = np.int64(1)
        if load_u8(end - _TWO) == _PADDING:
            padding = np.int64(2)
    stop = end - np.uint64(padding)
    while address < stop:
        if _six_bits(load_u8(address)) < 0:
            return np.int64(-1)
        address += ONE
    return np.int64(size >> _TWO) * 3 - padding


@helper
def decode_base64(address: Address, size: Value, to: Address) -> None:
    """Decodes a base64 text and writes the result to `to`. `size` is the result of
    `base64_size`.
    """
    while size > 0:
        first = _six_bits(load_u8(address))
        second = _six_bits(load_u8(address + ONE))
        store_u8(to, first << 2 | second >> 4)
        if size > 1:
            third = _six_bits(load_u8(address + _TWO))
            store_u8(to + ONE, second << 4 | third >> 2)
            if size > 2:
                store_u8(to + _TWO, third << 6 | _six_bits(load_u8(address + _THREE)))
        address += _FOUR
        to += _THREE
        size -= 3


_NINETEEN = np.uint64(19)
_MAX_INT64 = np.uint64((1 << 63) - 1)
_MAX_INT32 = np.uint64((1 << 31) - 1)
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
    frame: Address, node: Address, entry: Value, address: Address, end: Address, escaped: Value
) -> Value:
    """Writes the location of a string as the value of a node. If the string has escapes, first
    decodes them to the arena, and uses the location of the result.
    """
    packed = (address - address_in(frame, c.BASE)) << np.uint64(32) | (end - address) << ONE
    status = np.int64(c.DONE)
    if escaped:
        packed, status = _unescaped(frame, address, end)
    if status == c.DONE:
        store_i64(address_in(node, c.DATA) + np.uint64(8 * entry), np.int64(packed))
        store_u8(address_in(node, c.PRESENT) + np.uint64(entry), 1)
    return status


@helper
def _unescaped(frame: Address, address: Address, end: Address) -> Value:
    """Decodes the escapes of a string, and writes the result to the arena. Returns (location in the
    arena, status).
    """
    if not arena_has(frame, end - address):
        return _NOTHING, np.int64(c.GROW_ARENA)
    first = arena_end(frame)
    behind = unescape(address, end, first)
    position = first - address_in(frame, c.ARENA)
    put(frame, c.ARENA_SIZE, np.int64(position + (behind - first)))
    return position << np.uint64(32) | (behind - first) << ONE | ONE, np.int64(c.DONE)


@inlined
def _integer(
    address: Address, end: Address, value: Value, count: Value, exponent: Value, limit: Value
) -> Value:
    """Converts a parsed number to an integer. Returns (integer, status). Integers from `-limit - 1`
    to `limit`, inclusive, are valid.
    """
    status = np.int64(c.DONE)
    if exponent != 0 or count > _NINETEEN:
        value, status = _exact_integer(address, end)
    negative = load_u8(address) == MINUS
    if status == c.DONE and value > limit + np.uint64(negative):
        status = np.int64(c.OUT_OF_RANGE)
    number = np.int64(value)
    return -number if negative else number, status


@inlined
def put_number(
    frame: Address,
    node: Address,
    entry: Value,
    address: Address,
    end: Address,
    value: Value,
    count: Value,
    exponent: Value,
    table: Address,
) -> Value:
    """Writes a number as the value of a node. The number is the text from `address` to `end`.
    `take_number` has parsed it to `value`, `count` and `exponent`.
    """
    op = get(node, c.OP)
    data = address_in(node, c.DATA)
    if op == c.INT64:
        number, status = _integer(address, end, value, count, exponent, _MAX_INT64)
        if status == c.DONE:
            store_i64(data + np.uint64(8 * entry), number)
        return status
    if op == c.DOUBLE:
        bits = double_of(address, end, value, count, exponent, table)
        status = np.int64(c.DONE)
        if bits & _MAGNITUDE >= _INFINITY:
            bits, status = _no_double(frame, node, entry, address, end, bits)
        store_i64(data + np.uint64(8 * entry), np.int64(bits))
        return status
    return _put_other(frame, node, entry, address, end, value, count, exponent, table)


@helper
def _exact_integer(address: Address, end: Address) -> Value:
    """Returns (absolute value of the number, status). The status is an error code if the number is
    not an integer, or if its absolute value is 2^64 or more.
    """
    high, low, status = exact_number(address, end, 0)
    if status < 0:
        return low, -status
    if high != _NOTHING:
        return low, np.int64(c.OUT_OF_RANGE)
    return low, np.int64(c.DONE)


@helper
def _no_double(
    frame: Address, node: Address, entry: Value, address: Address, end: Address, bits: Value
) -> Value:
    """Handles a number for which `double_of` returned infinity or `OPEN`. Returns (bits, status).
    Returns infinity unchanged, with status `OUT_OF_RANGE`. For `OPEN`, adds the number to the
    undecided numbers, and returns a NaN that contains its index.
    """
    if bits != OPEN:
        return bits, np.int64(c.OUT_OF_RANGE)
    number, status = _add_undecided(frame, node, entry, address, end)
    return _OPEN_DOUBLE | number, status


@helper
def _add_undecided(
    frame: Address, node: Address, entry: Value, address: Address, end: Address
) -> Value:
    """Adds a number to the undecided numbers, which Python rounds later. Returns (index of the
    number, status).
    """
    number = get(frame, c.OPEN_COUNT)
    if number >= get(frame, c.OPEN_CAPACITY):
        put(frame, c.WANTED, number + 1)
        return _NOTHING, np.int64(c.GROW_OPEN)
    to = address_in(frame, c.OPEN) + np.uint64(8 * c.OPEN_SIZE * number)
    put(to, 0, get(node, c.NUMBER))
    put(to, 1, entry)
    put(to, 2, np.int64(address - address_in(frame, c.BASE)))
    put(to, 3, np.int64(end - address))
    put(to, 4, get(frame, c.CURRENT_ROW))
    put(frame, c.OPEN_COUNT, number + 1)
    return np.uint64(number), np.int64(c.DONE)


@helper
def _put_other(
    frame: Address,
    node: Address,
    entry: Value,
    address: Address,
    end: Address,
    value: Value,
    count: Value,
    exponent: Value,
    table: Address,
) -> Value:
    op = get(node, c.OP)
    data = address_in(node, c.DATA)
    if op == c.INT32:
        number, status = _integer(address, end, value, count, exponent, _MAX_INT32)
        if status == c.DONE:
            store_i32(data + np.uint64(4 * entry), number)
        return status
    if op == c.SINGLE:
        status = np.int64(c.DONE)
        bits = double_of(address, end, value, count, exponent, table)
        if bits != OPEN:
            bits = _single_of(bits)
        if bits == OPEN:
            open_number, status = _add_undecided(frame, node, entry, address, end)
            bits = _OPEN_SINGLE | (open_number & _OPEN_SINGLE_BITS)
        elif bits & ~_SINGLE_SIGN == _SINGLE_INFINITY:
            return np.int64(c.OUT_OF_RANGE)
        store_i32(data + np.uint64(4 * entry), np.int64(bits))
        return status
    return _put_decimal(
        node, data + np.uint64(16 * entry), address, end, value, count, exponent, table
    )


@helper
def _single_of(bits: Value) -> Value:
    """Returns the bits of the float32 that is nearest to a number. `bits` are the bits of the
    double that is nearest to the number.

    Returns `OPEN` if the double is halfway between two float32 numbers.
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
    address: Address,
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
        high, low, status = exact_number(address, end, scale)
        if status < 0:
            return -status
        if status > precision:
            return np.int64(c.OUT_OF_RANGE)
    if load_u8(address) == MINUS:
        low = ~low + ONE
        high = ~high
        if low == _NOTHING:
            high += ONE
    store_i64(to, np.int64(low))
    store_i64(to + np.uint64(8), np.int64(high))
    return np.int64(c.DONE)


@helper
def put_quoted(
    frame: Address, node: Address, entry: Value, address: Address, end: Address, escaped: Value
) -> Value:
    """Writes a date, timestamp or binary value, which JSON represents as a string."""
    packed = (address - address_in(frame, c.BASE)) << np.uint64(32) | (end - address) << ONE
    before = get(frame, c.ARENA_SIZE)
    if escaped:
        packed, status = _unescaped(frame, address, end)
        if status != c.DONE:
            return status
        address = address_in(frame, c.ARENA) + (packed >> np.uint64(32))
        end = address_in(frame, c.ARENA) + np.uint64(get(frame, c.ARENA_SIZE))
    op = get(node, c.OP)
    data = address_in(node, c.DATA)
    if op == c.BINARY:
        if base64_size(address, end) < 0:
            return np.int64(c.BAD_BASE64)
        store_i64(data + np.uint64(8 * entry), np.int64(packed))
    else:
        put(frame, c.ARENA_SIZE, before)
        if op == c.DATE:
            value, is_valid = days_of(address, end)
            if not is_valid or end - address != np.uint64(10):
                return np.int64(c.BAD_DATE)
            store_i32(data + np.uint64(4 * entry), value)
        else:
            value, is_valid, zone = micros_of(address, end)
            if not is_valid:
                return np.int64(c.BAD_TIME)
            if (zone == ZONE) != (op == c.TIMESTAMP):
                return np.int64(c.BAD_ZONE)
            store_i64(data + np.uint64(8 * entry), value)
    store_u8(address_in(node, c.PRESENT) + np.uint64(entry), 1)
    return np.int64(c.DONE)
