"""What a plan asks of brokers, and what of their cluster does not concern it."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from kts_source.broker import cluster as cluster_module
from kts_source.errors import BrokerUnavailableError, LeaderChangedError
from kts_source.options import parse_options
from kts_source.planning import hybrid
from kts_source.planning.cluster_view import ClusterView
from kts_source.planning.describe import describe
from kts_source.planning.describe_brokers import with_brokers
from kts_source.planning.planner import plan_scan
from kts_source.read.read_settings import ReadSettings
from kts_source.read.read_task import read_task
from kts_source.read.segment_source import SegmentSource
from kts_source.tier import Tier
from segment_format.kafka_uuid import uuid_from_text
from segment_format.testing import LocalTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import fake_log, with_log_start
from tests.kts_source.broker.fake_node import EPOCH_ENDS, FETCH, LIST_OFFSETS, Fault
from tests.kts_source.planning.memory_store import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from segment_format.testing import BuiltLog


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    monkeypatch.setattr(cluster_module, "_PATIENCE_SECONDS", 0.5)
    with FakeCluster() as made:
        yield made


def partition(*, leader: int = 0, epoch: int = 0) -> FakePartition:
    builder = LogBuilder()
    builder.append([SimpleRecord(b"value")] * 3)
    log = fake_log(builder.build(), epochs=[(epoch, 0)])
    return FakePartition(log, leader=leader, epoch=epoch)


def ends(brokers: FakeCluster, **selection: str) -> dict[tuple[str, int], int]:
    options = parse_options({"kafka.bootstrap.servers": brokers.bootstrap, **selection})
    with closing(ClusterView(brokers.settings(), options)) as view:
        return {place: log.end for place, log in view.logs.items()}


def test_a_partition_without_a_leader_matters_to_those_who_read_it(brokers: FakeCluster) -> None:
    brokers.create("orders", [partition(), partition(leader=-1)])
    brokers.create("other", [partition(leader=-1)])
    assert ends(brokers, assign='{"orders":[0]}') == {("orders", 0): 3}
    brokers.create("users", [partition()])
    assert ends(brokers, subscribePattern="^users$") == {("users", 0): 3}
    with pytest.raises(BrokerUnavailableError, match="orders-1: it has no leader"):
        ends(brokers, subscribe="orders")


def test_an_emptied_log_is_not_asked_for_all_its_epochs(brokers: FakeCluster) -> None:
    emptied = partition(epoch=500)
    emptied.log.log_start = emptied.log.end
    emptied.log.epochs = [(500, emptied.log.end)]
    brokers.create("orders", [emptied])
    assert ends(brokers, subscribe="orders") == {("orders", 0): 3}
    assert brokers.of_kind(EPOCH_ENDS) == 0


def history(text: bytes, appends: int) -> BuiltLog:
    builder = LogBuilder(segment_bytes=600)
    for number in range(appends):
        builder.append([SimpleRecord(b"%s %03d" % (text, number), timestamp=number)] * 2)
    return builder.build()


@pytest.mark.parametrize(
    ("kind", "before"), [*((LIST_OFFSETS, n) for n in range(5)), (EPOCH_ENDS, 0)]
)
def test_a_topic_that_is_created_again_while_it_is_planned(
    brokers: FakeCluster, kind: str, before: int
) -> None:
    # Leaders are asked by the topic's name. Bounds of the new topic once cut the old one's rows out
    # of the tier, where they were at a segment's end.
    store: dict[str, bytes] = {}
    old = history(b"old", 60)
    writer = LocalTierWriter(store, topic="t", partition=0)
    for files in old.segments[:-1]:
        writer.write_segment(files)
    new = history(b"new", old.segments[1].base_offset // 2)
    brokers.create("t", [FakePartition(fake_log(old))], uuid_from_text(writer.topic_id))

    def create_again() -> None:
        brokers.create("t", [FakePartition(fake_log(new))])

    options = parse_options(
        {
            "path": "/",
            "layout": "local-tiered-storage",
            "subscribe": "t",
            "kafka.bootstrap.servers": brokers.bootstrap,
            "startingTimestamp": "0",
        }
    )
    brokers.fail(kind, *[Fault()] * before, Fault(change=create_again))
    tier = Tier(MemoryStore(store))
    plan = plan_scan(options, tier)
    assert not brokers.faults[kind]
    found = []
    for task in plan.tasks:
        reader = SegmentSource(tier, options.key_ring)
        for batch in read_task(task, reader, ReadSettings.of(options)):
            found += pa.Table.from_batches([batch])["value"].to_pylist()
    assert found == [row.value for row in new.all_rows]


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_a_log_start_that_passes_what_is_asked_for_the_plan(
    brokers: FakeCluster, monkeypatch: pytest.MonkeyPatch, fail_on_data_loss: str
) -> None:
    # What nobody was promised yet is no loss.
    monkeypatch.setattr(hybrid, "_FEW_OFFSETS", 1)
    part = FakePartition(fake_log(history(b"value", 60)))
    brokers.create("t", [part])
    options = parse_options(
        {
            "subscribe": "t",
            "kafka.bootstrap.servers": brokers.bootstrap,
            "failOnDataLoss": fail_on_data_loss,
        }
    )

    def move() -> None:
        part.log = with_log_start(part.log, part.log.log_start + 10)

    brokers.fail(FETCH, Fault(change=move), times=2)
    plan = plan_scan(options, Tier(MemoryStore({})))
    assert [(one.start, one.stop) for one in plan.partitions] == [(20, 120)]
    brokers.fail(FETCH, Fault(change=move), times=5)
    with pytest.raises(LeaderChangedError, match="the log of the brokers starts at 70"):
        plan_scan(options, Tier(MemoryStore({})))


def test_a_log_start_that_passes_the_tier_s_end_before_it_is_described(
    brokers: FakeCluster,
) -> None:
    part = FakePartition(fake_log(history(b"value", 60)))
    brokers.create("t", [part])
    options = parse_options({"subscribe": "t", "kafka.bootstrap.servers": brokers.bootstrap})
    store = MemoryStore({})
    plan = plan_scan(options, Tier(store))
    before = describe(options, store).partitions
    assert [one.oldest_untiered_ms for one in before] == [0]
    part.log = with_log_start(part.log, 20)
    (mark,) = with_brokers(before, plan, options)
    assert mark.oldest_untiered_ms == 10
