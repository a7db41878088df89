"""Checks scans with `tailPath` of disks that lack files or contain different offsets."""

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
    TOPIC,
    Disk,
    build_transactions,
    list_expected_offsets,
)
from tests.kts_source.layout.kafka_logs.test_lost_files import (
    copy_to_unserved_folder,
    write_checkpoint,
)
from tests.kts_source.layout.kafka_logs.test_uneven_replicas import drop_first, drop_last
from tests.kts_source.planning.test_tail import TierAndDisk

if TYPE_CHECKING:
    from pathlib import Path

LEVELS = ("read_committed", "read_uncommitted")
LOG = build_transactions(segments=5)
END = LOG.end_offset()


@pytest.fixture
def scene(tmp_path: Path) -> TierAndDisk:
    return TierAndDisk(tmp_path)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("tiered", [(), (0,), (0, 1), (0, 2), (2, 3), (1,)])
def test_tier_and_two_disks_with_different_segments_return_all_offsets(
    scene: TierAndDisk, level: str, tiered: tuple[int, ...], *, clean: bool
) -> None:
    scene.copy(LOG, *tiered)
    full = Disk(scene.disk.root / "a").write(LOG, clean=clean)
    drop_last(full, LOG, 1)
    full.checkpoint(LOG_STARTS, 0)
    drop_first(Disk(scene.disk.root / "b").write(LOG, clean=clean), LOG, 3)
    assert scene.read_offsets(level) == list_expected_offsets(LOG, level)


def test_hole_whose_offsets_exist_only_on_dead_branch_raises_data_loss_error(
    scene: TierAndDisk,
) -> None:
    live, dead = LogBuilder(), LogBuilder()
    for builder in (live, dead):
        builder.append([SimpleRecord(b"both")] * 3)
        builder.roll()
    live.set_leader_epoch(2)
    for builder in (live, dead):
        for _ in range(3):
            builder.append([SimpleRecord(b"own")] * 3)
            builder.roll()
    log = live.build()
    scene.copy(log, 0, 2)
    Disk(scene.disk.root / "a").write(dead.build())
    drop_first(Disk(scene.disk.root / "b").write(log), log, 3)
    with pytest.raises(DataLossError, match=r"\[3, 6\)"):
        scene.read_offsets()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("number", [3, 4])
def test_log_file_lost_above_the_tier_is_replaced_by_another_disk(
    scene: TierAndDisk, level: str, number: int
) -> None:
    scene.copy(LOG, 0, 1)
    for name in ("a", "b"):
        disk = Disk(scene.disk.root / name).write(LOG)
    disk.files("log")[number].unlink()
    assert scene.read_offsets(level) == list_expected_offsets(LOG, level)


@pytest.mark.parametrize("end_of_log", ["false", "true"])
def test_lost_last_log_file_raises_data_loss_error(scene: TierAndDisk, end_of_log: str) -> None:
    scene.copy(LOG, 0, 1)
    scene.disk.write(LOG)
    if end_of_log == "true":
        scene.disk.checkpoint(HIGH_WATERMARKS, 2)
    scene.disk.files("log")[-1].unlink()
    base = LOG.segments[-1].base_offset
    with pytest.raises(DataLossError, match=rf"\[{base}, {END}\)"):
        scene.read_offsets("read_uncommitted", endOfLog=end_of_log)
    remaining = list_expected_offsets(LOG, "read_uncommitted", stop=base)
    lossy = scene.read_offsets("read_uncommitted", endOfLog=end_of_log, failOnDataLoss="false")
    assert lossy == remaining


def test_lost_log_file_is_ignored_if_its_offsets_are_in_the_tier(scene: TierAndDisk) -> None:
    scene.copy(LOG, 0, 1, 2, 3, 4)
    scene.disk.write(LOG)
    for number in (0, -1):
        scene.disk.files("log")[number].unlink()
    assert scene.read_offsets() == list_expected_offsets(LOG)


@pytest.mark.parametrize("is_tiered", [True, False])
def test_partition_listed_only_in_checkpoint_raises_data_loss_error(
    scene: TierAndDisk, *, is_tiered: bool
) -> None:
    scene.copy(LOG, 0, 1)
    scene.disk.write(LOG)
    numbers = (0,) if is_tiered else (0, 1)
    if is_tiered:
        shutil.rmtree(scene.disk.folder)
    marks = {f"{TOPIC}_{number}": END for number in numbers}
    write_checkpoint(scene.disk.root, HIGH_WATERMARKS, **marks)
    with pytest.raises(DataLossError, match=rf"{HIGH_WATERMARKS}: it names offsets \[0, {END}\)"):
        scene.read_offsets()
    rows = (
        list_expected_offsets(LOG, stop=LOG.segments[2].base_offset)
        if is_tiered
        else list_expected_offsets(LOG)
    )
    assert scene.read_offsets(failOnDataLoss="false") == rows


def test_checkpoint_offset_above_the_end_of_all_disks_raises_data_loss_error(
    scene: TierAndDisk,
) -> None:
    scene.copy(LOG, 0, 1)
    Disk(scene.disk.root / "a").write(LOG)
    missing = Disk(scene.disk.root / "b").write(LOG)
    shutil.rmtree(missing.folder)
    assert scene.read_offsets() == list_expected_offsets(LOG)
    write_checkpoint(missing.root, HIGH_WATERMARKS, orders_0=END + 3)
    with pytest.raises(DataLossError, match=rf"\[{END}, {END + 3}\)"):
        scene.read_offsets("read_uncommitted")


@pytest.mark.parametrize("state", ["future", "delete", "stray"])
def test_folders_of_future_deleted_and_stray_replicas_are_reported(
    scene: TierAndDisk, state: str
) -> None:
    scene.copy(LOG, 0, 1)
    disk = scene.disk.write(LOG)
    copy_to_unserved_folder(disk, state, number=1)
    copy_to_unserved_folder(disk, state, number=2, topic_id="AAAAAAAAAAAAAAAAAAAAAQ")
    assert scene.read_offsets() == list_expected_offsets(LOG)
    notes = "\n".join(plan(scene.make_options()).notes)
    for number in (1, 2):
        assert f"orders-{number}.{'0a' * 16}-{state}/ (a -{state} folder" in notes


def test_topic_listed_only_in_checkpoint_raises_topic_not_found_error(scene: TierAndDisk) -> None:
    scene.copy(LOG, 0)
    scene.disk.write(LOG)
    write_checkpoint(scene.disk.root, HIGH_WATERMARKS, orders_0=END, gone_0=4)
    with pytest.raises(TopicNotFoundError, match=r"'gone'.*set aside there name gone"):
        scene.read_offsets(subscribe="gone")


def test_log_directories_at_different_depths_are_all_read(scene: TierAndDisk) -> None:
    scene.copy(LOG, 0)
    for number, folder in enumerate(("b1", "b2/d0")):
        disk = Disk(scene.disk.root / folder).write(LOG)
        if number:
            shutil.move(disk.folder, disk.root / f"{TOPIC}-{number}")
            write_checkpoint(disk.root, HIGH_WATERMARKS, **{f"{TOPIC}_{number}": END})
    assert scene.read_offsets() == list_expected_offsets(LOG) * 2
