"""Compares the aborted intervals with the control batches of the log.

A transaction index has no checksum, a control batch has one. So the kernel follows the transactions
of each producer: all data up to a marker has the same outcome, an ABORT marker ends an interval or
a transaction without data, and a COMMIT marker is in no interval. An ABORT marker in no interval
that comes before any data of its producer is stray: the data may precede the batches walked. The
memory for it is a `segment_format.transaction_check.TransactionCheck`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels import contract as c
from segment_format.kernels.compiled import helper, inlined
from segment_format.kernels.primitives import (
    load_i16,
    load_i32,
    load_i64,
    load_i64_native,
    read_varint,
    read_varlong,
    store_i64,
)

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Frame, Value

_NOWHERE = np.uint64(0)
_EIGHT = np.uint64(8)
_SIXTEEN = np.uint64(16)
_HEADER_SIZE = np.uint64(61)
_MULTIPLIER = np.uint64(c.TXN_MULTIPLIER)
_UNKNOWN_MARKER = -1
_ABORT = 0
_COMMIT = 1


@helper
def interval_at(producer_id: Value, base_offset: Value, frame: Frame) -> Value:
    """Number of the producer's last interval that begins at or before the offset; −1 without
    one. Intervals are sorted by producer and first offset.
    """
    low = np.int64(0)
    high = frame[c.ABORTED_COUNT]
    while low < high:
        middle = (low + high) >> 1
        producer = load_i64_native(np.uint64(frame[c.ABORTED_PRODUCER_IDS] + 8 * middle))
        first = load_i64_native(np.uint64(frame[c.ABORTED_FIRST_OFFSETS] + 8 * middle))
        if producer < producer_id or (producer == producer_id and first <= base_offset):
            low = middle + 1
        else:
            high = middle
    number = low - 1
    if (
        number >= 0
        and load_i64_native(np.uint64(frame[c.ABORTED_PRODUCER_IDS] + 8 * number)) != producer_id
    ):
        number = np.int64(-1)
    return number


@inlined
def aborted_stop_of(at: Address, frame: Frame) -> Value:
    """Last offset of the interval that `interval_at` finds for a batch; −1 without one.

    A transactional batch is aborted if it begins before that offset.
    """
    if frame[c.ABORTED_COUNT] == 0:
        return np.int64(-1)
    number = interval_at(load_i64(at + np.uint64(43)), load_i64(at), frame)
    if number < 0:
        return np.int64(-1)
    return load_i64_native(np.uint64(frame[c.ABORTED_LAST_OFFSETS] + 8 * number))


@inlined
def _marker_type(at: Address, size: Value) -> Value:
    """ABORT or COMMIT from the key of a control batch's first record, else −1."""
    if load_i16(at + np.uint64(21)) & 7 != 0 or load_i32(at + np.uint64(57)) == 0:
        return np.int64(_UNKNOWN_MARKER)
    stop = at + np.uint64(size)
    _, position = read_varint(at + _HEADER_SIZE, stop)
    if position == _NOWHERE or position >= stop:
        return np.int64(_UNKNOWN_MARKER)
    _, position = read_varlong(position + np.uint64(1), stop)
    if position == _NOWHERE:
        return np.int64(_UNKNOWN_MARKER)
    _, position = read_varint(position, stop)
    if position == _NOWHERE:
        return np.int64(_UNKNOWN_MARKER)
    key_size, position = read_varint(position, stop)
    if position == _NOWHERE or key_size < 4 or position + np.uint64(4) > stop:
        return np.int64(_UNKNOWN_MARKER)
    kind = np.int64(load_i16(position + np.uint64(2)))
    if load_i16(position) < 0 or (kind != _ABORT and kind != _COMMIT):
        return np.int64(_UNKNOWN_MARKER)
    return kind


@inlined
def _producer_entry(producer_id: Value, state: Address) -> Address:
    """Address of the producer's entry in the table, a new one if it has none."""
    table = np.uint64(load_i64_native(state + np.uint64(8 * c.TXN_TABLE)))
    mask = np.uint64(load_i64_native(state + np.uint64(8 * c.TXN_MASK)))
    number = (np.uint64(producer_id) * _MULTIPLIER >> np.uint64(32)) & mask
    while True:
        entry = table + number * np.uint64(8 * c.TXN_ENTRY_SIZE)
        if load_i64_native(entry + _EIGHT) == c.TXN_NO_ENTRY:
            store_i64(entry, np.int64(producer_id))
            store_i64(entry + _EIGHT, np.int64(c.TXN_UNSEEN))
            store_i64(entry + _SIXTEEN, np.int64(-1))
            free = state + np.uint64(8 * c.TXN_FREE)
            store_i64(free, np.int64(load_i64_native(free) - 1))
            return entry
        if load_i64_native(entry) == producer_id:
            return entry
        number = (number + np.uint64(1)) & mask


@inlined
def needs_producer_room(frame: Frame) -> Value:
    """Whether the table must grow before the next batch."""
    if frame[c.TRANSACTIONS] == 0:
        return False
    return load_i64_native(np.uint64(frame[c.TRANSACTIONS] + 8 * c.TXN_FREE)) <= 0


@inlined
def track_transaction(at: Address, size: Value, aborted_stop: Value, frame: Frame) -> Value:
    """Follow a transactional or control batch whose checksum is right; CONTINUE, or
    ERROR_TRANSACTION if it contradicts the intervals.

    Args:
        at: Address of the batch.
        size: Bytes of the batch.
        aborted_stop: `aborted_stop_of` the batch.
        frame: See `segment_format.kernels.contract`.
    """
    if load_i16(at + np.uint64(21)) & 0x20 != 0:
        return _track_marker(at, size, frame)
    if load_i32(at + np.uint64(57)) == 0:
        return np.int64(c.CONTINUE)
    producer_id = load_i64(at + np.uint64(43))
    base_offset = load_i64(at)
    entry = _producer_entry(producer_id, np.uint64(frame[c.TRANSACTIONS]))
    before = load_i64_native(entry + _EIGHT)
    now = np.int64(c.TXN_LEFT_OUT if aborted_stop > base_offset else c.TXN_KEPT)
    if before != now:
        if before == c.TXN_KEPT or before == c.TXN_LEFT_OUT:
            return _contradiction(base_offset, producer_id, np.int64(_UNKNOWN_MARKER), frame)
        store_i64(entry + _EIGHT, now)
    return np.int64(c.CONTINUE)


@helper
def _track_marker(at: Address, size: Value, frame: Frame) -> Value:
    marker = _marker_type(at, size)
    if marker == _UNKNOWN_MARKER:
        return np.int64(c.CONTINUE)
    producer_id = load_i64(at + np.uint64(43))
    base_offset = load_i64(at)
    number = interval_at(producer_id, base_offset, frame)
    last_offset = np.int64(-1)
    if number >= 0:
        last_offset = load_i64_native(np.uint64(frame[c.ABORTED_LAST_OFFSETS] + 8 * number))
    state = np.uint64(frame[c.TRANSACTIONS])
    entry = _producer_entry(producer_id, state)
    before = load_i64_native(entry + _EIGHT)
    has_data = before == c.TXN_KEPT or before == c.TXN_LEFT_OUT
    if marker == _ABORT and last_offset == base_offset:
        is_wrong = before == c.TXN_KEPT
        met = np.uint64(load_i64_native(state + np.uint64(8 * c.TXN_MET)) + 8 * number)
        store_i64(met, np.int64(1))
    elif marker == _ABORT:
        is_wrong = has_data or last_offset > base_offset
        if before == c.TXN_UNSEEN:
            store_i64(entry + _SIXTEEN, base_offset)
    else:
        is_wrong = before == c.TXN_LEFT_OUT or last_offset >= base_offset
    store_i64(entry + _EIGHT, np.int64(c.TXN_ENDED))
    if is_wrong:
        return _contradiction(base_offset, producer_id, marker, frame)
    return np.int64(c.CONTINUE)


@inlined
def _contradiction(base_offset: Value, producer_id: Value, marker: Value, frame: Frame) -> Value:
    frame[c.ERROR_OFFSET] = base_offset
    frame[c.ERROR_FOUND] = producer_id
    frame[c.ERROR_EXPECTED] = marker
    return np.int64(c.ERROR_TRANSACTION)
