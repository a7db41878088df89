"""UTF-8 of header keys, malformed bytes replaced as `bytes.decode("utf-8", "replace")` replaces
them.

Arrow strings must be valid UTF-8. Each maximal malformed stretch (the longest prefix of a valid
sequence, else one byte) becomes one U+FFFD, three bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels.compiled import helper, inlined
from segment_format.kernels.memory import load_u8, load_word, store_u8

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Value

_ONE = np.uint64(1)
_HIGH_BITS = np.uint64(0x8080808080808080)


@inlined
def _is_tail(byte: Value) -> Value:
    return byte & np.uint64(0xC0) == np.uint64(0x80)


@inlined
def _step(at: Address, stop: Address) -> Value:
    """Length of the sequence at `at`, negative if it is malformed."""
    lead = load_u8(at)
    if lead < np.uint64(0x80):
        return np.int64(1)
    if lead < np.uint64(0xC2) or lead > np.uint64(0xF4):
        return np.int64(-1)
    size = np.int64(2)
    if lead >= np.uint64(0xE0):
        size = np.int64(3)
    if lead >= np.uint64(0xF0):
        size = np.int64(4)
    if at + _ONE >= stop:
        return np.int64(-1)
    second = load_u8(at + _ONE)
    if not _is_tail(second):
        return np.int64(-1)
    overlong = (lead == np.uint64(0xE0) and second < np.uint64(0xA0)) or (
        lead == np.uint64(0xF0) and second < np.uint64(0x90)
    )
    impossible = (lead == np.uint64(0xED) and second > np.uint64(0x9F)) or (
        lead == np.uint64(0xF4) and second > np.uint64(0x8F)
    )
    if overlong or impossible:
        return np.int64(-1)
    for k in range(2, size):
        if at + np.uint64(k) >= stop or not _is_tail(load_u8(at + np.uint64(k))):
            return np.int64(-k)
    return size


@helper
def utf8_size(address: Address, size: Value) -> Value:
    """(bytes of the text after replacement, malformed stretches in it).

    The size alone does not tell valid text: three malformed bytes may become one U+FFFD.
    """
    at = address
    stop = address + size
    while stop - at >= np.uint64(8) and load_word(at) & _HIGH_BITS == np.uint64(0):
        at += np.uint64(8)
    result = at - address
    malformed = np.int64(0)
    while at < stop:
        step = _step(at, stop)
        if step > 0:
            result += np.uint64(step)
            at += np.uint64(step)
        else:
            result += np.uint64(3)
            at += np.uint64(-step)
            malformed += 1
    return np.int64(result), malformed


@helper
def copy_utf8(target: Address, address: Address, size: Value) -> Value:
    """Write the text after replacement to `target`, which has room for `utf8_size` bytes."""
    at = address
    stop = address + size
    to = target
    while at < stop:
        step = _step(at, stop)
        if step > 0:
            for k in range(step):
                store_u8(to + np.uint64(k), np.int64(load_u8(at + np.uint64(k))))
            to += np.uint64(step)
            at += np.uint64(step)
        else:
            store_u8(to, np.int64(0xEF))
            store_u8(to + _ONE, np.int64(0xBF))
            store_u8(to + np.uint64(2), np.int64(0xBD))
            to += np.uint64(3)
            at += np.uint64(-step)
