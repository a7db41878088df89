from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segment_format.errors import (
    CorruptRecordError,
    SegmentFormatError,
    TruncatedBatchError,
    UnsupportedCompressionError,
    UnsupportedMagicError,
)
from segment_format.record.batch_header import (
    CompressionType,
    RecordBatchHeader,
    TimestampType,
    increment_sequence,
)
from tests.segment_format.outcomes import value_or_error
from tests.segment_format.record.vectors import kafka_vectors, record_set

EMPTY_TRANSACTIONAL = bytes.fromhex(
    "000000000000012c 00000031 00000007 02 54e92395 0010 00000004 ffffffffffffffff"
    "0000018bcfe5692c 0000000000001092 0003 0000000a 00000000"
)


def patched(layout: str, position: int, value: int) -> bytes:
    batch = bytearray(EMPTY_TRANSACTIONAL)
    struct.pack_into(layout, batch, position, value)
    return bytes(batch)


def test_header_of_empty_transactional_batch_parses() -> None:
    header = RecordBatchHeader.from_bytes(b"??" + EMPTY_TRANSACTIONAL, 2)

    assert header == RecordBatchHeader(
        base_offset=300,
        batch_length=49,
        partition_leader_epoch=7,
        magic=2,
        crc=0x54E92395,
        attributes=0x10,
        last_offset_delta=4,
        base_timestamp=-1,
        max_timestamp=1700000000300,
        producer_id=4242,
        producer_epoch=3,
        base_sequence=10,
        record_count=0,
    )
    assert (header.last_offset, header.next_offset, header.size_in_bytes) == (304, 305, 61)
    assert header.compression_type is CompressionType.NONE
    assert header.timestamp_type is TimestampType.CREATE_TIME
    assert header.is_transactional
    assert not header.is_control_batch
    assert not header.has_delete_horizon
    assert header.to_bytes() == EMPTY_TRANSACTIONAL


def test_unused_attribute_bits_of_header_are_ignored() -> None:
    header = RecordBatchHeader.from_bytes(patched(">h", 21, -128 | 0x6B))

    assert header.compression_type is CompressionType.LZ4
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert not header.is_transactional
    assert header.is_control_batch
    assert header.has_delete_horizon


def test_unknown_codec_of_header_raises_on_access() -> None:
    header = RecordBatchHeader.from_bytes(patched(">h", 21, 5))

    with pytest.raises(UnsupportedCompressionError, match="5"):
        _ = header.compression_type


@pytest.mark.parametrize(
    "name", [v["name"] for v in kafka_vectors()["batches"] if v["name"][:2] == "v2"]
)
def test_header_round_trips(name: str) -> None:
    batch = record_set(name)

    assert RecordBatchHeader.from_bytes(batch).to_bytes() == batch[:61]


@pytest.mark.parametrize("size", range(61))
def test_truncated_header_raises_truncated_batch_error(size: int) -> None:
    with pytest.raises(TruncatedBatchError) as caught:
        RecordBatchHeader.from_bytes(EMPTY_TRANSACTIONAL[:size])
    assert caught.value.position == 0


@pytest.mark.parametrize("magic", [-1, 0, 1, 3])
def test_header_with_magic_other_than_2_raises(magic: int) -> None:
    with pytest.raises(UnsupportedMagicError):
        RecordBatchHeader.from_bytes(patched(">b", 16, magic))


@pytest.mark.parametrize(
    ("layout", "position", "value"),
    [
        (">i", 8, 48),
        (">i", 8, -1),
        (">q", 0, -1),
        (">q", 0, 2**63 - 5),
        (">i", 23, -1),
        (">i", 57, -1),
    ],
)
def test_header_with_impossible_fields_raises(layout: str, position: int, value: int) -> None:
    with pytest.raises(CorruptRecordError) as caught:
        RecordBatchHeader.from_bytes(patched(layout, position, value))
    assert caught.value.position == 0


def test_sequence_number_after_the_maximum_is_zero() -> None:
    assert increment_sequence(2**31 - 1, 1) == 0
    assert increment_sequence(2**31 - 3, 5) == 2


@given(st.binary(max_size=80), st.integers(min_value=-5, max_value=90))
def test_header_of_any_bytes_parses_or_raises_with_position(data: bytes, position: int) -> None:
    outcome = value_or_error(lambda: RecordBatchHeader.from_bytes(data, position))

    if isinstance(outcome, SegmentFormatError):
        assert outcome.position == position
    else:
        assert outcome.to_bytes() == data[position : position + 61]
