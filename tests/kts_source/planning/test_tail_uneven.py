"""A tier with disks that lack files, or hold different offsets: `tailPath` stays exact."""

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
    expected,
    transactions,
)
from tests.kts_source.layout.kafka_logs.test_lost_files import checkpoint, set_aside
from tests.kts_source.layout.kafka_logs.test_uneven_replicas import drop_first, drop_last
from tests.kts_source.planning.test_tail import Both

if TYPE_CHECKING:
    from pathlib import Path

LEVELS = ("read_committed", "read_uncommitted")
LOG = transactions(segments=5)
END = LOG.end_offset()


@pytest.fixture
def both(tmp_path: Path) -> Both:
    return Both(tmp_path)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("tiered", [(), (0,), (0, 1), (0, 2), (2, 3), (1,)])
def test_front_and_holes_come_from_another_disk(
    both: Both, level: str, tiered: tuple[int, ...], *, clean: bool
) -> None:
    both.copy(LOG, *tiered)
    whole = Disk(both.disk.root / "a").write(LOG, clean=clean)
    drop_last(whole, LOG, 1)
    whole.checkpoint(LOG_STARTS, 0)
    drop_first(Disk(both.disk.root / "b").write(LOG, clean=clean), LOG, 3)
    assert both.offsets(level) == expected(LOG, level)


def test_hole_that_only_a_dead_branch_holds_stays_a_loss(both: Both) -> None:
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
    both.copy(log, 0, 2)
    Disk(both.disk.root / "a").write(dead.build())
    drop_first(Disk(both.disk.root / "b").write(log), log, 3)
    with pytest.raises(DataLossError, match=r"\[3, 6\)"):
        both.offsets()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("number", [3, 4])
def test_lost_log_above_the_tier_is_read_from_another_disk(
    both: Both, level: str, number: int
) -> None:
    both.copy(LOG, 0, 1)
    for name in ("a", "b"):
        disk = Disk(both.disk.root / name).write(LOG)
    disk.files("log")[number].unlink()
    assert both.offsets(level) == expected(LOG, level)


@pytest.mark.parametrize("end_of_log", ["false", "true"])
def test_lost_last_log_is_data_loss(both: Both, end_of_log: str) -> None:
    both.copy(LOG, 0, 1)
    both.disk.write(LOG)
    if end_of_log == "true":
        both.disk.checkpoint(HIGH_WATERMARKS, 2)
    both.disk.files("log")[-1].unlink()
    base = LOG.segments[-1].base_offset
    with pytest.raises(DataLossError, match=rf"\[{base}, {END}\)"):
        both.offsets("read_uncommitted", endOfLog=end_of_log)
    want = expected(LOG, "read_uncommitted", stop=base)
    lossy = both.offsets("read_uncommitted", endOfLog=end_of_log, failOnDataLoss="false")
    assert lossy == want


def test_lost_log_that_the_tier_holds_is_no_loss(both: Both) -> None:
    both.copy(LOG, 0, 1, 2, 3, 4)
    both.disk.write(LOG)
    for number in (0, -1):
        both.disk.files("log")[number].unlink()
    assert both.offsets() == expected(LOG)


@pytest.mark.parametrize("is_tiered", [True, False])
def test_partition_that_only_a_checkpoint_names_is_data_loss(
    both: Both, *, is_tiered: bool
) -> None:
    both.copy(LOG, 0, 1)
    both.disk.write(LOG)
    numbers = (0,) if is_tiered else (0, 1)
    if is_tiered:
        shutil.rmtree(both.disk.folder)
    marks = {f"{TOPIC}_{number}": END for number in numbers}
    checkpoint(both.disk.root, HIGH_WATERMARKS, **marks)
    with pytest.raises(DataLossError, match=rf"{HIGH_WATERMARKS}: it names offsets \[0, {END}\)"):
        both.offsets()
    want = expected(LOG, stop=LOG.segments[2].base_offset) if is_tiered else expected(LOG)
    assert both.offsets(failOnDataLoss="false") == want


def test_checkpoint_of_a_folder_that_is_gone_may_promise_more(both: Both) -> None:
    both.copy(LOG, 0, 1)
    Disk(both.disk.root / "a").write(LOG)
    gone = Disk(both.disk.root / "b").write(LOG)
    shutil.rmtree(gone.folder)
    assert both.offsets() == expected(LOG)
    checkpoint(gone.root, HIGH_WATERMARKS, orders_0=END + 3)
    with pytest.raises(DataLossError, match=rf"\[{END}, {END + 3}\)"):
        both.offsets("read_uncommitted")


@pytest.mark.parametrize("state", ["future", "delete", "stray"])
def test_folders_set_aside_are_reported(both: Both, state: str) -> None:
    both.copy(LOG, 0, 1)
    disk = both.disk.write(LOG)
    set_aside(disk, state, number=1)
    set_aside(disk, state, number=2, topic_id="AAAAAAAAAAAAAAAAAAAAAQ")
    assert both.offsets() == expected(LOG)
    notes = "\n".join(plan(both.options()).notes)
    for number in (1, 2):
        assert f"orders-{number}.{'0a' * 16}-{state}/ (a -{state} folder" in notes


def test_topic_of_which_only_a_checkpoint_is_left_is_named(both: Both) -> None:
    both.copy(LOG, 0)
    both.disk.write(LOG)
    checkpoint(both.disk.root, HIGH_WATERMARKS, orders_0=END, gone_0=4)
    with pytest.raises(TopicNotFoundError, match=r"'gone'.*set aside there name gone"):
        both.offsets(subscribe="gone")


def test_log_directories_at_different_depths_are_all_read(both: Both) -> None:
    both.copy(LOG, 0)
    for number, place in enumerate(("b1", "b2/d0")):
        disk = Disk(both.disk.root / place).write(LOG)
        if number:
            shutil.move(disk.folder, disk.root / f"{TOPIC}-{number}")
            checkpoint(disk.root, HIGH_WATERMARKS, **{f"{TOPIC}_{number}": END})
    assert both.offsets() == expected(LOG) * 2
