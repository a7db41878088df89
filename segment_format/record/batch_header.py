"""Parses the header of a record batch of magic 2: 61 bytes, big-endian.

| position | size | field | notes |
|---:|---:|---|---|
| 0 | 8 | baseOffset i64 | first offset of the original batch; compaction keeps it |
| 8 | 4 | batchLength i32 | bytes after position 12, at least 49 |
| 12 | 4 | partitionLeaderEpoch i32 | −1 if unknown; set by the leader, not covered by the CRC |
| 16 | 1 | magic i8 | 2 |
| 17 | 4 | crc u32 | CRC-32C over position 21 to the end of the batch |
| 21 | 2 | attributes i16 | see below |
| 23 | 4 | lastOffsetDelta i32 | last offset = baseOffset + this; compaction keeps it |
| 27 | 8 | baseTimestamp i64 | with attribute bit 6: the delete horizon; −1 in an empty batch |
| 35 | 8 | maxTimestamp i64 | with attribute bit 3: the timestamp of every record |
| 43 | 8 | producerId i64 | −1 if there is no producer id |
| 51 | 2 | producerEpoch i16 | −1 if there is no producer id |
| 53 | 4 | baseSequence i32 | −1 if there is no producer id, and in every control batch |
| 57 | 4 | recordCount i32 | number of records that the batch still has |
| 61 | … | records | one compressed stream when the codec is not 0 |

Attributes, low byte: bits 0–2 codec, 3 timestamp type, 4 transactional, 5 control, 6 delete
horizon. Bit 7 and the high byte are ignored, as Kafka ignores them.

Source: `org.apache.kafka.common.record.DefaultRecordBatch` (KIP-98, KIP-534 for the delete
horizon).
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import google_crc32c
import numpy as np

from segment_format._cursor import byte_view, wrap_i64
from segment_format.errors import (
    CorruptRecordError,
    TruncatedBatchError,
    UnsupportedCompressionError,
    UnsupportedMagicError,
)

if TYPE_CHECKING:
    from segment_format._cursor import BytesLike


def crc32c(data: BytesLike) -> int:
    """Returns the unsigned CRC-32C (Castagnoli) of a contiguous buffer, without a copy.

    Magic-2 batches and producer snapshots use CRC-32C; entries of magic 0 and 1 use CRC-32.
    """
    # `google_crc32c` refuses memoryview and bytearray, but accepts NumPy arrays.
    value: int = google_crc32c.value(np.frombuffer(data, dtype=np.uint8))
    return value


MAGIC_2: Final = 2
HEADER_SIZE: Final = 61
"""Bytes before the first record."""
LENGTH_PREFIX_SIZE: Final = 12
"""Bytes of an entry that its length field does not count, for any magic: the offset and the length
itself.
"""
CRC_START: Final = 21
"""First byte that the CRC of a magic-2 batch covers."""
MIN_BATCH_LENGTH: Final = HEADER_SIZE - LENGTH_PREFIX_SIZE

CODEC_MASK: Final = 0x07
TIMESTAMP_TYPE_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

MAX_I32: Final = 2**31 - 1
MAX_I64: Final = 2**63 - 1

_HEADER = struct.Struct(">qiibIhiqqqhii")


class CompressionType(IntEnum):
    """Codec numbers of the attributes (`CompressionType` in Kafka)."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TimestampType(IntEnum):
    """Meaning of a record's timestamp (`TimestampType` in Kafka)."""

    NO_TIMESTAMP_TYPE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


def compression_type(attributes: int, *, position: int | None = None) -> CompressionType:
    """Returns the codec in bits 0–2 of `attributes`.

    Raises:
        UnsupportedCompressionError: The number is 5, 6 or 7, which Kafka does not define.
    """
    codec = attributes & CODEC_MASK
    if codec > CompressionType.ZSTD:
        raise UnsupportedCompressionError(f"unknown codec number {codec}", position=position)
    return CompressionType(codec)


def increment_sequence(sequence: int, increment: int) -> int:
    """Returns `sequence + increment`; 0 follows 2147483647 (`incrementSequence` in Kafka)."""
    return (sequence + increment) & MAX_I32


def record_count_message(count: int, last_offset: int) -> str:
    """Returns the error text for a batch with more records than offsets."""
    return (
        f"{count} records in a batch that ends at offset {last_offset}: its lastOffsetDelta is too"
        " small, so the next batch has some of the same offsets; read the offsets below and above"
        " this batch by separate scans"
    )


def record_offset_message(offset: int, least: int, last_offset: int) -> str:
    """Returns the error text for a record with a wrong offset, which is below `least` or above
    `last_offset`.
    """
    return (
        f"a record has offset {offset}, but the next records of the batch must be in"
        f" [{least}, {last_offset}]: the offset"
        " would be read twice; read the offsets below and above this batch by separate scans"
    )


@dataclass(frozen=True, slots=True)
class RecordBatchHeader:
    """The thirteen header fields of a magic-2 batch, and values derived from them.

    Attributes:
        base_offset: First offset of the original batch.
        batch_length: Number of bytes after the first twelve bytes of the batch.
        partition_leader_epoch: Epoch of the leader that appended the batch; −1 if unknown.
        magic: 2.
        crc: Stored CRC-32C, unsigned. Parsing does not check it.
        attributes: All sixteen attribute bits, as a signed number.
        last_offset_delta: Last offset of the original batch minus `base_offset`.
        base_timestamp: Milliseconds since 1970. A record's timestamp is this plus the record's
            delta.
        max_timestamp: Largest timestamp of the records in milliseconds since 1970. With
            LogAppendTime, it is the timestamp of all records.
        producer_id: Id of the producer; −1 if the batch has none.
        producer_epoch: Epoch of the producer; −1 if the batch has no producer id.
        base_sequence: Sequence number of the first record; −1 if the batch has none.
        record_count: Number of records in the batch. It is less than `last_offset_delta + 1` if
            compaction removed records.
    """

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @classmethod
    def from_bytes(cls, buffer: BytesLike, position: int = 0) -> RecordBatchHeader:
        """Parses the header at `position`, the first byte of the batch in `buffer`. Does not verify
        the CRC.

        Raises:
            TruncatedBatchError: Fewer than 61 bytes are left.
            UnsupportedMagicError: The magic is not 2.
            CorruptRecordError: The length is below 49; or the base offset, the offset delta or the
                record count is negative; or the last offset is 2^63 − 1 or more.
        """
        view = byte_view(buffer)
        left = len(view) - position
        if position < 0 or left < HEADER_SIZE:
            raise TruncatedBatchError(
                f"{max(0, left)} bytes are left, but a batch header has {HEADER_SIZE} bytes",
                position=position,
            )
        header = cls(*_HEADER.unpack_from(view, position))
        if header.magic != MAGIC_2:
            raise UnsupportedMagicError(f"magic {header.magic} is not 2", position=position)
        if header.batch_length < MIN_BATCH_LENGTH:
            raise CorruptRecordError(
                f"batch length {header.batch_length} is below {MIN_BATCH_LENGTH}",
                position=position,
                offset=header.base_offset,
            )
        if (
            header.base_offset < 0
            or header.last_offset_delta < 0
            or header.last_offset >= MAX_I64
            or header.record_count < 0
        ):
            raise CorruptRecordError(
                f"impossible batch: base offset {header.base_offset}, last offset delta"
                f" {header.last_offset_delta}, record count {header.record_count}",
                position=position,
                offset=header.base_offset,
            )
        return header

    def to_bytes(self) -> bytes:
        """Returns the 61 bytes of the header, with the stored `crc`."""
        return _HEADER.pack(*astuple(self))

    @property
    def last_offset(self) -> int:
        """Last offset of the original batch, inclusive. Compaction may have removed the record of
        this offset.
        """
        return self.base_offset + self.last_offset_delta

    def require_record_count(self, position: int) -> None:
        """Checks that the batch does not state more records than it has offsets.

        Kafka's leaders refuse a batch with more records than offsets. Its last records would have
        offsets of the next batch, so two records would have one offset, and the result of a read
        would depend on where it begins.

        Raises:
            CorruptRecordError: The batch states more records than offsets.
        """
        if self.record_count > self.last_offset_delta + 1:
            text = record_count_message(self.record_count, self.last_offset)
            raise CorruptRecordError(text, position=position, offset=self.base_offset)

    @property
    def next_offset(self) -> int:
        """Offset after the last offset of the batch."""
        return self.last_offset + 1

    @property
    def size_in_bytes(self) -> int:
        """Size of the batch in bytes, including the header."""
        return LENGTH_PREFIX_SIZE + self.batch_length

    @property
    def compression_type(self) -> CompressionType:
        """Codec of the records.

        Raises:
            UnsupportedCompressionError: The attributes name a codec that Kafka does not define.
        """
        return compression_type(self.attributes)

    @property
    def timestamp_type(self) -> TimestampType:
        """Meaning of the records' timestamps: CREATE_TIME or LOG_APPEND_TIME."""
        return TimestampType((self.attributes & TIMESTAMP_TYPE_BIT) >> 3)

    def timestamp_of(self, timestamp_delta: int) -> int:
        """Returns the timestamp of a record of this batch, in milliseconds since 1970."""
        if self.attributes & TIMESTAMP_TYPE_BIT:
            return self.max_timestamp
        return wrap_i64(self.base_timestamp + timestamp_delta)

    def is_dated_before(self, timestamp_ms: int) -> bool:
        """Returns whether `max_timestamp` proves that all records are older than `timestamp_ms`.

        Some clients write −1, 0 or an old value. So a `max_timestamp` that is negative or below the
        base timestamp proves nothing, with two exceptions: in a batch with a delete horizon, the
        log cleaner computed `max_timestamp`; with LogAppendTime, it is the timestamp of every
        record.
        """
        is_set = bool(self.attributes & (TIMESTAMP_TYPE_BIT | DELETE_HORIZON_BIT))
        is_plausible = self.max_timestamp >= 0 and (
            is_set or self.max_timestamp >= self.base_timestamp
        )
        return is_plausible and self.max_timestamp < timestamp_ms

    @property
    def is_transactional(self) -> bool:
        """True if the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control_batch(self) -> bool:
        """True if the batch contains a control record, such as a transaction marker, instead of
        data.
        """
        return bool(self.attributes & CONTROL_BIT)

    @property
    def has_delete_horizon(self) -> bool:
        """True if `base_timestamp` is the delete horizon: the time from which compaction may remove
        the batch's tombstones or markers.
        """
        return bool(self.attributes & DELETE_HORIZON_BIT)
