"""Checks that replays of plans with broker ranges return the same rows or raise DataLossError."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from kts_source.errors import DataLossError, InvalidOptionError
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.read.read_settings import ReadSettings
from kts_source.read.read_task import read_task
from kts_source.read.segment_source import SegmentSource
from kts_source.tier import Tier
from segment_format.kafka_uuid import uuid_from_text
from segment_format.testing import LocalTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import fake_log, with_log_start
from tests.kts_source.planning.memory_store import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_END = 120


class World:
    """A log that a broker has completely, a tier that lacks the last segment of the log, and the
    path of a plan file.
    """

    def __init__(self, cluster: FakeCluster, folder: Path) -> None:
        builder = LogBuilder(segment_bytes=600)
        for number in range(_END // 2):
            builder.append([SimpleRecord(b"%d" % number)] * 2)
        log = builder.build()
        store: dict[str, bytes] = {}
        writer = LocalTierWriter(store, topic="t", partition=0)
        for files in log.segments[:-1]:
            writer.write_segment(files)
        self.bases = [files.base_offset for files in log.segments]
        self.tier_end = log.segments[-1].base_offset
        self.cluster = cluster
        self.partition = FakePartition(fake_log(log))
        cluster.create("t", [self.partition], uuid_from_text(writer.topic_id))
        self.store = store
        self.tier = Tier(MemoryStore(store))
        self.file = folder / "plan.json"

    def offsets(self, **extra: str) -> list[int]:
        """Plans a scan, writes the plan file, and returns the offsets that the tasks read."""
        options = parse_options(
            {
                "path": "/",
                "layout": "local-tiered-storage",
                "subscribe": "t",
                "kafka.bootstrap.servers": self.cluster.bootstrap,
                **extra,
            }
        )
        plan = plan_scan(options, self.tier)
        self.file.write_text(plan.to_json())
        rows: list[int] = []
        for task in plan.tasks:
            reader = SegmentSource(self.tier, options.key_ring)
            for batch in read_task(task, reader, ReadSettings.of(options)):
                rows += pa.Table.from_batches([batch])["offset"].to_pylist()
        return rows

    def replay(self, **extra: str) -> list[int]:
        """Plans and reads with the plan file, and returns the offsets."""
        return self.offsets(planFile=str(self.file), **extra)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with FakeCluster() as cluster:
        yield World(cluster, tmp_path)


def test_replay_after_leader_change_returns_same_rows(world: World) -> None:
    assert world.offsets(endingOffsets='{"t":{"0":118}}') == list(range(118))
    assert world.replay() == list(range(118))
    world.partition.epoch = 3
    world.partition.log.epochs = [(0, 0), (3, 118)]
    assert world.replay() == list(range(118))


@pytest.mark.parametrize("epochs", [[(0, 0), (3, 118)], [(0, 0), (2, 20), (3, 140)], [(3, 0)]])
def test_replay_raises_data_loss_error_if_the_leader_lacks_planned_offsets(
    world: World, epochs: list[tuple[int, int]]
) -> None:
    world.offsets()
    world.partition.epoch, world.partition.log.epochs = 3, epochs
    with pytest.raises(
        DataLossError, match=r"unclean .*: the plan reads leader epoch 0 up to offset 120"
    ):
        world.replay()


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_replay_of_deleted_offsets_raises_data_loss_error(
    world: World, fail_on_data_loss: str
) -> None:
    world.offsets(failOnDataLoss=fail_on_data_loss)
    world.partition.log = with_log_start(world.partition.log, 2)
    with pytest.raises(DataLossError, match="brokers' log now starts at offset 2; plan again"):
        world.replay(failOnDataLoss=fail_on_data_loss)


def test_replay_of_recreated_or_deleted_topic_raises_data_loss_error(world: World) -> None:
    world.offsets()
    world.cluster.create("t", [world.partition])
    with pytest.raises(DataLossError, match="but now the topic has topic id"):
        world.replay()
    world.cluster.topics.clear()
    with pytest.raises(DataLossError, match="but now the topic is gone"):
        world.replay()


def test_replay_with_another_value_of_tail_raises_invalid_option_error(world: World) -> None:
    # A plan with broker ranges must not be read with tail=false.
    world.offsets()
    with pytest.raises(InvalidOptionError, match=r"'tail' .*was made with True"):
        world.replay(tail="false")
    assert world.offsets(tail="false") == list(range(world.tier_end))
    assert world.replay() == world.replay(tail="false") == list(range(world.tier_end))
    with pytest.raises(InvalidOptionError, match=r"'tail' .*was made with False"):
        world.replay(tail="true")


@pytest.mark.parametrize("lost", [0, 2])
def test_scan_with_tail_false_reads_missing_tier_offsets_from_brokers(
    world: World, lost: int
) -> None:
    lost_keys = [key for key in world.store if f"/{world.bases[lost]:020}-" in key]
    assert lost_keys
    for key in lost_keys:
        del world.store[key]
    assert world.offsets(tail="false") == list(range(world.tier_end))


def test_scan_of_empty_tier_with_tail_false_returns_no_rows(world: World) -> None:
    world.store.clear()
    assert world.offsets(tail="false") == []
