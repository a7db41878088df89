"""Checks that scans with a damaged time index lose no rows, because they check the log."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kts_source
from kts_source.errors import TieredKafkaError
from segment_format.errors import SegmentFormatError
from segment_format.record.recovery import max_timestamps_from
from segment_format.testing import AivenTierWriter, LocalTierWriter, LogBuilder, SimpleRecord
from segment_format.testing.batches import write_message_set
from tests.kts_source.planning.written_logs import find_index_key, read, write_log
from tests.quick import only

if TYPE_CHECKING:
    from collections.abc import Callable

    from segment_format.testing import BuiltLog

FIRST_MS = 1_700_000_000_000


def build_log(seed: int) -> BuiltLog:
    """Builds three segments with mostly ascending timestamps, and indexes with many entries."""
    source = random.Random(seed)
    builder = LogBuilder(index_interval_bytes=source.choice((0, 150)))
    for segment in range(3):
        for batch in range(12):
            timestamp = FIRST_MS + 1000 * (60 * segment + 5 * batch)
            late = source.choice((0, 0, 0, 40_000, -30_000))
            builder.append(
                [SimpleRecord(b"v", timestamp=timestamp + 1000 * n + late) for n in range(5)]
            )
        builder.roll()
    return builder.build()


def find_largest(
    read: Callable[[int, int], bytes], log: bytes, position: int, offset: int
) -> int | None:
    """Returns the largest timestamp of the batch that contains `offset`. Searches the log from byte
    `position` on, and returns `None` if it finds no such batch.
    """
    return next(max_timestamps_from(read, len(log), position, offset), None)


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("seed", only(1, range(4)))
def test_flipped_bit_of_time_index_loses_no_row(seed: int, local: bool) -> None:
    log = build_log(seed)
    objects = write_log(log, local=local)
    source = random.Random(seed)
    rows = [(row.offset, row.timestamp) for row in log.all_rows]
    error_count = 0
    for _ in range(60):
        files = source.choice([segment for segment in log.segments if segment.timeindex])
        key = find_index_key(objects, files.base_offset, ".timeindex", local=local)
        original = objects[key]
        position = original.index(files.timeindex) + source.randrange(len(files.timeindex))
        objects[key] = (
            original[:position]
            + bytes([original[position] ^ (1 << source.randrange(8))])
            + original[position + 1 :]
        )
        since = FIRST_MS + source.randrange(-5_000, 185_000)
        first = min((offset for offset, dated in rows if dated >= since), default=len(rows))
        latest = {"startingOffsetsByTimestampStrategy": "latest"}
        dated = [offset for offset, dated in rows if dated >= since]
        for time_options, expected in (
            ({"startingTimestamp": str(since), **latest}, [o for o, _ in rows if o >= first]),
            ({"endingTimestamp": str(since)}, [o for o, _ in rows if o < first]),
            ({"timestampRange": f"{since},"}, dated),
        ):
            try:
                assert read(objects, local, **time_options) == expected, (
                    files.base_offset,
                    position,
                    since,
                    time_options,
                )
            except (TieredKafkaError, SegmentFormatError):
                error_count += 1
        objects[key] = original
    assert error_count < 20  # most damage raises no error, because the log has the timestamps


@pytest.mark.parametrize("seed", only(1, range(4)))
def test_time_index_without_last_entries_loses_no_row(seed: int) -> None:
    log = build_log(seed)
    objects = write_log(log, local=True)
    rows = [(row.offset, row.timestamp) for row in log.all_rows]
    (key, *_) = sorted(key for key in objects if key.endswith(".timeindex"))
    original = objects[key]
    entries = len(original) // 12
    assert entries > 1
    for kept in range(1, entries):
        objects[key] = original[: 12 * kept]
        for since in range(FIRST_MS + 500, FIRST_MS + 70_000, 7_000):
            dated = [offset for offset, dated in rows if dated >= since]
            assert read(objects, True, timestampRange=f"{since},") == dated
            started = read(objects, True, startingTimestamp=str(since))
            assert started == [offset for offset, _ in rows if offset >= dated[0]]


def write_segment_with_largest_timestamp_at_offset_3(root: Path) -> dict[str, str]:
    """Returns the options of the tier. The segment has 40 records."""
    builder = LogBuilder()
    for number in range(40):
        timestamp = FIRST_MS + (10_000 if number == 3 else number)
        builder.append([SimpleRecord(bytes(60_000), timestamp=timestamp)])
    builder.roll()
    LocalTierWriter(root, topic="t").write_segment(builder.build().segments[0])
    return {"path": str(root), "subscribe": "t", "layout": "local-tiered-storage"}


def test_audit_accepts_segment_whose_last_record_does_not_have_the_largest_timestamp(
    tmp_path: Path,
) -> None:
    options = write_segment_with_largest_timestamp_at_offset_3(tmp_path)
    table = kts_source.scan({**options, "timestampRange": f"{FIRST_MS + 5_000},"}).to_table()
    assert table["offset"].to_pylist() == [3]
    assert kts_source.audit(options, level="bytes").findings == ()


def test_audit_reports_time_index_without_the_largest_timestamp(tmp_path: Path) -> None:
    options = write_segment_with_largest_timestamp_at_offset_3(tmp_path)
    index = next(tmp_path.rglob("*.timeindex"))
    index.write_bytes(index.read_bytes()[:12])
    report = kts_source.audit(options, level="indexes")
    assert [finding.name for finding in report.findings] == ["time-index-disagrees"]


def test_max_timestamps_of_many_batches_are_read_with_one_request() -> None:
    (files, *_) = build_log(1).segments
    log = files.log
    largest = [
        max(row.timestamp for row in build_log(1).all_rows if first <= row.offset < first + 5)
        for first in range(0, 60, 5)
    ]
    reads = []

    def read_and_record(start: int, stop: int) -> bytes:
        reads.append((start, stop))
        return log[start:stop]

    assert list(max_timestamps_from(read_and_record, len(log), 0, 12)) == largest[2:]
    assert len(reads) == 1


def test_wrong_position_of_time_index_in_manifest_loses_no_row(tmp_path: Path) -> None:
    builder = LogBuilder(index_interval_bytes=150)
    for batch in range(12):
        timestamp = FIRST_MS + 5000 * batch
        builder.append([SimpleRecord(b"v", timestamp=timestamp + 1000 * n) for n in range(5)])
    builder.roll()
    AivenTierWriter(tmp_path, topic="t").write_segment(builder.build().segments[0])
    manifest = next(tmp_path.rglob("*.rsm-manifest"))
    text = manifest.read_text()
    (position,) = re.findall(r'"timestamp":\{"position":(\d+)', text)
    options = {"path": str(tmp_path), "subscribe": "t", "startingTimestamp": str(FIRST_MS + 6000)}
    for shift in (-3, 2, 3, 4):
        moved = text.replace(f'"position":{position}', f'"position":{int(position) + shift}')
        manifest.write_text(moved)
        assert moved != text
        rows = kts_source.scan(options).to_table()["offset"].to_pylist()
        assert sorted(rows) == list(range(6, 60))


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_largest_timestamp_of_old_message_formats_is_found(codec: str) -> None:
    records = [SimpleRecord(b"v", timestamp=timestamp) for timestamp in (10, 30, 20)]
    log = write_message_set(records, base_offset=5, magic=1, codec=codec)

    def largest_of(offset: int, data: bytes = log, position: int = 0) -> int | None:
        return find_largest(lambda start, stop: data[start:stop], data, position, offset)

    assert [largest_of(offset) for offset in (5, 6, 7, 8)] == (
        [10, 30, 20, None] if codec == "none" else [30, 30, 30, None]
    )
    assert largest_of(5, write_message_set(records, base_offset=5, magic=0, codec=codec)) is None
    assert largest_of(7, log[:-1]) is None
    assert largest_of(5, bytes(100)) is None


def test_largest_timestamp_is_read_from_batch_header() -> None:
    (files, *_) = build_log(1).segments
    log = files.log
    reads = []

    def read(start: int, stop: int) -> bytes:
        reads.append((start, stop))
        return log[start:stop]

    for first in range(0, 60, 5):
        batch = [row.timestamp for row in build_log(1).all_rows if first <= row.offset < first + 5]
        for offset in (first, first + 4):
            assert find_largest(read, log, 0, offset) == max(batch)
    assert find_largest(read, log, 0, 60) is None
    assert all(stop <= len(log) for _, stop in reads)
    second = log.index((5).to_bytes(8, "big"))
    assert find_largest(read, log, second, 3) is None  # the batch begins after the offset


def build_ascending_log() -> BuiltLog:
    """Builds three segments of 12 records each. Timestamps ascend by one second."""
    builder = LogBuilder(index_interval_bytes=150)
    for _ in range(3):
        for _ in range(4):
            timestamp = FIRST_MS + 1000 * builder.next_offset
            builder.append([SimpleRecord(b"v", timestamp=timestamp + 1000 * n) for n in range(3)])
        builder.roll()
    return builder.build()


def lower_timestamp(objects: dict[str, bytes], base: int, by_ms: int) -> dict[str, bytes]:
    """Returns a copy of the objects with one changed manifest: the largest timestamp of segment
    `base` is lower by `by_ms`.
    """
    (key,) = (key for key in objects if f"/{base:020d}-" in key and key.endswith("manifest"))
    manifest = json.loads(objects[key])
    manifest["remoteLogSegmentMetadata"]["maxTimestampMs"] -= by_ms
    return {**objects, key: json.dumps(manifest).encode()}


@pytest.mark.parametrize("base", only(1, [12, 0, 24]))
@pytest.mark.parametrize("by_ms", [1, 4_000, 20_000, 600_000_000_000])
def test_too_low_max_timestamp_in_manifest_loses_no_row(base: int, by_ms: int) -> None:
    objects = lower_timestamp(write_log(build_ascending_log(), local=False), base, by_ms)
    for second in range(36):
        since = FIRST_MS + 1000 * second
        assert read(objects, False, startingTimestamp=str(since)) == [*range(second, 36)]
        assert read(objects, False, timestampRange=f"{since},") == [*range(second, 36)]
        assert read(objects, False, endingTimestamp=str(since)) == [*range(second)]


@pytest.mark.parametrize("base", [12, 24])
def test_too_low_max_timestamp_in_manifest_loses_no_row_of_filtered_scan(
    tmp_path: Path, base: int
) -> None:
    writer = AivenTierWriter(tmp_path, topic="t")
    for files in build_ascending_log().segments[:3]:
        writer.write_segment(files)
    objects = {str(path): path.read_bytes() for path in tmp_path.rglob("*-manifest")}
    for key, data in lower_timestamp(objects, base, 600_000_000_000).items():
        Path(key).write_bytes(data)
    scan = kts_source.scan({"path": str(tmp_path), "subscribe": "t"})
    for second in (0, 5, 12, 20, 30):
        filtered = scan.where(f"timestamp >= timestamp_millis({FIRST_MS + 1000 * second})")
        offsets = sorted(filtered.to_table(threads=1)["offset"].to_pylist())
        assert offsets == [*range(second, 36)]
