"""Offsets and timestamps of records, without their keys, values and headers.

What a look for a time needs of a batch (layout: `segment_format.record.records`): of each record
the length, the attributes, both deltas; the rest is stepped over.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from segment_format.record.records import require_crc, require_offset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from segment_format._cursor import BytesLike

_MIN_BODY_SIZE = 6


@dataclass(frozen=True, slots=True)
class EntryTimes:
    """The records of one entry.

    Attributes:
        position: First byte of the entry in the buffer.
        base_offset: Its first offset.
        last_offset: Its last offset.
        times: Offset and timestamp, in milliseconds, of each record; empty if all of them are
            dated before the wanted time.
    """

    position: int
    base_offset: int
    last_offset: int
    times: tuple[tuple[int, int], ...]


def iter_record_times(
    buffer: BytesLike, *, dated_from_ms: int, max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES
) -> Iterator[EntryTimes]:
    """Offsets and timestamps of the records of each entry; markers too.

    Checks what it steps over by the batch's checksum and the records' lengths only.

    Args:
        buffer: Whole entries, one after the other, as in a `.log`.
        dated_from_ms: Records of batches that state an earlier largest timestamp are skipped.
        max_batch_bytes: Most bytes that one entry may decompress to.

    Yields:
        The entries in order.

    Raises:
        SegmentFormatError: As `iter_batches` does.
    """
    view = byte_view(buffer)
    for entry in iter_entries(view):
        if entry.magic == MAGIC_2:
            header = RecordBatchHeader.from_bytes(view, entry.position)
            require_crc(view, entry, header)
            times = tuple(_of_batch(view, entry, header, dated_from_ms, max_batch_bytes))
            yield EntryTimes(entry.position, header.base_offset, header.last_offset, times)
        else:
            legacy = decode_legacy_entry(
                view, entry, check_crcs=True, max_batch_bytes=max_batch_bytes
            )
            times = tuple((record.offset, record.timestamp) for record in legacy.records)
            yield EntryTimes(entry.position, legacy.base_offset, legacy.last_offset, times)


def _of_batch(
    view: memoryview,
    entry: Entry,
    header: RecordBatchHeader,
    dated_from_ms: int,
    max_batch_bytes: int,
) -> Iterator[tuple[int, int]]:
    codec = compression_type(header.attributes, position=entry.position)
    header.require_record_count(entry.position)
    if header.is_dated_before(dated_from_ms) or not header.record_count:
        return
    try:
        payload = view[entry.position + HEADER_SIZE : entry.stop]
        cursor = Cursor(byte_view(decompress(codec, payload, max_output_bytes=max_batch_bytes)))
        least = header.base_offset
        for _ in range(header.record_count):
            offset_delta, timestamp_delta = _deltas(cursor)
            offset = wrap_i64(header.base_offset + offset_delta)
            require_offset(offset, least, header, entry.position)
            least = offset + 1
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
