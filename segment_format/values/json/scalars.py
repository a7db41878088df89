"""Values that JSON writes as strings, inside the kernels: dates, timestamps, base64.

    date        YYYY-MM-DD
    timestamp   date ("T" / " ") hh:mm [":" ss ["." 1*9digit]] [zone]
    zone        "Z" / ("+" / "-") hh [[":"] mm], at most 18 hours

Years from 0001 to 9999, no leap seconds, no 24:00. What is below a microsecond is cut off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels.compiled import helper, inlined
from segment_format.kernels.memory import load_u8, store_u8
from segment_format.values.json.strings import ONE

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Value

_NOTHING = np.uint64(0)
_TWO = np.uint64(2)
_THREE = np.uint64(3)
_FOUR = np.uint64(4)
_DASH = np.uint64(ord("-"))
_COLON = np.uint64(ord(":"))
_PADDING = np.uint64(ord("="))
_DATE_SIZE = np.uint64(10)
_MICROS = np.int64(1_000_000)
_MOST_ZONE = np.int64(18 * 60)
NO_ZONE = np.int64(0)
ZONE = np.int64(1)


@inlined
def _two_digits(at: Address) -> Value:
    """Negative if they are none."""
    first = np.int64(load_u8(at)) - 48
    second = np.int64(load_u8(at + ONE)) - 48
    if first < 0 or first > 9 or second < 0 or second > 9:
        return np.int64(-1)
    return first * 10 + second


@helper
def days_of(at: Address, end: Address) -> Value:
    """(days since 1970-01-01, whether there is a date) of the 10 bytes at `at`."""
    none = np.int64(0), False
    if end - at < _DATE_SIZE:
        return none
    century = _two_digits(at)
    year = _two_digits(at + _TWO)
    month = _two_digits(at + np.uint64(5))
    day = _two_digits(at + np.uint64(8))
    if load_u8(at + _FOUR) != _DASH or load_u8(at + np.uint64(7)) != _DASH:
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
    # Years begin in March, so the leap day is the last.
    if month <= 2:
        year -= 1
        month += 12
    era = year // 400
    in_era = year - era * 400
    in_year = (153 * (month - 3) + 2) // 5 + day - 1
    return era * 146097 + in_era * 365 + in_era // 4 - in_era // 100 + in_year - 719468, True


@helper
def micros_of(at: Address, end: Address) -> Value:
    """(microseconds since 1970-01-01T00:00, whether there is a timestamp, `ZONE` if it has a zone,
    which then is taken off) of a text.
    """
    none = np.int64(0), False, NO_ZONE
    days, found = days_of(at, end)
    if not found or end - at < np.uint64(16):
        return none
    between = load_u8(at + _DATE_SIZE)
    if between != np.uint64(ord("T")) and between != np.uint64(ord(" ")):
        return none
    hour = _two_digits(at + np.uint64(11))
    minute = _two_digits(at + np.uint64(14))
    if load_u8(at + np.uint64(13)) != _COLON:
        return none
    if hour < 0 or hour > 23 or minute < 0 or minute > 59:
        return none
    at += np.uint64(16)
    second = np.int64(0)
    micros = np.int64(0)
    if end - at >= _THREE and load_u8(at) == _COLON:
        second = _two_digits(at + ONE)
        if second < 0 or second > 59:
            return none
        at += _THREE
        if at < end and load_u8(at) == np.uint64(ord(".")):
            at += ONE
            count = np.int64(0)
            while at < end:
                digit = np.int64(load_u8(at)) - 48
                if digit < 0 or digit > 9:
                    break
                count += 1
                if count <= 6:
                    micros = micros * 10 + digit
                at += ONE
            if count < 1 or count > 9:
                return none
            for _ in range(count, 6):
                micros *= 10
    zone = NO_ZONE
    offset = np.int64(0)
    if at < end:
        offset, found = _zone_of(at, end)
        if not found:
            return none
        zone = ZONE
    seconds = days * 86400 + hour * 3600 + (minute - offset) * 60 + second
    return seconds * _MICROS + micros, True, zone


@inlined
def _zone_of(at: Address, end: Address) -> Value:
    """(minutes east of UTC, whether it is a zone)."""
    none = np.int64(0), False
    sign = load_u8(at)
    at += ONE
    if sign == np.uint64(ord("Z")):
        return np.int64(0), at == end
    if (sign != np.uint64(ord("+")) and sign != _DASH) or end - at < _TWO:
        return none
    hours = _two_digits(at)
    minutes = np.int64(0)
    at += _TWO
    if at < end:
        if load_u8(at) == _COLON:
            at += ONE
        if end - at != _TWO:
            return none
        minutes = _two_digits(at)
    if hours < 0 or minutes < 0 or minutes > 59:
        return none
    offset = hours * 60 + minutes
    if offset > _MOST_ZONE:
        return none
    return (-offset if sign == _DASH else offset), True


@inlined
def _six_bits(byte: Value) -> Value:
    """What a character of base64 stands for, negative if it is none."""
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
def base64_size(at: Address, end: Address) -> Value:
    """Bytes that base64 (RFC 4648, padded) stands for, negative if it is none."""
    size = end - at
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
    while at < stop:
        if _six_bits(load_u8(at)) < 0:
            return np.int64(-1)
        at += ONE
    return np.int64(size >> _TWO) * 3 - padding


@helper
def decode_base64(at: Address, size: Value, to: Address) -> None:
    """Writes `size` bytes of base64 that `base64_size` has found right."""
    while size > 0:
        first = _six_bits(load_u8(at))
        second = _six_bits(load_u8(at + ONE))
        store_u8(to, first << 2 | second >> 4)
        if size > 1:
            third = _six_bits(load_u8(at + _TWO))
            store_u8(to + ONE, second << 4 | third >> 2)
            if size > 2:
                store_u8(to + _TWO, third << 6 | _six_bits(load_u8(at + _THREE)))
        at += _FOUR
        to += _THREE
        size -= 3
