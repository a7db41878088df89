"""Protobuf's wire format inside the kernel: no byte at or beyond the stop is read.

Readers return what they read and the next address, which is 0 where there is none. What is too long
is refused where Google's upb refuses it: tags and lengths beyond five bytes, numbers beyond ten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels.compiled import helper, inlined
from segment_format.kernels.memory import (
    copy_long,
    load_u8,
    load_word,
    store_i64,
)
from segment_format.kernels.varint import long_varint
from segment_format.values.frames import get, put
from segment_format.values.protobuf import contract as c
from segment_format.values.protobuf.wire import (
    BYTES,
    END_GROUP,
    FIXED32,
    FIXED64,
    GROUP,
    VARINT,
)

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Value

NOWHERE = np.uint64(0)
ONE = np.uint64(1)
FOUR = np.uint64(4)
EIGHT = np.uint64(8)
_CONTINUED = np.uint64(0x80)
_SEVEN = np.uint64(7)
_MAX_U32 = np.uint64(0xFFFFFFFF)
_MAX_SIZE = np.uint64(0x7FFFFFFF)
_HIGH_BITS = np.uint64(0x8080808080808080)
_LONG = np.uint64(64)


@inlined
def read_u64(at: Address, stop: Address) -> Value:
    """A number of up to 64 bits; further bits are dropped."""
    if at < stop:
        first = load_u8(at)
        if first < _CONTINUED:
            return first, at + ONE
    return long_varint(at, stop, np.uint64(10))


@inlined
def read_u32(at: Address, stop: Address) -> Value:
    """A tag: a number of up to 32 bits, no more."""
    if at < stop:
        first = load_u8(at)
        if first < _CONTINUED:
            return first, at + ONE
    raw, following = long_varint(at, stop, np.uint64(5))
    if raw > _MAX_U32:
        return raw, NOWHERE
    return raw, following


@inlined
def read_size(at: Address, stop: Address) -> Value:
    """A length, and where what it counts begins; that is within the stop."""
    size, start = read_u32(at, stop)
    if start == NOWHERE or size > _MAX_SIZE or size > stop - start:
        return size, NOWHERE
    return size, start


@inlined
def zigzag(raw: Value) -> Value:
    """A signed number."""
    return np.int64(raw >> ONE) ^ -np.int64(raw & ONE)


@inlined
def low_32(raw: Value) -> Value:
    """The low 32 bits, signed."""
    return np.int64(np.int32(raw & _MAX_U32))


@helper
def count_varints(at: Address, stop: Address) -> Value:
    """How many numbers end in a packed field."""
    found = np.int64(0)
    while at < stop:
        found += np.int64(load_u8(at) < _CONTINUED)
        at += ONE
    return found


@inlined
def _skip_plain(wire: Value, at: Address, stop: Address) -> Value:
    """(reason, next address) of an unknown field that is no group."""
    if wire == BYTES:
        size, start = read_size(at, stop)
        if start == NOWHERE:
            return c.BAD_LENGTH, NOWHERE
        return c.DONE, start + size
    if wire == VARINT:
        _, following = read_u64(at, stop)
        if following == NOWHERE:
            return c.BAD_NUMBER, NOWHERE
        return c.DONE, following
    size = EIGHT
    if wire == FIXED32:
        size = FOUR
    elif wire != FIXED64:
        return c.BAD_TAG, NOWHERE
    if size > stop - at:
        return c.BAD_LENGTH, NOWHERE
    return c.DONE, at + size


@helper
def _skip_group(number: Value, at: Address, stop: Address, stack: Address, depth: Value) -> Value:
    top = depth + 1
    if top > c.MOST_DEPTH:
        return c.TOO_DEEP, NOWHERE
    put(stack, top * c.FRAME_SIZE + c.FRAME_GROUP, number)
    while at < stop:
        tag, at = read_u32(at, stop)
        if at == NOWHERE:
            return c.BAD_TAG, NOWHERE
        inner = np.int64(tag >> np.uint64(3))
        kind = np.int64(tag & _SEVEN)
        if kind == GROUP:
            top += 1
            if top > c.MOST_DEPTH:
                return c.TOO_DEEP, NOWHERE
            put(stack, top * c.FRAME_SIZE + c.FRAME_GROUP, inner)
        elif kind == END_GROUP:
            if inner != get(stack, top * c.FRAME_SIZE + c.FRAME_GROUP):
                return c.BAD_GROUP, NOWHERE
            top -= 1
            if top == depth:
                return c.DONE, at
        else:
            reason, at = _skip_plain(kind, at, stop)
            if reason != c.DONE:
                return reason, NOWHERE
    return c.BAD_GROUP, NOWHERE


@inlined
def skip_field(
    number: Value, wire: Value, at: Address, stop: Address, stack: Address, depth: Value
) -> Value:
    """(reason, next address) behind an unknown field whose tag was read.

    Args:
        number: Of the field.
        wire: Its wire type.
        at: Behind its tag.
        stop: Where the message ends.
        stack: Of frames; groups stand above those of the messages under way. As in upb, a field
            number of 0 is none of its matters.
        depth: Of those.
    """
    if wire == GROUP:
        return _skip_group(number, at, stop, stack, depth)
    return _skip_plain(wire, at, stop)


@inlined
def copy_text(target: Address, source: Address, size: Value, readable: Address) -> Value:
    """Copies bytes and says whether they are all below 0x80.

    The target has room for 7 bytes more, which may be written.

    Args:
        target: Where to.
        source: Where from.
        size: How many.
        readable: Where bytes end that may be read, at or behind those to copy.
    """
    bits = np.uint64(0)
    stop = source + size
    while stop - source >= EIGHT:
        word = load_word(source)
        bits |= word
        store_i64(target, np.int64(word))
        source += EIGHT
        target += EIGHT
    left = stop - source
    if left > NOWHERE:
        if readable - source >= EIGHT:
            word = load_word(source)
            store_i64(target, np.int64(word))
            bits |= word & ((ONE << (left << np.uint64(3))) - ONE)
        else:
            copy_long(target, source, left)
            while source < stop:
                bits |= load_u8(source)
                source += ONE
    return bits & _HIGH_BITS == NOWHERE
