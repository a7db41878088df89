"""Tests streams of brokers: replayed batches, incomplete metadata, and options changed between
runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kts_source.broker import cluster as cluster_module
from kts_source.errors import BrokerUnavailableError, DataLossError
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import fake_log
from tests.kts_source.broker.fake_node import METADATA, Fault
from tests.kts_source.streaming.test_cluster_polls import offsets, start_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from segment_format.testing import BuiltLog

INTERNAL = "__consumer_offsets"


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    monkeypatch.setattr(cluster_module, "_PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(cluster_module, "_INCOMPLETE_SECONDS", 0.3)
    with FakeCluster() as cluster:
        yield cluster


def build_log(segments: int = 4) -> BuiltLog:
    """Builds a log with segments of three records."""
    log = LogBuilder()
    for _ in range(segments):
        log.append([SimpleRecord(b"value")] * 3)
        log.roll()
    return log.build()


def new_partition() -> FakePartition:
    return FakePartition(fake_log(build_log()))


@pytest.mark.parametrize("strict", ["true", "false"])
def test_unfinished_batch_of_an_internal_topic_is_read_again(
    brokers: FakeCluster, strict: str
) -> None:
    brokers.create(INTERNAL, [new_partition()])
    stream = start_stream(brokers, subscribe=INTERNAL, failOnDataLoss=strict)
    assert stream.choose()
    stream.start()
    assert offsets(stream) == list(range(12))
    stream.close()


@pytest.mark.parametrize("strict", ["true", "false"])
def test_replay_does_not_wait_for_partitions_outside_its_batch(
    brokers: FakeCluster, strict: str
) -> None:
    partitions = [new_partition(), new_partition()]
    brokers.create("t", partitions)
    brokers.create("other", [new_partition()])
    assign = '{"t":[0]}'
    stream = start_stream(brokers, failOnDataLoss=strict)
    del stream.options["subscribe"]
    stream.start(assign=assign)
    assert stream.choose()
    partitions[1].leader = -1
    brokers.topics["other"][1][0].leader = -1
    stream.start()
    assert offsets(stream) == list(range(12))
    stream.close()


def test_replay_without_a_leader_raises_until_the_leader_is_back(brokers: FakeCluster) -> None:
    """The rows of this partition must not count as lost."""
    partition = new_partition()
    brokers.create("t", [partition])
    stream = start_stream(brokers, failOnDataLoss="false")
    assert stream.choose()
    partition.leader = -1
    with pytest.raises(BrokerUnavailableError, match="t-0"):
        stream.start()
    partition.leader = 0
    stream.start()
    assert offsets(stream) == list(range(12))
    stream.close()


def _without_partitions(answer: Any) -> None:  # noqa: ANN401
    for topic in answer.topics:
        topic.partitions = []


def _with_one_partition(answer: Any) -> None:  # noqa: ANN401
    for topic in answer.topics:
        topic.partitions = topic.partitions[:1]


def _with_the_last_partition(answer: Any) -> None:  # noqa: ANN401
    for topic in answer.topics:
        topic.partitions = topic.partitions[-1:]


def _without_topics(answer: Any) -> None:  # noqa: ANN401
    answer.topics = []


INCOMPLETE = (_without_partitions, _with_one_partition, _with_the_last_partition, _without_topics)


@pytest.mark.parametrize("edit", INCOMPLETE)
@pytest.mark.parametrize("strict", ["true", "false"])
@pytest.mark.parametrize("has_restarted", [False, True])
def test_running_stream_requests_incomplete_metadata_again(
    brokers: FakeCluster,
    edit: Callable[[Any], object],
    strict: str,
    has_restarted: bool,
) -> None:
    partitions = [new_partition(), new_partition()]
    brokers.create("t", partitions)
    stream = start_stream(brokers, failOnDataLoss=strict)
    stream.all()
    if has_restarted:
        stream.start()
    for partition in partitions:
        partition.log = fake_log(build_log(6))
    brokers.fail(METADATA, Fault(edit=edit))
    assert stream.batch()
    assert len(offsets(stream)) == 36
    assert not brokers.faults[METADATA]
    stream.close()


@pytest.mark.parametrize("strict", ["true", "false"])
def test_replay_requests_incomplete_metadata_again(brokers: FakeCluster, strict: str) -> None:
    brokers.create("t", [new_partition(), new_partition()])
    stream = start_stream(brokers, failOnDataLoss=strict)
    assert stream.choose()
    brokers.fail(METADATA, Fault(edit=_with_one_partition))
    stream.start()
    assert len(offsets(stream)) == 24
    stream.close()


def test_stream_waits_while_metadata_are_incomplete(
    brokers: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    brokers.create("t", [new_partition(), new_partition()])
    stream = start_stream(brokers)
    stream.all()
    brokers.fail(METADATA, Fault(edit=_with_one_partition), times=50)
    assert not stream.batch()
    assert "1 partitions of topic id" in caplog.text
    brokers.faults[METADATA].clear()
    stream.clock.seconds += 100
    assert not stream.batch(), "no row is new, and no row may be returned twice"
    assert len(offsets(stream)) == 24
    stream.close()


def test_new_stream_requests_metadata_again_if_tier_has_more_partitions(
    brokers: FakeCluster, tmp_path: Path
) -> None:
    topic_id = brokers.create("t", [new_partition(), new_partition()])
    for number in range(2):
        writer = AivenTierWriter(tmp_path, topic="t", partition=number, topic_id=topic_id)
        writer.write_segment(build_log().segments[0])
    brokers.fail(METADATA, Fault(edit=_with_one_partition), times=2)
    stream = start_stream(brokers, path=str(tmp_path))
    stream.all()
    assert len(offsets(stream)) == 24
    stream.close()


def open_transaction() -> LogBuilder:
    log = LogBuilder()
    log.append([SimpleRecord(b"plain")] * 5)
    log.send(7, [SimpleRecord(b"open")] * 3)
    log.append([SimpleRecord(b"plain")] * 2)
    return log


@pytest.mark.parametrize("outcome", ["commit", "abort"])
@pytest.mark.parametrize("strict", ["true", "false"])
def test_change_to_read_committed_waits_for_open_transactions(
    brokers: FakeCluster, outcome: str, strict: str
) -> None:
    log = open_transaction()
    partition = FakePartition(fake_log(log.build()))
    brokers.create("t", [partition])
    stream = start_stream(brokers, isolationLevel="read_uncommitted", failOnDataLoss=strict)
    stream.all()
    assert offsets(stream) == list(range(10))
    stream.start(isolationLevel="read_committed")
    assert not stream.batch()
    getattr(log, outcome)(7)
    log.append([SimpleRecord(b"plain")] * 2)
    partition.log = fake_log(log.build())
    stream.all()
    assert offsets(stream) == [*range(10), 11, 12]
    stream.close()


def test_change_to_read_committed_with_shorter_log_raises_data_loss_error(
    brokers: FakeCluster,
) -> None:
    partition = FakePartition(fake_log(open_transaction().build()))
    brokers.create("t", [partition])
    stream = start_stream(brokers, isolationLevel="read_uncommitted")
    stream.all()
    short = LogBuilder()
    short.append([SimpleRecord(b"plain")] * 8)
    partition.log = fake_log(short.build())
    stream.start(isolationLevel="read_committed")
    with pytest.raises(DataLossError, match="at offset 8 now, and the stream has read up to 10"):
        stream.batch()
    stream.close()


def test_read_committed_replay_of_read_uncommitted_batch_raises_data_loss_error(
    brokers: FakeCluster,
) -> None:
    log = open_transaction()
    partition = FakePartition(fake_log(log.build()))
    brokers.create("t", [partition])
    stream = start_stream(brokers, isolationLevel="read_uncommitted")
    assert stream.choose()
    with pytest.raises(
        DataLossError, match=r"offset 5 on .*planned with isolationLevel=read_uncomm"
    ):
        stream.start(isolationLevel="read_committed")
    log.commit(7)
    partition.log = fake_log(log.build())
    stream.start()
    assert offsets(stream) == list(range(10))
    stream.close()


def test_hole_that_brokers_refuse_is_skipped_or_raises_data_loss_error(
    brokers: FakeCluster,
) -> None:
    partition = new_partition()
    partition.log.holes = [(3, 6)]
    brokers.create("t", [partition])
    options = {"kafka.max.partition.fetch.bytes": "1", "maxOffsetsPerTrigger": "3"}
    lenient = start_stream(brokers, failOnDataLoss="false", **options)
    lenient.all()
    assert offsets(lenient) == [*range(3), *range(6, 12)]
    strict = start_stream(brokers, **options)
    with pytest.raises(DataLossError, match=r"refuse offsets \[3, 6\)"):
        strict.all()
    lenient.close()
    strict.close()


def test_broker_with_stale_topic_id_returns_no_row_twice(brokers: FakeCluster) -> None:
    partition = new_partition()
    brokers.create("t", [partition])
    stream = start_stream(brokers, failOnDataLoss="false")
    stream.all()
    old = brokers.topics["t"]
    brokers.create("t", [new_partition()])
    stream.all()
    assert offsets(stream) == [*range(12), *range(12)]
    new = brokers.topics["t"]
    brokers.topics["t"] = old
    for _ in range(3):
        stream.clock.seconds += 100
        assert not stream.batch()
    brokers.topics["t"] = new
    new[1][0].log = fake_log(build_log(5))
    stream.clock.seconds += 100
    stream.all()
    assert offsets(stream) == [*range(12), *range(12), 12, 13, 14]
    stream.close()
