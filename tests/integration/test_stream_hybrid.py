"""A stream through tier and brokers, of a cluster that goes on: every row that a consumer is given,
once, wherever it is by then.
"""

from __future__ import annotations

import random
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest

from kts_source.streaming import end_offsets
from tests.golden_data import ISOLATION_LEVELS
from tests.integration.hybrid import (
    assert_as_consumed,
    by_partition,
    consumed_rows,
    hybrid_options,
    planned,
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
    """A stream over one topic of a cluster.

    Args:
        cluster: Where it is.
        topic: Its name.
        level: The isolation level.
        options: More of them.
    """

    def __init__(self, cluster: Cluster, topic: str, level: str, **options: str) -> None:
        self.level = level
        wanted = hybrid_options(cluster.bootstrap, cluster.tier, subscribe=topic, **options)
        wanted["isolationLevel"] = level
        wanted |= {"minBrokerPollIntervalMs": "0", "minListingIntervalMs": "0"}
        super().__init__(wanted)

    def check(self, cluster: Cluster) -> int:
        """Compares all that came with what a consumer is given; returns how many rows that is."""
        self.all()
        batches = [part for table in self.batches.values() for part in table.to_batches()]
        batch = {name: text for name, text in self.options.items() if "Trigger" not in name}
        due = consumed_rows(cluster.bootstrap, planned(batch), self.level)
        assert_as_consumed(by_partition(batches), due)
        return sum(len(rows) for rows in due.values())


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    """Closes what a test follows a topic with."""
    with ExitStack() as stack:
        yield stack


def test_batches_on_both_sides_of_the_seam(cluster: Cluster, opened: ExitStack) -> None:
    topic = Topic(cluster, "followed")
    topic.write(3)
    topic.settle()
    chosen = random.Random(random.SystemRandom().randrange(1 << 31))
    followers = [
        opened.enter_context(closing(Follower(cluster, topic.name, level, **limits)))
        for level in ISOLATION_LEVELS
        for limits in ({}, {"maxOffsetsPerTrigger": "37"}, {"maxSegmentsPerTrigger": "1"})
    ]
    for _ in range(4):
        topic.write(1)
        if chosen.random() < 0.5:
            topic.settle()  # what was on the broker's disk is in the tier only
        for one in followers:
            for _ in range(chosen.randrange(4)):
                one.batch()
    for one in followers:
        assert one.check(cluster) > 0
        assert one.served["tier"] > 0 < one.served["brokers"]
    assert sum(one.served["both"] for one in followers)


@pytest.mark.parametrize("level", ISOLATION_LEVELS)
def test_a_batch_that_is_read_again_when_its_range_has_moved(
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
    assert follower.position(number)["topics"][topic.name]["p"]["0"] <= end  # in the tier only
    follower.start()  # reads it again
    assert follower.batches[number].equals(before)
    follower.check(cluster)


def _next_rows(cluster: Cluster, topic: Topic, follower: Follower) -> tuple[int, pa.Table]:
    """The next batch with a row in it, which is not committed yet, and its number."""
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


def test_a_topic_that_is_created_again(cluster: Cluster, opened: ExitStack) -> None:
    old = Topic(cluster, "again")
    old.write(2)
    old.settle()
    strict, lenient = (
        opened.enter_context(
            closing(Follower(cluster, "again", "read_committed", failOnDataLoss=text))
        )
        for text in ("true", "false")
    )
    for one in (strict, lenient):
        one.all()
    before = sum(table.num_rows for table in lenient.batches.values())
    cluster.admin.delete_topic("again")
    new = Topic(cluster, "again")
    new.write(2)
    # Chance may abort all that was written.
    new.work.filler.send(new.work.filler.plain("none"), "again", 0, 50)
    new.settle()
    with pytest.raises(Exception, match="created again"):
        strict.all()
    lenient.all()
    now = hybrid_options(cluster.bootstrap, cluster.tier, subscribe="again")
    due = consumed_rows(cluster.bootstrap, planned(now), "read_committed")
    found = sum(table.num_rows for table in lenient.batches.values()) - before
    assert found == sum(len(rows) for rows in due.values()) > 0


def test_sparks_kafka_source_goes_on_where_a_stream_of_the_tier_has_stopped(
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
    before = [at for table in stream.batches.values() for at in table["offset"].to_pylist()]
    whole = planned(hybrid_options(cluster.bootstrap, cluster.tier, subscribe=topic.name))
    ((_, due),) = consumed_rows(cluster.bootstrap, whole, level).items()
    for name, rest in runs.items():
        assert rest.table is not None, f"{name}: {rest.error}"
        found = sorted([*before, *rest.table["offset"].to_pylist()])
        assert found == [row.offset for row in due], name
