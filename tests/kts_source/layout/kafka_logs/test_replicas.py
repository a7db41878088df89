"""Checks which replica a scan reads from the disks of several brokers, and at which offset the scan
ends.

A dead branch is the end of a replica's log that an unclean leader election made invalid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import kts_source
from kts_source.errors import DataLossError, InvalidOptionError, TierNotFoundError
from kts_source.planning.planner import plan
from segment_format.testing import LogBuilder, SimpleRecord
from tests.kts_source.layout.kafka_logs.disk import (
    HIGH_WATERMARKS,
    TOPIC,
    Disk,
    build_transactions,
    list_expected_offsets,
    read_offsets,
)

if TYPE_CHECKING:
    from pathlib import Path

    from segment_format.testing.log_builder import BuiltLog

LOG = build_transactions()
END = LOG.end_offset()


def build_branch(*epochs: tuple[int, int], name: str) -> BuiltLog:
    """Builds a log from pairs of leader epoch and record count, with one record in each batch. The
    record values start with `name`.
    """
    builder = LogBuilder()
    for epoch, count in epochs:
        if epoch:
            builder.set_leader_epoch(epoch)
        for number in range(count):
            builder.append([SimpleRecord(b"%s %d" % (name.encode(), number))])
    return builder.build()


def read_values(root: Path, **extra: str) -> list[bytes]:
    """Returns the record values that a scan reads."""
    from tests.kts_source.planning.scanning import scan

    options = {"path": str(root), "layout": "kafka-logs", "subscribe": TOPIC, **extra}
    rows: list[bytes] = scan(options)["value"].to_pylist()
    return rows


def list_directories_read(root: Path, **extra: str) -> set[str]:
    """Plans a scan and returns the names of the log directories that the plan reads."""
    options = {"path": str(root), "layout": "kafka-logs", "subscribe": TOPIC, **extra}
    return {
        task_slice.objects.log.key.split("/")[0]
        for task in plan(options).tasks
        for task_slice in task.slices
    }


@pytest.mark.parametrize("subfolder", ["", "data0/"])
def test_log_directories_below_root_are_found(tmp_path: Path, subfolder: str) -> None:
    Disk(tmp_path / f"broker-1/{subfolder}").write(LOG)
    assert read_offsets(tmp_path) == list_expected_offsets(LOG)
    assert read_offsets(tmp_path / "broker-1") == list_expected_offsets(LOG)
    assert read_offsets(tmp_path, keyPrefix="broker-1") == list_expected_offsets(LOG)


def test_log_directory_with_partition_name_is_read_as_log_directory(tmp_path: Path) -> None:
    Disk(tmp_path / f"{TOPIC}-1").write(LOG)
    assert read_offsets(tmp_path) == list_expected_offsets(LOG)


def test_longest_replica_of_highest_epoch_is_read(tmp_path: Path) -> None:
    short = build_transactions(segments=2)
    Disk(tmp_path / "a").write(short, high_watermark=10)
    Disk(tmp_path / "b").write(LOG)
    Disk(tmp_path / "c").write(LOG, high_watermark=20)
    assert read_offsets(tmp_path) == list_expected_offsets(LOG)
    assert len(list_directories_read(tmp_path)) == 1
    assert "a" not in list_directories_read(tmp_path)


def test_highest_high_watermark_of_all_replicas_is_used(tmp_path: Path) -> None:
    """The scan may read a replica whose high watermark checkpoint is older than that of another
    replica.
    """
    Disk(tmp_path / "a").write(LOG, high_watermark=10)
    Disk(tmp_path / "b").write(LOG, high_watermark=29)
    assert read_offsets(tmp_path, "read_uncommitted") == list_expected_offsets(
        LOG, "read_uncommitted", stop=29
    )


def test_replica_of_higher_epoch_is_preferred_to_longer_replica(tmp_path: Path) -> None:
    dead = build_branch((0, 5), (1, 20), name="dead")
    live = build_branch((0, 5), (3, 4), name="live")
    Disk(tmp_path / "a").write(dead)
    Disk(tmp_path / "b").write(live)
    assert read_values(tmp_path)[5:] == [b"live %d" % number for number in range(4)]
    assert list_directories_read(tmp_path) == {"b"}


def test_high_watermark_of_dead_branch_is_ignored(tmp_path: Path) -> None:
    dead = build_branch((0, 5), (1, 20), name="dead")
    live = build_branch((0, 5), (3, 9), name="live")
    Disk(tmp_path / "a").write(dead, high_watermark=12)
    Disk(tmp_path / "b").write(live, high_watermark=7)
    assert len(read_values(tmp_path)) == 7
    assert len(read_values(tmp_path, endOfLog="true")) == 14


def test_dead_branch_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Disk(tmp_path / "a").write(build_branch((0, 5), (1, 20), name="dead"))
    Disk(tmp_path / "b").write(build_branch((0, 5), (3, 9), name="live"))
    read_values(tmp_path)
    assert "from offset 5 on it is on an abandoned branch" in caplog.text


def test_records_of_torn_batch_are_read_from_other_disk(tmp_path: Path) -> None:
    torn = Disk(tmp_path / "a").write(LOG, clean=False)
    log = torn.files("log")[-1]
    log.write_bytes(log.read_bytes()[:-100])
    Disk(tmp_path / "b").write(LOG, clean=False, high_watermark=0)
    assert read_offsets(tmp_path) == list_expected_offsets(LOG)
    assert list_directories_read(tmp_path) == {"b"}


def test_replicas_that_all_end_below_high_watermark_raise_data_loss_error(
    tmp_path: Path,
) -> None:
    Disk(tmp_path / "a").write(LOG, high_watermark=END + 5)
    Disk(tmp_path / "b").write(LOG)
    with pytest.raises(DataLossError, match=rf"\[{END}, {END + 5}\)"):
        read_offsets(tmp_path)


def test_folders_of_future_deleted_and_stray_replicas_are_reported_and_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk(tmp_path).write(LOG)
    other = build_transactions(segments=1)
    for state in ("future", "delete", "stray"):
        extra = Disk(tmp_path / "x").write(other)
        extra.folder.rename(tmp_path / f"{TOPIC}-0.{'0a' * 16}-{state}")
        for path in (tmp_path / "x").iterdir():
            path.unlink()
        (tmp_path / "x").rmdir()
    assert read_offsets(disk.root) == list_expected_offsets(LOG)
    for state in ("future", "delete", "stray"):
        assert f"{'0a' * 16}-{state}/ (a -{state} folder, left alone)" in caplog.text


def test_recreated_topic_is_selected_by_topic_id(tmp_path: Path) -> None:

    Disk(tmp_path / "a").write(LOG)
    recreated = Disk(tmp_path / "b").write(build_branch((0, 3), name="again"))
    recreated.put("partition.metadata", b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    with pytest.raises(InvalidOptionError, match="topicId"):
        read_offsets(tmp_path)
    assert len(read_values(tmp_path, topicId="AAAAAAAAAAAAAAAAAAAAAQ")) == 3


def test_unreadable_checkpoint_raises_corrupt_segment_error(tmp_path: Path) -> None:
    from kts_source.errors import CorruptSegmentError

    Disk(tmp_path).write(LOG)
    (tmp_path / HIGH_WATERMARKS).write_text("0\n2\norders 0 5\n")
    with pytest.raises(CorruptSegmentError, match=HIGH_WATERMARKS):
        read_offsets(tmp_path)


@pytest.mark.parametrize("name", ["__consumer_offsets", "__cluster_metadata"])
def test_subscribe_pattern_skips_internal_topics(tmp_path: Path, name: str) -> None:
    # Internal topics are on the same disks. Kafka consumers also skip internal topics for patterns.
    Disk(tmp_path).write(LOG).folder.rename(tmp_path / f"{name}-0")
    Disk(tmp_path).write(LOG)
    lines = ("0", "2", f"{TOPIC} 0 {END}", f"{name} 0 {END}", "")
    (tmp_path / HIGH_WATERMARKS).write_text("\n".join(lines))
    for options, topic in (({"subscribePattern": "."}, TOPIC), ({"subscribe": name}, name)):
        scan_plan = plan({"path": str(tmp_path), "layout": "kafka-logs", **options})
        assert [partition.topic for partition in scan_plan.partitions] == [topic]


@pytest.fixture
def log_directories(tmp_path: Path) -> tuple[Disk, Disk]:
    """Writes two log directories in different folders.

    Partition orders-0 is in both directories, and partition orders-1 only in the second directory.
    """
    first = Disk(tmp_path / "mnt" / "a" / "kafka").write(LOG, high_watermark=0)
    second = Disk(tmp_path / "srv" / "deep" / "down" / "kafka").write(LOG)
    second.folder.rename(second.root / f"{TOPIC}-1")
    Disk(second.root).write(LOG)
    lines = ("0", "2", f"{TOPIC} 0 {END}", f"{TOPIC} 1 {END}", "")
    (second.root / HIGH_WATERMARKS).write_text("\n".join(lines))
    return first, second


def test_several_paths_are_read_together(
    log_directories: tuple[Disk, Disk], tmp_path: Path
) -> None:
    first, second = log_directories
    path = f"{first.root}, {second.root}"
    options = {"path": path, "layout": "kafka-logs", "subscribe": TOPIC}
    scan_plan = plan(options)
    assert [(partition.partition, partition.wanted_stop) for partition in scan_plan.partitions] == [
        (0, END),
        (1, END),
    ]
    rows = list_expected_offsets(LOG)
    # `kts_source.scan` reads like a Spark worker, which receives only the options and the tasks.
    assert kts_source.scan(options).to_table()["offset"].to_pylist() == rows * 2
    plan_file = tmp_path / "plan.json"
    plan_file.write_text(scan_plan.to_json())
    assert kts_source.scan({**options, "planFile": str(plan_file)}).to_table().num_rows == 2 * len(
        rows
    )
    with pytest.raises(InvalidOptionError, match=r"several paths; set option .*'path'"):
        plan({**options, "path": str(first.root), "planFile": str(plan_file)})


def test_invalid_path_in_list_of_paths_raises_error(
    log_directories: tuple[Disk, Disk], tmp_path: Path
) -> None:
    first, _ = log_directories
    (tmp_path / "typo").mkdir()
    options = {"layout": "kafka-logs", "subscribe": TOPIC}
    with pytest.raises(TierNotFoundError, match=r"'path': there is no log directory.*typo"):
        plan({**options, "path": f"{first.root},{tmp_path / 'typo'}"})
    with pytest.raises(InvalidOptionError, match="'path' names an empty path"):
        plan({**options, "path": f"{first.root},"})
    with pytest.raises(InvalidOptionError, match="holds credentials") as error:
        plan({**options, "path": f"{first.root},s3://me:hidden@bucket"})
    assert "hidden" not in str(error.value)
