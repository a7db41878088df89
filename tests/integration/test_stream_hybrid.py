"""Tests that streams of tier and brokers return the rows of a consumer, and each row only once."""

from __future__ import annotations

import random
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest

from kts_source.streaming import end_offsets
from tests.golden_data import ISOLATION_LEVELS
from tests.integration.hybrid import (
    assert_as_consumed,
    consume_rows,
    group_by_partition,
    hybrid_options,
    make_plan,
)
from tests.integration.spark_kafka import run_reads
from tests.integration.worked_topic import Topic
from tests.kts_source.streaming.running import Checkpointed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from tests.integration.cluster import Cluster

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(420)]


class Follower(Checkpointed):
    """Stream that reads a topic from tier and brokers.

    Args:
        cluster: Cluster of the topic.
        topic: Name of the topic.
        level: Isolation level.
        options: Additional options of the stream.
    """

    def __init__(self, cluster: Cluster, topic: str, level: str, **options: str) -> None:
        self.level = level
        all_options = hybrid_options(cluster.bootstrap, cluster.tier, subscribe=topic, **options)
        all_options["isolationLevel"] = level
        all_options |= {"minBrokerPollIntervalMs": "0", "minListingIntervalMs": "0"}
        super().__init__(all_options)

    def check(self, cluster: Cluster) -> int:
        """Reads to the end of the topic, asserts that all rows since the start of the stream equal
        a consumer's rows, and returns their number.
        """
        self.all()
        batches = [batch for table in self.batches.values() for batch in table.to_batches()]
        scan = {name: text for name, text in self.options.items() if "Trigger" not in name}
        expected = consume_rows(cluster.bootstrap, make_plan(scan), self.level)
        assert_as_consumed(group_by_partition(batches), expected)
        return sum(len(rows) for rows in expected.values())


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    """Yields a stack to which the test adds its streams. Closes the streams after the test."""
    with ExitStack() as stack:
        yield stack


def test_stream_reads_each_row_once_from_tier_or_brokers(
    cluster: Cluster, opened: ExitStack
) -> None:
    topic = Topic(cluster, "followed")
    topic.write(3)
    topic.settle()
    choice = random.Random(random.SystemRandom().randrange(1 << 31))
    followers = [
        opened.enter_context(closing(Follower(cluster, topic.name, level, **limits)))
        for level in ISOLATION_LEVELS
        for limits in ({}, {"maxOffsetsPerTrigger": "37"}, {"maxSegmentsPerTrigger": "1"})
    ]
    for _ in range(4):
        topic.write(1)
        if choice.random() < 0.5:
            topic.settle()  # rows on the broker's disk are only in the tier afterwards
        for follower in followers:
            for _ in range(choice.randrange(4)):
                follower.batch()
    for follower in followers:
        assert follower.check(cluster) > 0
        assert follower.served["tier"] > 0 < follower.served["brokers"]
    assert sum(follower.served["both"] for follower in followers)


@pytest.mark.parametrize("level", ISOLATION_LEVELS)
def test_replayed_batch_returns_same_rows_after_its_offsets_are_tiered(
    cluster: Cluster, opened: ExitStack, level: str
) -> None:
    topic = Topic(cluster, f"replayed-{level}")
    topic.write(2)
    topic.settle()
    follower = opened.enter_context(closing(Follower(cluster, topic.name, level)))
    follower.all()
    number, before = _next_rows(cluster, topic, follower)
    topic.write(2)
    end = topic.settle()
    assert (
        follower.position(number)["topics"][topic.name]["p"]["0"] <= end
    )  # the range is only in the tier
    follower.start()  # replays the last batch
    assert follower.batches[number].equals(before)
    follower.check(cluster)


def _next_rows(cluster: Cluster, topic: Topic, follower: Follower) -> tuple[int, pa.Table]:
    """Writes records and reads batches until a batch has rows. Does not commit this batch.

    Returns two values: the number of the batch and its rows.
    """
    while True:
        read = follower.last["topics"][topic.name]["p"]["0"]
        while cluster.admin.offsets(topic.name).latest < read + 9:
            topic.work.step()
        topic.finish()
        assert follower.choose()
        follower.read_last()
        number = len(follower.offset_log) - 1
        if follower.batches[number].num_rows:
            return number, follower.batches[number]
        follower.committed += 1


def test_stream_of_recreated_topic_raises_unless_data_loss_is_allowed(
    cluster: Cluster, opened: ExitStack
) -> None:
    old = Topic(cluster, "again")
    old.write(2)
    old.settle()
    strict, lenient = (
        opened.enter_context(
            closing(Follower(cluster, "again", "read_committed", failOnDataLoss=text))
        )
        for text in ("true", "false")
    )
    for follower in (strict, lenient):
        follower.all()
    before = sum(table.num_rows for table in lenient.batches.values())
    cluster.admin.delete_topic("again")
    new = Topic(cluster, "again")
    new.write(2)
    # The random work may abort all its transactions, so send some other records.
    new.work.filler.send(new.work.filler.plain("none"), "again", 0, 50)
    new.settle()
    with pytest.raises(Exception, match="created again"):
        strict.all()
    lenient.all()
    now = hybrid_options(cluster.bootstrap, cluster.tier, subscribe="again")
    expected = consume_rows(cluster.bootstrap, make_plan(now), "read_committed")
    count = sum(table.num_rows for table in lenient.batches.values()) - before
    assert count == sum(len(rows) for rows in expected.values()) > 0


def test_spark_kafka_source_continues_at_end_offsets_of_stream(
    cluster: Cluster, opened: ExitStack, tmp_path: Path
) -> None:
    level = random.SystemRandom().choice(ISOLATION_LEVELS)
    topic = Topic(cluster, f"handed-over-{level}")
    topic.write(3)
    topic.settle()
    tier = hybrid_options("", cluster.tier, subscribe=topic.name, isolationLevel=level)
    del tier["kafka.bootstrap.servers"]
    stream = opened.enter_context(closing(Checkpointed(tier | {"maxSegmentsPerTrigger": "1"})))
    stream.all()
    stream.write(tmp_path / "checkpoint")
    topic.write(1)
    read = {
        "subscribe": topic.name,
        "startingOffsets": end_offsets(str(tmp_path / "checkpoint")),
        "includeHeaders": "true",
        "kafka.isolation.level": level,
        "kafka.bootstrap.servers": cluster.bootstrap,
    }
    runs = run_reads("kafka", {"batch": read}, tmp_path / "spark", {}, streams={"stream": read})
    before = [offset for table in stream.batches.values() for offset in table["offset"].to_pylist()]
    plan = make_plan(hybrid_options(cluster.bootstrap, cluster.tier, subscribe=topic.name))
    ((_, rows),) = consume_rows(cluster.bootstrap, plan, level).items()
    for name, run in runs.items():
        assert run.table is not None, f"{name}: {run.error}"
        offsets = sorted([*before, *run.table["offset"].to_pylist()])
        assert offsets == [row.offset for row in rows], name
