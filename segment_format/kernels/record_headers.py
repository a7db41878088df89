"""Record headers inside the kernels: measured and checked first, then gathered into
list<struct<string, binary>>.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels import contract as c
from segment_format.kernels.compiled import helper
from segment_format.kernels.memory import copy_long, fill_bytes, load_u8, store_i32, store_u8
from segment_format.kernels.utf8 import copy_utf8, utf8_size
from segment_format.kernels.varint import read_varint

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Frame, Value

_NOWHERE = np.uint64(0)


@helper
def measure_headers(address: Address, stop: Address, count: Value) -> Value:
    """Check `count` headers; returns (next address or 0, key bytes as UTF-8, value bytes)."""
    at = address
    key_bytes = np.int64(0)
    value_bytes = np.int64(0)
    for _ in range(count):
        size, at = read_varint(at, stop)
        if at == _NOWHERE or size < 0 or size > np.int64(stop - at):
            return _NOWHERE, key_bytes, value_bytes
        key_size, _ = utf8_size(at, np.uint64(size))
        key_bytes += key_size
        at += np.uint64(size)
        size, at = read_varint(at, stop)
        if at == _NOWHERE or size > np.int64(stop - at):
            return _NOWHERE, key_bytes, value_bytes
        if size > 0:
            value_bytes += size
            at += np.uint64(size)
    return at, key_bytes, value_bytes


@helper
def gather_headers(address: Address, stop: Address, count: Value, frame: Frame) -> None:
    """Append `count` headers that `measure_headers` has accepted; there is room for them."""
    at = address
    header = frame[c.HEADERS]
    key_size = frame[c.HEADER_KEY_SIZE]
    value_size = frame[c.HEADER_VALUE_SIZE]
    for _ in range(count):
        size, at = read_varint(at, stop)
        target = np.uint64(frame[c.HEADER_KEY_BYTES] + key_size)
        after, malformed = utf8_size(at, np.uint64(size))
        if malformed == 0:
            copy_long(target, at, np.uint64(size))
        else:
            copy_utf8(target, at, np.uint64(size))
        key_size += after
        at += np.uint64(size)
        size, at = read_varint(at, stop)
        if size >= 0:
            copy_long(np.uint64(frame[c.HEADER_VALUE_BYTES] + value_size), at, np.uint64(size))
            value_size += size
            at += np.uint64(size)
        else:
            if frame[c.HEADER_VALUE_NULLS] == 0:
                room = np.uint64((frame[c.HEADER_ROOM] + 7) >> 3)
                fill_bytes(np.uint64(frame[c.HEADER_VALUE_VALID]), np.int64(0xFF), room)
            frame[c.HEADER_VALUE_NULLS] += 1
            clear_bit(frame[c.HEADER_VALUE_VALID], header)
        header += 1
        store_i32(np.uint64(frame[c.HEADER_KEY_ENDS] + 4 * header), key_size)
        store_i32(np.uint64(frame[c.HEADER_VALUE_ENDS] + 4 * header), value_size)
    frame[c.HEADERS] = header
    frame[c.HEADER_KEY_SIZE] = key_size
    frame[c.HEADER_VALUE_SIZE] = value_size


@helper
def clear_bit(bitmap: Value, index: Value) -> None:
    """Mark entry `index` of a validity bitmap as null."""
    at = np.uint64(bitmap + (index >> 3))
    store_u8(at, np.int64(load_u8(at)) & ~(1 << (index & 7)))
