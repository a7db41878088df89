"""Strings of RFC 8259 inside the kernels: where they end, and what their escapes stand for.

What comes back is an address, or a code of `contract` where the string is wrong; no address is as
small as a code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels.compiled import helper, inlined
from segment_format.kernels.primitives import (
    copy_long,
    load_u8,
    load_u32,
    load_word,
    store_u8,
    utf8_size,
)
from segment_format.values.json import contract as c
from segment_format.values.memory import (
    WIDTH,
    end_mask,
    high_mask,
    special_mask,
    trailing_zeros,
)

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Value

ONE = np.uint64(1)
_TWO = np.uint64(2)
_FOUR = np.uint64(4)
_SIX = np.uint64(6)
_STEP = np.uint64(WIDTH)
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
def skip_space(at: Address, stop: Address) -> Value:
    """Where something else than white space stands, or the end."""
    while at < stop:
        byte = load_u8(at)
        if byte > SPACE or (byte != SPACE and byte != _LINE and byte != _RETURN and byte != _TAB):
            break
        at += ONE
    return at


@inlined
def scan_string(at: Address, stop: Address) -> Value:
    """(address of the closing quote or a code, whether there are escapes) of the string whose
    first character is at `at`.
    """
    place = at
    mask = special_mask(place)
    while mask == _NOTHING and stop - place > _STEP:
        place += _STEP
        mask = special_mask(place)
    place += trailing_zeros(mask)
    escaped = np.int64(0)
    if mask == _NOTHING or place >= stop:
        place = np.uint64(c.BAD_STRING_END)
    elif load_u8(place) != QUOTE:
        place, escaped = _scan_rest(at, place, stop)
    return place, escaped


@helper
def _scan_rest(start: Address, at: Address, stop: Address) -> Value:
    """As `scan_string`, from the first special byte on."""
    escaped = np.int64(0)
    high = _NOTHING
    place = at
    while True:
        mask = end_mask(place)
        size = trailing_zeros(mask)
        if mask == _NOTHING:
            size = _STEP
        size = min(size, stop - place)
        high |= high_mask(place) & (_ALL >> (_STEP - size))
        place += size
        if place >= stop:
            return np.uint64(c.BAD_STRING_END), escaped
        if mask == _NOTHING:
            continue
        byte = load_u8(place)
        if byte == QUOTE:
            break
        if byte != BACKSLASH:
            return np.uint64(c.BAD_CONTROL), escaped
        escaped = np.int64(1)
        place = _escape_end(place, stop)
        if place <= LAST_CODE:
            return place, escaped
    if high != _NOTHING:
        _, malformed = utf8_size(start, place - start)
        if malformed > 0:
            return np.uint64(c.BAD_UTF8), escaped
    return place, escaped


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
def _hex(at: Address) -> Value:
    """What four hexadecimal digits stand for, negative if they are none."""
    first = _hex_digit(load_u8(at))
    second = _hex_digit(load_u8(at + ONE))
    third = _hex_digit(load_u8(at + _TWO))
    fourth = _hex_digit(load_u8(at + np.uint64(3)))
    if first < 0 or second < 0 or third < 0 or fourth < 0:
        return np.int64(-1)
    return first << 12 | second << 8 | third << 4 | fourth


@inlined
def _plain_escape(kind: Value) -> Value:
    """What a backslash and another letter than u stand for, negative if nothing."""
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
def _escape_end(at: Address, stop: Address) -> Value:
    """Behind the escape at `at`, a surrogate pair being one; or a code."""
    if stop - at < _TWO:
        return np.uint64(c.BAD_STRING_END)
    kind = load_u8(at + ONE)
    if kind != np.uint64(ord("u")):
        if _plain_escape(kind) >= 0:
            return at + _TWO
        return np.uint64(c.BAD_ESCAPE)
    if stop - at < _SIX:
        return np.uint64(c.BAD_ESCAPE)
    unit = _hex(at + _TWO)
    if unit < 0:
        return np.uint64(c.BAD_ESCAPE)
    at += _SIX
    if unit < _HIGH_FIRST or unit >= _SURROGATE_STOP:
        return at
    if unit >= _LOW_FIRST or stop - at < _SIX:
        return np.uint64(c.BAD_SURROGATE)
    if load_u8(at) != BACKSLASH or load_u8(at + ONE) != np.uint64(ord("u")):
        return np.uint64(c.BAD_SURROGATE)
    unit = _hex(at + _TWO)
    if unit < _LOW_FIRST or unit >= _SURROGATE_STOP:
        return np.uint64(c.BAD_SURROGATE)
    return at + _SIX


@inlined
def _put_utf8(to: Address, point: Value) -> Value:
    """Writes a code point; behind it."""
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
def unescape(at: Address, end: Address, to: Address) -> Value:
    """Writes the string from `at` to its closing quote, which `scan_string` has found right; behind
    what was written. It is never longer than what it stands for.
    """
    while at < end:
        place = at
        mask = end_mask(place)
        while mask == _NOTHING and end - place > _STEP:
            place += _STEP
            mask = end_mask(place)
        place = min(place + trailing_zeros(mask), end)
        copy_long(to, at, place - at)
        to += place - at
        at = place
        if at >= end:
            break
        kind = load_u8(at + ONE)
        if kind != np.uint64(ord("u")):
            store_u8(to, _plain_escape(kind))
            to += ONE
            at += _TWO
            continue
        point = _hex(at + _TWO)
        at += _SIX
        if point >= _HIGH_FIRST and point < _LOW_FIRST:
            low = _hex(at + _TWO)
            at += _SIX
            point = 0x10000 + ((point - _HIGH_FIRST) << 10) + (low - _LOW_FIRST)
        to = _put_utf8(to, point)
    return to


@inlined
def is_word(at: Address, stop: Address, word: Value) -> Value:
    """Whether four bytes, big-endian in `word`, stand at `at`."""
    return stop - at >= _FOUR and load_u32(at) == word


@inlined
def same_bytes(first: Address, second: Address, size: Value) -> Value:
    """Whether so many bytes (uint64) are equal."""
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
