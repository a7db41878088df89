"""Messages of magic 0 and 1, which Kafka wrote before 0.11.

Among tiered segments only the first one of an old topic can hold them, in front of batches of magic
2.

After the entry's offset (i64) and size (i32), big-endian:

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

An uncompressed entry is one record. A compressed one is a wrapper: its value holds entries. Their
offsets are absolute in a wrapper of magic 0; of magic 1 they are relative, the wrapper's offset
being that of the last. An old bug (KAFKA-4298) wrote inner messages of another magic than the
wrapper's: offsets follow the wrapper's magic, timestamps the inner one's.

Source: `AbstractLegacyRecordBatch`, `LegacyRecord` in Kafka.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from segment_format._cursor import Cursor, byte_view, wrap_i64
from segment_format.errors import (
    CorruptRecordError,
    CrcMismatchError,
    SegmentFormatError,
    TruncatedBatchError,
    UnsupportedCompressionError,
)
from segment_format.record.batch_header import (
    LENGTH_PREFIX_SIZE,
    TIMESTAMP_TYPE_BIT,
    CompressionType,
    TimestampType,
    compression_type,
)
from segment_format.record.compression import decompress
from segment_format.record.decoded import DecodedBatch, Record
from segment_format.record.framing import Entry, iter_entries

if TYPE_CHECKING:
    from collections.abc import Iterable

_NO_TIMESTAMP: Final = -1


@dataclass(frozen=True, slots=True)
class _Message:
    """One entry's own fields, before a wrapper's value is opened."""

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
    """The entry of magic 0 or 1 at `entry`, with the one record or those of the wrapper.

    Memory and errors: as `segment_format.record.records.iter_batches`. With `check_crcs` the inner
    messages' own checksums are compared too, as Kafka's consumer does.
    """
    if entry.offset < 0:
        raise CorruptRecordError(f"negative offset {entry.offset}", position=entry.position)
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
        computed = zlib.crc32(view[cursor.position : entry.stop])
        if computed != crc:
            raise CrcMismatchError(
                f"stored CRC {crc:#010x}, computed {computed:#010x}",
                position=entry.position,
                offset=entry.offset,
            )
    magic = cursor.i8("magic")
    attributes = cursor.i8("attributes")
    codec = compression_type(attributes, position=entry.position)
    if codec is CompressionType.ZSTD:
        raise UnsupportedCompressionError(
            f"zstd in a message of magic {magic}", position=entry.position, offset=entry.offset
        )
    if magic == 0:
        timestamp, timestamp_type = _NO_TIMESTAMP, TimestampType.NO_TIMESTAMP_TYPE
    else:
        timestamp = cursor.i64("timestamp")
        timestamp_type = TimestampType((attributes & TIMESTAMP_TYPE_BIT) >> 3)
    key = _nullable_bytes(cursor, "key")
    value = _nullable_bytes(cursor, "value")
    return _Message(entry.offset, magic, crc, codec, timestamp_type, timestamp, key, value)


def _nullable_bytes(cursor: Cursor, what: str) -> memoryview | None:
    size = cursor.i32(f"{what} length")
    return None if size < 0 else cursor.take(size, what)


def _unwrap(wrapper: _Message, *, check_crcs: bool, max_batch_bytes: int) -> tuple[Record, ...]:
    if wrapper.value is None:
        raise CorruptRecordError("a compressed message without a value")
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
        raise CorruptRecordError("a compressed message without messages in it")
    for before, message in pairwise(messages):
        if message.offset <= before.offset:
            raise CorruptRecordError(
                f"inner offset {message.offset} follows {before.offset} in a compressed message"
            )
    if any(message.compression_type is not CompressionType.NONE for message in messages):
        raise CorruptRecordError("a compressed message inside a compressed message")
    base = 0
    last = messages[-1].offset
    if wrapper.magic == 0 and last != wrapper.offset:
        # No checksum covers the wrapper's offset, and bounded reads skip by it.
        raise CorruptRecordError(
            f"the last inner offset is {last}, where the wrapper says {wrapper.offset}"
        )
    if wrapper.magic == 1:
        # Some librdkafka versions produced wrappers with offset 0; their inner offsets stand alone.
        if last <= wrapper.offset:
            base = wrapper.offset - last
        elif wrapper.offset != 0:
            raise CorruptRecordError(
                f"inner offset {last} is beyond the wrapper's {wrapper.offset}"
            )
    return tuple(_record(message, base + message.offset, wrapper) for message in messages)


def _inner_entries(content: memoryview) -> Iterable[Entry]:
    # Kafka ends the set silently at a cut last entry: brokers of that time cut fetched sets
    # anywhere.
    entries = iter_entries(content)
    try:
        for entry in entries:
            if entry.magic > 1:
                raise CorruptRecordError(f"a message of magic {entry.magic} inside a message")
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
        # A wrapper of magic 0 has no type to hand down.
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
