"""Checks reads with brokers before Kafka 4.0, which do not list all aborted transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kts_source.errors import BrokerError
from kts_source.options import parse_options
from kts_source.planning.broker_source import BrokerSource
from kts_source.planning.planner import plan_scan
from kts_source.tier import Tier
from segment_format.kafka_uuid import uuid_from_text
from segment_format.testing import LocalTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import fake_log
from tests.kts_source.planning.memory_store import MemoryStore
from tests.kts_source.planning.scanning import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from segment_format.testing import BuiltLog

ABORTED, COMMITTED = 7, 8
BOUND = 6
"""One past the last offset of the first segment. Two transactions are open at this offset."""


def _build_log() -> BuiltLog:
    builder = LogBuilder()
    for producer in (ABORTED, COMMITTED):
        builder.send(producer, [SimpleRecord(b"%d" % producer)] * 2)
    builder.append([SimpleRecord(b"plain")] * 2)
    assert builder.next_offset == BOUND
    builder.roll()
    builder.append([SimpleRecord(b"plain")])
    builder.abort(ABORTED)
    builder.commit(COMMITTED)
    builder.roll()
    builder.append([SimpleRecord(b"plain")])
    return builder.build()


@pytest.fixture
def brokers() -> Iterator[FakeCluster]:
    with FakeCluster(versions={"ListOffsets": 9}) as cluster:
        yield cluster


def _read_offsets(brokers: FakeCluster, tiered: int, moved: int) -> list[int]:
    """Returns the offsets that a read of the first segment returns. The tier has the first `tiered`
    segments. The broker has deleted the first `moved` segments from its disk.
    """
    log = _build_log()
    store: dict[str, bytes] = {}
    writer = LocalTierWriter(store, topic="t", partition=0)
    for files in log.segments[:tiered]:
        writer.write_segment(files)
    partition = FakePartition(fake_log(log))
    partition.log.local_start = log.segments[moved].base_offset
    brokers.create("t", [partition], uuid_from_text(writer.topic_id))
    option_texts = {
        "path": "/",
        "layout": "local-tiered-storage",
        "subscribe": "t",
        "kafka.bootstrap.servers": brokers.bootstrap,
        "endingOffsets": f'{{"t":{{"0":{BOUND}}}}}',
    }
    tier = Tier(MemoryStore(store))
    rows: list[int] = run(plan_scan(parse_options(option_texts), tier), option_texts, tier)[
        "offset"
    ].to_pylist()
    return rows


@pytest.mark.parametrize("segments", [1, 2])
def test_scan_with_old_brokers_finds_outcome_of_transaction_open_at_its_end(
    brokers: FakeCluster, segments: int
) -> None:
    """The outcome is in the next tiered segment or in the broker's list for its own disk."""
    assert _read_offsets(brokers, segments, segments) == [2, 3, 4, 5]


def test_old_broker_raises_broker_error_if_its_disk_starts_after_the_tier(
    brokers: FakeCluster,
) -> None:
    with pytest.raises(BrokerError, match=r"began at offset 0.*KAFKA-17801.*topic t"):
        _read_offsets(brokers, 1, 2)


@pytest.mark.parametrize("times", [1, 2])
def test_segment_tiered_during_planning_is_found_by_a_second_listing(
    brokers: FakeCluster, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """After the first listing of the tier, the broker deletes a segment from its disk. If `times`
    is 1, a second listing finds the segment in the tier. If `times` is 2, the segment is lost.
    """
    log = _build_log()
    store: dict[str, bytes] = {}
    writer = LocalTierWriter(store, topic="t", partition=0)
    writer.write_segment(log.segments[0])
    partition = FakePartition(fake_log(log))
    brokers.create("t", [partition], uuid_from_text(writer.topic_id))
    new_segments = [log.segments[1], *[None] * (times - 1)]
    list_tier = BrokerSource.list_tier

    def list_and_move(source: BrokerSource) -> None:
        list_tier(source)
        if new_segments:
            files = new_segments.pop(0)
            partition.log.local_start = log.segments[2].base_offset
            if files is not None and times == 1:
                writer.write_segment(files)

    monkeypatch.setattr(BrokerSource, "list_tier", list_and_move)
    option_texts = {
        "path": "/",
        "layout": "local-tiered-storage",
        "subscribe": "t",
        "kafka.bootstrap.servers": brokers.bootstrap,
    }
    tier = Tier(MemoryStore(store))
    if times == 2:
        with pytest.raises(BrokerError, match="KAFKA-17801"):
            plan_scan(parse_options(option_texts), tier)
        return
    rows = run(plan_scan(parse_options(option_texts), tier), option_texts, tier)[
        "offset"
    ].to_pylist()
    assert rows == [2, 3, 4, 5, 6, 9]
