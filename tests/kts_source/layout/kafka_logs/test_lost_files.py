"""Checks that scans report offsets as lost if their log file is missing on a broker's disk. Other
files of the disk, such as checkpoints and indexes, show that these offsets existed.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import DataLossError, TopicNotFoundError
from kts_source.planning.planner import plan
from segment_format.testing import LogBuilder, SimpleRecord
from tests.kts_source.layout.kafka_logs.disk import (
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    TOPIC,
    TOPIC_ID,
    Disk,
    build_transactions,
    list_expected_offsets,
    read_offsets,
)
from tests.kts_source.planning.scanning import scan
from tests.kts_source.streaming.running import Checkpointed

if TYPE_CHECKING:
    from pathlib import Path

LOG = build_transactions(segments=3)
END = LOG.end_offset()
OTHER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"


def build_small_log(segments: int = 3) -> LogBuilder:
    """Builds a log with segments of three records. The segments are too small to have offset index
    entries.
    """
    builder = LogBuilder()
    for number in range(segments):
        if number:
            builder.roll()
        builder.append([SimpleRecord(b"value")] * 3)
    return builder


def write_checkpoint(root: Path, name: str, **marks: int) -> None:
    """Writes a checkpoint file. For example, `orders_1=7` adds an entry for partition orders-1 with
    offset 7.
    """
    lines = [f"{key.replace('_', ' ')} {offset}" for key, offset in marks.items()]
    (root / name).write_text("\n".join(["0", str(len(lines)), *lines, ""]))


def copy_to_unserved_folder(
    disk: Disk, state: str, *, number: int, topic_id: str = TOPIC_ID
) -> None:
    """Copies the partition to a folder of partition `number` with suffix `-<state>`, for example
    `-delete`. Brokers ignore folders with such a suffix when they answer consumers.
    """
    folder = disk.root / f"{TOPIC}-{number}.{'0a' * 16}-{state}"
    shutil.copytree(disk.folder, folder)
    (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}")


# -- lost log files


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("log", [LOG, build_small_log().build()], ids=["indexed", "small"])
def test_lost_last_log_above_high_watermark_raises_only_with_option_end_of_log(
    tmp_path: Path, log: object, *, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert isinstance(log, type(LOG))
    last = log.segments[-1]
    disk = Disk(tmp_path).write(log, clean=clean, high_watermark=last.base_offset)
    disk.files("log")[-1].unlink()
    rows = list_expected_offsets(log, stop=last.base_offset)
    assert read_offsets(tmp_path) == rows  # its records may be unreplicated
    assert f"{last.base_offset:020d}." in caplog.text
    with pytest.raises(DataLossError, match=rf"\[{last.base_offset}, \d+\)"):
        read_offsets(tmp_path, endOfLog="true")
    assert read_offsets(tmp_path, endOfLog="true", failOnDataLoss="false") == rows


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("kind", ["index", "timeindex", "snapshot", "empty log"])
def test_last_segment_with_one_remaining_file_raises_error_or_warns(
    tmp_path: Path, kind: str, *, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    last = LOG.segments[-1]
    disk = Disk(tmp_path).write(LOG, clean=clean, high_watermark=last.base_offset)
    snapshot = f"{END:020d}.snapshot"
    if kind == "snapshot":
        disk.put(snapshot, last.snapshot)
    for path in disk.folder.glob(f"{last.base_offset:020d}.*"):
        if path.suffix not in (f".{kind}", ".snapshot"):
            path.unlink()
    if kind in ("index", "timeindex"):
        (disk.folder / snapshot).unlink(missing_ok=True)
    if kind == "empty log":
        disk.put(f"{last.base_offset:020d}.log", b"")
    rows = list_expected_offsets(LOG, stop=last.base_offset)
    if clean or kind in ("index", "timeindex"):
        with pytest.raises(DataLossError, match=rf"\[{last.base_offset}, \d+\)"):
            read_offsets(tmp_path, endOfLog="true")
        assert read_offsets(tmp_path, endOfLog="true", failOnDataLoss="false") == rows
    caplog.clear()
    assert read_offsets(tmp_path) == rows
    if kind != "empty log" or clean:  # after a crash, an empty log belongs to a new segment
        assert f"{last.base_offset}" in caplog.text or f"{END}" in caplog.text


@pytest.mark.parametrize("clean", [True, False])
def test_lost_last_log_below_high_watermark_raises_data_loss_error(
    tmp_path: Path, *, clean: bool
) -> None:
    disk = Disk(tmp_path).write(LOG, clean=clean)
    disk.files("log")[-1].unlink()
    with pytest.raises(DataLossError, match=rf"\[{LOG.segments[-1].base_offset}, {END}\)"):
        read_offsets(tmp_path)


def test_lost_first_log_raises_data_loss_error(tmp_path: Path) -> None:
    disk = Disk(tmp_path).write(LOG)
    disk.files("log")[0].unlink()
    first = LOG.segments[1].base_offset
    with pytest.raises(DataLossError, match=rf"\[0, {first}\)"):
        read_offsets(tmp_path, "read_uncommitted")
    remaining = [
        offset for offset in list_expected_offsets(LOG, "read_uncommitted") if offset >= first
    ]
    assert read_offsets(tmp_path, "read_uncommitted", failOnDataLoss="false") == remaining
    disk.checkpoint(LOG_STARTS, first)  # the records of the lost log were deleted
    assert read_offsets(tmp_path, "read_uncommitted") == remaining


def test_disk_without_log_files_raises_data_loss_error(tmp_path: Path) -> None:
    disk = Disk(tmp_path).write(LOG)
    for path in disk.files("log"):
        path.unlink()
    for extra in ({}, {"endOfLog": "true"}):
        with pytest.raises(DataLossError, match=rf"\[0, {END}\)"):
            read_offsets(tmp_path, **extra)
        assert read_offsets(tmp_path, failOnDataLoss="false", **extra) == []


def test_partition_folder_without_files_raises_data_loss_error(tmp_path: Path) -> None:
    disk = Disk(tmp_path).write(LOG)
    for path in disk.folder.glob("0*"):
        path.unlink()
    with pytest.raises(DataLossError, match=rf"\[0, {END}\)"):
        read_offsets(tmp_path)


def test_missing_log_of_empty_last_segment_is_not_data_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Some object stores drop empty files, so a copied disk can lack the log of a new, empty
    segment.
    """
    disk = Disk(tmp_path).write(LOG)
    disk.put(f"{END:020d}.index", bytes(4096))
    disk.put(f"{END:020d}.timeindex", bytes(4096))
    assert read_offsets(tmp_path, endOfLog="true") == list_expected_offsets(LOG)
    assert f"{END:020d}.index" in caplog.text


# -- partitions in checkpoints


@pytest.mark.parametrize("name", [HIGH_WATERMARKS, RECOVERY_POINTS])
def test_partition_listed_only_in_checkpoint_raises_data_loss_error(
    tmp_path: Path, name: str
) -> None:
    Disk(tmp_path).write(LOG)
    write_checkpoint(tmp_path, HIGH_WATERMARKS, orders_0=END)
    write_checkpoint(tmp_path, RECOVERY_POINTS, orders_0=END)
    write_checkpoint(tmp_path, name, orders_0=END, orders_1=7)
    with pytest.raises(DataLossError, match=rf"orders-1: .*\[0, 7\).*{name}"):
        read_offsets(tmp_path)
    assert read_offsets(tmp_path, failOnDataLoss="false") == list_expected_offsets(LOG)
    options = {"path": str(tmp_path), "layout": "kafka-logs"}
    (partition,) = plan({**options, "assign": f'{{"{TOPIC}":[0]}}'}).partitions
    assert partition.partition == 0


def test_checkpoint_with_offset_0_of_missing_partition_warns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Disk(tmp_path).write(LOG)
    write_checkpoint(tmp_path, HIGH_WATERMARKS, orders_0=END, orders_1=0)
    assert read_offsets(tmp_path) == list_expected_offsets(LOG)
    assert "it names no offsets of orders-1, but this folder does not exist" in caplog.text


def test_lost_partition_folder_warns_if_other_log_directory_has_its_offsets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Disk(tmp_path / "a").write(LOG)
    lost = Disk(tmp_path / "b").write(LOG)
    shutil.rmtree(lost.folder)
    assert read_offsets(tmp_path) == list_expected_offsets(LOG)
    assert f"b/{HIGH_WATERMARKS} (it names offsets [0, {END}) of orders-0" in caplog.text
    write_checkpoint(lost.root, HIGH_WATERMARKS, orders_0=END + 4)
    with pytest.raises(DataLossError, match=rf"\[{END}, {END + 4}\).*b/{HIGH_WATERMARKS}"):
        read_offsets(tmp_path, "read_uncommitted")
    rows = read_offsets(tmp_path, "read_uncommitted", failOnDataLoss="false")
    assert rows == list_expected_offsets(LOG, "read_uncommitted")


def test_subscribed_topic_listed_only_in_checkpoint_raises_data_loss_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Disk(tmp_path).write(LOG)
    write_checkpoint(tmp_path, HIGH_WATERMARKS, orders_0=END, gone_0=5)
    with pytest.raises(DataLossError, match=r"gone-0: .*\[0, 5\)"):
        read_offsets(tmp_path, subscribe="gone")
    options = {"path": str(tmp_path), "layout": "kafka-logs", "subscribePattern": ".*"}
    assert {partition.topic for partition in plan(options).partitions} == {TOPIC}
    assert "only checkpoints or folders set aside exist: topics gone" in caplog.text


# -- folders with the suffix -future, -delete or -stray


@pytest.mark.parametrize("state", ["future", "delete", "stray"])
def test_partition_whose_only_folder_is_future_deleted_or_stray_is_reported(
    tmp_path: Path, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk(tmp_path).write(LOG)
    copy_to_unserved_folder(disk, state, number=1)
    copy_to_unserved_folder(disk, state, number=2, topic_id=OTHER_ID)
    assert read_offsets(tmp_path) == list_expected_offsets(LOG)
    for number in (1, 2):
        assert f"orders-{number}.{'0a' * 16}-{state}/ (a -{state} folder" in caplog.text
    shutil.rmtree(disk.folder)
    write_checkpoint(tmp_path, HIGH_WATERMARKS)
    write_checkpoint(tmp_path, RECOVERY_POINTS)
    with pytest.raises(TopicNotFoundError, match=rf"orders-1.*-{state}"):
        read_offsets(tmp_path, topicId=TOPIC_ID)


def test_checkpoint_entry_of_deleted_folder_is_not_data_loss(tmp_path: Path) -> None:
    """The broker has renamed the folder, but not yet removed the folder's entry from the
    checkpoints.
    """
    disk = Disk(tmp_path).write(LOG)
    copy_to_unserved_folder(disk, "delete", number=1)
    write_checkpoint(tmp_path, HIGH_WATERMARKS, orders_0=END, orders_1=END)
    assert read_offsets(tmp_path) == list_expected_offsets(LOG)


# -- log directories at different depths


@pytest.mark.parametrize("has_checkpoint", [True, False])
@pytest.mark.parametrize("folders", [("b1", "b2/d0"), ("", "b2/d0"), ("", "b2"), ("b1/x", "b2")])
def test_log_directories_at_different_depths_are_all_read(
    tmp_path: Path, folders: tuple[str, str], *, has_checkpoint: bool
) -> None:
    for number, folder in enumerate(folders):
        disk = Disk(tmp_path / folder if folder else tmp_path)
        source = Disk(tmp_path.parent / f"{tmp_path.name}-{number}").write(LOG)
        disk.root.mkdir(parents=True, exist_ok=True)
        shutil.move(source.folder, disk.root / f"{TOPIC}-{number}")
        if has_checkpoint:
            write_checkpoint(disk.root, HIGH_WATERMARKS, **{f"{TOPIC}_{number}": END})
            (disk.root / ".kafka_cleanshutdown").touch()
    (tmp_path / "lost+found").mkdir()
    options = {"path": str(tmp_path), "layout": "kafka-logs", "subscribe": TOPIC}
    if not has_checkpoint:
        options["endOfLog"] = "true"
    table = scan(options)
    assert table["offset"].to_pylist() == list_expected_offsets(LOG) * 2


def test_log_directory_without_metadata_files_is_recognized_by_its_segments(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "a").write(LOG)
    for path in (*disk.root.glob("*-checkpoint"), *disk.folder.glob("*-checkpoint")):
        path.unlink()
    (disk.folder / "partition.metadata").unlink()
    (disk.root / "meta.properties").unlink()
    (disk.root / ".kafka_cleanshutdown").unlink()
    assert read_offsets(tmp_path, endOfLog="true") == list_expected_offsets(LOG)


def test_folders_deeper_than_the_search_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Disk(tmp_path / "b1").write(LOG)
    Disk(tmp_path / "x" / "y" / "z").write(LOG)
    assert read_offsets(tmp_path) == list_expected_offsets(LOG)
    assert "not searched for log directories" in caplog.text
    assert "x/y/z/" in caplog.text


# -- streams


def collect_offsets(stream: Checkpointed) -> list[int]:
    """Returns the offsets of all batches that the stream has read."""
    batches = (stream.batches[number] for number in sorted(stream.batches))
    return [offset for batch in batches for offset in batch["offset"].to_pylist()]


def test_stream_continues_with_newer_copy_of_disk(tmp_path: Path) -> None:
    root = tmp_path / "logs"
    builder = build_small_log(2)
    Disk(root).write(builder.build())
    options = {
        "path": str(root),
        "layout": "kafka-logs",
        "subscribe": TOPIC,
        "minListingIntervalMs": "0",
    }
    stream = Checkpointed(options)
    stream.all()
    assert collect_offsets(stream) == list(range(6))
    for _ in range(3):
        builder.append([SimpleRecord(b"more")])
    shutil.rmtree(root)
    disk = Disk(root).write(builder.build(), high_watermark=7)
    stream.clock.seconds += 3600
    stream.all()
    assert collect_offsets(stream) == list(range(7))
    disk.checkpoint(HIGH_WATERMARKS, 9)  # no log changes
    stream.clock.seconds += 3600
    stream.all()
    assert collect_offsets(stream) == list(range(9))
    stream.start()
    stream.all()
    assert collect_offsets(stream) == list(range(9))
    stream.close()
