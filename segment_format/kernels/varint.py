"""Zig-zag varints inside the kernels: the rules of Kafka's `ByteUtils`, never a byte beyond the
end.

7 bits a byte, least significant first, top bit = one more. At most 5 bytes (varint, 32 bits) or 10
(varlong, 64 bits); bits beyond 32 or 64 in the last byte are dropped, as Kafka drops them.

Both readers return `(value, next address)`; the next address is 0 for a varint that is too long or
runs past the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels.compiled import helper, inlined
from segment_format.kernels.memory import load_u8

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Value

_ONE = np.uint64(1)
_CONTINUED = np.uint64(0x80)
_LOW = np.uint64(0x7F)
_MASK_32 = np.uint64(0xFFFFFFFF)
_NOWHERE = np.uint64(0)


@inlined
def zigzag(raw: Value) -> Value:
    """The signed number that is written so."""
    return np.int64(raw >> _ONE) ^ -np.int64(raw & _ONE)


@helper
def long_varint(address: Address, stop: Address, max_bytes: Value) -> Value:
    """The 64 bits of a number of so many bytes at most, and the address behind it; 0 for no end."""
    raw = np.uint64(0)
    shift = np.uint64(0)
    at = address
    limit = min(stop, address + max_bytes)
    while at < limit:
        byte = load_u8(at)
        at += _ONE
        raw |= (byte & _LOW) << shift
        if byte < _CONTINUED:
            return raw, at
        shift += np.uint64(7)
    return raw, _NOWHERE


@inlined
def read_varint(address: Address, stop: Address) -> Value:
    """A 32-bit value; most are one byte, nearly all the rest two."""
    if address < stop:
        first = load_u8(address)
        if first < _CONTINUED:
            return zigzag(first), address + _ONE
        if address + _ONE < stop:
            second = load_u8(address + _ONE)
            if second < _CONTINUED:
                raw = (first & _LOW) | second << np.uint64(7)
                return zigzag(raw), address + np.uint64(2)
    raw, following = long_varint(address, stop, np.uint64(5))
    return zigzag(raw & _MASK_32), following


@inlined
def read_varlong(address: Address, stop: Address) -> Value:
    """A 64-bit value."""
    if address < stop:
        first = load_u8(address)
        if first < _CONTINUED:
            return zigzag(first), address + _ONE
    raw, following = long_varint(address, stop, np.uint64(10))
    return zigzag(raw), following
