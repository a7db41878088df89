"""Tests audits during which objects are deleted.

An audit must ignore deletes by brokers and report other deletes as errors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import kts_source
from kts_source.auditing.broker_checks import BrokerSnapshot, without_deleted
from kts_source.auditing.listing_checks import PartitionObjects
from kts_source.auditing.report import Finding, PartitionStatement
from kts_source.layout.layout import SegmentEntry
from kts_source.planning.cluster_view import ClusterView
from kts_source.planning.metadata_topic import NamedSegments
from kts_source.store.object_store import ObjectInfo
from segment_format.testing import LogBuilder, SimpleRecord
from tests.kts_source.auditing.test_brokers import (
    EPOCH_1,
    NOW_MS,
    PARTITION,
    TOPIC_ID,
    broker_snapshot,
    cluster,
    finding_spans,
    run_audit,
    world,
)
from tests.kts_source.planning.memory_store import MemoryStore
from tests.kts_source.planning.metadata_events import DELETED, DELETING, FINISHED, copied
from tests.kts_source.planning.metadata_world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kts_source.auditing.report import AuditReport
    from kts_source.planning.cluster_view import BrokerLog
    from tests.kts_source.broker.fake_broker import FakeCluster
    from tests.kts_source.broker.fake_log import FakeLog

__all__ = ["cluster", "world"]

STOPS = (12, 24)


class ChangingStore(MemoryStore):
    """Store that calls `change` just before an object is read for the first time.

    Args:
        world: The tier with the objects, and the cluster of its topic.
        first: Key of the object.
        change: Function that changes the tier or the cluster.
    """

    def __init__(self, world: World, first: str, change: Callable[[], None]) -> None:
        super().__init__(world.store)
        self._first = first
        self._change = change

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> bytes:
        if key == self._first:
            self._first = ""
            self._change()
        return super().get_range(key, start, stop, version=version)


def user_log(world: World) -> FakeLog:
    return world.cluster.topics["t"][1][0].log


def remove(world: World, numbers: Iterable[int]) -> None:
    """Deletes the objects of the segments with these numbers."""
    for number in numbers:
        for key in world.keys(number):
            del world.store[key]


def delete(world: World, numbers: Iterable[int]) -> None:
    """Deletes segments as brokers do: writes records about the deletes to the metadata topic, moves
    the log start and deletes the objects.
    """
    for number in numbers:
        files, name = world.closed[number], world.segment_ids[number]
        world.records[number] = [*copied(world.place, files, name, FINISHED, DELETING, DELETED)]
        user_log(world).log_start = STOPS[number]
    world.write_metadata()
    remove(world, numbers)


def audit_with_change(
    world: World, level: str, first: str, change: Callable[[], None]
) -> AuditReport:
    world.write_metadata()
    options = {
        "path": "/",
        "subscribe": "t",
        "kafka.bootstrap.servers": world.cluster.bootstrap,
        "kafka.fetch.max.wait.ms": "10",
    }
    store = ChangingStore(world, first, change)
    return kts_source.audit(options, level=level, store=store, now_ms=NOW_MS)


@pytest.mark.parametrize("numbers", [(0,), (0, 1)])
@pytest.mark.parametrize("suffix", ["rsm-manifest", "indexes", "log"])
def test_segments_that_brokers_delete_during_audit_are_not_reported(
    world: World, suffix: str, numbers: tuple[int, ...]
) -> None:
    first = next(key for key in world.keys(numbers[-1]) if key.endswith(suffix))
    report = audit_with_change(world, "bytes", first, lambda: delete(world, numbers))
    assert report.findings == ()
    (statement,) = report.partitions
    assert (statement.start, statement.stop) == (STOPS[numbers[-1]], 48)
    assert statement.is_whole
    # The report counts the records of all remaining segments or contains no count.
    assert statement.records in (None, 48 - STOPS[numbers[-1]])


@pytest.mark.parametrize("suffix", ["rsm-manifest", "indexes", "log"])
def test_segment_that_disappears_without_delete_by_brokers_is_reported(
    world: World, suffix: str
) -> None:
    first = next(key for key in world.keys(1) if key.endswith(suffix))
    report = audit_with_change(world, "bytes", first, lambda: remove(world, (1,)))
    assert ("object-gone", 12) in {(name, start) for name, start, _ in finding_spans(report)}
    assert report.exit_code == 1
    assert not report.partitions[0].is_whole


def test_half_deleted_segment_is_reported_after_grace_period(world: World) -> None:
    # Brokers have deleted the log object, but not yet the other objects of the segment.
    first = world.segment_ids[0]
    world.records[0] = [*copied(world.place, world.closed[0], first, FINISHED, DELETING)]
    world.write_metadata()
    del world.store[next(key for key in world.keys(0) if key.endswith(".log"))]
    user_log(world).log_start = 12
    # The delete began at 2 ms. The default grace period is one hour.
    spans = finding_spans(run_audit(world, now_ms=3_600_003))
    assert {name for name, *_ in spans} == {"half-delete", "clock"}
    report = run_audit(world, now_ms=3_600_002)
    assert {name for name, *_ in finding_spans(report)} == {"clock"}
    assert (report.partitions[0].start, report.partitions[0].is_whole) == (12, True)


def test_gap_below_the_log_start_is_not_reported(world: World) -> None:
    # Segment 1 is gone and segment 0 is below the log start, as after deletes during a listing.
    delete(world, (1,))
    report = run_audit(world)
    assert {span for span in finding_spans(report) if span[0] != "below-log-start"} == set()
    assert (report.partitions[0].start, report.partitions[0].is_whole) == (24, True)


def test_log_start_that_moves_during_audit_causes_no_findings(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = LogBuilder()
    for number in range(5):
        if number > 0:
            builder.set_leader_epoch(number)
        builder.append([SimpleRecord(b"%d" % number)] * 12)
        if number < 4:
            builder.roll()
    world = World(cluster, builder.build())
    world.write_metadata()
    log, log_starts = user_log(world), []
    assert log.epochs == [(number, 12 * number) for number in range(5)]

    def owned(
        view: ClusterView, broker_log: BrokerLog, epochs: set[int]
    ) -> dict[int, tuple[int, int]]:
        log_starts.append(broker_log.log_start)
        if len(log_starts) == 2:  # after the listing
            log.log_start, log.epochs = 30, [(2, 30), (3, 36), (4, 48)]
        return real(view, broker_log, epochs)

    real = ClusterView.owned
    monkeypatch.setattr(ClusterView, "owned", owned)
    # When the leader is asked, it has forgotten epochs before its new log start. The audit must
    # not take the segments with these epochs for a replaced branch.
    assert run_audit(world).findings == ()
    assert log_starts == [0, 0]


def compare_with(last: BrokerSnapshot, start: int, digest: str | None = None) -> tuple[object, ...]:
    """Calls `without_deleted` for a report with one finding, which is about the segment [10, 30).

    `last` is the broker snapshot of the end of the audit. `start` and `digest` are those of the
    partition in the report. Returns the start offset of the partition after the call, and the
    number of remaining findings.
    """
    entry = SegmentEntry("t", TOPIC_ID, 0, 10, TOPIC_ID, "k", (("log", ObjectInfo("k", 5, "1")),))
    objects = PartitionObjects("t", TOPIC_ID, 0, (entry,), ())
    object_name = f"t/{10:020d}-{TOPIC_ID}.log"
    finding = Finding("crc", "t", TOPIC_ID, 0, 10, 30, (object_name,), 5, "")
    count = None if digest is None else 1
    fields = start, 60, 60, 1, 5, False, count, count, digest
    before = broker_snapshot(10, 10, {1: (0, 60)}, EPOCH_1)
    snapshots = before, before, last
    remaining, findings = without_deleted(
        objects, PartitionStatement("t", TOPIC_ID, 0, *fields), [finding], snapshots, 40
    )
    return remaining.start, len(findings)


def test_findings_are_dropped_only_for_segments_that_brokers_deleted() -> None:
    def last(log_start: int, *, is_live: bool) -> BrokerSnapshot:
        snapshot = broker_snapshot(log_start, log_start, {1: (0, 60)}, EPOCH_1)
        named = NamedSegments(
            snapshot.named[PARTITION].read,
            snapshot.named[PARTITION].live if is_live else [],
        )
        return replace(snapshot, named={PARTITION: named})

    assert compare_with(last(30, is_live=False), 10) == (30, 0)
    assert compare_with(last(30, is_live=False), 30) == (30, 0)
    # The segment was read completely before it was deleted, so the report keeps its offsets.
    assert compare_with(last(30, is_live=False), 10, "digest") == (10, 0)
    # The segment is below the log start but not deleted, or it is deleted but not below it.
    assert compare_with(last(30, is_live=True), 10) == (10, 1)
    assert compare_with(last(29, is_live=False), 10) == (10, 1)
    # The partition no longer exists or has another topic id.
    assert compare_with(BrokerSnapshot({}, {}, {}, {}), 10) == (10, 1)
    other = last(30, is_live=False)
    logs = {PARTITION: replace(other.logs[PARTITION], topic_id="AAAAAAAAAAAAAAAAAAAAMQ")}
    assert compare_with(replace(other, logs=logs), 10) == (10, 1)
