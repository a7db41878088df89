"""Decodes entries of magic 0, 1 and 2 to Python objects.

This is the readable reference decoder: tests compare the compiled kernels with it. Layout of a
record inside a batch of magic 2, after decompression:

| order | field | type |
|---:|---|---|
| 0 | length | varint: number of bytes after this field |
| 1 | attributes | i8, ignored |
| 2 | timestampDelta | varlong |
| 3 | offsetDelta | varint |
| 4 | keyLength | varint, negative: null |
| 5 | key | bytes |
| 6 | valueLength | varint, negative: null |
| 7 | value | bytes |
| 8 | headerCount | varint |
| 9 | headers | each: key length varint (not negative), key UTF-8, value length varint, value |

Timestamps: with LogAppendTime, every record has the batch's maxTimestamp. Otherwise a record has
baseTimestamp + timestampDelta, even if baseTimestamp is a delete horizon. Offsets: a record has
baseOffset + offsetDelta. Offsets cannot be computed by counting records, because compaction leaves
holes. Both sums wrap at 64 bits as in Java.

Like Kafka's consumer, this decoder refuses a record whose fields do not fill its body exactly, a
header count that exceeds the remaining bytes, and a batch with fewer or more records than it
states. If a batch states 0 records, it is empty, and its payload is not read. The decoder also
refuses record offsets that do not ascend or are above the batch's last offset. Kafka's consumer
accepts them, and returns for each offset the first record that it reads. So its result depends on
the offset at which a read begins.

Kafka wrote messages of magic 0 and 1 before version 0.11. They only occur in the first tiered
segment of an old topic. After the entry's offset (i64) and size (i32), big-endian:

| position, magic 0 | magic 1 | size | field |
|---:|---:|---:|---|
| 0 | 0 | 4 | crc u32: CRC-32 (zlib's) over everything after it |
| 4 | 4 | 1 | magic |
| 5 | 5 | 1 | attributes: bits 0–2 codec, bit 3 timestamp type (magic 1) |
| – | 6 | 8 | timestamp i64 |
| 6 | 14 | 4 | keyLength i32, −1: null |
| … | … | n | key |
| … | … | 4 | valueLength i32, −1: null |
| … | … | n | value |

An uncompressed entry is one record. A compressed entry is a wrapper, whose value contains inner
entries. The offsets of the inner entries are absolute in a wrapper of magic 0. They are relative in
a wrapper of magic 1, whose own offset is the offset of its last inner entry. Because of an old bug
(KAFKA-4298), the inner entries may have another magic than the wrapper. The wrapper's magic then
determines the meaning of offsets, and the inner entry's magic the meaning of timestamps.

Source: `DefaultRecordBatch`, `DefaultRecord`, `AbstractLegacyRecordBatch`, `LegacyRecord` in Kafka.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from segment_format._cursor import Cursor, byte_view, wrap_i64
from segment_format.errors import (
    CorruptRecordError,
    CrcMismatchError,
    SegmentFormatError,
    TruncatedBatchError,
    UnsupportedCompressionError,
)
from segment_format.record.batch_header import (
    CRC_START,
    HEADER_SIZE,
    LENGTH_PREFIX_SIZE,
    MAGIC_2,
    TIMESTAMP_TYPE_BIT,
    CompressionType,
    RecordBatchHeader,
    TimestampType,
    compression_type,
    crc32c,
    increment_sequence,
    record_offset_message,
)
from segment_format.record.compression import DEFAULT_MAX_BATCH_BYTES, decompress
from segment_format.record.framing import Entry, iter_entries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from segment_format._cursor import BytesLike

__all__ = ["DecodedBatch", "Header", "Record", "iter_batches"]

Header: TypeAlias = tuple[str, bytes | None]
"""A record header: key (UTF-8, malformed bytes replaced), value or `None` for Kafka's null."""
_Item = TypeVar("_Item")

_MIN_BODY_SIZE: Final = 6
_NO_TIMESTAMP: Final = -1


@dataclass(frozen=True, slots=True)
class Record:
    """One record, as a consumer sees it.

    Attributes:
        offset: Kafka offset.
        timestamp: Milliseconds since 1970; −1 for no timestamp.
        key: `None` for Kafka's null, which differs from the empty key.
        value: `None` for Kafka's null (a tombstone), which differs from the empty value.
        headers: Headers in stored order; keys may be repeated.
        sequence: Sequence number that the producer assigned; −1 if the record has none.
        leader_epoch: Epoch of the leader that appended the record, `None` if the batch has none.
    """

    offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    sequence: int
    leader_epoch: int | None


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """One entry of a log with its records.

    An entry of magic 0 or 1 is a single message, or a compressed wrapper with its messages. It has
    no producer and no leader epoch, and is neither transactional nor a control batch.

    Attributes:
        position: Position of the first byte of the entry in the buffer.
        magic: 0, 1 or 2.
        base_offset: For magic 2, first offset of the original batch. For magic 0 and 1, offset of
            the first record.
        last_offset: Last offset, inclusive; compaction may have removed its record.
        crc: Stored checksum, unsigned: CRC-32C for magic 2, CRC-32 for magic 0 and 1.
        compression_type: Codec of the records.
        timestamp_type: NO_TIMESTAMP_TYPE for magic 0.
        max_timestamp: Largest timestamp that the entry states, in milliseconds since 1970; −1 for
            magic 0.
        leader_epoch: Epoch of the leader that appended the batch; −1 if unknown.
        producer_epoch: Epoch of the producer; `producer_id`, `producer_epoch` and `base_sequence`
            are −1 if the batch has no producer.
        base_sequence: Sequence number of the first record.
        is_transactional: True if the batch belongs to a transaction.
        is_control_batch: True if the records are markers, see
            `segment_format.record.control_record`.
        delete_horizon: Time from which compaction may remove tombstones and markers, in
            milliseconds since 1970; `None` if the batch has no delete horizon.
        records: Records that the batch still contains; may be empty.
    """

    position: int
    size: int
    magic: int
    base_offset: int
    last_offset: int
    crc: int
    compression_type: CompressionType
    timestamp_type: TimestampType
    max_timestamp: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool
    is_control_batch: bool
    delete_horizon: int | None
    records: tuple[Record, ...]


def iter_batches(
    buffer: BytesLike,
    *,
    check_crcs: bool = True,
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
) -> Iterator[DecodedBatch]:
    """Yields every entry of a log with its records, including control batches and empty batches.

    Memory: one batch at a time. Its objects take up to about 50 times its uncompressed bytes,
    because even a record of seven bytes becomes a `Record`. Counts and lengths that the data states
    do not cause memory to be allocated before the bytes are read. For the memory of decompression,
    see `segment_format.record.compression.decompress`.

    Args:
        buffer: Complete entries, one after the other, as in a `.log` file.
        check_crcs: True to verify each entry's checksum.
        max_batch_bytes: Limit for the decompressed bytes of one entry.

    Raises:
        TruncatedBatchError: The buffer ends inside an entry.
        CrcMismatchError: A stored checksum does not match the bytes.
        CorruptRecordError: The entry is invalid for another reason. The error may be of the
            subclass UnsupportedMagicError, UnsupportedCompressionError or DecompressionError. Its
            `position` is the position of the entry in `buffer`, or of the wrong byte if the entry
            is not compressed.
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
    """Verifies the checksum of a complete batch of magic 2. Raises `CrcMismatchError` if it does
    not match the bytes.
    """
    _check_crc(crc32c(view[entry.position + CRC_START : entry.stop]), header.crc, entry)


def _check_crc(computed: int, stored: int, entry: Entry) -> None:
    if computed != stored:
        raise CrcMismatchError(
            f"the batch is damaged: stored CRC {stored:#010x}, computed {computed:#010x}",
            position=entry.position,
            offset=entry.offset,
        )


def _decode_batch(
    view: memoryview, entry: Entry, check_crcs: bool, max_batch_bytes: int
) -> DecodedBatch:
    header = RecordBatchHeader.from_bytes(view, entry.position)
    if check_crcs:
        require_crc(view, entry, header)
    codec = compression_type(header.attributes, position=entry.position)
    header.require_record_count(entry.position)
    records = tuple(_iter_records(view, entry, header, max_batch_bytes, _decode_record))
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


def _iter_records(
    view: memoryview,
    entry: Entry,
    header: RecordBatchHeader,
    max_batch_bytes: int,
    read: Callable[[Cursor, RecordBatchHeader], tuple[int, _Item]],
) -> Iterator[_Item]:
    """Reads the records of a batch with `read`, which reads one record from a cursor and returns
    `(offset, item)`. Yields the items. Checks the offsets and the number of the records.

    If the batch is compressed, errors contain the position of the batch. Otherwise they contain the
    position of the wrong byte.
    """
    if not header.record_count:
        return
    start = entry.position + HEADER_SIZE
    codec = compression_type(header.attributes, position=entry.position)
    try:
        content = decompress(codec, view[start : entry.stop], max_output_bytes=max_batch_bytes)
    except SegmentFormatError as error:
        raise error.at(entry.position, header.base_offset) from error
    cursor = Cursor(byte_view(content), origin=0 if codec else start)
    min_offset = header.base_offset
    try:
        for _ in range(header.record_count):
            position = cursor.origin + cursor.position
            offset, item = read(cursor, header)
            if not min_offset <= offset <= header.last_offset:
                text = record_offset_message(offset, min_offset, header.last_offset)
                raise CorruptRecordError(text, position=position)
            min_offset = offset + 1
            yield item
        if cursor.remaining:
            raise cursor.fail(
                f"{cursor.remaining} bytes left after the {header.record_count} records"
            )
    except CorruptRecordError as error:
        position = entry.position if codec or error.position is None else error.position
        raise error.at(position, header.base_offset) from error


def _read_size(cursor: Cursor) -> int:
    """Reads the length field of the next record."""
    size = cursor.varint("record length")
    if size < _MIN_BODY_SIZE or size > cursor.remaining:
        raise cursor.fail(f"a record states {size} bytes, but {cursor.remaining} bytes are left")
    return size


def _decode_record(cursor: Cursor, header: RecordBatchHeader) -> tuple[int, Record]:
    size = _read_size(cursor)
    body = Cursor(cursor.view, cursor.position, cursor.position + size, origin=cursor.origin)
    cursor.position += size
    body.i8("record attributes")
    timestamp_delta = body.varlong("timestamp delta")
    offset_delta = body.varint("offset delta")
    key = _nullable_bytes(body, "key")
    value = _nullable_bytes(body, "value")
    headers = _decode_headers(body)
    if body.remaining:
        raise body.fail(f"{body.remaining} bytes of the record are left after its fields")
    record = Record(
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
    return record.offset, record


def _nullable_bytes(cursor: Cursor, what: str) -> bytes | None:
    size = cursor.varint(f"{what} length")
    return None if size < 0 else cursor.take(size, what).tobytes()


def _decode_headers(cursor: Cursor) -> tuple[Header, ...]:
    count = cursor.varint("header count")
    if count < 0 or count > cursor.remaining:
        raise cursor.fail(f"a record states {count} headers, but {cursor.remaining} bytes are left")
    headers: list[Header] = []
    for _ in range(count):
        size = cursor.varint("header key length")
        key = cursor.take(size, "header key").tobytes().decode("utf-8", "replace")
        headers.append((key, _nullable_bytes(cursor, "header value")))
    return tuple(headers)


@dataclass(frozen=True, slots=True)
class _Message:
    """The fields of one entry of magic 0 or 1. The value of a wrapper is still compressed."""

    offset: int
    magic: int
    crc: int
    compression_type: CompressionType
    timestamp_type: TimestampType
    timestamp: int
    key: memoryview | None
    value: memoryview | None


def decode_legacy_entry(
    view: memoryview, entry: Entry, *, check_crcs: bool, max_batch_bytes: int
) -> DecodedBatch:
    """Decodes an entry of magic 0 or 1, which is one record, or a wrapper with several records.
    `max_batch_bytes` limits the decompressed bytes of a wrapper.

    If `check_crcs` is true, the checksums of inner messages are verified, too, as in Kafka's
    consumer.

    Raises:
        CorruptRecordError: The entry is invalid, see `iter_batches`.
    """
    if entry.offset < 0:
        raise CorruptRecordError(
            f"a message has the negative offset {entry.offset}", position=entry.position
        )
    message = _read_message(view, entry, check_crc=check_crcs)
    if message.compression_type is CompressionType.NONE:
        records: tuple[Record, ...] = (_record(message, message.offset, message),)
    else:
        try:
            records = _unwrap(message, check_crcs=check_crcs, max_batch_bytes=max_batch_bytes)
        except SegmentFormatError as error:
            raise error.at(entry.position, entry.offset) from error
    return DecodedBatch(
        position=entry.position,
        size=entry.size,
        magic=message.magic,
        base_offset=records[0].offset,
        last_offset=message.offset,
        crc=message.crc,
        compression_type=message.compression_type,
        timestamp_type=message.timestamp_type,
        max_timestamp=message.timestamp,
        leader_epoch=-1,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        is_transactional=False,
        is_control_batch=False,
        delete_horizon=None,
        records=records,
    )


def _read_message(view: memoryview, entry: Entry, *, check_crc: bool) -> _Message:
    cursor = Cursor(view, entry.position + LENGTH_PREFIX_SIZE, entry.stop)
    crc = cursor.i32("crc") & 0xFFFF_FFFF
    if check_crc:
        _check_crc(zlib.crc32(view[cursor.position : entry.stop]), crc, entry)
    magic = cursor.i8("magic")
    attributes = cursor.i8("attributes")
    codec = compression_type(attributes, position=entry.position)
    if codec is CompressionType.ZSTD:
        raise UnsupportedCompressionError(
            f"a message of magic {magic} is compressed with zstd, which needs magic 2",
            position=entry.position,
            offset=entry.offset,
        )
    if magic == 0:
        timestamp, timestamp_type = _NO_TIMESTAMP, TimestampType.NO_TIMESTAMP_TYPE
    else:
        timestamp = cursor.i64("timestamp")
        timestamp_type = TimestampType((attributes & TIMESTAMP_TYPE_BIT) >> 3)
    key = _legacy_bytes(cursor, "key")
    value = _legacy_bytes(cursor, "value")
    return _Message(entry.offset, magic, crc, codec, timestamp_type, timestamp, key, value)


def _legacy_bytes(cursor: Cursor, what: str) -> memoryview | None:
    size = cursor.i32(f"{what} length")
    return None if size < 0 else cursor.take(size, what)


def _unwrap(wrapper: _Message, *, check_crcs: bool, max_batch_bytes: int) -> tuple[Record, ...]:
    if wrapper.value is None:
        raise CorruptRecordError("a compressed message has no value")
    content = byte_view(
        decompress(
            wrapper.compression_type,
            wrapper.value,
            magic=wrapper.magic,
            max_output_bytes=max_batch_bytes,
        )
    )
    messages = [
        _read_message(content, entry, check_crc=check_crcs) for entry in _inner_entries(content)
    ]
    if not messages:
        raise CorruptRecordError("a compressed message contains no messages")
    for before, message in pairwise(messages):
        if message.offset <= before.offset:
            raise CorruptRecordError(
                f"offset {message.offset} follows offset {before.offset} in a compressed message, "
                "but offsets must ascend"
            )
    if any(message.compression_type is not CompressionType.NONE for message in messages):
        raise CorruptRecordError("a compressed message contains a compressed message")
    base = 0
    last = messages[-1].offset
    if wrapper.magic == 0 and last != wrapper.offset:
        # Checked because no checksum covers the wrapper's offset, and reads of an offset range use
        # it to skip entries.
        raise CorruptRecordError(
            f"the last message of a compressed message has offset {last}, but the compressed "
            f"message states {wrapper.offset}"
        )
    if wrapper.magic == 1:
        # Some versions of librdkafka sent wrappers with offset 0 and absolute inner offsets, but
        # brokers store the last offset. In a log, offset 0 has a flipped bit, so reads that begin
        # inside the wrapper would skip it.
        if last > wrapper.offset:
            raise CorruptRecordError(
                f"the last message of a compressed message has offset {last}, which is above the "
                f"offset {wrapper.offset} of the compressed message"
            )
        base = wrapper.offset - last
    return tuple(_record(message, base + message.offset, wrapper) for message in messages)


def _inner_entries(content: memoryview) -> Iterable[Entry]:
    # An incomplete last entry is ignored, as in Kafka: brokers of that time truncated fetched
    # message sets at any byte.
    entries = iter_entries(content)
    try:
        for entry in entries:
            if entry.magic > 1:
                raise CorruptRecordError(
                    f"a compressed message contains an entry of magic {entry.magic}"
                )
            yield entry
    except TruncatedBatchError:
        return


def _record(message: _Message, offset: int, wrapper: _Message) -> Record:
    if message.magic == 0:
        timestamp, timestamp_type = _NO_TIMESTAMP, TimestampType.NO_TIMESTAMP_TYPE
    elif wrapper.timestamp_type is TimestampType.LOG_APPEND_TIME:
        timestamp, timestamp_type = wrapper.timestamp, wrapper.timestamp_type
    else:
        timestamp = message.timestamp
        # A wrapper of magic 0 states no timestamp type, so the inner message's type is used.
        timestamp_type = wrapper.timestamp_type if wrapper.magic else message.timestamp_type
    return Record(
        offset=wrap_i64(offset),
        timestamp=timestamp,
        timestamp_type=timestamp_type,
        key=None if message.key is None else message.key.tobytes(),
        value=None if message.value is None else message.value.tobytes(),
        headers=(),
        sequence=-1,
        leader_epoch=None,
    )


@dataclass(frozen=True, slots=True)
class EntryTimes:
    """Offsets and timestamps of the records of one entry.

    Attributes:
        position: Position of the first byte of the entry in the buffer.
        base_offset: First offset of the entry.
        last_offset: Last offset of the entry, inclusive.
        times: Yields `(offset, timestamp)` of each record, once. The timestamps are in milliseconds
            since 1970. Empty if the batch header states that all records are older than the
            requested time. Raises `SegmentFormatError` if the records are invalid.
    """

    position: int
    base_offset: int
    last_offset: int
    times: Iterator[tuple[int, int]]


def iter_record_times(
    buffer: BytesLike, *, dated_from_ms: int, max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES
) -> Iterator[EntryTimes]:
    """Yields the offsets and timestamps of the records of each entry, including transaction
    markers.

    The records of a batch are decoded when `EntryTimes.times` reaches them, because a search for a
    timestamp often ends at the first record of a batch. Keys, values and headers are skipped by the
    length of the record, and not checked apart from the checksum of the entry.

    Args:
        buffer: Complete entries, one after the other, as in a `.log`.
        dated_from_ms: Timestamp in milliseconds since 1970. If a batch header states that all
            records of the batch are older, they are not read.
        max_batch_bytes: Limit for the decompressed bytes of one entry.

    Raises:
        SegmentFormatError: An entry is invalid, see `iter_batches`. `position` of the error is the
            position of the entry.
    """
    view = byte_view(buffer)
    for entry in iter_entries(view):
        if entry.magic == MAGIC_2:
            header = RecordBatchHeader.from_bytes(view, entry.position)
            require_crc(view, entry, header)
            compression_type(header.attributes, position=entry.position)
            header.require_record_count(entry.position)
            times: Iterator[tuple[int, int]] = iter(())
            if not header.is_dated_before(dated_from_ms):
                times = _iter_times(view, entry, header, max_batch_bytes)
            yield EntryTimes(entry.position, header.base_offset, header.last_offset, times)
        else:
            legacy = decode_legacy_entry(
                view, entry, check_crcs=True, max_batch_bytes=max_batch_bytes
            )
            times = ((record.offset, record.timestamp) for record in legacy.records)
            yield EntryTimes(entry.position, legacy.base_offset, legacy.last_offset, times)


def _iter_times(
    view: memoryview, entry: Entry, header: RecordBatchHeader, max_batch_bytes: int
) -> Iterator[tuple[int, int]]:
    try:
        yield from _iter_records(view, entry, header, max_batch_bytes, _read_time)
    except SegmentFormatError as error:
        raise error.at(entry.position, header.base_offset) from error


def _read_time(cursor: Cursor, header: RecordBatchHeader) -> tuple[int, tuple[int, int]]:
    size = _read_size(cursor)
    stop = cursor.position + size
    cursor.position += 1  # attributes, which have no meaning yet
    timestamp_delta = cursor.varlong("timestamp delta")
    offset = wrap_i64(header.base_offset + cursor.varint("offset delta"))
    if cursor.position > stop:
        raise cursor.fail(f"the timestamp and offset of a record exceed its {size} bytes")
    cursor.position = stop
    return offset, (offset, header.timestamp_of(timestamp_delta))
