"""The outline of a zstd frame as Kafka's Java producer writes it, walked inside the kernel.

`segment_format.record.zstd_frames` has the layout and takes every other shape. The decompression
itself is the library's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels.compiled import helper, inlined
from segment_format.kernels.memory import load_u8, load_u16_native, load_u32_native

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Value

_MAGIC = np.uint64(0xFD2FB528)
_CHECKSUM_FLAG = np.uint64(4)
_CHECKSUM_SIZE = np.uint64(4)
_LEAST_SIZE = np.uint64(9)
_DESCRIPTORS = np.uint64(6)
_BLOCK_HEADER = np.uint64(3)
_MAX_BLOCK = np.uint64(128 << 10)
_MAX_WINDOW = np.uint64(1 << 27)
_LAST = np.uint64(1)
_RUN_LENGTH = np.uint64(1)
_COMPRESSED = np.uint64(2)
_RESERVED = np.uint64(3)
_ONE = np.uint64(1)
_TWO = np.uint64(2)
_THREE = np.uint64(3)
_FOUR = np.uint64(4)
_FAILED = np.int64(-1)


@inlined
def _window_size(descriptor: Value) -> Value:
    base = _ONE << (np.uint64(10) + (descriptor >> _THREE))
    return base + (base >> _THREE) * (descriptor & np.uint64(7))


@helper
def zstd_bound(source: Address, size: Value) -> Value:
    """Most bytes that one whole frame without content size and dictionary can expand to.

    −1 for anything else, malformed or not.
    """
    if size < _LEAST_SIZE or load_u32_native(source) != _MAGIC:
        return _FAILED
    flags = load_u8(source + _FOUR)
    window = _window_size(load_u8(source + _FOUR + _ONE))
    if flags & ~_CHECKSUM_FLAG or window > _MAX_WINDOW:
        return _FAILED
    block_limit = min(window, _MAX_BLOCK)
    stop = source + size
    at = source + _DESCRIPTORS
    bound = np.uint64(0)
    while at <= stop and stop - at >= _BLOCK_HEADER:
        header = load_u16_native(at) | load_u8(at + _TWO) << np.uint64(16)
        block = header >> _THREE
        kind = header >> _ONE & _THREE
        if kind == _RESERVED:
            return _FAILED
        bound += block_limit if kind == _COMPRESSED else block
        at += _BLOCK_HEADER + (_ONE if kind == _RUN_LENGTH else block)
        if header & _LAST:
            if flags:
                at += _CHECKSUM_SIZE
            return np.int64(bound) if at == stop else _FAILED
    return _FAILED
