"""Disks of three brokers, one of which fell behind and one of which leads on: merged, they are what
the restarted leaders serve.
"""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.integration.admin import wait_until
from tests.integration.background import RandomWork
from tests.integration.cluster import Cluster, ClusterSpec
from tests.integration.filler import Filler
from tests.integration.hybrid import (
    Rows,
    assert_as_consumed,
    consumed_after_start,
    consumed_rows,
    hybrid_options,
    planned,
    rows_of,
    wait_written_down,
)
from tests.integration.lost_branches import elect_unclean
from tests.needs import needs

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(420)]

LEVELS = ("read_committed", "read_uncommitted")
TOPICS = ("three", "two")
SETTINGS = {
    "replica.high.watermark.checkpoint.interval.ms": "300",
    "log.flush.offset.checkpoint.interval.ms": "300",
    "log.flush.start.offset.checkpoint.interval.ms": "300",
    "broker.session.timeout.ms": "9000",
}


class Disks(NamedTuple):
    """What is left of a cluster.

    Attributes:
        cluster: Nothing of it is running.
        folder: Copies of its log directories, one a broker, and of its tier.
        rows: By isolation level and partition, as a consumer had them.
    """

    cluster: Cluster
    folder: Path
    rows: dict[str, Rows]


@pytest.fixture(scope="module", params=["stopped", "killed"])
def disks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Disks:
    """Broker 2 led, and died; of `three` broker 1 led on, of `two` broker 3, which had missed some.

    Broker 2 has less of `three` than the others, and of `two` more, on a branch that died.
    """
    needs("java", "mvn")
    folder = tmp_path_factory.mktemp(f"replicas-{request.param}")
    cluster = Cluster(folder / "cluster", ClusterSpec(replicas=2, settings=SETTINGS))
    with cluster:
        cluster.admin.create_topic("three", replicas=(2, 3, 1))
        cluster.admin.create_topic("two", replicas=(2, 3), local_retention_bytes="-2")
        _write(cluster)
        wait_until(lambda: len(cluster.admin.in_sync("three")) == 3)
        assert {cluster.admin.leader(topic) for topic in TOPICS} == {2}
        assert elect_unclean(cluster, "two", lambda: _write(cluster)) == (2, 3)
        wait_until(lambda: cluster.admin.leader("three") == 1)
        _write(cluster)
        wait_until(lambda: cluster.admin.in_sync("three") == [1, 3])
        filler = Filler(cluster.bootstrap, 1)
        writer = filler.transactional("open")
        writer.begin_transaction()
        for topic in TOPICS:
            filler.send(writer, topic, 0, 20)
            filler.send(filler.plain("zstd"), topic, 0, 20)
        rows = {}
        for level in LEVELS:
            options = hybrid_options(
                cluster.bootstrap, subscribe=",".join(TOPICS), isolationLevel=level
            )
            rows[level] = consumed_rows(cluster.bootstrap, planned(options), level)
        ends = {(one.topic, one.partition): one.stop for one in planned(options).partitions}
        for number in (1, 3):
            has = {place: end for place, end in ends.items() if (number, place[0]) != (1, "two")}
            wait_written_down(cluster.nodes[number], has)
        for number in (3, 1):
            node = cluster.nodes[number]
            node.stop() if request.param == "stopped" else node.kill()
        for number, node in cluster.nodes.items():
            shutil.copytree(node.logs, folder / "disks" / f"broker-{number}")
        shutil.copytree(cluster.tier, folder / "tier")
    return Disks(cluster, folder, rows)


def _write(cluster: Cluster) -> None:
    """Writes random work to both topics, its transactions ended."""
    seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}")  # noqa: T201  # shown where the test fails
    work = RandomWork(cluster.bootstrap, [(topic, 0) for topic in TOPICS], seed)
    sent = 0
    while sent < 1500:
        sent += work.step()
    work.finish()
    for topic in TOPICS:
        cluster.admin.wait_stable(topic)


def _options(disks: Disks, level: str, *, alone: bool) -> dict[str, str]:
    """Options that read the disks alone, or the tier with them."""
    options = hybrid_options("", disks.folder / "tier", isolationLevel=level)
    del options["kafka.bootstrap.servers"]
    below = str(disks.folder / "disks")
    if alone:
        return {**options, "path": below, "layout": "kafka-logs", "subscribe": "two"}
    return {**options, "tailPath": below, "subscribe": ",".join(TOPICS)}


@pytest.mark.parametrize("level", LEVELS)
def test_rows_are_those_that_a_consumer_had(disks: Disks, level: str) -> None:
    for alone in (False, True):
        options = _options(disks, level, alone=alone)
        wanted = options["subscribe"].split(",")
        expected = {place: rows for place, rows in disks.rows[level].items() if place[0] in wanted}
        assert_as_consumed(rows_of(planned(options), options), expected)


def test_branch_that_died_is_named(disks: Disks) -> None:
    plan = planned(_options(disks, "read_uncommitted", alone=False))
    told = {part.topic: [str(one) for one in part.orphans] for part in plan.partitions}
    assert any("broker-2/two-0" in text and "died" in text for text in told["two"])
    read = {part.topic: part.disks.folder for part in plan.partitions if part.disks is not None}
    assert "broker-3" in read["two"]
    assert "broker-2" not in read["three"]


def test_rows_are_those_of_the_restarted_leaders(disks: Disks) -> None:
    plans = {level: planned(_options(disks, level, alone=False)) for level in LEVELS}
    found = {
        level: rows_of(plan, _options(disks, level, alone=False)) for level, plan in plans.items()
    }
    cluster = disks.cluster
    try:
        for number in (1, 3):  # broker 2 would follow, and cut its log
            cluster.nodes[number].start()
        cluster.wait_ready()
        wait_until(lambda: all(cluster.admin.leader(topic) > 0 for topic in TOPICS))
        for level, plan in plans.items():
            assert_as_consumed(found[level], consumed_after_start(cluster.bootstrap, plan, level))
    finally:
        for number in (3, 1):
            cluster.nodes[number].stop()
