"""The kernel that walks a log for what headers say, and compares checksums; no record is decoded.

`segment_format.record.batch_header` has the layout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba.core import types

from segment_format.kernels import scan_contract as c
from segment_format.kernels.compiled import inlined, kernel
from segment_format.kernels.crc32c import crc32c
from segment_format.kernels.primitives import (
    load_i16,
    load_i32,
    load_i64,
    load_u8,
    load_u32,
    store_i64,
)

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Frame, Value

_PREFIX_SIZE = 17
_LENGTH_PREFIX = 12
_HEADER_SIZE = 61
_CRC_START = 21
_MAX_I64 = 2**63 - 1


@inlined
def _put(frame: Frame, column: Value, value: Value) -> None:
    place = column * frame[c.ROOM] + frame[c.ROWS]
    store_i64(np.uint64(frame[c.TABLE] + 8 * place), np.int64(value))


@inlined
def _append(at: Address, position: Value, size: Value, frame: Frame) -> None:
    base = load_i64(at)
    stored = np.int64(load_u32(at + np.uint64(17)))
    computed = np.int64(crc32c(at + np.uint64(_CRC_START), np.uint64(size - _CRC_START)))
    _put(frame, c.LOG_POSITION, frame[c.WINDOW_POSITION] + position)
    _put(frame, c.BASE_OFFSET, base)
    _put(frame, c.LAST_OFFSET, base + load_i32(at + np.uint64(23)))
    _put(frame, c.LEADER_EPOCH, load_i32(at + np.uint64(12)))
    _put(frame, c.CRC, stored)
    _put(frame, c.IS_SOUND, stored == computed)
    _put(frame, c.MAX_TIMESTAMP, load_i64(at + np.uint64(35)))
    _put(frame, c.RECORDS, load_i32(at + np.uint64(57)))
    _put(frame, c.PRODUCER_ID, load_i64(at + np.uint64(43)))
    _put(frame, c.ATTRIBUTES, load_i16(at + np.uint64(21)))
    frame[c.ROWS] += 1


@kernel(types.int64(types.Array(types.int64, 1, "C")))
def scan_batches(frame: Frame) -> Value:
    """Appends the window's batches to the table: a status of `scan_contract`."""
    while True:
        if frame[c.ROWS] == frame[c.ROOM]:
            return np.int64(c.FULL)
        position = frame[c.POSITION]
        left = frame[c.WINDOW_SIZE] - position
        if left < _PREFIX_SIZE:
            frame[c.NEEDED] = _PREFIX_SIZE
            return np.int64(c.NEED_MORE)
        at = np.uint64(frame[c.WINDOW]) + np.uint64(position)
        length = load_i32(at + np.uint64(8))
        size = length + _LENGTH_PREFIX
        log_left = frame[c.LOG_SIZE] - frame[c.WINDOW_POSITION] - position
        if length < _HEADER_SIZE - _LENGTH_PREFIX or load_u8(at + np.uint64(16)) != 2:
            return np.int64(c.OTHER)
        if size > log_left or size > frame[c.MAX_BATCH_BYTES]:
            return np.int64(c.OTHER)
        if size > left:
            frame[c.NEEDED] = size
            return np.int64(c.NEED_MORE)
        base = load_i64(at)
        last_delta = load_i32(at + np.uint64(23))
        count = load_i32(at + np.uint64(57))
        if base < 0 or last_delta < 0 or count < 0 or base >= _MAX_I64 - last_delta:
            return np.int64(c.OTHER)
        _append(at, position, size, frame)
        frame[c.POSITION] = position + size
