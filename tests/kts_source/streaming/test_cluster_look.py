"""A stream of brokers alone: what it asks them, and what becomes of a topic that goes."""

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
from tests.kts_source.streaming.test_idle import POLLS, grown

if TYPE_CHECKING:
    from collections.abc import Iterator


class Growing:
    """A topic of one partition to which batches of three records are appended."""

    def __init__(self, brokers: FakeCluster) -> None:
        self._builder = LogBuilder()
        self.part = FakePartition(self._log(1))
        self.topic_id = brokers.create("t", [self.part])

    def append(self, batches: int) -> None:
        """More records."""
        start = self.part.log.log_start
        self.part.log = self._log(batches)
        self.part.log.log_start = start

    def _log(self, batches: int) -> FakeLog:
        for _ in range(batches):
            self._builder.append([SimpleRecord(b"value")] * 3)
        return fake_log(self._builder.build())


@pytest.fixture
def brokers() -> Iterator[FakeCluster]:
    with FakeCluster() as made:
        yield made


@pytest.fixture
def topic(brokers: FakeCluster) -> Growing:
    return Growing(brokers)


def following(brokers: FakeCluster, **options: str) -> Checkpointed:
    given = {
        **({} if "subscribePattern" in options else {"subscribe": "t"}),
        "kafka.bootstrap.servers": brokers.bootstrap,
        "kafka.fetch.max.wait.ms": "10",
        "minBrokerPollIntervalMs": "0",
        **options,
    }
    return Checkpointed(given)


def offsets(stream: Checkpointed) -> list[int]:
    return [at for table in stream.batches.values() for at in table["offset"].to_pylist()]


def test_who_waits_asks_for_topics_and_ends_alone(brokers: FakeCluster, topic: Growing) -> None:
    stream = following(brokers)
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
def test_ten_thousand_polls_of_brokers_grow_nothing(brokers: FakeCluster) -> None:
    stream = following(brokers)
    stream.all()

    def poll() -> None:
        assert not stream.choose()
        assert stream.stream.lag() is not None
        brokers.asked.clear()

    assert grown(poll, POLLS) < POLLS // 10
    stream.close()


def test_brokers_are_asked_once_an_interval(brokers: FakeCluster, topic: Growing) -> None:
    stream = following(brokers, minBrokerPollIntervalMs="1000")
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
def test_a_topic_that_is_deleted(brokers: FakeCluster) -> None:
    strict, lenient = following(brokers), following(brokers, failOnDataLoss="false")
    pattern = following(brokers, subscribePattern="^t$")
    for stream in (strict, lenient, pattern):
        stream.all()
    del brokers.topics["t"]
    with pytest.raises(TopicNotFoundError, match="no such topic"):
        strict.batch()
    with pytest.raises(DataLossError, match="it was deleted"):
        pattern.batch()
    assert not lenient.batch()
    Growing(brokers)
    lenient.all()
    assert offsets(lenient) == [0, 1, 2] * 2, "the new one from its start"
    for stream in (strict, lenient, pattern):
        stream.close()


def test_batches_of_a_topic_that_was_created_again_within_one_look(brokers: FakeCluster) -> None:
    Growing(brokers)
    stream = following(
        brokers,
        minBrokerPollIntervalMs="1000",
        maxOffsetsPerTrigger="3",
        failOnDataLoss="false",
    )
    stream.all()
    del brokers.topics["t"]
    Growing(brokers).append(3)
    stream.clock.seconds += 1
    stream.all()
    assert offsets(stream) == [0, 1, 2, *range(12)]
    stream.close()


def test_epochs_of_a_topic_that_was_created_again_are_its_own(brokers: FakeCluster) -> None:
    """What was read of the old one says nothing of who wrote the new one."""
    part = FakePartition(written_by((5, 2)), epoch=5)
    brokers.create("t", [part])
    stream = following(brokers, maxOffsetsPerTrigger="9", failOnDataLoss="false")
    stream.all()
    assert stream.last["topics"]["t"] == {**stream.last["topics"]["t"], "e": {"0": 5}}
    del brokers.topics["t"]
    brokers.create("t", [FakePartition(written_by((0, 4), (5, 2)), epoch=5)])
    assert stream.batch()
    assert stream.last["topics"]["t"]["p"] == {"0": 9}
    assert stream.last["topics"]["t"]["e"] == {"0": 0}
    stream.close()


@pytest.mark.parametrize(("whose", "name"), [(TierStream, "_plan"), (ClusterLooker, "_check_gone")])
def test_what_an_outage_kept_from_being_read_is_read_behind_it(
    brokers: FakeCluster, topic: Growing, whose: type, name: str
) -> None:
    """Although nothing more is produced."""
    stream = following(brokers, minBrokerPollIntervalMs="1000")
    stream.all()
    topic.append(2)
    stream.clock.seconds += 1
    with mock.patch.object(whose, name, side_effect=StoreUnavailableError("no answer")):
        assert not stream.batch()
    assert not stream.batch(), "not before it is asked again"
    stream.clock.seconds += 1
    stream.all()
    assert offsets(stream) == list(range(9))
    stream.close()


def test_an_end_that_is_fixed(brokers: FakeCluster, topic: Growing) -> None:
    topic.append(3)
    stream = following(brokers, stopAtEnd="true", maxOffsetsPerTrigger="5")
    assert stream.batch()
    topic.append(3)
    assert stream.all() == 2
    assert offsets(stream) == list(range(12))
    stream.start(stopAtEnd="false")
    stream.all()
    assert offsets(stream) == list(range(21))
    stream.close()


def test_a_run_with_a_fixed_end_does_not_end_early(brokers: FakeCluster, topic: Growing) -> None:
    topic.append(3)
    stream = following(brokers, stopAtEnd="true", maxOffsetsPerTrigger="5")
    assert stream.batch()
    down = mock.patch.object(ClusterLooker, "look", side_effect=StoreUnavailableError("no answer"))
    with down, pytest.raises(StoreUnavailableError):
        stream.batch()
    stream.close()


@pytest.mark.usefixtures("topic")
@pytest.mark.parametrize(
    ("starting", "says"),
    [('{"t":{"0":0,"7":5}}', "names t-7"), ('{"t":{"0":0},"u":{"0":0}}', "names u-0")],
)
def test_a_start_in_json_names_partitions_that_there_are(
    brokers: FakeCluster, starting: str, says: str
) -> None:
    stream = following(brokers, startingOffsets=starting)
    with pytest.raises(InvalidOptionError, match=says):
        stream.batch()
    stream.close()


@pytest.mark.usefixtures("topic")
def test_a_new_partition_begins_at_its_start(brokers: FakeCluster, topic: Growing) -> None:
    stream = following(brokers, startingOffsets="latest")
    stream.all()
    topic_id, partitions = brokers.topics["t"]
    brokers.create("t", [*partitions, FakePartition(topic.part.log)], topic_id)
    assert stream.all() == 1
    assert offsets(stream) == [0, 1, 2]
    assert stream.last["from"]["t"]["p"] == {"1": 0}
    stream.close()


def test_retention_that_overtakes_the_stream(brokers: FakeCluster, topic: Growing) -> None:
    strict, lenient = following(brokers), following(brokers, failOnDataLoss="false")
    for stream in (strict, lenient):
        stream.all()
    topic.append(3)
    topic.part.log.log_start = 6
    with pytest.raises(OffsetOutOfRangeError, match=r"offsets \[3, 6\)"):
        strict.batch()
    lenient.all()
    assert offsets(lenient) == [0, 1, 2, *range(6, 12)]
    for stream in (strict, lenient):
        stream.close()


def test_who_is_behind_asks_for_log_starts_too(brokers: FakeCluster, topic: Growing) -> None:
    stream = following(brokers, minOffsetsPerTrigger="100")
    stream.all()
    topic.append(1)
    assert not stream.batch()
    brokers.asked.clear()
    for _ in range(5):
        assert not stream.batch()
    kinds = [kind for kind, _ in brokers.asked]
    assert kinds == ["Metadata", "ListOffsets", "ListOffsets"] * 5
    stream.close()


def test_a_log_start_that_moves_while_nothing_is_written(
    brokers: FakeCluster, topic: Growing
) -> None:
    topic.append(9)
    strict, lenient = (
        following(brokers, maxOffsetsPerTrigger="3", failOnDataLoss=text)
        for text in ("true", "false")
    )
    for stream in (strict, lenient):
        assert stream.batch()
    assert strict.batch()
    topic.part.log.log_start = 12
    with pytest.raises(OffsetOutOfRangeError, match=r"offsets \[6, 12\) .* overtaken"):
        strict.batch()
    lenient.all()
    assert offsets(lenient) == [0, 1, 2, *range(12, 30)]
    for stream in (strict, lenient):
        stream.close()


def test_a_batch_that_is_read_again_behind_a_log_start_that_moved(
    brokers: FakeCluster, topic: Growing
) -> None:
    strict, lenient = following(brokers), following(brokers, failOnDataLoss="false")
    topic.append(3)
    for stream in (strict, lenient):
        assert stream.choose()
    topic.part.log.log_start = 6
    with pytest.raises(OffsetOutOfRangeError, match=r"offsets \[0, 6\) of the batch that ends at"):
        strict.start()
    lenient.start()
    assert offsets(lenient) == list(range(6, 12))
    for stream in (strict, lenient):
        stream.close()


def test_no_partition_starves_under_a_small_limit(brokers: FakeCluster) -> None:
    builder = LogBuilder()
    for _ in range(100):
        builder.append([SimpleRecord(b"value")] * 3)
    log = builder.build()
    brokers.create("t", [FakePartition(fake_log(log)) for _ in range(5)])
    stream = following(brokers, maxOffsetsPerTrigger="20")
    for _ in range(10):
        assert stream.batch()
    read = stream.last["topics"]["t"]["p"]
    assert sum(read.values()) == 200
    assert max(read.values()) - min(read.values()) <= 20
    stream.close()


def written_by(*epochs: tuple[int, int]) -> FakeLog:
    """A log of batches of three records.

    Args:
        epochs: Leader epochs, and how many batches each wrote.
    """
    builder = LogBuilder(leader_epoch=epochs[0][0])
    for number, (epoch, batches) in enumerate(epochs):
        if number:
            builder.set_leader_epoch(epoch)
        for _ in range(batches):
            builder.append([SimpleRecord(b"%d" % epoch)] * 3)
    return fake_log(builder.build())


@pytest.mark.parametrize("epoch", [2, 300])
def test_a_leader_that_never_had_what_was_read(brokers: FakeCluster, epoch: int) -> None:
    """The branch that was read lost an unclean election; the other one is longer, its epochs are
    older and newer. Kafka's consumer compares ends alone, and sees nothing.
    """
    part = FakePartition(written_by((0, 2), (epoch, 2)), epoch=epoch)
    brokers.create("t", [part])
    strict, lenient = following(brokers), following(brokers, failOnDataLoss="false")
    strict.all()
    lenient.all()
    part.log, part.epoch = written_by((0, 5), (epoch + 400, 1)), epoch + 400
    with pytest.raises(DataLossError, match=rf"offset 12, where leader epoch {epoch}.*of epoch 0"):
        strict.batch()
    lenient.all()
    assert offsets(lenient) == list(range(18))
    strict.close()
    lenient.close()


def test_old_epochs_of_a_partition_with_many(brokers: FakeCluster) -> None:
    """Each batch that ends far below the newest epoch knows the epoch of its last record, and finds
    it again.
    """
    part = FakePartition(written_by(*((epoch, 1) for epoch in range(0, 1200, 3))), epoch=1197)
    brokers.create("t", [part])
    stream = following(brokers, maxOffsetsPerTrigger="96")
    for number in range(1, 4):
        assert stream.batch()
        assert stream.last["topics"]["t"]["e"] == {"0": (96 * number - 1) // 3 * 3}
    stream.close()
