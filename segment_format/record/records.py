"""The readable decoder: any mix of entries of magic 0, 1 and 2 to Python objects.

The yardstick that the compiled kernels are tested against, and the tool for looking into a log. A
record inside a magic-2 batch, after decompression:

| order | field | type |
|---:|---|---|
| 0 | length | varint: bytes of the rest |
| 1 | attributes | i8, ignored |
| 2 | timestampDelta | varlong |
| 3 | offsetDelta | varint |
| 4 | keyLength | varint, negative: null |
| 5 | key | bytes |
| 6 | valueLength | varint, negative: null |
| 7 | value | bytes |
| 8 | headerCount | varint |
| 9 | headers | each: key length varint (not negative), key UTF-8, value length varint, value |

Timestamps: the batch's maxTimestamp for every record under LogAppendTime, else baseTimestamp +
delta, also when baseTimestamp holds a delete horizon. Offsets: baseOffset + offsetDelta; compaction
leaves holes, so offsets are never counted. Both sums wrap at 64 bits as in Java.

Refused, as Kafka's consumer refuses it: a record whose body is not consumed exactly, a header count
above the bytes left, fewer or more records than the batch states. A count of 0 means an empty
batch, whatever the payload.

Also refused: offsets of records that do not ascend, or that lie above the batch's last offset.
Kafka's consumer returns the first record of each offset that it meets, so its rows would depend on
where a read begins.

Source: `DefaultRecordBatch`, `DefaultRecord` in Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from segment_format._cursor import Cursor, byte_view, wrap_i64
from segment_format.errors import CorruptRecordError, CrcMismatchError, SegmentFormatError
from segment_format.record.batch_header import (
    CRC_START,
    HEADER_SIZE,
    MAGIC_2,
    RecordBatchHeader,
    compression_type,
    increment_sequence,
    record_offset_message,
)
from segment_format.record.checksum import crc32c
from segment_format.record.compression import DEFAULT_MAX_BATCH_BYTES, decompress
from segment_format.record.decoded import DecodedBatch, Header, Record
from segment_format.record.framing import Entry, iter_entries
from segment_format.record.legacy import decode_legacy_entry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from segment_format._cursor import BytesLike

__all__ = ["DecodedBatch", "Header", "Record", "iter_batches"]

_MIN_RECORD_SIZE = 7


def iter_batches(
    buffer: BytesLike,
    *,
    check_crcs: bool = True,
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
) -> Iterator[DecodedBatch]:
    """Every entry of a log with all its records; control batches and empty ones too.

    Memory: one batch at a time. Its objects take up to about 50 times its uncompressed bytes (a
    record of seven bytes becomes a `Record`); no count or length in the data is believed before its
    bytes are seen. Decompression: see `segment_format.record.compression.decompress`.

    Args:
        buffer: Whole entries, one after the other, as they stand in a `.log`.
        check_crcs: Whether each entry's checksum is compared with its bytes.
        max_batch_bytes: Most bytes that one entry may decompress to.

    Yields:
        The entries in order.

    Raises:
        TruncatedBatchError: The buffer ends inside an entry.
        CrcMismatchError: A stored checksum is not that of the bytes.
        CorruptRecordError: Anything else that Kafka's consumer would refuse; with its subclasses
            UnsupportedMagicError, UnsupportedCompressionError and DecompressionError. `position` is
            that of the entry in `buffer`, or of the byte concerned where the entry is not
            compressed.
    """
    view = byte_view(buffer)
    for entry in iter_entries(view):
        if entry.magic == MAGIC_2:
            yield _decode_batch(view, entry, check_crcs, max_batch_bytes)
        else:
            yield decode_legacy_entry(
                view, entry, check_crcs=check_crcs, max_batch_bytes=max_batch_bytes
            )


def require_crc(view: memoryview, entry: Entry, header: RecordBatchHeader) -> None:
    """Compares a batch's checksum with its bytes.

    Args:
        view: What the entry's positions count in.
        entry: A whole batch of magic 2.
        header: Its header.

    Raises:
        CrcMismatchError: They differ.
    """
    computed = crc32c(view[entry.position + CRC_START : entry.stop])
    if computed != header.crc:
        raise CrcMismatchError(
            f"stored CRC {header.crc:#010x}, computed {computed:#010x}",
            position=entry.position,
            offset=header.base_offset,
        )


def _decode_batch(
    view: memoryview, entry: Entry, check_crcs: bool, max_batch_bytes: int
) -> DecodedBatch:
    header = RecordBatchHeader.from_bytes(view, entry.position)
    if check_crcs:
        require_crc(view, entry, header)
    codec = compression_type(header.attributes, position=entry.position)
    header.require_record_count(entry.position)
    records: tuple[Record, ...] = ()
    if header.record_count:
        payload = view[entry.position + HEADER_SIZE : entry.stop]
        try:
            content = decompress(codec, payload, max_output_bytes=max_batch_bytes)
        except SegmentFormatError as error:
            raise error.at(entry.position, header.base_offset) from error
        origin = None if codec else entry.position + HEADER_SIZE
        records = _decode_records(byte_view(content), header, entry.position, origin)
    return DecodedBatch(
        position=entry.position,
        size=entry.size,
        magic=header.magic,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        crc=header.crc,
        compression_type=codec,
        timestamp_type=header.timestamp_type,
        max_timestamp=header.max_timestamp,
        leader_epoch=header.partition_leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        is_transactional=header.is_transactional,
        is_control_batch=header.is_control_batch,
        delete_horizon=header.base_timestamp if header.has_delete_horizon else None,
        records=records,
    )


def _decode_records(
    content: memoryview, header: RecordBatchHeader, position: int, origin: int | None
) -> tuple[Record, ...]:
    """The records of a batch, `content` being their uncompressed bytes.

    Errors name a byte of the log where there is one (`origin`: log position of `content`), else the
    batch (`position`).
    """
    cursor = Cursor(content, origin=origin or 0)
    records: list[Record] = []
    least = header.base_offset
    try:
        for _ in range(header.record_count):
            start = cursor.position
            record = _decode_record(cursor, header)
            require_offset(record.offset, least, header, cursor.origin + start)
            least = record.offset + 1
            records.append(record)
        if cursor.remaining:
            raise cursor.fail(
                f"{cursor.remaining} bytes left after the {header.record_count} records"
            )
    except CorruptRecordError as error:
        where = position if origin is None else error.position
        raise error.at(where, header.base_offset) from error
    return tuple(records)


def require_offset(offset: int, least: int, header: RecordBatchHeader, position: int) -> None:
    """Checks that a record's offset ascends and is not above its batch's last offset.

    Args:
        offset: Of the record.
        least: One past the offset of the record before it, or the batch's base offset.
        header: Of the batch.
        position: First byte of the record.

    Raises:
        CorruptRecordError: It does not.
    """
    if not least <= offset <= header.last_offset:
        text = record_offset_message(offset, least, header.last_offset)
        raise CorruptRecordError(text, position=position)


def _decode_record(cursor: Cursor, header: RecordBatchHeader) -> Record:
    size = cursor.varint("record length")
    if size < _MIN_RECORD_SIZE - 1 or size > cursor.remaining:
        raise cursor.fail(f"record of {size} bytes, {cursor.remaining} left")
    body = Cursor(cursor.view, cursor.position, cursor.position + size, origin=cursor.origin)
    cursor.position += size
    body.i8("record attributes")
    timestamp_delta = body.varlong("timestamp delta")
    offset_delta = body.varint("offset delta")
    key = _nullable_bytes(body, "key")
    value = _nullable_bytes(body, "value")
    headers = _decode_headers(body)
    if body.remaining:
        raise body.fail(f"{body.remaining} bytes of the record are not used")
    return Record(
        offset=wrap_i64(header.base_offset + offset_delta),
        timestamp=header.timestamp_of(timestamp_delta),
        timestamp_type=header.timestamp_type,
        key=key,
        value=value,
        headers=headers,
        sequence=increment_sequence(header.base_sequence, offset_delta)
        if header.base_sequence >= 0
        else -1,
        leader_epoch=header.partition_leader_epoch if header.partition_leader_epoch >= 0 else None,
    )


def _nullable_bytes(cursor: Cursor, what: str) -> bytes | None:
    size = cursor.varint(f"{what} length")
    return None if size < 0 else cursor.take(size, what).tobytes()


def _decode_headers(cursor: Cursor) -> tuple[Header, ...]:
    count = cursor.varint("header count")
    if count < 0 or count > cursor.remaining:
        raise cursor.fail(f"{count} headers in {cursor.remaining} bytes")
    headers: list[Header] = []
    for _ in range(count):
        size = cursor.varint("header key length")
        key = cursor.take(size, "header key").tobytes().decode("utf-8", "replace")
        headers.append((key, _nullable_bytes(cursor, "header value")))
    return tuple(headers)
