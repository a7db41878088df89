"""Tests that slices are read from brokers if their objects in the tier cannot be read."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from kts_source.broker.broker_range import BrokerRange
from kts_source.errors import DataLossError, TieredKafkaError
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.read import broker_rows
from kts_source.read.read_settings import ReadSettings
from kts_source.read.read_task import read_task
from kts_source.read.segment_source import SegmentSource
from kts_source.read.task_metrics import TaskMeter, TaskPlace
from kts_source.tier import Tier
from segment_format.kafka_uuid import uuid_from_text
from segment_format.testing import LocalTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import fake_log, with_log_start
from tests.kts_source.broker.fake_node import FETCH, Fault
from tests.kts_source.planning.memory_store import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.options import ScanOptions
    from segment_format.testing import BuiltLog

FETCH_BYTES = "kafka.max.partition.fetch.bytes"


def _log(batches_per_append: int, appends: int = 12) -> BuiltLog:
    builder = LogBuilder(index_interval_bytes=200)
    for number in range(appends):
        with builder.one_append():
            for _ in range(batches_per_append):
                builder.append([SimpleRecord(b"%d" % number)] * 2)
    return builder.build()


def _stored(log: BuiltLog) -> tuple[str, dict[str, bytes]]:
    """Returns the topic id and the objects of a tier with the only segment of a log."""
    store: dict[str, bytes] = {}
    writer = LocalTierWriter(store, topic="t", partition=0)
    (files,) = log.segments
    writer.write_segment(files)
    return writer.topic_id, store


def _broken(store: Mapping[str, bytes]) -> Tier:
    """Returns a tier whose `.log` objects are empty."""
    objects = {key: b"" if key.endswith(".log") else data for key, data in store.items()}
    return Tier(MemoryStore(objects))


def _options(cluster: FakeCluster, **more: str) -> ScanOptions:
    return parse_options(
        {
            "path": "/",
            "layout": "local-tiered-storage",
            "subscribe": "t",
            "kafka.bootstrap.servers": cluster.bootstrap,
            "targetPartitionBytes": "600",
            **more,
        }
    )


@pytest.mark.parametrize("log_start", [0, 1, 3, 11])
@pytest.mark.parametrize("batches_per_append", [1, 5])
@pytest.mark.parametrize("lost", range(8))
def test_rows_of_slices_with_unreadable_log_are_read_from_brokers(
    monkeypatch: pytest.MonkeyPatch, batches_per_append: int, lost: int, log_start: int
) -> None:
    # An index entry contains the last offset of an append, and the position of the first batch of
    # this append. Earlier versions lost or repeated rows of appends with several batches, and
    # reported data loss if the log start was inside the segment but below the slice.
    monkeypatch.setattr(broker_rows, "_MAX_SAME_FAILURES", 1 << 30)
    log = _log(batches_per_append)
    topic_id, store = _stored(log)
    # The brokers also have records after the segment, so their responses can continue past its end.
    longer = _log(batches_per_append, appends=15)
    end = log.end_offset()
    with FakeCluster() as cluster:
        served = FakePartition(fake_log(longer, log_start=log_start))
        cluster.create("t", [served], uuid_from_text(topic_id))
        options = _options(
            cluster, **{FETCH_BYTES: "700", "endingOffsets": json.dumps({"t": {"0": end}})}
        )
        tier = Tier(MemoryStore(store))
        plan = plan_scan(options, tier)
        slices = [task_slice for task in plan.tasks for task_slice in task.slices]
        assert len(slices) > 1
        broken = _broken(store)
        offsets_read: list[int] = []
        fallbacks = 0
        for number, task in enumerate(plan.tasks):
            source_options = tier if number != lost % len(plan.tasks) else broken
            meter = TaskMeter(task, source_options, TaskPlace())
            settings = dataclasses.replace(ReadSettings.of(options), columns=("offset",))
            reader = SegmentSource(source_options, options.key_ring)
            for batch in read_task(task, reader, settings, meter=meter):
                offsets_read += pa.Table.from_batches([batch])["offset"].to_pylist()
            fallbacks += meter.brokers.fallbacks
    assert fallbacks > 0
    assert offsets_read == list(range(log_start, end))


@pytest.mark.parametrize("batches_per_append", [1, 5])
@pytest.mark.parametrize("moved", [1, 12, 13, 61, 100, 119])
def test_fallback_to_brokers_skips_offsets_deleted_after_planning(
    monkeypatch: pytest.MonkeyPatch, batches_per_append: int, moved: int
) -> None:
    monkeypatch.setattr(broker_rows, "_MAX_SAME_FAILURES", 1 << 30)
    log = _log(batches_per_append)
    topic_id, store = _stored(log)
    moved = min(moved, log.end_offset())
    offsets_read: list[int] = []
    lost: set[int] = set()
    with FakeCluster() as cluster:
        served = FakePartition(fake_log(log))
        cluster.create("t", [served], uuid_from_text(topic_id))
        options = _options(cluster, **{FETCH_BYTES: "700", "failOnDataLoss": "false"})
        plan = plan_scan(options, Tier(MemoryStore(store)))
        served.log = with_log_start(served.log, moved)
        broken = _broken(store)
        settings = dataclasses.replace(ReadSettings.of(options), columns=("offset",))
        strict = dataclasses.replace(settings, fail_on_data_loss=True)
        for task in plan.tasks:
            meter = TaskMeter(task, broken, TaskPlace())
            reader = SegmentSource(broken, options.key_ring)
            offsets: list[int] = []
            for batch in read_task(task, reader, settings, meter=meter):
                offsets += pa.Table.from_batches([batch])["offset"].to_pylist()
            offsets_read += offsets
            spans = meter.finished("read").lost_ranges
            for span in spans:
                lost |= set(range(span.start, span.stop))
            if spans:
                with pytest.raises(DataLossError, match="starts at"):
                    list(read_task(task, reader, strict))
    assert offsets_read == list(range(moved, log.end_offset()))
    assert lost == set(range(moved))


@pytest.mark.parametrize("seed", range(30))
def test_fallback_to_brokers_loses_no_row_if_the_log_start_moves(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    # The log start may move while the reader counts batches back from the end of the segment.
    monkeypatch.setattr(broker_rows, "_MAX_SAME_FAILURES", 1 << 30)
    choice = random.Random(seed)
    log = _log(choice.choice([1, 5]))
    end = log.end_offset()
    topic_id, store = _stored(log)
    offsets_read: list[int] = []
    lost: set[int] = set()
    with FakeCluster() as cluster:
        served = FakePartition(fake_log(log))
        cluster.create("t", [served], uuid_from_text(topic_id))
        options = _options(
            cluster, **{FETCH_BYTES: choice.choice(["100", "700"]), "failOnDataLoss": "false"}
        )
        plan = plan_scan(options, Tier(MemoryStore(store)))
        moves = sorted(choice.randrange(end) for _ in range(choice.randint(1, 8)))

        def move() -> None:
            served.log = with_log_start(served.log, moves.pop(0))

        faults = [Fault(change=move) for _ in moves]
        between = [[Fault()] * choice.randint(0, 6) for _ in moves]
        for fault, quiet in zip(faults, between, strict=True):
            cluster.fail(FETCH, *quiet, fault)
        broken = _broken(store)
        settings = dataclasses.replace(ReadSettings.of(options), columns=("offset",))
        for task in plan.tasks:
            meter = TaskMeter(task, broken, TaskPlace())
            reader = SegmentSource(broken, options.key_ring)
            for batch in read_task(task, reader, settings, meter=meter):
                offsets_read += pa.Table.from_batches([batch])["offset"].to_pylist()
            for span in meter.finished("read").lost_ranges:
                lost |= set(range(span.start, span.stop))
    assert offsets_read == sorted(set(offsets_read))
    assert set(range(end)) - set(offsets_read) <= lost
    assert set(range(served.log.log_start, end)) <= set(offsets_read)


def test_fallback_to_brokers_stops_after_three_equal_failures_in_one_scan() -> None:
    # Each scan has its own count of failures. With a shared count, two scans in one process would
    # reset the count for each other and read everything from the brokers.
    log = _log(1, appends=40)
    topic_id, store = _stored(log)
    with FakeCluster() as cluster:
        cluster.create("t", [FakePartition(fake_log(log))], uuid_from_text(topic_id))
        options = _options(cluster, targetPartitionBytes="300")
        plan = plan_scan(options, Tier(MemoryStore(store)))
        assert len(plan.tasks) > 4
        settings = ReadSettings.of(options)
        failed = []
        for task in plan.tasks[:5]:
            for location in (TaskPlace("one", 7), TaskPlace("other", 7), TaskPlace("one", 8)):
                tier = _broken(store)
                meter = TaskMeter(task, tier, location)
                reader = SegmentSource(tier, options.key_ring)
                try:
                    list(read_task(task, reader, settings, meter=meter))
                except TieredKafkaError as error:
                    failed.append((location.scan, location.stage, error.message))
    assert [failure[:2] for failure in failed] == [("one", 7), ("other", 7), ("one", 8)] * 2
    assert all("3 earlier slices failed in the same way" in text for _, _, text in failed)


def test_slices_and_broker_ranges_of_a_task_have_the_same_columns() -> None:
    # The fallback needs the offsets of slices, but must not add an offset column to broker ranges.
    log = _log(1)
    topic_id, store = _stored(log)
    with FakeCluster() as cluster:
        cluster.create("t", [FakePartition(fake_log(log))], uuid_from_text(topic_id))
        options = _options(cluster, columns="value", targetPartitionBytes="1000000")
        tier = Tier(MemoryStore(store))
        (task,) = plan_scan(options, tier).tasks
        (task_slice,) = task.slices
        broker_range = BrokerRange(
            topic="t",
            topic_id=task_slice.topic_id,
            partition=0,
            leader_epoch=task_slice.lineage[-1].epoch,
            start_offset=0,
            stop_offset=log.end_offset(),
            read_committed=False,
            nominal_bytes=1,
        )
        both = dataclasses.replace(task, ranges=(broker_range,))
        reader = SegmentSource(tier, options.key_ring)
        batches = list(read_task(both, reader, ReadSettings.of(options)))
    assert {tuple(batch.schema.names) for batch in batches} == {("value",)}
    assert sum(batch.num_rows for batch in batches) == 2 * log.end_offset()
