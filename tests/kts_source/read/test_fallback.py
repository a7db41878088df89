"""Slices that the tier does not give, read from brokers."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.read import fallback
from kts_source.read.read_settings import ReadSettings
from kts_source.read.read_task import read_task
from kts_source.read.segment_source import SegmentSource
from kts_source.read.task_metrics import TaskMeter, TaskPlace
from kts_source.tier import Tier
from segment_format.kafka_uuid import uuid_from_text
from segment_format.testing import LocalTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import fake_log
from tests.kts_source.planning.memory_store import MemoryStore

if TYPE_CHECKING:
    from segment_format.testing import BuiltLog


def _log(batches_per_append: int) -> BuiltLog:
    builder = LogBuilder(index_interval_bytes=200)
    for number in range(12):
        with builder.one_append():
            for _ in range(batches_per_append):
                builder.append([SimpleRecord(b"%d" % number)] * 2)
    return builder.build()


@pytest.mark.parametrize("batches_per_append", [1, 5])
@pytest.mark.parametrize("lost", range(8))
def test_any_slice_of_a_segment_gives_its_rows(
    monkeypatch: pytest.MonkeyPatch, batches_per_append: int, lost: int
) -> None:
    # An index entry has the last offset of an append, and the position of its first batch: rows
    # were once missing, or there twice, where a follower had written many batches at once.
    monkeypatch.setattr(fallback, "_MOST_ALIKE", 1 << 30)
    log = _log(batches_per_append)
    store: dict[str, bytes] = {}
    writer = LocalTierWriter(store, topic="t", partition=0)
    (files,) = log.segments
    writer.write_segment(files)
    with FakeCluster() as cluster:
        cluster.create("t", [FakePartition(fake_log(log))], uuid_from_text(writer.topic_id))
        options = parse_options(
            {
                "path": "/",
                "layout": "local-tiered-storage",
                "subscribe": "t",
                "kafka.bootstrap.servers": cluster.bootstrap,
                "kafka.max.partition.fetch.bytes": "700",
                "targetPartitionBytes": "600",
            }
        )
        tier = Tier(MemoryStore(store))
        plan = plan_scan(options, tier)
        slices = [part for task in plan.tasks for part in task.slices]
        assert len(slices) > 1
        broken = {key: b"" if key.endswith(".log") else data for key, data in store.items()}
        found: list[int] = []
        fallbacks = 0
        for number, task in enumerate(plan.tasks):
            given = tier if number != lost % len(plan.tasks) else Tier(MemoryStore(broken))
            meter = TaskMeter(task, given, TaskPlace())
            settings = dataclasses.replace(ReadSettings.of(options), columns=("offset",))
            reader = SegmentSource(given, options.key_ring)
            for batch in read_task(task, reader, settings, meter=meter):
                found += pa.Table.from_batches([batch])["offset"].to_pylist()
            fallbacks += meter.brokers.fallbacks
    assert fallbacks > 0
    assert found == list(range(log.end_offset()))
