"""Snappy in snappy-java's framing, decompressed inside the kernel.

`segment_format.record.snappy` has the framing and takes what is not of this shape: one stream
header, then blocks. What this decoder does not like it leaves to that one, error or not.

A raw block: its uncompressed size as a varint, then elements by the low two bits of a tag: 0 a
literal (size − 1 in the tag, or in 1 to 4 further bytes), 1 a copy of 4 to 11 bytes with an 11-bit
distance, 2 and 3 copies of 1 to 64 bytes with a distance of 2 or 4 bytes, little-endian.

Source: the snappy format description; `SnappyInputStream` for the framing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels.compiled import helper
from segment_format.kernels.copies import copy_literals, copy_match
from segment_format.kernels.memory import (
    load_u8,
    load_u16_native,
    load_u32,
    load_u32_native,
    load_word,
)

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Value

_ONE = np.uint64(1)
_TWO = np.uint64(2)
_FOUR = np.uint64(4)
_MAGIC = np.uint64(0x005950_50414E5382)  # little-endian
_HEADER_SIZE = np.uint64(16)
_MAX_RATIO = np.uint64(22)
_FAILED = np.int64(-1)


@helper
def snappy_bound(source: Address, size: Value) -> Value:
    """The bytes that a stream says it expands to; −1 for streams of another shape."""
    stop = source + size
    if size < _HEADER_SIZE or load_word(source) != _MAGIC:
        return _FAILED
    at = source + _HEADER_SIZE
    total = np.uint64(0)
    while stop - at >= _FOUR:
        block = load_u32(at)
        at += _FOUR
        if block == np.uint64(0) or block > stop - at:
            return _FAILED
        expanded, _ = _block_size(at, at + block)
        if expanded > _MAX_RATIO * block:
            return _FAILED
        total += expanded
        at += block
    return np.int64(total)


@helper
def _block_size(at: Address, stop: Address) -> Value:
    """`(uncompressed size, next address)`; a size that no block has if there is none."""
    size = np.uint64(0)
    shift = np.uint64(0)
    while at < stop and shift < np.uint64(35):
        byte = load_u8(at)
        at += _ONE
        size |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return size, at
        shift += np.uint64(7)
    return np.uint64(1 << 62), stop


@helper
def decompress_snappy(source: Address, size: Value, target: Address) -> Value:
    """Decompress a stream that `snappy_bound` has walked; the size, or −1 as there.

    There is room for the bound and 32 more bytes at `target`.
    """
    stop = source + size
    at = source + _HEADER_SIZE
    to = target
    while stop - at >= _FOUR:
        block = load_u32(at)
        at += _FOUR
        expanded, elements = _block_size(at, at + block)
        if not _decompress_block(elements, at + block, to, to + expanded):
            return _FAILED
        to += expanded
        at += block
    return np.int64(to - target)


@helper
def _last_copy(tag: Value, at: Address, stop: Address) -> Value:
    """`(length, distance, next address)` of a copy near the end; distance 0 if it is cut."""
    kind = tag & np.uint64(3)
    if kind == _ONE and stop - at >= _ONE:
        length = ((tag >> _TWO) & np.uint64(7)) + _FOUR
        distance = (tag >> np.uint64(5)) << np.uint64(8) | load_u8(at)
        return length, distance, at + _ONE
    if kind == _TWO and stop - at >= _TWO:
        return (tag >> _TWO) + _ONE, load_u16_native(at), at + _TWO
    return _ONE, np.uint64(0), stop


@helper
def _decompress_block(at: Address, stop: Address, target: Address, target_stop: Address) -> Value:
    """Whether the elements fill `[target, target_stop)` exactly."""
    to = target
    while at < stop:
        tag = load_u8(at)
        at += _ONE
        kind = tag & np.uint64(3)
        if kind == np.uint64(0):
            length = (tag >> _TWO) + _ONE
            if length > np.uint64(60):
                extra = length - np.uint64(60)
                if stop - at < extra:
                    return False
                length = np.uint64(0)
                for index in range(np.int64(extra)):
                    length |= load_u8(at + np.uint64(index)) << np.uint64(8 * index)
                length += _ONE
                at += extra
            if length > stop - at or length > target_stop - to:
                return False
            copy_literals(to, at, length, stop)
            at += length
            to += length
        else:
            if stop - at < _FOUR:
                length, distance, at = _last_copy(tag, at, stop)
            else:
                # Which kind of copy comes next cannot be guessed, so there is no branch on it.
                short = kind & _ONE & ~(kind >> _ONE)
                mask = np.uint64(0) - short
                wide = np.uint64(0) - (kind & (kind >> _ONE))
                word = load_u32_native(at)
                high = tag >> _TWO
                length = ((high & np.uint64(7)) + _FOUR) & mask | (high + _ONE) & ~mask
                near = (tag >> np.uint64(5)) << np.uint64(8) | word & np.uint64(0xFF)
                far = word & (np.uint64(0xFFFF) | wide)
                distance = near & mask | far & ~mask
                at += _TWO - short + (_TWO & wide)
            if distance == np.uint64(0) or distance > to - target or length > target_stop - to:
                return False
            copy_match(to, distance, length)
            to += length
    return to == target_stop
