"""Tests restores with zero copy: links in the tier, events about them, and the order of steps."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kts_source import scan
from kts_source.cli.app import main
from kts_source.errors import BrokerError, CorruptSegmentError, InvalidOptionError
from kts_source.planning.metadata_topic import REMOTE_LOG_METADATA
from kts_source.restore import serving, writing
from kts_source.restore.committing import commit_restore, status_restore, verify_restore
from kts_source.restore.restore_plan import read_plan
from segment_format.index.checkpoints import EpochEntry, parse_offset_checkpoint
from segment_format.kafka_uuid import uuid_from_text
from segment_format.metadata.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from segment_format.metadata.remote_log_segment_metadata import write_segment_event
from segment_format.testing import LocalTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import fake_log
from tests.kts_source.broker.fake_node import PRODUCE, Fault
from tests.kts_source.restore.world import (
    AGAIN,
    NOT_COMPARED,
    OTHER,
    SEED,
    START,
    WRITTEN,
    NewCluster,
    finished_segments,
    serving_cluster,
    states_after_each_step,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from segment_format.testing import BuiltLog

TIMED_OUT, DENIED = 7, 29
OPEN_PRODUCER, OLD_PRODUCER = 7, 9


def _log() -> BuiltLog:
    """Returns a log of five closed segments: offsets [0, 3), [3, 6), [6, 8), [8, 10) and [10, 12).
    A transaction is open at offsets 3, 8 and 10, and none at offsets 6 and 12.
    """
    builder = LogBuilder(leader_epoch=3)
    _plain(builder, 2)
    builder.send(OLD_PRODUCER, [SimpleRecord(b"first", b"t")])  # offset 2
    builder.roll()
    _plain(builder, 1)
    builder.set_leader_epoch(5)
    builder.abort(OLD_PRODUCER)
    _plain(builder, 1)
    builder.roll()
    builder.send(OPEN_PRODUCER, [SimpleRecord(b"second", b"t")])  # offset 6
    _plain(builder, 1)
    builder.roll()
    _plain(builder, 2)
    builder.roll()
    _plain(builder, 1)
    builder.commit(OPEN_PRODUCER)
    builder.roll()
    return builder.build()


def _plain(builder: LogBuilder, count: int) -> None:
    for number in range(count):
        builder.append([SimpleRecord(b"value %d" % number, b"key")])


LOG = _log()


def _write_tier(folder: Path, segments: int) -> dict[str, str]:
    """Writes the first segments of the log. Returns the options of the tier."""
    writer = LocalTierWriter(folder, topic="orders")
    for files in [files for files in LOG.segments if files.log][:segments]:
        writer.write_segment(files)
    return {"path": str(folder), "layout": "local-tiered-storage", "subscribe": "orders"}


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    """Returns the options of a tier with four segments. It ends with an open transaction."""
    return _write_tier(tmp_path / "tier", 4)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NewCluster]:
    """Returns a cluster whose seed has an empty topic `orders`, and whose other broker leads the
    topic of events.
    """
    with FakeCluster(2) as brokers:
        yield serving_cluster(tmp_path / "new", brokers)


def _write(cluster: NewCluster, options: dict[str, str]) -> None:
    cluster.write(options, target=cluster.target)


def _produced(cluster: NewCluster) -> int:
    """Returns the number of events in the topic."""
    _, partitions = cluster.brokers.topics[REMOTE_LOG_METADATA]
    return sum(partition.log.end for partition in partitions)


@pytest.mark.parametrize(
    ("segments", "undecided", "local_start", "stop"),
    [
        (1, "abort", 0, 3),
        (2, "refuse", 6, 6),
        (4, "abort", 6, 10),
        (4, "cut", 6, 6),
        (5, "cut", 12, 12),
    ],
)
def test_local_log_begins_where_no_transaction_is_open(
    segments: int,
    undecided: str,
    local_start: int,
    stop: int,
    tmp_path: Path,
    cluster: NewCluster,
) -> None:
    options = _write_tier(tmp_path / "tier", segments)
    plan = cluster.plan(options, undecided=undecided, zero_copy=True)
    assert plan.refusals == ()
    (partition,) = plan.partitions
    assert (partition.local_start, partition.stop) == (local_start, stop)
    sizes = {files.base_offset: len(files.log) for files in LOG.segments[:segments]}
    copied = [base for base in sizes if local_start <= base < stop]
    assert partition.segments == len(copied)
    assert partition.bytes == sum(sizes[base] for base in copied)
    assert partition.served == sum(base < local_start for base in sizes)
    _write(cluster, options)
    logs = sorted((cluster.log_dir / "orders-0").glob("*.log"))
    assert [int(path.stem) for path in logs] == (copied or [local_start])
    assert [segment.start_offset for segment in finished_segments(cluster)] == [
        base for base in sizes if base < local_start
    ]


@pytest.mark.parametrize("zero_copy", [False, True])
def test_branch_that_unclean_election_discarded_is_not_restored(
    zero_copy: bool, tmp_path: Path, cluster: NewCluster
) -> None:
    lost, log = LogBuilder(leader_epoch=3), LogBuilder(leader_epoch=3)
    for builder, count in ((lost, 4), (log, 1)):  # the new leader has only one of four records
        _plain(builder, 2)
        builder.roll()
        _plain(builder, count)
        builder.roll()
    log.set_leader_epoch(5)
    for number in range(3, 8):
        log.append([SimpleRecord(b"other %d" % number, b"key")])
        if number in (5, 7):
            log.roll()
    writer = LocalTierWriter(tmp_path / "tier", topic="orders")
    for files in (*lost.build().segments[:2], *log.build().segments[2:4]):
        writer.write_segment(files)
    options = {
        "path": str(tmp_path / "tier"),
        "layout": "local-tiered-storage",
        "subscribe": "orders",
    }
    cluster.brokers.configs["remote.storage.enable"] = str(zero_copy).lower()
    plan = cluster.plan(options, zero_copy=zero_copy)
    assert plan.refusals == ()
    assert plan.partitions[0].served == (1 if zero_copy else 0)
    _write(cluster, options)
    disk = str(cluster.log_dir)
    restored = {"path": disk, "layout": "kafka-logs", "subscribe": "orders"}
    if zero_copy:
        restored = {**options, "tailPath": disk, "topicId": plan.target_ids["orders"]}
    rows = scan({**restored, "endOfLog": "true", "columns": "offset,value,leaderEpoch"}).to_table()
    assert [tuple(row.values()) for row in rows.to_pylist()] == [
        (row.offset, row.value, row.leader_epoch) for row in log.build().all_rows
    ]


def test_served_segments_have_links_and_events(
    options: dict[str, str], tmp_path: Path, cluster: NewCluster
) -> None:
    plan = cluster.plan(options, undecided="abort", zero_copy=True)
    before = _objects(tmp_path / "tier")
    _write(cluster, options)
    after = _objects(tmp_path / "tier")
    assert {path: after[path] for path in before} == before
    new_id = plan.target_ids["orders"]
    folder = tmp_path / "tier" / "kafka-tiered-storage" / f"orders-0-{new_id}"
    first, second = (files for files in LOG.segments[:2])
    started = finished_segments(cluster)
    assert [
        (e.start_offset, e.end_offset, e.max_timestamp_ms, e.segment_leader_epochs) for e in started
    ] == [
        (0, 2, first.max_timestamp_ms, (EpochEntry(3, 0),)),
        (3, 5, second.max_timestamp_ms, (EpochEntry(3, 3), EpochEntry(5, 4))),
    ]
    assert [e.segment_size_in_bytes for e in started] == [len(first.log), len(second.log)]
    assert [e.txn_index_empty for e in started] == [True, None]  # the abort marker is in the second
    for event in started:
        links = list(folder.glob(f"{event.start_offset:020d}-*"))
        assert all(path.stat().st_nlink == 2 for path in links)
        suffixes = {path.suffix for path in links} - {".txnindex"}
        assert suffixes == {".log", ".index", ".timeindex", ".snapshot", ".leader_epoch_checkpoint"}
    assert len(list(folder.iterdir())) == 11
    starts = parse_offset_checkpoint(cluster.files()["log-start-offset-checkpoint"])
    assert starts == {("orders", 0): 0}


def _objects(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        str(path): (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_second_write_publishes_no_event_again(
    options: dict[str, str], cluster: NewCluster
) -> None:
    cluster.plan(options, undecided="abort", zero_copy=True)
    _write(cluster, options)
    assert _produced(cluster) == 4
    _write(cluster, options)
    journal = cluster.plan_file.with_name("plan.json.journal")
    lines = journal.read_text().splitlines(keepends=True)
    assert '"published"' in lines[-1]
    journal.write_text("".join(lines[:-1]))  # killed before the last step was recorded
    assert status_restore(str(cluster.plan_file))[-1].startswith("next: run kts restore write")
    _write(cluster, options)
    assert _produced(cluster) == 4


def test_write_publishes_only_missing_events(options: dict[str, str], cluster: NewCluster) -> None:
    """An earlier attempt announced the first segment, and finished the second one."""
    plan = cluster.plan(options, undecided="abort", zero_copy=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "publish_events", _crash)
        with pytest.raises(_CrashError):
            _write(cluster, options)
    cluster.brokers.fail(PRODUCE, Fault(code=DENIED))
    with pytest.raises(BrokerError, match=REMOTE_LOG_METADATA):
        _write(cluster, options)
    assert _produced(cluster) == 0
    cluster.brokers.fail(PRODUCE, Fault(code=TIMED_OUT), Fault(hang_up=True))
    _write(cluster, options)
    assert len(finished_segments(cluster)) == 2
    assert _produced(cluster) == 4
    assert plan == read_plan(str(cluster.plan_file))


def _crash(*_: object, **__: object) -> None:
    raise _CrashError


class _CrashError(Exception):
    """Ends a write like a crash, because no code catches it."""


def test_write_resumes_after_crash_at_every_step(
    options: dict[str, str], tmp_path: Path, cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.plan(options, undecided="abort", zero_copy=True)
    before = _objects(tmp_path / "tier")
    passed = limit = crashes = 0

    def step(run: Callable[..., Any]) -> Callable[..., Any]:
        def crashing(*args: Any, **more: Any) -> Any:  # noqa: ANN401
            nonlocal passed
            passed += 1
            if passed > limit:
                raise _CrashError
            return run(*args, **more)

        return crashing

    monkeypatch.setattr(os, "fsync", step(os.fsync))  # the last one is that of `published`
    monkeypatch.setattr(writing, "publish_events", step(serving.publish_events))
    while True:
        passed, limit = 0, limit + 1
        try:
            _write(cluster, options)
            break
        except _CrashError:
            crashes += 1
            may_start = "next: start broker 0" in status_restore(str(cluster.plan_file))[-1]
            assert not may_start or _produced(cluster) == 4
    assert crashes > 10
    assert _produced(cluster) == 4
    assert len(finished_segments(cluster)) == 2
    after = _objects(tmp_path / "tier")
    assert {path: after[path] for path in before} == before


def test_status_explains_each_state_of_a_write(
    options: dict[str, str], cluster: NewCluster
) -> None:
    cluster.plan(options, undecided="abort", zero_copy=True)
    _write(cluster, options)
    whole = "written: 1 of 1 partitions"
    assert states_after_each_step(cluster) == [
        ("planned: nothing is written", "next: stop broker 0, then kts restore write"),
        ("written: 0 of 1 partitions", AGAIN),  # begin
        ("written: 0 of 1 partitions", AGAIN),  # staged
        (whole, AGAIN),  # placed
        (whole, NOT_COMPARED, AGAIN),  # written
        (whole, WRITTEN, "the segments are not announced in __remote_log_metadata", AGAIN),
        (whole, WRITTEN, START),  # published
    ]


def test_status_after_refused_producer_id_of_served_segments_names_the_topic(
    options: dict[str, str], cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cluster.plan(options, undecided="abort", zero_copy=True).refusals == ()
    monkeypatch.setattr(serving, "MAX_PRODUCER_ID", OLD_PRODUCER - 1)
    with pytest.raises(CorruptSegmentError, match=f"producer id {OLD_PRODUCER}"):
        _write(cluster, options)
    assert status_restore(str(cluster.plan_file))[-1].endswith("plan again without topic orders")
    assert not _produced(cluster)


def test_verify_and_commit_of_served_log_succeed(tmp_path: Path, cluster: NewCluster) -> None:
    options = _write_tier(tmp_path / "tier", 2)
    cluster.plan(options, zero_copy=True)
    _write(cluster, options)
    topic_id, _ = cluster.brokers.topics["orders"]
    builder = fake_log(replace(LOG, segments=LOG.segments[:2]))
    cluster.brokers.create("orders", [FakePartition(builder, epoch=100)], topic_id)
    builder.transactions = [t for t in builder.transactions if t.first_offset < 6]
    assert verify_restore(str(cluster.plan_file), cluster.target) == []
    commit_restore(str(cluster.plan_file), cluster.target, configs={}, groups={})
    # New replicas begin with a snapshot that has this producer.
    assert min(cluster.brokers.producer_ids[node] for node in (SEED, OTHER)) > OLD_PRODUCER


def test_commands_with_zero_copy_publish_events(
    options: dict[str, str], cluster: NewCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    tier = [options["path"], "orders", "--layout", "local-tiered-storage"]
    target = ["--to", cluster.brokers.bootstrap]
    plan_file = str(cluster.plan_file)
    flags = ["--zero-copy", "--undecided", "abort", "--output", plan_file]
    assert main(["restore", "plan", *tier, *target, *flags]) == 0
    assert "in place: offsets [0, 6) of 2 segments that are not copied" in capsys.readouterr().out
    write = ["restore", "write", plan_file, *tier, "--log-dir", str(cluster.log_dir)]
    assert main([*write, *target]) == 0
    assert "next: start broker 0" in capsys.readouterr().out
    assert len(finished_segments(cluster)) == 2


def test_write_without_brokers_is_rejected(options: dict[str, str], cluster: NewCluster) -> None:
    cluster.plan(options, undecided="abort", zero_copy=True)
    before = cluster.files()
    with pytest.raises(InvalidOptionError, match="address of the new cluster is missing"):
        cluster.write(options)
    assert cluster.files() == before


def test_write_after_broker_used_the_log_is_rejected(
    options: dict[str, str], cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.plan(options, undecided="abort", zero_copy=True)
    with monkeypatch.context() as patch:
        patch.setattr(writing, "publish_events", _crash)
        with pytest.raises(_CrashError):
            _write(cluster, options)
    checkpoint = cluster.log_dir / "orders-0" / "leader-epoch-checkpoint"
    checkpoint.write_text(checkpoint.read_text() + "101 11\n")
    with pytest.raises(InvalidOptionError, match="was changed after it was written"):
        _write(cluster, options)
    assert _produced(cluster) == 0


def test_write_to_topic_with_other_tiered_segments_is_rejected(
    options: dict[str, str], cluster: NewCluster
) -> None:
    plan = cluster.plan(options, undecided="abort", zero_copy=True)
    target = TopicIdPartition("orders", uuid_from_text(plan.target_ids["orders"]), 0)
    other = RemoteLogSegmentMetadata(
        RemoteLogSegmentId(target, uuid_from_text("TprsnF6cRmq9YwcWXXXVog")),
        *(0, 5, 1, SEED, 1, (EpochEntry(100, 0),), 100),
        state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
    )
    builder = LogBuilder()
    builder.append([SimpleRecord(write_segment_event(other), b"")])
    (batch,) = fake_log(builder.build()).batches
    for partition in cluster.brokers.topics[REMOTE_LOG_METADATA][1]:
        partition.log.append(batch.data, 0)
    with pytest.raises(InvalidOptionError, match="have other segments"):
        _write(cluster, options)
    assert _produced(cluster) == 3


def test_write_over_foreign_object_is_rejected(
    options: dict[str, str], tmp_path: Path, cluster: NewCluster
) -> None:
    plan = cluster.plan(options, undecided="abort", zero_copy=True)
    (log,) = (tmp_path / "tier").rglob(f"{3:020d}-*.log")
    folder = log.parent.parent / f"orders-0-{plan.target_ids['orders']}"
    folder.mkdir()
    (folder / log.name).write_bytes(b"foreign")
    with pytest.raises(InvalidOptionError, match="is not a link to"):
        _write(cluster, options)
    assert (folder / log.name).read_bytes() == b"foreign"
    assert _produced(cluster) == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("remote.storage.enable", "false"),
        ("local.retention.bytes", "1"),
        ("local.retention.ms", "1000"),
        ("retention.ms", "1000"),
    ],
)
def test_configuration_that_deletes_served_records_is_refused(
    name: str, value: str, options: dict[str, str], cluster: NewCluster
) -> None:
    cluster.brokers.configs[name] = value
    (text,) = cluster.plan(options, undecided="abort", zero_copy=True).refusals
    assert text.startswith(f"orders: set {name}=")


def test_event_topic_on_seed_is_refused(options: dict[str, str], cluster: NewCluster) -> None:
    cluster.brokers.topics[REMOTE_LOG_METADATA][1][2].leader = SEED
    (text,) = cluster.plan(options, undecided="abort", zero_copy=True).refusals
    assert f"partitions [2] of {REMOTE_LOG_METADATA} are on broker 0" in text


def test_missing_event_topic_is_refused(options: dict[str, str], cluster: NewCluster) -> None:
    del cluster.brokers.topics[REMOTE_LOG_METADATA]
    (text,) = cluster.plan(options, undecided="abort", zero_copy=True).refusals
    assert f"no topic {REMOTE_LOG_METADATA}" in text


@pytest.mark.parametrize(
    "more", [{"tailPath": "/disk"}, {"fallbackPath": "/mirror"}, {"path": "s3://bucket"}]
)
def test_source_that_brokers_cannot_serve_is_rejected(
    more: dict[str, str], options: dict[str, str], cluster: NewCluster
) -> None:
    with pytest.raises(InvalidOptionError, match="zero copy"):
        cluster.plan({**options, **more}, zero_copy=True)


@pytest.mark.parametrize(
    "more", [{"layout": "kafka-logs"}, {"layout": "aiven", "path": "gs://bucket"}]
)
def test_zero_copy_of_other_layout_or_store_is_rejected(
    more: dict[str, str], options: dict[str, str], cluster: NewCluster
) -> None:
    with pytest.raises(InvalidOptionError, match="zero copy supports only layout"):
        cluster.plan({**options, **more}, zero_copy=True)
