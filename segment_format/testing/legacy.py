"""Writes message sets of magic 0 and 1: uncompressed entries, and compressed wrappers of inner
entries.

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
from typing import TYPE_CHECKING

from segment_format.testing.batches import (
    CREATE_TIME,
    NO_TIMESTAMP,
    SimpleRecord,
    assign_offsets,
    codec_number,
    compress,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def write_message_set(
    records: Sequence[SimpleRecord],
    *,
    base_offset: int,
    magic: int,
    codec: str = "none",
    timestamp_type: int = CREATE_TIME,
    log_append_time: int = NO_TIMESTAMP,
    inner_magic: int | None = None,
    inner_base_offset: int | None = None,
    wrapper_offset: int | None = None,
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
        inner_base_offset: Offset of the first inner entry. None means the offset of the first
            record for magic 0 (absolute offsets), and 0 for magic 1 (relative offsets).
        wrapper_offset: The wrapper's offset; None means the offset of the last record.
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
    first = offsets[0] if offsets else base_offset
    if inner_base_offset is None:
        inner_base_offset = first if magic == 0 else 0
    inner_offsets = [offset - first + inner_base_offset for offset in offsets]
    inner = _entries(records, inner_offsets, times, magic if inner_magic is None else inner_magic)
    packed = compressor(inner) if compressor is not None else compress(codec, inner, magic=magic)
    time = log_append_time if timestamp_type else max(times, default=NO_TIMESTAMP)
    if wrapper_offset is None:
        wrapper_offset = offsets[-1] if offsets else base_offset
    return _entry(wrapper_offset, magic, bits | codec_number(codec), time, None, packed)


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
    body += _nullable(key) + _nullable(value)
    record = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(record)) + record


def _nullable(value: bytes | None) -> bytes:
    return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
