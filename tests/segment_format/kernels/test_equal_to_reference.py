"""Checks that the kernels and the readable decoder return the same rows or errors for any bytes."""

from __future__ import annotations

import base64
import functools
import json
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from segment_format.arrow import RecordDecoder
from segment_format.errors import CrcMismatchError
from segment_format.isolation import AbortedIntervals
from segment_format.record.batch_header import TimestampType, crc32c
from segment_format.record.framing import iter_entries
from segment_format.record.records import iter_batches
from segment_format.testing import SimpleRecord, frame_batch, write_batch
from segment_format.testing.batches import write_message_set
from tests import log_strategies as strategies
from tests.golden_data import LOCAL_TIER, TIER, VECTORS
from tests.quick import examples
from tests.segment_format.kernels.yardstick import (
    ALL_COLUMNS,
    START,
    actual,
    decode_pieces,
    expected,
    rows_of,
)

if TYPE_CHECKING:
    from pathlib import Path

    from segment_format.testing.log_builder import BuiltLog
    from tests.segment_format.kernels.yardstick import Row

CUTS = st.lists(st.integers(1, 200), max_size=3).map(tuple)
_CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large]
SLOW = settings(deadline=None, suppress_health_check=_CHECKS)
MANY = settings(deadline=None, suppress_health_check=_CHECKS, max_examples=examples(120))


@functools.cache
def vectors() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((VECTORS / "kafka-vectors.json").read_text())
    return document


def plain_segments() -> list[Path]:
    """Returns the paths of uncompressed, unencrypted logs in the golden tiers."""
    plain = []
    for manifest in sorted(TIER.rglob("*.rsm-manifest")):
        document = json.loads(manifest.read_text())
        if not document["compression"] and "encryption" not in document:
            plain.append(manifest.with_suffix(".log"))
    return plain + sorted((LOCAL_TIER / "tier").rglob("*.log"))


@pytest.mark.parametrize("cut", [(), (1,), (7, 50)])
def test_decoder_matches_reference_on_golden_batches(cut: tuple[int, ...]) -> None:
    for vector in vectors()["batches"]:
        data = bytes.fromhex(vector["hex"])
        rows = actual(data, cut=cut)
        assert rows == expected(data), vector["name"]
        assert [row[2] for row in rows] == [
            record["offset"]
            for batch in vector["batches"]
            if not batch["control"]
            for record in batch["records"]
        ]


def test_decoder_matches_reference_on_codec_payloads_of_all_clients() -> None:
    numbers = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
    accepted = 0
    for case in vectors()["codec"]:
        data = frame_batch(
            bytes.fromhex(case["payload"]),
            base_offset=100,
            record_count=case["declared_count"],
            last_offset_delta=2,
            attributes=numbers[case["codec"]],
            base_timestamp=1_700_000_000_000,
        )
        outcome = actual(data)
        assert outcome == expected(data), (case["codec"], case["case"])
        accepted += isinstance(outcome, list)
    assert 0 < accepted < len(vectors()["codec"])


def test_decoder_matches_reference_on_broker_segments() -> None:
    segments = plain_segments()
    assert len(segments) > 90
    total = 0
    for path in segments:
        data = path.read_bytes()
        rows = actual(data)
        assert rows == expected(data), path
        total += len(rows)
    assert total > 50_000


def test_rows_of_topic_codecs_match_kafka_consumer() -> None:
    """Compares the rows of topic `codecs` with the rows that Kafka's consumer read."""
    table = pq.read_table(LOCAL_TIER / "expected" / "codecs.parquet")
    table = table.filter(table["in_tier"])
    rows = []
    for partition in sorted(set(table["partition"].to_pylist())):
        folders = list((LOCAL_TIER / "tier").rglob(f"codecs-{partition}-*"))
        for path in sorted(path for folder in folders for path in folder.glob("*.log")):
            rows += [
                (partition, *row[:6]) for row in actual(path.read_bytes()) if isinstance(row, tuple)
            ]
    expected_rows = [
        (
            row["partition"],
            row["key"],
            row["value"],
            row["offset"],
            row["timestamp_ms"] * 1000,
            row["timestamp_type"],
            [
                tuple(header) if not isinstance(header, dict) else tuple(header.values())
                for header in row["headers"]
            ],
        )
        for row in table.sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist()
    ]
    assert rows == expected_rows


def test_decoder_matches_reference_on_golden_transaction_logs() -> None:
    document = json.loads((VECTORS / "kafka-txn-goldens.json").read_text())
    for log in document["logs"]:
        data = b"".join(
            base64.b64decode(content)
            for name, content in sorted(log["files"].items())
            if name.endswith(".log")
        )
        assert actual(data, cut=(997,)) == expected(data)


@SLOW
@given(strategies.logs(legacy=True) | strategies.logs(), CUTS, st.integers(1, 5))
def test_decoder_matches_reference_on_generated_logs(
    log: BuiltLog, cut: tuple[int, ...], max_rows: int
) -> None:
    data = b"".join(segment.log for segment in log.segments)
    rows = actual(data, cut=cut, max_rows=max_rows)
    assert rows == expected(data)
    assert [row[2] for row in rows] == [row.offset for row in log.rows("read_uncommitted")]


@SLOW
@given(st.data())
def test_decoder_matches_reference_on_offset_ranges_with_aborted_transactions(
    data: st.DataObject,
) -> None:
    log = data.draw(strategies.logs())
    stored = b"".join(segment.log for segment in log.segments)
    first, last = log.segments[0].base_offset, log.segments[-1].next_offset
    start = data.draw(st.integers(first - 1, last + 1))
    stop = data.draw(st.integers(first - 1, last + 1))
    bounds = data.draw(
        st.lists(st.tuples(st.sampled_from([0, 7, 4242]), st.integers(first, last)), max_size=4)
    )
    aborted = AbortedIntervals.from_txns(
        [_txn(producer_id, offset, min(offset + 9, last)) for producer_id, offset in bounds],
        start_offset=start,
        stop_offset=stop,
    )
    options: dict[str, Any] = {"start_offset": start, "stop_offset": stop, "aborted": aborted}
    assert actual(stored, cut=data.draw(CUTS), **options) == expected(stored, **options)


@MANY
@given(st.data())
def test_first_timestamp_skips_only_batches_without_matching_rows(
    data: st.DataObject,
) -> None:
    log = data.draw(strategies.logs(legacy=data.draw(st.booleans())))
    stored = b"".join(segment.log for segment in log.segments)
    everything = expected(stored)
    assert isinstance(everything, list)
    batches = [batch for batch in iter_batches(stored) if not batch.is_control_batch]
    stamps = [record.timestamp for batch in batches for record in batch.records]
    near = st.sampled_from([0, *stamps]).flatmap(lambda stamp: st.integers(stamp - 1, stamp + 1))
    first = data.draw(near)
    last = data.draw(near)
    decoder = RecordDecoder(
        columns=ALL_COLUMNS, start_offset=START, first_timestamp=first, last_timestamp=last
    )
    selected = rows_of(decode_pieces(decoder, [stored]))

    def dated(rows: list[Row]) -> list[Row]:
        return [row for row in rows if first * 1000 <= row[3] <= last * 1000]

    assert dated(selected) == dated(everything)
    # Batches are skipped only if their header proves that no row matches.
    late = TimestampType.LOG_APPEND_TIME
    needless = [
        batch
        for batch in batches
        if batch.magic == 2 and batch.records and batch.max_timestamp != -1
        if batch.max_timestamp < first
        or (batch.timestamp_type == late and batch.max_timestamp > last)
    ]
    assert decoder.counters.batches_skipped_timestamp == len(needless)
    assert len(selected) == len(everything) - sum(len(batch.records) for batch in needless)


def test_batch_skipped_by_timestamp_has_its_checksum_verified() -> None:
    data = bytearray(write_batch([SimpleRecord(b"a", timestamp=1000)], base_offset=0))
    assert actual(bytes(data), first_timestamp=1000) == expected(bytes(data))
    assert actual(bytes(data), first_timestamp=1001) == []
    data[35 + 6] ^= 3  # part of the largest timestamp
    assert actual(bytes(data), first_timestamp=1001) == CrcMismatchError.__name__


def _txn(producer_id: int, first: int, last: int) -> Any:  # noqa: ANN401
    from segment_format.index.transaction_index import AbortedTxn

    return AbortedTxn(producer_id, first, last, last)


@MANY
@given(
    st.lists(
        st.tuples(
            st.integers(0, 40) | st.integers(0, 9000),  # value size in bytes
            st.sampled_from([0, 1, 63, 64, 127, 8191, 8192, 10**7, -1, -64, -65]),
            st.sampled_from([1, 1, 1, 2, 60, 64, 8192, 10**6]),  # step from the previous offset
        ),
        max_size=120,
    ),
    st.integers(1, 40),
    st.data(),
)
def test_decoder_matches_reference_if_only_offsets_are_read(
    shapes: list[tuple[int, int, int]], max_rows: int, data: st.DataObject
) -> None:
    offset = 100
    records = []
    for size, delta, step in shapes:
        offset += step
        records.append(SimpleRecord(bytes(size), timestamp=10**12 + delta, offset=offset))
    stored = write_batch(records, base_offset=100) + write_batch(
        [SimpleRecord(b"")] * 3, base_offset=offset + 1
    )
    start = data.draw(st.integers(90, offset + 5))
    stop = data.draw(st.integers(90, offset + 5))
    options: dict[str, Any] = {"start_offset": start, "stop_offset": stop}
    rows = actual(stored, columns=("offset",), max_rows=max_rows, **options)
    expected_rows = expected(stored, **options)
    assert isinstance(expected_rows, list)
    assert rows == [(row[2],) for row in expected_rows]


@SLOW
@given(st.data(), CUTS, st.booleans())
def test_decoder_matches_reference_on_corrupt_logs(
    data: st.DataObject, cut: tuple[int, ...], check_crcs: bool
) -> None:
    log = data.draw(strategies.logs(max_steps=4, legacy=data.draw(st.booleans())))
    stored = data.draw(strategies.mutations(b"".join(segment.log for segment in log.segments)))
    assert actual(stored, cut=cut, check_crcs=check_crcs) == expected(stored, check_crcs=check_crcs)


@pytest.mark.parametrize("cut", [(), (7,)])
@pytest.mark.parametrize("stored", [1, 16, 17, 60, -1])
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_corrupt_skipped_entry_is_reported_before_later_truncated_entry(
    magic: int, stored: int, cut: tuple[int, ...]
) -> None:
    records = [SimpleRecord(bytes(60))]
    entries = [
        write_batch(records, base_offset=base)
        if magic == 2
        else write_message_set(records, base_offset=base, magic=magic)
        for base in (4, 5)
    ]
    broken = entries[0][:-1] + b"\1"
    for first, error in ((entries[0], "TruncatedBatchError"), (broken, "CrcMismatchError")):
        data = first + entries[1][:stored]
        assert actual(data, start_offset=5, cut=cut) == error
        assert expected(data, start_offset=5) == error


@MANY
@given(st.data())
def test_decoder_matches_reference_on_corrupt_records_with_valid_checksum(
    data: st.DataObject,
) -> None:
    """The checksum of the batch is valid, so only the record decoder can reject the corrupt
    records.
    """
    case = data.draw(
        strategies.batches(codec=st.sampled_from(["none", "none", "lz4", "snappy", "zstd"]))
    )
    changed = bytearray(case.data)
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(21, len(changed) - 1))
        changed[position] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0x81, 0xFF]) | BYTES)
    changed[17:21] = crc32c(bytes(changed[21:])).to_bytes(4, "big")
    assert actual(bytes(changed)) == expected(bytes(changed))


BYTES = st.integers(0, 255)


@MANY
@given(st.binary(max_size=80), st.integers(0, 5))
def test_decoder_matches_reference_on_random_record_bytes(payload: bytes, count: int) -> None:
    data = frame_batch(payload, base_offset=7, record_count=count, last_offset_delta=4)
    assert actual(data) == expected(data)


@pytest.mark.parametrize(
    "length",
    [
        b"\x80\x80\x80\x80\x80\x01",  # six bytes
        b"\x92\x80\x80\x80\x70",  # the fifth byte has bits beyond 32
        b"\xff\xff\xff\xff\x0f",  # −2147483648
        b"\xfe\xff\xff\xff\x0f",  # 2147483647
        b"\x80",
        b"",
    ],
)
def test_decoder_matches_reference_on_invalid_record_lengths(length: bytes) -> None:
    record = b"\x00\x00\x00\x01\x01\x00"
    for payload in (
        length + record + b"\x01\x01\x00",
        b"\x12\x00\x00\x00" + length + b"\x01\x00",
        b"\x0e\x00\x00\x00\x01" + length + b"\x00",
        b"\x0e\x00\x00\x00\x01\x01" + length,
        b"\x0e\x00" + length + b"\x00\x01\x01\x00",
        b"\x10\x00\x00\x00\x01\x01\x02" + length + b"\x01",
        b"\x10\x00\x00\x00\x01\x01\x02\x00" + length,
    ):
        data = frame_batch(payload, base_offset=7, record_count=1, last_offset_delta=0)
        assert actual(data) == expected(data)


@SLOW
@given(st.binary(max_size=40), st.binary(max_size=3) | st.none())
@example(b"\xf0\x9f\x98\x00", None)  # the replacement character has the same length
def test_decoder_matches_reference_on_header_keys_with_invalid_utf8(
    key: bytes, value: bytes | None
) -> None:
    stored = b"\x01" if value is None else bytes([2 * len(value)]) + value
    body = b"\x00\x00\x00\x01\x01\x02" + bytes([len(key) << 1 & 0x7F | 0x80, len(key) >> 6]) + key
    body += stored
    payload = bytes([len(body) << 1 & 0x7F | 0x80, len(body) >> 6]) + body
    data = frame_batch(payload, base_offset=7, record_count=1, last_offset_delta=0)
    rows = actual(data)
    assert rows == expected(data)
    assert rows[0][5] == [(key.decode("utf-8", "replace"), value)]


def test_batch_with_flipped_byte_under_checksum_raises() -> None:
    for vector in vectors()["batches"]:
        data = bytes.fromhex(vector["hex"])
        for entry in iter_entries(data):
            for position in range(entry.position + (21 if entry.magic == 2 else 16), entry.stop):
                changed = data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :]
                assert isinstance(actual(changed), str), (vector["name"], position)


def test_rows_of_different_batches_differ() -> None:
    """If different bytes gave the same rows, the comparisons in this module would prove nothing."""
    first, two = (bytes.fromhex(vectors()["batches"][index]["hex"]) for index in (0, 2))
    assert actual(first) != actual(two)
    assert rows_of([]) == []
