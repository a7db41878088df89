"""Checks that the scanner of batch headers finds the same batches or errors as the readable
parsers, which parse in pure Python.

The facts of a batch are the values that the scanner returns for it, such as offsets and position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from segment_format.errors import (
    CorruptRecordError,
    SegmentFormatError,
    TruncatedBatchError,
    UnsupportedMagicError,
)
from segment_format.kernels.batch_scanner import BatchScanner
from segment_format.record.batch_header import CRC_START, RecordBatchHeader, crc32c
from segment_format.record.control_record import marker_of
from segment_format.record.framing import iter_entries
from segment_format.record.records import iter_batches
from segment_format.testing import SimpleRecord, write_batch
from segment_format.testing.batches import write_message_set
from tests import log_strategies as strategies
from tests.segment_format.kernels.test_equal_to_reference import plain_segments
from tests.segment_format.kernels.yardstick import pieces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from segment_format.kernels.batch_scanner import BatchTable
    from segment_format.testing.log_builder import BuiltLog

MANY = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
Facts = tuple[Any, ...]


def rows(table: BatchTable) -> list[Facts]:
    columns = (
        table.positions,
        table.base_offsets,
        table.last_offsets,
        table.leader_epochs,
        table.crcs,
        table.are_sound,
        table.max_timestamps,
        table.records,
        table.producer_ids,
        table.are_transactional,
        table.are_control,
    )
    return [
        (*(column[row].item() for column in columns), table.markers.get(row))
        for row in range(len(table))
    ]


def scanned(
    data: bytes, cut: Sequence[int] = (), *, start: int = 0, max_batch_bytes: int = 1 << 20
) -> tuple[list[Facts], type | None]:
    """Scans a log with the batch scanner, split into pieces of the sizes in `cut`. Returns the
    facts of all batches, and the class of the error or None.
    """
    scanner = BatchScanner(len(data), max_batch_bytes=max_batch_bytes, start_offset=start)
    batches: list[Facts] = []
    error = None
    try:
        for piece in pieces(data, cut or [1 << 20]):
            for table in scanner.feed(piece):
                batches += rows(table)
        scanner.finish()
    except SegmentFormatError as failure:
        error = type(failure)
    return batches + rows(scanner.rest()), error


def readable(data: bytes, *, start: int = 0) -> tuple[list[Facts], type | None]:
    """Parses a log entry by entry with the readable parsers. Returns the facts of all batches, and
    the class of the error or None.
    """
    facts_of_entries: list[Facts] = []
    try:
        facts_of_entries.extend(  # before the error, if any
            facts(data[entry.position : entry.stop], entry.position, start)
            for entry in iter_entries(data)
        )
    except SegmentFormatError as failure:
        return facts_of_entries, type(failure)
    return facts_of_entries, None


def facts(batch: bytes, position: int, start: int) -> Facts:
    if batch[16] != 2:
        try:
            decoded, is_sound = next(iter_batches(batch)), True
        except SegmentFormatError:
            decoded, is_sound = next(iter_batches(batch, check_crcs=False)), False
        times = [record.timestamp for record in decoded.records]
        counted = sum(record.offset >= start for record in decoded.records)
        offsets = decoded.base_offset, decoded.last_offset
        crc = int.from_bytes(batch[12:16], "big")
        newest = max(times, default=-1)
        return (position, *offsets, -1, crc, is_sound, newest, counted, -1, False, False, None)
    header = RecordBatchHeader.from_bytes(batch)
    is_sound = crc32c(batch[CRC_START:]) == header.crc
    marker, counted = None, header.record_count
    is_cut = header.base_offset < start <= header.last_offset
    if header.is_control_batch:
        if is_sound:
            marker = marker_of(next(iter_batches(batch, check_crcs=False)))
    elif is_cut:
        decoded = next(iter_batches(batch, check_crcs=False))
        counted = sum(record.offset >= start for record in decoded.records)
    return (
        *(position, header.base_offset, header.last_offset, header.partition_leader_epoch),
        *(header.crc, is_sound, header.max_timestamp, counted, header.producer_id),
        *(header.is_transactional, header.is_control_batch, marker),
    )


CUTS = st.lists(st.integers(1, 200), max_size=3)


@MANY
@given(log=strategies.logs(legacy=True), cut=CUTS, skipped_offsets=st.integers(0, 60))
def test_scan_of_generated_log_matches_readable_parsers(
    log: BuiltLog, cut: list[int], skipped_offsets: int
) -> None:
    for segment in log.segments:
        start = segment.base_offset + skipped_offsets
        assert scanned(segment.log, cut, start=start) == readable(segment.log, start=start)


@MANY
@given(data=st.data(), log=strategies.logs(max_steps=6), cut=CUTS)
def test_scan_of_corrupt_log_matches_readable_parsers(
    data: st.DataObject, log: BuiltLog, cut: list[int]
) -> None:
    corrupt = data.draw(strategies.mutations(log.segments[0].log))
    batches, error = scanned(corrupt, cut)
    expected, expected_error = readable(corrupt)
    # Which of two errors is raised depends on whether the scanner sees the end of the entry first.
    assert (batches, error is None) == (expected, expected_error is None)


@pytest.mark.parametrize("path", plain_segments(), ids=lambda path: path.parent.name[:20])
def test_scan_of_broker_log_matches_readable_parsers(path: Any) -> None:  # noqa: ANN401
    data = path.read_bytes()
    assert scanned(data, [4096]) == readable(data)
    assert readable(data)[1] is None


def test_scan_returns_more_batches_than_fit_in_one_table() -> None:
    batch = write_batch([SimpleRecord(b"x")], base_offset=0)
    count = 10_000
    data = np.tile(np.frombuffer(batch, np.uint8), count).reshape(count, -1)
    data[:, :8] = np.arange(count).astype(">i8").view(np.uint8).reshape(-1, 8)
    batches, error = scanned(data.tobytes(), [100_000])
    assert error is None
    assert [row[1] for row in batches] == list(range(count))


def test_scan_raises_at_header_of_too_large_batch() -> None:
    first = write_batch([SimpleRecord(b"x")], base_offset=0)
    large = write_batch([SimpleRecord(bytes(5000))], base_offset=1)
    batches, error = scanned(first + large, [100], max_batch_bytes=1000)
    assert ([row[1] for row in batches], error) == ([0], CorruptRecordError)
    lying = first + large[:8] + (2**31 - 1).to_bytes(4, "big") + large[12:]
    batches, error = scanned(lying, [100], max_batch_bytes=2**31 - 1)
    assert ([row[1] for row in batches], error) == ([0], TruncatedBatchError)
    unknown = first + large[:16] + b"\x03" + large[17:]
    assert scanned(unknown)[1] is UnsupportedMagicError


def test_scan_of_message_set_checks_crc() -> None:
    data = write_message_set([SimpleRecord(b"a"), SimpleRecord(b"b")], base_offset=4, magic=1)
    corrupt = data[:-1] + bytes([data[-1] ^ 1])
    assert [row[5] for row in scanned(corrupt, [3])[0]] == [True, False]
    assert scanned(data, [3]) == readable(data)


def test_scan_of_truncated_log_raises() -> None:
    batch = write_batch([SimpleRecord(b"x")], base_offset=0)
    scanner = BatchScanner(2 * len(batch), max_batch_bytes=1000)
    assert list(scanner.feed(batch)) == []
    with pytest.raises(TruncatedBatchError):
        scanner.finish()
    assert len(scanner.rest()) == 1
