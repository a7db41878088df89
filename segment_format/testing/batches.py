"""Record batches of magic 2, written field by field.

    pos  size  field                          pos  size  field
      0     8  baseOffset                      27     8  baseTimestamp
      8     4  batchLength (bytes after it)    35     8  maxTimestamp
     12     4  partitionLeaderEpoch            43     8  producerId
     16     1  magic 2                         51     2  producerEpoch
     17     4  crc (CRC-32C from 21 on)        53     4  baseSequence
     21     2  attributes                      57     4  record count
     23     4  lastOffsetDelta                 61     -  records, compressed as one stream

Attributes: bits 0-2 codec, 3 LogAppendTime, 4 transactional, 5 control, 6 delete horizon.
Source: `org.apache.kafka.common.record.DefaultRecordBatch`, `DefaultRecord`,
`EndTransactionMarker`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from segment_format.testing.checksum import crc32c
from segment_format.testing.compression import codec_number, compress
from segment_format.testing.varint import write_varint, write_varlong

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CREATE_TIME = 0
LOG_APPEND_TIME = 1
NO_TIMESTAMP = -1
DEFAULT_TIMESTAMP_MS = 1_700_000_000_000

ABORT = 0
COMMIT = 1
CONTROL_TYPES = {
    "abort": ABORT,
    "commit": COMMIT,
    "leader_change": 2,
    "snapshot_header": 3,
    "snapshot_footer": 4,
    "kraft_version": 5,
    "kraft_voters": 6,
}
"""Control record name -> type number in its key."""

# Values of control records that end no transaction: version, fields, no tagged fields.
_CONTROL_VALUES = {
    2: struct.pack(">hi", 0, 1) + b"\x01\x01\x00",  # leader 1, no voters, no granting voters
    3: struct.pack(">hq", 0, DEFAULT_TIMESTAMP_MS) + b"\x00",  # time of the snapshot's last record
    4: struct.pack(">h", 0) + b"\x00",
    5: struct.pack(">hh", 0, 1) + b"\x00",  # metadata quorum version 1
    6: struct.pack(">h", 0) + b"\x01\x00",  # no voters
}

_AFTER_CRC = struct.Struct(">hiqqqhii")
_LENGTH_COUNTS_FROM = 12
_CRC_COVERS_FROM = 21


@dataclass(frozen=True, slots=True)
class SimpleRecord:
    """One record before it gets a place in a log.

    Attributes:
        value: Bytes, or None for a null value (a tombstone).
        key: Bytes, or None for a null key. Empty and null are different things.
        headers: (key, value) in order; keys may repeat, values may be None.
        timestamp: Milliseconds since the epoch; -1 is "no timestamp".
        offset: Absolute offset; None means the one after the record before it.
    """

    value: bytes | None = None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int = DEFAULT_TIMESTAMP_MS
    offset: int | None = None


def assign_offsets(records: Sequence[SimpleRecord], base_offset: int) -> list[int]:
    """The absolute offset of every record: its own, or the one after its predecessor.

    Raises:
        ValueError: The offsets do not strictly increase from `base_offset`.
    """
    offsets: list[int] = []
    following = base_offset
    for record in records:
        offset = following if record.offset is None else record.offset
        if offset < following:
            raise ValueError(f"offset {offset} after {following - 1}: offsets must increase")
        offsets.append(offset)
        following = offset + 1
    return offsets


def write_batch(
    records: Sequence[SimpleRecord],
    *,
    base_offset: int,
    codec: str = "none",
    leader_epoch: int = 0,
    timestamp_type: int = CREATE_TIME,
    max_timestamp: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    last_offset_delta: int | None = None,
    delete_horizon: int | None = None,
    base_timestamp: int | None = None,
    unused_attributes: int = 0,
    compressor: Callable[[bytes], bytes] | None = None,
) -> bytes:
    """One record batch of magic 2, as it stands in a `.log` file.

    Args:
        records: What the batch holds. Records with an `offset` of their own make the holes
            compaction leaves.
        base_offset: First offset of the batch as it was produced; holes may follow it.
        codec: none, gzip, snappy, lz4 or zstd.
        leader_epoch: Epoch of the leader that appended it, -1 for none.
        timestamp_type: `CREATE_TIME`, or `LOG_APPEND_TIME`: then every record's time is
            `max_timestamp`, and the records' own times stay in the batch as stale deltas, as on a
            broker.
        max_timestamp: The header's value; None takes the largest record time (-1 without records).
        producer_id: -1 for none.
        producer_epoch: -1 for none.
        base_sequence: -1 for none.
        transactional: Sets attribute bit 4.
        control: Sets attribute bit 5; `write_control_batch` is the short way.
        last_offset_delta: Last offset of the batch minus `base_offset`; None takes the last
            record's. Larger than that is what compaction leaves when it removes the last record.
        delete_horizon: Milliseconds; sets bit 6 and takes the base timestamp's place.
        base_timestamp: The header's value; None takes the first record's time (-1 without records).
        unused_attributes: Extra bits for the attributes field (bit 7 and the high byte), which
            readers must ignore.
        compressor: Replaces the Java producer's framing of `codec`, for payloads of other clients.

    Returns:
        The whole batch, 61 bytes of header and the records.

    Raises:
        ValueError: Unknown codec, offsets that do not increase, or a `last_offset_delta` below the
            last record's.
        struct.error: A number that does not fit its field.
    """
    offsets = assign_offsets(records, base_offset)
    newest = offsets[-1] - base_offset if offsets else 0
    last_delta = newest if last_offset_delta is None else last_offset_delta
    if last_delta < newest:
        raise ValueError(f"last_offset_delta {last_delta} is below the last record's {newest}")
    if delete_horizon is not None:
        base_timestamp = delete_horizon
    elif base_timestamp is None:
        base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    if max_timestamp is None:
        max_timestamp = max((record.timestamp for record in records), default=NO_TIMESTAMP)
    payload = b"".join(
        write_record(record, offset - base_offset, record.timestamp - base_timestamp)
        for record, offset in zip(records, offsets, strict=True)
    )
    attributes = (
        codec_number(codec)
        | (timestamp_type << 3)
        | (int(transactional) << 4)
        | (int(control) << 5)
        | (int(delete_horizon is not None) << 6)
        | unused_attributes
    )
    stored = compressor(payload) if compressor is not None else compress(codec, payload)
    return frame_batch(
        stored,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=attributes,
        last_offset_delta=last_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )


def frame_batch(
    payload: bytes,
    *,
    base_offset: int,
    record_count: int,
    last_offset_delta: int,
    attributes: int = 0,
    leader_epoch: int = 0,
    base_timestamp: int = NO_TIMESTAMP,
    max_timestamp: int = NO_TIMESTAMP,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytes:
    """A batch around bytes that are taken as they are: for payloads no correct writer would make.

    Args:
        payload: Bytes after the header, already compressed as `attributes` say.
        base_offset: See `write_batch`, as for the other header fields.
        record_count: The header's count, whatever the payload holds.
        last_offset_delta: The header's value.
        attributes: All 16 bits.
        leader_epoch: Not covered by the checksum.
        base_timestamp: Milliseconds, or the delete horizon.
        max_timestamp: Milliseconds.
        producer_id: -1 for none.
        producer_epoch: -1 for none.
        base_sequence: -1 for none.

    Returns:
        The whole batch with a right length and a right checksum.
    """
    checked = (
        _AFTER_CRC.pack(
            attributes if attributes < 1 << 15 else attributes - (1 << 16),
            last_offset_delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            record_count,
        )
        + payload
    )
    length = _CRC_COVERS_FROM - _LENGTH_COUNTS_FROM + len(checked)
    return struct.pack(">qiibI", base_offset, length, leader_epoch, 2, crc32c(checked)) + checked


def write_record(record: SimpleRecord, offset_delta: int, timestamp_delta: int) -> bytes:
    """One record inside a batch: length, attributes, the two deltas, key, value, headers."""
    parts = [
        b"\x00",
        write_varlong(timestamp_delta),
        write_varint(offset_delta),
        _nullable(record.key),
        _nullable(record.value),
        write_varint(len(record.headers)),
    ]
    for key, value in record.headers:
        parts += [_nullable(key.encode()), _nullable(value)]
    body = b"".join(parts)
    return write_varint(len(body)) + body


def write_control_batch(
    kind: str | int,
    *,
    base_offset: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    coordinator_epoch: int = 0,
    timestamp: int = DEFAULT_TIMESTAMP_MS,
    leader_epoch: int = 0,
    transactional: bool = True,
    delete_horizon: int | None = None,
    key_suffix: bytes = b"",
    value: bytes | None = None,
) -> bytes:
    """One control batch with its one record, as the transaction coordinator makes the log write it.

    Args:
        kind: A name of `CONTROL_TYPES`, or any type number.
        base_offset: The marker's offset.
        producer_id: Whose transaction it ends.
        producer_epoch: May be higher than that of the data.
        coordinator_epoch: Written in the marker's value.
        timestamp: Milliseconds.
        leader_epoch: Epoch of the leader that appended it.
        transactional: True for markers; False for the control records of the metadata log.
        delete_horizon: Milliseconds; what compaction stamps on a marker it means to remove later.
        key_suffix: Further key bytes, which readers must accept.
        value: The record's value; None writes version 0 and what such a record holds, for a marker
            the coordinator's epoch.
    """
    number = CONTROL_TYPES[kind] if isinstance(kind, str) else kind
    if value is None:
        value = _CONTROL_VALUES.get(number, struct.pack(">hi", 0, coordinator_epoch))
    record = SimpleRecord(
        key=struct.pack(">hh", 0, number) + key_suffix,
        value=value,
        timestamp=timestamp,
    )
    return write_batch(
        [record],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=transactional,
        control=True,
        delete_horizon=delete_horizon,
    )


def write_empty_batch(
    *,
    base_offset: int,
    last_offset: int,
    max_timestamp: int = NO_TIMESTAMP,
    leader_epoch: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    """A header of 61 bytes without records: what compaction keeps of a producer's last batch.

    Args:
        base_offset: First offset the batch once held.
        last_offset: Last offset the batch once held, inclusive.
        max_timestamp: Kept from the original batch.
        leader_epoch: Kept from the original batch, as all that follow.
        producer_id: -1 for none.
        producer_epoch: -1 for none.
        base_sequence: -1 for none.
        transactional: Attribute bit 4.
        control: Attribute bit 5.
    """
    return write_batch(
        [],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
        control=control,
        last_offset_delta=last_offset - base_offset,
    )


def _nullable(value: bytes | None) -> bytes:
    return write_varint(-1) if value is None else write_varint(len(value)) + value
