"""A cluster that is gone, from its tier and its disks: what its consumers had, and what it serves
when it is started again.
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
from kts_source.store.joined_store import is_beside
from tests.integration.admin import wait_until
from tests.integration.broker import Broker
from tests.integration.cluster import Cluster, ClusterSpec
from tests.integration.filler import CODECS, Filler
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


class Gone(NamedTuple):
    """What is left of a cluster, and what it served last.

    Attributes:
        cluster: It is not running, and may be started again.
        tier: A copy of its tier.
        logs: A copy of its log directory.
        rows: By isolation level and partition, before it ended.
    """

    cluster: Cluster
    tier: Path
    logs: Path
    rows: dict[str, Rows]


@pytest.fixture(scope="module", params=["stopped", "killed"])
def gone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Gone:
    """A cluster that has tiered most of its topics, has a tail, and ends."""
    needs("java", "mvn")
    seed = secrets.randbits(32)
    print(f"seed {seed}")  # noqa: T201  # shown where a test fails
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
        # Markers are written after a commit has returned, and none may be after the last look.
        cluster.admin.wait_stable("txn", 0)
        writers[0].begin_transaction()
        filler.send(writers[0], "txn", 0, 5)
        filler.send(filler.plain("zstd"), "plain", source.randrange(3), source.randint(1, 400))
        start = source.randint(1, 300)
        broker.delete_records({("plain", 1): start})
        rows = {}
        for level in LEVELS:
            options = hybrid_options(broker.bootstrap, subscribe=EVERY, isolationLevel=level)
            rows[level] = consumed_rows(broker.bootstrap, planned(options), level)
        wait_written_down(
            node, {(one.topic, one.partition): one.stop for one in planned(options).partitions}
        )
        starts = "log-start-offset-checkpoint"
        wait_until(lambda: node.checkpoint(starts).get(("plain", 1)) == start)
        node.stop() if request.param == "stopped" else node.kill()
        shutil.copytree(cluster.tier, folder / "tier")
        shutil.copytree(node.logs, folder / "logs")
    return Gone(cluster, folder / "tier", folder / "logs", rows)


def tail_options(gone: Gone, level: str, **more: str) -> dict[str, str]:
    """Options that read tier and disks."""
    options = hybrid_options("", gone.tier, subscribe=EVERY, isolationLevel=level, **more)
    del options["kafka.bootstrap.servers"]
    return {"tailPath": str(gone.logs), **options}


def kinds(plan: ScanPlan) -> Counter[bool]:
    """How many slices are of disks, and how many are not."""
    return Counter(is_beside(one.objects.log.key) for task in plan.tasks for one in task.slices)


@pytest.mark.parametrize("level", LEVELS)
def test_rows_are_those_that_a_consumer_had(gone: Gone, level: str) -> None:
    for more in ({}, {"targetPartitionBytes": "9000"}):
        options = tail_options(gone, level, **more)
        plan = planned(options)
        found = rows_of(plan, options)
        assert_as_consumed(found, {place: rows for place, rows in gone.rows[level].items() if rows})
        count = kinds(plan)
        assert count[False] > 10, count
        assert count[True] > 5, count


def test_a_tier_alone_ends_earlier(gone: Gone) -> None:
    options = tail_options(gone, "read_uncommitted")
    whole = {one.partition: one for one in describe({**options}).partitions if one.topic == "plain"}
    del options["tailPath"]
    alone = {one.partition: one for one in describe(options).partitions if one.topic == "plain"}
    assert whole.keys() == alone.keys()
    assert any(whole[number].tier_end == alone[number].tier_end for number in whole)


@pytest.mark.parametrize("level", LEVELS)
def test_rows_are_those_of_the_cluster_when_it_is_started_again(gone: Gone, level: str) -> None:
    options = tail_options(gone, level, endOfLog="true")
    plan = planned(options)
    found = rows_of(plan, options)
    with gone.cluster:
        assert_as_consumed(
            found, _filled(consumed_after_start(gone.cluster.bootstrap, plan, level))
        )


def _filled(rows: Rows) -> Rows:
    return {place: some for place, some in rows.items() if some}


def test_a_plan_file_reads_both_again_and_needs_both(gone: Gone, tmp_path: Path) -> None:
    options = tail_options(gone, "read_committed")
    plan = planned(options)
    file = tmp_path / "plan.json"
    file.write_text(plan.to_json())
    again = {**options, "planFile": str(file)}
    assert rows_of(planned(again), again) == rows_of(plan, options)
    del again["tailPath"]
    with pytest.raises(InvalidOptionError, match="tailPath"):
        planned(again)


def test_partition_without_a_disk_has_lost_its_tail(gone: Gone, tmp_path: Path) -> None:
    shutil.copytree(gone.logs, tmp_path / "logs")
    shutil.rmtree(tmp_path / "logs" / "plain-0")
    options = {**tail_options(gone, "read_committed"), "tailPath": str(tmp_path / "logs")}
    with pytest.raises(DataLossError, match=r"plain-0.*tailPath"):
        planned(options)
    allowed = {**options, "failOnDataLoss": "false"}
    found = rows_of(planned(allowed), allowed)["plain", 0]
    assert found == gone.rows["read_committed"]["plain", 0][: len(found)]
    assert found


def test_disks_of_another_incarnation_are_refused(gone: Gone, tmp_path: Path) -> None:
    shutil.copytree(gone.logs, tmp_path / "logs")
    for path in (tmp_path / "logs").glob("plain-?/partition.metadata"):
        path.write_text("version: 0\ntopic_id: LWgrMmVrT0a__7a4SasuPA")
    options = {**tail_options(gone, "read_committed"), "tailPath": str(tmp_path / "logs")}
    with pytest.raises(InvalidOptionError, match=r"LWgrMmVrT0a__7a4SasuPA.*topicId"):
        planned(options)
