"""LZ4 frames as Java producers write them, decompressed inside the kernel.

`segment_format.record.lz4_frame` has the layout and takes every frame that is not of this shape:
header `04 22 4d 18 60 40 82` (64 KiB independent blocks, no checksums, no content size). What this
decoder does not like it leaves to that one, error or not; what it accepts, the library accepts.

A block is a sequence of: token (high half literal count, low half match length − 4, 15 = more
bytes follow, each added, up to one below 255), literals, distance u16 little-endian. The last
sequence ends after its literals.

Source: the LZ4 block format; end conditions as in `LZ4_decompress_safe`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels.compiled import helper, inlined
from segment_format.kernels.copies import copy_literals, copy_match
from segment_format.kernels.memory import load_u8, load_u16_native, load_u32_native, load_word

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Value

_ONE = np.uint64(1)
_TWO = np.uint64(2)
_FOUR = np.uint64(4)
_HEADER = np.uint64(0x824060184D2204)  # seven bytes, little-endian
_HEADER_MASK = np.uint64(0xFFFFFFFFFFFFFF)
_HEADER_SIZE = np.uint64(7)
_BLOCK = np.uint64(64 << 10)
_STORED = np.uint64(1 << 31)
_MAX_RATIO = np.uint64(255)
_FAILED = np.int64(-1)
_LAST_INPUT = np.uint64(8)  # distance, a token and five literals
_LAST_OUTPUT = np.uint64(12)
_LAST_LITERALS = np.uint64(5)


@helper
def lz4_bound(source: Address, size: Value) -> Value:
    """Most bytes that the frame at `source` can expand to; −1 for frames of another shape."""
    stop = source + size
    if size < np.uint64(11) or load_word(source) & _HEADER_MASK != _HEADER:
        return _FAILED
    at = source + _HEADER_SIZE
    bound = np.uint64(0)
    while stop - at >= _FOUR:
        word = load_u32_native(at)
        at += _FOUR
        if word == np.uint64(0):
            return np.int64(bound)
        block = word & ~_STORED
        if block == np.uint64(0) or block > stop - at:
            return _FAILED
        if word & _STORED:
            if block > _BLOCK:
                return _FAILED
            bound += block
        else:
            bound += min(_BLOCK, block * _MAX_RATIO)
        at += block
    return _FAILED


@helper
def decompress_lz4(source: Address, target: Address) -> Value:
    """Decompress a frame that `lz4_bound` has walked; the size, or −1 for what it leaves to others.

    There is room for the bound and 32 more bytes at `target`.
    """
    at = source + _HEADER_SIZE
    to = target
    while True:
        word = load_u32_native(at)
        at += _FOUR
        if word == np.uint64(0):
            return np.int64(to - target)
        block = word & ~_STORED
        if word & _STORED:
            copy_literals(to, at, block, at + block)
            to += block
        else:
            room = min(_BLOCK, block * _MAX_RATIO)
            size = _decompress_block(at, at + block, to, to + room)
            if size < 0:
                return _FAILED
            to += np.uint64(size)
        at += block


@inlined
def _more(at: Address, stop: Address, length: Value) -> Value:
    """A length that goes on in further bytes: `(length, next address)`, address 0 at the end."""
    while at < stop:
        byte = load_u8(at)
        at += _ONE
        length += byte
        if byte != np.uint64(255):
            return length, at
    return length, np.uint64(0)


@helper
def _decompress_block(at: Address, stop: Address, target: Address, target_stop: Address) -> Value:
    to = target
    while at < stop:
        token = load_u8(at)
        at += _ONE
        literals = token >> _FOUR
        if literals == np.uint64(15):
            literals, at = _more(at, stop, literals)
            if at == np.uint64(0):
                return _FAILED
        if literals > stop - at or literals > target_stop - to:
            return _FAILED
        copy_literals(to, at, literals, stop)
        at += literals
        to += literals
        if at == stop:
            return np.int64(to - target)
        if stop - at < _LAST_INPUT or target_stop - to < _LAST_OUTPUT:
            return _FAILED
        distance = load_u16_native(at)
        at += _TWO
        length = token & np.uint64(15)
        if length == np.uint64(15):
            length, at = _more(at, stop, length)
            if at == np.uint64(0):
                return _FAILED
        length += _FOUR
        if distance == np.uint64(0) or distance > to - target:
            return _FAILED
        if length > target_stop - to or target_stop - to - length < _LAST_LITERALS:
            return _FAILED
        copy_match(to, distance, length)
        to += length
    return _FAILED
