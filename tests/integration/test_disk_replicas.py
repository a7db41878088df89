"""Tests that scans of the disks of three brokers return the same rows as the restarted leaders.

On broker 2, the replica of one topic lacks the newest records. Its replica of the other topic has a
dead branch: records that the elected leader did not have.
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
    consume_rows,
    consume_rows_after_start,
    hybrid_options,
    make_plan,
    read_rows,
    wait_checkpointed,
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
    """A stopped cluster and copies of its files.

    Attributes:
        cluster: Cluster whose nodes are all stopped.
        folder: Folder with copies of each broker's log directory and of the tier.
        rows: Rows that a consumer received before the stop, by isolation level and partition.
    """

    cluster: Cluster
    folder: Path
    rows: dict[str, Rows]


@pytest.fixture(scope="module", params=["stopped", "killed"])
def disks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Disks:
    """Kills broker 2, writes more records, and stops or kills the other brokers.

    Broker 2 then lacks the newest records of topic `three`. Its replica of topic `two` has records
    on a dead branch, because broker 3 became leader of `two` without having these records.
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
            rows[level] = consume_rows(cluster.bootstrap, make_plan(options), level)
        ends = {
            (partition.topic, partition.partition): partition.stop
            for partition in make_plan(options).partitions
        }
        for number in (1, 3):
            offsets = {key: end for key, end in ends.items() if (number, key[0]) != (1, "two")}
            wait_checkpointed(cluster.nodes[number], offsets)
        for number in (3, 1):
            node = cluster.nodes[number]
            node.stop() if request.param == "stopped" else node.kill()
        for number, node in cluster.nodes.items():
            shutil.copytree(node.logs, folder / "disks" / f"broker-{number}")
        shutil.copytree(cluster.tier, folder / "tier")
    return Disks(cluster, folder, rows)


def _write(cluster: Cluster) -> None:
    """Writes random records to both topics and ends all transactions."""
    seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}")  # noqa: T201  # shown if the test fails
    work = RandomWork(cluster.bootstrap, [(topic, 0) for topic in TOPICS], seed)
    sent = 0
    while sent < 1500:
        sent += work.step()
    work.finish()
    for topic in TOPICS:
        cluster.admin.wait_stable(topic)


def _options(disks: Disks, level: str, *, is_alone: bool) -> dict[str, str]:
    """Returns options for a scan of the tier and the disks. If `is_alone` is true, the scan reads
    only topic `two`, and only from the disks.
    """
    options = hybrid_options("", disks.folder / "tier", isolationLevel=level)
    del options["kafka.bootstrap.servers"]
    folder = str(disks.folder / "disks")
    if is_alone:
        return {**options, "path": folder, "layout": "kafka-logs", "subscribe": "two"}
    return {**options, "tailPath": folder, "subscribe": ",".join(TOPICS)}


@pytest.mark.parametrize("level", LEVELS)
def test_scan_of_disks_returns_rows_of_consumer_before_stop(disks: Disks, level: str) -> None:
    for is_alone in (False, True):
        options = _options(disks, level, is_alone=is_alone)
        topics = options["subscribe"].split(",")
        expected = {key: rows for key, rows in disks.rows[level].items() if key[0] in topics}
        assert_as_consumed(read_rows(make_plan(options), options), expected)


def test_plan_reports_dead_branch_as_orphan_and_skips_its_disk(disks: Disks) -> None:
    plan = make_plan(_options(disks, "read_uncommitted", is_alone=False))
    orphans = {p.topic: [str(orphan) for orphan in p.orphans] for p in plan.partitions}
    assert any("broker-2/two-0" in text and "abandoned branch" in text for text in orphans["two"])
    read = {p.topic: p.disks.folder for p in plan.partitions if p.disks is not None}
    assert "broker-3" in read["two"]
    assert "broker-2" not in read["three"]


def test_scan_of_disks_returns_rows_of_restarted_leaders(disks: Disks) -> None:
    plans = {level: make_plan(_options(disks, level, is_alone=False)) for level in LEVELS}
    rows = {
        level: read_rows(plan, _options(disks, level, is_alone=False))
        for level, plan in plans.items()
    }
    cluster = disks.cluster
    try:
        for number in (1, 3):  # broker 2 would follow and truncate its log
            cluster.nodes[number].start()
        cluster.wait_ready()
        wait_until(lambda: all(cluster.admin.leader(topic) > 0 for topic in TOPICS))
        for level, plan in plans.items():
            assert_as_consumed(
                rows[level], consume_rows_after_start(cluster.bootstrap, plan, level)
            )
    finally:
        for number in (3, 1):
            cluster.nodes[number].stop()
