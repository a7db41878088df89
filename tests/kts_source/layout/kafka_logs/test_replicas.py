"""Disks of several brokers: which replica is read, and where its log ends."""

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
    expected,
    offsets,
    transactions,
)

if TYPE_CHECKING:
    from pathlib import Path

    from segment_format.testing.log_builder import BuiltLog

LOG = transactions()
END = LOG.end_offset()


def branch(*epochs: tuple[int, int], name: str) -> BuiltLog:
    """A log with so many records in each leader epoch, a batch each."""
    builder = LogBuilder()
    for epoch, count in epochs:
        if epoch:
            builder.set_leader_epoch(epoch)
        for number in range(count):
            builder.append([SimpleRecord(b"%s %d" % (name.encode(), number))])
    return builder.build()


def values(root: Path, **given: str) -> list[bytes]:
    """The values that a scan returns."""
    from tests.kts_source.planning.scanning import scan

    options = {"path": str(root), "layout": "kafka-logs", "subscribe": TOPIC, **given}
    found: list[bytes] = scan(options)["value"].to_pylist()
    return found


def keys_read(root: Path, **given: str) -> set[str]:
    """The log files that a plan reads."""
    options = {"path": str(root), "layout": "kafka-logs", "subscribe": TOPIC, **given}
    return {
        part.objects.log.key.split("/")[0] for task in plan(options).tasks for part in task.slices
    }


@pytest.mark.parametrize("below", ["", "data0/"])
def test_log_directories_are_found_below_the_root(tmp_path: Path, below: str) -> None:
    Disk(tmp_path / f"broker-1/{below}").write(LOG)
    assert offsets(tmp_path) == expected(LOG)
    assert offsets(tmp_path / "broker-1") == expected(LOG)
    assert offsets(tmp_path, keyPrefix="broker-1") == expected(LOG)


def test_folder_with_a_partition_name_is_not_a_partition(tmp_path: Path) -> None:
    Disk(tmp_path / f"{TOPIC}-1").write(LOG)
    assert offsets(tmp_path) == expected(LOG)


def test_longest_replica_of_the_highest_epoch_is_read_once(tmp_path: Path) -> None:
    short = transactions(segments=2)
    Disk(tmp_path / "a").write(short, high_watermark=10)
    Disk(tmp_path / "b").write(LOG)
    Disk(tmp_path / "c").write(LOG, high_watermark=20)
    assert offsets(tmp_path) == expected(LOG)
    assert len(keys_read(tmp_path)) == 1
    assert "a" not in keys_read(tmp_path)


def test_high_watermark_of_a_lagging_replica_counts(tmp_path: Path) -> None:
    """The survivor may have written its own down earlier than a replica that is behind it."""
    Disk(tmp_path / "a").write(LOG, high_watermark=10)
    Disk(tmp_path / "b").write(LOG, high_watermark=29)
    assert offsets(tmp_path, "read_uncommitted") == expected(LOG, "read_uncommitted", stop=29)


def test_higher_epoch_wins_over_more_records(tmp_path: Path) -> None:
    dead = branch((0, 5), (1, 20), name="dead")
    live = branch((0, 5), (3, 4), name="live")
    Disk(tmp_path / "a").write(dead)
    Disk(tmp_path / "b").write(live)
    assert values(tmp_path)[5:] == [b"live %d" % number for number in range(4)]
    assert keys_read(tmp_path) == {"b"}


def test_high_watermark_of_a_dead_branch_does_not_count(tmp_path: Path) -> None:
    dead = branch((0, 5), (1, 20), name="dead")
    live = branch((0, 5), (3, 9), name="live")
    Disk(tmp_path / "a").write(dead, high_watermark=12)
    Disk(tmp_path / "b").write(live, high_watermark=7)
    assert len(values(tmp_path)) == 7
    assert len(values(tmp_path, endOfLog="true")) == 14


def test_dead_branch_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Disk(tmp_path / "a").write(branch((0, 5), (1, 20), name="dead"))
    Disk(tmp_path / "b").write(branch((0, 5), (3, 9), name="live"))
    values(tmp_path)
    assert "from offset 5 on of a branch that died" in caplog.text


def test_what_is_torn_on_one_disk_is_read_from_another(tmp_path: Path) -> None:
    torn = Disk(tmp_path / "a").write(LOG, clean=False)
    log = torn.files("log")[-1]
    log.write_bytes(log.read_bytes()[:-100])
    Disk(tmp_path / "b").write(LOG, clean=False, high_watermark=0)
    assert offsets(tmp_path) == expected(LOG)
    assert keys_read(tmp_path) == {"b"}


def test_records_that_a_high_watermark_promises_and_no_replica_has_are_lost(
    tmp_path: Path,
) -> None:
    Disk(tmp_path / "a").write(LOG, high_watermark=END + 5)
    Disk(tmp_path / "b").write(LOG)
    with pytest.raises(DataLossError, match=rf"\[{END}, {END + 5}\)"):
        offsets(tmp_path)


def test_folders_set_aside_are_named_and_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk(tmp_path).write(LOG)
    other = transactions(segments=1)
    for state in ("future", "delete", "stray"):
        aside = Disk(tmp_path / "x").write(other)
        aside.folder.rename(tmp_path / f"{TOPIC}-0.{'0a' * 16}-{state}")
        for path in (tmp_path / "x").iterdir():
            path.unlink()
        (tmp_path / "x").rmdir()
    assert offsets(disk.root) == expected(LOG)
    for state in ("future", "delete", "stray"):
        assert f"{'0a' * 16}-{state}/ (a -{state} folder, left alone)" in caplog.text


def test_topic_that_was_created_again_is_chosen_by_its_id(tmp_path: Path) -> None:

    Disk(tmp_path / "a").write(LOG)
    again = Disk(tmp_path / "b").write(branch((0, 3), name="again"))
    again.put("partition.metadata", b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    with pytest.raises(InvalidOptionError, match="topicId"):
        offsets(tmp_path)
    assert len(values(tmp_path, topicId="AAAAAAAAAAAAAAAAAAAAAQ")) == 3


def test_checkpoint_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    from kts_source.errors import CorruptSegmentError

    Disk(tmp_path).write(LOG)
    (tmp_path / HIGH_WATERMARKS).write_text("0\n2\norders 0 5\n")
    with pytest.raises(CorruptSegmentError, match=HIGH_WATERMARKS):
        offsets(tmp_path)


@pytest.mark.parametrize("name", ["__consumer_offsets", "__cluster_metadata"])
def test_subscribe_pattern_skips_internal_topics(tmp_path: Path, name: str) -> None:
    # They stand on the same disks; a consumer does not get them by a pattern either.
    Disk(tmp_path).write(LOG).folder.rename(tmp_path / f"{name}-0")
    Disk(tmp_path).write(LOG)
    lines = ("0", "2", f"{TOPIC} 0 {END}", f"{name} 0 {END}", "")
    (tmp_path / HIGH_WATERMARKS).write_text("\n".join(lines))
    for given, topic in (({"subscribePattern": "."}, TOPIC), ({"subscribe": name}, name)):
        found = plan({"path": str(tmp_path), "layout": "kafka-logs", **given})
        assert [part.topic for part in found.partitions] == [topic]


@pytest.fixture
def apart(tmp_path: Path) -> tuple[Disk, Disk]:
    """Two log directories in different places: a partition on both, one on the second alone."""
    first = Disk(tmp_path / "mnt" / "a" / "kafka").write(LOG, high_watermark=0)
    second = Disk(tmp_path / "srv" / "deep" / "down" / "kafka").write(LOG)
    second.folder.rename(second.root / f"{TOPIC}-1")
    Disk(second.root).write(LOG)
    lines = ("0", "2", f"{TOPIC} 0 {END}", f"{TOPIC} 1 {END}", "")
    (second.root / HIGH_WATERMARKS).write_text("\n".join(lines))
    return first, second


def test_several_paths_are_read_as_one(apart: tuple[Disk, Disk], tmp_path: Path) -> None:
    first, second = apart
    path = f"{first.root}, {second.root}"
    given = {"path": path, "layout": "kafka-logs", "subscribe": TOPIC}
    found = plan(given)
    assert [(part.partition, part.wanted_stop) for part in found.partitions] == [(0, END), (1, END)]
    once = expected(LOG)
    # Planned here, read by a worker that has the options and the tasks.
    assert kts_source.scan(given).to_table()["offset"].to_pylist() == once * 2
    file = tmp_path / "plan.json"
    file.write_text(found.to_json())
    assert kts_source.scan({**given, "planFile": str(file)}).to_table().num_rows == 2 * len(once)
    with pytest.raises(InvalidOptionError, match=r"several paths, so option .*'path'"):
        plan({**given, "path": str(first.root), "planFile": str(file)})


def test_each_of_several_paths_must_hold_disks(apart: tuple[Disk, Disk], tmp_path: Path) -> None:
    first, _ = apart
    (tmp_path / "typo").mkdir()
    given = {"layout": "kafka-logs", "subscribe": TOPIC}
    with pytest.raises(TierNotFoundError, match=r"'path': no log directory.*typo"):
        plan({**given, "path": f"{first.root},{tmp_path / 'typo'}"})
    with pytest.raises(InvalidOptionError, match="'path' names an empty path"):
        plan({**given, "path": f"{first.root},"})
    with pytest.raises(InvalidOptionError, match="holds credentials") as error:
        plan({**given, "path": f"{first.root},s3://me:hidden@bucket"})
    assert "hidden" not in str(error.value)
