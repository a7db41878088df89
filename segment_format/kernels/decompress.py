"""Decompresses lz4 and snappy inside the kernel, and computes upper bounds for the size of zstd
frames.

`segment_format.record.compression` documents the formats. This module supports only the variants
that producers usually write:

* LZ4: header `04 22 4d 18 60 40 82` (64 KiB independent blocks, no checksums, no content size). A
  block consists of sequences. A sequence has a token, literals, and a u16 little-endian distance.
  The upper half of the token is the number of literals. The lower half is the match length - 4. If
  a half is 15, more bytes follow and are added to it. The first byte below 255 is the last of these
  bytes. The last sequence ends after its literals.
* Snappy: one stream header, then blocks; or one block without a header, as librdkafka writes. A
  block is its uncompressed size as a varint, then elements. An element begins with a tag, whose low
  two bits are its kind. Kind 0 is a literal; its size - 1 is in the tag or in 1 to 4 further bytes.
  Kind 1 is a copy of 4 to 11 bytes with an 11-bit distance. Kinds 2 and 3 are copies of 1 to 64
  bytes; their distance is a little-endian number of 2 or 4 bytes.
* zstd: one frame. The kernel reads its headers to compute an upper bound for the size, and calls
  libzstd to decompress it.

If these functions reject an input, a library (see `segment_format.record.compression`) tries to
decompress it. Every input that these functions accept is also valid for the library. Bytes are
copied in steps of 16, so up to 15 bytes after the target may be overwritten.

Source: the LZ4 block format, with the end conditions of `LZ4_decompress_safe`; the snappy format
description; `SnappyInputStream` for its framing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels.compiled import helper, inlined
from segment_format.kernels.primitives import (
    copy_16,
    copy_long,
    load_u8,
    load_u16_native,
    load_u32,
    load_u32_native,
    load_word,
    store_u8,
)

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Value


_STEP = np.uint64(16)
_ONE = np.uint64(1)
_LONG = np.uint64(256)


@inlined
def copy_literals(target: Address, source: Address, size: Value, source_stop: Address) -> None:
    """Copies `size` bytes (uint64) from `source` to `target`. The two ranges must not overlap.
    Reads nothing at or after `source_stop`.

    The caller must have checked that the source has `size` bytes, and that 16 more bytes of the
    target may be overwritten.
    """
    if source_stop - source >= size + _STEP and size <= _LONG:
        # Nearly all copies end here. A loop would be slower, because its branch is mispredicted.
        copy_16(target, source)
        if size > _STEP:
            _copy_steps(target + _STEP, source + _STEP, target + size)
    else:
        copy_long(target, source, size)


@inlined
def copy_match(target: Address, distance: Value, size: Value) -> None:
    """Copies `size` bytes to `target` from the address `target - distance`. The two ranges may
    overlap.

    `distance` is a uint64 and not 0. The caller must have checked that at least `distance` bytes
    were already decompressed, and that 16 more bytes of the target may be overwritten.
    """
    if distance >= _STEP:
        source = target - distance
        copy_16(target, source)
        if size > _STEP:
            _copy_steps(target + _STEP, source + _STEP, target + size)
    else:
        _copy_pattern(target, distance, size)


@inlined
def _copy_steps(target: Address, source: Address, stop: Address) -> None:
    while target < stop:
        copy_16(target, source)
        target += _STEP
        source += _STEP


@helper
def _copy_pattern(target: Address, distance: Value, size: Value) -> None:
    """Copies `size` bytes to `target` from `target - distance`. `distance` is less than 16, so the
    last `distance` bytes before `target` are repeated. Doubles the number of repeated bytes until
    16 bytes can be copied at once.
    """
    to = target
    stop = target + size
    gap = distance
    while gap < _STEP and to < stop:
        limit = min(stop, to + gap)
        while to < limit:
            store_u8(to, np.int64(load_u8(to - gap)))
            to += _ONE
        gap += gap
    if to < stop:
        _copy_steps(to, to - gap, stop)


_TWO = np.uint64(2)
_FOUR = np.uint64(4)
_HEADER = np.uint64(0x824060184D2204)  # seven bytes, little-endian
_HEADER_MASK = np.uint64(0xFFFFFFFFFFFFFF)
_LZ4_HEADER_SIZE = np.uint64(7)
_BLOCK = np.uint64(64 << 10)
_STORED = np.uint64(1 << 31)
_LZ4_MAX_RATIO = np.uint64(255)
_FAILED = np.int64(-1)
_LAST_INPUT = np.uint64(8)  # distance, a token and five literals
_LAST_OUTPUT = np.uint64(12)
_LAST_LITERALS = np.uint64(5)


@helper
def lz4_bound(source: Address, size: Value) -> Value:
    """Returns an upper bound for the decompressed size of an LZ4 frame in bytes. Returns -1 if this
    module does not support the frame.
    """
    stop = source + size
    if size < np.uint64(11) or load_word(source) & _HEADER_MASK != _HEADER:
        return _FAILED
    address = source + _LZ4_HEADER_SIZE
    bound = np.uint64(0)
    while stop - address >= _FOUR:
        word = load_u32_native(address)
        address += _FOUR
        if word == np.uint64(0):
            return np.int64(bound)
        block = word & ~_STORED
        if block == np.uint64(0) or block > stop - address:
            return _FAILED
        if word & _STORED:
            if block > _BLOCK:
                return _FAILED
            bound += block
        else:
            bound += min(_BLOCK, block * _LZ4_MAX_RATIO)
        address += block
    return _FAILED


@helper
def decompress_lz4(source: Address, target: Address) -> Value:
    """Decompresses an LZ4 frame. `lz4_bound` must have accepted the frame. Returns the decompressed
    size in bytes, or -1 on failure.

    The target must have room for 32 bytes more than `lz4_bound` returned.
    """
    address = source + _LZ4_HEADER_SIZE
    to = target
    while True:
        word = load_u32_native(address)
        address += _FOUR
        if word == np.uint64(0):
            return np.int64(to - target)
        block = word & ~_STORED
        if word & _STORED:
            copy_literals(to, address, block, address + block)
            to += block
        else:
            capacity = min(_BLOCK, block * _LZ4_MAX_RATIO)
            size = _decompress_lz4_block(address, address + block, to, to + capacity)
            if size < 0:
                return _FAILED
            to += np.uint64(size)
        address += block


@inlined
def _more(address: Address, stop: Address, length: Value) -> Value:
    """Reads the further bytes of a length and adds them to `length`. Returns `(length, next
    address)`. The next address is 0 if the length is incomplete.
    """
    while address < stop:
        byte = load_u8(address)
        address += _ONE
        length += byte
        if byte != np.uint64(255):
            return length, address
    return length, np.uint64(0)


@helper
def _decompress_lz4_block(
    address: Address, stop: Address, target: Address, target_stop: Address
) -> Value:
    to = target
    while address < stop:
        token = load_u8(address)
        address += _ONE
        literals = token >> _FOUR
        if literals == np.uint64(15):
            literals, address = _more(address, stop, literals)
            if address == np.uint64(0):
                return _FAILED
        if literals > stop - address or literals > target_stop - to:
            return _FAILED
        copy_literals(to, address, literals, stop)
        address += literals
        to += literals
        if address == stop:
            return np.int64(to - target)
        if stop - address < _LAST_INPUT or target_stop - to < _LAST_OUTPUT:
            return _FAILED
        distance = load_u16_native(address)
        address += _TWO
        length = token & np.uint64(15)
        if length == np.uint64(15):
            length, address = _more(address, stop, length)
            if address == np.uint64(0):
                return _FAILED
        length += _FOUR
        if distance == np.uint64(0) or distance > to - target:
            return _FAILED
        if length > target_stop - to or target_stop - to - length < _LAST_LITERALS:
            return _FAILED
        copy_match(to, distance, length)
        to += length
    return _FAILED


_SNAPPY_MAGIC = np.uint64(0x005950_50414E5382)  # little-endian
_SNAPPY_HEADER_SIZE = np.uint64(16)
_SNAPPY_MAX_RATIO = np.uint64(22)


@helper
def snappy_bound(source: Address, size: Value) -> Value:
    """Returns the decompressed size that the blocks of a snappy stream, or one raw block, state, in
    bytes; -1 if this module does not support the input.
    """
    stop = source + size
    if not _is_stream(source, size):
        expanded, _ = _block_size(source, stop)
        return np.int64(expanded) if expanded <= _SNAPPY_MAX_RATIO * size else _FAILED
    if size < _SNAPPY_HEADER_SIZE:
        return _FAILED
    address = source + _SNAPPY_HEADER_SIZE
    total = np.uint64(0)
    while stop - address >= _FOUR:
        block = load_u32(address)
        address += _FOUR
        if block == np.uint64(0) or block > stop - address:
            return _FAILED
        expanded, _ = _block_size(address, address + block)
        if expanded > _SNAPPY_MAX_RATIO * block:
            return _FAILED
        total += expanded
        address += block
    return np.int64(total)


@inlined
def _is_stream(source: Address, size: Value) -> Value:
    return size >= np.uint64(8) and load_word(source) == _SNAPPY_MAGIC


@helper
def _block_size(address: Address, stop: Address) -> Value:
    """Reads the decompressed size of a block. Returns `(size, next address)`. If the size is
    malformed, returns 2^62, which exceeds the limit of every caller.
    """
    size = np.uint64(0)
    shift = np.uint64(0)
    while address < stop and shift < np.uint64(35):
        byte = load_u8(address)
        address += _ONE
        size |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return size, address
        shift += np.uint64(7)
    return np.uint64(1 << 62), stop


@helper
def decompress_snappy(source: Address, size: Value, target: Address) -> Value:
    """Decompresses a snappy stream or block. `snappy_bound` must have accepted it. Returns the
    decompressed size in bytes, or -1 on failure.

    The target must have room for 32 bytes more than `snappy_bound` returned.
    """
    stop = source + size
    if not _is_stream(source, size):
        expanded, elements = _block_size(source, stop)
        if _decompress_snappy_block(elements, stop, target, target + expanded):
            return np.int64(expanded)
        return _FAILED
    address = source + _SNAPPY_HEADER_SIZE
    to = target
    while stop - address >= _FOUR:
        block = load_u32(address)
        address += _FOUR
        expanded, elements = _block_size(address, address + block)
        if not _decompress_snappy_block(elements, address + block, to, to + expanded):
            return _FAILED
        to += expanded
        address += block
    return np.int64(to - target)


@helper
def _last_copy(tag: Value, address: Address, stop: Address) -> Value:
    """Reads a copy element near the end of a block. Returns `(length, distance, next address)`. The
    distance is 0 if the element is truncated.
    """
    kind = tag & np.uint64(3)
    if kind == _ONE and stop - address >= _ONE:
        length = ((tag >> _TWO) & np.uint64(7)) + _FOUR
        distance = (tag >> np.uint64(5)) << np.uint64(8) | load_u8(address)
        return length, distance, address + _ONE
    if kind == _TWO and stop - address >= _TWO:
        return (tag >> _TWO) + _ONE, load_u16_native(address), address + _TWO
    return _ONE, np.uint64(0), stop


@helper
def _decompress_snappy_block(
    address: Address, stop: Address, target: Address, target_stop: Address
) -> Value:
    """Decompresses a snappy block to `target`. Returns whether the block is valid and its result
    ends exactly at `target_stop`.
    """
    to = target
    while address < stop:
        tag = load_u8(address)
        address += _ONE
        kind = tag & np.uint64(3)
        if kind == np.uint64(0):
            length = (tag >> _TWO) + _ONE
            if length > np.uint64(60):
                extra = length - np.uint64(60)
                if stop - address < extra:
                    return False
                length = np.uint64(0)
                for index in range(np.int64(extra)):
                    length |= load_u8(address + np.uint64(index)) << np.uint64(8 * index)
                length += _ONE
                address += extra
            if length > stop - address or length > target_stop - to:
                return False
            copy_literals(to, address, length, stop)
            address += length
            to += length
        else:
            if stop - address < _FOUR:
                length, distance, address = _last_copy(tag, address, stop)
            else:
                # There is no branch on the kind of copy, because it would often be mispredicted.
                short = kind & _ONE & ~(kind >> _ONE)
                mask = np.uint64(0) - short
                wide = np.uint64(0) - (kind & (kind >> _ONE))
                word = load_u32_native(address)
                high = tag >> _TWO
                length = ((high & np.uint64(7)) + _FOUR) & mask | (high + _ONE) & ~mask
                near = (tag >> np.uint64(5)) << np.uint64(8) | word & np.uint64(0xFF)
                far = word & (np.uint64(0xFFFF) | wide)
                distance = near & mask | far & ~mask
                address += _TWO - short + (_TWO & wide)
            if distance == np.uint64(0) or distance > to - target or length > target_stop - to:
                return False
            copy_match(to, distance, length)
            to += length
    return to == target_stop


_ZSTD_MAGIC = np.uint64(0xFD2FB528)
_CHECKSUM_FLAG = np.uint64(4)
_SINGLE_SEGMENT_FLAG = np.uint64(0x20)
_UNSUPPORTED_FLAGS = np.uint64(0x1B)  # a dictionary id, and reserved bits
_CHECKSUM_SIZE = np.uint64(4)
_LEAST_SIZE = np.uint64(9)
_DESCRIPTORS = np.uint64(5)
_BLOCK_HEADER = np.uint64(3)
_MAX_BLOCK = np.uint64(128 << 10)
_MAX_WINDOW = np.uint64(1 << 27)
_LAST = np.uint64(1)
_RUN_LENGTH = np.uint64(1)
_COMPRESSED = np.uint64(2)
_RESERVED = np.uint64(3)
_THREE = np.uint64(3)


@inlined
def _window_size(descriptor: Value) -> Value:
    base = _ONE << (np.uint64(10) + (descriptor >> _THREE))
    return base + (base >> _THREE) * (descriptor & np.uint64(7))


@inlined
def _content_size(flags: Value, address: Address, stop: Address) -> Value:
    """Reads the content size in a frame header. Returns `(content size, size of the field)`. The
    size of the field is 0 if the header has no content size. The content size is above
    `_MAX_WINDOW` if the field is truncated.
    """
    code = flags >> np.uint64(6)
    width = _ONE << code
    if code == np.uint64(0):
        width = np.uint64(flags & _SINGLE_SEGMENT_FLAG != np.uint64(0))
    content_size = np.uint64(0)
    if stop - address < width:
        content_size = _MAX_WINDOW + _ONE
    elif width == _ONE:
        content_size = load_u8(address)
    elif width == _TWO:
        content_size = load_u16_native(address) + np.uint64(256)
    elif width == _FOUR:
        content_size = load_u32_native(address)
    elif width == np.uint64(8):
        content_size = load_word(address)
    return content_size, width


@helper
def zstd_bound(source: Address, size: Value) -> Value:
    """Returns an upper bound for the decompressed size of a zstd frame in bytes: its content size
    or, if it has none, the sum of the bounds of its blocks.

    Returns -1 if the frame has a dictionary, is malformed, or is not a zstd frame.
    """
    if size < _LEAST_SIZE or load_u32_native(source) != _ZSTD_MAGIC:
        return _FAILED
    stop = source + size
    flags = load_u8(source + _FOUR)
    if flags & _UNSUPPORTED_FLAGS:
        return _FAILED
    address = source + _DESCRIPTORS
    window = np.uint64(0)
    if flags & _SINGLE_SEGMENT_FLAG == np.uint64(0):
        window = _window_size(load_u8(address))
        address += _ONE
    content_size, width = _content_size(flags, address, stop)
    address += width
    if flags & _SINGLE_SEGMENT_FLAG:
        window = content_size
    if window > _MAX_WINDOW:
        return _FAILED
    block_limit = min(window, _MAX_BLOCK)
    bound = np.uint64(0)
    while address <= stop and stop - address >= _BLOCK_HEADER:
        header = load_u16_native(address) | load_u8(address + _TWO) << np.uint64(16)
        block = header >> _THREE
        kind = header >> _ONE & _THREE
        if kind == _RESERVED:
            return _FAILED
        bound += block_limit if kind == _COMPRESSED else block
        address += _BLOCK_HEADER + (_ONE if kind == _RUN_LENGTH else block)
        if header & _LAST:
            if flags & _CHECKSUM_FLAG:
                address += _CHECKSUM_SIZE
            if address != stop or content_size > bound:
                return _FAILED
            return np.int64(content_size if width else bound)
    return _FAILED
