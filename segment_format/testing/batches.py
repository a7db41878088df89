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

CRC-32C (Castagnoli) of record batches and producer snapshots, by the C library.

Varints as Kafka writes them: 7 bits a byte, least significant first, zig-zag for signed values.

Source: `org.apache.kafka.common.utils.ByteUtils`.

Payload compression with the framing that the Java producer writes.

    gzip    one RFC 1952 member, no name, no time, operating system 255
    snappy  xerial stream: 82 "SNAPPY" 00, i32 version 1, i32 compatible 1, then (i32 length, raw
            block) per 32 KiB
    lz4     LZ4 frame v1: 64 KiB independent blocks, no checksums, no content size, EndMark
    zstd    one streaming frame without a content size

Source: `org.apache.kafka.common.compress.*Compression`, `Lz4BlockOutputStream`.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def crc32c(data: bytes) -> int:
    """CRC-32C of `data`, unsigned; `Some String` gives 608512271."""
    import google_crc32c

    return int(google_crc32c.value(data))


_INT32_MASK = (1 << 32) - 1
_INT64_MASK = (1 << 64) - 1


def write_uvarint(value: int) -> bytes:
    """The unsigned varint of `value`.

    Raises:
        ValueError: `value` is negative.
    """
    if value < 0:
        raise ValueError(f"an unsigned varint cannot hold {value}")
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_varint(value: int) -> bytes:
    """The zig-zag varint of a 32-bit `value`: at most 5 bytes.

    Raises:
        ValueError: `value` does not fit 32 signed bits.
    """
    if not -(1 << 31) <= value < 1 << 31:
        raise ValueError(f"{value} does not fit 32 bits")
    return write_uvarint(((value << 1) ^ (value >> 31)) & _INT32_MASK)


def write_varlong(value: int) -> bytes:
    """The zig-zag varint of a 64-bit `value`: at most 10 bytes.

    Raises:
        ValueError: `value` does not fit 64 signed bits.
    """
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{value} does not fit 64 bits")
    return write_uvarint(((value << 1) ^ (value >> 63)) & _INT64_MASK)


CODEC_NUMBERS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Codec name -> the number in bits 0-2 of a batch's attributes."""

_XERIAL_HEADER = bytes.fromhex("82534e4150505900" + "00000001" + "00000001")
_XERIAL_BLOCK_BYTES = 32 << 10
_GZIP_HEADER = bytes.fromhex("1f8b08000000000000ff")
_LZ4_HEADER = bytes.fromhex("04224d18" + "6040" + "82")
_LZ4_HEADER_MAGIC_0 = bytes.fromhex("04224d18" + "6040" + "1a")
_LZ4_BLOCK_BYTES = 64 << 10
_LZ4_STORED = 1 << 31
_LZ4_END_MARK = bytes(4)


def codec_number(codec: str) -> int:
    """The number of the codec called `codec`.

    Raises:
        ValueError: Kafka has no codec of that name.
    """
    try:
        return CODEC_NUMBERS[codec]
    except KeyError:
        raise ValueError(f"codec {codec!r} is none of {', '.join(CODEC_NUMBERS)}") from None


def compress(codec: str, payload: bytes, *, magic: int = 2) -> bytes:
    """`payload` as the Java producer would store it.

    Args:
        codec: none, gzip, snappy, lz4 or zstd.
        payload: The records of one batch, or the inner entries of one legacy wrapper.
        magic: Magic of the batch; magic 0 has the old LZ4 header checksum, and magic 0 and 1 know
            no zstd.

    Raises:
        ValueError: Unknown codec, or zstd with magic 0 or 1.
    """
    if magic < 2 and codec == "zstd":
        raise ValueError("message sets of magic 0 and 1 cannot use zstd")
    if codec == "none":
        return payload
    if codec == "gzip":
        return _gzip(payload)
    if codec == "snappy":
        return _snappy(payload)
    if codec == "lz4":
        return _lz4(payload, magic)
    codec_number(codec)
    return _zstd(payload)


def _gzip(payload: bytes) -> bytes:
    deflate = zlib.compressobj(wbits=-15)
    body = deflate.compress(payload) + deflate.flush()
    trailer = struct.pack("<II", zlib.crc32(payload), len(payload) & 0xFFFFFFFF)
    return _GZIP_HEADER + body + trailer


def _snappy(payload: bytes) -> bytes:
    import cramjam

    out = [_XERIAL_HEADER]
    for start in range(0, len(payload), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(payload[start : start + _XERIAL_BLOCK_BYTES]))
        out += [struct.pack(">i", len(block)), block]
    return b"".join(out)


def _lz4(payload: bytes, magic: int) -> bytes:
    import lz4.block

    out = [_LZ4_HEADER_MAGIC_0 if magic == 0 else _LZ4_HEADER]
    for start in range(0, len(payload), _LZ4_BLOCK_BYTES):
        block = payload[start : start + _LZ4_BLOCK_BYTES]
        packed = lz4.block.compress(block, store_size=False)
        if len(packed) < len(block):
            out += [struct.pack("<I", len(packed)), packed]
        else:
            out += [struct.pack("<I", len(block) | _LZ4_STORED), block]
    out.append(_LZ4_END_MARK)
    return b"".join(out)


def _zstd(payload: bytes) -> bytes:
    import zstandard

    # A streaming object does not know the size beforehand, so the frame states none: as in Java.
    stream = zstandard.ZstdCompressor(level=3).compressobj()
    return stream.compress(payload) + stream.flush()


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
