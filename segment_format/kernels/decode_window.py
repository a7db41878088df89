"""Decodes the records of all entries in a window, which is a part of a log. The frame (an array of
parameters and state that the caller owns) keeps the state between two calls.

`segment_format.record.framing` documents the layout of entries, and
`segment_format.record.batch_header` that of batch headers. Each entry is checked in this order:

1. Length and magic.
2. Offset. If it is at or above the stop offset, the decoding ends here.
3. Completeness: the window contains the whole entry.
4. Header.
5. CRC.

Three kinds of batches are skipped after these checks: control batches, batches of aborted
transactions, and batches without wanted timestamps. The CRC is checked first, because otherwise a
flipped bit could cause a batch to be skipped.

A transaction index has no checksum, but a control batch has one. So the intervals of aborted
transactions, which come from the index, are compared with the control batches of the log. The
kernel tracks the transactions of each producer and checks these rules:

* All data of a producer up to its next marker is decoded, or all of it is skipped as aborted.
* An ABORT marker ends an interval or a transaction without data. If data of its producer was read
  since the previous marker, any other ABORT marker is an error. Otherwise it is accepted, because
  the data may precede the batches that were read.
* A COMMIT marker is not in an interval, and no other ABORT marker is before the end of an interval.

A `segment_format.transaction_check.TransactionCheck` stores the state of the producers.

A batch outside the offset range is skipped without a CRC check only if the next batch proves that
it contains no wanted offset. If offsets are missing at the start or the end of the range, the CRC
of the batch before or after the gap is compared, too. This costs one CRC per end of the range.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels import contract as c
from segment_format.kernels.compiled import helper, inlined, kernel
from segment_format.kernels.crc32c import crc32c
from segment_format.kernels.decode_records import decode_records
from segment_format.kernels.decompress import (
    decompress_lz4,
    decompress_snappy,
    lz4_bound,
    snappy_bound,
    zstd_bound,
)
from segment_format.kernels.primitives import (
    call_zstd,
    frame_at,
    load_i16,
    load_i32,
    load_i64,
    load_i64_native,
    load_u8,
    load_u32,
    read_varint,
    read_varlong,
    store_i64,
)
from segment_format.kernels.skip_records import seek_key, step_records
from segment_format.record.compression import ZSTD_ONE_SHOT_RATIO, ZSTD_ONE_SHOT_SLACK

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Frame, Value

_PREFIX_SIZE = 17
_LENGTH_PREFIX = 12
_HEADER_SIZE = 61
_CRC_START = 21
_MAX_I64 = 2**63 - 1
_SNAPPY = 2
_LZ4 = 3
_ZSTD = 4


_NOWHERE = np.uint64(0)
_EIGHT = np.uint64(8)
_SIXTEEN = np.uint64(16)
_MULTIPLIER = np.uint64(c.TXN_MULTIPLIER)
_UNKNOWN_MARKER = -1
_ABORT = 0
_COMMIT = 1


@helper
def interval_at(producer_id: Value, base_offset: Value, frame: Frame) -> Value:
    """Returns the index of the last aborted interval of a producer that begins at or before
    `base_offset`; -1 if there is none.

    The intervals in the frame are sorted by producer id and first offset.
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
def aborted_stop_of(address: Address, frame: Frame) -> Value:
    """For the batch at `address`, returns the offset of the ABORT marker that ends the interval of
    `interval_at`; -1 if there is no interval. A transactional batch is aborted if its base offset
    is below the returned offset.
    """
    if frame[c.ABORTED_COUNT] == 0:
        return np.int64(-1)
    number = interval_at(load_i64(address + np.uint64(43)), load_i64(address), frame)
    if number < 0:
        return np.int64(-1)
    return load_i64_native(np.uint64(frame[c.ABORTED_LAST_OFFSETS] + 8 * number))


@inlined
def _marker_type(address: Address, size: Value) -> Value:
    """Returns the type of a control batch: ABORT or COMMIT. The type is read from the key of the
    batch's first record. Returns −1 if the key has another type or is malformed.
    """
    if load_i16(address + np.uint64(21)) & 7 != 0 or load_i32(address + np.uint64(57)) == 0:
        return np.int64(_UNKNOWN_MARKER)
    stop = address + np.uint64(size)
    _, position = read_varint(address + np.uint64(_HEADER_SIZE), stop)
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
    """Returns the address of a producer's entry in the table of producers. Adds a missing entry."""
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
def needs_producer_capacity(frame: Frame) -> Value:
    """Returns whether the table of producers must grow before the next batch is read."""
    if frame[c.TRANSACTIONS] == 0:
        return False
    return load_i64_native(np.uint64(frame[c.TRANSACTIONS] + 8 * c.TXN_FREE)) <= 0


@inlined
def track_transaction(address: Address, size: Value, aborted_stop: Value, frame: Frame) -> Value:
    """Updates the state of a producer after a transactional batch or a control batch of `size`
    bytes at `address`. The caller must have checked the checksum of the batch. `aborted_stop` is
    the result of `aborted_stop_of`.

    Returns CONTINUE, or ERROR_TRANSACTION if the batch contradicts the intervals of aborted
    transactions.
    """
    if load_i16(address + np.uint64(21)) & 0x20 != 0:
        return _track_marker(address, size, frame)
    if load_i32(address + np.uint64(57)) == 0:
        return np.int64(c.CONTINUE)
    producer_id = load_i64(address + np.uint64(43))
    base_offset = load_i64(address)
    entry = _producer_entry(producer_id, np.uint64(frame[c.TRANSACTIONS]))
    before = load_i64_native(entry + _EIGHT)
    now = np.int64(c.TXN_LEFT_OUT if aborted_stop > base_offset else c.TXN_KEPT)
    if before != now:
        if before == c.TXN_KEPT or before == c.TXN_LEFT_OUT:
            return _contradiction(base_offset, producer_id, np.int64(_UNKNOWN_MARKER), frame)
        store_i64(entry + _EIGHT, now)
    return np.int64(c.CONTINUE)


@helper
def _track_marker(address: Address, size: Value, frame: Frame) -> Value:
    marker = _marker_type(address, size)
    if marker == _UNKNOWN_MARKER:
        return np.int64(c.CONTINUE)
    producer_id = load_i64(address + np.uint64(43))
    base_offset = load_i64(address)
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


@helper
def _wrong_epoch(epoch: Value, base_offset: Value, last_offset: Value, frame: Frame) -> Value:
    """Returns whether `epoch`, the leader epoch of a batch, contradicts the lineage.

    The first entry of the lineage may start inside a batch, because deleting records moves the log
    start. Such a batch must have the epoch of the first entry. Batches that end before the first
    entry are not checked.
    """
    low = np.int64(0)
    high = frame[c.LINEAGE_COUNT]
    while low < high:
        middle = (low + high) >> 1
        if load_i64_native(np.uint64(frame[c.LINEAGE_START_OFFSETS] + 8 * middle)) <= base_offset:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        if last_offset < load_i64_native(np.uint64(frame[c.LINEAGE_START_OFFSETS])):
            return False
        low = np.int64(1)
    expected = load_i64_native(np.uint64(frame[c.LINEAGE_EPOCHS] + 8 * (low - 1)))
    frame[c.ERROR_FOUND] = epoch
    frame[c.ERROR_EXPECTED] = expected
    return epoch != expected


@inlined
def _dated_outside(
    base_timestamp: Value, max_timestamp: Value, attributes: Value, frame: Frame
) -> Value:
    """Returns whether the header of a batch proves that no record has a wanted timestamp.

    The header contains the largest timestamp. With LogAppendTime, all records have this timestamp.
    The base timestamp is the timestamp of the first record, which is not always the smallest. Some
    clients write -1, 0 or an old value as the largest timestamp, so a largest timestamp below the
    base timestamp is ignored.

    If bit 6 of the attributes is set, the log cleaner wrote the batch: the base timestamp is a
    delete horizon, but the largest timestamp is correct, because the cleaner computed it.
    """
    if max_timestamp == -1:
        return False
    if attributes & 0x08:
        return max_timestamp < frame[c.FIRST_TIMESTAMP] or max_timestamp > frame[c.LAST_TIMESTAMP]
    if attributes & 0x40 == 0 and max_timestamp < base_timestamp:
        return False
    return max_timestamp < frame[c.FIRST_TIMESTAMP]


@inlined
def _fail(
    frame: Frame, code: Value, position: Value, offset: Value, actual: Value, expected: Value
) -> Value:
    frame[c.ERROR_POSITION] = position
    frame[c.ERROR_OFFSET] = offset
    frame[c.ERROR_FOUND] = actual
    frame[c.ERROR_EXPECTED] = expected
    return np.int64(code)


@inlined
def _wrong_crc(address: Address, size: Value, frame: Frame) -> Value:
    """Returns whether the checksum of a batch is wrong. Writes the stored and the computed checksum
    to the error slots.
    """
    stored = np.int64(load_u32(address + np.uint64(17)))
    computed = np.int64(crc32c(address + np.uint64(_CRC_START), np.uint64(size - _CRC_START)))
    frame[c.ERROR_FOUND] = stored
    frame[c.ERROR_EXPECTED] = computed
    return stored != computed


@helper
def _check_skipped(source: Address, frame: Frame) -> Value:
    """Returns whether the last batch that was skipped because of its offsets has a wrong checksum.
    Computes the checksum only once.
    """
    size = frame[c.SKIPPED_SIZE]
    if size != 0:
        frame[c.SKIPPED_SIZE] = 0
        if _wrong_crc(source + np.uint64(frame[c.SKIPPED_POSITION]), size, frame):
            frame[c.SKIPPED_IS_BROKEN] = 1
            frame[c.SKIPPED_STORED_CRC] = frame[c.ERROR_FOUND]
            frame[c.SKIPPED_COMPUTED_CRC] = frame[c.ERROR_EXPECTED]
    return frame[c.SKIPPED_IS_BROKEN] != 0


@helper
def _follows_skipped(source: Address, base_offset: Value, frame: Frame) -> Value:
    """Returns ERROR_SKIPPED if the last skipped batch has a wrong checksum and may contain wanted
    offsets; otherwise CONTINUE.

    Offsets ascend. So if the current batch begins at or below the first wanted offset, no earlier
    batch contains a wanted offset.
    """
    if base_offset > frame[c.START_OFFSET] and _check_skipped(source, frame):
        frame[c.ERROR_POSITION] = frame[c.SKIPPED_POSITION]
        frame[c.ERROR_OFFSET] = frame[c.SKIPPED_OFFSET]
        frame[c.ERROR_FOUND] = frame[c.SKIPPED_STORED_CRC]
        frame[c.ERROR_EXPECTED] = frame[c.SKIPPED_COMPUTED_CRC]
        return np.int64(c.ERROR_SKIPPED)
    frame[c.SKIPPED_SIZE] = 0
    frame[c.SKIPPED_IS_BROKEN] = 0
    return np.int64(c.CONTINUE)


@helper
def _stops_here(address: Address, position: Value, size: Value, left: Value, frame: Frame) -> Value:
    """Checks a batch of magic 2 at or after the stop offset. Returns FINISHED if the decoding ends
    here, NEED_MORE if the window has too few bytes for the checks, and an error status otherwise.

    The base offset is always compared with the offsets that the batch may have, because no checksum
    covers it. If offsets are missing before the stop offset, the base offset may be wrong. Then the
    checksum and the last offset of the batch are checked, too, and the next entry must begin after
    the last offset.
    """
    base_offset = load_i64(address)
    if base_offset < frame[c.NEXT_OFFSET] or base_offset >= frame[c.OFFSETS_STOP]:
        return _fail(frame, c.ERROR_ORDER, position, base_offset, base_offset, base_offset)
    if frame[c.NEXT_OFFSET] >= frame[c.STOP_OFFSET]:
        return np.int64(c.FINISHED)
    if size > frame[c.MAX_BATCH_BYTES]:
        return _fail(
            frame, c.ERROR_TOO_LARGE, position, base_offset, size, frame[c.MAX_BATCH_BYTES]
        )
    if left < size:
        frame[c.NEEDED] = size
        return np.int64(c.NEED_MORE)
    if frame[c.CHECK_CRCS] and _wrong_crc(address, size, frame):
        frame[c.ERROR_POSITION] = position
        frame[c.ERROR_OFFSET] = base_offset
        return np.int64(c.ERROR_CRC)
    last_offset = base_offset + load_i32(address + np.uint64(23))
    if last_offset < base_offset or last_offset >= frame[c.OFFSETS_STOP]:
        return _fail(frame, c.ERROR_ORDER, position, base_offset, base_offset, last_offset)
    if left < size + _PREFIX_SIZE:
        frame[c.NEEDED] = size + _PREFIX_SIZE
        frame[c.STOPPING] = 1
        frame[c.STOPPING_NEXT] = last_offset + 1
        return np.int64(c.NEED_MORE)
    if load_i64(address + np.uint64(size)) <= last_offset:
        return _fail(frame, c.ERROR_ORDER, position, base_offset, base_offset, last_offset)
    return np.int64(c.FINISHED)


@inlined
def _next_batch(source: Address, window_size: Value, frame: Frame) -> Value:
    """Reads the next entry. Skips it, or makes it the current batch. Returns a status.

    If the status is CONTINUE and IN_BATCH is set, the current batch has records to decode. If
    IN_BATCH is not set, the entry was skipped.
    """
    if needs_producer_capacity(frame):
        return np.int64(c.GROW_PRODUCERS)
    position = frame[c.POSITION]
    left = window_size - position
    if left < _PREFIX_SIZE:
        frame[c.NEEDED] = _PREFIX_SIZE if left > 0 else 0
        _check_skipped(source, frame)  # the next window does not contain it
        return np.int64(c.NEED_MORE)
    address = source + np.uint64(position)
    status = _frame_entry(source, position, left, frame)
    if status != c.CONTINUE:
        if status == c.NEED_MORE or status == c.LEGACY:
            _check_skipped(source, frame)
        return status
    status = _check_batch(source, position, frame)
    if status == c.CHECKED:
        aborted_stop = np.int64(-1)
        if load_i16(address + np.uint64(21)) & 0x30 != 0:
            aborted_stop = aborted_stop_of(address, frame)
            if frame[c.TRANSACTIONS] != 0:
                status = track_transaction(address, frame[c.BATCH_SIZE], aborted_stop, frame)
                if status != c.CONTINUE:
                    frame[c.ERROR_POSITION] = position
                    return status
        if _is_selected(address, aborted_stop, frame):
            _open_batch(address, position, frame)
        return np.int64(c.CONTINUE)
    return status


@inlined
def _frame_entry(source: Address, position: Value, left: Value, frame: Frame) -> Value:
    """Checks the length, the magic and the offset at the start of an entry. Returns CONTINUE if the
    entry is a complete batch of magic 2, and another status otherwise.
    """
    address = source + np.uint64(position)
    base_offset = load_i64(address)
    length = load_i32(address + np.uint64(8))
    magic = np.int64(load_u8(address + np.uint64(16)))
    if length < 14:
        return _fail(frame, c.ERROR_LENGTH, position, base_offset, length, 14)
    if magic > 2:
        return _fail(frame, c.ERROR_MAGIC, position, base_offset, magic, 2)
    least = 14
    if magic == 1:
        least = 22
    if magic == 2:
        least = _HEADER_SIZE - _LENGTH_PREFIX
    if length < least:
        return _fail(frame, c.ERROR_LENGTH, position, base_offset, length, least)
    size = length + _LENGTH_PREFIX
    if magic == 2 and base_offset >= frame[c.STOP_OFFSET]:
        status = np.int64(c.FINISHED)
        if frame[c.ORDERED]:
            status = _stops_here(address, position, size, left, frame)
        if status == c.FINISHED:
            status = _follows_skipped(source, base_offset, frame)
            if status == c.CONTINUE:
                frame[c.DONE] = 1
                return np.int64(c.FINISHED)
        return status
    if size > frame[c.MAX_BATCH_BYTES]:
        return _fail(
            frame, c.ERROR_TOO_LARGE, position, base_offset, size, frame[c.MAX_BATCH_BYTES]
        )
    if size > left:
        frame[c.NEEDED] = size
        return np.int64(c.NEED_MORE)
    frame[c.BATCH_POSITION] = position
    frame[c.BATCH_SIZE] = size
    return np.int64(c.LEGACY if magic < 2 else c.CONTINUE)


@inlined
def _check_batch(source: Address, position: Value, frame: Frame) -> Value:
    """Checks a batch. Returns CHECKED if it is valid, CONTINUE if it must be skipped because it
    ends before the start offset, and an error status if it is invalid.
    """
    address = source + np.uint64(position)
    base_offset = load_i64(address)
    size = frame[c.BATCH_SIZE]
    last_delta = load_i32(address + np.uint64(23))
    count = load_i32(address + np.uint64(57))
    if base_offset < 0 or last_delta < 0 or count < 0 or base_offset >= _MAX_I64 - last_delta:
        return _fail(frame, c.ERROR_HEADER, position, base_offset, last_delta, count)
    last_offset = base_offset + last_delta
    if frame[c.ORDERED]:
        if base_offset < frame[c.NEXT_OFFSET] or last_offset >= frame[c.OFFSETS_STOP]:
            return _fail(frame, c.ERROR_ORDER, position, base_offset, base_offset, last_offset)
        frame[c.NEXT_OFFSET] = last_offset + 1
    frame[c.POSITION] = position + size
    frame[c.BATCHES] += 1
    frame[c.BYTES] += size
    if last_offset < frame[c.START_OFFSET]:
        frame[c.BATCHES_SKIPPED_OFFSET] += 1
        # If the batch has too many records, some may have offsets above its last offset. Such
        # records may be wanted.
        if count > last_delta + 1 and base_offset + count > frame[c.START_OFFSET]:
            return _fail(frame, c.ERROR_RECORD_COUNT, position, base_offset, last_offset, count)
        frame[c.SKIPPED_IS_BROKEN] = 0
        if frame[c.CHECK_CRCS]:
            frame[c.SKIPPED_SIZE] = size
            frame[c.SKIPPED_POSITION] = position
            frame[c.SKIPPED_OFFSET] = base_offset
        return np.int64(c.CONTINUE)
    if frame[c.SKIPPED_SIZE] | frame[c.SKIPPED_IS_BROKEN]:
        status = _follows_skipped(source, base_offset, frame)
        if status != c.CONTINUE:
            return status
    if frame[c.CHECK_CRCS]:
        stored = np.int64(load_u32(address + np.uint64(17)))
        computed = np.int64(crc32c(address + np.uint64(_CRC_START), np.uint64(size - _CRC_START)))
        if stored != computed:
            return _fail(frame, c.ERROR_CRC, position, base_offset, stored, computed)
    epoch = load_i32(address + np.uint64(12))
    if frame[c.LINEAGE_COUNT] > 0 and _wrong_epoch(epoch, base_offset, last_offset, frame):
        frame[c.ERROR_POSITION] = position
        frame[c.ERROR_OFFSET] = base_offset
        return np.int64(c.ERROR_EPOCH)
    codec = load_i16(address + np.uint64(21)) & 7
    if codec > 4:
        return _fail(frame, c.ERROR_CODEC, position, base_offset, codec, 4)
    if count > last_delta + 1:
        return _fail(frame, c.ERROR_RECORD_COUNT, position, base_offset, last_offset, count)
    return np.int64(c.CHECKED)


@inlined
def _is_selected(address: Address, aborted_stop: Value, frame: Frame) -> Value:
    """Returns whether a valid batch may contain records to return. Otherwise counts the batch as
    skipped, unless it has no records.
    """
    attributes = load_i16(address + np.uint64(21))
    if attributes & 0x20:
        frame[c.BATCHES_SKIPPED_CONTROL] += 1
        return False
    if attributes & 0x10 and aborted_stop > load_i64(address):
        frame[c.BATCHES_SKIPPED_ABORTED] += 1
        return False
    if load_i32(address + np.uint64(57)) == 0:
        return False
    base_timestamp = load_i64(address + np.uint64(27))
    if _dated_outside(base_timestamp, load_i64(address + np.uint64(35)), attributes, frame):
        frame[c.BATCHES_SKIPPED_TIMESTAMP] += 1
        return False
    return True


@inlined
def _open_batch(address: Address, position: Value, frame: Frame) -> None:
    """Makes the batch at `address` the current batch: copies the fields of its header to the
    frame.
    """
    attributes = load_i16(address + np.uint64(21))
    frame[c.RECORDS_LEFT] = load_i32(address + np.uint64(57))
    frame[c.BASE_OFFSET] = load_i64(address)
    frame[c.LAST_OFFSET] = frame[c.BASE_OFFSET] + load_i32(address + np.uint64(23))
    frame[c.LEAST_OFFSET] = frame[c.BASE_OFFSET]
    frame[c.BASE_TIMESTAMP] = load_i64(address + np.uint64(27))
    frame[c.MAX_TIMESTAMP] = load_i64(address + np.uint64(35))
    frame[c.TIMESTAMP_TYPE] = (attributes >> 3) & 1
    if frame[c.WANTED] & c.WANT_ORIGIN:
        frame[c.BATCH_BASE_OFFSET] = frame[c.BASE_OFFSET]
        frame[c.LEADER_EPOCH] = load_i32(address + np.uint64(12))
        frame[c.PRODUCER_ID] = load_i64(address + np.uint64(43))
        frame[c.PRODUCER_EPOCH] = load_i16(address + np.uint64(51))
        frame[c.BASE_SEQUENCE] = load_i32(address + np.uint64(53))
        frame[c.TRANSACTIONAL] = (attributes >> 4) & 1
    frame[c.CODEC] = attributes & 7
    frame[c.IN_BATCH] = 1
    frame[c.RECORD_POSITION] = 0
    frame[c.LOCATION] = c.LOCATION_COMPRESSED
    if attributes & 7 == 0:
        frame[c.LOCATION] = c.LOCATION_WINDOW
        frame[c.RECORD_POSITION] = position + _HEADER_SIZE
        frame[c.RECORDS_STOP] = position + frame[c.BATCH_SIZE]


@inlined
def _ask_for_payload(bound: Value, frame: Frame) -> Value:
    frame[c.LOCATION] = c.LOCATION_PAYLOAD
    frame[c.PAYLOAD_BOUND] = bound
    return np.int64(c.COMPRESSED)


@inlined
def _decompress_zstd(
    source: Address, size: Value, target: Address, bound: Value, frame: Frame
) -> Value:
    """Decompresses a zstd frame to `target`. Returns the number of bytes; -1 if libzstd refuses the
    frame.
    """
    function, context = np.uint64(frame[c.ZSTD_FUNCTION]), np.uint64(frame[c.ZSTD_CONTEXT])
    filled = call_zstd(function, context, target, np.uint64(bound), source, size)
    return np.int64(filled) if filled <= np.uint64(bound) else np.int64(-1)


@helper
def _decompress(window_at: Address, frame: Frame) -> Value:
    """Decompresses the current batch into the scratch buffer. If the kernel cannot do this, returns
    a status that asks the caller to decompress the batch or to grow the buffer.

    lz4 and snappy are decompressed here, because calling a library for each batch takes more time.
    With records of 1 KB, the library needs 25 % (lz4) or 15 % (snappy) more time for batches of 16
    KB, and 6 % or 2 % more for batches of 100 KB. libzstd is called from here, because a call from
    Python takes as long as decompressing 2 KB.
    """
    source = window_at + np.uint64(frame[c.BATCH_POSITION] + _HEADER_SIZE)
    size = np.uint64(frame[c.BATCH_SIZE] - _HEADER_SIZE)
    codec = frame[c.CODEC]
    bound = np.int64(-1)
    if codec == _LZ4:
        bound = lz4_bound(source, size)
    if codec == _SNAPPY:
        bound = snappy_bound(source, size)
    if codec == _ZSTD:
        bound = zstd_bound(source, size)
        one_shot = ZSTD_ONE_SHOT_SLACK + ZSTD_ONE_SHOT_RATIO * np.int64(size)
        if frame[c.ZSTD_FUNCTION] == 0 or bound <= 0 or bound > one_shot:
            return _ask_for_payload(bound, frame)
    if bound < 0 or bound > frame[c.MAX_BATCH_BYTES]:
        return _ask_for_payload(np.int64(-1), frame)
    if bound > frame[c.SCRATCH_CAPACITY]:
        frame[c.SCRATCH_NEEDED] = bound
        return np.int64(c.GROW_SCRATCH)
    target = np.uint64(frame[c.SCRATCH])
    if codec == _LZ4:
        filled = decompress_lz4(source, target)
    elif codec == _SNAPPY:
        filled = decompress_snappy(source, size, target)
    else:
        filled = _decompress_zstd(source, size, target, bound, frame)
    if filled < 0:
        return _ask_for_payload(np.int64(-1), frame)
    frame[c.LOCATION] = c.LOCATION_SCRATCH
    frame[c.RECORDS_STOP] = filled
    return np.int64(c.CONTINUE)


@kernel
def decode_window(
    window: Address, window_size: Value, payload: Address, payload_size: Value, state: Address
) -> Value:
    """Decodes entries until the caller must act. Returns a status, see
    `segment_format.kernels.contract`.

    Args:
        window: Address of the bytes of a log. They begin with an entry.
        window_size: Number of these bytes.
        payload: Address of the decompressed records of the current batch. Only used if slot
            `LOCATION` is `LOCATION_PAYLOAD`.
        payload_size: Number of bytes of these records.
        state: Address of a frame with `FRAME_SIZE` slots.
    """
    frame = frame_at(state, c.FRAME_SIZE)
    window_stop = window + np.uint64(window_size)
    payload_stop = payload + np.uint64(payload_size)
    sought = frame[c.SOUGHT] != 0
    needs_body = frame[c.WANTED] & c.NEEDS_BODY != 0
    while True:
        if frame[c.IN_BATCH] == 0:
            status = _next_batch(window, window_size, frame)
            if status != c.CONTINUE:
                return status
            continue
        if frame[c.LOCATION] == c.LOCATION_COMPRESSED:
            status = _decompress(window, frame)
            if status != c.CONTINUE:
                return status
        source = window
        readable_stop = window_stop
        if frame[c.LOCATION] == c.LOCATION_PAYLOAD:
            source = payload
            readable_stop = payload_stop
            frame[c.RECORDS_STOP] = payload_size
        if frame[c.LOCATION] == c.LOCATION_SCRATCH:
            source = np.uint64(frame[c.SCRATCH])
            readable_stop = source + np.uint64(frame[c.SCRATCH_CAPACITY] + c.COPY_SLACK)
        left = np.int64(0)
        records_stop = frame[c.RECORDS_STOP]
        if sought:
            status = seek_key(source, frame)
            if status == c.CONTINUE:
                frame[c.IN_BATCH] = 0
                continue
            if status != c.FOUND:
                return status
            # Decode the record as if it were a batch with one record.
            left = frame[c.RECORDS_LEFT] - 1
            frame[c.RECORDS_LEFT] = 1
            frame[c.RECORDS_STOP] = frame[c.SOUGHT_STOP]
        if needs_body:
            status = decode_records(source, readable_stop, frame)
        else:
            status = step_records(source, frame)
        if sought:
            frame[c.RECORDS_LEFT] += left
            frame[c.RECORDS_STOP] = records_stop
        if status != c.CONTINUE:
            return status
        if not sought:
            frame[c.IN_BATCH] = 0
