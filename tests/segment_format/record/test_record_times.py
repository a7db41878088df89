"""Compares `iter_record_times` with the offsets and timestamps of the readable decoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segment_format.errors import CorruptRecordError, CrcMismatchError, SegmentFormatError
from segment_format.record.batch_header import CRC_START, crc32c
from segment_format.record.records import iter_batches, iter_record_times
from segment_format.testing.batches import SimpleRecord, write_batch
from tests import log_strategies as strategies
from tests.golden_data import TIER

if TYPE_CHECKING:
    from pathlib import Path

    from segment_format.testing.log_builder import BuiltLog
    from segment_format.testing.segment import SegmentFiles

ALL = -(2**63)


def expected(data: bytes, dated_from_ms: int) -> list[tuple[int, int]]:
    return [
        (record.offset, record.timestamp)
        for batch in iter_batches(data)
        if batch.magic < 2 or not -1 < batch.max_timestamp < dated_from_ms
        for record in batch.records
    ]


def record_times(data: bytes, dated_from_ms: int) -> list[tuple[int, int]]:
    entries = iter_record_times(data, dated_from_ms=dated_from_ms)
    return [pair for entry in entries for pair in entry.times]


@settings(max_examples=80, deadline=None)
@given(st.data(), strategies.logs(legacy=True) | strategies.logs())
def test_record_times_of_any_log_match_decoder(data: st.DataObject, log: BuiltLog) -> None:
    for segment in log.segments:
        times = sorted({time for _, time in expected(segment.log, ALL)})
        for moment in (ALL, 0, data.draw(st.sampled_from(times or [0]))):
            assert record_times(segment.log, moment) == expected(segment.log, moment)


def raw_logs() -> list[Path]:
    """Returns the paths of the stored logs that are neither compressed nor encrypted."""
    plain = []
    for path in sorted(TIER.rglob("*.log")):
        data = path.read_bytes()
        try:
            next(iter_batches(data))
        except SegmentFormatError:
            continue  # compressed or encrypted chunks
        plain.append(path)
    return plain


def test_record_times_of_golden_segments_match_decoder() -> None:
    paths = raw_logs()
    assert len(paths) > 50
    for path in paths:
        data = path.read_bytes()
        assert record_times(data, ALL) == expected(data, ALL)


@settings(max_examples=80, deadline=None)
@given(st.data(), strategies.segments())
def test_record_times_of_damaged_log_match_decoder_or_raise(
    data: st.DataObject, segment: SegmentFiles
) -> None:
    spoilt = data.draw(strategies.mutations(segment.log))
    try:
        expected_times = expected(spoilt, ALL)
    except SegmentFormatError:
        with pytest.raises(SegmentFormatError):
            record_times(spoilt, ALL)
    else:
        assert record_times(spoilt, ALL) == expected_times


def sealed(data: bytearray) -> bytes:
    """Returns the batch after correcting its checksum."""
    data[17:21] = crc32c(bytes(data[CRC_START:])).to_bytes(4, "big")
    return bytes(data)


BATCH = write_batch([SimpleRecord(None, b"abc", timestamp=5 + n) for n in range(3)], base_offset=7)
FIRST_RECORD = 61


def test_wrong_checksum_raises_before_times() -> None:
    data = bytearray(BATCH)
    data[-1] ^= 1
    with pytest.raises(CrcMismatchError):
        next(iter_record_times(bytes(data), dated_from_ms=ALL))
    with pytest.raises(CrcMismatchError):
        record_times(bytes(data), 100)  # even for a batch that the timestamp filter would skip


@pytest.mark.parametrize("length", [0, 5, 127, 1 << 7])
def test_impossible_record_length_raises(length: int) -> None:
    data = bytearray(BATCH)
    assert data[FIRST_RECORD] == 2 * 9  # nine bytes, zigzag
    data[FIRST_RECORD] = 2 * length & 0xFF
    with pytest.raises(CorruptRecordError):
        expected(sealed(data), ALL)
    with pytest.raises(CorruptRecordError, match="record") as caught:
        record_times(sealed(data), ALL)
    assert (caught.value.position, caught.value.offset) == (0, 7)


@pytest.mark.parametrize("count", [2, 4])
def test_wrong_record_count_raises(count: int) -> None:
    data = bytearray(BATCH)
    data[57:61] = count.to_bytes(4, "big")
    data[23:27] = (count - 1).to_bytes(4, "big")
    with pytest.raises(CorruptRecordError):
        record_times(sealed(data), ALL)


def test_times_before_an_invalid_record_are_yielded() -> None:
    data = bytearray(BATCH)
    second_record = FIRST_RECORD + 10
    assert data[second_record] == 2 * 9  # nine bytes, zigzag
    data[second_record] = 0
    (entry,) = iter_record_times(sealed(data), dated_from_ms=ALL)
    assert next(entry.times) == (7, 5)
    with pytest.raises(CorruptRecordError, match="a record states 0 bytes"):
        next(entry.times)


def test_fields_that_exceed_their_record_raise() -> None:
    data = bytearray(BATCH)
    data[FIRST_RECORD] = 2 * 6
    data[FIRST_RECORD + 2 : FIRST_RECORD + 8] = b"\x80" * 5 + b"\x00"  # timestamp of six bytes
    with pytest.raises(CorruptRecordError):
        expected(sealed(data), ALL)
    with pytest.raises(CorruptRecordError, match="exceed its 6 bytes"):
        record_times(sealed(data), ALL)
