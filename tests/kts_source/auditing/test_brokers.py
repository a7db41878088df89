"""Tests audits that compare the tier with brokers.

The audits report segments that only the tier or only the brokers have. They use the log start that
the leader reports.
"""

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


def run_audit(
    world: World, level: str = "bytes", now_ms: int = NOW_MS, timeout_ms: int = 5000
) -> AuditReport:
    options = {
        "path": "/",
        "subscribe": "t",
        "kafka.bootstrap.servers": world.cluster.bootstrap,
        "kafka.request.timeout.ms": str(timeout_ms),
        "kafka.fetch.max.wait.ms": "10",
    }
    return kts_source.audit(options, level=level, store=MemoryStore(world.store), now_ms=now_ms)


def finding_spans(report: AuditReport) -> set[tuple[str, int | None, int | None]]:
    return {(finding.name, finding.start, finding.stop) for finding in report.findings}


def test_audit_of_tier_that_matches_brokers_has_no_findings(world: World) -> None:
    world.write_metadata()
    report = run_audit(world)
    assert report.findings == ()
    assert report.partitions[0].is_whole


def test_tiered_segment_that_brokers_do_not_list_is_reported(world: World) -> None:
    world.records[1].clear()
    world.write_metadata()
    report = run_audit(world)
    assert finding_spans(report) == {("unknown-to-brokers", 12, None)}
    assert set(report.findings[0].objects) == set(world.keys(1))
    assert report.orphan_bytes == sum(len(world.store[key]) for key in world.keys(1))
    assert report.exit_code == 0


@pytest.mark.parametrize("level", ["listing", "bytes"])
def test_missing_last_segment_that_brokers_list_is_reported(world: World, level: str) -> None:
    world.write_metadata()
    for key in world.keys(3):  # the last segment; without brokers its loss is not detectable
        del world.store[key]
    report = run_audit(world, level)
    assert finding_spans(report) == {("named-not-there", 36, 48)}
    assert report.exit_code == 3
    assert not report.partitions[0].is_whole


def test_missing_inner_segment_is_reported_only_as_hole(world: World) -> None:
    world.write_metadata()
    for key in world.keys(1):
        del world.store[key]
    assert finding_spans(run_audit(world)) == {("hole", 12, 24)}


def test_unfinished_copies_and_deletes_are_reported_after_grace_period(world: World) -> None:
    del world.records[0][1:]
    third = world.segment_ids[2]
    world.records[2] = [*copied(world.place, world.closed[2], third, FINISHED, DELETING)]
    world.write_metadata()
    assert finding_spans(run_audit(world)) == {
        ("copy-not-finished", 0, 12),
        ("delete-not-finished", 24, 36),
    }
    # At 1 ms, the grace period is not over, so the audit does not report these segments.
    assert finding_spans(run_audit(world, now_ms=1)) <= {
        ("clock", 12 * n, 12 * n + 12) for n in range(4)
    }


def test_objects_of_deleted_segment_are_reported(world: World) -> None:
    second = world.segment_ids[1]
    world.records[1] = [*copied(world.place, world.closed[1], second, DELETING, DELETED)]
    world.write_metadata()
    assert finding_spans(run_audit(world)) == {("unknown-to-brokers", 12, None)}


def test_segments_older_than_retention_ms_are_reported(world: World) -> None:
    world.write_metadata()
    configs = world.cluster.configs
    configs["retention.ms"] = "86400000"
    # Level `listing`, which reads no manifests, must report it, too.
    for level in ("listing", "bytes"):
        report = run_audit(world, level)
        assert finding_spans(report) == {("retention-overdue", 0, 48)}
        assert set(report.findings[0].objects) == set(world.store)
        assert report.exit_code == 0
    # With cleanup policy `compact` alone, retention.ms has no effect.
    configs["cleanup.policy"] = "compact"
    assert run_audit(world).findings == ()
    configs["cleanup.policy"] = "compact,delete"
    assert finding_spans(run_audit(world)) == {("retention-overdue", 0, 48)}
    configs["retention.ms"] = "-1"
    assert run_audit(world).findings == ()


def segment_metadata(number: int, newest_ms: int, copied_ms: int = 100) -> RemoteLogSegmentMetadata:
    """Returns metadata of segment `number`, which has 50 bytes and the ten offsets from 10 *
    `number` on.
    """
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
        (Retention(1000), 0, 2000, [0, 1]),  # deletion stops at the first retained segment
        (Retention(1000), 10, 2000, [1]),
        (Retention(1000), 0, 100, []),  # all segments were copied later
        (Retention(None, 100), 0, 500, [0]),
        (Retention(None, 101), 0, 500, []),
        (Retention(None, 99), 0, 500, [0]),
        (Retention(None, 50), 0, 500, [0, 1]),
        (Retention(None, 0), 0, 500, [0, 1, 2]),
        (Retention(None, 50), 0, 1001, [0, 1]),  # the last segment was copied during the audit
        (Retention(1000, 50), 0, 1301, [0, 1]),
        (Retention(), 0, 1 << 40, []),
    ],
)
def test_oldest_segments_beyond_the_retention_limits_are_overdue(
    retention: Retention, log_start: int, old_ms: int, overdue: list[int]
) -> None:
    live = [segment_metadata(2, 1 << 40), segment_metadata(0, 300), segment_metadata(1, 400)]
    if old_ms == 1001:
        live.append(segment_metadata(3, 400, copied_ms=1001))
    segments = retention.overdue(live, log_start, old_ms)
    assert [segment.start_offset // 10 for segment in segments] == overdue


def test_segments_beyond_retention_bytes_are_reported(world: World) -> None:
    world.write_metadata()
    sizes = [len(files.log) for files in world.closed]
    for extra_bytes, stop in ((1, 12), (0, 24)):
        world.cluster.configs["retention.bytes"] = str(sizes[2] + sizes[3] + extra_bytes)
        assert finding_spans(run_audit(world)) == {("retention-overdue", 0, stop)}
    world.cluster.configs["retention.bytes"] = str(sum(sizes))
    assert run_audit(world).findings == ()


def test_denied_describe_configs_request_is_reported(world: World) -> None:
    world.write_metadata()
    world.cluster.configs["retention.ms"] = "1"
    world.cluster.fail("DescribeConfigs", Fault(code=29), times=2)
    report = run_audit(world)
    assert finding_spans(report) == {("retention-unknown", None, None)}
    assert "TOPIC_AUTHORIZATION_FAILED" in report.findings[0].detail
    assert report.exit_code == 0


def test_segments_with_topic_id_unknown_to_brokers_are_reported(world: World) -> None:
    world.write_metadata()
    other: dict[str, bytes] = {}
    writer = AivenTierWriter(other, topic="t", topic_id="AAAAAAAAAAAAAAAAAAAAIQ")
    for files in world.closed:
        writer.write_segment(files)
    newest = AivenTierWriter(world.store, topic="t", topic_id="AAAAAAAAAAAAAAAAAAAAMQ")
    newest.write_segment(world.closed[0], event_timestamp_ms=NOW_MS - 1)
    report = run_audit(world)  # readers choose the newest topic id, not the brokers' topic id
    assert finding_spans(report) == {("other-topic-id", None, None)}
    assert len(report.findings[0].objects) == 3
    world.store.clear()
    world.store.update(other)
    report = run_audit(world)
    lost = {("named-not-there", start, start + 12) for start in (0, 12, 24, 36)}
    assert finding_spans(report) == {*lost, ("other-topic-id", 0, None)}
    assert len(report.errors) == 4
    (finding,) = (each for each in report.findings if each.name == "other-topic-id")
    assert finding.objects == ()
    assert f"no manifest of the brokers' topic id {world.place[1]}" in finding.detail


def test_incomplete_metadata_topic_is_reported(world: World) -> None:
    del world.records[1][:1]
    world.records[0].clear()
    world.write_metadata()
    assert finding_spans(run_audit(world)) == {("metadata-incomplete", None, None)}


@pytest.mark.parametrize("level", ["listing", "metadata", "indexes", "bytes"])
def test_topic_that_lost_all_objects_is_reported(world: World, level: str) -> None:
    world.write_metadata()
    expected = {
        ("named-not-there", segment.base_offset, segment.next_offset) for segment in world.closed
    }
    world.store.clear()
    report = run_audit(world, level)
    assert finding_spans(report) == expected
    assert report.exit_code == 3


@pytest.mark.parametrize("has_other_topic", [False, True])
def test_topic_without_tiered_segments_has_no_findings(world: World, has_other_topic: bool) -> None:
    world.records.clear()
    world.write_metadata()
    world.store.clear()
    if has_other_topic:
        builder = LogBuilder()
        builder.append([SimpleRecord(b"x")])
        files = builder.build().segments[0]
        AivenTierWriter(world.store, topic="other").write_segment(files)
    report = run_audit(world)
    assert finding_spans(report) == set()
    assert report.exit_code == 0


def test_offsets_missing_in_tier_and_on_disk_are_reported_as_hole() -> None:
    snapshot = broker_snapshot(10, 45, {1: (0, 60)}, EPOCH_1)
    findings = {
        (finding.name, finding.start, finding.stop)
        for finding in check_unlisted([], snapshot, snapshot)
    }
    assert findings == {("named-not-there", 10, 30), ("hole", 30, 45)}


def test_audit_of_topic_missing_in_metadata_raises_topic_not_found_error(world: World) -> None:
    with pytest.raises(TopicNotFoundError):
        run_audit(world)


ID = uuid.UUID(int=33)
TOPIC_ID = uuid_to_text(ID)
PARTITION = ("t", 0)


def broker_snapshot(
    log_start: int,
    local_start: int,
    owned: dict[int, tuple[int, int]],
    *epochs: EpochEntry,
    retention: Retention = Retention(),  # noqa: B008  # frozen
) -> BrokerSnapshot:
    """Returns a snapshot of brokers with one partition and one tiered segment.

    The segment has the offsets [10, 30) and the leader epochs `epochs`. `owned` maps each leader
    epoch to the offsets [start, stop) that have this epoch in the leader's log.
    """
    log = BrokerLog("t", TOPIC_ID, 0, 9, log_start, 60, 60, 60, local_start)
    segment_id = RemoteLogSegmentId(TopicIdPartition("t", ID, 0), ID)
    metadata = RemoteLogSegmentMetadata(segment_id, 10, 29, 5, 1, 20, epochs, 100)
    named = NamedSegments(MetadataRead(0, 0, 2, 2, ()), [metadata])
    return BrokerSnapshot(
        {PARTITION: log}, {PARTITION: named}, {PARTITION: owned}, {"t": retention}
    )


def compare_snapshots(
    before: BrokerSnapshot,
    after: BrokerSnapshot,
    *,
    last: BrokerSnapshot | None = None,
    start: int = 10,
    stop: int = 30,
) -> set[tuple[str, int | None, int | None]]:
    info = ObjectInfo("key", 5, "1")
    entry = SegmentEntry("t", TOPIC_ID, 0, 10, TOPIC_ID, "key", (("log", info),))
    objects = PartitionObjects("t", TOPIC_ID, 0, (entry,), ())
    statement = PartitionStatement("t", TOPIC_ID, 0, start, stop, stop, 1, 5, is_whole=True)
    snapshots = before, after, last or after
    findings = check_partition(objects, statement, [], snapshots, old_ms=49)
    return {(finding.name, finding.start, finding.stop) for finding in findings}


EPOCH_1 = EpochEntry(1, 10)


def test_log_start_and_local_log_start_of_leader_decide_which_holes_are_reported() -> None:
    owned = {1: (0, 60)}
    # The leader's disk started at 30 before the listing: older offsets had been copied by then.
    assert (
        compare_snapshots(
            broker_snapshot(10, 30, owned, EPOCH_1), broker_snapshot(10, 45, owned, EPOCH_1)
        )
        == set()
    )
    assert compare_snapshots(
        broker_snapshot(4, 30, owned, EPOCH_1), broker_snapshot(4, 30, owned, EPOCH_1)
    ) == {("hole", 4, 10)}
    assert compare_snapshots(
        broker_snapshot(10, 45, owned, EPOCH_1), broker_snapshot(10, 45, owned, EPOCH_1)
    ) == {("hole", 30, 45)}
    # Offsets of a missing segment are reported with that segment, not as a hole.
    lost = broker_snapshot(4, 45, owned, EPOCH_1)
    objects = PartitionObjects("t", TOPIC_ID, 0, (), ())
    for stop, holes in ((10, {(30, 45)}), (8, {(8, 10), (30, 45)})):
        statement = PartitionStatement("t", TOPIC_ID, 0, 4, stop, stop, 1, 5, is_whole=True)
        findings = check_partition(objects, statement, [], (lost, lost, lost), old_ms=49)
        reported_holes = {
            (finding.start, finding.stop) for finding in findings if finding.name == "hole"
        }
        assert reported_holes == holes
        assert {finding.start for finding in findings if finding.name == "named-not-there"} == {10}
    # Offsets that retention deleted during the audit are not reported.
    assert (
        compare_snapshots(
            broker_snapshot(4, 30, owned, EPOCH_1), broker_snapshot(10, 30, owned, EPOCH_1)
        )
        == set()
    )
    # If the topic is deleted or recreated during the audit, the last snapshot must be ignored.
    before = broker_snapshot(10, 30, owned, EPOCH_1), broker_snapshot(10, 30, owned, EPOCH_1)
    recreated = broker_snapshot(0, 0, owned, EPOCH_1)
    other = BrokerLog("t", "AAAAAAAAAAAAAAAAAAAAMQ", 0, 9, 0, 5, 5, 5, 0)
    for logs in ({}, {PARTITION: other}):
        last = BrokerSnapshot(logs, recreated.named, recreated.owned, {})
        assert compare_snapshots(*before, last=last) == set()
    assert compare_snapshots(
        broker_snapshot(30, 45, owned, EPOCH_1), broker_snapshot(50, 55, owned, EPOCH_1)
    ) == {("below-log-start", 10, 30)}
    assert compare_snapshots(
        broker_snapshot(30, 30, owned, EPOCH_1), broker_snapshot(30, 30, owned, EPOCH_1)
    ) == {("below-log-start", 10, 30)}


def test_partition_only_in_tier_or_only_on_brokers_is_reported() -> None:
    snapshot = broker_snapshot(10, 10, {1: (0, 60)}, EPOCH_1)
    empty = BrokerSnapshot({}, {}, {}, {})
    findings = {
        (finding.name, finding.topic, finding.partition, finding.start, finding.stop)
        for finding in check_unlisted([], snapshot, snapshot)
    }
    assert findings == {("named-not-there", "t", 0, 10, 30)}
    objects = PartitionObjects("t", TOPIC_ID, 0, (), ())
    assert check_unlisted([objects], snapshot, snapshot) == []
    assert check_unlisted([], empty, snapshot) == []
    assert compare_snapshots(empty, empty) == {("other-topic-id", None, None)}
    assert compare_snapshots(empty, snapshot) == compare_snapshots(snapshot, empty) == set()


def test_segments_of_replaced_branch_are_reported() -> None:
    epochs = EPOCH_1, EpochEntry(4, 20)

    def findings(owned: dict[int, tuple[int, int]], log_start: int = 10) -> set[object]:
        snapshot = broker_snapshot(log_start, log_start, owned, *epochs)
        return set(compare_snapshots(snapshot, snapshot))

    assert findings({1: (0, 20), 4: (20, 60)}) == set()
    # Findings begin at the first offset that the leader has in another epoch.
    assert findings({1: (0, 15), 4: (15, 60)}) == {("dead-branch", 15, 30)}
    assert findings({1: (0, 20), 4: (20, 25)}) == {("dead-branch", 25, 30)}
    assert findings({1: (12, 20), 4: (20, 60)}) == {("dead-branch", 10, 30)}
    assert findings({1: (0, 20)}) == {("dead-branch", 20, 30)}
    # Retention findings do not include segments of a replaced branch.
    for owned, name in (({1: (0, 20), 4: (20, 60)}, "retention-overdue"), ({}, "dead-branch")):
        snapshot = broker_snapshot(10, 10, dict(owned), *epochs, retention=Retention(1))
        assert {kind for kind, *_ in compare_snapshots(snapshot, snapshot)} == {name}
    # A leader forgets the epochs before its log start, which is no sign of another branch.
    assert findings({4: (20, 60)}, log_start=20) == set()
    assert findings({4: (24, 60)}, log_start=24) == set()


def test_metadata_response_without_a_partition_raises_broker_unavailable_error(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kts_source.broker.cluster._INCOMPLETE_SECONDS", 0.5)
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
        run_audit(world, timeout_ms=1500)


def with_higher_start(log_start: int) -> BuiltLog:
    """Builds four closed segments.

    Only the checkpoint of the last closed segment contains the log start `log_start`.
    """
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
def test_audit_uses_log_start_of_newest_checkpoint_if_leader_confirms_it(
    cluster: FakeCluster, log_start: int
) -> None:
    world = World(cluster, with_higher_start(log_start))
    world.write_metadata()
    _, (partition,) = cluster.topics["t"]
    partition.log = replace(partition.log, log_start=log_start)
    report = run_audit(world)
    below = {("below-log-start", 0, 12)} if log_start >= 12 else set()
    assert finding_spans(report) == below
    assert report.partitions[0].start == log_start
    assert report.exit_code == 0


@pytest.mark.parametrize("log_start", [5, 12, 17])
def test_checkpoint_log_start_above_leader_log_start_is_reported_as_error(
    cluster: FakeCluster, log_start: int
) -> None:
    world = World(cluster, with_higher_start(log_start))
    world.write_metadata()
    report = run_audit(world)
    names = {finding.name for finding in report.findings}
    assert "lineage-disagrees" in names
    assert not names & {"below-log-start", "log-start-unconfirmed", "unknown-to-brokers"}
    (finding,) = (error for error in report.errors if error.name == "lineage-disagrees")
    assert (finding.start, finding.stop) == (0, log_start)
    assert "leader's log starts at offset 0" in finding.detail
    assert not report.partitions[0].is_whole
