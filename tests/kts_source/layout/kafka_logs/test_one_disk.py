"""Checks scans of one broker's disk, after a clean shutdown and after a crash."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import CorruptSegmentError, DataLossError, InvalidOptionError
from kts_source.planning.planner import plan
from segment_format.record.batch_header import HEADER_SIZE
from segment_format.record.framing import iter_entries
from segment_format.testing import LogBuilder, SimpleRecord
from tests.kts_source.layout.kafka_logs.disk import (
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    TOPIC,
    Disk,
    build_transactions,
    list_expected_offsets,
    read_offsets,
)

if TYPE_CHECKING:
    from pathlib import Path

LEVELS = ("read_committed", "read_uncommitted")
LOG = build_transactions()
END = LOG.end_offset()


def list_batches(data: bytes) -> list[tuple[int, int]]:
    """Returns the base offset and the byte position of each batch in the content of a log file."""
    return [(entry.offset, entry.position) for entry in iter_entries(data)]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("clean", [True, False])
def test_scan_reads_all_records(tmp_path: Path, level: str, *, clean: bool) -> None:
    Disk(tmp_path).write(LOG, clean=clean)
    assert read_offsets(tmp_path, level) == list_expected_offsets(LOG, level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("clean", [True, False])
def test_scan_stops_at_high_watermark(tmp_path: Path, level: str, *, clean: bool) -> None:
    for segment in LOG.segments:
        for base, _ in list_batches(segment.log)[::5]:
            root = tmp_path / str(base)
            Disk(root).write(LOG, clean=clean, high_watermark=base)
            assert read_offsets(root, level) == list_expected_offsets(LOG, level, stop=base), base


@pytest.mark.parametrize("level", LEVELS)
def test_scan_with_option_end_of_log_reads_all_complete_batches(tmp_path: Path, level: str) -> None:
    Disk(tmp_path).write(LOG, clean=False, high_watermark=3)
    assert read_offsets(tmp_path, level, endOfLog="true") == list_expected_offsets(LOG, level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["cut", "zeros", "flipped"])
def test_scan_with_option_end_of_log_stops_before_damaged_batch(
    tmp_path: Path, level: str, kind: str
) -> None:
    last = LOG.segments[-1]
    for number, (base, position) in enumerate(list_batches(last.log)):
        data = bytearray(last.log)
        damage = position + (30 if number % 2 else 70)
        if kind == "cut":
            del data[damage:]
        elif kind == "zeros":
            data[damage:] = bytes(len(data) - damage)
        else:
            data[damage] ^= 0x40
        root = tmp_path / str(base)
        disk = Disk(root).write(LOG, clean=False, high_watermark=0, recovery_point=last.base_offset)
        disk.put(f"{last.base_offset:020d}.log", bytes(data))
        assert read_offsets(root, level, endOfLog="true") == list_expected_offsets(
            LOG, level, stop=base
        ), base


def test_scan_with_option_end_of_log_stops_before_flipped_header_bit(tmp_path: Path) -> None:
    last = LOG.segments[-1]
    base, position = list_batches(last.log)[2]
    rows = list_expected_offsets(LOG, "read_uncommitted", stop=base)
    # Skips the bytes of the base offset and leader epoch, which the checksum does not cover.
    for bit in (*range(8 * 8, 12 * 8), *range(16 * 8, HEADER_SIZE * 8)):
        data = bytearray(last.log)
        data[position + bit // 8] ^= 1 << bit % 8
        root = tmp_path / str(bit)
        disk = Disk(root).write(LOG, clean=False, high_watermark=0, recovery_point=last.base_offset)
        disk.put(f"{last.base_offset:020d}.log", bytes(data))
        assert read_offsets(root, "read_uncommitted", endOfLog="true") == rows, bit


@pytest.mark.parametrize("magic", [0, 1])
def test_message_of_old_format_raises_corrupt_segment_error(tmp_path: Path, magic: int) -> None:
    last = LOG.segments[-1]
    base, position = list_batches(last.log)[2]
    body = bytes([magic, 0]) + bytes(8 * magic) + b"\xff\xff\xff\xff" * 2
    message = zlib.crc32(body).to_bytes(4, "big") + body
    data = last.log[:position] + base.to_bytes(8, "big") + len(message).to_bytes(4, "big") + message
    disk = Disk(tmp_path).write(LOG, clean=False, high_watermark=0, recovery_point=last.base_offset)
    disk.put(f"{last.base_offset:020d}.log", data)
    with pytest.raises(CorruptSegmentError, match=f"message of format {magic}"):
        read_offsets(tmp_path, "read_uncommitted", endOfLog="true")


def test_segments_after_incomplete_segment_are_not_read(tmp_path: Path) -> None:
    disk = Disk(tmp_path).write(LOG, clean=False, high_watermark=0)
    first = LOG.segments[0]
    base, position = list_batches(first.log)[4]
    disk.put(f"{0:020d}.log", first.log[: position + 20])
    assert read_offsets(tmp_path, endOfLog="true") == list_expected_offsets(LOG, stop=base)


def test_zero_bytes_after_last_batch_are_ignored(tmp_path: Path) -> None:
    disk = Disk(tmp_path).write(LOG, clean=False)
    log = disk.files("log")[-1]
    log.write_bytes(log.read_bytes() + bytes(1 << 20))
    assert read_offsets(tmp_path) == list_expected_offsets(LOG)


@pytest.mark.parametrize("clean", [True, False])
def test_torn_batch_below_high_watermark_raises_data_loss_error_with_position(
    tmp_path: Path, *, clean: bool
) -> None:
    disk = Disk(tmp_path).write(LOG, clean=clean)
    log = disk.files("log")[-1]
    base, position = list_batches(log.read_bytes())[-2]
    log.write_bytes(log.read_bytes()[: position + 20])
    with pytest.raises(DataLossError) as error:
        read_offsets(tmp_path, "read_uncommitted")
    assert log.name in str(error.value)
    assert f"position {position}" in str(error.value)
    assert f"[{base}, {END})" in str(error.value)
    rows = read_offsets(tmp_path, "read_uncommitted", failOnDataLoss="false")
    assert rows == list_expected_offsets(LOG, "read_uncommitted", stop=base)


def test_option_end_of_log_refuses_torn_batch_below_recovery_point(
    tmp_path: Path,
) -> None:
    disk = Disk(tmp_path).write(LOG, clean=False, high_watermark=0, recovery_point=END)
    log = disk.files("log")[-1]
    log.write_bytes(log.read_bytes()[:-5])
    with pytest.raises(DataLossError, match=log.name):
        read_offsets(tmp_path, endOfLog="true")


def test_corrupt_batch_below_recovery_point_raises_corrupt_segment_error(tmp_path: Path) -> None:
    disk = Disk(tmp_path).write(LOG, clean=False, recovery_point=LOG.segments[-1].base_offset)
    log = disk.files("log")[0]
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(bytes(data))
    with pytest.raises(CorruptSegmentError, match=log.name):
        read_offsets(tmp_path)


@pytest.mark.parametrize("missing", ["", "index", "snapshot"])
def test_corrupt_batch_after_clean_shutdown_raises_error(tmp_path: Path, missing: str) -> None:
    """Planning parses only the log that contains the high watermark, and logs without a side file.
    In other logs, the damage is detected when they are read.
    """
    for number in range(len(LOG.segments)):
        root = tmp_path / str(number)
        disk = Disk(root).write(LOG, high_watermark=END - 3)
        for path in disk.files(missing) if missing else ():
            path.unlink()
        log = disk.files("log")[number]
        data = bytearray(log.read_bytes())
        data[100] ^= 1
        log.write_bytes(bytes(data))
        with pytest.raises((CorruptSegmentError, DataLossError), match=log.name):
            read_offsets(root, "read_uncommitted")
    # Planning parses the log and detects the damage at either isolation level.
    with pytest.raises(DataLossError, match=log.name):
        read_offsets(root)


def test_lost_log_with_existing_index_raises_data_loss_error(tmp_path: Path) -> None:
    disk = Disk(tmp_path).write(LOG)
    lost = LOG.segments[1]
    disk.files("log")[1].unlink()
    with pytest.raises(DataLossError, match=rf"\[{lost.base_offset}, {lost.next_offset}\)"):
        read_offsets(tmp_path)
    remaining = [
        offset
        for offset in list_expected_offsets(LOG, "read_uncommitted")
        if not lost.base_offset <= offset < lost.next_offset
    ]
    assert read_offsets(tmp_path, "read_uncommitted", failOnDataLoss="false") == remaining


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["index", "timeindex", "txnindex", "snapshot"])
def test_missing_side_files_are_rebuilt_from_log(tmp_path: Path, level: str, kind: str) -> None:
    disk = Disk(tmp_path).write(LOG, clean=False)
    for path in disk.files(kind):
        path.unlink()
    assert read_offsets(tmp_path, level) == list_expected_offsets(LOG, level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["index", "timeindex", "txnindex", "snapshot"])
def test_damaged_side_files_above_recovery_point_are_rebuilt(
    tmp_path: Path, level: str, kind: str
) -> None:
    disk = Disk(tmp_path).write(LOG, clean=False)
    for number, path in enumerate(disk.files(kind)):
        size = path.stat().st_size
        path.write_bytes([b"", bytes(size), path.read_bytes()[: size // 2 + 1]][number % 3])
    start = END // 3
    bounds = {"startingOffsets": f'{{"orders":{{"0":{start}}}}}'}
    rows = [offset for offset in list_expected_offsets(LOG, level) if offset >= start]
    assert read_offsets(tmp_path, level, **bounds) == rows


def test_log_start_is_read_from_checkpoint(tmp_path: Path) -> None:
    disk = Disk(tmp_path).write(LOG)
    disk.checkpoint(LOG_STARTS, 17)
    assert read_offsets(tmp_path) == [
        offset for offset in list_expected_offsets(LOG) if offset >= 17
    ]


@pytest.mark.parametrize("first", [b"0 17", b"1 17", b"2 50"])
def test_leader_epochs_do_not_move_the_start_of_an_untiered_log_after_crash(
    tmp_path: Path, first: bytes
) -> None:
    """The broker did not flush its log start before the crash, so after the restart consumers
    receive the deleted records again.
    """
    builder = LogBuilder()
    for epoch in range(3):
        if epoch:
            builder.set_leader_epoch(epoch)
        for _ in range(20):
            builder.append([SimpleRecord(b"x")])
    log = builder.build()
    disk = Disk(tmp_path).write(log, clean=False)
    later = {b"0 17": b"1 20\n2 40\n", b"1 17": b"2 40\n", b"2 50": b""}[first]
    count = b"%d" % (1 + later.count(b"\n"))
    disk.put("leader-epoch-checkpoint", b"0\n%s\n%s\n%s" % (count, first, later))
    if first == b"1 17":  # contradicts the batches
        with pytest.raises(CorruptSegmentError):
            read_offsets(tmp_path)
    else:
        assert read_offsets(tmp_path) == list_expected_offsets(log)


def test_missing_high_watermark_checkpoint_requires_option_end_of_log(tmp_path: Path) -> None:
    disk = Disk(tmp_path).write(LOG, clean=False)
    (tmp_path / HIGH_WATERMARKS).unlink()
    with pytest.raises(DataLossError, match="endOfLog"):
        read_offsets(tmp_path)
    assert read_offsets(disk.root, endOfLog="true") == list_expected_offsets(LOG)


def test_partition_without_high_watermark_is_read_only_with_option_end_of_log(
    tmp_path: Path,
) -> None:
    Disk(tmp_path).write(LOG, clean=False).checkpoint(HIGH_WATERMARKS, None)
    assert read_offsets(tmp_path) == []
    assert read_offsets(tmp_path, endOfLog="true") == list_expected_offsets(LOG)


def test_plan_file_contains_rebuilt_side_files(tmp_path: Path) -> None:
    builder = LogBuilder()
    for number in range(100):
        builder.send(7 + number % 3, [SimpleRecord(bytes(400))])
        if number % 5 == 4:
            (builder.abort if number % 2 else builder.commit)(7 + number % 3)
    log = builder.build()
    disk = Disk(tmp_path / "disk").write(log, clean=False)
    options = {
        "path": str(disk.root),
        "layout": "kafka-logs",
        "subscribe": TOPIC,
        "targetPartitionBytes": "9000",
    }
    scan_plan = plan(options)
    assert any(not task_slice.is_whole for task in scan_plan.tasks for task_slice in task.slices)
    plan_file = tmp_path / "plan.json"
    plan_file.write_text(scan_plan.to_json())
    assert sorted(read_offsets(disk.root, planFile=str(plan_file))) == list_expected_offsets(log)


def test_option_end_of_log_with_other_layout_raises_invalid_option_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="endOfLog"):
        read_offsets(tmp_path, layout="aiven", endOfLog="true")


def test_starting_timestamp_is_found_with_original_and_rebuilt_time_index(tmp_path: Path) -> None:
    builder = LogBuilder(index_interval_bytes=200)
    for number in range(60):
        late = 7_000 if number % 9 == 4 else 0
        builder.append([SimpleRecord(b"v", timestamp=1_000_000 + 1000 * number - late)])
        if number == 30:
            builder.roll()
    log = builder.build()
    Disk(tmp_path / "clean").write(log)
    Disk(tmp_path / "crashed").write(log, clean=False)
    for timestamp in range(1_000_000, 1_060_000, 1500):
        first = min(row.offset for row in log.all_rows if row.timestamp >= timestamp)
        for name in ("clean", "crashed"):
            assert read_offsets(tmp_path / name, startingTimestamp=str(timestamp))[0] == first


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("end_of_log", ["false", "true"])
@pytest.mark.parametrize("clean", [True, False])
def test_flipped_bit_in_base_offset_of_last_batch_fails_the_read(
    tmp_path: Path, batches: int, end_of_log: str, *, clean: bool
) -> None:
    builder = LogBuilder()
    for size in (3, 3, *[4] * batches):
        builder.append([SimpleRecord(b"value")] * size)
        if size == 3:
            builder.roll()
    log = builder.build()
    last = log.segments[-1]
    position = list_batches(last.log)[-1][1]
    disk = Disk(tmp_path).write(log, clean=clean)
    assert read_offsets(tmp_path, endOfLog=end_of_log) == list_expected_offsets(log)
    for bit in range(63):
        data = bytearray(last.log)
        data[position + 7 - bit // 8] ^= 1 << bit % 8
        disk.put(f"{last.base_offset:020d}.log", bytes(data))
        with pytest.raises((DataLossError, CorruptSegmentError)):
            read_offsets(tmp_path, endOfLog=end_of_log)


@pytest.mark.parametrize("evidence", ["high watermark", "recovery point", "cleaner", "other gap"])
def test_last_batch_after_a_gap_is_read_if_its_offset_is_confirmed(
    tmp_path: Path, evidence: str
) -> None:
    builder = LogBuilder()
    builder.append([SimpleRecord(b"value")] * 4)
    if evidence == "other gap":
        builder.skip_offsets(3)
        builder.append([SimpleRecord(b"value")])
    builder.skip_offsets(8)
    builder.append([SimpleRecord(b"value")] * 4)
    log = builder.build()
    end = log.end_offset()
    disk = Disk(tmp_path).write(log, clean=False, high_watermark=end - 1)
    if evidence == "high watermark":
        disk.checkpoint(HIGH_WATERMARKS, end)
    elif evidence == "recovery point":
        disk.checkpoint(RECOVERY_POINTS, end)
    elif evidence == "cleaner":
        disk.checkpoint("cleaner-offset-checkpoint", 4)
    assert read_offsets(tmp_path, endOfLog="true") == list_expected_offsets(log)
