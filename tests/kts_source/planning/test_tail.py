"""Checks scans of a tier and broker disks (option `tailPath`).

The tests check if each row is read from the tier or from a disk, and which options are rejected.
"""

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
from kts_source.planning.describe import describe, selected_topics
from kts_source.planning.planner import plan
from kts_source.store.joined_store import is_in_additional_store
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from segment_format.testing.segment import write_leader_epoch_checkpoint
from tests.kts_source.layout.kafka_logs.disk import (
    HIGH_WATERMARKS,
    LOG_STARTS,
    TOPIC,
    TOPIC_ID,
    Disk,
    build_transactions,
    list_expected_offsets,
)
from tests.kts_source.planning.scanning import scan

if TYPE_CHECKING:
    from pathlib import Path

    from segment_format.testing.log_builder import BuiltLog

LEVELS = ("read_committed", "read_uncommitted")
LOG = build_transactions(segments=5)
END = LOG.end_offset()


class TierAndDisk:
    """A tier and a broker disk of the same topic, in two folders."""

    def __init__(self, root: Path) -> None:
        self.tier, self.disk = root / "tier", Disk(root / "disk")
        self.tier.mkdir()

    def copy(self, log: BuiltLog, *numbers: int, topic_id: str = TOPIC_ID) -> None:
        """Copies the segments of `log` with the numbers in `numbers` to the tier."""
        writer = AivenTierWriter(self.tier, topic=TOPIC, topic_id=topic_id)
        for number in numbers:
            writer.write_segment(log.segments[number])

    def drop(self, log: BuiltLog, count: int) -> None:
        """Deletes the first `count` segments of the disk, as a broker does after it copied them to
        the tier.
        """
        for segment in log.segments[:count]:
            for path in self.disk.folder.glob(f"{segment.base_offset:020d}.*"):
                path.unlink()
        base = log.segments[count].base_offset
        self.disk.put(f"{base:020d}.snapshot", log.segments[count - 1].snapshot)
        self.disk.checkpoint(LOG_STARTS, 0)

    def make_options(self, level: str = "read_committed", **extra: str) -> dict[str, str]:
        """Returns the options of a scan of tier and disk."""
        return {
            "path": str(self.tier),
            "tailPath": str(self.disk.root),
            "subscribe": TOPIC,
            "isolationLevel": level,
            **extra,
        }

    def read_offsets(self, level: str = "read_committed", **extra: str) -> list[int]:
        """Returns the offsets that a scan reads."""
        rows: list[int] = scan(self.make_options(level, **extra))["offset"].to_pylist()
        return rows

    def list_slices(self, **extra: str) -> list[tuple[bool, int, int]]:
        """Returns for each slice, in plan order: whether the slice is on the disk, its start
        offset, and its stop offset.
        """
        tasks = plan(self.make_options(**extra)).tasks
        return [
            (
                is_in_additional_store(task_slice.objects.log.key),
                task_slice.start_offset,
                task_slice.stop_offset,
            )
            for task in tasks
            for task_slice in task.slices
        ]


@pytest.fixture
def scene(tmp_path: Path) -> TierAndDisk:
    return TierAndDisk(tmp_path)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("clean", [True, False])
def test_offsets_after_the_tier_are_read_from_disk(
    scene: TierAndDisk, level: str, *, clean: bool
) -> None:
    scene.copy(LOG, 0, 1, 2)
    scene.disk.write(LOG, clean=clean)
    scene.drop(LOG, 2)
    assert scene.read_offsets(level) == list_expected_offsets(LOG, level)
    tier_end = LOG.segments[3].base_offset
    assert all(is_disk == (start >= tier_end) for is_disk, start, _ in scene.list_slices())


@pytest.mark.parametrize("level", LEVELS)
def test_offsets_missing_in_tier_are_read_from_disk(scene: TierAndDisk, level: str) -> None:
    scene.copy(LOG, 0, 2, 4)
    scene.disk.write(LOG)
    scene.drop(LOG, 1)
    assert scene.read_offsets(level) == list_expected_offsets(LOG, level)
    assert [is_disk for is_disk, _, _ in scene.list_slices(isolationLevel="read_uncommitted")] == [
        False,
        True,
        False,
        True,
        False,
    ]


def test_offsets_missing_in_tier_and_on_disk_raise_data_loss_error(scene: TierAndDisk) -> None:
    scene.copy(LOG, 0, 2)
    scene.disk.write(LOG)
    scene.drop(LOG, 2)
    low, high = LOG.segments[1].base_offset, LOG.segments[2].base_offset
    with pytest.raises(DataLossError, match=rf"the disks holds offsets \[{low}, {high}\)"):
        scene.read_offsets("read_uncommitted")
    rows = [o for o in list_expected_offsets(LOG, "read_uncommitted") if not low <= o < high]
    assert scene.read_offsets("read_uncommitted", failOnDataLoss="false") == rows


@pytest.mark.parametrize("level", LEVELS)
def test_offsets_missing_on_an_older_disk_are_read_from_tier(
    scene: TierAndDisk, level: str
) -> None:
    """The disk was copied before the last segments were written."""
    older = build_transactions(segments=5)
    scene.disk.write(older, high_watermark=LOG.segments[2].base_offset)
    for segment in LOG.segments[3:]:
        for path in scene.disk.folder.glob(f"{segment.base_offset:020d}.*"):
            path.unlink()
    scene.copy(LOG, 0, 1, 2, 3, 4)
    assert scene.read_offsets(level) == list_expected_offsets(LOG, level)
    assert not any(is_disk for is_disk, _, _ in scene.list_slices())


@pytest.mark.parametrize("level", LEVELS)
def test_disk_fills_hole_in_tier_even_above_its_high_watermark(
    scene: TierAndDisk, level: str
) -> None:
    """The high watermark of the disk is older than the tier. Records below a tiered segment are
    replicated, so the scan may read them from the disk above this high watermark.
    """
    scene.copy(LOG, 0, 1, 3)
    scene.disk.write(LOG, high_watermark=LOG.segments[2].base_offset + 3)
    stop = LOG.segments[4].base_offset
    assert scene.read_offsets(level) == list_expected_offsets(LOG, level, stop=stop)


@pytest.mark.parametrize("level", LEVELS)
def test_records_below_log_start_of_disk_are_not_read(scene: TierAndDisk, level: str) -> None:
    scene.copy(LOG, 0, 1, 2)
    scene.disk.write(LOG)
    scene.drop(LOG, 2)
    start = LOG.segments[1].base_offset + 4
    scene.disk.checkpoint(LOG_STARTS, start)
    assert scene.read_offsets(level) == [o for o in list_expected_offsets(LOG, level) if o >= start]


def test_tiered_log_starts_at_its_first_leader_epoch_after_crash(scene: TierAndDisk) -> None:
    scene.copy(LOG, 0, 1, 2)
    scene.disk.write(LOG, clean=False)
    scene.drop(LOG, 2)
    start = LOG.segments[1].base_offset + 4
    scene.disk.put("leader-epoch-checkpoint", write_leader_epoch_checkpoint([(0, start)]))
    assert scene.read_offsets() == [o for o in list_expected_offsets(LOG) if o >= start]


def test_tiered_records_of_transaction_aborted_on_disk_are_not_read(scene: TierAndDisk) -> None:
    builder = LogBuilder()
    builder.send(7, [SimpleRecord(b"never")])
    builder.append([SimpleRecord(b"always")])
    builder.roll()
    builder.append([SimpleRecord(b"too")])
    builder.abort(7)
    log = builder.build()
    scene.copy(log, 0)
    for clean in (True, False):
        root = scene.disk.root / str(clean)
        scene.disk = Disk(root)
        scene.disk.write(log, clean=clean)
        scene.drop(log, 1)
        assert scan(scene.make_options())["value"].to_pylist() == [b"always", b"too"]
    # Without the snapshot of the first segment, its open transactions are unknown.
    (scene.disk.folder / f"{log.segments[1].base_offset:020d}.snapshot").unlink()
    with pytest.raises(DataLossError, match="producer snapshot"):
        scan(scene.make_options())
    assert len(scan(scene.make_options("read_uncommitted"))) == 3


def test_dead_branch_in_tier_is_not_read(scene: TierAndDisk) -> None:
    """After an unclean election, the leader wrote records that differ from those in the tier."""
    dead, alive = LogBuilder(), LogBuilder()
    for builder in (dead, alive):
        builder.append([SimpleRecord(b"first")] * 3)
        builder.roll()
        builder.append([SimpleRecord(b"second")] * 2)
    dead.append([SimpleRecord(b"dead")] * 4)
    alive.set_leader_epoch(1)
    alive.append([SimpleRecord(b"alive")] * 2)
    scene.copy(dead.build(), 0, 1)
    scene.disk.write(alive.build())
    values = scan(scene.make_options("read_uncommitted"))["value"].to_pylist()
    assert values == [b"first"] * 3 + [b"second"] * 2 + [b"alive"] * 2


def test_dead_branch_on_disk_is_not_read(scene: TierAndDisk) -> None:
    dead, alive = LogBuilder(), LogBuilder()
    for builder in (dead, alive):
        builder.append([SimpleRecord(b"first")] * 3)
    alive.set_leader_epoch(1)
    alive.append([SimpleRecord(b"alive")] * 2)
    dead.append([SimpleRecord(b"dead")] * 8)
    scene.copy(alive.build(), 0)
    scene.disk.write(dead.build())
    values = scan(scene.make_options("read_uncommitted"))["value"].to_pylist()
    assert values == [b"first"] * 3 + [b"alive"] * 2


def test_different_topic_ids_in_tier_and_on_disk_require_topic_id_option(
    scene: TierAndDisk,
) -> None:
    other = "X" * 21 + "A"
    scene.copy(LOG, 0, 1, topic_id=other)
    scene.disk.write(LOG)
    with pytest.raises(InvalidOptionError, match=f"{other}.*{TOPIC_ID}.*topicId"):
        scene.read_offsets()
    with pytest.raises(InvalidOptionError, match=f"{other}.*{TOPIC_ID}"):
        scene.read_offsets(topicId=other)
    assert scene.read_offsets(topicId=TOPIC_ID) == list_expected_offsets(LOG)


def test_disk_partition_with_a_different_topic_id_is_reported(scene: TierAndDisk) -> None:
    # The `partition.metadata` file may not have been copied to this disk. Only the note shows that
    # the partition is not read.
    scene.copy(LOG, 0, 1)
    folder = scene.disk.write(LOG).folder
    folder.rename(folder.with_name(f"{TOPIC}-1"))
    (folder.with_name(f"{TOPIC}-1") / "partition.metadata").unlink()
    Disk(scene.disk.root).write(LOG)
    (note,) = plan(scene.make_options()).notes
    assert note == f"topic {TOPIC}: on disks, partitions [1] have another topic id"


def test_topic_without_tiered_segments_is_read_from_disk(scene: TierAndDisk) -> None:
    scene.disk.write(LOG)
    assert scene.read_offsets() == list_expected_offsets(LOG)
    (note,) = plan(scene.make_options()).notes
    assert "all of it is on disks" in note


def test_selected_topics_are_from_tier_and_disks(scene: TierAndDisk) -> None:
    scene.disk.write(LOG)
    options = scene.make_options(subscribePattern=".*")
    del options["subscribe"]
    assert selected_topics(parse_options(options)) == [TOPIC]
    writer = AivenTierWriter(scene.tier, topic="clicks")
    writer.write_segment(LOG.segments[0])
    assert selected_topics(parse_options(options)) == ["clicks", TOPIC]


def test_missing_tier_raises_data_loss_error(scene: TierAndDisk) -> None:
    """The log start on the disk is below the first segment, so the topic was tiered."""
    scene.disk.write(LOG)
    scene.drop(LOG, 2)
    with pytest.raises(DataLossError, match=rf"\[0, {LOG.segments[2].base_offset}\)"):
        scene.read_offsets()


def test_tail_path_without_log_directory_or_topic_raises_error(
    scene: TierAndDisk, tmp_path: Path
) -> None:
    scene.copy(LOG, 0)
    scene.disk.write(LOG)
    (tmp_path / "typo").mkdir()
    with pytest.raises(TierNotFoundError, match=r"tailPath.*typo"):
        scene.read_offsets(tailPath=f"{scene.disk.root},{tmp_path / 'typo'}")
    with pytest.raises(TopicNotFoundError, match=r"'nothing'.*orders"):
        scene.read_offsets(subscribe="nothing")


def test_disks_of_several_tail_paths_are_read_together(scene: TierAndDisk, tmp_path: Path) -> None:
    scene.copy(LOG, 0, 1)
    lagging = Disk(tmp_path / "lagging").write(LOG, high_watermark=2)
    last = lagging.files("log")[-1]
    for path in lagging.folder.glob(f"{last.stem}.*"):
        path.unlink()
    scene.disk.write(LOG)
    for paths in (f"{lagging.root}, {scene.disk.root}", f"{scene.disk.root},{lagging.root}"):
        assert scene.read_offsets(tailPath=paths) == list_expected_offsets(LOG)


def test_explain_and_describe_report_end_of_tier(scene: TierAndDisk) -> None:
    scene.copy(LOG, 0, 1, 2)
    scene.disk.write(LOG, high_watermark=END - 1)
    scene.drop(LOG, 1)
    tier_end = LOG.segments[3].base_offset
    text = plan(scene.make_options()).explain()
    assert f"the tier ends at {tier_end}" in text
    assert "  disk tailPath:/0/orders-0/" in text
    (partition,) = describe(scene.make_options()).partitions
    assert (partition.tier_end, partition.high_watermark) == (tier_end, END - 1)
    assert partition.local_start == LOG.segments[1].base_offset
    assert partition.disk_offsets == END - 1 - tier_end
    assert partition.disk_bytes
    first = next(row for row in LOG.all_rows if row.offset >= tier_end)
    assert partition.oldest_untiered_ms == first.timestamp


def test_starting_timestamp_is_found_in_tier_and_on_disk(scene: TierAndDisk) -> None:
    builder = LogBuilder()
    for number in range(30):
        builder.append([SimpleRecord(b"x", timestamp=1000 * number)])
        if number % 10 == 9:
            builder.roll()
    log = builder.build()
    scene.copy(log, 0, 1)
    scene.disk.write(log)
    for start in (5, 15, 25):
        assert scene.read_offsets(startingTimestamp=str(1000 * start)) == list(range(start, 30))


@pytest.mark.parametrize(
    ("extra", "message"),
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
def test_invalid_tail_options_raise_invalid_option_error(
    extra: dict[str, str], message: str
) -> None:
    options = {"path": "/tier", "tailPath": "/disk", "subscribe": TOPIC, **extra}
    if not options["tailPath"]:
        del options["tailPath"]
    with pytest.raises(InvalidOptionError, match=message) as error:
        parse_options(options)
    assert "word" not in str(error.value)
    assert "s3cr3t" not in str(error.value)


def test_option_end_of_log_reads_disk_above_high_watermark(scene: TierAndDisk) -> None:
    scene.copy(LOG, 0)
    scene.disk.write(LOG, high_watermark=LOG.segments[3].base_offset)
    scene.disk.checkpoint(HIGH_WATERMARKS, LOG.segments[3].base_offset)
    assert scene.read_offsets(endOfLog="true") == list_expected_offsets(LOG)
    assert scene.read_offsets() == list_expected_offsets(LOG, stop=LOG.segments[3].base_offset)
