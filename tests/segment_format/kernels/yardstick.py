"""Computes the expected results of the kernels with the readable decoder.

A result is a list of rows, or the name of an error class.
"""

from __future__ import annotations

import io
import itertools
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from segment_format.arrow import RECORD_COLUMNS, RecordDecoder
from segment_format.errors import (
    CorruptRecordError,
    CrcMismatchError,
    SegmentFormatError,
    TruncatedBatchError,
)
from segment_format.isolation import NO_ABORTED
from segment_format.record.batch_header import CompressionType, RecordBatchHeader, crc32c
from segment_format.record.compression import DEFAULT_MAX_BATCH_BYTES
from segment_format.record.framing import iter_entries
from segment_format.record.records import iter_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from segment_format._cursor import BytesLike
    from segment_format.isolation import AbortedIntervals
    from segment_format.record.records import DecodedBatch, Record

ALL_COLUMNS = (
    *RECORD_COLUMNS,
    "leaderEpoch",
    "producerId",
    "producerEpoch",
    "sequence",
    "isTransactional",
    "batchBaseOffset",
    "codec",
)
START = -(2**63)
STOP = 2**63 - 1
LARGEST_ENTRY = DEFAULT_MAX_BATCH_BYTES

Row = tuple[Any, ...]
Outcome = list[Row] | str
"""Rows, or the name of an error class."""


def expected(
    data: bytes,
    *,
    start_offset: int = START,
    stop_offset: int = STOP,
    aborted: AbortedIntervals = NO_ABORTED,
    check_crcs: bool = True,
    max_batch_bytes: int = LARGEST_ENTRY,
) -> Outcome:
    """Returns the rows of `ALL_COLUMNS` that the decoder must return, with timestamps in
    microseconds, or the name of the error class.
    """
    try:
        rows = _rows(data, start_offset, stop_offset, aborted, check_crcs, max_batch_bytes)
        return list(rows)
    except SegmentFormatError as error:
        return type(error).__name__


def _rows(
    data: bytes, start: int, stop: int, aborted: AbortedIntervals, check_crcs: bool, limit: int
) -> Iterator[Row]:
    position = 0
    skipped: bytes | None = None  # the previous entry, if it ends before `start`
    while position < len(data):
        length = int.from_bytes(data[position + 8 : position + 12], "big", signed=True)
        beyond = int.from_bytes(data[position : position + 8], "big", signed=True) >= stop
        if len(data) - position >= 17 and data[position + 16] == 2 and length >= 49 and beyond:
            _check_skipped(skipped, limit)
            return
        if len(data) - position >= 17 and data[position + 16] < 3 and length > limit - 12:
            raise CorruptRecordError("too large")
        try:
            entry = next(iter_entries(data, position=position))
        except TruncatedBatchError:
            # The skipped entries were not checked yet. If one of them is corrupt, report it,
            # because the first fault in the log must be reported.
            _check_skipped(skipped, limit)
            raise
        stored = data[entry.position : entry.stop]
        position = entry.stop
        if entry.magic < 2 and 0 <= entry.offset < start:
            skipped = stored if check_crcs else None
            continue
        if entry.magic == 2:
            header = RecordBatchHeader.from_bytes(stored)
            if header.last_offset < start:
                if header.base_offset + header.record_count > start:
                    header.require_record_count(0)
                skipped = stored if check_crcs else None
                continue
            if header.base_offset > start:
                _check_skipped(skipped, limit)
            skipped = None
            if check_crcs and crc32c(stored[21:]) != header.crc:
                raise CrcMismatchError("crc")
            assert header.compression_type in CompressionType
            header.require_record_count(0)
            if header.is_control_batch or (
                header.is_transactional
                and aborted.is_aborted(header.producer_id, header.base_offset)
            ):
                continue
        (batch,) = iter_batches(stored, check_crcs=check_crcs, max_batch_bytes=limit)
        if batch.base_offset > start:
            _check_skipped(skipped, limit)
        skipped = None
        if batch.base_offset >= stop:
            return
        for record in batch.records:
            if start <= record.offset < stop:
                yield _row(batch, record)
    _check_skipped(skipped, limit)


def _check_skipped(entry: bytes | None, limit: int) -> None:
    """Raises an error if a skipped entry has a wrong checksum or is an invalid message of magic 0
    or 1.
    """
    if entry is None:
        return
    if entry[16] < 2:
        list(iter_batches(entry, max_batch_bytes=limit))
    elif int.from_bytes(entry[17:21], "big") != crc32c(entry[21:]):
        raise CrcMismatchError("crc")


def _row(batch: DecodedBatch, record: Record) -> Row:
    micros = record.timestamp * 1000
    if not -(2**63) <= micros < 2**63:
        raise CorruptRecordError("timestamp")

    def none_if_negative(number: int | None) -> int | None:
        return None if number is None or number < 0 else number

    return (
        record.key,
        record.value,
        record.offset,
        micros,
        int(record.timestamp_type),
        list(record.headers),
        none_if_negative(record.leader_epoch),
        none_if_negative(batch.producer_id),
        none_if_negative(batch.producer_epoch),
        none_if_negative(record.sequence),
        batch.is_transactional,
        batch.base_offset,
        batch.compression_type.name.lower(),
    )


def pieces(data: bytes | memoryview, sizes: Iterable[int]) -> Iterator[bytes]:
    """Splits `data` into pieces of the lengths in `sizes`, which repeat until the data ends."""
    stream = io.BytesIO(data)
    for size in itertools.cycle(sizes):
        piece = stream.read(size)
        if not piece:
            return
        yield piece


def decode_pieces(decoder: RecordDecoder, windows: Iterable[BytesLike]) -> list[pa.RecordBatch]:
    """Passes all windows to a decoder, finishes it, and returns all decoded batches."""
    batches = [batch for window in windows for batch in decoder.feed(window)]
    return batches + list(decoder.finish())


def rows_of(batches: Sequence[pa.RecordBatch]) -> list[Row]:
    """Validates each record batch with Arrow and returns the rows of all batches."""
    rows: list[Row] = []
    for batch in batches:
        batch.validate(full=True)
        columns = []
        for name in batch.schema.names:
            column = batch.column(name)
            if name == "timestamp":
                column = column.view(pa.int64())
            values = column.to_pylist()
            if name == "headers":
                values = [[(pair["key"], pair["value"]) for pair in pairs] for pairs in values]
            columns.append(values)
        rows += list(zip(*columns, strict=True))
    return rows


def actual(data: bytes | memoryview, *, cut: Sequence[int] = (), **options: Any) -> Outcome:  # noqa: ANN401
    """Decodes the bytes with the kernels; returns rows, or the name of the error class. If `cut` is
    not empty, the decoder receives the bytes in pieces of these sizes.
    """
    arguments = {"start_offset": START, "columns": ALL_COLUMNS, **options}
    try:
        decoder = RecordDecoder(**arguments)
        return rows_of(decode_pieces(decoder, pieces(data, cut) if cut else [data]))
    except SegmentFormatError as error:
        if error.position is None or not 0 <= error.position <= len(data):
            raise AssertionError(f"position {error.position} of {len(data)} bytes") from error
        return type(error).__name__
