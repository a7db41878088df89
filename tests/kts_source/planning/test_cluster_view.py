"""Checks how plans use metadata and offsets of brokers, also if responses are incomplete."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import kts_source
from kts_source.broker import cluster as cluster_module
from kts_source.errors import (
    BrokerUnavailableError,
    DataLossError,
    LeaderChangedError,
    TopicNotFoundError,
)
from kts_source.options import parse_options
from kts_source.planning import broker_source
from kts_source.planning.cluster_view import ClusterView
from kts_source.planning.describe import describe, selected_topics, with_brokers
from kts_source.planning.planner import plan_scan
from kts_source.read.read_settings import ReadSettings
from kts_source.read.read_task import read_task
from kts_source.read.segment_source import SegmentSource
from kts_source.tier import Tier
from segment_format.kafka_uuid import uuid_from_text
from segment_format.testing import AivenTierWriter, LocalTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import FakeLog, fake_log, with_log_start
from tests.kts_source.broker.fake_node import EPOCH_ENDS, FETCH, LIST_OFFSETS, METADATA, Fault
from tests.kts_source.planning.memory_store import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from segment_format.testing import BuiltLog


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    monkeypatch.setattr(cluster_module, "_PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(cluster_module, "_INCOMPLETE_SECONDS", 0.5)
    with FakeCluster() as cluster:
        yield cluster


def make_partition(*, leader: int = 0, epoch: int = 0) -> FakePartition:
    builder = LogBuilder()
    builder.append([SimpleRecord(b"value")] * 3)
    log = fake_log(builder.build(), epochs=[(epoch, 0)])
    return FakePartition(log, leader=leader, epoch=epoch)


def find_ends(brokers: FakeCluster, **selection: str) -> dict[tuple[str, int], int]:
    options = parse_options({"kafka.bootstrap.servers": brokers.bootstrap, **selection})
    with closing(ClusterView(brokers.settings(), options)) as view:
        return {partition: log.end for partition, log in view.logs.items()}


def test_partition_without_leader_fails_only_plans_that_select_it(brokers: FakeCluster) -> None:
    brokers.create("orders", [make_partition(), make_partition(leader=-1)])
    brokers.create("other", [make_partition(leader=-1)])
    assert find_ends(brokers, assign='{"orders":[0]}') == {("orders", 0): 3}
    brokers.create("users", [make_partition()])
    assert find_ends(brokers, subscribePattern="^users$") == {("users", 0): 3}
    with pytest.raises(BrokerUnavailableError, match="orders-1: it has no leader"):
        find_ends(brokers, subscribe="orders")


def test_plan_of_empty_log_sends_no_epoch_requests(brokers: FakeCluster) -> None:
    emptied = make_partition(epoch=500)
    emptied.log.log_start = emptied.log.end
    emptied.log.epochs = [(500, emptied.log.end)]
    brokers.create("orders", [emptied])
    assert find_ends(brokers, subscribe="orders") == {("orders", 0): 3}
    assert brokers.of_kind(EPOCH_ENDS) == 0


def build_log(text: bytes, appends: int) -> BuiltLog:
    builder = LogBuilder(segment_bytes=600)
    for number in range(appends):
        builder.append([SimpleRecord(b"%s %03d" % (text, number), timestamp=number)] * 2)
    return builder.build()


@pytest.mark.parametrize(
    ("kind", "before"), [*((LIST_OFFSETS, n) for n in range(5)), (EPOCH_ENDS, 0)]
)
def test_scan_of_topic_recreated_during_planning_returns_rows_of_new_topic(
    brokers: FakeCluster, kind: str, before: int
) -> None:
    # Requests to leaders contain only the topic name. If the planner combined the segments of the
    # old topic with the offsets of the new topic, the scan would return wrong rows.
    store: dict[str, bytes] = {}
    old = build_log(b"old", 60)
    writer = LocalTierWriter(store, topic="t", partition=0)
    for files in old.segments[:-1]:
        writer.write_segment(files)
    new = build_log(b"new", old.segments[1].base_offset // 2)
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
    values = []
    for task in plan.tasks:
        reader = SegmentSource(tier, options.key_ring)
        for batch in read_task(task, reader, ReadSettings.of(options)):
            values += pa.Table.from_batches([batch])["value"].to_pylist()
    assert values == [row.value for row in new.all_rows]


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_log_start_that_moves_during_planning_is_not_data_loss(
    brokers: FakeCluster, monkeypatch: pytest.MonkeyPatch, fail_on_data_loss: str
) -> None:
    # The plan does not contain the deleted offsets yet, so no planned data is lost.
    monkeypatch.setattr(broker_source, "_FEW_OFFSETS", 1)
    fake_partition = FakePartition(fake_log(build_log(b"value", 60)))
    brokers.create("t", [fake_partition])
    options = parse_options(
        {
            "subscribe": "t",
            "kafka.bootstrap.servers": brokers.bootstrap,
            "failOnDataLoss": fail_on_data_loss,
        }
    )

    def move() -> None:
        fake_partition.log = with_log_start(fake_partition.log, fake_partition.log.log_start + 10)

    brokers.fail(FETCH, Fault(change=move), times=2)
    plan = plan_scan(options, Tier(MemoryStore({})))
    assert [(partition.start, partition.stop) for partition in plan.partitions] == [(20, 120)]
    brokers.fail(FETCH, Fault(change=move), times=5)
    with pytest.raises(LeaderChangedError, match="log now starts at offset 70"):
        plan_scan(options, Tier(MemoryStore({})))


def test_oldest_untiered_timestamp_is_updated_after_log_start_moved(
    brokers: FakeCluster,
) -> None:
    fake_partition = FakePartition(fake_log(build_log(b"value", 60)))
    brokers.create("t", [fake_partition])
    options = parse_options({"subscribe": "t", "kafka.bootstrap.servers": brokers.bootstrap})
    store = MemoryStore({})
    plan = plan_scan(options, Tier(store))
    before = describe(options, store).partitions
    assert [partition.oldest_untiered_ms for partition in before] == [0]
    fake_partition.log = with_log_start(fake_partition.log, 20)
    (mark,) = with_brokers(before, plan, options)
    assert mark.oldest_untiered_ms == 10


def _remove_partitions(answer: Any) -> None:  # noqa: ANN401
    for topic in answer.topics:
        topic.partitions = []


def _keep_one_partition(answer: Any) -> None:  # noqa: ANN401
    for topic in answer.topics:
        topic.partitions = topic.partitions[:1]


def _remove_topics(answer: Any) -> None:  # noqa: ANN401
    answer.topics = []


def _remove_offsets(answer: Any) -> None:  # noqa: ANN401
    for topic in answer.topics:
        for partition in topic.partitions:
            partition.offset = -1


def _remove_leaders(answer: Any) -> None:  # noqa: ANN401
    for topic in answer.topics:
        topic.error_code, topic.partitions = 5, []


INCOMPLETE = (_remove_partitions, _remove_topics, _remove_leaders)


@pytest.mark.parametrize(
    ("kind", "edit"),
    [
        *((METADATA, edit) for edit in INCOMPLETE),
        (LIST_OFFSETS, _remove_partitions),
        (LIST_OFFSETS, _keep_one_partition),
        (LIST_OFFSETS, _remove_topics),
        (LIST_OFFSETS, _remove_offsets),
    ],
)
def test_incomplete_response_is_retried(
    brokers: FakeCluster, kind: str, edit: Callable[[Any], object]
) -> None:
    brokers.create("t", [make_partition(), make_partition()])
    brokers.fail(kind, Fault(edit=edit))
    assert find_ends(brokers, subscribe="t") == {("t", 0): 3, ("t", 1): 3}
    assert not brokers.faults[kind]


@pytest.mark.parametrize("edit", INCOMPLETE)
def test_metadata_without_partitions_raises_error_after_retries(
    brokers: FakeCluster, edit: Callable[[Any], object]
) -> None:
    brokers.create("t", [make_partition()])
    brokers.fail(METADATA, Fault(edit=edit), times=100)
    with pytest.raises(BrokerUnavailableError, match="do not describe t: "):
        find_ends(brokers, subscribe="t")


def test_incomplete_metadata_of_other_topics_is_ignored(brokers: FakeCluster) -> None:
    brokers.create("orders", [make_partition()])
    brokers.create("other", [])
    assert find_ends(brokers, subscribePattern="^ord") == {("orders", 0): 3}
    with pytest.raises(BrokerUnavailableError, match="do not describe other: 0 partitions"):
        find_ends(brokers, subscribePattern="^o")


def test_selected_topics_of_cluster_include_topics_without_leader(brokers: FakeCluster) -> None:
    brokers.create("orders", [make_partition()])
    brokers.create("other", [make_partition(leader=-1)])
    brokers.create("users", [make_partition()])
    servers = {"kafka.bootstrap.servers": brokers.bootstrap}
    options = parse_options({**servers, "subscribePattern": "^o"})
    assert selected_topics(options) == ["orders", "other"]
    with pytest.raises(TopicNotFoundError, match="no topic of the cluster matches 'none'"):
        selected_topics(parse_options({**servers, "subscribePattern": "none"}))


@pytest.fixture
def tiered(brokers: FakeCluster, tmp_path: Path) -> dict[str, str]:
    """Writes a tier with one segment for each of two partitions. Returns the options to read it."""
    topic_id = brokers.create("t", [make_partition(), make_partition()])
    builder = LogBuilder()
    builder.append([SimpleRecord(b"value")] * 3)
    for number in range(2):
        writer = AivenTierWriter(tmp_path, topic="t", partition=number, topic_id=topic_id)
        writer.write_segment(builder.build().segments[0])
    return {"path": str(tmp_path), "subscribe": "t", "kafka.bootstrap.servers": brokers.bootstrap}


@pytest.mark.parametrize("strict", ["true", "false"])
def test_metadata_with_fewer_partitions_than_tier_is_retried(
    brokers: FakeCluster, tiered: dict[str, str], strict: str
) -> None:
    brokers.fail(METADATA, Fault(edit=_keep_one_partition))
    assert kts_source.scan({**tiered, "failOnDataLoss": strict}).count() == 6


@pytest.mark.parametrize("strict", ["true", "false"])
def test_metadata_with_fewer_partitions_than_tier_raises_error_after_retries(
    brokers: FakeCluster, tiered: dict[str, str], strict: str
) -> None:
    brokers.fail(METADATA, Fault(edit=_keep_one_partition), times=100)
    with pytest.raises(BrokerUnavailableError, match=r"t: 1 partitions of topic id .* at least 2"):
        kts_source.scan({**tiered, "failOnDataLoss": strict}).count()


@pytest.mark.parametrize("selection", [{"assign": '{"t":[1]}'}, {"subscribe": "t"}])
def test_partition_without_objects_is_read_from_brokers_if_its_topic_is_tiered(
    brokers: FakeCluster, tmp_path: Path, selection: dict[str, str]
) -> None:
    second = make_partition()
    second.log.local_start = 2
    topic_id = brokers.create("t", [make_partition(), second])
    options = {"path": str(tmp_path), "kafka.bootstrap.servers": brokers.bootstrap, **selection}
    builder = LogBuilder()
    builder.append([SimpleRecord(b"value")] * 3)
    segment = builder.build().segments[0]
    writer = AivenTierWriter(tmp_path, topic="other", partition=0)
    writer.write_segment(segment)
    with pytest.raises(TopicNotFoundError, match=r"offsets \[0, 2\) are tiered.*t, partition 1"):
        plan_scan(parse_options(options))
    AivenTierWriter(tmp_path, topic="t", partition=0, topic_id=topic_id).write_segment(segment)
    plan = plan_scan(parse_options(options))
    assert not plan.notes
    scan = kts_source.scan({**options, "where": "partition = 1"})
    assert scan.count() == 3


def test_metadata_with_fewer_partitions_than_export_table_is_retried(
    brokers: FakeCluster, tmp_path: Path
) -> None:
    partitions = [make_partition(), make_partition()]
    brokers.create("t", partitions)
    source = {"subscribe": "t", "kafka.bootstrap.servers": brokers.bootstrap}
    target = str(tmp_path / "table")
    assert kts_source.backfill(None, source=source, target=target, progress=False).rows == 6
    builder = LogBuilder()
    builder.append([SimpleRecord(b"value")] * 5)
    for fake_partition in partitions:
        fake_partition.log = fake_log(builder.build())
    brokers.fail(METADATA, Fault(edit=_keep_one_partition))
    assert kts_source.backfill(None, source=source, target=target, progress=False).rows == 4


def test_metadata_without_a_partition_is_retried_if_another_partition_was_empty(
    brokers: FakeCluster, tmp_path: Path
) -> None:
    partitions = [make_partition(), FakePartition(FakeLog(())), make_partition()]
    brokers.create("t", partitions)
    source = {"subscribe": "t", "kafka.bootstrap.servers": brokers.bootstrap}
    target = str(tmp_path / "table")
    assert kts_source.backfill(None, source=source, target=target, progress=False).rows == 6
    builder = LogBuilder()
    builder.append([SimpleRecord(b"value")] * 5)
    partitions[2].log = fake_log(builder.build())
    brokers.fail(METADATA, Fault(edit=_keep_one_partition))
    assert kts_source.backfill(None, source=source, target=target, progress=False).rows == 2


def test_replay_of_plan_retries_metadata_without_planned_partitions(
    brokers: FakeCluster, tiered: dict[str, str], tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(kts_source.scan(tiered).plan.to_json())
    brokers.fail(METADATA, Fault(edit=_keep_one_partition))
    assert kts_source.scan({**tiered, "planFile": str(plan)}).count() == 6


def test_aborted_transactions_of_tier_are_read_from_leader(tmp_path: Path) -> None:
    """A follower that lags or has an older Kafka version does not list all aborted transactions."""
    builder = LogBuilder()
    builder.append([SimpleRecord(b"plain")] * 2)
    builder.send(7, [SimpleRecord(b"aborted")] * 3)
    builder.roll()
    builder.append([SimpleRecord(b"plain")] * 2)
    builder.abort(7)
    builder.append([SimpleRecord(b"plain")] * 2)
    log = builder.build()
    with FakeCluster(2) as brokers:
        brokers.old_nodes = {1}
        fake_partition = FakePartition(fake_log(log), followers={"near": 1})
        fake_partition.log.local_start = 8
        topic_id = brokers.create("t", [fake_partition])
        AivenTierWriter(tmp_path, topic="t", topic_id=topic_id).write_segment(log.segments[0])
        options = {
            "path": str(tmp_path),
            "subscribe": "t",
            "kafka.bootstrap.servers": brokers.bootstrap,
            "kafka.client.rack": "near",
        }
        rows = kts_source.scan(options).to_table()["offset"].to_pylist()
        assert rows == [0, 1, 5, 6, 8, 9]
        assert all(node == 0 for node, *_ in brokers.fetches)


@pytest.mark.parametrize("strict", ["true", "false"])
def test_transaction_open_before_hole_in_tier_and_brokers_is_undecided(
    tmp_path: Path, strict: str
) -> None:
    builder = LogBuilder()
    builder.append([SimpleRecord(b"plain")])
    builder.send(7, [SimpleRecord(b"open")] * 2)
    builder.roll()
    builder.append([SimpleRecord(b"plain")] * 3)
    builder.roll()
    builder.abort(7)
    builder.append([SimpleRecord(b"plain")] * 2)
    builder.roll()
    log = builder.build()
    with FakeCluster() as brokers:
        fake_partition = FakePartition(fake_log(log))
        fake_partition.log.holes = [(3, 6)]
        topic_id = brokers.create("t", [fake_partition])
        writer = AivenTierWriter(tmp_path, topic="t", topic_id=topic_id)
        for number in (0, 2):
            writer.write_segment(log.segments[number])
        options = {
            "path": str(tmp_path),
            "subscribe": "t",
            "kafka.bootstrap.servers": brokers.bootstrap,
            "failOnDataLoss": strict,
        }
        if strict == "true":
            with pytest.raises(DataLossError, match="offset 1 or later are open at offset 3"):
                kts_source.scan(options).to_table()
        else:
            rows = kts_source.scan(options).to_table()["offset"].to_pylist()
            assert rows == [0, 7, 8]
