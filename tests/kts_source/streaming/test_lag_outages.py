"""Tests that during an outage a stream reports the last known lag, when it was measured, and
whether the stream waits for the store or for brokers.
"""

from __future__ import annotations

import random
import uuid
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from kts_source import metrics
from kts_source.errors import BrokerUnavailableError, StoreUnavailableError
from kts_source.metrics import StreamLag
from kts_source.streaming.cluster_look import BrokerLook, ClusterLooker
from kts_source.streaming.offsets import TopicPartition
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from tests.golden_data import TIER
from tests.kts_source.broker.fake_broker import FakeCluster
from tests.kts_source.streaming.running import Checkpointed, GrowingTier, Running
from tests.kts_source.streaming.test_cluster_polls import GrowingTopic, start_stream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OUTAGE = BrokerUnavailableError("no broker answers")


@pytest.fixture
def brokers() -> Iterator[FakeCluster]:
    with FakeCluster() as cluster:
        yield cluster


def lag_of(stream: Checkpointed) -> StreamLag:
    (lag,) = metrics.stream_lag({"sources": [{"latestOffset": stream.stream.lag()}]})
    return lag


def test_lag_during_an_outage_of_brokers_is_stale_and_keeps_the_last_known_end(
    brokers: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    topic = GrowingTopic(brokers)
    stream = start_stream(brokers)
    stream.all()
    before = lag_of(stream)
    assert (before.offsets, before.stale, before.waiting_for) == (0, False, None)
    assert before.as_of_ms == stream.clock.seconds * 1000
    stream.clock.seconds += 60
    topic.append(2)
    with mock.patch.object(ClusterLooker, "look", side_effect=OUTAGE):
        assert not stream.batch()
        during = lag_of(stream)
    assert (during.stale, during.waiting_for) == (True, "brokers")
    assert during.as_of_ms == before.as_of_ms
    assert during.partitions[TopicPartition("t", 0)].end == 3
    assert "the stream waits for the brokers: no broker answers" in caplog.text
    assert stream.batch()
    after = lag_of(stream)
    assert (after.offsets, after.stale, after.waiting_for) == (0, False, None)
    assert after.as_of_ms == stream.clock.seconds * 1000
    assert after.partitions[TopicPartition("t", 0)].end == 9
    stream.close()


def test_lag_is_the_last_known_lag_if_brokers_are_unavailable(brokers: FakeCluster) -> None:
    topic = GrowingTopic(brokers)
    topic.append(2)
    stream = start_stream(brokers, maxOffsetsPerTrigger="3")
    assert stream.batch()
    before = lag_of(stream)
    assert before.offsets == 6
    with mock.patch.object(BrokerLook, "lag", side_effect=OUTAGE):
        assert stream.batch()
        during = lag_of(stream)
    assert (during.offsets, during.stale, during.waiting_for) == (6, True, "brokers")
    assert lag_of(stream).offsets == 3
    stream.close()


def test_lag_during_an_outage_of_the_store_names_the_store() -> None:
    stream = Running(TIER, "txn", maxSegmentsPerTrigger="1")
    assert stream.batch()
    unread = lag_of(stream).offsets
    failure = StoreUnavailableError("no answer")
    with mock.patch.object(type(stream.stream._looker), "look", side_effect=failure):
        assert not stream.batch()
        during = lag_of(stream)
    assert (during.offsets, during.stale, during.waiting_for) == (unread, True, "store")
    stream.close()


def test_lag_is_stale_while_the_folder_of_the_tier_is_missing(tmp_path: Path) -> None:
    tier = GrowingTier(tmp_path / "tier")
    folder = tier.folder("txn")
    tier.add(folder, tier.stems(folder))
    stream = Running(tier.path, "txn")
    stream.all()
    before = lag_of(stream)
    assert (before.offsets, before.stale, before.waiting_for) == (0, False, None)
    moved = tier.path.rename(tmp_path / "moved")
    for _ in range(2):
        stream.clock.seconds += 60
        assert not stream.batch()
        during = lag_of(stream)
        assert (during.stale, during.waiting_for) == (True, "store")
        assert during.as_of_ms == before.as_of_ms
        assert during.partitions == before.partitions
    moved.rename(tier.path)
    assert not stream.batch()
    after = lag_of(stream)
    assert (after.stale, after.waiting_for) == (False, None)
    assert after.as_of_ms == stream.clock.seconds * 1000
    stream.close()


def test_lag_of_unread_offsets_remains_known_while_the_folder_is_missing(tmp_path: Path) -> None:
    tier = GrowingTier(tmp_path / "tier")
    folder = tier.folder("txn")
    tier.add(folder, tier.stems(folder))
    stream = Running(tier.path, "txn", maxSegmentsPerTrigger="1", failOnDataLoss="false")
    assert stream.batch()
    unread = lag_of(stream).offsets
    assert unread > 0
    tier.path.rename(tmp_path / "moved")
    assert not stream.batch()
    during = lag_of(stream)
    assert (during.offsets, during.stale, during.waiting_for) == (unread, True, "store")
    stream.close()


def test_lag_of_restarted_stream_is_stale_if_the_folder_of_the_tier_is_missing(
    tmp_path: Path,
) -> None:
    tier = GrowingTier(tmp_path / "tier")
    folder = tier.folder("txn")
    tier.add(folder, tier.stems(folder))
    stream = Running(tier.path, "txn")
    stream.all()
    tier.path.rename(tmp_path / "moved")
    stream.start()
    assert not stream.batch()
    lag = lag_of(stream)
    assert (lag.as_of_ms, lag.stale, lag.waiting_for) == (None, True, "store")
    stream.close()


def test_lag_is_stale_while_brokers_do_not_have_the_topic(brokers: FakeCluster) -> None:
    GrowingTopic(brokers)
    stream = start_stream(brokers, failOnDataLoss="false")
    stream.all()
    before = lag_of(stream)
    deleted = brokers.topics.pop("t")
    stream.clock.seconds += 60
    assert not stream.batch()
    during = lag_of(stream)
    assert (during.stale, during.waiting_for) == (True, "brokers")
    assert (during.as_of_ms, during.partitions) == (before.as_of_ms, before.partitions)
    brokers.topics["t"] = deleted
    stream.clock.seconds += 60
    assert not stream.batch()
    assert (lag_of(stream).stale, lag_of(stream).waiting_for) == (False, None)
    stream.close()


def test_lag_read_from_event_of_older_version_has_no_age() -> None:
    event = {"behind": {"offsets": 1, "bytes": 2, "oldestMs": None}, "topics": {}}
    (lag,) = metrics.stream_lag({"sources": [{"latestOffset": event}]})
    assert lag == StreamLag(1, 2, None, {}, None, False, None)


@pytest.mark.parametrize("seed", range(12))
def test_stream_waits_for_a_folder_that_disappears_between_two_snapshots(
    seed: int, tmp_path: Path
) -> None:
    chooser = random.Random(seed)
    expected = []
    for number, topic in enumerate(("a", "b"), 1):
        log = LogBuilder()
        writer = AivenTierWriter(
            str(tmp_path / "tier"), topic=topic, topic_id=uuid.UUID(int=number)
        )
        for _ in range(chooser.randint(1, 4)):
            log.append([SimpleRecord(b"x")] * chooser.randint(1, 3))
            files = log.roll()
            assert files is not None
            writer.write_segment(files)
        expected += [(topic, offset) for offset in range(log.next_offset)]
    options = {"path": str(tmp_path / "tier"), "subscribe": "a,b", "cache": "false"}
    strictness = chooser.choice(("true", "false"))
    stream = Checkpointed({**options, "maxSegmentsPerTrigger": "1", "failOnDataLoss": strictness})
    for _ in range(chooser.randint(1, 3)):
        stream.batch()
    moved = (tmp_path / "tier").rename(tmp_path / "moved")
    is_chosen = stream.choose()  # the snapshot may have all facts about the next batch
    assert is_chosen or lag_of(stream).stale or lag_of(stream).offsets == 0
    moved.rename(tmp_path / "tier")
    if is_chosen:
        stream.read_last()
        stream.committed += 1
    stream.clock.seconds += 120
    stream.all()
    rows = [
        (row["topic"], row["offset"])
        for batch in stream.batches.values()
        for row in batch.select(["topic", "offset"]).to_pylist()
    ]
    assert sorted(rows) == sorted(expected)
    assert not lag_of(stream).stale
    stream.close()
