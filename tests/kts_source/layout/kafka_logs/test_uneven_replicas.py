"""Checks which rows are read and which replicas are reported if replicas of a partition have
different offsets.
"""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import DataLossError
from kts_source.planning.planner import plan
from segment_format.record.framing import iter_entries
from segment_format.record.records import iter_batches
from segment_format.testing import LogBuilder, SimpleRecord
from segment_format.testing.segment import write_leader_epoch_checkpoint
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
from tests.kts_source.planning.scanning import scan

if TYPE_CHECKING:
    from segment_format.testing.log_builder import BuiltLog

GOLDEN = Path(__file__).resolve().parents[3] / "golden44" / "uneven-disks"
LEVELS = ("read_committed", "read_uncommitted")
LOG = build_transactions(segments=5)


def drop_first(disk: Disk, log: BuiltLog, count: int, *, log_start: int | None = 0) -> None:
    """Deletes the first `count` segments of a replica, and writes `log_start` to the log start
    checkpoint.

    The result looks like a replica that was added to a tiered topic later.
    """
    for segment in log.segments[:count]:
        for path in disk.folder.glob(f"{segment.base_offset:020d}.*"):
            path.unlink()
    disk.put(f"{log.segments[count].base_offset:020d}.snapshot", log.segments[count - 1].snapshot)
    disk.checkpoint(LOG_STARTS, log_start)


def drop_last(disk: Disk, log: BuiltLog, count: int) -> None:
    """Deletes the last `count` segments of a replica, as if the replica lagged."""
    for segment in log.segments[-count:]:
        for path in disk.folder.glob(f"{segment.base_offset:020d}.*"):
            path.unlink()
        (disk.folder / f"{segment.next_offset:020d}.snapshot").unlink(missing_ok=True)


def build_log(values: str, *, segments: int = 4, epochs: tuple[int, ...] = ()) -> BuiltLog:
    """Builds a log with segments of three batches. Each batch has one record, whose value starts
    with `values`. If `epochs[n]` is not zero, this leader epoch begins at the start of segment
    n.
    """
    builder = LogBuilder()
    for number in range(segments):
        if number < len(epochs) and epochs[number]:
            builder.set_leader_epoch(epochs[number])
        for batch in range(3):
            builder.append([SimpleRecord(b"%s %d %d" % (values.encode(), number, batch))])
        if number < segments - 1:
            builder.roll()
    return builder.build()


def list_slices(root: Path, **extra: str) -> list[tuple[str, int, int]]:
    """Returns the log directory, start offset and stop offset of each slice, in plan order."""
    options = {"path": str(root), "layout": "kafka-logs", "subscribe": TOPIC, **extra}
    return [
        (task_slice.objects.log.key.split("/")[0], task_slice.start_offset, task_slice.stop_offset)
        for task in plan(options).tasks
        for task_slice in task.slices
    ]


@pytest.mark.parametrize("level", LEVELS)
def test_two_golden_replicas_with_different_starts_are_read_as_one_log(
    level: str, caplog: pytest.LogCaptureFixture
) -> None:
    expected_rows: dict[int, tuple[int, str]] = {}
    for node in ("node-2", "node-3"):
        for path in sorted((GOLDEN / node / "uneven-0").glob("*.log")):
            for batch in iter_batches(path.read_bytes()):
                for record in batch.records:
                    value = hashlib.sha256(bytes(record.value or b"")).hexdigest()
                    row = (record.timestamp, value)
                    # Both replicas have the same records.
                    assert expected_rows.setdefault(record.offset, row) == row
    options = {"path": str(GOLDEN), "layout": "kafka-logs", "subscribe": "uneven"}
    table = scan({**options, "isolationLevel": level})
    rows = {
        row["offset"]: (
            round(row["timestamp"].timestamp() * 1000),
            hashlib.sha256(row["value"] or b"").hexdigest(),
        )
        for row in table.to_pylist()
    }
    assert sorted(rows) == list(range(160, 1277))
    assert len(rows) == table.num_rows
    assert rows == expected_rows
    assert "starts at offset 0, but no disk has offsets below 160" in caplog.text


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("missing_segments", [0, 1])
def test_rows_missing_on_late_replica_are_read_from_older_replica(
    tmp_path: Path, level: str, *, clean: bool, missing_segments: int
) -> None:
    full = Disk(tmp_path / "a").write(LOG, clean=clean)
    if missing_segments:
        drop_last(full, LOG, missing_segments)
    full.checkpoint(LOG_STARTS, 0)
    late = Disk(tmp_path / "b").write(LOG, clean=clean)
    drop_first(late, LOG, 2)
    assert read_offsets(tmp_path, level) == list_expected_offsets(LOG, level)
    assert read_offsets(tmp_path / "b", level)[0] >= LOG.segments[2].base_offset
    rows = list_expected_offsets(LOG, level)
    end = max(rows)
    for start in range(0, end, 7):
        bounds = {
            "startingOffsets": f'{{"{TOPIC}":{{"0":{start}}}}}',
            "endingOffsets": f'{{"{TOPIC}":{{"0":{min(start + 20, end)}}}}}',
        }
        window_rows = read_offsets(tmp_path, level, **bounds)
        assert window_rows == [
            offset for offset in rows if start <= offset < min(start + 20, end)
        ], start


def test_rows_are_read_from_full_replica_if_late_replica_is_empty(tmp_path: Path) -> None:
    """The late replica was added to the partition, but has not copied any record yet."""
    full = Disk(tmp_path / "a").write(LOG, high_watermark=3)
    full.checkpoint(LOG_STARTS, 0)
    late = Disk(tmp_path / "b").write(LOG)
    for path in late.folder.glob("0*"):
        path.unlink()
    end = LOG.end_offset()
    late.put(f"{end:020d}.log", b"")
    late.put(f"{end:020d}.snapshot", LOG.segments[-1].snapshot)
    late.checkpoint(LOG_STARTS, 0)
    assert read_offsets(tmp_path) == list_expected_offsets(LOG)


def test_rows_of_three_partial_replicas_are_combined(tmp_path: Path) -> None:
    for name, first, last in (("a", 0, 3), ("b", 1, 1), ("c", 3, 0)):
        disk = Disk(tmp_path / name).write(LOG)
        if last:
            drop_last(disk, LOG, last)
        disk.checkpoint(LOG_STARTS, 0)
        if first:
            drop_first(disk, LOG, first)
    assert read_offsets(tmp_path) == list_expected_offsets(LOG)
    assert {piece[0] for piece in list_slices(tmp_path)} == {"a", "b", "c"}


def test_replica_with_another_batch_where_the_chosen_replica_starts_is_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Disk(tmp_path / "a").write(build_log("other")).checkpoint(LOG_STARTS, 0)
    log = build_log("right", segments=5)
    drop_first(Disk(tmp_path / "b").write(log), log, 2)
    assert read_offsets(tmp_path) == list(range(6, 15))
    assert "a/orders-0/ (offsets [0, 6) are not read: it has another batch at offset 6" in (
        caplog.text
    )


@pytest.mark.parametrize("history", ["cut", "whole", "same epoch"])
def test_replica_without_overlap_is_read_only_if_leader_epochs_prove_its_history(
    tmp_path: Path, history: str, caplog: pytest.LogCaptureFixture
) -> None:
    epochs = (0, 0, 0 if history == "same epoch" else 1, 0)
    log = build_log("x", epochs=epochs)
    older = Disk(tmp_path / "a").write(log, high_watermark=6)
    drop_last(older, log, 2)
    older.put("leader-epoch-checkpoint", write_leader_epoch_checkpoint([(0, 0)]))
    older.checkpoint(LOG_STARTS, 0)
    late = Disk(tmp_path / "b").write(log)
    drop_first(late, log, 2)
    if history == "cut":
        late.put("leader-epoch-checkpoint", write_leader_epoch_checkpoint([(1, 6)]))
    if history == "same epoch":
        late.put("leader-epoch-checkpoint", write_leader_epoch_checkpoint([(0, 6)]))
    rows = read_offsets(tmp_path)
    if history == "cut":
        assert rows == list(range(6, 12))
        assert "offsets [0, 6) are not read: no leader epoch proves" in caplog.text
    else:
        assert rows == list(range(12))


def test_dead_branch_below_start_of_live_replica_is_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dead = build_log("dead")
    Disk(tmp_path / "a").write(dead, high_watermark=0).checkpoint(LOG_STARTS, 0)
    log = build_log("live", epochs=(0, 2, 0, 0))
    drop_first(Disk(tmp_path / "b").write(log), log, 2)
    assert read_offsets(tmp_path) == list(range(6, 12))
    assert "offsets [0, 6) are not read: they are on another branch" in caplog.text


def test_replica_that_ends_before_chosen_replica_starts_is_reported_and_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stale = Disk(tmp_path / "a").write(LOG, high_watermark=2)
    drop_last(stale, LOG, 4)
    stale.checkpoint(LOG_STARTS, 0)
    drop_first(Disk(tmp_path / "b").write(LOG), LOG, 3)
    first = LOG.segments[3].base_offset
    assert read_offsets(tmp_path) == [
        offset for offset in list_expected_offsets(LOG) if offset >= first
    ]
    stale_end = LOG.segments[1].base_offset
    assert f"offsets [0, {stale_end}) are not read" in caplog.text
    assert f"it holds [0, {stale_end}), which does not reach offset {first}" in caplog.text


def test_unread_offsets_below_the_first_offset_of_a_late_replica_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows before the first offset of the late replica are only in the older replica, because its
    broker has not run retention yet, or its disk was copied earlier.
    """
    Disk(tmp_path / "a").write(LOG, high_watermark=3)
    drop_first(Disk(tmp_path / "b").write(LOG), LOG, 2, log_start=None)
    first = LOG.segments[2].base_offset
    drop_last(Disk(tmp_path / "a"), LOG, 1)
    assert read_offsets(tmp_path) == [
        offset for offset in list_expected_offsets(LOG) if offset >= first
    ]
    assert f"a/orders-0/ (offsets [0, {first}) are not read" in caplog.text


def test_rows_below_recorded_log_start_are_not_read(tmp_path: Path) -> None:
    full = Disk(tmp_path / "a").write(LOG)
    drop_last(full, LOG, 1)
    full.checkpoint(LOG_STARTS, 0)
    start = LOG.segments[1].base_offset + 4
    drop_first(Disk(tmp_path / "b").write(LOG), LOG, 2, log_start=start)
    rows = [offset for offset in list_expected_offsets(LOG, "read_uncommitted") if offset >= start]
    assert read_offsets(tmp_path, "read_uncommitted") == rows


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("lost", ["a", "b"])
def test_complete_replica_is_preferred_to_replica_with_lost_log(
    tmp_path: Path, level: str, lost: str, *, clean: bool
) -> None:
    for name in ("a", "b"):
        disk = Disk(tmp_path / name).write(LOG, clean=clean)
        if name == lost:
            disk.files("log")[2].unlink()
    assert read_offsets(tmp_path, level) == list_expected_offsets(LOG, level)
    assert lost not in {piece[0] for piece in list_slices(tmp_path)}


@pytest.mark.parametrize("lost", ["a", "b"])
@pytest.mark.parametrize("damage", ["no files", "cut"])
def test_complete_replica_is_preferred_to_replica_with_lost_batches(
    tmp_path: Path, lost: str, damage: str
) -> None:
    for name in ("a", "b"):
        disk = Disk(tmp_path / name).write(LOG, high_watermark=None if name == lost else 0)
        path = disk.files("log")[2]
        if name == lost and damage == "cut":
            data = path.read_bytes()
            (*_, last) = iter_entries(data)
            path.write_bytes(data[: last.position])
        elif name == lost:
            for file in disk.folder.glob(f"{path.stem}.*"):
                file.unlink()
    assert read_offsets(tmp_path) == list_expected_offsets(LOG)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_log_file_lost_on_the_longest_replica_is_read_from_another_replica(
    tmp_path: Path, level: str, number: int, *, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    drop_last(Disk(tmp_path / "a").write(LOG, clean=clean), LOG, 1)
    lost = Disk(tmp_path / "b").write(LOG, clean=clean).files("log")[number]
    lost.unlink()
    assert read_offsets(tmp_path, level) == list_expected_offsets(LOG, level)
    assert f"{lost.stem}.index" in caplog.text
    assert "are read from a/orders-0/" in caplog.text


def test_two_replicas_with_different_lost_logs_are_combined(tmp_path: Path) -> None:
    Disk(tmp_path / "a").write(LOG).files("log")[1].unlink()
    Disk(tmp_path / "b").write(LOG).files("log")[3].unlink()
    for level in LEVELS:
        assert read_offsets(tmp_path, level) == list_expected_offsets(LOG, level)


def test_lost_log_is_not_replaced_if_earlier_batches_of_replicas_differ(tmp_path: Path) -> None:
    right, other = LogBuilder(), LogBuilder()
    for builder, value in ((right, b"right"), (other, b"other")):
        for number in range(4):
            builder.append([SimpleRecord(value if number == 0 else b"same")] * 3)
            builder.roll()
    logs = right.build(), other.build()
    for name, log in zip("ba", logs, strict=True):
        disk = Disk(tmp_path / name).write(log, high_watermark=9)
        disk.checkpoint(LOG_STARTS, 0)
    drop_last(disk, logs[1], 1)
    (tmp_path / "b" / f"{TOPIC}-0" / f"{3:020d}.log").unlink()
    with pytest.raises(DataLossError, match=r"\[3, 6\)"):
        read_offsets(tmp_path)


def test_lost_log_without_later_snapshot_raises_data_loss_error(
    tmp_path: Path,
) -> None:
    """The producer snapshot after the lost log is also missing. Without the snapshot, a scan would
    treat a transaction as open if its marker was in the lost log.
    """
    drop_last(Disk(tmp_path / "a").write(LOG), LOG, 1)
    disk = Disk(tmp_path / "b").write(LOG, clean=False)
    disk.files("log")[1].unlink()
    (disk.folder / f"{LOG.segments[2].base_offset:020d}.snapshot").unlink()
    with pytest.raises(DataLossError, match=rf"\[{LOG.segments[1].base_offset}, "):
        read_offsets(tmp_path)


def test_random_disks_return_all_rows_or_raise_data_loss_error(tmp_path: Path) -> None:
    """Each replica starts and ends at a random segment and may lack a log file. Its broker was shut
    down cleanly or crashed.
    """
    outcomes = {"complete": 0, "partial": 0, "lost": 0}
    for seed in range(60):
        source = random.Random(seed)
        root = tmp_path / str(seed)
        kept_segments: list[set[int]] = []
        low = 5
        for name in "abc"[: source.randint(2, 3)]:
            first, missing_count = source.randint(0, 3), source.choice((0, 0, 1, 2))
            numbers = range(first, max(5 - missing_count, first + 1))
            disk = Disk(root / name).write(LOG, clean=source.random() < 0.5)
            if numbers.stop < 5:
                drop_last(disk, LOG, 5 - numbers.stop)
            disk.checkpoint(LOG_STARTS, 0)
            if first:
                drop_first(disk, LOG, first)
            kept = set(numbers)
            low = min(low, first)
            if source.random() < 0.5:
                number = source.choice(numbers)
                (disk.folder / f"{LOG.segments[number].base_offset:020d}.log").unlink()
                kept.remove(number)
            kept_segments.append(kept)
        level = source.choice(LEVELS)
        try:
            rows = read_offsets(root, level)
        except DataLossError:
            assert not set().union(*kept_segments) >= set(range(low, 5)), (seed, kept_segments)
            outcomes["lost"] += 1
            continue
        (partition,) = plan(
            {"path": str(root), "layout": "kafka-logs", "subscribe": TOPIC}
        ).partitions
        start = partition.surviving.log_start
        assert rows == [
            offset for offset in list_expected_offsets(LOG, level) if offset >= start
        ], (
            seed,
            kept_segments,
        )
        outcomes["partial" if start else "complete"] += 1
    assert min(outcomes.values()) > 5, outcomes


def write_short_and_long(tmp_path: Path) -> tuple[Disk, Disk]:
    """Writes two replicas of `LOG`. The first replica lacks the last segment."""
    short, long = Disk(tmp_path / "b1").write(LOG), Disk(tmp_path / "b2").write(LOG)
    drop_last(short, LOG, 1)
    end = LOG.segments[-1].base_offset
    short.checkpoint(HIGH_WATERMARKS, end)
    short.checkpoint(RECOVERY_POINTS, end)
    return short, long


def damage_segment(disk: Disk, kind: str, number: int) -> None:
    """Damages a segment of a replica so that the remaining files do not show the full loss.
    Depending on `kind`, deletes all files, empties the log, or removes the second half of the
    log.
    """
    stem = f"{LOG.segments[number].base_offset:020d}"
    if kind == "all files":
        for path in disk.folder.glob(f"{stem}.*"):
            path.unlink()
    elif kind == "empty log":
        disk.put(f"{stem}.log", b"")
    else:
        data = (disk.folder / f"{stem}.log").read_bytes()
        batches = list(iter_entries(memoryview(data)))
        disk.put(f"{stem}.log", data[: batches[len(batches) // 2].position])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["all files", "empty log", "end of log"])
@pytest.mark.parametrize("is_clean", [True, False])
def test_records_lost_inside_a_replica_are_read_from_other_replica(
    tmp_path: Path, *, kind: str, level: str, is_clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    _, long = write_short_and_long(tmp_path)
    damage_segment(long, kind, 2)
    if not is_clean:
        (long.root / ".kafka_cleanshutdown").unlink()
        long.checkpoint(RECOVERY_POINTS, 0)

    assert read_offsets(tmp_path, level) == list_expected_offsets(LOG, level)

    assert "are read from b1/" in caplog.text


@pytest.mark.parametrize("lost", range(4, 18))
def test_lost_segment_is_read_from_replica_with_different_segment_borders(
    tmp_path: Path, lost: int
) -> None:
    logs = []
    for step in (3, 1):
        builder = LogBuilder(index_interval_bytes=1)
        for offset in range(21 - step):
            builder.append([SimpleRecord(b"%d" % offset)])
            if (offset + 1) % step == 0:
                builder.roll()
        logs.append(builder.build())
    Disk(tmp_path / "b1").write(logs[0])
    longest = Disk(tmp_path / "b2").write(logs[1])
    for path in longest.folder.glob(f"{lost:020d}.*"):
        path.unlink()

    assert read_offsets(tmp_path) == list(range(20))


def test_lost_records_raise_data_loss_error_if_other_replica_has_different_batches(
    tmp_path: Path,
) -> None:
    Disk(tmp_path / "b1").write(build_log("other", segments=5))
    disk = Disk(tmp_path / "b2").write(build_log("row", segments=6))
    for path in disk.folder.glob(f"{6:020d}.*"):
        path.unlink()

    with pytest.raises(DataLossError, match=r"\[6, 9\).*its records end at offset 6"):
        read_offsets(tmp_path)


def test_two_adjacent_lost_segments_are_read_from_other_replica(tmp_path: Path) -> None:
    _, long = write_short_and_long(tmp_path)
    damage_segment(long, "all files", 2)
    (long.folder / f"{LOG.segments[3].base_offset:020d}.log").unlink()

    assert read_offsets(tmp_path) == list_expected_offsets(LOG)


def test_offsets_missing_below_the_cleaner_offset_are_not_data_loss(tmp_path: Path) -> None:
    _, long = write_short_and_long(tmp_path)
    damage_segment(long, "all files", 2)
    removed = range(LOG.segments[2].base_offset, LOG.segments[2].next_offset)
    long.checkpoint("cleaner-offset-checkpoint", removed.stop)

    rows = read_offsets(tmp_path, "read_uncommitted")

    assert rows == [
        offset for offset in list_expected_offsets(LOG, "read_uncommitted") if offset not in removed
    ]


def test_empty_log_with_index_entries_raises_data_loss_error(tmp_path: Path) -> None:
    disk = Disk(tmp_path).write(LOG)
    damage_segment(disk, "empty log", 2)

    with pytest.raises(DataLossError, match="although its indexes name offsets"):
        read_offsets(tmp_path)
