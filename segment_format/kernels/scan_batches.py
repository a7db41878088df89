"""Contains the kernel that reads the batch headers of a log and compares checksums. It does not
decode records.

`segment_format.record.batch_header` documents the byte layout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels import contract as c
from segment_format.kernels.compiled import inlined, kernel
from segment_format.kernels.crc32c import crc32c
from segment_format.kernels.primitives import (
    frame_at,
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
    index = column * frame[c.SCAN_CAPACITY] + frame[c.SCAN_ROWS]
    store_i64(np.uint64(frame[c.SCAN_TABLE] + 8 * index), np.int64(value))


@inlined
def _append(address: Address, position: Value, size: Value, frame: Frame) -> None:
    base = load_i64(address)
    stored = np.int64(load_u32(address + np.uint64(17)))
    computed = np.int64(crc32c(address + np.uint64(_CRC_START), np.uint64(size - _CRC_START)))
    _put(frame, c.SCAN_LOG_POSITION, frame[c.SCAN_WINDOW_POSITION] + position)
    _put(frame, c.SCAN_BASE_OFFSET, base)
    _put(frame, c.SCAN_LAST_OFFSET, base + load_i32(address + np.uint64(23)))
    _put(frame, c.SCAN_LEADER_EPOCH, load_i32(address + np.uint64(12)))
    _put(frame, c.SCAN_CRC, stored)
    _put(frame, c.SCAN_IS_SOUND, stored == computed)
    _put(frame, c.SCAN_MAX_TIMESTAMP, load_i64(address + np.uint64(35)))
    _put(frame, c.SCAN_RECORDS, load_i32(address + np.uint64(57)))
    _put(frame, c.SCAN_PRODUCER_ID, load_i64(address + np.uint64(43)))
    _put(frame, c.SCAN_ATTRIBUTES, load_i16(address + np.uint64(21)))
    frame[c.SCAN_ROWS] += 1


@kernel
def scan_batches(state: Address) -> Value:
    """Appends a row to the table for each batch of the window. Returns one of the `SCAN_...`
    statuses of `segment_format.kernels.contract`.

    Args:
        state: Address of a frame with `SCAN_FRAME_SIZE` slots.
    """
    frame = frame_at(state, c.SCAN_FRAME_SIZE)
    while True:
        if frame[c.SCAN_ROWS] == frame[c.SCAN_CAPACITY]:
            return np.int64(c.SCAN_FULL)
        position = frame[c.SCAN_POSITION]
        left = frame[c.SCAN_WINDOW_SIZE] - position
        if left < _PREFIX_SIZE:
            frame[c.SCAN_NEEDED] = _PREFIX_SIZE
            return np.int64(c.SCAN_NEED_MORE)
        address = np.uint64(frame[c.SCAN_WINDOW]) + np.uint64(position)
        length = load_i32(address + np.uint64(8))
        size = length + _LENGTH_PREFIX
        log_left = frame[c.SCAN_LOG_SIZE] - frame[c.SCAN_WINDOW_POSITION] - position
        if length < _HEADER_SIZE - _LENGTH_PREFIX or load_u8(address + np.uint64(16)) != 2:
            return np.int64(c.SCAN_OTHER)
        if size > log_left or size > frame[c.SCAN_MAX_BATCH_BYTES]:
            return np.int64(c.SCAN_OTHER)
        if size > left:
            frame[c.SCAN_NEEDED] = size
            return np.int64(c.SCAN_NEED_MORE)
        base = load_i64(address)
        last_delta = load_i32(address + np.uint64(23))
        count = load_i32(address + np.uint64(57))
        if base < 0 or last_delta < 0 or count < 0 or base >= _MAX_I64 - last_delta:
            return np.int64(c.SCAN_OTHER)
        _append(address, position, size, frame)
        frame[c.SCAN_POSITION] = position + size
