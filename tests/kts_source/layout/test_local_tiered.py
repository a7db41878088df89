"""Checks the layout of `LocalTieredStorage`.

The layout returns the metadata that the broker recorded for each segment. It reports files that
belong to no complete segment as orphans.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import CorruptSegmentError, InvalidOptionError, TierNotFoundError
from kts_source.layout.find_layout import find_layout
from kts_source.layout.layout import TopicFolder
from kts_source.layout.local_tiered import LocalTieredLayout
from kts_source.layout.remote_segment import IndexType, RemoteSegment
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.store.local_store import LocalStore
from segment_format.testing import LocalTierWriter, LogBuilder, SimpleRecord
from tests.golden_data import LOCAL_TIER

if TYPE_CHECKING:
    from pathlib import Path

ID = "AAAAAAAAAAAAAAAAAAAAAQ"
OTHER_ID = "AAAAAAAAAAAAAAAAAAAAAg"
LAYOUT = LocalTieredLayout()


def write_segments(
    root: Path,
    builder: LogBuilder,
    topic: str = "topic",
    partition: int = 0,
    topic_id: str = ID,
    segment_id: str | None = None,
) -> None:
    """Writes every segment of the log to a tier in folder `root`."""
    writer = LocalTierWriter(root, topic=topic, partition=partition, topic_id=topic_id)
    for segment in builder.build().segments:
        writer.write_segment(segment, segment_id=segment_id)


def build_two_segments() -> LogBuilder:
    builder = LogBuilder()
    builder.append([SimpleRecord(b"one"), SimpleRecord(b"two")])
    builder.roll()
    builder.append([SimpleRecord(b"three")])
    return builder


def describe_segments(root: Path, topic: str = "topic", partition: int = 0) -> list[RemoteSegment]:
    store = LocalStore(root)
    (folder,) = LAYOUT.topic_folders(store, "", topic)
    listing = LAYOUT.list_partition(store, folder, partition)
    return [LAYOUT.describe(store, entry) for entry in listing.segments]


def find_files(root: Path, suffix: str) -> list[Path]:
    return sorted(root.rglob(f"*.{suffix}"))


def test_find_layout_returns_local_tiered_layout() -> None:
    assert isinstance(find_layout("local-tiered-storage"), LocalTieredLayout)


@pytest.mark.parametrize("prefix", ["", "kafka-tiered-storage/"])
def test_topic_folders_are_found_with_and_without_plugin_folder_in_prefix(prefix: str) -> None:
    store = LocalStore(LOCAL_TIER / "tier")
    root = "kafka-tiered-storage/"
    txn = TopicFolder("txn", "h6E3T0qxTBWvCFM3wG8kig", root)
    assert LAYOUT.topic_folders(store, prefix, None) == (
        TopicFolder("codecs", "4a7BQJehQpqNsTR-REzvCA", root),
        txn,
    )
    assert LAYOUT.topic_folders(store, prefix, "txn") == (txn,)
    assert LAYOUT.topic_folders(store, prefix, "tx") == ()
    assert LAYOUT.partitions(store, txn) == (0, 1)


def test_topic_names_with_dashes_and_digits_are_distinguished(tmp_path: Path) -> None:
    for topic, partition in (("a", 0), ("a-0", 1), ("a-0-1", 2), ("a", 12)):
        write_segments(tmp_path, build_two_segments(), topic, partition)
    store = LocalStore(tmp_path)
    partitions = {
        folder.topic: LAYOUT.partitions(store, folder)
        for folder in LAYOUT.topic_folders(store, "", None)
    }
    assert partitions == {"a": (0, 12), "a-0": (1,), "a-0-1": (2,)}
    assert [segment.partition for segment in describe_segments(tmp_path, "a-0", 1)] == [1, 1]


def test_describe_returns_segment_metadata(tmp_path: Path) -> None:
    builder = LogBuilder(start_offset=7, leader_epoch=1)
    builder.append([SimpleRecord(b"x", timestamp=50), SimpleRecord(b"y", timestamp=20)])
    builder.set_leader_epoch(4)
    builder.send(9, [SimpleRecord(b"z", timestamp=30)])
    builder.roll()
    builder.set_leader_epoch(6)
    builder.append([SimpleRecord(b"untimed", timestamp=-1)])
    write_segments(tmp_path, builder)
    first, second = describe_segments(tmp_path)
    assert (first.start_offset, first.end_offset, first.max_timestamp_ms) == (7, 9, 50)
    assert [(entry.epoch, entry.start_offset) for entry in first.leader_epochs] == [(1, 7), (4, 9)]
    assert (second.start_offset, second.end_offset, second.max_timestamp_ms) == (10, 10, -1)
    assert [(entry.epoch, entry.start_offset) for entry in second.leader_epochs] == [(6, 10)]
    for segment in (first, second):
        assert segment.event_timestamp_ms is None
        assert not segment.end_is_exact
        assert segment.objects.size_in_bytes == segment.objects.log.size
        assert set(segment.objects.indexes) == set(IndexType) - {IndexType.TRANSACTION}


@pytest.mark.parametrize("suffix", ["index", "timeindex", "leader_epoch_checkpoint", "snapshot"])
def test_copy_with_missing_file_is_reported_as_orphan(tmp_path: Path, suffix: str) -> None:
    write_segments(tmp_path, build_two_segments())
    find_files(tmp_path, suffix)[0].unlink()
    store = LocalStore(tmp_path)
    (folder,) = LAYOUT.topic_folders(store, "", None)
    listing = LAYOUT.list_partition(store, folder, 0)
    assert [entry.base_offset for entry in listing.segments] == [2]
    (orphan,) = listing.orphans
    assert len(orphan.keys) == 4
    assert f"no .{suffix}:" in orphan.reason


def test_unknown_file_is_reported_as_orphan(tmp_path: Path) -> None:
    write_segments(tmp_path, build_two_segments())
    (find_files(tmp_path, "log")[0].parent / "README").write_text("hello")
    store = LocalStore(tmp_path)
    (folder,) = LAYOUT.topic_folders(store, "", None)
    listing = LAYOUT.list_partition(store, folder, 0)
    assert len(listing.segments) == 2
    assert [orphan.keys[0].rpartition("/")[2] for orphan in listing.orphans] == ["README"]


@pytest.mark.parametrize("damage", [b"123", b"\x00\x00\x00\x01\x7f\x00\x00\x00"])
def test_end_offset_is_found_with_damaged_offset_index(tmp_path: Path, damage: bytes) -> None:
    write_segments(tmp_path, build_two_segments())
    find_files(tmp_path, "index")[0].write_bytes(damage)
    assert [segment.end_offset for segment in describe_segments(tmp_path)] == [1, 2]


def test_log_shorter_than_its_index_raises_corrupt_segment_error(tmp_path: Path) -> None:
    builder = LogBuilder(index_interval_bytes=1)
    for _ in range(5):
        builder.append([SimpleRecord(bytes(100))])
    write_segments(tmp_path, builder)
    (log,) = find_files(tmp_path, "log")
    data = log.read_bytes()
    log.write_bytes(data[: len(data) * 3 // 5] + data[: len(data) * 2 // 5])
    options = {"path": str(tmp_path), "layout": LAYOUT.name, "subscribe": "topic"}
    with pytest.raises(CorruptSegmentError, match=r"topic-0-.*\.log"):
        plan_scan(parse_options(options))


def test_several_topic_ids_require_topic_id_option(tmp_path: Path) -> None:
    write_segments(tmp_path, build_two_segments(), topic_id=ID)
    write_segments(tmp_path, build_two_segments(), topic_id=OTHER_ID)
    options = {"path": str(tmp_path), "layout": LAYOUT.name, "subscribe": "topic"}
    with pytest.raises(InvalidOptionError, match=f"{ID}, {OTHER_ID}.*topicId"):
        plan_scan(parse_options(options))
    (partition,) = plan_scan(parse_options({**options, "topicId": OTHER_ID})).partitions
    assert partition.topic_id == OTHER_ID


def test_error_of_missing_tier_names_expected_folders(tmp_path: Path) -> None:
    options = {"path": str(tmp_path), "layout": LAYOUT.name, "subscribe": "topic"}
    with pytest.raises(TierNotFoundError, match="<topic>-<partition>-<topic id>/"):
        plan_scan(parse_options(options))


def test_describe_of_deleted_segment_raises_file_not_found_error(tmp_path: Path) -> None:
    write_segments(tmp_path, build_two_segments())
    store = LocalStore(tmp_path)
    (folder,) = LAYOUT.topic_folders(store, "", None)
    entries = LAYOUT.list_partition(store, folder, 0).segments
    shutil.rmtree(find_files(tmp_path, "log")[0].parent)
    with pytest.raises(FileNotFoundError):
        LAYOUT.describe(store, entries[0])
