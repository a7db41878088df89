"""Tests messages with magic 0 and 1 that the vectors of Kafka do not contain: wrappers, bugs of old
clients, and malformed messages.
"""

from __future__ import annotations

import struct
import zlib

import pytest

from segment_format.errors import (
    CorruptRecordError,
    CrcMismatchError,
    DecompressionError,
    UnsupportedCompressionError,
)
from segment_format.record.batch_header import TimestampType
from segment_format.record.records import DecodedBatch, iter_batches
from segment_format.testing import LOG_APPEND_TIME, SimpleRecord, write_message_set
from tests.segment_format.record.vectors import record_set


def message(
    offset: int,
    magic: int,
    *,
    attributes: int = 0,
    timestamp: int = 0,
    key: bytes | None = None,
    value: bytes | None = None,
    after: bytes = b"",
) -> bytes:
    """Returns one message of magic 0 or 1 as a log entry."""
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    for field in (key, value):
        body += struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field
    record = struct.pack(">I", zlib.crc32(body + after)) + body + after
    return struct.pack(">qi", offset, len(record)) + record


def gzipped(data: bytes) -> bytes:
    return zlib.compress(data, wbits=31)


def decode(log: bytes) -> DecodedBatch:
    (batch,) = iter_batches(log)
    return batch


def test_compacted_wrapper_keeps_relative_offsets() -> None:
    inner = b"".join(message(offset, 1, timestamp=offset, value=b"v") for offset in (0, 3, 4))
    batch = decode(message(1004, 1, attributes=1, timestamp=4, value=gzipped(inner)))

    assert [record.offset for record in batch.records] == [1000, 1003, 1004]
    assert (batch.base_offset, batch.last_offset) == (1000, 1004)
    assert [record.timestamp for record in batch.records] == [0, 3, 4]


def test_wrapper_of_magic_0_has_absolute_offsets() -> None:
    inner = b"".join(message(offset, 0, value=b"v") for offset in (70, 75))
    batch = decode(message(75, 0, attributes=1, value=gzipped(inner)))

    assert [record.offset for record in batch.records] == [70, 75]
    assert {record.timestamp_type for record in batch.records} == {TimestampType.NO_TIMESTAMP_TYPE}
    assert {record.timestamp for record in batch.records} == {-1}


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4"])
def test_magic_0_messages_in_wrapper_of_magic_1_decode(codec: str) -> None:
    """Inner messages of magic 0 get offsets from the wrapper and no timestamp (KAFKA-4298)."""
    log = write_message_set(
        [SimpleRecord(b"a", timestamp=5), SimpleRecord(b"b", timestamp=6)],
        base_offset=50,
        magic=1,
        codec=codec,
        inner_magic=0,
    )

    batch = decode(log)

    assert [record.offset for record in batch.records] == [50, 51]
    assert [record.value for record in batch.records] == [b"a", b"b"]
    assert {record.timestamp for record in batch.records} == {-1}
    assert {record.timestamp_type for record in batch.records} == {TimestampType.NO_TIMESTAMP_TYPE}
    assert batch.timestamp_type is TimestampType.CREATE_TIME


def test_magic_1_messages_in_wrapper_of_magic_0_decode() -> None:
    inner = message(50, 1, timestamp=5, value=b"a") + message(
        51, 1, attributes=8, timestamp=6, value=b"b"
    )
    batch = decode(message(51, 0, attributes=1, value=gzipped(inner)))

    assert [(record.offset, record.timestamp) for record in batch.records] == [(50, 5), (51, 6)]
    assert [record.timestamp_type for record in batch.records] == [
        TimestampType.CREATE_TIME,
        TimestampType.LOG_APPEND_TIME,
    ]


def test_log_append_time_of_wrapper_applies_to_all_records() -> None:
    log = write_message_set(
        [SimpleRecord(b"a", timestamp=5), SimpleRecord(b"b", timestamp=6)],
        base_offset=50,
        magic=1,
        codec="lz4",
        timestamp_type=LOG_APPEND_TIME,
        log_append_time=99,
    )

    assert [(r.timestamp, r.timestamp_type) for r in decode(log).records] == [
        (99, TimestampType.LOG_APPEND_TIME)
    ] * 2


@pytest.mark.parametrize("offset", [0, 1])
def test_wrapper_with_an_offset_below_its_inner_offsets_raises(offset: int) -> None:
    inner = message(offset, 1, value=b"a") + message(offset + 1, 1, value=b"b")
    wrapper = message(offset, 1, attributes=1, value=gzipped(inner))
    with pytest.raises(CorruptRecordError, match=f"above the offset {offset} of the compressed"):
        decode(wrapper)


def test_truncated_last_inner_message_is_ignored() -> None:
    inner = message(0, 1, value=b"a") + message(1, 1, value=b"b") + message(2, 1, value=b"c")[:-1]
    batch = decode(message(61, 1, attributes=1, value=gzipped(inner)))

    assert [(record.offset, record.value) for record in batch.records] == [(60, b"a"), (61, b"b")]


@pytest.mark.parametrize(
    "log",
    [
        message(5, 1, attributes=1, value=None),
        message(5, 1, attributes=1, value=gzipped(b"")),
        message(5, 1, attributes=1, value=gzipped(message(0, 1, value=b"a")[:-1])),
        message(
            5,
            1,
            attributes=1,
            value=gzipped(message(0, 1, attributes=1, value=gzipped(message(0, 1)))),
        ),
        message(5, 1, attributes=1, value=gzipped(record_set("v2-min"))),
        message(5, 1, attributes=1, value=gzipped(bytes(40))),
        message(-1, 1, value=b"a"),
    ],
    ids=[
        "null value",
        "empty",
        "first message truncated",
        "nested",
        "magic 2 inside",
        "zeros",
        "negative offset",
    ],
)
def test_malformed_legacy_message_raises_at_its_position(log: bytes) -> None:
    log = record_set("v1-none") + log

    with pytest.raises(CorruptRecordError) as caught:
        list(iter_batches(log))
    assert caught.value.position == len(record_set("v1-none"))


@pytest.mark.parametrize("magic", [0, 1])
def test_zstd_before_magic_2_raises(magic: int) -> None:
    with pytest.raises(UnsupportedCompressionError):
        decode(message(5, magic, attributes=4, value=b""))


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codec_raises(magic: int, codec: int) -> None:
    with pytest.raises(UnsupportedCompressionError):
        decode(message(5, magic, attributes=codec, value=b""))


def test_wrong_inner_checksum_raises() -> None:
    inner = bytearray(message(0, 1, value=b"a"))
    inner[-1] ^= 1
    log = message(60, 1, attributes=1, value=gzipped(bytes(inner)))

    with pytest.raises(CrcMismatchError):
        decode(log)
    (batch,) = iter_batches(log, check_crcs=False)
    assert batch.records[0].offset == 60


@pytest.mark.parametrize("magic", [0, 1])
def test_length_that_exceeds_the_message_raises(magic: int) -> None:
    log = bytearray(message(5, magic, key=b"key", value=b"value"))
    key_at = 18 + 8 * magic
    for size in (2**31 - 1, 13):
        struct.pack_into(">i", log, key_at, size)
        with pytest.raises(CorruptRecordError):
            list(iter_batches(log, check_crcs=False))


def test_old_lz4_header_checksum_is_accepted_only_in_magic_0() -> None:
    old = write_message_set([SimpleRecord(b"a" * 50)], base_offset=5, magic=0, codec="lz4")
    assert bytes.fromhex("04224d1860401a") in old
    assert decode(old).records[0].value == b"a" * 50

    frame = old[old.index(bytes.fromhex("04224d18")) :]
    with pytest.raises(DecompressionError, match="header checksum"):
        decode(message(5, 1, attributes=3, value=frame))


def test_decompression_bomb_in_message_raises_at_limit() -> None:
    log = message(5, 1, attributes=1, value=gzipped(bytes(10 << 20)))

    with pytest.raises(DecompressionError, match="more than 1000 bytes"):
        list(iter_batches(log, max_batch_bytes=1000))


def test_log_with_magic_0_and_1_and_2_decodes() -> None:
    log = record_set("v0-gzip") + record_set("v1-none") + record_set("v2-lz4")

    assert [batch.magic for batch in iter_batches(log)] == [0, 1, 1, 1, 2]
