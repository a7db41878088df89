"""Audits while brokers delete: that is no fault; what a stranger takes is one."""

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
    AT,
    NOW_MS,
    ONE,
    TEXT,
    audited,
    cluster,
    found,
    side,
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
    """Changes when an object is read for the first time.

    Args:
        world: What it holds.
        first: The object.
        change: What happens before it is read.
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
    """The objects of segments are gone."""
    for number in numbers:
        for key in world.keys(number):
            del world.store[key]


def delete(world: World, numbers: Iterable[int]) -> None:
    """As brokers do it."""
    for number in numbers:
        files, name = world.closed[number], world.segment_ids[number]
        world.records[number] = [*copied(world.place, files, name, FINISHED, DELETING, DELETED)]
        user_log(world).log_start = STOPS[number]
    world.write_metadata()
    remove(world, numbers)


def read(world: World, level: str, first: str, change: Callable[[], None]) -> AuditReport:
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
def test_what_brokers_delete_while_it_is_read(
    world: World, suffix: str, numbers: tuple[int, ...]
) -> None:
    first = next(key for key in world.keys(numbers[-1]) if key.endswith(suffix))
    report = read(world, "bytes", first, lambda: delete(world, numbers))
    assert report.findings == ()
    (part,) = report.partitions
    assert (part.start, part.stop, part.is_whole) == (STOPS[numbers[-1]], 48, True)
    # What was read of the rest counts, or nothing does.
    assert part.records in (None, 48 - STOPS[numbers[-1]])


@pytest.mark.parametrize("suffix", ["rsm-manifest", "indexes", "log"])
def test_what_a_stranger_deletes_while_it_is_read(world: World, suffix: str) -> None:
    first = next(key for key in world.keys(1) if key.endswith(suffix))
    report = read(world, "bytes", first, lambda: remove(world, (1,)))
    assert ("object-gone", 12) in {(name, start) for name, start, _ in found(report)}
    assert report.exit_code == 1
    assert not report.partitions[0].is_whole


def test_what_is_left_of_a_segment_that_brokers_delete(world: World) -> None:
    # A log object went, the rest is still there, and so it was when brokers were asked.
    first = world.segment_ids[0]
    world.records[0] = [*copied(world.place, world.closed[0], first, FINISHED, DELETING)]
    world.write_metadata()
    del world.store[next(key for key in world.keys(0) if key.endswith(".log"))]
    user_log(world).log_start = 12
    # It began at 2 ms, and the usual grace is an hour.
    told = found(audited(world, now_ms=3_600_003))
    assert {name for name, *_ in told} == {"half-delete", "clock"}
    report = audited(world, now_ms=3_600_002)
    assert {name for name, *_ in found(report)} == {"clock"}
    assert (report.partitions[0].start, report.partitions[0].is_whole) == (12, True)


def test_a_gap_below_the_log_start_is_none(world: World) -> None:
    # A listing in pages saw the first segment before brokers deleted both, and not the second.
    delete(world, (1,))
    report = audited(world)
    assert {one for one in found(report) if one[0] != "below-log-start"} == set()
    assert (report.partitions[0].start, report.partitions[0].is_whole) == (24, True)


def test_log_starts_that_move_while_brokers_are_asked(
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
    log, asked = user_log(world), []
    assert log.epochs == [(number, 12 * number) for number in range(5)]

    def owned(view: ClusterView, of: BrokerLog, epochs: set[int]) -> dict[int, tuple[int, int]]:
        asked.append(of.log_start)
        if len(asked) == 2:  # behind the listing
            log.log_start, log.epochs = 30, [(2, 30), (3, 36), (4, 48)]
        return real(view, of, epochs)

    real = ClusterView.owned
    monkeypatch.setattr(ClusterView, "owned", owned)
    # A leader has forgotten the epochs by then; that is no other branch.
    assert audited(world).findings == ()
    assert asked == [0, 0]


def compared_with(
    last: BrokerSnapshot, start: int, digest: str | None = None
) -> tuple[object, ...]:
    """What is left of a finding about a segment that was live, and where the statement begins."""
    entry = SegmentEntry("t", TEXT, 0, 10, TEXT, "k", (("log", ObjectInfo("k", 5, "1")),))
    part = PartitionObjects("t", TEXT, 0, (entry,), ())
    object_name = f"t/{10:020d}-{TEXT}.log"
    finding = Finding("crc", "t", TEXT, 0, 10, 30, (object_name,), 5, "")
    count = None if digest is None else 1
    served = start, 60, 60, 1, 5, False, count, count, digest
    before = side(10, 10, {1: (0, 60)}, ONE)
    sides = before, before, last
    left, findings = without_deleted(
        part, PartitionStatement("t", TEXT, 0, *served), [finding], sides, 40
    )
    return left.start, len(findings)


def test_only_what_brokers_delete_is_left_out() -> None:
    def last(log_start: int, *, live: bool) -> BrokerSnapshot:
        found = side(log_start, log_start, {1: (0, 60)}, ONE)
        named = NamedSegments(found.named[AT].read, found.named[AT].live if live else [])
        return replace(found, named={AT: named})

    assert compared_with(last(30, live=False), 10) == (30, 0)
    assert compared_with(last(30, live=False), 30) == (30, 0)
    # All of it was read, and is served.
    assert compared_with(last(30, live=False), 10, "digest") == (10, 0)
    # It is given up, and nobody deletes it; or is deleted, and wanted.
    assert compared_with(last(30, live=True), 10) == (10, 1)
    assert compared_with(last(29, live=False), 10) == (10, 1)
    # Nothing is known of the partition any more, or it is another one.
    assert compared_with(BrokerSnapshot({}, {}, {}, {}), 10) == (10, 1)
    other = last(30, live=False)
    logs = {AT: replace(other.logs[AT], topic_id="AAAAAAAAAAAAAAAAAAAAMQ")}
    assert compared_with(replace(other, logs=logs), 10) == (10, 1)
