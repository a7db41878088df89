"""Checks that records are validated in the same way as by Kafka's consumer, and that invalid input
raises only errors of `segment_format`.
"""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segment_format.errors import (
    CorruptRecordError,
    CrcMismatchError,
    DecompressionError,
    SegmentFormatError,
    TruncatedBatchError,
    UnsupportedCompressionError,
)
from segment_format.record.framing import iter_entries
from segment_format.record.records import Record, iter_batches
from tests.quick import examples
from tests.segment_format.outcomes import assert_value_or_positioned_error, value_or_error
from tests.segment_format.record.vectors import (
    batch_with_payload,
    kafka_vectors,
    record_set,
    with_crc,
)

V2_NAMES = [v["name"] for v in kafka_vectors()["batches"] if v["batches"][0]["magic"] == 2]
LEGACY_NAMES = [v["name"] for v in kafka_vectors()["batches"] if v["name"] not in V2_NAMES]
ALL_NAMES = V2_NAMES + LEGACY_NAMES


def varint(value: int) -> bytes:
    """Returns the shortest zig-zag varint of a number."""
    raw = (value << 1) ^ (value >> 63)
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def framed(body: bytes) -> bytes:
    return varint(len(body)) + body


MINIMAL_BODY = b"\0\0\0\x01\x01\0"
"""Attributes, timestamp delta 0, offset delta 0, null key, null value, no headers."""


def decode_one(record: bytes) -> Record:
    (batch,) = iter_batches(batch_with_payload(record, codec=0, count=1))
    (decoded,) = batch.records
    return decoded


def test_smallest_record_decodes() -> None:
    decoded = decode_one(framed(MINIMAL_BODY))

    assert (decoded.offset, decoded.timestamp) == (100, 1700000000000)
    assert (decoded.key, decoded.value, decoded.headers) == (None, None, ())


@pytest.mark.parametrize("length", [b"\x01", b"\x03", b"\xff\xff\xff\xff\x0f"])
def test_field_with_negative_length_is_null(length: bytes) -> None:
    decoded = decode_one(framed(b"\0\0\0" + length + length + b"\x02\x02h" + length))

    assert (decoded.key, decoded.value, decoded.headers) == (None, None, (("h", None),))


def test_empty_value_is_not_null() -> None:
    decoded = decode_one(framed(b"\0\0\0\0\0\x02\0\0"))

    assert (decoded.key, decoded.value, decoded.headers) == (b"", b"", (("", b""),))


def test_repeated_header_keys_are_kept_and_invalid_utf8_is_replaced() -> None:
    decoded = decode_one(framed(b"\0\0\0\x01\x01\x04" + b"\x04a\xff\0" + b"\x04a\xff\x02z"))

    assert decoded.headers == (("a�", b""), ("a�", b"z"))


def test_fifth_byte_of_varint_adds_only_four_bits() -> None:
    # Java shifts out the bits after the 32nd.
    decoded = decode_one(framed(b"\0\0\x84\x80\x80\x80\x70" + b"\x01\x01\0"))

    assert decoded.offset == 102


def test_tenth_byte_of_varlong_adds_only_one_bit() -> None:
    decoded = decode_one(framed(b"\0" + b"\x84" + b"\x80" * 8 + b"\x7e" + b"\0\x01\x01\0"))

    assert decoded.timestamp == 1700000000002


def test_offset_and_timestamp_sums_wrap_at_64_bits() -> None:
    decoded = decode_one(framed(b"\0" + b"\xfe" + b"\xff" * 8 + b"\x01" + b"\0\x01\x01\0"))

    assert decoded.timestamp == 1700000000000 + (2**63 - 1) - 2**64


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        framed(b""),
        framed(MINIMAL_BODY[:-1]),
        framed(MINIMAL_BODY + b"\0"),
        framed(MINIMAL_BODY)[:-1],
        framed(MINIMAL_BODY) + b"\0",
        framed(MINIMAL_BODY) + framed(MINIMAL_BODY),
        b"\x01" + MINIMAL_BODY,
        b"\xff\xff\xff\xff\x0f" + MINIMAL_BODY,
        b"\x80" * 5 + b"\x01" + MINIMAL_BODY,
        framed(b"\0" + b"\x80" * 10 + b"\x01" + MINIMAL_BODY[2:]),
        framed(b"\0\0\0\x02\x01\0"),
        framed(b"\0\0\0\x01\x7e\0"),
        framed(b"\0\0\0\x01\x01\x01"),
        framed(b"\0\0\0\x01\x01\x02"),
        framed(b"\0\0\0\x01\x01\xfe\xff\xff\xff\x0f"),
        framed(b"\0\0\0\x01\x01\x02\x01\0"),
        framed(b"\0\0\0\x01\x01\x02\x04h"),
        framed(b"\0\0\0\x01\x01\x02\x02h\x02"),
        framed(b"\0\0\0\x01\x01\x02\x02h\x80"),
    ],
    ids=lambda payload: payload.hex() or "nothing",
)
def test_malformed_record_raises(payload: bytes) -> None:
    batch = batch_with_payload(payload, codec=0, count=1)

    with pytest.raises(CorruptRecordError) as caught:
        list(iter_batches(batch))
    assert caught.value.offset == 100
    assert caught.value.position is not None
    assert 61 <= caught.value.position <= len(batch)


def test_error_position_counts_from_buffer_start() -> None:
    first = record_set("v2-zstd")
    bad = batch_with_payload(framed(MINIMAL_BODY) + b"\0", codec=0, count=1)
    with pytest.raises(CorruptRecordError) as caught:
        list(iter_batches(first + bad))
    assert caught.value.position == len(first) + len(bad) - 1

    bad = batch_with_payload(b"\0" * 20, codec=3, count=1)
    with pytest.raises(DecompressionError) as caught:
        list(iter_batches(first + bad))
    assert (caught.value.position, caught.value.offset) == (len(first), 100)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_undefined_codec_raises(codec: int) -> None:
    with pytest.raises(UnsupportedCompressionError) as caught:
        list(iter_batches(batch_with_payload(b"", codec=codec, count=0)))
    assert caught.value.position == 0


@pytest.mark.parametrize("codec", range(5))
def test_empty_batch_has_no_records(codec: int) -> None:
    (batch,) = iter_batches(batch_with_payload(b"", codec=codec, count=0))

    assert (batch.base_offset, batch.last_offset, batch.records) == (100, 102, ())


def test_huge_counts_and_lengths_in_batches_allocate_no_memory() -> None:
    hostile = [
        batch_with_payload(framed(MINIMAL_BODY), codec=0, count=2**31 - 1),
        batch_with_payload(framed(b"\0\0\0\x01\x01" + varint(2**31 - 1)), codec=0, count=1),
        batch_with_payload(framed(b"\0\0\0" + varint(2**31 - 1)), codec=0, count=1),
        batch_with_payload(varint(2**31 - 1), codec=0, count=1),
        struct.pack(">qiib", 0, 2**31 - 1, 0, 2),
    ]
    tracemalloc.start()
    try:
        for batch in hostile:
            with pytest.raises(CorruptRecordError):
                list(iter_batches(batch))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_decompression_bomb_raises_at_limit() -> None:
    batch = record_set("v2-zstd")
    (decoded,) = iter_batches(batch)
    assert decoded.records

    with pytest.raises(DecompressionError, match="more than 10 bytes"):
        list(iter_batches(batch, max_batch_bytes=10))


@pytest.mark.parametrize("name", ALL_NAMES)
def test_changed_byte_under_checksum_raises(name: str) -> None:
    log = record_set(name)
    covered = [
        position
        for entry in iter_entries(log)
        for position in (
            range(entry.position + 17, entry.stop)
            if entry.magic == 2
            else range(entry.position + 12, entry.stop)
        )
    ]

    for position in covered:
        for change in (0x01, 0x80, 0xFF):
            changed = bytearray(log)
            changed[position] ^= change
            with pytest.raises(CorruptRecordError) as caught:
                list(iter_batches(changed))
            assert caught.value.position in {entry.position for entry in iter_entries(log)}


@pytest.mark.parametrize("name", ALL_NAMES)
def test_changed_crc_byte_raises(name: str) -> None:
    log = record_set(name)
    start = 17 if name in V2_NAMES else 12

    for position in range(start, start + 4):
        for value in range(256):
            if value == log[position]:
                continue
            changed = bytearray(log)
            changed[position] = value
            with pytest.raises(CrcMismatchError):
                list(iter_batches(changed))


@pytest.mark.parametrize("name", ALL_NAMES)
def test_log_truncated_inside_entry_raises_truncated_batch_error(name: str) -> None:
    log = record_set("v2-min") + record_set(name)
    stops = {entry.stop for entry in iter_entries(log)} | {0}

    for size in range(len(log)):
        if size in stops:
            continue
        with pytest.raises(TruncatedBatchError) as caught:
            list(iter_batches(log[:size]))
        assert caught.value.position == max(stop for stop in stops if stop < size)


@pytest.mark.parametrize("name", V2_NAMES)
def test_checksum_check_can_be_disabled(name: str) -> None:
    log = bytearray(record_set(name))
    log[17] ^= 0xFF

    unchecked = [batch.records for batch in iter_batches(log, check_crcs=False)]

    assert unchecked == [batch.records for batch in iter_batches(record_set(name))]


@settings(max_examples=examples(500))
@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_decode_or_raise_with_position(data: bytes, check_crcs: bool) -> None:
    assert_value_or_positioned_error(
        lambda: list(iter_batches(data, check_crcs=check_crcs)), size=len(data)
    )


@settings(max_examples=examples(1000))
@given(st.binary(max_size=120), st.integers(0, 7), st.integers(-2, 6))
def test_any_payload_with_valid_crc_decodes_or_raises(
    payload: bytes, codec: int, count: int
) -> None:
    batch = batch_with_payload(payload, codec=codec, count=count)

    assert_value_or_positioned_error(lambda: list(iter_batches(batch)), size=len(batch))


@settings(max_examples=examples(1000))
@given(st.sampled_from(ALL_NAMES), st.data())
def test_changed_log_without_crc_check_decodes_or_raises(name: str, data: st.DataObject) -> None:
    log = bytearray(record_set(name))
    for _ in range(data.draw(st.integers(1, 5))):
        log[data.draw(st.integers(0, len(log) - 1))] = data.draw(st.integers(0, 255))

    assert_value_or_positioned_error(
        lambda: list(iter_batches(log, check_crcs=False, max_batch_bytes=1 << 20)), size=len(log)
    )


@settings(max_examples=examples(500))
@given(
    st.lists(
        st.builds(
            Record,
            offset=st.integers(0, 2**31 - 1),
            timestamp=st.integers(-(2**63), 2**63 - 1),
            timestamp_type=st.just(0),
            key=st.none() | st.binary(max_size=90),
            value=st.none() | st.binary(max_size=90),
            headers=st.lists(
                st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3
            ).map(tuple),
            sequence=st.just(-1),
            leader_epoch=st.just(7),
        ),
        min_size=1,
        max_size=5,
        unique_by=lambda record: record.offset,
    ).map(lambda records: sorted(records, key=lambda record: record.offset))
)
def test_records_round_trip(records: list[Record]) -> None:
    def nullable(value: bytes | None) -> bytes:
        return b"\x01" if value is None else varint(len(value)) + value

    base_timestamp = 1700000000000
    payload = b""
    for record in records:
        delta = (record.timestamp - base_timestamp + 2**63) % 2**64 - 2**63
        body = b"\0" + varint(delta) + varint(record.offset)
        body += nullable(record.key) + nullable(record.value) + varint(len(record.headers))
        for key, value in record.headers:
            body += nullable(key.encode()) + nullable(value)
        payload += framed(body)

    data = batch_with_payload(
        payload, codec=0, count=len(records), last_offset_delta=records[-1].offset
    )
    (batch,) = iter_batches(data)

    for decoded, record in zip(batch.records, records, strict=True):
        assert decoded.offset == 100 + record.offset
        assert decoded.timestamp == record.timestamp
        assert (decoded.key, decoded.value) == (record.key, record.value)
        assert decoded.headers == record.headers


def test_batch_with_damaged_fields_outside_crc_decodes() -> None:
    """The CRC does not cover the leader epoch, because followers rewrite it."""
    batch = bytearray(record_set("v2-none-createtime"))
    struct.pack_into(">i", batch, 12, -1)

    (decoded,) = iter_batches(batch)

    assert decoded.leader_epoch == -1
    assert {record.leader_epoch for record in decoded.records} == {None}


def test_control_batch_with_delete_horizon_keeps_timestamp() -> None:
    marker = bytearray(record_set("abort"))
    (plain,) = iter_batches(marker)
    horizon = plain.records[0].timestamp + 86_400_000
    struct.pack_into(">h", marker, 21, 0x70)
    struct.pack_into(">q", marker, 27, horizon)
    body = b"\0" + varint(-86_400_000) + b"\0" + bytes(marker[61:])[4:]
    rewritten = with_crc(bytes(marker[:61]) + framed(body))

    (decoded,) = iter_batches(rewritten)

    assert decoded.delete_horizon == horizon
    assert decoded.is_control_batch
    assert decoded.records == plain.records


def test_batch_before_an_incomplete_batch_decodes() -> None:
    """The first batch can be read although the second batch of the log is incomplete."""
    good, bad = record_set("v2-min"), record_set("v2-none-createtime")[:-1]
    batches = iter_batches(good + bad)

    assert next(batches).records
    outcome = value_or_error(lambda: next(batches))
    assert isinstance(outcome, SegmentFormatError)
