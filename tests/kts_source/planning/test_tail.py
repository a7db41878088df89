"""A tier and disks beside it: what is read from where, and what is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kts_source.errors import (
    DataLossError,
    InvalidOptionError,
    TierNotFoundError,
    TopicNotFoundError,
)
from kts_source.options import parse_options
from kts_source.planning.describe import describe
from kts_source.planning.planner import plan
from kts_source.store.joined_store import is_beside
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from segment_format.testing.segment import write_leader_epoch_checkpoint
from tests.kts_source.layout.kafka_logs.disk import (
    HIGH_WATERMARKS,
    LOG_STARTS,
    TOPIC,
    TOPIC_ID,
    Disk,
    expected,
    transactions,
)
from tests.kts_source.planning.scanning import scan

if TYPE_CHECKING:
    from pathlib import Path

    from segment_format.testing.log_builder import BuiltLog

LEVELS = ("read_committed", "read_uncommitted")
LOG = transactions(segments=5)
END = LOG.end_offset()


class Both:
    """A tier and a disk of one topic, in folders."""

    def __init__(self, root: Path) -> None:
        self.tier, self.disk = root / "tier", Disk(root / "disk")
        self.tier.mkdir()

    def copy(self, log: BuiltLog, *numbers: int, topic_id: str = TOPIC_ID) -> None:
        """Copies segments to the tier."""
        writer = AivenTierWriter(self.tier, topic=TOPIC, topic_id=topic_id)
        for number in numbers:
            writer.write_segment(log.segments[number])

    def drop(self, log: BuiltLog, count: int) -> None:
        """Deletes the first segments of the disk, as a broker does that has copied them."""
        for segment in log.segments[:count]:
            for path in self.disk.folder.glob(f"{segment.base_offset:020d}.*"):
                path.unlink()
        base = log.segments[count].base_offset
        self.disk.put(f"{base:020d}.snapshot", log.segments[count - 1].snapshot)
        self.disk.checkpoint(LOG_STARTS, 0)

    def options(self, level: str = "read_committed", **more: str) -> dict[str, str]:
        """The options of a scan of both."""
        return {
            "path": str(self.tier),
            "tailPath": str(self.disk.root),
            "subscribe": TOPIC,
            "isolationLevel": level,
            **more,
        }

    def offsets(self, level: str = "read_committed", **more: str) -> list[int]:
        """What a scan returns."""
        found: list[int] = scan(self.options(level, **more))["offset"].to_pylist()
        return found

    def pieces(self, **more: str) -> list[tuple[bool, int, int]]:
        """Whether of the disk, and offsets, in order."""
        tasks = plan(self.options(**more)).tasks
        return [
            (is_beside(one.objects.log.key), one.start_offset, one.stop_offset)
            for task in tasks
            for one in task.slices
        ]


@pytest.fixture
def both(tmp_path: Path) -> Both:
    return Both(tmp_path)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("clean", [True, False])
def test_tail_comes_from_the_disk(both: Both, level: str, *, clean: bool) -> None:
    both.copy(LOG, 0, 1, 2)
    both.disk.write(LOG, clean=clean)
    both.drop(LOG, 2)
    assert both.offsets(level) == expected(LOG, level)
    seam = LOG.segments[3].base_offset
    assert all(is_disk == (start >= seam) for is_disk, start, _ in both.pieces())


@pytest.mark.parametrize("level", LEVELS)
def test_hole_of_the_tier_is_read_from_the_disk(both: Both, level: str) -> None:
    both.copy(LOG, 0, 2, 4)
    both.disk.write(LOG)
    both.drop(LOG, 1)
    assert both.offsets(level) == expected(LOG, level)
    assert [is_disk for is_disk, _, _ in both.pieces(isolationLevel="read_uncommitted")] == [
        False,
        True,
        False,
        True,
        False,
    ]


def test_hole_of_both_is_an_error_that_names_it(both: Both) -> None:
    both.copy(LOG, 0, 2)
    both.disk.write(LOG)
    both.drop(LOG, 2)
    low, high = LOG.segments[1].base_offset, LOG.segments[2].base_offset
    with pytest.raises(DataLossError, match=rf"the disks holds offsets \[{low}, {high}\)"):
        both.offsets("read_uncommitted")
    want = [o for o in expected(LOG, "read_uncommitted") if not low <= o < high]
    assert both.offsets("read_uncommitted", failOnDataLoss="false") == want


@pytest.mark.parametrize("level", LEVELS)
def test_disk_that_is_older_than_the_tier(both: Both, level: str) -> None:
    """It was copied before the last segments were: theirs are rows all the same."""
    older = transactions(segments=5)
    both.disk.write(older, high_watermark=LOG.segments[2].base_offset)
    for segment in LOG.segments[3:]:
        for path in both.disk.folder.glob(f"{segment.base_offset:020d}.*"):
            path.unlink()
    both.copy(LOG, 0, 1, 2, 3, 4)
    assert both.offsets(level) == expected(LOG, level)
    assert not any(is_disk for is_disk, _, _ in both.pieces())


@pytest.mark.parametrize("level", LEVELS)
def test_what_was_copied_had_been_replicated(both: Both, level: str) -> None:
    """The disk's high watermark is of an earlier moment than the tier: it may fill its hole."""
    both.copy(LOG, 0, 1, 3)
    both.disk.write(LOG, high_watermark=LOG.segments[2].base_offset + 3)
    stop = LOG.segments[4].base_offset
    assert both.offsets(level) == expected(LOG, level, stop=stop)


@pytest.mark.parametrize("level", LEVELS)
def test_records_deleted_are_not_read_again(both: Both, level: str) -> None:
    both.copy(LOG, 0, 1, 2)
    both.disk.write(LOG)
    both.drop(LOG, 2)
    start = LOG.segments[1].base_offset + 4
    both.disk.checkpoint(LOG_STARTS, start)
    assert both.offsets(level) == [o for o in expected(LOG, level) if o >= start]


def test_log_start_of_the_epoch_checkpoint_counts_after_a_crash(both: Both) -> None:
    both.copy(LOG, 0, 1, 2)
    both.disk.write(LOG, clean=False)
    both.drop(LOG, 2)
    start = LOG.segments[1].base_offset + 4
    both.disk.put("leader-epoch-checkpoint", write_leader_epoch_checkpoint([(0, start)]))
    assert both.offsets() == [o for o in expected(LOG) if o >= start]


def test_transaction_that_the_disk_aborts_is_not_read_from_the_tier(both: Both) -> None:
    builder = LogBuilder()
    builder.send(7, [SimpleRecord(b"never")])
    builder.append([SimpleRecord(b"always")])
    builder.roll()
    builder.append([SimpleRecord(b"too")])
    builder.abort(7)
    log = builder.build()
    both.copy(log, 0)
    for clean in (True, False):
        root = both.disk.root / str(clean)
        both.disk = Disk(root)
        both.disk.write(log, clean=clean)
        both.drop(log, 1)
        assert scan(both.options())["value"].to_pylist() == [b"always", b"too"]
    # Without the snapshot of the first segment, nothing tells what was open there.
    (both.disk.folder / f"{log.segments[1].base_offset:020d}.snapshot").unlink()
    with pytest.raises(DataLossError, match="producer snapshot"):
        scan(both.options())
    assert len(scan(both.options("read_uncommitted"))) == 3


def test_dead_branch_of_the_tier_is_not_read(both: Both) -> None:
    """An unclean leader wrote other records; the tier has the ones that were lost."""
    dead, alive = LogBuilder(), LogBuilder()
    for builder in (dead, alive):
        builder.append([SimpleRecord(b"first")] * 3)
        builder.roll()
        builder.append([SimpleRecord(b"second")] * 2)
    dead.append([SimpleRecord(b"dead")] * 4)
    alive.set_leader_epoch(1)
    alive.append([SimpleRecord(b"alive")] * 2)
    both.copy(dead.build(), 0, 1)
    both.disk.write(alive.build())
    values = scan(both.options("read_uncommitted"))["value"].to_pylist()
    assert values == [b"first"] * 3 + [b"second"] * 2 + [b"alive"] * 2


def test_dead_branch_of_the_disk_is_not_read(both: Both) -> None:
    dead, alive = LogBuilder(), LogBuilder()
    for builder in (dead, alive):
        builder.append([SimpleRecord(b"first")] * 3)
    alive.set_leader_epoch(1)
    alive.append([SimpleRecord(b"alive")] * 2)
    dead.append([SimpleRecord(b"dead")] * 8)
    both.copy(alive.build(), 0)
    both.disk.write(dead.build())
    values = scan(both.options("read_uncommitted"))["value"].to_pylist()
    assert values == [b"first"] * 3 + [b"alive"] * 2


def test_another_topic_id_is_refused_unless_one_is_chosen(both: Both) -> None:
    other = "X" * 21 + "A"
    both.copy(LOG, 0, 1, topic_id=other)
    both.disk.write(LOG)
    with pytest.raises(InvalidOptionError, match=f"{other}.*{TOPIC_ID}.*topicId"):
        both.offsets()
    with pytest.raises(InvalidOptionError, match=f"{other}.*{TOPIC_ID}"):
        both.offsets(topicId=other)
    assert both.offsets(topicId=TOPIC_ID) == expected(LOG)


def test_partition_of_another_topic_id_alone_is_told(both: Both) -> None:
    # Its `partition.metadata` was not copied, perhaps: nothing else tells that it is not read.
    both.copy(LOG, 0, 1)
    folder = both.disk.write(LOG).folder
    folder.rename(folder.with_name(f"{TOPIC}-1"))
    (folder.with_name(f"{TOPIC}-1") / "partition.metadata").unlink()
    Disk(both.disk.root).write(LOG)
    (note,) = plan(both.options()).notes
    assert note == f"topic {TOPIC}: on disks, partitions [1] are of another topic id only"


def test_topic_that_was_never_tiered_comes_from_the_disk(both: Both) -> None:
    both.disk.write(LOG)
    assert both.offsets() == expected(LOG)
    (note,) = plan(both.options()).notes
    assert "all of it is on disks" in note


def test_tier_that_is_not_where_it_should_be_is_data_loss(both: Both) -> None:
    """The disk says that it was tiered: its log starts below its first segment."""
    both.disk.write(LOG)
    both.drop(LOG, 2)
    with pytest.raises(DataLossError, match=rf"\[0, {LOG.segments[2].base_offset}\)"):
        both.offsets()


def test_path_without_log_directories_is_named(both: Both, tmp_path: Path) -> None:
    both.copy(LOG, 0)
    both.disk.write(LOG)
    (tmp_path / "typo").mkdir()
    with pytest.raises(TierNotFoundError, match=r"tailPath.*typo"):
        both.offsets(tailPath=f"{both.disk.root},{tmp_path / 'typo'}")
    with pytest.raises(TopicNotFoundError, match=r"'nothing'.*orders"):
        both.offsets(subscribe="nothing")


def test_several_paths_are_several_brokers(both: Both, tmp_path: Path) -> None:
    both.copy(LOG, 0, 1)
    lagging = Disk(tmp_path / "lagging").write(LOG, high_watermark=2)
    last = lagging.files("log")[-1]
    for path in lagging.folder.glob(f"{last.stem}.*"):
        path.unlink()
    both.disk.write(LOG)
    for paths in (f"{lagging.root}, {both.disk.root}", f"{both.disk.root},{lagging.root}"):
        assert both.offsets(tailPath=paths) == expected(LOG)


def test_explain_and_describe_tell_the_seam(both: Both) -> None:
    both.copy(LOG, 0, 1, 2)
    both.disk.write(LOG, high_watermark=END - 1)
    both.drop(LOG, 1)
    seam = LOG.segments[3].base_offset
    text = plan(both.options()).explain()
    assert f"the tier ends at {seam}" in text
    assert "  disk tailPath:/0/orders-0/" in text
    (found,) = describe(both.options()).partitions
    assert (found.tier_end, found.high_watermark) == (seam, END - 1)
    assert found.local_start == LOG.segments[1].base_offset
    assert found.disk_offsets == END - 1 - seam
    assert found.disk_bytes
    first = next(row for row in LOG.all_rows if row.offset >= seam)
    assert found.oldest_untiered_ms == first.timestamp


def test_timestamps_are_looked_up_in_both(both: Both) -> None:
    builder = LogBuilder()
    for number in range(30):
        builder.append([SimpleRecord(b"x", timestamp=1000 * number)])
        if number % 10 == 9:
            builder.roll()
    log = builder.build()
    both.copy(log, 0, 1)
    both.disk.write(log)
    for start in (5, 15, 25):
        assert both.offsets(startingTimestamp=str(1000 * start)) == list(range(start, 30))


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"kafka.bootstrap.servers": "localhost:1"}, "tailPath.*kafka.bootstrap.servers"),
        ({"layout": "kafka-logs"}, "tailPath.*kafka-logs"),
        (
            {"tailPath": "", "layout": "kafka-logs", "kafka.bootstrap.servers": "localhost:1"},
            "kafka-logs.*kafka.bootstrap.servers",
        ),
        ({"tailPath": "/a,,/b"}, "tailPath.*empty"),
        ({"tailPath": "https://host/list.json?a=s3cr3t"}, "tailPath.*presigned"),
        ({"tailPath": "", "endOfLog": "true"}, "endOfLog.*tailPath"),
        ({"tailPath": "s3://key:word@bucket"}, "credentials"),
    ],
)
def test_what_does_not_go_together_is_refused(more: dict[str, str], named: str) -> None:
    given = {"path": "/tier", "tailPath": "/disk", "subscribe": TOPIC, **more}
    if not given["tailPath"]:
        del given["tailPath"]
    with pytest.raises(InvalidOptionError, match=named) as caught:
        parse_options(given)
    assert "word" not in str(caught.value)
    assert "s3cr3t" not in str(caught.value)


def test_end_of_log_is_of_the_disk(both: Both) -> None:
    both.copy(LOG, 0)
    both.disk.write(LOG, high_watermark=LOG.segments[3].base_offset)
    both.disk.checkpoint(HIGH_WATERMARKS, LOG.segments[3].base_offset)
    assert both.offsets(endOfLog="true") == expected(LOG)
    assert both.offsets() == expected(LOG, stop=LOG.segments[3].base_offset)
