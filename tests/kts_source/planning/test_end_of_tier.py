"""Checks that scans with `tail=false` stop at the end of the tier, even if its last segment is
damaged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import kts_source
from kts_source.errors import DataLossError, OffsetOutOfRangeError, TieredKafkaError
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.tier import Tier
from segment_format.testing import AivenTierWriter, LocalTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import fake_log
from tests.kts_source.planning.metadata_events import UnlistableStore
from tests.kts_source.planning.metadata_world import World as NamedWorld
from tests.kts_source.planning.metadata_world import five_segments

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from segment_format.testing import BuiltLog

T0 = 1_700_000_000_000
"""Timestamp of the first record in ms. Segment n begins n seconds later."""


def build_log(epochs: tuple[int, ...] = (0,) * 6) -> BuiltLog:
    """Builds one segment of three records for each leader epoch in `epochs`."""
    log = LogBuilder()
    for number, epoch in enumerate(epochs):
        if number and epoch > epochs[number - 1]:
            log.set_leader_epoch(epoch)
        log.append([SimpleRecord(b"v", timestamp=T0 + 1000 * number + ms) for ms in range(3)])
        log.roll()
    return log.build()


class Scene:
    """A topic of two partitions with six segments each.

    The first three segments of each partition are in the tier.
    """

    def __init__(self, tier: Path, brokers: FakeCluster) -> None:
        self.tier = tier
        self.brokers = brokers
        self.partitions = [FakePartition(fake_log(build_log())) for _ in range(2)]
        self.topic_id = brokers.create("t", self.partitions)
        for number in range(2):
            self.write(number, build_log(), [0, 1, 2])

    def write(self, partition: int, log: BuiltLog, numbers: list[int]) -> None:
        writer = AivenTierWriter(self.tier, topic="t", partition=partition, topic_id=self.topic_id)
        for number in numbers:
            writer.write_segment(log.segments[number])

    def find_objects(self, partition: int, pattern: str) -> list[Path]:
        paths = list(self.tier.glob(f"*/{partition}/{pattern}"))
        assert paths
        return paths

    def read_offsets(self, partition: int = 0, **options: str) -> list[int]:
        rows = kts_source.scan(
            {
                "path": str(self.tier),
                "assign": f'{{"t":[{partition}]}}',
                "kafka.bootstrap.servers": self.brokers.bootstrap,
                "tail": "false",
                **options,
            }
        ).to_table()
        return sorted(rows["offset"].to_pylist())


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with FakeCluster() as brokers:
        yield Scene(tmp_path, brokers)


@pytest.mark.parametrize("suffix", ["log", "indexes"])
def test_last_tiered_segment_with_missing_object_is_read_from_brokers(
    scene: Scene, suffix: str
) -> None:
    for path in scene.find_objects(0, f"0*06-*.{suffix}"):
        path.unlink()
    assert scene.read_offsets() == list(range(9))


def test_stored_plan_and_export_stop_at_end_of_damaged_tier(scene: Scene, tmp_path: Path) -> None:
    for path in scene.find_objects(0, "0*06-*.log"):
        path.unlink()
    source = {
        "path": str(scene.tier),
        "subscribe": "t",
        "kafka.bootstrap.servers": scene.brokers.bootstrap,
        "tail": "false",
    }
    plan = tmp_path / "plan.json"
    plan.write_text(kts_source.scan(source).plan.to_json())
    assert kts_source.scan({**source, "planFile": str(plan)}).count() == 18
    target = str(tmp_path / "table")
    assert kts_source.backfill(None, source=source, target=target, progress=False).rows == 18
    scene.write(0, build_log(), [3])
    assert kts_source.backfill(None, source=source, target=target, progress=False).rows == 3


def test_partition_without_objects_is_read_from_brokers_up_to_local_log_start(scene: Scene) -> None:
    for path in scene.find_objects(0, "*"):
        path.unlink()
    scene.partitions[0].log.local_start = 9
    assert scene.read_offsets() == list(range(9))
    assert scene.read_offsets(partition=1) == list(range(9))


def test_segments_of_dead_branch_do_not_change_the_end_of_the_tier(scene: Scene) -> None:
    """The leader of epoch 1 wrote and copied segment 3. After an unclean election, the log no
    longer has this segment.
    """
    scene.write(0, build_log((0, 0, 0, 1)), [3])
    assert scene.read_offsets() == list(range(9))


def test_unreadable_newest_manifest_raises_data_loss_error(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    (manifest,) = scene.find_objects(0, "0*06-*.rsm-manifest")
    manifest.write_bytes(b"{}")
    with pytest.raises(DataLossError, match=rf"{manifest.name}.*remove tail=false"):
        scene.read_offsets()
    assert scene.read_offsets(failOnDataLoss="false") == list(range(6))
    assert manifest.name in caplog.text
    scene.partitions[0].log.local_start = 9
    assert scene.read_offsets() == list(range(9)), (
        "the brokers deleted tiered offsets, so the tier ends there"
    )


def test_ending_timestamp_after_tier_stops_at_end_of_tier(scene: Scene) -> None:
    assert scene.read_offsets(endingTimestamp=str(T0 + 4000)) == list(range(9))
    assert scene.read_offsets(endingTimestamp=str(T0 + 1000)) == list(range(3))
    by_partition = f'{{"t":{{"0":{T0 + 5000}}}}}'
    assert scene.read_offsets(endingOffsetsByTimestamp=by_partition) == list(range(9))


def test_starting_timestamp_after_tier_raises_error_or_returns_no_rows(scene: Scene) -> None:
    with pytest.raises(OffsetOutOfRangeError, match="no record in the tier has a timestamp"):
        scene.read_offsets(startingTimestamp=str(T0 + 4000))
    rows = scene.read_offsets(
        startingTimestamp=str(T0 + 4000), startingOffsetsByTimestampStrategy="latest"
    )
    assert rows == []
    assert scene.read_offsets(startingTimestamp=str(T0 + 2000)) == [6, 7, 8]


def test_ending_offset_after_tier_raises_error(scene: Scene) -> None:
    with pytest.raises(TieredKafkaError, match=r"not tiered yet \(tail=false\)"):
        scene.read_offsets(endingOffsets='{"t":{"0":10}}')


def test_segment_in_metadata_topic_extends_tier_even_if_its_objects_are_lost() -> None:
    with FakeCluster() as cluster:
        world = NamedWorld(cluster, five_segments())
        world.write_metadata()
        for key in world.keys(3):
            del world.store[key]
        options = {
            "path": "/",
            "subscribe": "t",
            "catalog": "metadata-topic",
            "tail": "false",
            "kafka.bootstrap.servers": cluster.bootstrap,
        }
        plan = plan_scan(parse_options(options), Tier(UnlistableStore(world.store)))
        (partition,) = plan.partitions
        assert world.from_tier(plan) == [0, 1, 2]
        assert (partition.start, partition.stop) == (0, 48)
        assert partition.brokers is not None
        assert partition.brokers.ranges == ((36, 48),)


def test_lost_log_at_end_of_local_tier_raises_data_loss_error(tmp_path: Path) -> None:
    log = build_log()
    with FakeCluster() as brokers:
        topic_id = brokers.create("t", [FakePartition(fake_log(log))])
        writer = LocalTierWriter(tmp_path, topic="t", partition=0, topic_id=topic_id)
        for number in range(3):
            writer.write_segment(log.segments[number])
        (lost,) = tmp_path.rglob(f"{6:020d}-*.log")
        lost.unlink()
        options = {
            "path": str(tmp_path),
            "layout": "local-tiered-storage",
            "subscribe": "t",
            "kafka.bootstrap.servers": brokers.bootstrap,
            "tail": "false",
        }

        with pytest.raises(DataLossError, match="the ends of these segments are unknown"):
            kts_source.scan(options).count()

        assert kts_source.scan({**options, "failOnDataLoss": "false"}).count() == 6
