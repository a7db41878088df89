"""Tests streams without tier: their requests to brokers, and topics that are deleted or
recreated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

import pytest

from kts_source.errors import (
    DataLossError,
    InvalidOptionError,
    OffsetOutOfRangeError,
    StoreUnavailableError,
    TopicNotFoundError,
)
from kts_source.streaming.cluster_look import ClusterLooker
from kts_source.streaming.tier_stream import TierStream
from segment_format.testing import LogBuilder, SimpleRecord
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import FakeLog, fake_log
from tests.kts_source.streaming.running import Checkpointed
from tests.kts_source.streaming.test_idle import POLLS, count_new_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator


class GrowingTopic:
    """A topic of one partition to which batches of three records are appended."""

    def __init__(self, brokers: FakeCluster) -> None:
        self._builder = LogBuilder()
        self.partition = FakePartition(self._log(1))
        self.topic_id = brokers.create("t", [self.partition])

    def append(self, batches: int) -> None:
        """Appends batches of three records."""
        start = self.partition.log.log_start
        self.partition.log = self._log(batches)
        self.partition.log.log_start = start

    def _log(self, batches: int) -> FakeLog:
        for _ in range(batches):
            self._builder.append([SimpleRecord(b"value")] * 3)
        return fake_log(self._builder.build())


@pytest.fixture
def brokers() -> Iterator[FakeCluster]:
    with FakeCluster() as cluster:
        yield cluster


@pytest.fixture
def topic(brokers: FakeCluster) -> GrowingTopic:
    return GrowingTopic(brokers)


def start_stream(brokers: FakeCluster, **options: str) -> Checkpointed:
    stream_options = {
        **({} if "subscribePattern" in options else {"subscribe": "t"}),
        "kafka.bootstrap.servers": brokers.bootstrap,
        "kafka.fetch.max.wait.ms": "10",
        "minBrokerPollIntervalMs": "0",
        **options,
    }
    return Checkpointed(stream_options)


def offsets(stream: Checkpointed) -> list[int]:
    return [offset for table in stream.batches.values() for offset in table["offset"].to_pylist()]


def test_idle_stream_requests_only_metadata_and_end_offsets(
    brokers: FakeCluster, topic: GrowingTopic
) -> None:
    stream = start_stream(brokers)
    stream.all()
    brokers.asked.clear()
    for _ in range(5):
        assert not stream.batch()
    kinds = [kind for kind, _ in brokers.asked]
    assert kinds == ["Metadata", "ListOffsets"] * 5
    topic.append(2)
    stream.all()
    assert offsets(stream) == list(range(9))
    stream.close()


@pytest.mark.slow
@pytest.mark.usefixtures("topic")
def test_thousands_of_polls_of_brokers_keep_memory_constant(brokers: FakeCluster) -> None:
    stream = start_stream(brokers)
    stream.all()

    def poll() -> None:
        assert not stream.choose()
        assert stream.stream.lag() is not None
        brokers.asked.clear()

    assert count_new_blocks(poll, POLLS) < POLLS // 10
    stream.close()


def test_poll_interval_limits_requests_to_brokers(
    brokers: FakeCluster, topic: GrowingTopic
) -> None:
    stream = start_stream(brokers, minBrokerPollIntervalMs="1000")
    stream.all()
    brokers.asked.clear()
    for _ in range(200):  # four seconds
        stream.clock.seconds += 0.02
        stream.batch()
    assert 3 <= brokers.of_kind("ListOffsets") <= 5
    topic.append(1)
    assert not stream.batch()
    stream.clock.seconds += 1
    assert stream.batch()
    stream.close()


@pytest.mark.usefixtures("topic")
def test_deleted_topic_raises_error_or_is_read_again_after_recreation(brokers: FakeCluster) -> None:
    strict, lenient = start_stream(brokers), start_stream(brokers, failOnDataLoss="false")
    pattern = start_stream(brokers, subscribePattern="^t$")
    for stream in (strict, lenient, pattern):
        stream.all()
    del brokers.topics["t"]
    with pytest.raises(TopicNotFoundError, match="no such topic"):
        strict.batch()
    with pytest.raises(DataLossError, match="it was deleted"):
        pattern.batch()
    assert not lenient.batch()
    GrowingTopic(brokers)
    lenient.all()
    assert offsets(lenient) == [0, 1, 2] * 2, "the recreated topic is read from its start"
    for stream in (strict, lenient, pattern):
        stream.close()


def test_one_poll_suffices_to_read_recreated_topic_in_several_batches(brokers: FakeCluster) -> None:
    GrowingTopic(brokers)
    stream = start_stream(
        brokers,
        minBrokerPollIntervalMs="1000",
        maxOffsetsPerTrigger="3",
        failOnDataLoss="false",
    )
    stream.all()
    del brokers.topics["t"]
    GrowingTopic(brokers).append(3)
    stream.clock.seconds += 1
    stream.all()
    assert offsets(stream) == [0, 1, 2, *range(12)]
    stream.close()


def test_recreated_topic_has_its_own_leader_epochs(brokers: FakeCluster) -> None:
    """Leader epochs of the old topic id do not apply to the recreated topic."""
    partition = FakePartition(log_of_epochs((5, 2)), epoch=5)
    brokers.create("t", [partition])
    stream = start_stream(brokers, maxOffsetsPerTrigger="9", failOnDataLoss="false")
    stream.all()
    assert stream.last["topics"]["t"] == {**stream.last["topics"]["t"], "e": {"0": 5}}
    del brokers.topics["t"]
    brokers.create("t", [FakePartition(log_of_epochs((0, 4), (5, 2)), epoch=5)])
    assert stream.batch()
    assert stream.last["topics"]["t"]["p"] == {"0": 9}
    assert stream.last["topics"]["t"]["e"] == {"0": 0}
    stream.close()


@pytest.mark.parametrize(
    ("patched_class", "name"), [(TierStream, "_plan"), (ClusterLooker, "_check_gone")]
)
def test_records_before_an_outage_are_read_after_it(
    brokers: FakeCluster, topic: GrowingTopic, patched_class: type, name: str
) -> None:
    """The stream reads the records even if no later records are produced."""
    stream = start_stream(brokers, minBrokerPollIntervalMs="1000")
    stream.all()
    topic.append(2)
    stream.clock.seconds += 1
    with mock.patch.object(patched_class, name, side_effect=StoreUnavailableError("no answer")):
        assert not stream.batch()
    assert not stream.batch(), "the next poll is not due"
    stream.clock.seconds += 1
    stream.all()
    assert offsets(stream) == list(range(9))
    stream.close()


def test_stream_stops_at_its_fixed_end(brokers: FakeCluster, topic: GrowingTopic) -> None:
    topic.append(3)
    stream = start_stream(brokers, stopAtEnd="true", maxOffsetsPerTrigger="5")
    assert stream.batch()
    topic.append(3)
    assert stream.all() == 2
    assert offsets(stream) == list(range(12))
    stream.start(stopAtEnd="false")
    stream.all()
    assert offsets(stream) == list(range(21))
    stream.close()


def test_stream_does_not_stop_at_fixed_end_while_brokers_are_unavailable(
    brokers: FakeCluster, topic: GrowingTopic
) -> None:
    topic.append(3)
    stream = start_stream(brokers, stopAtEnd="true", maxOffsetsPerTrigger="5")
    assert stream.batch()
    down = mock.patch.object(ClusterLooker, "look", side_effect=StoreUnavailableError("no answer"))
    with down, pytest.raises(StoreUnavailableError):
        stream.batch()
    stream.close()


@pytest.mark.usefixtures("topic")
@pytest.mark.parametrize(
    ("starting", "message"),
    [('{"t":{"0":0,"7":5}}', "not read: t-7"), ('{"t":{"0":0},"u":{"0":0}}', "not read: u-0")],
)
def test_starting_offsets_of_unknown_partition_raise_invalid_option_error(
    brokers: FakeCluster, starting: str, message: str
) -> None:
    stream = start_stream(brokers, startingOffsets=starting)
    with pytest.raises(InvalidOptionError, match=message):
        stream.batch()
    stream.close()


@pytest.mark.usefixtures("topic")
def test_new_partition_is_read_from_its_start(brokers: FakeCluster, topic: GrowingTopic) -> None:
    stream = start_stream(brokers, startingOffsets="latest")
    stream.all()
    topic_id, partitions = brokers.topics["t"]
    brokers.create("t", [*partitions, FakePartition(topic.partition.log)], topic_id)
    assert stream.all() == 1
    assert offsets(stream) == [0, 1, 2]
    assert stream.last["from"]["t"]["p"] == {"1": 0}
    stream.close()


def test_retention_that_deletes_unread_offsets_raises_offset_out_of_range_error(
    brokers: FakeCluster, topic: GrowingTopic
) -> None:
    strict, lenient = start_stream(brokers), start_stream(brokers, failOnDataLoss="false")
    for stream in (strict, lenient):
        stream.all()
    topic.append(3)
    topic.partition.log.log_start = 6
    with pytest.raises(OffsetOutOfRangeError, match=r"offsets \[3, 6\)"):
        strict.batch()
    lenient.all()
    assert offsets(lenient) == [0, 1, 2, *range(6, 12)]
    for stream in (strict, lenient):
        stream.close()


def test_stream_with_unread_records_requests_log_starts(
    brokers: FakeCluster, topic: GrowingTopic
) -> None:
    stream = start_stream(brokers, minOffsetsPerTrigger="100")
    stream.all()
    topic.append(1)
    assert not stream.batch()
    brokers.asked.clear()
    for _ in range(5):
        assert not stream.batch()
    kinds = [kind for kind, _ in brokers.asked]
    assert kinds == ["Metadata", "ListOffsets", "ListOffsets"] * 5
    stream.close()


def test_log_start_above_unread_offsets_raises_offset_out_of_range_error(
    brokers: FakeCluster, topic: GrowingTopic
) -> None:
    topic.append(9)
    strict, lenient = (
        start_stream(brokers, maxOffsetsPerTrigger="3", failOnDataLoss=text)
        for text in ("true", "false")
    )
    for stream in (strict, lenient):
        assert stream.batch()
    assert strict.batch()
    topic.partition.log.log_start = 12
    with pytest.raises(OffsetOutOfRangeError, match=r"offsets \[6, 12\) .* DeleteRecords"):
        strict.batch()
    lenient.all()
    assert offsets(lenient) == [0, 1, 2, *range(12, 30)]
    for stream in (strict, lenient):
        stream.close()


def test_replayed_batch_before_moved_log_start_raises_offset_out_of_range_error(
    brokers: FakeCluster, topic: GrowingTopic
) -> None:
    strict, lenient = start_stream(brokers), start_stream(brokers, failOnDataLoss="false")
    topic.append(3)
    for stream in (strict, lenient):
        assert stream.choose()
    topic.partition.log.log_start = 6
    with pytest.raises(OffsetOutOfRangeError, match=r"offsets \[0, 6\) of the batch that ends at"):
        strict.start()
    lenient.start()
    assert offsets(lenient) == list(range(6, 12))
    for stream in (strict, lenient):
        stream.close()


def test_batches_with_a_small_limit_read_all_partitions_evenly(brokers: FakeCluster) -> None:
    builder = LogBuilder()
    for _ in range(100):
        builder.append([SimpleRecord(b"value")] * 3)
    log = builder.build()
    brokers.create("t", [FakePartition(fake_log(log)) for _ in range(5)])
    stream = start_stream(brokers, maxOffsetsPerTrigger="20")
    for _ in range(10):
        assert stream.batch()
    read = stream.last["topics"]["t"]["p"]
    assert sum(read.values()) == 200
    assert max(read.values()) - min(read.values()) <= 20
    stream.close()


def log_of_epochs(*epochs: tuple[int, int]) -> FakeLog:
    """Returns a log with batches of three records. `epochs` are pairs of leader epoch and number of
    batches.
    """
    builder = LogBuilder(leader_epoch=epochs[0][0])
    for number, (epoch, batches) in enumerate(epochs):
        if number:
            builder.set_leader_epoch(epoch)
        for _ in range(batches):
            builder.append([SimpleRecord(b"%d" % epoch)] * 3)
    return fake_log(builder.build())


@pytest.mark.parametrize("epoch", [2, 300])
def test_unclean_election_with_longer_log_raises_data_loss_error(
    brokers: FakeCluster, epoch: int
) -> None:
    """The new leader's log is longer, but its epochs differ from those of the records that were
    read. Kafka's consumer compares only the end offsets, and does not detect this.
    """
    partition = FakePartition(log_of_epochs((0, 2), (epoch, 2)), epoch=epoch)
    brokers.create("t", [partition])
    strict, lenient = start_stream(brokers), start_stream(brokers, failOnDataLoss="false")
    strict.all()
    lenient.all()
    partition.log, partition.epoch = log_of_epochs((0, 5), (epoch + 400, 1)), epoch + 400
    with pytest.raises(DataLossError, match=rf"offset 12, had leader epoch {epoch}.*has epoch 0"):
        strict.batch()
    lenient.all()
    assert offsets(lenient) == list(range(18))
    strict.close()
    lenient.close()


def test_position_has_epoch_of_last_read_record_even_if_newer_epochs_exist(
    brokers: FakeCluster,
) -> None:
    partition = FakePartition(
        log_of_epochs(*((epoch, 1) for epoch in range(0, 1200, 3))), epoch=1197
    )
    brokers.create("t", [partition])
    stream = start_stream(brokers, maxOffsetsPerTrigger="96")
    for number in range(1, 4):
        assert stream.batch()
        assert stream.last["topics"]["t"]["e"] == {"0": (96 * number - 1) // 3 * 3}
    stream.close()
