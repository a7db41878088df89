"""Offsets and timestamps of records, without their keys, values and headers.

What a look for a time needs of a batch (layout: `segment_format.record.records`): of each record
the length, the attributes, both deltas; the rest is stepped over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from segment_format._cursor import Cursor, byte_view, wrap_i64
from segment_format.errors import CorruptRecordError, SegmentFormatError
from segment_format.record.batch_header import (
    HEADER_SIZE,
    MAGIC_2,
    RecordBatchHeader,
    compression_type,
)
from segment_format.record.compression import DEFAULT_MAX_BATCH_BYTES, decompress
from segment_format.record.framing import Entry, iter_entries
from segment_format.record.legacy import decode_legacy_entry
from segment_format.record.records import require_crc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from segment_format._cursor import BytesLike

_MIN_BODY_SIZE = 6


def iter_record_times(
    buffer: BytesLike, *, dated_from_ms: int, max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES
) -> Iterator[tuple[int, int]]:
    """Offset and timestamp, in milliseconds, of every record; markers too.

    Checks what it steps over by the batch's checksum and the records' lengths only.

    Args:
        buffer: Whole entries, one after the other, as they stand in a `.log`.
        dated_from_ms: Batches that say that all their records are dated before are left out.
        max_batch_bytes: Most bytes that one entry may decompress to.

    Yields:
        The pairs in order.

    Raises:
        SegmentFormatError: As `iter_batches` does.
    """
    view = byte_view(buffer)
    for entry in iter_entries(view):
        if entry.magic == MAGIC_2:
            yield from _of_batch(view, entry, dated_from_ms, max_batch_bytes)
        else:
            legacy = decode_legacy_entry(
                view, entry, check_crcs=True, max_batch_bytes=max_batch_bytes
            )
            if legacy.max_timestamp >= dated_from_ms:
                yield from ((record.offset, record.timestamp) for record in legacy.records)


def _of_batch(
    view: memoryview, entry: Entry, dated_from_ms: int, max_batch_bytes: int
) -> Iterator[tuple[int, int]]:
    header = RecordBatchHeader.from_bytes(view, entry.position)
    require_crc(view, entry, header)
    codec = compression_type(header.attributes, position=entry.position)
    if header.max_timestamp < dated_from_ms or not header.record_count:
        return
    try:
        payload = view[entry.position + HEADER_SIZE : entry.stop]
        cursor = Cursor(byte_view(decompress(codec, payload, max_output_bytes=max_batch_bytes)))
        for _ in range(header.record_count):
            offset_delta, timestamp_delta = _deltas(cursor)
            offset = wrap_i64(header.base_offset + offset_delta)
            yield offset, header.timestamp_of(timestamp_delta)
        if cursor.remaining:
            raise cursor.fail(
                f"{cursor.remaining} bytes left after the {header.record_count} records"
            )
    except SegmentFormatError as error:
        raise error.at(entry.position, header.base_offset) from error


def _deltas(cursor: Cursor) -> tuple[int, int]:
    """Offset and timestamp delta of the next record, which is stepped over."""
    size = cursor.varint("record length")
    stop = cursor.position + size
    if size < _MIN_BODY_SIZE or size > cursor.remaining:
        raise cursor.fail(f"record of {size} bytes, {cursor.remaining} left")
    cursor.position += 1  # attributes
    timestamp_delta = cursor.varlong("timestamp delta")
    offset_delta = cursor.varint("offset delta")
    if cursor.position > stop:
        raise CorruptRecordError("the deltas run past the record's end", position=cursor.position)
    cursor.position = stop
    return offset_delta, timestamp_delta
