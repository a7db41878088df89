"""Audits beside brokers: what only one side knows, and what the leader says for sure."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import kts_source
from kts_source.auditing.broker_checks import (
    BrokerSnapshot,
    Retention,
    check_partition,
    check_unlisted,
)
from kts_source.auditing.listing_checks import PartitionObjects
from kts_source.auditing.report import PartitionStatement
from kts_source.errors import BrokerUnavailableError, TopicNotFoundError
from kts_source.layout.layout import SegmentEntry
from kts_source.planning.cluster_view import BrokerLog
from kts_source.planning.metadata_topic import MetadataRead, NamedSegments
from kts_source.store.object_store import ObjectInfo
from segment_format.index.checkpoints import EpochEntry
from segment_format.kafka_uuid import uuid_to_text
from segment_format.metadata.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_node import METADATA, Fault
from tests.kts_source.planning.memory_store import MemoryStore
from tests.kts_source.planning.metadata_events import DELETED, DELETING, FINISHED, copied
from tests.kts_source.planning.metadata_world import World, five_segments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kts_source.auditing.report import AuditReport
    from segment_format.testing import BuiltLog

NOW_MS = 1 << 45


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as cluster:
        yield cluster


@pytest.fixture
def world(cluster: FakeCluster) -> World:
    return World(cluster, five_segments())


def audited(world: World, level: str = "bytes", now_ms: int = NOW_MS) -> AuditReport:
    options = {
        "path": "/",
        "subscribe": "t",
        "kafka.bootstrap.servers": world.cluster.bootstrap,
        "kafka.request.timeout.ms": "5000",
        "kafka.fetch.max.wait.ms": "10",
    }
    return kts_source.audit(options, level=level, store=MemoryStore(world.store), now_ms=now_ms)


def found(report: AuditReport) -> set[tuple[str, int | None, int | None]]:
    return {(one.name, one.start, one.stop) for one in report.findings}


def test_a_tier_that_brokers_know(world: World) -> None:
    world.write_metadata()
    report = audited(world)
    assert report.findings == ()
    assert report.partitions[0].is_whole


def test_a_segment_that_brokers_do_not_know(world: World) -> None:
    world.records[1].clear()
    world.write_metadata()
    report = audited(world)
    assert found(report) == {("unknown-to-brokers", 12, None)}
    assert set(report.findings[0].objects) == set(world.keys(1))
    assert report.orphan_bytes == sum(len(world.store[key]) for key in world.keys(1))
    assert report.exit_code == 0


@pytest.mark.parametrize("level", ["listing", "bytes"])
def test_a_segment_that_is_not_there(world: World, level: str) -> None:
    world.write_metadata()
    for key in world.keys(3):  # the last: the tier alone does not miss it
        del world.store[key]
    report = audited(world, level)
    assert found(report) == {("named-not-there", 36, 48)}
    assert report.exit_code == 3
    assert not report.partitions[0].is_whole


def test_a_loss_is_told_once(world: World) -> None:
    world.write_metadata()
    for key in world.keys(1):
        del world.store[key]
    assert found(audited(world)) == {("hole", 12, 24)}


def test_what_brokers_did_not_finish(world: World) -> None:
    del world.records[0][1:]
    third = world.segment_ids[2]
    world.records[2] = [*copied(world.place, world.closed[2], third, FINISHED, DELETING)]
    world.write_metadata()
    assert found(audited(world)) == {
        ("copy-not-finished", 0, 12),
        ("delete-not-finished", 24, 36),
    }
    # Just begun, it is usual.
    assert found(audited(world, now_ms=1)) <= {("clock", 12 * n, 12 * n + 12) for n in range(4)}


def test_what_was_deleted_and_is_there_again(world: World) -> None:
    second = world.segment_ids[1]
    world.records[1] = [*copied(world.place, world.closed[1], second, DELETING, DELETED)]
    world.write_metadata()
    assert found(audited(world)) == {("unknown-to-brokers", 12, None)}


def test_what_retention_gave_up(world: World) -> None:
    world.write_metadata()
    configs = world.cluster.configs
    configs["retention.ms"] = "86400000"
    # A level that reads no manifest tells it, too.
    for level in ("listing", "bytes"):
        report = audited(world, level)
        assert found(report) == {("retention-overdue", 0, 48)}
        assert set(report.findings[0].objects) == set(world.store)
        assert report.exit_code == 0
    # Compaction deletes nothing by age.
    configs["cleanup.policy"] = "compact"
    assert audited(world).findings == ()
    configs["cleanup.policy"] = "compact,delete"
    assert found(audited(world)) == {("retention-overdue", 0, 48)}
    configs["retention.ms"] = "-1"
    assert audited(world).findings == ()


def named(number: int, newest_ms: int, copied_ms: int = 100) -> RemoteLogSegmentMetadata:
    """A segment of ten offsets and 50 bytes."""
    segment_id = RemoteLogSegmentId(TopicIdPartition("t", ID, 0), uuid.UUID(int=number + 1))
    start = 10 * number
    return RemoteLogSegmentMetadata(
        segment_id, start, start + 9, newest_ms, 1, copied_ms, (EpochEntry(1, start),), 50
    )


@pytest.mark.parametrize(
    ("retention", "log_start", "old_ms", "overdue"),
    [
        (Retention(1000), 0, 1300, []),
        (Retention(1000), 0, 1301, [0]),
        (Retention(1000), 0, 1400, [0]),
        (Retention(1000), 0, 1401, [0, 1]),
        (Retention(1000), 0, 2000, [0, 1]),  # deletes stop at the first that is kept
        (Retention(1000), 10, 2000, [1]),
        (Retention(1000), 0, 100, []),  # none was there yet
        (Retention(None, 100), 0, 500, [0]),
        (Retention(None, 101), 0, 500, []),
        (Retention(None, 99), 0, 500, [0]),
        (Retention(None, 50), 0, 500, [0, 1]),
        (Retention(None, 0), 0, 500, [0, 1, 2]),
        (Retention(None, 50), 0, 1001, [0, 1]),  # the last was copied meanwhile
        (Retention(1000, 50), 0, 1301, [0, 1]),
        (Retention(), 0, 1 << 40, []),
    ],
)
def test_up_to_which_segment_retention_is_overdue(
    retention: Retention, log_start: int, old_ms: int, overdue: list[int]
) -> None:
    live = [named(2, 1 << 40), named(0, 300), named(1, 400)]
    if old_ms == 1001:
        live.append(named(3, 400, copied_ms=1001))
    found = retention.overdue(live, log_start, old_ms)
    assert [one.start_offset // 10 for one in found] == overdue


def test_more_bytes_than_retention_keeps(world: World) -> None:
    world.write_metadata()
    sizes = [len(files.log) for files in world.closed]
    for more, stop in ((1, 12), (0, 24)):
        world.cluster.configs["retention.bytes"] = str(sizes[2] + sizes[3] + more)
        assert found(audited(world)) == {("retention-overdue", 0, stop)}
    world.cluster.configs["retention.bytes"] = str(sum(sizes))
    assert audited(world).findings == ()


def test_a_user_who_may_not_see_configurations(world: World) -> None:
    world.write_metadata()
    world.cluster.configs["retention.ms"] = "1"
    world.cluster.fail("DescribeConfigs", Fault(code=29), times=2)
    report = audited(world)
    assert found(report) == {("retention-unknown", None, None)}
    assert "TOPIC_AUTHORIZATION_FAILED" in report.findings[0].detail
    assert report.exit_code == 0


def test_another_incarnation(world: World) -> None:
    world.write_metadata()
    other: dict[str, bytes] = {}
    writer = AivenTierWriter(other, topic="t", topic_id="AAAAAAAAAAAAAAAAAAAAIQ")
    for files in world.closed:
        writer.write_segment(files)
    world.store.clear()
    world.store.update(other)
    assert found(audited(world)) == {("other-topic-id", None, None)}


def test_a_topic_that_has_lost_entries(world: World) -> None:
    del world.records[1][:1]
    world.records[0].clear()
    world.write_metadata()
    assert found(audited(world)) == {("metadata-incomplete", None, None)}


@pytest.mark.parametrize("level", ["listing", "metadata", "indexes", "bytes"])
def test_topic_that_lost_all_objects_is_reported(world: World, level: str) -> None:
    world.write_metadata()
    names = {("named-not-there", at.base_offset, at.next_offset) for at in world.closed}
    world.store.clear()
    report = audited(world, level)
    assert found(report) == names
    assert report.exit_code == 3


@pytest.mark.parametrize("has_other_topic", [False, True])
def test_topic_that_was_never_tiered_has_a_report_without_findings(
    world: World, has_other_topic: bool
) -> None:
    world.records.clear()
    world.write_metadata()
    world.store.clear()
    if has_other_topic:
        builder = LogBuilder()
        builder.append([SimpleRecord(b"x")])
        files = builder.build().segments[0]
        AivenTierWriter(world.store, topic="other").write_segment(files)
    report = audited(world)
    assert found(report) == set()
    assert report.exit_code == 0


def test_offsets_that_neither_tier_nor_disk_holds_are_a_hole() -> None:
    one = side(10, 45, {1: (0, 60)}, ONE)
    findings = {(f.name, f.start, f.stop) for f in check_unlisted([], one, one)}
    assert findings == {("named-not-there", 10, 30), ("hole", 30, 45)}


def test_a_cluster_without_the_topic(world: World) -> None:
    with pytest.raises(TopicNotFoundError):
        audited(world)


ID = uuid.UUID(int=33)
TEXT = uuid_to_text(ID)
AT = ("t", 0)


def side(
    log_start: int,
    local_start: int,
    owned: dict[int, tuple[int, int]],
    *epochs: EpochEntry,
    retention: Retention = Retention(),  # noqa: B008  # frozen
) -> BrokerSnapshot:
    """A leader with one named segment of offsets [10, 30)."""
    log = BrokerLog("t", TEXT, 0, 9, log_start, 60, 60, 60, local_start)
    segment_id = RemoteLogSegmentId(TopicIdPartition("t", ID, 0), ID)
    one = RemoteLogSegmentMetadata(segment_id, 10, 29, 5, 1, 20, epochs, 100)
    named = NamedSegments(MetadataRead(0, 0, 2, 2, ()), [one])
    return BrokerSnapshot({AT: log}, {AT: named}, {AT: owned}, {"t": retention})


def compared(
    before: BrokerSnapshot,
    after: BrokerSnapshot,
    *,
    last: BrokerSnapshot | None = None,
    start: int = 10,
    stop: int = 30,
) -> set[tuple[str, int | None, int | None]]:
    info = ObjectInfo("key", 5, "1")
    entry = SegmentEntry("t", TEXT, 0, 10, TEXT, "key", (("log", info),))
    part = PartitionObjects("t", TEXT, 0, (entry,), ())
    statement = PartitionStatement("t", TEXT, 0, start, stop, stop, 1, 5, is_whole=True)
    snapshots = before, after, last or after
    more = check_partition(part, statement, [], snapshots, old_ms=49)
    return {(one.name, one.start, one.stop) for one in more}


ONE = EpochEntry(1, 10)


def test_where_logs_begin() -> None:
    owned = {1: (0, 60)}
    # Before the listing the disk began at 30: all below was copied.
    assert compared(side(10, 30, owned, ONE), side(10, 45, owned, ONE)) == set()
    assert compared(side(4, 30, owned, ONE), side(4, 30, owned, ONE)) == {("hole", 4, 10)}
    assert compared(side(10, 45, owned, ONE), side(10, 45, owned, ONE)) == {("hole", 30, 45)}
    # Offsets of segments that are missed are told with them.
    lost = side(4, 45, owned, ONE)
    part = PartitionObjects("t", TEXT, 0, (), ())
    for stop, holes in ((10, {(30, 45)}), (8, {(8, 10), (30, 45)})):
        served = PartitionStatement("t", TEXT, 0, 4, stop, stop, 1, 5, is_whole=True)
        told = check_partition(part, served, [], (lost, lost, lost), old_ms=49)
        assert {(one.start, one.stop) for one in told if one.name == "hole"} == holes
        assert {one.start for one in told if one.name == "named-not-there"} == {10}
    # What retention took meanwhile is not missed.
    assert compared(side(4, 30, owned, ONE), side(10, 30, owned, ONE)) == set()
    asked = side(10, 30, owned, ONE), side(10, 30, owned, ONE)
    # Deleted when all was read, or made again: where its log starts then is of no interest.
    again = side(0, 0, owned, ONE)
    other = BrokerLog("t", "AAAAAAAAAAAAAAAAAAAAMQ", 0, 9, 0, 5, 5, 5, 0)
    for gone in ({}, {AT: other}):
        assert compared(*asked, last=BrokerSnapshot(gone, again.named, again.owned, {})) == set()
    assert compared(side(30, 45, owned, ONE), side(50, 55, owned, ONE)) == {
        ("below-log-start", 10, 30)
    }
    assert compared(side(30, 30, owned, ONE), side(30, 30, owned, ONE)) == {
        ("below-log-start", 10, 30)
    }


def test_a_partition_that_one_side_has_not() -> None:
    one, nothing = side(10, 10, {1: (0, 60)}, ONE), BrokerSnapshot({}, {}, {}, {})
    found = {(f.name, f.topic, f.partition, f.start, f.stop) for f in check_unlisted([], one, one)}
    assert found == {("named-not-there", "t", 0, 10, 30)}
    part = PartitionObjects("t", TEXT, 0, (), ())
    assert check_unlisted([part], one, one) == check_unlisted([], nothing, one) == []
    assert compared(nothing, nothing) == {("other-topic-id", None, None)}
    assert compared(nothing, one) == compared(one, nothing) == set()


def test_branches_that_the_leader_does_not_have() -> None:
    epochs = ONE, EpochEntry(4, 20)

    def dead(owned: dict[int, tuple[int, int]], log_start: int = 10) -> set[object]:
        one = side(log_start, log_start, owned, *epochs)
        return set(compared(one, one))

    assert dead({1: (0, 20), 4: (20, 60)}) == set()
    # What both branches have is the leader's.
    assert dead({1: (0, 15), 4: (15, 60)}) == {("dead-branch", 15, 30)}
    assert dead({1: (0, 20), 4: (20, 25)}) == {("dead-branch", 25, 30)}
    assert dead({1: (12, 20), 4: (20, 60)}) == {("dead-branch", 10, 30)}
    assert dead({1: (0, 20)}) == {("dead-branch", 20, 30)}
    # Nor does retention look at them.
    for owned, name in (({1: (0, 20), 4: (20, 60)}, "retention-overdue"), ({}, "dead-branch")):
        one = side(10, 10, dict(owned), *epochs, retention=Retention(1))
        assert {kind for kind, *_ in compared(one, one)} == {name}
    # The leader forgets epochs below its log start, and where they began.
    assert dead({4: (20, 60)}, log_start=20) == set()
    assert dead({4: (24, 60)}, log_start=24) == set()


def test_partition_that_metadata_lack_is_not_of_another_topic_id(world: World) -> None:
    world.write_metadata()
    _, partitions = world.cluster.topics["t"]
    partitions.append(FakePartition(partitions[0].log))
    for key in world.keys(0):
        world.store[key.replace("/0/", "/1/")] = world.store[key]

    def shorten(answer: Any) -> None:  # noqa: ANN401
        for topic in answer.topics:
            if topic.name == "t":
                topic.partitions = topic.partitions[:1]

    world.cluster.fail(METADATA, Fault(edit=shorten), times=200)

    with pytest.raises(BrokerUnavailableError, match=r"1 partitions of .* at least 2"):
        audited(world)


def with_higher_start(log_start: int) -> BuiltLog:
    """Four closed segments, of which the newest alone says that the log starts at an offset."""
    builder = LogBuilder()
    for segment in range(5):
        for number in range(6):
            builder.append([SimpleRecord(b"%d-%d" % (segment, number))] * 2)
        if segment == 3:
            builder.delete_records_before(log_start)
        if segment < 4:
            builder.roll()
    return builder.build()


@pytest.mark.parametrize("log_start", [5, 12, 17])
def test_log_start_of_one_checkpoint_is_confirmed_by_the_leader(
    cluster: FakeCluster, log_start: int
) -> None:
    world = World(cluster, with_higher_start(log_start))
    world.write_metadata()
    _, (part,) = cluster.topics["t"]
    part.log = replace(part.log, log_start=log_start)
    report = audited(world)
    below = {("below-log-start", 0, 12)} if log_start >= 12 else set()
    assert found(report) == below
    assert report.partitions[0].start == log_start
    assert report.exit_code == 0


@pytest.mark.parametrize("log_start", [5, 12, 17])
def test_log_start_above_that_of_the_leader_is_an_error_and_deletes_nothing(
    cluster: FakeCluster, log_start: int
) -> None:
    world = World(cluster, with_higher_start(log_start))
    world.write_metadata()
    report = audited(world)
    names = {one.name for one in report.findings}
    assert "lineage-disagrees" in names
    assert not names & {"below-log-start", "log-start-unconfirmed", "unknown-to-brokers"}
    (finding,) = (one for one in report.errors if one.name == "lineage-disagrees")
    assert (finding.start, finding.stop) == (0, log_start)
    assert "leader's log starts at offset 0" in finding.detail
    assert not report.partitions[0].is_whole
