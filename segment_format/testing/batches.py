"""Writes record batches of magic 2 field by field.

    pos  size  field                          pos  size  field
      0     8  baseOffset                      27     8  baseTimestamp
      8     4  batchLength (bytes after it)    35     8  maxTimestamp
     12     4  partitionLeaderEpoch            43     8  producerId
     16     1  magic 2                         51     2  producerEpoch
     17     4  crc (CRC-32C from 21 on)        53     4  baseSequence
     21     2  attributes                      57     4  record count
     23     4  lastOffsetDelta                 61     -  records, compressed as one stream

Attributes: bits 0-2 codec, 3 LogAppendTime, 4 transactional, 5 control, 6 delete horizon.

A varint has 7 bits per byte, the least significant bits first; signed values are zig-zag encoded.
Payloads are compressed in the form that the Java producer writes:

    gzip    one RFC 1952 member without name and time; operating system 255
    snappy  xerial stream: 82 "SNAPPY" 00, i32 version 1, i32 compatible 1, then (i32 length, raw
            block) per 32 KiB
    lz4     LZ4 frame v1: 64 KiB independent blocks, no checksums, no content size, EndMark
    zstd    one streaming frame without a content size

Source: `DefaultRecordBatch`, `DefaultRecord`, `EndTransactionMarker`, `ByteUtils`,
`org.apache.kafka.common.compress.*Compression`, `Lz4BlockOutputStream` in Kafka.

Message sets of magic 0 and 1 have uncompressed entries, or compressed wrappers of inner entries:

    entry    i64 offset, i32 size (bytes after it), record
    record   u32 crc (CRC-32 of the bytes after it), i8 magic, i8 attributes, [i64 timestamp, only
             in magic 1], i32 key length or -1, key, i32 value length or -1, value

A wrapper's value is the compressed concatenation of inner entries. Inner offsets are absolute in a
wrapper of magic 0, and relative in a wrapper of magic 1. A wrapper's own offset is the offset of
its last inner entry.

Source: `org.apache.kafka.common.record.LegacyRecord`, `AbstractLegacyRecordBatch`.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Unpack


def crc32c(data: bytes) -> int:
    """Returns the unsigned CRC-32C of `data`."""
    import google_crc32c

    return int(google_crc32c.value(data))


_INT32_MASK = (1 << 32) - 1
_INT64_MASK = (1 << 64) - 1


def write_uvarint(value: int) -> bytes:
    """Returns the unsigned varint of `value`.

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
    """Returns the zig-zag varint of a signed 32-bit number. Raises ValueError if `value` does not
    fit.
    """
    if not -(1 << 31) <= value < 1 << 31:
        raise ValueError(f"{value} does not fit into a signed 32-bit varint")
    return write_uvarint(((value << 1) ^ (value >> 31)) & _INT32_MASK)


def write_varlong(value: int) -> bytes:
    """Returns the zig-zag varint of a signed 64-bit number. Raises ValueError if `value` does not
    fit.
    """
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{value} does not fit into a signed 64-bit varint")
    return write_uvarint(((value << 1) ^ (value >> 63)) & _INT64_MASK)


CODEC_NUMBERS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Numbers of the codecs in bits 0-2 of a batch's attributes."""

_XERIAL_HEADER = bytes.fromhex("82534e4150505900" + "00000001" + "00000001")
_XERIAL_BLOCK_BYTES = 32 << 10
_GZIP_HEADER = bytes.fromhex("1f8b08000000000000ff")
_LZ4_HEADER = bytes.fromhex("04224d18" + "6040" + "82")
_LZ4_HEADER_MAGIC_0 = bytes.fromhex("04224d18" + "6040" + "1a")
_LZ4_BLOCK_BYTES = 64 << 10
_LZ4_STORED = 1 << 31
_LZ4_END_MARK = bytes(4)


def codec_number(codec: str) -> int:
    """Returns the number of a codec. Raises ValueError if the name is unknown."""
    try:
        return CODEC_NUMBERS[codec]
    except KeyError:
        raise ValueError(
            f"unknown codec {codec!r}; use one of {', '.join(CODEC_NUMBERS)}"
        ) from None


def compress(codec: str, payload: bytes, *, magic: int = 2) -> bytes:
    """Compresses a payload in the form that the Java producer writes.

    Args:
        codec: none, gzip, snappy, lz4 or zstd.
        payload: The records of one batch, or the inner entries of one legacy wrapper.
        magic: Magic of the batch. With magic 0, the LZ4 header checksum also covers the LZ4 magic.

    Raises:
        ValueError: The codec is unknown, or is zstd with magic 0 or 1.
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
    import pyarrow as pa

    codec = pa.Codec("snappy")
    out = [_XERIAL_HEADER]
    for start in range(0, len(payload), _XERIAL_BLOCK_BYTES):
        block = codec.compress(payload[start : start + _XERIAL_BLOCK_BYTES], asbytes=True)
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
    from segment_format.testing import zstd

    # Compressed as a stream, so that the frame states no content size, as in Java.
    stream = zstd.ZstdCompressor(level=3)
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
"""Type numbers of control records, by name."""

# Values of control records other than ABORT and COMMIT: the version, then the fields, then the
# number of tagged fields, 0.
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
    """One record before it is written to a log.

    Attributes:
        value: Bytes, or None for a null value (a tombstone).
        key: Bytes, or None for a null key, which differs from an empty one.
        headers: (key, value) in order; keys may repeat, values may be None.
        timestamp: Milliseconds since 1970; -1 for no timestamp.
        offset: Absolute offset; None means the offset after the previous record.
    """

    value: bytes | None = None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int = DEFAULT_TIMESTAMP_MS
    offset: int | None = None


class HeaderFields(TypedDict, total=False):
    """Header fields of a batch that `write_batch` and similar functions pass to `frame_batch`
    unchanged.
    """

    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int


def assign_offsets(records: Sequence[SimpleRecord], base_offset: int) -> list[int]:
    """Returns the absolute offset of every record: its attribute `offset` or, if that is None, the
    offset after the previous record (`base_offset` for the first record).

    Raises:
        ValueError: The offsets do not strictly increase from `base_offset`.
    """
    offsets: list[int] = []
    following = base_offset
    for record in records:
        offset = following if record.offset is None else record.offset
        if offset < following:
            raise ValueError(
                f"offset {offset} follows offset {following - 1}, but offsets must increase"
            )
        offsets.append(offset)
        following = offset + 1
    return offsets


def write_batch(
    records: Sequence[SimpleRecord],
    *,
    base_offset: int,
    codec: str = "none",
    timestamp_type: int = CREATE_TIME,
    max_timestamp: int | None = None,
    transactional: bool = False,
    control: bool = False,
    last_offset_delta: int | None = None,
    delete_horizon: int | None = None,
    base_timestamp: int | None = None,
    unused_attributes: int = 0,
    compressor: Callable[[bytes], bytes] | None = None,
    **fields: Unpack[HeaderFields],
) -> bytes:
    """Returns one record batch of magic 2, as in a `.log` file.

    Args:
        records: Records of the batch. A record with an `offset` can leave a hole before it, as
            after compaction.
        base_offset: First offset of the batch as it was produced.
        codec: none, gzip, snappy, lz4 or zstd.
        timestamp_type: `CREATE_TIME` or `LOG_APPEND_TIME`. With `LOG_APPEND_TIME`, readers return
            `max_timestamp` for every record. The records' own timestamps are written, too.
        max_timestamp: Header field; default: the largest timestamp of a record, or -1.
        transactional: Sets attribute bit 4.
        control: Sets attribute bit 5; see `write_control_batch`.
        last_offset_delta: Header field; default: the offset delta of the last record.
        delete_horizon: Milliseconds since 1970. Sets attribute bit 6; replaces `base_timestamp`.
        base_timestamp: Header field; default: the timestamp of the first record, or -1.
        unused_attributes: Attribute bits that readers must ignore: bit 7 and the high byte.
        compressor: Function to use instead of `compress`.
        **fields: See `HeaderFields`.

    Raises:
        ValueError: The codec is unknown, `last_offset_delta` is too low, or offsets are wrong.
        struct.error: A number does not fit its field.
    """
    offsets = assign_offsets(records, base_offset)
    times = [record.timestamp for record in records]
    first_time = delete_horizon if delete_horizon is not None else base_timestamp
    if first_time is None:
        first_time = times[0] if times else NO_TIMESTAMP
    payload = b"".join(
        write_record(record, offset - base_offset, record.timestamp - first_time)
        for record, offset in zip(records, offsets, strict=True)
    )
    flags = (timestamp_type << 3) | (transactional << 4) | (control << 5)
    flags |= ((delete_horizon is not None) << 6) | unused_attributes
    return frame_batch(
        compressor(payload) if compressor is not None else compress(codec, payload),
        base_offset=base_offset,
        attributes=codec_number(codec) | flags,
        last_offset_delta=_last_delta(offsets, base_offset, last_offset_delta),
        base_timestamp=first_time,
        max_timestamp=max(times, default=NO_TIMESTAMP) if max_timestamp is None else max_timestamp,
        record_count=len(records),
        **fields,
    )


def _last_delta(offsets: list[int], base_offset: int, last_offset_delta: int | None) -> int:
    min_delta = offsets[-1] - base_offset if offsets else 0
    if last_offset_delta is None:
        return min_delta
    if last_offset_delta < min_delta:
        raise ValueError(
            f"last_offset_delta {last_offset_delta} is below the offset delta {min_delta} of the "
            "last record"
        )
    return last_offset_delta


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
    """Returns a batch with correct length and checksum. The payload may be invalid.

    Args:
        producer_id: Id of the producer.
        payload: Bytes after the header, already compressed with the codec in `attributes`.
        base_offset: First offset of the batch as it was produced.
        record_count: Number of records that the header states; may differ from the number in the
            payload.
        last_offset_delta: Last offset of the batch minus `base_offset`.
        attributes: All 16 attribute bits.
        leader_epoch: Epoch of the leader that appended the batch, -1 if unknown. The checksum does
            not cover it.
        base_timestamp: Milliseconds since 1970: the base timestamp, or the delete horizon.
        max_timestamp: Milliseconds since 1970.
        producer_epoch: Epoch of the producer. `producer_id`, `producer_epoch` and `base_sequence`
            are -1 without a producer.
        base_sequence: Sequence number of the first record.
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
    """Returns the bytes of one record: length, attributes, the two deltas, key, value and
    headers.
    """
    fields = [
        b"\x00",
        write_varlong(timestamp_delta),
        write_varint(offset_delta),
        _nullable(record.key),
        _nullable(record.value),
        write_varint(len(record.headers)),
    ]
    for key, value in record.headers:
        fields += [_nullable(key.encode()), _nullable(value)]
    body = b"".join(fields)
    return write_varint(len(body)) + body


def write_control_batch(
    kind: str | int,
    *,
    base_offset: int,
    coordinator_epoch: int = 0,
    timestamp: int = DEFAULT_TIMESTAMP_MS,
    transactional: bool = True,
    **fields: Unpack[HeaderFields],
) -> bytes:
    """Returns a control batch, which contains one record.

    Args:
        kind: A name of `CONTROL_TYPES`, or any type number.
        base_offset: Offset of the marker.
        coordinator_epoch: Written in the marker's value.
        timestamp: Milliseconds.
        transactional: True for markers; False for the control records of the metadata log.
        **fields: See `HeaderFields`. The producer epoch may be above the epoch of the producer's
            data batches.
    """
    number = CONTROL_TYPES[kind] if isinstance(kind, str) else kind
    value = _CONTROL_VALUES.get(number, struct.pack(">hi", 0, coordinator_epoch))
    return write_batch(
        [SimpleRecord(value, struct.pack(">hh", 0, number), timestamp=timestamp)],
        base_offset=base_offset,
        transactional=transactional,
        control=True,
        **fields,
    )


def write_empty_batch(
    *,
    base_offset: int,
    last_offset: int,
    max_timestamp: int = NO_TIMESTAMP,
    transactional: bool = False,
    **fields: Unpack[HeaderFields],
) -> bytes:
    """Returns a batch without records. Compaction keeps a producer's last batch in this form.

    Args:
        transactional: Sets attribute bit 4.
        base_offset: First offset of the original batch.
        last_offset: Last offset of the original batch, inclusive.
        max_timestamp: Largest timestamp of the original batch, milliseconds since 1970.
        **fields: See `HeaderFields`.
    """
    return write_batch(
        [],
        base_offset=base_offset,
        max_timestamp=max_timestamp,
        transactional=transactional,
        last_offset_delta=last_offset - base_offset,
        **fields,
    )


def _nullable(value: bytes | None) -> bytes:
    return write_varint(-1) if value is None else write_varint(len(value)) + value


def write_message_set(
    records: Sequence[SimpleRecord],
    *,
    base_offset: int,
    magic: int,
    codec: str = "none",
    timestamp_type: int = CREATE_TIME,
    log_append_time: int = NO_TIMESTAMP,
    inner_magic: int | None = None,
    compressor: Callable[[bytes], bytes] | None = None,
) -> bytes:
    """Returns a legacy message set: one entry per record, or one compressed wrapper.

    Args:
        records: Records without headers. A record with an `offset` can leave a hole before it.
        base_offset: Offset of the first record, unless the record has an `offset`.
        magic: 0 or 1.
        codec: none (one entry per record), gzip, snappy or lz4.
        timestamp_type: Attribute bit 3 of magic 1. With `LOG_APPEND_TIME`, the timestamp of the
            wrapper, or of each uncompressed entry, is `log_append_time`.
        log_append_time: Timestamp for `LOG_APPEND_TIME`, milliseconds since 1970.
        inner_magic: Magic of the entries in a wrapper, if it differs from the wrapper's magic, as
            in KAFKA-4298.
        compressor: Function to use instead of `compress`.

    Raises:
        ValueError: The magic is not 0 or 1, a record has headers, the codec is zstd, or offsets do
            not increase.
    """
    if magic not in (0, 1):
        raise ValueError(f"a message set has magic 0 or 1, not {magic}")
    if any(record.headers for record in records):
        raise ValueError("records of magic 0 and 1 have no headers")
    offsets = assign_offsets(records, base_offset)
    bits = (timestamp_type << 3) if magic == 1 else 0
    times = [record.timestamp for record in records]
    if codec == "none":
        if timestamp_type:
            times = [log_append_time] * len(times)
        return _entries(records, offsets, times, magic, bits)
    first, last = (offsets[0], offsets[-1]) if offsets else (base_offset, base_offset)
    # Magic 0 has absolute offsets in the wrapper, magic 1 relative offsets.
    inner_offsets = offsets if magic == 0 else [offset - first for offset in offsets]
    inner = _entries(records, inner_offsets, times, magic if inner_magic is None else inner_magic)
    packed = compressor(inner) if compressor is not None else compress(codec, inner, magic=magic)
    time = log_append_time if timestamp_type else max(times, default=NO_TIMESTAMP)
    return _entry(last, magic, bits | codec_number(codec), time, None, packed)


def _entries(
    records: Sequence[SimpleRecord],
    offsets: list[int],
    times: list[int],
    magic: int,
    attributes: int = 0,
) -> bytes:
    return b"".join(
        _entry(offset, magic, attributes, time, record.key, record.value)
        for record, offset, time in zip(records, offsets, times, strict=True)
    )


def _entry(
    offset: int, magic: int, attributes: int, timestamp: int, key: bytes | None, value: bytes | None
) -> bytes:
    body = struct.pack(">bb", magic, attributes)
    if magic == 1:
        body += struct.pack(">q", timestamp)
    body += _nullable_32(key) + _nullable_32(value)
    record = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(record)) + record


def _nullable_32(value: bytes | None) -> bytes:
    return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
