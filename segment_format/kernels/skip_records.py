"""Reads the first fields of each record, and skips the other fields with the record's length.

`step_records` returns offsets and timestamps. It checks the fields up to the offset delta, like
`decode_records`, but does not read the fields after it.

`seek_key` finds the next record with a wanted key. It compares keys without copying them, and does
not check the fields after the key. `segment_format.key_set` documents the hash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels import contract as c
from segment_format.kernels.compiled import helper, inlined
from segment_format.kernels.decode_records import (
    MAX_MILLIS,
    MIN_BODY,
    MIN_MILLIS,
    PREFETCH_DISTANCE,
    WORD_SIZE,
    fill_per_batch,
    leave_batch,
    read_head,
    read_start,
    wrong_offset,
)
from segment_format.kernels.primitives import (
    load_i64_native,
    load_u8,
    load_u32_native,
    load_word,
    prefetch,
    read_varint,
    store_i64,
)
from segment_format.key_set import LONG, MULTIPLIER

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Frame, Value


_NOWHERE = np.uint64(0)
_ONE = np.uint64(1)
_WORD = np.uint64(WORD_SIZE)


@inlined
def _step_offsets(
    address: Address,
    records_stop: Address,
    row: Value,
    left: Value,
    max_rows: Value,
    offsets: Address,
    base_offset: Value,
    start_offset: Value,
    stop_offset: Value,
    ahead: Value,
) -> Value:
    """Reads the offsets of consecutive records. Stops at the first record that has no wanted offset
    or that `read_start` does not support.

    Returns `(address, row, left, least)`: the address of the first record that was not read, the
    next row, the number of records left, and one past the last offset that was read.
    """
    least = start_offset
    if records_stop - address < _WORD:  # perhaps at address 0, from which 8 cannot be subtracted
        return address, row, left, least
    last_word = records_stop - _WORD
    last_left = left - min(left, max_rows - row)
    while left > last_left and address <= last_word:
        prefetch(address + ahead)
        prefetch(address + ahead + np.uint64(64))
        size, body, _, offset_delta = read_start(address)
        if body == _NOWHERE or size < MIN_BODY or size > np.int64(records_stop - body):
            break
        offset = base_offset + offset_delta
        if offset < least or offset >= stop_offset:
            break
        store_i64(offsets + np.uint64(8 * row), offset)
        least = offset + 1
        row += 1
        left -= 1
        address = body + np.uint64(size)
    return address, row, left, least


@helper
def step_records(source: Address, frame: Frame) -> Value:
    """Decodes the remaining records of the current batch like `decode_records`, but reads and
    checks no field after the offset delta, which is faster.

    All wanted columns must be offsets, timestamps, or columns with one value per batch: no bit of
    `NEEDS_BODY` may be set.
    """
    wanted = frame[c.WANTED]
    want_offset = wanted & c.WANT_OFFSET != 0
    want_timestamp = wanted & c.WANT_TIMESTAMP != 0
    base_offset = frame[c.BASE_OFFSET]
    last_offset = frame[c.LAST_OFFSET]
    least_offset = frame[c.LEAST_OFFSET]
    start_offset = max(frame[c.START_OFFSET], least_offset)
    stop_offset = min(frame[c.STOP_OFFSET], last_offset + 1)
    base_timestamp = frame[c.BASE_TIMESTAMP]
    max_timestamp = frame[c.MAX_TIMESTAMP]
    append_time = frame[c.TIMESTAMP_TYPE] == 1
    max_rows = frame[c.MAX_ROWS]
    offsets = np.uint64(frame[c.OFFSETS])
    timestamps = np.uint64(frame[c.TIMESTAMPS])
    first_row = frame[c.ROWS]
    row = first_row
    left = frame[c.RECORDS_LEFT]
    skipped = np.int64(0)
    address = source + np.uint64(frame[c.RECORD_POSITION])
    records_stop = source + np.uint64(frame[c.RECORDS_STOP])
    status = np.int64(c.CONTINUE)
    ahead = np.uint64(min(frame[c.BATCH_SIZE], PREFETCH_DISTANCE))

    while left > 0:
        if want_offset and not want_timestamp:
            before = left
            address, row, left, start_offset = _step_offsets(
                address, records_stop, row, left, max_rows, offsets, base_offset, start_offset,
                stop_offset, ahead,
            )  # fmt: skip
            if left < before:
                least_offset = start_offset
            if left == 0:
                break
        # Prefetch the next batch, because computing its CRC would otherwise wait for memory.
        prefetch(address + ahead)
        prefetch(address + ahead + np.uint64(64))
        if row == max_rows:
            status = np.int64(c.FULL)
            break
        status, stop, _, timestamp, offset_delta = read_head(address, records_stop)
        if status != c.CONTINUE:
            break
        offset = base_offset + offset_delta
        if offset < least_offset or offset > last_offset:
            status = wrong_offset(offset, least_offset, frame)
            break
        if offset < start_offset or offset >= stop_offset:
            skipped += 1
        else:
            if want_timestamp:
                timestamp = max_timestamp if append_time else base_timestamp + timestamp
                if timestamp > MAX_MILLIS or timestamp < MIN_MILLIS:
                    status = np.int64(c.ERROR_TIMESTAMP)
                    break
                store_i64(timestamps + np.uint64(8 * row), timestamp * 1000)
            if want_offset:
                store_i64(offsets + np.uint64(8 * row), offset)
            row += 1
        least_offset = offset + 1
        start_offset = max(start_offset, least_offset)
        left -= 1
        address = stop

    frame[c.ROWS] = row
    frame[c.RECORDS] += row - first_row
    frame[c.RECORDS_SKIPPED_OFFSET] += skipped
    if row > first_row:
        fill_per_batch(frame, first_row, row)
    return leave_batch(status, source, address, records_stop, left, least_offset, frame)


_THREE = np.uint64(3)
_SEVEN = np.uint64(7)
_EIGHT = np.uint64(8)
_M = np.uint64(MULTIPLIER)
_LOW_32 = np.uint64(0xFFFFFFFF)
_LONG = LONG


@inlined
def _same_bytes(left: Address, right: Address, size: Value) -> Value:
    """Returns whether two byte ranges are equal. Compares the last bytes first, because many keys
    have a common beginning.
    """
    if size >= 8:
        behind = np.uint64(size) - _EIGHT
        if load_word(left + behind) != load_word(right + behind):
            return False
        position = np.uint64(0)
        while position < behind:
            if load_word(left + position) != load_word(right + position):
                return False
            position += _EIGHT
        return True
    position = np.uint64(0)
    while position < np.uint64(size):
        if load_u8(left + position) != load_u8(right + position):
            return False
        position += _ONE
    return True


@inlined
def _mixed(hashed: Value, word: Value) -> Value:
    product = (hashed ^ word) * _M
    return product ^ (product >> np.uint64(32))


@inlined
def _hash(address: Address, size: Value, seed: Value) -> Value:
    """Returns the hash of a key. `segment_format.key_set` documents the hash function."""
    length = np.uint64(size)
    hashed = np.uint64(seed) ^ (length * _M)
    if size >= 8:
        last = address + length - _EIGHT
        while address < last:
            hashed = _mixed(hashed, load_word(address))
            address += _EIGHT
        hashed = _mixed(hashed, load_word(last))
    elif size >= 4:
        low = load_u32_native(address)
        high = load_u32_native(address + length - np.uint64(4))
        hashed = _mixed(hashed, low | (high << np.uint64(32)))
    elif size > 0:
        middle = load_u8(address + (length >> _ONE))
        last_byte = load_u8(address + length - _ONE)
        word = load_u8(address) | (middle << _EIGHT) | (last_byte << np.uint64(16))
        hashed = _mixed(hashed, word)
    return (hashed ^ (hashed >> np.uint64(29))) * _M


@helper
def _in_set(address: Address, size: Value, frame: Frame) -> Value:
    """Returns whether the set of wanted keys contains the key of `size` bytes at `address`."""
    hashed = _hash(address, size, frame[c.SOUGHT_SEED])
    shift = np.uint64(frame[c.SOUGHT_SHIFT])
    bit = hashed >> (shift - _THREE)
    byte = load_u8(np.uint64(frame[c.SOUGHT_BITS]) + (bit >> _THREE))
    if not (byte >> (bit & _SEVEN)) & _ONE:
        return False
    bucket = hashed >> shift
    borders = np.uint64(frame[c.SOUGHT_BORDERS]) + bucket * np.uint64(4)
    number = load_u32_native(borders)
    behind = load_u32_native(borders + np.uint64(4))
    while number < behind:
        tag = load_u32_native(np.uint64(frame[c.SOUGHT_TAGS]) + number * np.uint64(4))
        if tag == hashed & _LOW_32:
            starts = np.uint64(frame[c.SOUGHT_STARTS]) + number * _EIGHT
            start = load_i64_native(starts)
            key_size = load_i64_native(starts + _EIGHT) - start
            if key_size == size and _same_bytes(
                address, np.uint64(frame[c.SOUGHT_DATA] + start), size
            ):
                return True
        number += _ONE
    return False


@helper
def seek_key(source: Address, frame: Frame) -> Value:
    """Moves to the next record of the current batch that has a wanted key. Returns a status.

    * FOUND: the record begins at RECORD_POSITION. SOUGHT_STOP is the position after its last byte.
    * CONTINUE: the batch has no further record with a wanted key, and no bytes follow its last
      record.
    * A negative status: the batch is malformed.
    """
    start_offset = frame[c.START_OFFSET]
    stop_offset = frame[c.STOP_OFFSET]
    base_offset = frame[c.BASE_OFFSET]
    last_offset = frame[c.LAST_OFFSET]
    least_offset = frame[c.LEAST_OFFSET]
    has_null = frame[c.SOUGHT_NULL] != 0
    lengths = np.uint64(frame[c.SOUGHT_LENGTHS])
    only_one = frame[c.SOUGHT_COUNT] == 1
    only_at = np.uint64(frame[c.SOUGHT_DATA])
    only_size = frame[c.SOUGHT_FIRST_SIZE]
    left = frame[c.RECORDS_LEFT]
    outside = np.int64(0)
    others = np.int64(0)
    address = source + np.uint64(frame[c.RECORD_POSITION])
    records_stop = source + np.uint64(frame[c.RECORDS_STOP])
    status = np.int64(c.CONTINUE)
    ahead = np.uint64(min(frame[c.BATCH_SIZE], PREFETCH_DISTANCE))

    while left > 0:
        # Prefetch the next batch, because computing its CRC would otherwise wait for memory.
        prefetch(address + ahead)
        prefetch(address + ahead + np.uint64(64))
        body = _NOWHERE
        stop = _NOWHERE
        position = _NOWHERE
        offset_delta = np.int64(0)
        if records_stop - address >= _WORD:
            size, body, position, offset_delta = read_start(address)
            if body != _NOWHERE and (size < MIN_BODY or size > np.int64(records_stop - body)):
                status = np.int64(c.ERROR_RECORD_LENGTH)
                break
            stop = body + np.uint64(size)
        if body == _NOWHERE:
            status, stop, position, _, offset_delta = read_head(address, records_stop)
            if status != c.CONTINUE:
                break
        key_size, key_at = read_varint(position, stop)
        if key_at == _NOWHERE or key_size > np.int64(stop - key_at):
            status = np.int64(c.ERROR_KEY)
            break
        offset = base_offset + offset_delta
        if offset < least_offset or offset > last_offset:
            status = wrong_offset(offset, least_offset, frame)
            break
        if offset < start_offset or offset >= stop_offset:
            outside += 1
        elif key_size < 0:
            if has_null:
                status = np.int64(c.FOUND)
        elif (lengths >> np.uint64(min(key_size, _LONG))) & _ONE:
            if only_one:
                if key_size == only_size and _same_bytes(key_at, only_at, key_size):
                    status = np.int64(c.FOUND)
            elif _in_set(key_at, key_size, frame):
                status = np.int64(c.FOUND)
        if status == c.FOUND:
            frame[c.SOUGHT_STOP] = np.int64(stop - source)
            break
        least_offset = offset + 1
        others += 1
        left -= 1
        address = stop

    frame[c.RECORDS_SKIPPED_OFFSET] += outside
    frame[c.RECORDS_SKIPPED_KEY] += others - outside
    return leave_batch(status, source, address, records_stop, left, least_offset, frame)
