"""One call over a whole window: entries walked, skipped or checked, records decoded, state left in
the frame.

Entries and batch headers: `segment_format.record.framing` and `.batch_header` have the layouts.
Order of decisions per entry: framing, offsets beyond the range, completeness, header, CRC, then
control batches, aborted transactions and timestamps. The CRC comes before the last three because a
flipped bit would otherwise hide a batch.

Batches outside the offset range are skipped without a CRC only where their neighbors prove that
they hold no wanted offset. Where offsets are missing at the start or the end of the range, the CRC
of the batch before or after the gap is compared as well: that costs one batch per boundary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba.core import types

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
    array_address,
    load_i16,
    load_i32,
    load_i64,
    load_i64_native,
    load_u8,
    load_u32,
)
from segment_format.kernels.skip_records import seek_key, step_records
from segment_format.kernels.track_transactions import (
    aborted_stop_of,
    needs_producer_room,
    track_transaction,
)

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


@helper
def _wrong_epoch(epoch: Value, base_offset: Value, last_offset: Value, frame: Frame) -> Value:
    """Whether the lineage gives the batch to another epoch.

    The first entry's start may be a log start that deletion moved into a batch, so a batch that
    straddles it belongs to that entry; one wholly below it is not judged.
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
    """Whether no record of a batch can have a timestamp that is wanted.

    The header has the largest one, and with LogAppendTime the only one. The base timestamp is not
    the smallest: it is the first record's. Some clients leave the largest one at −1, 0 or an old
    value, so one below the base timestamp decides nothing. With bit 6 the base timestamp is a
    delete horizon; the log cleaner has computed the largest timestamp of such a batch.
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
    frame: Frame, code: Value, position: Value, offset: Value, found: Value, expected: Value
) -> Value:
    frame[c.ERROR_POSITION] = position
    frame[c.ERROR_OFFSET] = offset
    frame[c.ERROR_FOUND] = found
    frame[c.ERROR_EXPECTED] = expected
    return np.int64(code)


@inlined
def _wrong_crc(at: Address, size: Value, frame: Frame) -> Value:
    """Whether a whole batch's checksum is not that of its bytes; both are in the error slots."""
    stored = np.int64(load_u32(at + np.uint64(17)))
    computed = np.int64(crc32c(at + np.uint64(_CRC_START), np.uint64(size - _CRC_START)))
    frame[c.ERROR_FOUND] = stored
    frame[c.ERROR_EXPECTED] = computed
    return stored != computed


@helper
def _check_skipped(source: Address, frame: Frame) -> Value:
    """Compare the checksum of the batch skipped last, once; returns whether it is wrong."""
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
    """CONTINUE, or ERROR_SKIPPED if a broken batch before this one may hold wanted offsets.

    Offsets ascend, so a batch that begins at or below the first wanted offset proves that the
    batches before it hold none.
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
def _stops_here(at: Address, position: Value, size: Value, left: Value, frame: Frame) -> Value:
    """FINISHED if a batch of magic 2 at or beyond the stop offset ends the decoding.

    Where wanted offsets are missing before it, its base offset may be wrong, which no checksum
    covers. So its checksum and its last offset are checked, and the entry after it must follow it.
    """
    base_offset = load_i64(at)
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
    if frame[c.CHECK_CRCS] and _wrong_crc(at, size, frame):
        frame[c.ERROR_POSITION] = position
        frame[c.ERROR_OFFSET] = base_offset
        return np.int64(c.ERROR_CRC)
    last_offset = base_offset + load_i32(at + np.uint64(23))
    if last_offset < base_offset or last_offset >= frame[c.OFFSETS_STOP]:
        return _fail(frame, c.ERROR_ORDER, position, base_offset, base_offset, last_offset)
    if left < size + _PREFIX_SIZE:
        frame[c.NEEDED] = size + _PREFIX_SIZE
        frame[c.STOPPING] = 1
        frame[c.STOPPING_NEXT] = last_offset + 1
        return np.int64(c.NEED_MORE)
    if load_i64(at + np.uint64(size)) <= last_offset:
        return _fail(frame, c.ERROR_ORDER, position, base_offset, base_offset, last_offset)
    return np.int64(c.FINISHED)


@inlined
def _next_batch(source: Address, window_size: Value, frame: Frame) -> Value:
    """Step over one entry, or open the batch in it; returns a status.

    CONTINUE with IN_BATCH set: records to decode stand in the window.
    """
    if needs_producer_room(frame):
        return np.int64(c.GROW_PRODUCERS)
    position = frame[c.POSITION]
    left = window_size - position
    if left < _PREFIX_SIZE:
        frame[c.NEEDED] = _PREFIX_SIZE if left > 0 else 0
        _check_skipped(source, frame)  # the next window does not hold it
        return np.int64(c.NEED_MORE)
    at = source + np.uint64(position)
    status = _frame_entry(source, position, left, frame)
    if status != c.CONTINUE:
        if status == c.NEED_MORE or status == c.LEGACY:
            _check_skipped(source, frame)
        return status
    status = _check_batch(source, position, frame)
    if status == c.CHECKED:
        aborted_stop = np.int64(-1)
        if load_i16(at + np.uint64(21)) & 0x30 != 0:
            aborted_stop = aborted_stop_of(at, frame)
            if frame[c.TRANSACTIONS] != 0:
                status = track_transaction(at, frame[c.BATCH_SIZE], aborted_stop, frame)
                if status != c.CONTINUE:
                    frame[c.ERROR_POSITION] = position
                    return status
        if _is_selected(at, aborted_stop, frame):
            _open_batch(at, position, frame)
        return np.int64(c.CONTINUE)
    return status


@inlined
def _frame_entry(source: Address, position: Value, left: Value, frame: Frame) -> Value:
    """By its first bytes: CONTINUE for a whole batch of magic 2, which has BATCH_SIZE bytes."""
    at = source + np.uint64(position)
    base_offset = load_i64(at)
    length = load_i32(at + np.uint64(8))
    magic = np.int64(load_u8(at + np.uint64(16)))
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
            status = _stops_here(at, position, size, left, frame)
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
    """Step over a batch: CHECKED, or CONTINUE for one that ends before the offsets wanted."""
    at = source + np.uint64(position)
    base_offset = load_i64(at)
    size = frame[c.BATCH_SIZE]
    last_delta = load_i32(at + np.uint64(23))
    count = load_i32(at + np.uint64(57))
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
        # Records after its last offset may be wanted ones.
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
        stored = np.int64(load_u32(at + np.uint64(17)))
        computed = np.int64(crc32c(at + np.uint64(_CRC_START), np.uint64(size - _CRC_START)))
        if stored != computed:
            return _fail(frame, c.ERROR_CRC, position, base_offset, stored, computed)
    epoch = load_i32(at + np.uint64(12))
    if frame[c.LINEAGE_COUNT] > 0 and _wrong_epoch(epoch, base_offset, last_offset, frame):
        frame[c.ERROR_POSITION] = position
        frame[c.ERROR_OFFSET] = base_offset
        return np.int64(c.ERROR_EPOCH)
    codec = load_i16(at + np.uint64(21)) & 7
    if codec > 4:
        return _fail(frame, c.ERROR_CODEC, position, base_offset, codec, 4)
    if count > last_delta + 1:
        return _fail(frame, c.ERROR_RECORD_COUNT, position, base_offset, last_offset, count)
    return np.int64(c.CHECKED)


@inlined
def _is_selected(at: Address, aborted_stop: Value, frame: Frame) -> Value:
    """Whether a checked batch holds records that may be wanted; counts those left out."""
    attributes = load_i16(at + np.uint64(21))
    if attributes & 0x20:
        frame[c.BATCHES_SKIPPED_CONTROL] += 1
        return False
    if attributes & 0x10 and aborted_stop > load_i64(at):
        frame[c.BATCHES_SKIPPED_ABORTED] += 1
        return False
    if load_i32(at + np.uint64(57)) == 0:
        return False
    base_timestamp = load_i64(at + np.uint64(27))
    if _dated_outside(base_timestamp, load_i64(at + np.uint64(35)), attributes, frame):
        frame[c.BATCHES_SKIPPED_TIMESTAMP] += 1
        return False
    return True


@inlined
def _open_batch(at: Address, position: Value, frame: Frame) -> None:
    """Make the batch at `at` the one under way."""
    attributes = load_i16(at + np.uint64(21))
    frame[c.RECORDS_LEFT] = load_i32(at + np.uint64(57))
    frame[c.BASE_OFFSET] = load_i64(at)
    frame[c.LAST_OFFSET] = frame[c.BASE_OFFSET] + load_i32(at + np.uint64(23))
    frame[c.LEAST_OFFSET] = frame[c.BASE_OFFSET]
    frame[c.BASE_TIMESTAMP] = load_i64(at + np.uint64(27))
    frame[c.MAX_TIMESTAMP] = load_i64(at + np.uint64(35))
    frame[c.TIMESTAMP_TYPE] = (attributes >> 3) & 1
    if frame[c.WANTED] & c.WANT_ORIGIN:
        frame[c.BATCH_BASE_OFFSET] = frame[c.BASE_OFFSET]
        frame[c.LEADER_EPOCH] = load_i32(at + np.uint64(12))
        frame[c.PRODUCER_ID] = load_i64(at + np.uint64(43))
        frame[c.PRODUCER_EPOCH] = load_i16(at + np.uint64(51))
        frame[c.BASE_SEQUENCE] = load_i32(at + np.uint64(53))
        frame[c.TRANSACTIONAL] = (attributes >> 4) & 1
    frame[c.CODEC] = attributes & 7
    frame[c.IN_BATCH] = 1
    frame[c.RECORD_POSITION] = 0
    frame[c.PLACE] = c.PLACE_COMPRESSED
    if attributes & 7 == 0:
        frame[c.PLACE] = c.PLACE_WINDOW
        frame[c.RECORD_POSITION] = position + _HEADER_SIZE
        frame[c.RECORDS_STOP] = position + frame[c.BATCH_SIZE]


@inlined
def _ask_for_payload(bound: Value, frame: Frame) -> Value:
    frame[c.PLACE] = c.PLACE_PAYLOAD
    frame[c.PAYLOAD_BOUND] = bound
    return np.int64(c.COMPRESSED)


@helper
def _decompress(window_at: Address, frame: Frame) -> Value:
    """Bring the records of the batch under way into the scratch buffer, or ask for help."""
    source = window_at + np.uint64(frame[c.BATCH_POSITION] + _HEADER_SIZE)
    size = np.uint64(frame[c.BATCH_SIZE] - _HEADER_SIZE)
    codec = frame[c.CODEC]
    bound = np.int64(-1)
    if codec == _LZ4:
        bound = lz4_bound(source, size)
    if codec == _SNAPPY:
        bound = snappy_bound(source, size)
    if codec == _ZSTD:
        return _ask_for_payload(zstd_bound(source, size), frame)
    if bound < 0 or bound > frame[c.MAX_BATCH_BYTES]:
        return _ask_for_payload(np.int64(-1), frame)
    if bound > frame[c.SCRATCH_ROOM]:
        frame[c.SCRATCH_NEEDED] = bound
        return np.int64(c.GROW_SCRATCH)
    target = np.uint64(frame[c.SCRATCH])
    if codec == _LZ4:
        filled = decompress_lz4(source, target)
    else:
        filled = decompress_snappy(source, size, target)
    if filled < 0:
        return _ask_for_payload(np.int64(-1), frame)
    frame[c.PLACE] = c.PLACE_SCRATCH
    frame[c.RECORDS_STOP] = filled
    return np.int64(c.CONTINUE)


_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_FRAME = types.Array(types.int64, 1, "C")


@kernel(types.int64(_BYTES, _BYTES, _FRAME))
def decode_window(window: Value, payload: Value, frame: Frame) -> Value:
    """Decode until something needs Python: a status of `segment_format.kernels.contract`.

    Args:
        window: uint8, read-only; bytes of a log from some entry border on.
        payload: uint8, read-only; the decompressed records of the batch under way when
            PLACE says so.
        frame: int64, `FRAME_SIZE` slots.
    """
    window_at = array_address(window)
    window_stop = window_at + np.uint64(window.size)
    payload_at = array_address(payload)
    payload_stop = payload_at + np.uint64(payload.size)
    sought = frame[c.SOUGHT] != 0
    needs_body = frame[c.WANTED] & c.NEEDS_BODY != 0
    while True:
        if frame[c.IN_BATCH] == 0:
            status = _next_batch(window_at, window.size, frame)
            if status != c.CONTINUE:
                return status
            continue
        if frame[c.PLACE] == c.PLACE_COMPRESSED:
            status = _decompress(window_at, frame)
            if status != c.CONTINUE:
                return status
        source = window_at
        readable_stop = window_stop
        if frame[c.PLACE] == c.PLACE_PAYLOAD:
            source = payload_at
            readable_stop = payload_stop
            frame[c.RECORDS_STOP] = payload.size
        if frame[c.PLACE] == c.PLACE_SCRATCH:
            source = np.uint64(frame[c.SCRATCH])
            readable_stop = source + np.uint64(frame[c.SCRATCH_ROOM] + c.COPY_SLACK)
        left = np.int64(0)
        records_stop = frame[c.RECORDS_STOP]
        if sought:
            status = seek_key(source, frame)
            if status == c.CONTINUE:
                frame[c.IN_BATCH] = 0
                continue
            if status != c.FOUND:
                return status
            # The record that was found is a batch of its own, as far as the next step goes.
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
