"""Parts of a value that nobody wants, inside the kernels: checked all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels.compiled import helper, inlined
from segment_format.kernels.memory import load_u8, store_u8
from segment_format.values.json import contract as c
from segment_format.values.json.numbers import MINUS, skip_number
from segment_format.values.json.strings import (
    LAST_CODE,
    ONE,
    QUOTE,
    is_word,
    scan_string,
    skip_space,
)

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Value

_TWO = np.uint64(2)
_FOUR = np.uint64(4)
_CASE = np.uint64(0x20)
OBJECT = np.uint64(ord("{"))
OBJECT_END = np.uint64(ord("}"))
ARRAY = np.uint64(ord("["))
ARRAY_END = np.uint64(ord("]"))
COMMA = np.uint64(ord(","))
COLON = np.uint64(ord(":"))
_ZERO = np.uint64(ord("0"))
_NINE = np.uint64(ord("9"))
NULL_WORD = np.uint64(int.from_bytes(b"null", "big"))
TRUE_WORD = np.uint64(int.from_bytes(b"true", "big"))
FALSE_WORD = np.uint64(int.from_bytes(b"fals", "big"))
LETTER_E = np.uint64(ord("e"))


@inlined
def begins_number(byte: Value) -> Value:
    """Whether a number may begin with it."""
    return (byte >= _ZERO and byte <= _NINE) or byte == MINUS


@inlined
def is_bracket(byte: Value) -> Value:
    """Whether it begins an object or an array: the two differ in one bit."""
    return byte | _CASE == OBJECT


@inlined
def skip_false(at: Address, stop: Address) -> Value:
    """Behind `false`, or a code."""
    if is_word(at, stop, FALSE_WORD) and stop - at > _FOUR and load_u8(at + _FOUR) == LETTER_E:
        return at + np.uint64(5)
    return np.uint64(c.BAD_TOKEN)


@helper
def skip_scalar(at: Address, stop: Address) -> Value:
    """Behind the string, number or name at `at`, or a code."""
    byte = load_u8(at)
    if byte == QUOTE:
        end, _ = scan_string(at + ONE, stop)
        if end > LAST_CODE:
            end += ONE
        return end
    if begins_number(byte):
        return skip_number(at, stop)
    if is_word(at, stop, NULL_WORD) or is_word(at, stop, TRUE_WORD):
        return at + _FOUR
    return skip_false(at, stop)


@helper
def skip_key(at: Address, stop: Address) -> Value:
    """(behind the key at `at`, its colon and white space, or a code; where it went wrong)."""
    if at >= stop:
        return np.uint64(c.BAD_END), at
    if load_u8(at) != QUOTE:
        return np.uint64(c.BAD_KEY), at
    end, _ = scan_string(at + ONE, stop)
    if end <= LAST_CODE:
        return end, at
    at = skip_space(end + ONE, stop)
    if at >= stop:
        return np.uint64(c.BAD_END), at
    if load_u8(at) != COLON:
        return np.uint64(c.BAD_COLON), at
    at = skip_space(at + ONE, stop)
    return at, at


@helper
def skip_value(at: Address, stop: Address, depth: Value, stack: Address) -> Value:
    """(behind the value at `at` or a code, where it went wrong).

    Args:
        at: Where white space or the value begins.
        stop: Where the input ends.
        depth: Containers around the value (int64).
        stack: `MAX_DEPTH` bytes to use.
    """
    outside = depth
    while True:
        at = skip_space(at, stop)
        if at >= stop:
            return np.uint64(c.BAD_END), at
        byte = load_u8(at)
        if is_bracket(byte):
            if depth >= c.MAX_DEPTH:
                return np.uint64(c.BAD_DEPTH), at
            store_u8(stack + np.uint64(depth), np.int64(byte))
            depth += 1
            at = skip_space(at + ONE, stop)
            if at >= stop:
                return np.uint64(c.BAD_END), at
            if load_u8(at) != byte + _TWO:  # the bracket that closes
                if byte == OBJECT:
                    found, at = skip_key(at, stop)
                    if found <= LAST_CODE:
                        return found, at
                continue
        else:
            found = skip_scalar(at, stop)
            if found <= LAST_CODE:
                return found, at
            at = found
        while depth > outside:
            at = skip_space(at, stop)
            if at >= stop:
                return np.uint64(c.BAD_END), at
            byte = load_u8(at)
            opened = load_u8(stack + np.uint64(depth - 1))
            if byte == opened + _TWO:
                at += ONE
                depth -= 1
                continue
            if byte != COMMA:
                return np.uint64(c.BAD_NEXT), at
            at += ONE
            if opened == OBJECT:
                found, at = skip_key(skip_space(at, stop), stop)
                if found <= LAST_CODE:
                    return found, at
            break
        if depth == outside:
            return at, at
