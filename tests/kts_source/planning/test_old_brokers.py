"""Brokers before Kafka 4.0, which do not tell all aborted transactions of what is in their tier."""

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
"""Where the first segment ends; two transactions are open there."""


def _log() -> BuiltLog:
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


def _offsets(brokers: FakeCluster, tiered: int, moved: int) -> list[int]:
    """What a read of the first segment gives.

    Args:
        brokers: Of the partition.
        tiered: How many segments the reader finds in the tier.
        moved: How many are not on the broker's disk any more.
    """
    log = _log()
    store: dict[str, bytes] = {}
    writer = LocalTierWriter(store, topic="t", partition=0)
    for files in log.segments[:tiered]:
        writer.write_segment(files)
    part = FakePartition(fake_log(log))
    part.log.local_start = log.segments[moved].base_offset
    brokers.create("t", [part], uuid_from_text(writer.topic_id))
    given = {
        "path": "/",
        "layout": "local-tiered-storage",
        "subscribe": "t",
        "kafka.bootstrap.servers": brokers.bootstrap,
        "endingOffsets": f'{{"t":{{"0":{BOUND}}}}}',
    }
    tier = Tier(MemoryStore(store))
    found: list[int] = run(plan_scan(parse_options(given), tier), given, tier)["offset"].to_pylist()
    return found


@pytest.mark.parametrize("segments", [1, 2])
def test_open_transaction_at_bound_with_old_brokers(brokers: FakeCluster, segments: int) -> None:
    """The broker tells of its disk; of what is in the tier, the tier's next segment does."""
    assert _offsets(brokers, segments, segments) == [2, 3, 4, 5]


def test_disk_after_tier_end_with_old_brokers(brokers: FakeCluster) -> None:
    with pytest.raises(BrokerError, match=r"began at offset 0.*KAFKA-17801.*topic t"):
        _offsets(brokers, 1, 2)


@pytest.mark.parametrize("times", [1, 2])
def test_segments_tiered_during_listing_are_listed_again(
    brokers: FakeCluster, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """A broker copies a segment after the tier was listed, and deletes its own."""
    log = _log()
    store: dict[str, bytes] = {}
    writer = LocalTierWriter(store, topic="t", partition=0)
    writer.write_segment(log.segments[0])
    part = FakePartition(fake_log(log))
    brokers.create("t", [part], uuid_from_text(writer.topic_id))
    left = [log.segments[1], *[None] * (times - 1)]
    list_tier = BrokerSource.list_tier

    def listed(source: BrokerSource) -> None:
        list_tier(source)
        if left:
            files = left.pop(0)
            part.log.local_start = log.segments[2].base_offset
            if files is not None and times == 1:
                writer.write_segment(files)

    monkeypatch.setattr(BrokerSource, "list_tier", listed)
    given = {
        "path": "/",
        "layout": "local-tiered-storage",
        "subscribe": "t",
        "kafka.bootstrap.servers": brokers.bootstrap,
    }
    tier = Tier(MemoryStore(store))
    if times == 2:
        with pytest.raises(BrokerError, match="KAFKA-17801"):
            plan_scan(parse_options(given), tier)
        return
    rows = run(plan_scan(parse_options(given), tier), given, tier)["offset"].to_pylist()
    assert rows == [2, 3, 4, 5, 6, 9]
