"""Decodes the records of a batch into columns. Each record is parsed, checked and copied in one
pass.

`segment_format.record.records` documents the byte layout. If only timestamps or offsets are wanted,
`segment_format.kernels.skip_records` is used instead. Record headers are first checked and
measured, and then copied into a list<struct<string, binary>> column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels import contract as c
from segment_format.kernels.compiled import helper, inlined
from segment_format.kernels.primitives import (
    copy_32,
    copy_long,
    copy_utf8,
    fill_bytes,
    load_u8,
    load_word,
    prefetch,
    read_varint,
    read_varlong,
    store_i32,
    store_i64,
    store_u8,
    utf8_size,
)

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Frame, Value


_ONE = np.uint64(1)
_TWO = np.uint64(2)
_THREE = np.uint64(3)
_EIGHT = np.uint64(8)
_SIXTEEN = np.uint64(16)
_TWENTY_FOUR = np.uint64(24)
_LOW = np.uint64(0x7F)
_NEXT_LOW = np.uint64(0x7F00)
_CONTINUED = np.uint64(0x80)
_TWICE_CONTINUED = np.uint64(0x8000)
_NOWHERE = np.uint64(0)
WORD_SIZE = 8
MIN_BODY = 6


@inlined
def read_start(address: Address) -> Value:
    """Parses the first fields of a record of the usual kind at `address` with one load of 8 bytes
    (`WORD_SIZE`), which must be readable.

    In such a record, the length, the timestamp delta and the offset delta take one or two bytes
    each. Together with the attributes, these fields have at most seven bytes. Every record with all
    mandatory fields has at least that many bytes. Other records must be parsed with `read_head`.

    Words are little-endian, as on every machine that numba supports. Returns four values:

    * `size`: number of bytes from `body` to the end of the record. It is not negative. The caller
      must check that the record ends inside the batch.
    * `body`: address of the attributes; 0 if the record is not of the usual kind.
    * `next address`: address after the offset delta.
    * `offset delta`.
    """
    word = load_word(address)
    if word & _ONE:  # a negative size
        return np.int64(0), _NOWHERE, _NOWHERE, np.int64(0)
    if not word & _CONTINUED:
        size = np.int64((word & _LOW) >> _ONE)
        body = address + _ONE
        word >>= _SIXTEEN
    elif not word & _TWICE_CONTINUED:
        size = np.int64((word & _LOW) >> _ONE | (word & _NEXT_LOW) >> _TWO)
        body = address + _TWO
        word >>= _TWENTY_FOUR
    else:
        return np.int64(0), _NOWHERE, _NOWHERE, np.int64(0)
    after_deltas = body + _THREE  # attributes, timestamp delta, offset delta
    if not word & _CONTINUED:  # the timestamp delta
        word >>= _EIGHT
    elif not word & _TWICE_CONTINUED:
        word >>= _SIXTEEN
        after_deltas += _ONE
    else:
        return size, _NOWHERE, _NOWHERE, np.int64(0)
    if not word & _CONTINUED:
        raw = word & _LOW
    elif not word & _TWICE_CONTINUED:
        raw = (word & _LOW) | (word & _NEXT_LOW) >> _ONE
        after_deltas += _ONE
    else:
        return size, _NOWHERE, _NOWHERE, np.int64(0)
    return size, body, after_deltas, np.int64(raw >> _ONE) ^ -np.int64(raw & _ONE)


@inlined
def read_head(address: Address, records_stop: Address) -> Value:
    """Parses the first fields of a record of any kind.

    Returns `(status, stop, next address, timestamp delta, offset delta)`. The status is CONTINUE or
    an error. `stop` is the address after the record, and `next address` the address after the
    offset delta.
    """
    size, position = read_varint(address, records_stop)
    if position == _NOWHERE or size < MIN_BODY or size > np.int64(records_stop - position):
        return np.int64(c.ERROR_RECORD_LENGTH), address, address, np.int64(0), np.int64(0)
    stop = position + np.uint64(size)
    timestamp_delta, position = read_varlong(position + _ONE, stop)  # the first byte: attributes
    if position == _NOWHERE:
        return np.int64(c.ERROR_RECORD), address, address, np.int64(0), np.int64(0)
    offset_delta, position = read_varint(position, stop)
    if position == _NOWHERE:
        return np.int64(c.ERROR_RECORD), address, address, np.int64(0), np.int64(0)
    return np.int64(c.CONTINUE), stop, position, timestamp_delta, offset_delta


@inlined
def wrong_offset(offset: Value, least_offset: Value, frame: Frame) -> Value:
    """Stores an invalid record offset in the error slots of the frame. Returns the status of the
    error.
    """
    frame[c.ERROR_FOUND] = offset
    frame[c.ERROR_EXPECTED] = least_offset
    return np.int64(c.ERROR_RECORD_OFFSET)


@inlined
def leave_batch(
    status: Value,
    source: Address,
    address: Address,
    records_stop: Address,
    left: Value,
    least_offset: Value,
    frame: Frame,
) -> Value:
    """Stores the position in the batch in the frame. Returns `status`, or an error status if
    `status` is CONTINUE but bytes follow the last record.
    """
    frame[c.RECORDS_LEFT] = left
    frame[c.RECORD_POSITION] = np.int64(address - source)
    frame[c.LEAST_OFFSET] = least_offset
    if status == c.CONTINUE and address != records_stop:
        frame[c.ERROR_FOUND] = np.int64(records_stop - address)
        status = np.int64(c.ERROR_BATCH_REST)
    if status < 0:
        frame[c.ERROR_POSITION] = frame[c.BATCH_POSITION]
        frame[c.ERROR_OFFSET] = frame[c.BASE_OFFSET]
    return status


@helper
def measure_headers(address: Address, stop: Address, count: Value) -> Value:
    """Checks `count` record headers. Returns three values: the address after them (0 if they are
    invalid), the total bytes of their keys as UTF-8, and the total bytes of their values.
    """
    cursor = address
    key_bytes = np.int64(0)
    value_bytes = np.int64(0)
    for _ in range(count):
        size, cursor = read_varint(cursor, stop)
        if cursor == _NOWHERE or size < 0 or size > np.int64(stop - cursor):
            return _NOWHERE, key_bytes, value_bytes
        key_size, _ = utf8_size(cursor, np.uint64(size))
        key_bytes += key_size
        cursor += np.uint64(size)
        size, cursor = read_varint(cursor, stop)
        if cursor == _NOWHERE or size > np.int64(stop - cursor):
            return _NOWHERE, key_bytes, value_bytes
        if size > 0:
            value_bytes += size
            cursor += np.uint64(size)
    return cursor, key_bytes, value_bytes


@helper
def gather_headers(address: Address, stop: Address, count: Value, frame: Frame) -> None:
    """Appends `count` record headers to the columns. `measure_headers` must have accepted them, and
    the buffers must be large enough.
    """
    cursor = address
    header = frame[c.HEADERS]
    key_size = frame[c.HEADER_KEY_SIZE]
    value_size = frame[c.HEADER_VALUE_SIZE]
    for _ in range(count):
        size, cursor = read_varint(cursor, stop)
        target = np.uint64(frame[c.HEADER_KEY_BYTES] + key_size)
        after, malformed = utf8_size(cursor, np.uint64(size))
        if malformed == 0:
            copy_long(target, cursor, np.uint64(size))
        else:
            copy_utf8(target, cursor, np.uint64(size))
        key_size += after
        cursor += np.uint64(size)
        size, cursor = read_varint(cursor, stop)
        if size >= 0:
            copy_long(np.uint64(frame[c.HEADER_VALUE_BYTES] + value_size), cursor, np.uint64(size))
            value_size += size
            cursor += np.uint64(size)
        else:
            if frame[c.HEADER_VALUE_NULLS] == 0:
                capacity = np.uint64((frame[c.HEADER_CAPACITY] + 7) >> 3)
                fill_bytes(np.uint64(frame[c.HEADER_VALUE_VALID]), np.int64(0xFF), capacity)
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
    """Clears bit `index` of a validity bitmap, which makes the entry null."""
    byte_address = np.uint64(bitmap + (index >> 3))
    store_u8(byte_address, np.int64(load_u8(byte_address)) & ~(1 << (index & 7)))


_STEP = np.uint64(c.COPY_SLACK)
_SHORT = np.int64(512)
MAX_MILLIS = (2**63 - 1) // 1000
MIN_MILLIS = -(2**63 // 1000)
_MAX_I32 = 2**31 - 1
_HEADER_COST = 9  # two ends and a bit
PREFETCH_DISTANCE = 64 << 10


@inlined
def _copy(target: Address, source: Address, size: Value, readable_stop: Address) -> None:
    """Copies `size` bytes. Short copies use steps of 32 bytes, so up to 31 bytes more are read and
    written.
    """
    if size <= _SHORT and np.int64(readable_stop - source) >= size + np.int64(c.COPY_SLACK):
        to = target
        cursor = source
        stop = source + np.uint64(size)
        while cursor < stop:
            copy_32(to, cursor)
            to += _STEP
            cursor += _STEP
    else:
        copy_long(target, source, np.uint64(size))


@inlined
def _open_word(bitmap: Address, row: Value) -> Value:
    """Returns the 64-bit word of the bitmap that contains the bit of `row`. Bits of this row and
    later rows are 0.
    """
    bits = np.uint64(row & 63)
    if bits == np.uint64(0):
        return np.uint64(0)
    return load_word(bitmap + _word_at(row)) & ((_ONE << bits) - _ONE)


@inlined
def _word_at(row: Value) -> Value:
    return np.uint64((row >> 6) << 3)


@inlined
def fill_per_batch(frame: Frame, first: Value, stop: Address) -> None:
    """Fills the rows from `first` to `stop` (exclusive) of the columns that have one value per
    batch.
    """
    wanted = frame[c.WANTED]
    if wanted & c.WANT_TIMESTAMP_TYPE:
        _fill_i32(frame[c.TIMESTAMP_TYPES], frame[c.TIMESTAMP_TYPE], first, stop)
    if wanted & c.WANT_OF_BATCH:
        _fill_others(frame, first, stop)


@helper
def _fill_others(frame: Frame, first: Value, stop: Address) -> None:
    wanted = frame[c.WANTED]
    if wanted & c.WANT_LEADER_EPOCH:
        _fill_i32(frame[c.LEADER_EPOCHS], frame[c.LEADER_EPOCH], first, stop)
    if wanted & c.WANT_PRODUCER_EPOCH:
        _fill_i32(frame[c.PRODUCER_EPOCHS], frame[c.PRODUCER_EPOCH], first, stop)
    if wanted & c.WANT_CODEC:
        _fill_i32(frame[c.CODECS], frame[c.CODEC], first, stop)
    if wanted & c.WANT_PRODUCER_ID:
        _fill_i64(frame[c.PRODUCER_IDS], frame[c.PRODUCER_ID], first, stop)
    if wanted & c.WANT_BASE_OFFSET:
        _fill_i64(frame[c.BASE_OFFSETS], frame[c.BATCH_BASE_OFFSET], first, stop)
    if wanted & c.WANT_TRANSACTIONAL:
        for row in range(first, stop):
            store_u8(np.uint64(frame[c.TRANSACTIONALS] + row), frame[c.TRANSACTIONAL])


@inlined
def _fill_i32(column: Value, value: Value, first: Value, stop: Address) -> None:
    for row in range(first, stop):
        store_i32(np.uint64(column + 4 * row), value)


@inlined
def _fill_i64(column: Value, value: Value, first: Value, stop: Address) -> None:
    for row in range(first, stop):
        store_i64(np.uint64(column + 8 * row), value)


@helper
def decode_records(source: Address, readable_stop: Address, frame: Frame) -> Value:
    """Decodes the remaining records of the current batch. Returns a status.

    The status is one of these:

    * CONTINUE: all records were decoded, and no bytes follow the last one.
    * FULL or GROW: the next record does not fit into the buffers. Its position is in the frame.
    * A negative number: an error.

    Args:
        source: Address of the array that contains the records.
        readable_stop: End of that array. Bytes after it are not read.
        frame: Frame that `segment_format.kernels.contract` describes.
    """
    wanted = frame[c.WANTED]
    want_key = wanted & c.WANT_KEY != 0
    want_value = wanted & c.WANT_VALUE != 0
    want_headers = wanted & c.WANT_HEADERS != 0
    want_offset = wanted & c.WANT_OFFSET != 0
    want_timestamp = wanted & c.WANT_TIMESTAMP != 0
    want_sequence = wanted & c.WANT_SEQUENCE != 0
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
    key_ends = np.uint64(frame[c.KEY_ENDS])
    value_ends = np.uint64(frame[c.VALUE_ENDS])
    key_bytes = np.uint64(frame[c.KEY_BYTES])
    value_bytes = np.uint64(frame[c.VALUE_BYTES])
    key_capacity = frame[c.KEY_CAPACITY]
    value_capacity = frame[c.VALUE_CAPACITY]
    max_bytes = frame[c.MAX_BYTES]
    header_ends = np.uint64(frame[c.HEADER_ENDS])
    headers = frame[c.HEADERS]
    key_size = frame[c.KEY_SIZE]
    value_size = frame[c.VALUE_SIZE]
    header_size = (
        frame[c.HEADER_KEY_SIZE] + frame[c.HEADER_VALUE_SIZE] + _HEADER_COST * frame[c.HEADERS]
    )
    first_row = frame[c.ROWS]
    row = first_row
    key_valid = np.uint64(frame[c.KEY_VALID])
    value_valid = np.uint64(frame[c.VALUE_VALID])
    key_word = np.uint64(0)
    value_word = np.uint64(0)
    if want_key:
        key_word = _open_word(key_valid, row)
    if want_value:
        value_word = _open_word(value_valid, row)
    key_nulls = np.int64(0)
    value_nulls = np.int64(0)
    left = frame[c.RECORDS_LEFT]
    skipped = np.int64(0)
    cursor = source + np.uint64(frame[c.RECORD_POSITION])
    records_stop = source + np.uint64(frame[c.RECORDS_STOP])
    status = np.int64(c.CONTINUE)
    ahead = np.uint64(min(frame[c.BATCH_SIZE], PREFETCH_DISTANCE))

    while left > 0:
        # Prefetch the next batch, because computing its CRC would otherwise wait for memory.
        prefetch(cursor + ahead)
        prefetch(cursor + ahead + np.uint64(64))
        if row == max_rows:
            status = np.int64(c.FULL)
            break
        status, stop, position, timestamp, offset_delta = read_head(cursor, records_stop)
        if status != c.CONTINUE:
            break
        offset = base_offset + offset_delta

        header_key_size = np.int64(0)
        header_value_size = np.int64(0)
        key_length, key_at = read_varint(position, stop)
        if key_at == _NOWHERE or key_length > np.int64(stop - key_at):
            status = np.int64(c.ERROR_KEY)
            break
        position = key_at
        if key_length > 0:
            position += np.uint64(key_length)
        value_length, value_at = read_varint(position, stop)
        if value_at == _NOWHERE or value_length > np.int64(stop - value_at):
            status = np.int64(c.ERROR_VALUE)
            break
        position = value_at
        if value_length > 0:
            position += np.uint64(value_length)
        header_count, headers_at = read_varint(position, stop)
        if headers_at == _NOWHERE or header_count < 0 or header_count > np.int64(stop - headers_at):
            status = np.int64(c.ERROR_HEADER_COUNT)
            break
        position = headers_at
        if header_count > 0:
            position, header_key_size, header_value_size = measure_headers(
                headers_at, stop, header_count
            )
            if position == _NOWHERE:
                status = np.int64(c.ERROR_RECORD_HEADERS)
                break
        if position != stop:
            status = np.int64(c.ERROR_RECORD_REST)
            break

        if offset < start_offset or offset >= stop_offset:
            if offset < least_offset or offset > last_offset:
                status = wrong_offset(offset, least_offset, frame)
                break
            least_offset = offset + 1
            start_offset = max(start_offset, least_offset)
            skipped += 1
            left -= 1
            cursor = stop
            continue

        add_key = key_length if want_key and key_length > 0 else np.int64(0)
        add_value = value_length if want_value and value_length > 0 else np.int64(0)
        add_headers = np.int64(0)
        if want_headers:
            add_headers = header_key_size + header_value_size + _HEADER_COST * header_count
        total = key_size + value_size + header_size + add_key + add_value + add_headers
        if total > max_bytes and row > 0:
            status = np.int64(c.FULL)
            break
        if key_size + add_key > key_capacity or value_size + add_value > value_capacity:
            status = np.int64(c.GROW)
        if want_headers and header_count > 0:
            if header_key_size > _MAX_I32:
                status = np.int64(c.ERROR_RECORD_SIZE)
                break
            if (
                frame[c.HEADERS] + header_count > frame[c.HEADER_CAPACITY]
                or frame[c.HEADER_KEY_SIZE] + header_key_size > frame[c.HEADER_KEY_CAPACITY]
                or frame[c.HEADER_VALUE_SIZE] + header_value_size > frame[c.HEADER_VALUE_CAPACITY]
            ):
                status = np.int64(c.GROW)
        if status == c.GROW:
            frame[c.NEW_KEY_SIZE] = key_size + add_key
            frame[c.NEW_VALUE_SIZE] = value_size + add_value
            frame[c.NEW_HEADERS] = frame[c.HEADERS] + header_count
            frame[c.NEW_HEADER_KEY_SIZE] = frame[c.HEADER_KEY_SIZE] + header_key_size
            frame[c.NEW_HEADER_VALUE_SIZE] = frame[c.HEADER_VALUE_SIZE] + header_value_size
            break

        if want_timestamp:
            timestamp = max_timestamp if append_time else base_timestamp + timestamp
            if timestamp > MAX_MILLIS or timestamp < MIN_MILLIS:
                status = np.int64(c.ERROR_TIMESTAMP)
                break
            store_i64(timestamps + np.uint64(8 * row), timestamp * 1000)
        if want_offset:
            store_i64(offsets + np.uint64(8 * row), offset)
        if want_sequence:
            sequence = np.int64(-1)
            if frame[c.BASE_SEQUENCE] >= 0:
                sequence = (frame[c.BASE_SEQUENCE] + offset_delta) & _MAX_I32
            store_i32(np.uint64(frame[c.SEQUENCES] + 4 * row), sequence)
        if want_key:
            if key_length >= 0:
                _copy(key_bytes + np.uint64(key_size), key_at, key_length, readable_stop)
                key_size += key_length
                key_word |= _ONE << np.uint64(row & 63)
            else:
                key_nulls += 1
            store_i32(key_ends + np.uint64(4 * row + 4), key_size)
        if want_value:
            if value_length >= 0:
                _copy(value_bytes + np.uint64(value_size), value_at, value_length, readable_stop)
                value_size += value_length
                value_word |= _ONE << np.uint64(row & 63)
            else:
                value_nulls += 1
            store_i32(value_ends + np.uint64(4 * row + 4), value_size)
        if want_headers:
            if header_count > 0:
                gather_headers(headers_at, stop, header_count, frame)
                header_size += header_key_size + header_value_size + _HEADER_COST * header_count
                headers += header_count
            store_i32(header_ends + np.uint64(4 * row + 4), headers)
        if row & 63 == 63:
            if want_key:
                store_i64(key_valid + _word_at(row), np.int64(key_word))
                key_word = np.uint64(0)
            if want_value:
                store_i64(value_valid + _word_at(row), np.int64(value_word))
                value_word = np.uint64(0)
        row += 1
        left -= 1
        cursor = stop
        least_offset = offset + 1
        start_offset = least_offset

    if want_key and row & 63 != 0:
        store_i64(key_valid + _word_at(row), np.int64(key_word))
    if want_value and row & 63 != 0:
        store_i64(value_valid + _word_at(row), np.int64(value_word))
    frame[c.ROWS] = row
    frame[c.KEY_SIZE] = key_size
    frame[c.VALUE_SIZE] = value_size
    frame[c.KEY_NULLS] += key_nulls
    frame[c.VALUE_NULLS] += value_nulls
    frame[c.RECORDS] += row - first_row
    frame[c.RECORDS_SKIPPED_OFFSET] += skipped
    if row > first_row:
        fill_per_batch(frame, first_row, row)
    return leave_batch(status, source, cursor, records_stop, left, least_offset, frame)
