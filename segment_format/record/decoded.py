"""What a decoded log is made of: records, and the batches they came in.

Source: `Record`, `RecordBatch` in `org.apache.kafka.common.record`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from segment_format.record.batch_header import CompressionType, TimestampType

Header: TypeAlias = tuple[str, bytes | None]
"""A record header: key (UTF-8, malformed bytes replaced), value or None for Kafka's null."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record, as a consumer sees it.

    Attributes:
        offset: Kafka offset.
        timestamp: Milliseconds since 1970, −1 for none.
        timestamp_type: What the timestamp means.
        key: None for Kafka's null, which is not the empty key.
        value: None for Kafka's null (a tombstone), which is not the empty value.
        headers: In stored order, repeated keys kept.
        sequence: Producer's sequence number, −1 for none.
        leader_epoch: Epoch of the leader that appended the record, None when the batch states none.
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

    For magic 0 and 1 an entry is a single message, or a compressed wrapper with the messages in it;
    such entries have no producer, no leader epoch and are never transactional or control.

    Attributes:
        position: First byte of the entry in the buffer.
        size: Bytes of the whole entry.
        magic: 0, 1 or 2.
        base_offset: First offset: the original batch's for magic 2, else the first record's.
        last_offset: Last offset, inclusive; its record may be gone.
        crc: Stored checksum, unsigned: CRC-32C for magic 2, CRC-32 below.
        compression_type: Codec of the records.
        timestamp_type: NO_TIMESTAMP_TYPE for magic 0.
        max_timestamp: As stored, milliseconds; −1 for magic 0.
        leader_epoch: −1 for none.
        producer_id: −1 for none.
        producer_epoch: −1 for none.
        base_sequence: −1 for none.
        is_transactional: Whether a transaction's outcome decides about the batch.
        is_control_batch: Whether the records are markers, see
            `segment_format.record.control_record`.
        delete_horizon: Milliseconds at which tombstones and markers may go, None when not set.
        records: The records present, possibly none.
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
