"""Plan files that read from brokers: the same rows, or an error that says what was lost."""

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
    """A tier of all but the last segment, a broker, and plan files."""

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
        self.part = FakePartition(fake_log(log))
        cluster.create("t", [self.part], uuid_from_text(writer.topic_id))
        self.store = store
        self.tier = Tier(MemoryStore(store))
        self.file = folder / "plan.json"

    def offsets(self, **given: str) -> list[int]:
        """Plans, writes the plan down and reads it."""
        options = parse_options(
            {
                "path": "/",
                "layout": "local-tiered-storage",
                "subscribe": "t",
                "kafka.bootstrap.servers": self.cluster.bootstrap,
                **given,
            }
        )
        plan = plan_scan(options, self.tier)
        self.file.write_text(plan.to_json())
        found: list[int] = []
        for task in plan.tasks:
            reader = SegmentSource(self.tier, options.key_ring)
            for batch in read_task(task, reader, ReadSettings.of(options)):
                found += pa.Table.from_batches([batch])["offset"].to_pylist()
        return found

    def again(self, **given: str) -> list[int]:
        """Reads by the plan file."""
        return self.offsets(planFile=str(self.file), **given)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with FakeCluster() as cluster:
        yield World(cluster, tmp_path)


def test_the_same_rows_while_the_topic_grows_or_moves(world: World) -> None:
    assert world.offsets(endingOffsets='{"t":{"0":118}}') == list(range(118))
    assert world.again() == list(range(118))
    world.part.epoch = 3
    world.part.log.epochs = [(0, 0), (3, 118)]
    assert world.again() == list(range(118))


@pytest.mark.parametrize("epochs", [[(0, 0), (3, 118)], [(0, 0), (2, 20), (3, 140)], [(3, 0)]])
def test_a_new_leader_that_lacks_what_was_planned(
    world: World, epochs: list[tuple[int, int]]
) -> None:
    world.offsets()
    world.part.epoch, world.part.log.epochs = 3, epochs
    with pytest.raises(DataLossError, match=r"epoch 0 up to 120 was planned: .*unclean election"):
        world.again()


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_what_was_deleted_since_is_lost(world: World, fail_on_data_loss: str) -> None:
    world.offsets(failOnDataLoss=fail_on_data_loss)
    world.part.log = with_log_start(world.part.log, 2)
    with pytest.raises(DataLossError, match="the log of the brokers starts at 2 now; plan again"):
        world.again(failOnDataLoss=fail_on_data_loss)


def test_a_topic_that_was_created_again_or_deleted(world: World) -> None:
    world.offsets()
    world.cluster.create("t", [world.part])
    with pytest.raises(DataLossError, match="was planned, and the topic has topic id"):
        world.again()
    world.cluster.topics.clear()
    with pytest.raises(DataLossError, match="was planned, and the topic is gone"):
        world.again()


def test_tail_is_what_the_plan_was_made_with(world: World) -> None:
    # A plan with ranges of brokers was once read as it was, though tail=false was given.
    world.offsets()
    with pytest.raises(InvalidOptionError, match=r"'tail' .*was made with True"):
        world.again(tail="false")
    assert world.offsets(tail="false") == list(range(world.tier_end))
    assert world.again() == world.again(tail="false") == list(range(world.tier_end))
    with pytest.raises(InvalidOptionError, match=r"'tail' .*was made with False"):
        world.again(tail="true")


@pytest.mark.parametrize("lost", [0, 2])
def test_without_the_tail_brokers_fill_holes(world: World, lost: int) -> None:
    gone = [key for key in world.store if f"/{world.bases[lost]:020}-" in key]
    assert gone
    for key in gone:
        del world.store[key]
    assert world.offsets(tail="false") == list(range(world.tier_end))


def test_without_the_tail_nothing_is_read_where_nothing_is_tiered(world: World) -> None:
    world.store.clear()
    assert world.offsets(tail="false") == []
