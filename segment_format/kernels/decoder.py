"""Decodes a log into Arrow batches with the record kernel.

The kernel decodes most batches on its own. Python does three things for it:

* It decompresses batches with codecs that the kernel does not support.
* It decodes messages older than magic 2, converts their records to magic 2, and passes them to the
  kernel.
* It creates the errors. They equal the errors of the pure Python decoder.
"""

from __future__ import annotations

import operator
from dataclasses import astuple, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from segment_format._cursor import byte_view, write_varlong
from segment_format.errors import (
    CorruptRecordError,
    CrcMismatchError,
    SegmentFormatError,
    TruncatedBatchError,
    UnsupportedCompressionError,
    UnsupportedMagicError,
)
from segment_format.isolation import NO_ABORTED, AbortedIntervals
from segment_format.kernels import contract as c
from segment_format.kernels.columns import COLUMNS, ColumnBuffers, column_names, constants_at
from segment_format.kernels.native import load_kernel
from segment_format.record.batch_header import (
    HEADER_SIZE,
    MAGIC_2,
    CompressionType,
    RecordBatchHeader,
    record_count_message,
    record_offset_message,
)
from segment_format.record.compression import DEFAULT_MAX_BATCH_BYTES, decompress
from segment_format.record.framing import ENTRY_PREFIX_SIZE, read_entry, read_prefix
from segment_format.record.records import decode_legacy_entry
from segment_format.transaction_check import ContradictedIntervalsError, transaction_message
from segment_format.zstd_library import new_context

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from segment_format._cursor import BytesLike
    from segment_format.index.checkpoints import EpochEntry
    from segment_format.kernels.columns import Constant
    from segment_format.key_set import KeySet
    from segment_format.record.framing import Entry
    from segment_format.record.records import DecodedBatch, Record
    from segment_format.transaction_check import TransactionCheck
    from segment_format.zstd_library import Context

    Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class DecodeCounters:
    """Counters of a decoder.

    Attributes:
        batches: Entries that were skipped or decoded.
        records: Records that were returned as rows.
        bytes: Stored bytes of the entries that were skipped or decoded.
        batches_skipped_control: Control batches, which are always skipped.
        batches_skipped_aborted: Batches of aborted transactions, which are skipped.
        batches_skipped_offset: Entries that were skipped because they end before the first wanted
            offset.
        records_skipped_offset: Records of decoded batches with unwanted offsets.
        batches_skipped_timestamp: Batches that were skipped because no record has a wanted
            timestamp, according to the batch header.
        records_skipped_key: Records with wanted offsets and unwanted keys.
    """

    batches: int = 0
    records: int = 0
    bytes: int = 0
    batches_skipped_control: int = 0
    batches_skipped_aborted: int = 0
    batches_skipped_offset: int = 0
    records_skipped_offset: int = 0
    batches_skipped_timestamp: int = 0
    records_skipped_key: int = 0

    def __add__(self, other: DecodeCounters) -> DecodeCounters:
        """Returns the sum of two decoders' counters."""
        return DecodeCounters(*map(operator.add, astuple(self), astuple(other)))


_RECORD_ERRORS = {
    c.ERROR_RECORD: "its timestamp or offset delta is truncated or too long",
    c.ERROR_RECORD_LENGTH: "its length exceeds the bytes left",
    c.ERROR_KEY: "its key exceeds the record",
    c.ERROR_VALUE: "its value exceeds the record",
    c.ERROR_HEADER_COUNT: "its header count exceeds the bytes left",
    c.ERROR_RECORD_HEADERS: "a header exceeds the record",
    c.ERROR_RECORD_REST: "bytes are left after its last field",
    c.ERROR_TIMESTAMP: "its timestamp in microseconds does not fit 64 bits",
    c.ERROR_RECORD_SIZE: "its header keys exceed 2 GiB as UTF-8",
}

_OUTCOMES = {
    -1: "the batch at offset {offset} and the batch before it belong to one transaction, but the"
    " indexes abort only one of them",
    0: "the log has an abort marker at offset {offset}, the indexes have none there",
    1: "the log has a commit marker at offset {offset}, the indexes have an abort",
}


def order_error(first: int, last: int, frame: Sequence[int], position: int) -> CorruptRecordError:
    """Returns the error for an entry at `position` in the log that has the offsets `first` to
    `last`, but must have other offsets. The frame contains the range of allowed offsets.
    """
    least, stop = frame[c.NEXT_OFFSET], frame[c.OFFSETS_STOP]
    return CorruptRecordError(
        f"an entry has offsets {first} to {last}, but they must be in [{least}, {stop}) and"
        " below those of the next entry",
        position=position,
        offset=_likely_offset(first, frame),
    )


def _likely_offset(base_offset: int, frame: Sequence[int]) -> int:
    """Returns the first offset of an entry, also if its base offset is impossible: no checksum
    covers it. Then the entry before ends at the result.
    """
    is_possible = frame[c.NEXT_OFFSET] <= base_offset < frame[c.OFFSETS_STOP]
    return base_offset if is_possible or not frame[c.ORDERED] else frame[c.NEXT_OFFSET]


def error_for(status: int, frame: Sequence[int], origin: int) -> SegmentFormatError:
    """Returns the error for a negative status of the kernel. `frame` is the kernel's state array,
    which contains details of the error. `origin` is the position of the window's first byte in the
    log.
    """
    position = origin + frame[c.ERROR_POSITION]
    offset = frame[c.ERROR_OFFSET]
    actual, expected = frame[c.ERROR_FOUND], frame[c.ERROR_EXPECTED]
    error: type[CorruptRecordError] = CorruptRecordError
    if status in _RECORD_ERRORS:
        message = (
            f"{frame[c.RECORDS_LEFT]} records before the end of a batch: {_RECORD_ERRORS[status]}"
        )
    elif status == c.ERROR_LENGTH:
        message = f"entry length {actual} is below {expected}"
    elif status == c.ERROR_MAGIC:
        error, message = UnsupportedMagicError, f"unknown magic {actual}"
    elif status == c.ERROR_TOO_LARGE:
        message = f"entry of {actual} bytes, at most {expected} are allowed"
    elif status == c.ERROR_HEADER:
        message = (
            f"impossible batch: base offset {offset}, last offset delta {actual},"
            f" record count {expected}"
        )
        offset = _likely_offset(offset, frame)
    elif status in (c.ERROR_CRC, c.ERROR_SKIPPED):
        error, message = (
            CrcMismatchError,
            f"the batch is damaged: stored CRC {actual:#010x}, computed {expected:#010x}",
        )
    elif status == c.ERROR_CODEC:
        error, message = UnsupportedCompressionError, f"unknown codec number {actual}"
    elif status == c.ERROR_EPOCH:
        message = f"a batch of leader epoch {actual}, where the lineage has epoch {expected}"
    elif status == c.ERROR_ORDER:
        return order_error(actual, expected, frame, position)
    elif status == c.ERROR_RECORD_COUNT:
        message = record_count_message(expected, actual)
    elif status == c.ERROR_RECORD_OFFSET:
        message = record_offset_message(actual, expected, frame[c.LAST_OFFSET])
    elif status == c.ERROR_TRANSACTION:
        error = ContradictedIntervalsError
        message = transaction_message(actual, _OUTCOMES[expected].format(offset=offset))
    elif status == c.ERROR_BATCH_REST:
        message = f"{actual} bytes left after the last record of a batch"
    else:  # pragma: no cover - a bug: the kernels return no other status
        message = f"kernel status {status}"
    return error(message, position=position, offset=offset)


def open_legacy_record(frame: NDArray[np.int64], entry: DecodedBatch, record: Record) -> bytes:
    """Converts a record of magic 0 or 1 to the layout of magic 2, and makes it the only record of
    the kernel's current batch. Returns the bytes to pass to the kernel as `payload`.
    """
    body = b"\x00\x00\x00" + _sized(record.key) + _sized(record.value) + b"\x00"
    frame[c.RECORDS_LEFT] = 1
    frame[c.IN_BATCH] = 1
    frame[c.LOCATION] = c.LOCATION_PAYLOAD
    frame[c.RECORD_POSITION] = 0
    frame[c.BASE_OFFSET] = record.offset
    frame[c.BATCH_BASE_OFFSET] = entry.base_offset
    frame[c.LAST_OFFSET] = frame[c.LEAST_OFFSET] = record.offset
    frame[c.BASE_TIMESTAMP] = record.timestamp
    frame[c.MAX_TIMESTAMP] = record.timestamp
    frame[c.TIMESTAMP_TYPE] = record.timestamp_type
    frame[[c.LEADER_EPOCH, c.PRODUCER_ID, c.PRODUCER_EPOCH, c.BASE_SEQUENCE]] = -1
    frame[c.TRANSACTIONAL] = 0
    frame[c.CODEC] = entry.compression_type
    return write_varlong(len(body)) + body


def _sized(value: bytes | None) -> bytes:
    return write_varlong(-1) if value is None else write_varlong(len(value)) + value


DEFAULT_MAX_ROWS: Final = 8192
DEFAULT_MAX_BYTES: Final = 4 << 20
MAX_OFFSET: Final = 2**63 - 1
MIN_OFFSET: Final = -(2**63)
_MAX_BATCH_BYTES: Final = 2**31 - 1
_LIMIT_MAX_BYTES: Final = 1 << 30
_LIMIT_MAX_ROWS: Final = 1 << 24
_FIRST_SCRATCH: Final = 256 << 10
_NO_BYTES: Final[Bytes] = np.frombuffer(b"", np.uint8)


class RecordDecoder:
    """Decodes a log into Arrow batches. The caller passes the log in windows (consecutive pieces)
    of any size.

    Rows of several windows are collected until an Arrow batch is full, so the Arrow batches do not
    depend on the sizes of the windows. Windows are not copied. Only an entry that spans several
    windows is copied. The decoder uses memory for the column buffers of one Arrow batch, for one
    stored entry and for one decompressed entry. An entry that is larger than `max_batch_bytes` is
    an error.

    The offset range is checked per batch first, then per record. CRCs are checked before control
    batches and aborted transactions are skipped. The first batch at or after `stop_offset` ends the
    decoding (`done`).

    No checksum covers a batch's base offset. So if offsets are missing at the start or the end of
    the range, the CRC of the batch before or after the missing offsets is compared. This batch must
    also have higher offsets than the entry before it, and lower offsets than the entry after it.

    The wanted timestamps are compared only with batch headers, to skip whole batches. So all rows
    with wanted timestamps are returned, and possibly rows with other timestamps.

    This class is not thread-safe. The kernels release the GIL.

    Args:
        columns: Names of the columns to return, in order. They are names of `RECORD_COLUMNS`,
            `LINEAGE_COLUMNS` or `constants`.
        start_offset: First wanted offset.
        stop_offset: End of the wanted offsets, exclusive.
        aborted: Intervals of aborted transactions. Transactional batches in them are skipped.
        check_crcs: True if each entry's checksum is compared with its bytes.
        max_rows: Maximum number of rows of an Arrow batch.
        max_bytes: Maximum number of bytes of keys, values and headers in an Arrow batch. A larger
            record gets an Arrow batch of its own.
        max_batch_bytes: Maximum size of one entry in bytes, both stored and decompressed.
        lineage: Leader epochs and their start offsets, both strictly increasing. If given, a batch
            of magic 2 must have the leader epoch that owns its base offset. A batch that contains
            the start offset of the first epoch belongs to the first epoch.
        offset_bounds: If given, a pair (first, second): the offsets of entries must ascend and be
            in [first, second). This finds wrong base offsets, which no checksum covers. Pass the
            bounds of the segment or a part of it.
        position: Position in the log at which the first window begins. Errors contain positions in
            the log.
        first_timestamp: Smallest wanted timestamp, in milliseconds.
        last_timestamp: Largest wanted timestamp in milliseconds, inclusive.
        constants: Columns with the same value in all rows: a string, an int32, or `None` for a null
            string.
        keys: If given, only records with these keys are returned. In other records, only the key's
            length and the fields before the key are checked.
        transactions: If given, a control batch that contradicts `aborted` is an error. Decoders of
            consecutive parts of a log may share a `TransactionCheck`. The caller must call
            `TransactionCheck.finish`.

    Raises:
        ValueError: A column is unknown or a bound is out of range.
    """

    def __init__(
        self,
        *,
        columns: Iterable[str],
        start_offset: int = 0,
        stop_offset: int = MAX_OFFSET,
        aborted: AbortedIntervals = NO_ABORTED,
        check_crcs: bool = True,
        max_rows: int = DEFAULT_MAX_ROWS,
        max_bytes: int = DEFAULT_MAX_BYTES,
        max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
        lineage: Sequence[EpochEntry] | None = None,
        offset_bounds: tuple[int, int] | None = None,
        position: int = 0,
        first_timestamp: int = MIN_OFFSET,
        last_timestamp: int = MAX_OFFSET,
        constants: Mapping[str, str | int | None] = MappingProxyType({}),
        keys: KeySet | None = None,
        transactions: TransactionCheck | None = None,
    ) -> None:
        _check_range("max_rows", max_rows, 1, _LIMIT_MAX_ROWS)
        _check_range("max_bytes", max_bytes, 1, _LIMIT_MAX_BYTES)
        _check_range("max_batch_bytes", max_batch_bytes, HEADER_SIZE, _MAX_BATCH_BYTES)
        _check_int64(start_offset=start_offset, stop_offset=stop_offset)
        _check_int64(first_timestamp=first_timestamp, last_timestamp=last_timestamp)
        all_names = tuple(columns)
        names = column_names(all_names, constants)
        self._constants = constants_at(all_names, constants)
        self._struct = _struct_of(all_names, dict(self._constants))
        self._kernel = load_kernel("decode_window")
        self._check_crcs = check_crcs
        self._max_batch_bytes = max_batch_bytes
        frame = self._frame = np.zeros(c.FRAME_SIZE, np.int64)
        self._slots = frame.data  # reads a slot three times as fast as the array does
        frame[c.WANTED] = sum(COLUMNS[name].wanted for name in names)
        frame[c.START_OFFSET] = start_offset
        frame[c.STOP_OFFSET] = stop_offset
        frame[c.CHECK_CRCS] = check_crcs
        frame[c.MAX_ROWS] = max_rows
        frame[c.MAX_BYTES] = max_bytes
        frame[c.MAX_BATCH_BYTES] = max_batch_bytes
        frame[[c.FIRST_TIMESTAMP, c.LAST_TIMESTAMP]] = first_timestamp, last_timestamp
        if offset_bounds is not None:
            frame[c.ORDERED] = 1
            frame[c.NEXT_OFFSET], frame[c.OFFSETS_STOP] = offset_bounds
        self._arrays = _share_arrays(frame, aborted, lineage or ())
        # Keep both alive, because the frame contains the addresses of their arrays.
        self._keys = keys
        if keys is not None:
            keys.write_addresses(self._slots)
        self._transactions = transactions
        if transactions is not None:
            frame[c.TRANSACTIONS] = transactions.state.ctypes.data
        self._buffers = ColumnBuffers(self._slots, names, max_rows=max_rows, max_bytes=max_bytes)
        self._scratch = _NO_BYTES
        self._zstd: Context | None = None
        self._tail = bytearray()
        self._origin = position
        self._busy = False
        self._skipped_error = SegmentFormatError("")  # of a legacy entry, see `_note_skipped`

    @property
    def done(self) -> bool:
        """True if a batch at or after the stop offset was read. After that, only `flush` and
        `finish` return rows.
        """
        return bool(self._slots[c.DONE])

    @property
    def counters(self) -> DecodeCounters:
        """Returns the current counters. They may be read while a window is being decoded."""
        return DecodeCounters(*self._slots[c.BATCHES : c.RECORDS_SKIPPED_KEY + 1].tolist())

    @property
    def next_offset(self) -> int:
        """One past the last offset of the entries that were skipped or decoded. 0 if
        `offset_bounds` was not given.

        The entry that ends the decoding counts only if the check of the entry must wait for bytes
        of a later window.
        """
        return self._slots[c.STOPPING_NEXT if self._slots[c.STOPPING] else c.NEXT_OFFSET]

    @property
    def open_bounds(self) -> tuple[int, int] | None:
        """The `offset_bounds` that remain: pass them to a new decoder that continues with the next
        entry. `None` if this decoder got no `offset_bounds`.
        """
        slots = self._slots
        return (slots[c.NEXT_OFFSET], slots[c.OFFSETS_STOP]) if slots[c.ORDERED] else None

    def feed(self, window: BytesLike) -> Iterator[pa.RecordBatch]:
        """Decodes the next bytes of the log. The caller must exhaust the returned iterator before
        the next call.

        Args:
            window: The bytes of the log that follow the previous window. They must not change until
                the iterator is exhausted.

        Yields:
            Full Arrow batches. The remaining rows are kept for the next window.

        Raises:
            SegmentFormatError: The bytes are invalid, see `segment_format.iter_batches`. Rows that
                were not yielded yet are lost, and the decoder cannot be used any more.
            RuntimeError: The decoder is finished, or the iterator of an earlier window was not
                exhausted or raised an error.
        """
        self._begin()
        return self._feed(np.frombuffer(byte_view(window), np.uint8))

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yields the rows that `feed` has not yielded yet. The decoder can be used afterwards.

        Raises:
            RuntimeError: See `feed`.
        """
        self._begin()
        return self._flush()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yields the rows that `feed` has not yielded yet. The decoder cannot be used afterwards.

        Raises:
            TruncatedBatchError: The bytes that were fed end inside an entry, and `done` is false.
            RuntimeError: See `feed`.
        """
        self._begin()
        return self._finish()

    def _begin(self) -> None:
        if self._busy:
            raise RuntimeError(
                "the decoder is finished, has failed, or its last iterator was not exhausted"
            )
        self._busy = True

    def _feed(self, window: Bytes) -> Iterator[pa.RecordBatch]:
        start = 0
        while self._tail and not self.done:
            missing = self._slots[c.NEEDED] - len(self._tail)
            self._tail += window[start : start + missing].data
            start = min(start + missing, window.size)
            if len(self._tail) < self._slots[c.NEEDED]:
                break
            # A copy, because a bytearray cannot grow while a view refers to it.
            yield from self._decode(np.frombuffer(bytes(self._tail), np.uint8))
        if not self._tail and not self.done:
            yield from self._decode(window[start:])
        self._busy = False

    def _flush(self) -> Iterator[pa.RecordBatch]:
        if self._slots[c.ROWS]:
            yield self._batch()
            self._buffers.begin()
        self._busy = False

    def _finish(self) -> Iterator[pa.RecordBatch]:
        if self._slots[c.ROWS]:
            yield self._batch(last=True)
        if not self.done:
            self._check_skipped()
        if self._tail and not self.done and not self._slots[c.STOPPING]:
            raise TruncatedBatchError(
                f"the log ends inside an entry: {len(self._tail)} bytes are left, but the entry has"
                f" at least {self._slots[c.NEEDED]}",
                position=self._origin,
                offset=int.from_bytes(self._tail[:8], "big", signed=True)
                if len(self._tail) >= 8
                else None,
            )

    def _decode(self, window: Bytes) -> Iterator[pa.RecordBatch]:
        """Decodes the complete entries of `window`. Stores an incomplete last entry for the next
        window.
        """
        slots = self._slots
        slots[c.POSITION] = 0
        while True:
            yield from self._run(window, b"")
            if slots[c.DONE]:
                # The kernel knows only the last offset of a wrapper after the stop batch.
                slots[c.DONE] = self._is_followed_batch(byte_view(window))
                break
            if not self._at_legacy:
                break
            yield from self._decode_legacy(window)
            if slots[c.DONE] or slots[c.STOPPING]:
                break
        self._origin += slots[c.POSITION]
        slots[c.SKIPPED_POSITION] -= slots[c.POSITION]
        rest = window[slots[c.POSITION] :].tobytes()
        # Create a new bytearray, because the previous one may still be in use.
        self._tail = bytearray() if slots[c.DONE] else bytearray(rest)

    def _run(self, window: Bytes, payload: BytesLike) -> Iterator[pa.RecordBatch]:
        """Calls the kernel until it needs more bytes, has finished, or has reached an entry of
        magic 0 or 1.
        """
        kernel, frame_at = self._kernel, self._frame.ctypes.data
        view = window.data
        window_at, payload_at = _address_of(window), _address_of(payload)
        self._at_legacy = False
        while True:
            status = kernel(window_at, len(window), payload_at, len(payload), frame_at)
            if status == c.COMPRESSED:
                if not self._enable_zstd():
                    payload = self._decompress(view)
                    payload_at = _address_of(payload)
            elif status == c.FULL:
                yield self._batch()
                self._buffers.begin()
            elif status == c.GROW_SCRATCH:
                self._grow_scratch()
            elif status == c.GROW:
                self._buffers.grow()
            elif status == c.GROW_PRODUCERS and self._transactions is not None:
                self._transactions.grow()
            elif status < 0:
                raise self._error_of(status)
            else:
                self._at_legacy = status == c.LEGACY
                return

    def _enable_zstd(self) -> bool:
        """Enables the kernel to call libzstd, if the current batch is the first one with zstd.
        Returns whether the kernel must try the batch again.
        """
        slots = self._slots
        if slots[c.CODEC] != CompressionType.ZSTD or self._zstd is not None:
            return False
        self._zstd = new_context()
        if self._zstd is None:
            return False
        slots[c.ZSTD_CONTEXT] = self._zstd.address
        slots[c.ZSTD_FUNCTION] = self._zstd.function_address
        slots[c.LOCATION] = c.LOCATION_COMPRESSED
        return True

    def _decompress(self, window: memoryview) -> BytesLike:
        slots = self._slots
        start = slots[c.BATCH_POSITION]
        stored = window[start + HEADER_SIZE : start + slots[c.BATCH_SIZE]]
        try:
            return decompress(
                slots[c.CODEC],
                stored,
                max_output_bytes=self._max_batch_bytes,
                zstd_bound=slots[c.PAYLOAD_BOUND],
            )
        except SegmentFormatError as error:
            raise error.at(self._origin + start, slots[c.BASE_OFFSET]) from error

    def _grow_scratch(self) -> None:
        capacity = max(self._slots[c.SCRATCH_NEEDED], min(_FIRST_SCRATCH, self._max_batch_bytes))
        self._scratch = np.empty(capacity + c.COPY_SLACK, np.uint8)
        self._slots[c.SCRATCH] = self._scratch.ctypes.data
        self._slots[c.SCRATCH_CAPACITY] = capacity

    def _decode_legacy(self, window: Bytes) -> Iterator[pa.RecordBatch]:
        """Decodes or skips the entry of magic 0 or 1 at the current position.

        If the entry is at or after the stop offset, it ends the decoding, and the next entry may
        have to be checked. If the window does not contain the next entry, sets slot `STOPPING`, and
        the next window must be fed.
        """
        slots = self._slots
        position = slots[c.POSITION]
        view = byte_view(window)
        entry = read_entry(view, position)
        slots[c.STOPPING] = 0
        self._check_order(entry.offset, entry)
        if 0 <= entry.offset < slots[c.START_OFFSET]:
            slots[c.BATCHES_SKIPPED_OFFSET] += 1
            self._note_skipped(view, entry)
        else:
            batch = self._legacy_batch(view, entry)
            self._check_order(batch.base_offset, entry)
            if batch.base_offset > slots[c.START_OFFSET]:
                self._check_skipped()
            slots[c.SKIPPED_IS_BROKEN] = 0
            if batch.base_offset >= slots[c.STOP_OFFSET]:
                slots[c.DONE] = self._is_followed(view, entry, entry.offset)
                return
            for record in batch.records:
                # The window is empty, so the kernel stops after this record.
                yield from self._run(_NO_BYTES, open_legacy_record(self._frame, batch, record))
        if slots[c.ORDERED]:
            slots[c.NEXT_OFFSET] = entry.offset + 1
        slots[c.BATCHES] += 1
        slots[c.BYTES] += entry.size
        slots[c.POSITION] = entry.stop

    def _legacy_batch(self, view: memoryview, entry: Entry) -> DecodedBatch:
        try:
            return decode_legacy_entry(
                view, entry, check_crcs=self._check_crcs, max_batch_bytes=self._max_batch_bytes
            )
        except SegmentFormatError as error:
            where = entry.position if error.position is None else error.position
            raise error.at(self._origin + where, entry.offset) from error

    def _check_order(self, first_offset: int, entry: Entry) -> None:
        """Raises `CorruptRecordError` if the offsets of an entry of magic 0 or 1 are out of
        order.
        """
        slots = self._slots
        if slots[c.ORDERED] and not (
            slots[c.NEXT_OFFSET] <= first_offset <= entry.offset < slots[c.OFFSETS_STOP]
        ):
            raise order_error(first_offset, entry.offset, slots, self._origin + entry.position)

    def _is_followed_batch(self, view: memoryview) -> bool:
        """Calls `_is_followed` for a batch of magic 2 that ends the decoding, and returns its
        result.
        """
        slots = self._slots
        if not slots[c.ORDERED] or slots[c.NEXT_OFFSET] >= slots[c.STOP_OFFSET]:
            return True
        stop = read_entry(view, slots[c.POSITION])
        header = RecordBatchHeader.from_bytes(view, stop.position)
        return self._is_followed(view, stop, header.last_offset)

    def _is_followed(self, view: memoryview, stop: Entry, last_offset: int) -> bool:
        """Checks the entry after `stop`, the entry that ends the decoding. If offsets are missing
        before the stop offset, the entry must begin after `last_offset`, the last offset of `stop`.
        If it begins earlier, raises `CorruptRecordError`. Returns False if the check needs more
        bytes than the window has, otherwise True.
        """
        slots = self._slots
        if not slots[c.ORDERED] or slots[c.NEXT_OFFSET] >= slots[c.STOP_OFFSET]:
            return True
        slots[c.STOPPING_NEXT] = last_offset + 1
        needed = stop.size + ENTRY_PREFIX_SIZE
        if stop.position + needed <= len(view):
            entry = read_prefix(view, stop.stop, at=stop.stop)
            if entry.magic == MAGIC_2:
                first = entry.offset
            elif entry.stop <= len(view):
                first = self._legacy_batch(view, entry).base_offset
            else:
                needed = stop.size + entry.size
        if stop.position + needed > len(view):
            slots[c.STOPPING] = 1
            slots[c.NEEDED] = needed
            return False
        if first <= last_offset:
            raise order_error(stop.offset, last_offset, slots, self._origin + stop.position)
        return True

    def _note_skipped(self, view: memoryview, entry: Entry) -> None:
        """Checks an entry of magic 0 or 1 that ends before the start offset. Stores the error of an
        invalid entry for `_check_skipped`.

        The entry must be decompressed, because a wrapper message does not contain its first offset.
        """
        slots = self._slots
        slots[c.SKIPPED_IS_BROKEN] = slots[c.SKIPPED_SIZE] = 0
        if self._check_crcs:
            try:
                self._check_order(self._legacy_batch(view, entry).base_offset, entry)
            except SegmentFormatError as error:
                slots[c.SKIPPED_IS_BROKEN] = 1
                slots[c.SKIPPED_STORED_CRC] = -1
                self._skipped_error = error

    def _check_skipped(self) -> None:
        """Raises the error of the last skipped entry, if it is invalid. Called if the entry may
        contain wanted offsets.
        """
        slots = self._slots
        if slots[c.SKIPPED_IS_BROKEN]:
            slots[c.ERROR_POSITION] = slots[c.SKIPPED_POSITION]
            slots[c.ERROR_OFFSET] = slots[c.SKIPPED_OFFSET]
            slots[c.ERROR_FOUND] = slots[c.SKIPPED_STORED_CRC]
            slots[c.ERROR_EXPECTED] = slots[c.SKIPPED_COMPUTED_CRC]
            raise self._error_of(c.ERROR_SKIPPED)

    def _error_of(self, status: int) -> SegmentFormatError:
        """Returns the error for a negative status of the kernel. For ERROR_SKIPPED, returns the
        error from `_note_skipped`, if there is one.
        """
        if status == c.ERROR_SKIPPED and self._slots[c.SKIPPED_STORED_CRC] < 0:
            return self._skipped_error
        return error_for(status, self._slots, self._origin)

    def _batch(self, *, last: bool = False) -> pa.RecordBatch:
        rows = self._slots[c.ROWS]
        arrays = self._buffers.arrays(last=last)
        for index, constant in self._constants:
            arrays.insert(index, constant.rows(rows))
        # `from_arrays` would return a batch without rows if there are no columns.
        struct = pa.Array.from_buffers(self._struct, rows, [None], 0, children=arrays)
        return pa.RecordBatch.from_struct_array(struct)


def _struct_of(names: Sequence[str], constants: Mapping[int, Constant]) -> pa.DataType:
    """Returns a struct type with the columns `names` of an Arrow batch. `constants` contains the
    columns with one value in all rows, by index in `names`.
    """
    types = [
        constants[index].type if index in constants else COLUMNS[name].type
        for index, name in enumerate(names)
    ]
    return pa.struct(zip(names, types, strict=True))


def _share_arrays(
    frame: NDArray[np.int64], aborted: AbortedIntervals, lineage: Sequence[EpochEntry]
) -> tuple[NDArray[np.int64], ...]:
    """Stores the addresses and lengths of the aborted intervals and of the lineage in the frame.
    Returns the arrays, which the caller must keep alive.
    """
    arrays: dict[int, ArrayLike] = {
        c.ABORTED_PRODUCER_IDS: aborted.producer_ids,
        c.ABORTED_FIRST_OFFSETS: aborted.first_offsets,
        c.ABORTED_LAST_OFFSETS: aborted.last_offsets,
        c.LINEAGE_EPOCHS: [entry.epoch for entry in lineage],
        c.LINEAGE_START_OFFSETS: [entry.start_offset for entry in lineage],
    }
    frame[c.ABORTED_COUNT] = len(aborted)
    frame[c.LINEAGE_COUNT] = len(lineage)
    shared = {slot: np.ascontiguousarray(column, np.int64) for slot, column in arrays.items()}
    for slot, array in shared.items():
        frame[slot] = array.ctypes.data
    return tuple(shared.values())


def _address_of(data: BytesLike) -> int:
    # Called once per compressed batch: `ndarray.ctypes` takes seven times as long.
    address: int = pa.py_buffer(data).address
    return address


def _check_range(name: str, value: int, minimum: int, maximum: int) -> None:
    if not minimum <= value <= maximum:
        raise ValueError(f"{name} must be in [{minimum}, {maximum}], not {value}")


def _check_int64(**values: int) -> None:
    for name, value in values.items():
        _check_range(name, value, MIN_OFFSET, MAX_OFFSET)
