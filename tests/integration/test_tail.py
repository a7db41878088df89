"""Tests scans of the tier and the disks of a stopped cluster.

The rows must equal the rows that a consumer received before the stop. With the option `endOfLog`,
they must equal the rows of the restarted cluster.
"""

from __future__ import annotations

import random
import secrets
import shutil
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import pytest

from kts_source.errors import DataLossError, InvalidOptionError
from kts_source.planning.describe import describe
from kts_source.store.joined_store import is_in_additional_store
from tests.integration.admin import wait_until
from tests.integration.broker import Broker
from tests.integration.cluster import Cluster, ClusterSpec
from tests.integration.filler import CODECS, Filler
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
from tests.integration.workload import TOPICS, fill
from tests.needs import needs

if TYPE_CHECKING:
    from pathlib import Path

    from kts_source.planning.scan_plan import ScanPlan

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(420)]

LEVELS = ("read_committed", "read_uncommitted")
EVERY = ",".join(TOPICS)
SETTINGS = {
    "replica.high.watermark.checkpoint.interval.ms": "300",
    "log.flush.offset.checkpoint.interval.ms": "300",
    "log.flush.start.offset.checkpoint.interval.ms": "300",
    "broker.session.timeout.ms": "30000",
}


class StoppedCluster(NamedTuple):
    """A stopped cluster, copies of its files, and its rows before the stop.

    Attributes:
        cluster: The stopped cluster, which can be restarted.
        tier: Folder with a copy of the cluster's tier.
        logs: Folder with a copy of the broker's log directory.
        rows: Rows that a consumer received before the stop, by isolation level and partition.
    """

    cluster: Cluster
    tier: Path
    logs: Path
    rows: dict[str, Rows]


@pytest.fixture(scope="module", params=["stopped", "killed"])
def stopped_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> StoppedCluster:
    """Fills a cluster until most of its records are tiered, and stops or kills it."""
    needs("java", "mvn")
    seed = secrets.randbits(32)
    print(f"seed {seed}")  # noqa: T201  # shown if a test fails
    source = random.Random(seed)
    folder = tmp_path_factory.mktemp(f"tail-{request.param}")
    cluster = Cluster(folder / "cluster", ClusterSpec(settings=SETTINGS))
    with cluster:
        node = cluster.nodes[1]
        broker = Broker(node.bootstrap, node.folder, cluster.tier, cluster.class_path, node.pid)
        fill(broker)
        filler = Filler(broker.bootstrap, seed)
        names = [f"tail {number}" for number in range(3)]
        writers = [filler.transactional(name) for name in names]
        for _ in range(15):
            writer = source.choice(writers)
            writer.begin_transaction()
            for _ in range(source.randint(1, 3)):
                partition = source.randrange(2)
                filler.send(writer, "txn", partition, source.randint(1, 60))
                filler.send(filler.plain(source.choice(CODECS)), "txn", partition, 20)
            (writer.commit_transaction if source.random() < 0.5 else writer.abort_transaction)(30)
        # Brokers may write markers after a commit returns, so wait for the markers before reading.
        cluster.admin.wait_stable("txn", 0)
        writers[0].begin_transaction()
        filler.send(writers[0], "txn", 0, 5)
        filler.send(filler.plain("zstd"), "plain", source.randrange(3), source.randint(1, 400))
        start = source.randint(1, 300)
        broker.delete_records({("plain", 1): start})
        rows = {}
        for level in LEVELS:
            options = hybrid_options(broker.bootstrap, subscribe=EVERY, isolationLevel=level)
            rows[level] = consume_rows(broker.bootstrap, make_plan(options), level)
        ends = {(p.topic, p.partition): p.stop for p in make_plan(options).partitions}
        wait_checkpointed(node, ends)
        starts = "log-start-offset-checkpoint"
        wait_until(lambda: node.checkpoint(starts).get(("plain", 1)) == start)
        node.stop() if request.param == "stopped" else node.kill()
        shutil.copytree(cluster.tier, folder / "tier")
        shutil.copytree(node.logs, folder / "logs")
    return StoppedCluster(cluster, folder / "tier", folder / "logs", rows)


def tail_options(stopped_cluster: StoppedCluster, level: str, **more: str) -> dict[str, str]:
    """Returns options that read all topics from the tier and, after its end, from the disks."""
    options = hybrid_options(
        "", stopped_cluster.tier, subscribe=EVERY, isolationLevel=level, **more
    )
    del options["kafka.bootstrap.servers"]
    return {"tailPath": str(stopped_cluster.logs), **options}


def count_disk_slices(plan: ScanPlan) -> Counter[bool]:
    """Returns how many slices `plan` reads from disks (key True) and from the tier (key False)."""
    return Counter(
        is_in_additional_store(task_slice.objects.log.key)
        for task in plan.tasks
        for task_slice in task.slices
    )


@pytest.mark.parametrize("level", LEVELS)
def test_scan_of_tier_and_disks_returns_rows_of_consumer(
    stopped_cluster: StoppedCluster, level: str
) -> None:
    for more in ({}, {"targetPartitionBytes": "9000"}):
        options = tail_options(stopped_cluster, level, **more)
        plan = make_plan(options)
        actual = read_rows(plan, options)
        assert_as_consumed(
            actual, {key: rows for key, rows in stopped_cluster.rows[level].items() if rows}
        )
        count = count_disk_slices(plan)
        assert count[False] > 10, count
        assert count[True] > 5, count


def test_describe_reports_same_tier_end_with_and_without_disks(
    stopped_cluster: StoppedCluster,
) -> None:
    options = tail_options(stopped_cluster, "read_uncommitted")
    with_disks = {p.partition: p for p in describe({**options}).partitions if p.topic == "plain"}
    del options["tailPath"]
    tier_only = {p.partition: p for p in describe(options).partitions if p.topic == "plain"}
    assert with_disks.keys() == tier_only.keys()
    assert any(with_disks[number].tier_end == tier_only[number].tier_end for number in with_disks)


@pytest.mark.parametrize("level", LEVELS)
def test_scan_with_end_of_log_option_returns_rows_of_restarted_cluster(
    stopped_cluster: StoppedCluster, level: str
) -> None:
    options = tail_options(stopped_cluster, level, endOfLog="true")
    plan = make_plan(options)
    actual = read_rows(plan, options)
    with stopped_cluster.cluster:
        assert_as_consumed(
            actual,
            _without_empty(
                consume_rows_after_start(stopped_cluster.cluster.bootstrap, plan, level)
            ),
        )


def _without_empty(rows_by_partition: Rows) -> Rows:
    return {key: rows for key, rows in rows_by_partition.items() if rows}


def test_stored_plan_of_disks_returns_same_rows_and_requires_tail_path(
    stopped_cluster: StoppedCluster, tmp_path: Path
) -> None:
    options = tail_options(stopped_cluster, "read_committed")
    plan = make_plan(options)
    file = tmp_path / "plan.json"
    file.write_text(plan.to_json())
    replay = {**options, "planFile": str(file)}
    assert read_rows(make_plan(replay), replay) == read_rows(plan, options)
    del replay["tailPath"]
    with pytest.raises(InvalidOptionError, match="tailPath"):
        make_plan(replay)


def test_partition_missing_on_disks_raises_data_loss_error(
    stopped_cluster: StoppedCluster, tmp_path: Path
) -> None:
    shutil.copytree(stopped_cluster.logs, tmp_path / "logs")
    shutil.rmtree(tmp_path / "logs" / "plain-0")
    options = {
        **tail_options(stopped_cluster, "read_committed"),
        "tailPath": str(tmp_path / "logs"),
    }
    with pytest.raises(DataLossError, match=r"plain-0.*tailPath"):
        make_plan(options)
    allowed = {**options, "failOnDataLoss": "false"}
    rows = read_rows(make_plan(allowed), allowed)["plain", 0]
    assert rows == stopped_cluster.rows["read_committed"]["plain", 0][: len(rows)]
    assert rows


def test_different_topic_ids_in_tier_and_on_disks_raise_invalid_option_error(
    stopped_cluster: StoppedCluster, tmp_path: Path
) -> None:
    shutil.copytree(stopped_cluster.logs, tmp_path / "logs")
    for path in (tmp_path / "logs").glob("plain-?/partition.metadata"):
        path.write_text("version: 0\ntopic_id: LWgrMmVrT0a__7a4SasuPA")
    options = {
        **tail_options(stopped_cluster, "read_committed"),
        "tailPath": str(tmp_path / "logs"),
    }
    with pytest.raises(InvalidOptionError, match=r"LWgrMmVrT0a__7a4SasuPA.*topicId"):
        make_plan(options)
