"""Tests scans when leaders change or elections lose records before, during or after planning."""

from __future__ import annotations

import os
import random
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from kts_source.broker.connection import Connection
from kts_source.errors import DataLossError
from kts_source.options import parse_options
from kts_source.read.read_settings import BatchLimits
from kts_source.read.read_task import run_task
from tests.integration.admin import wait_until
from tests.integration.background import RandomWork
from tests.integration.cluster import Cluster, ClusterSpec
from tests.integration.filler import Filler
from tests.integration.hybrid import (
    assert_as_consumed,
    consume_rows,
    group_by_partition,
    hybrid_options,
    make_plan,
    read_rows,
)
from tests.integration.lost_branches import elect_unclean, lose_branch
from tests.needs import needs
from tests.quick import examples_source

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

    from kts_source.planning.scan_plan import ScanPlan
    from tests.integration.admin import Admin

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

LEVELS = ("read_committed", "read_uncommitted")
KEPT = "-2"  # uses the value of retention.bytes
FAIL_OVERS = [(is_clean, is_quiet) for is_clean in (True, False) for is_quiet in (True, False)]
# Each run tests a random subset of these combinations; test ids show which.
CELLS = examples_source(__name__).sample(FAIL_OVERS, int(os.environ.get("KTS_FAIL_OVERS", "2")))


@pytest.fixture(scope="module")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Runs a cluster of one node."""
    needs("java", "mvn")
    with Cluster(tmp_path_factory.mktemp("one") / "cluster") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def two_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Runs a cluster with two brokers for user topics, each in a separate rack."""
    needs("java", "mvn")
    spec = ClusterSpec(replicas=2, has_racks=True)
    with Cluster(tmp_path_factory.mktemp("two") / "cluster", spec) as cluster:
        yield cluster


def test_scan_after_lost_branch_returns_rows_of_consumer(one_node: Cluster) -> None:
    one_node.admin.create_topic("lost", local_retention_bytes=KEPT)
    # Begin with records outside of transactions, so that no lost marker leaves one open.
    filler = Filler(one_node.bootstrap, _seed())
    filler.send(filler.plain("lz4"), "lost", 0, 400)
    _write(one_node, "lost", segments=3)
    _wait_tiered(one_node.admin, "lost")
    before = {level: make_plan(_options(one_node, "lost", level)) for level in LEVELS}
    old_end = before["read_uncommitted"].partitions[0].stop

    new_end = lose_branch(one_node, "lost")
    assert new_end < old_end
    for level, plan in before.items():
        with pytest.raises(DataLossError, match=r"unclean election|was deleted"):
            read_rows(plan, _options(one_node, "lost", level))
    # At first, the tier contains only the lost branch.
    _write(one_node, "lost", records=200)
    _assert_equal(one_node, "lost")
    # Afterwards, the tier also contains the new branch.
    _write(one_node, "lost", segments=3)
    _wait_tiered(one_node.admin, "lost")
    for plan in _assert_equal(one_node, "lost"):
        assert any(task.slices for task in plan.tasks)
        skipped = plan.partitions[0].surviving.skipped
        assert any(interval.segment.stop_offset > new_end for interval in skipped)


def test_scan_after_unclean_election_returns_rows_of_consumer(
    two_brokers: Cluster, tmp_path: Path
) -> None:
    two_brokers.admin.create_topic("unclean", replicas=(2, 3), local_retention_bytes=KEPT)
    _write(two_brokers, "unclean", segments=3)
    plans: dict[str, ScanPlan] = {}

    def write_lost_branch() -> None:
        _write(two_brokers, "unclean", segments=2)
        _wait_tiered(two_brokers.admin, "unclean")
        plans.update(
            {level: make_plan(_options(two_brokers, "unclean", level)) for level in LEVELS}
        )

    old, _ = elect_unclean(two_brokers, "unclean", write_lost_branch)
    for level, plan in plans.items():
        with pytest.raises(DataLossError, match="unclean election"):
            read_rows(plan, _options(two_brokers, "unclean", level))
        _replay_fails(plan, _options(two_brokers, "unclean", level), tmp_path)
    _assert_equal(two_brokers, "unclean")
    # Write until the new branch is longer than the lost branch.
    _write(two_brokers, "unclean", segments=4)
    for level, plan in plans.items():
        with pytest.raises(DataLossError, match="unclean election"):
            read_rows(plan, _options(two_brokers, "unclean", level))
        _replay_fails(plan, _options(two_brokers, "unclean", level), tmp_path)
    _assert_equal(two_brokers, "unclean")
    _wait_tiered(two_brokers.admin, "unclean")
    for plan in _assert_equal(two_brokers, "unclean"):
        assert any(task.slices for task in plan.tasks)
    # Old plans still fail after tiering, because their rows are no longer in the topic.
    for level, plan in plans.items():
        _replay_fails(plan, _options(two_brokers, "unclean", level), tmp_path)
    two_brokers.start_node(old)


@pytest.mark.parametrize(("is_clean", "is_quiet"), CELLS)
def test_scan_continues_after_leader_stops_or_dies(
    two_brokers: Cluster, is_clean: bool, is_quiet: bool, tmp_path: Path
) -> None:
    topic = f"moves-{is_clean}-{is_quiet}".lower()
    two_brokers.admin.create_topic(topic, replicas=(2, 3), local_retention_bytes=KEPT)
    _write(two_brokers, topic, segments=12)
    if is_quiet:
        # The leader during planning writes no records in its epoch, so its successor does not
        # know that epoch.
        two_brokers.start_node(_end_leader(two_brokers, topic, is_clean=True))
    plans = {
        level: make_plan(_options(two_brokers, topic, level, is_slow=True)) for level in LEVELS
    }
    scans = {}
    for level, plan in plans.items():
        (task,) = plan.tasks
        options = parse_options(_options(two_brokers, topic, level, is_slow=True))
        rows = run_task(task, options, batches=BatchLimits(100, 1 << 12))
        scans[level] = rows, [next(rows)]
    expected = {
        level: consume_rows(two_brokers.bootstrap, plan, level) for level, plan in plans.items()
    }
    leader = _end_leader(two_brokers, topic, is_clean=is_clean)
    for level, (rows, batches) in scans.items():
        with closing(rows):
            batches += rows
        assert_as_consumed(group_by_partition(batches), expected[level])
    two_brokers.start_node(leader)
    # Plans from before the election can still be read.
    for level, plan in plans.items():
        assert_as_consumed(read_rows(plan, _options(two_brokers, topic, level)), expected[level])
        stored = _stored(plan, _options(two_brokers, topic, level, is_slow=True), tmp_path)
        again = make_plan(stored)
        assert again.tasks == plan.tasks
        assert_as_consumed(read_rows(again, stored), expected[level])


@pytest.mark.parametrize("dies", [False, True])
def test_scan_fetches_from_follower_in_its_rack_until_the_follower_dies(
    two_brokers: Cluster, dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"racks-{dies}".lower()
    two_brokers.admin.create_topic(topic, replicas=(2, 3), local_retention_bytes=KEPT)
    _write(two_brokers, topic, segments=6)
    wait_until(lambda: two_brokers.admin.in_sync(topic) == [2, 3])
    leader = two_brokers.admin.leader(topic)
    (follower,) = {2, 3} - {leader}
    send = Connection.send
    brokers: list[str] = []

    def record_fetch(connection: Connection, request: Any, **more: Any) -> Any:  # noqa: ANN401
        if type(request).__name__ == "FetchRequest":
            brokers.append(connection._place)
        return send(connection, request, **more)

    monkeypatch.setattr(Connection, "send", record_fetch)
    for level in LEVELS[:1] if dies else LEVELS:
        options = _options(two_brokers, topic, level, is_slow=True)
        options["kafka.client.rack"] = f"rack-{follower}"
        plan = make_plan(options)
        expected = consume_rows(two_brokers.bootstrap, plan, level)
        brokers.clear()
        (task,) = plan.tasks
        rows = run_task(task, parse_options(options), batches=BatchLimits(100, 1 << 12))
        batches = [next(rows)]
        assert set(brokers) == {
            two_brokers.nodes[leader].bootstrap,
            two_brokers.nodes[follower].bootstrap,
        }
        assert (
            brokers.count(two_brokers.nodes[leader].bootstrap) == 1
        )  # it returned the follower as the preferred replica
        if dies:
            two_brokers.nodes[follower].kill()
        with closing(rows):
            batches += rows
        assert_as_consumed(group_by_partition(batches), expected)
        assert (brokers[-1] == two_brokers.nodes[leader].bootstrap) is dies
        if dies:
            two_brokers.start_node(follower)
            wait_until(lambda: two_brokers.admin.in_sync(topic) == [2, 3])


def _stored(plan: ScanPlan, options: dict[str, str], folder: Path) -> dict[str, str]:
    """Writes `plan` to a file. Returns `options` with the option `planFile` added, which makes
    scans use the file.
    """
    file = folder / "plan.json"
    file.write_text(plan.to_json())
    return {**options, "planFile": str(file)}


def _replay_fails(plan: ScanPlan, options: dict[str, str], folder: Path) -> None:
    with pytest.raises(DataLossError, match="unclean election"):
        make_plan(_stored(plan, options, folder))


def _end_leader(cluster: Cluster, topic: str, *, is_clean: bool) -> int:
    """Stops the leader, or kills it if `is_clean` is false. Waits for a new leader and returns the
    id of the old leader.
    """
    wait_until(lambda: cluster.admin.in_sync(topic) == [2, 3])
    leader = cluster.admin.leader(topic)
    node = cluster.nodes[leader]
    node.stop() if is_clean else node.kill()
    wait_until(lambda: cluster.admin.leader(topic) not in (leader, -1))
    return leader


def _options(cluster: Cluster, topic: str, level: str, *, is_slow: bool = False) -> dict[str, str]:
    more = {"kafka.max.partition.fetch.bytes": "3000"} if is_slow else {}
    # To make a scan slow, read only from brokers, with small responses.
    tier = None if is_slow else cluster.tier
    return hybrid_options(cluster.bootstrap, tier, subscribe=topic, isolationLevel=level, **more)


def _assert_equal(cluster: Cluster, topic: str) -> list[ScanPlan]:
    plans = []
    for level in LEVELS:
        options = _options(cluster, topic, level)
        plans.append(make_plan(options))
        expected = consume_rows(cluster.bootstrap, plans[-1], level)
        assert_as_consumed(read_rows(plans[-1], options), expected)
    return plans


def _write(cluster: Cluster, topic: str, *, segments: int = 0, records: int = 0) -> None:
    """Writes records until there are at least `records` new records and `segments` new segments.

    Ends all transactions.
    """
    work = RandomWork(cluster.bootstrap, [(topic, 0)], _seed())
    leader = cluster.admin.leader(topic)
    min_segments = len(cluster.admin.local_bases(leader, topic)) + segments
    sent = 0
    while sent < records or len(cluster.admin.local_bases(leader, topic)) < min_segments:
        sent += work.step()
    work.finish()
    cluster.admin.wait_stable(topic)  # brokers write markers after the producer has its answer


def _wait_tiered(admin: Admin, topic: str) -> None:
    """Waits until all closed segments are tiered."""
    active = admin.local_bases(admin.leader(topic), topic)[-1]
    admin.wait_tiered(topic, 0, active)


def _seed() -> int:
    seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}")  # noqa: T201  # shown if the test fails
    return seed
