"""Leaders that change and histories that are lost, before a scan, during it and behind its plan."""

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
from kts_source.read.run_task import run_task
from tests.integration.admin import wait_until
from tests.integration.background import RandomWork
from tests.integration.cluster import Cluster, ClusterSpec
from tests.integration.filler import Filler
from tests.integration.hybrid import (
    assert_as_consumed,
    by_partition,
    consumed_rows,
    hybrid_options,
    planned,
    rows_of,
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
KEPT = "-2"  # as long as the whole log
FAIL_OVERS = [(is_clean, is_quiet) for is_clean in (True, False) for is_quiet in (True, False)]
# A few of them in each run; the names of the tests say which.
CELLS = examples_source(__name__).sample(FAIL_OVERS, int(os.environ.get("KTS_FAIL_OVERS", "2")))


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of one node."""
    needs("java", "mvn")
    with Cluster(tmp_path_factory.mktemp("one") / "cluster") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with two brokers that hold user topics, each in a rack of its own."""
    needs("java", "mvn")
    spec = ClusterSpec(replicas=2, has_racks=True)
    with Cluster(tmp_path_factory.mktemp("two") / "cluster", spec) as cluster:
        yield cluster


def test_a_branch_that_one_node_lost(one: Cluster) -> None:
    one.admin.create_topic("lost", local_retention_bytes=KEPT)
    # No transaction may lose its marker: it would stay open for ever.
    filler = Filler(one.bootstrap, _seed())
    filler.send(filler.plain("lz4"), "lost", 0, 400)
    _write(one, "lost", segments=3)
    _wait_tiered(one.admin, "lost")
    before = {level: planned(_options(one, "lost", level)) for level in LEVELS}
    old_end = before["read_uncommitted"].partitions[0].stop

    new_end = lose_branch(one, "lost")
    assert new_end < old_end
    for level, plan in before.items():
        with pytest.raises(DataLossError, match=r"unclean election|is gone"):
            rows_of(plan, _options(one, "lost", level))
    # The tier has the lost branch only.
    _write(one, "lost", records=200)
    _assert_equal(one, "lost")
    # And now its successor beside it.
    _write(one, "lost", segments=3)
    _wait_tiered(one.admin, "lost")
    for plan in _assert_equal(one, "lost"):
        assert any(task.slices for task in plan.tasks)
        skipped = plan.partitions[0].surviving.skipped
        assert any(one.segment.stop_offset > new_end for one in skipped)


def test_an_unclean_election(two: Cluster, tmp_path: Path) -> None:
    two.admin.create_topic("unclean", replicas=(2, 3), local_retention_bytes=KEPT)
    _write(two, "unclean", segments=3)
    plans: dict[str, ScanPlan] = {}

    def lost() -> None:
        _write(two, "unclean", segments=2)
        _wait_tiered(two.admin, "unclean")
        plans.update({level: planned(_options(two, "unclean", level)) for level in LEVELS})

    old, _ = elect_unclean(two, "unclean", lost)
    for level, plan in plans.items():
        with pytest.raises(DataLossError, match="unclean election"):
            rows_of(plan, _options(two, "unclean", level))
        _replay_fails(plan, _options(two, "unclean", level), tmp_path)
    _assert_equal(two, "unclean")
    # So many that the new branch is longer than the lost one.
    _write(two, "unclean", segments=4)
    for level, plan in plans.items():
        with pytest.raises(DataLossError, match="unclean election"):
            rows_of(plan, _options(two, "unclean", level))
        _replay_fails(plan, _options(two, "unclean", level), tmp_path)
    _assert_equal(two, "unclean")
    _wait_tiered(two.admin, "unclean")
    for plan in _assert_equal(two, "unclean"):
        assert any(task.slices for task in plan.tasks)
    # A plan of the tier alone is of no use either: its rows were never the topic's, or are no more.
    for level, plan in plans.items():
        _replay_fails(plan, _options(two, "unclean", level), tmp_path)
    two.start_node(old)


@pytest.mark.parametrize(("is_clean", "is_quiet"), CELLS)
def test_the_leader_ends_in_mid_scan(
    two: Cluster, is_clean: bool, is_quiet: bool, tmp_path: Path
) -> None:
    topic = f"moves-{is_clean}-{is_quiet}".lower()
    two.admin.create_topic(topic, replicas=(2, 3), local_retention_bytes=KEPT)
    _write(two, topic, segments=12)
    if is_quiet:
        # The leader of the plan's epoch has written nothing, so the next one never heard of it.
        two.start_node(_end_leader(two, topic, is_clean=True))
    plans = {level: planned(_options(two, topic, level, slow=True)) for level in LEVELS}
    begun = {}
    for level, plan in plans.items():
        (task,) = plan.tasks
        options = parse_options(_options(two, topic, level, slow=True))
        rows = run_task(task, options, batches=BatchLimits(100, 1 << 12))
        begun[level] = rows, [next(rows)]
    expected = {level: consumed_rows(two.bootstrap, plan, level) for level, plan in plans.items()}
    leader = _end_leader(two, topic, is_clean=is_clean)
    for level, (rows, batches) in begun.items():
        with closing(rows):
            batches += rows
        assert_as_consumed(by_partition(batches), expected[level])
    two.start_node(leader)
    # A plan of the former leader's time is read again in another's.
    for level, plan in plans.items():
        assert_as_consumed(rows_of(plan, _options(two, topic, level)), expected[level])
        stored = _stored(plan, _options(two, topic, level, slow=True), tmp_path)
        again = planned(stored)
        assert again.tasks == plan.tasks
        assert_as_consumed(rows_of(again, stored), expected[level])


@pytest.mark.parametrize("dies", [False, True])
def test_a_follower_in_the_reader_s_rack(
    two: Cluster, dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"racks-{dies}".lower()
    two.admin.create_topic(topic, replicas=(2, 3), local_retention_bytes=KEPT)
    _write(two, topic, segments=6)
    wait_until(lambda: two.admin.in_sync(topic) == [2, 3])
    leader = two.admin.leader(topic)
    (follower,) = {2, 3} - {leader}
    send = Connection.send
    asked: list[str] = []

    def noted(connection: Connection, request: Any, **more: Any) -> Any:  # noqa: ANN401
        if type(request).__name__ == "FetchRequest":
            asked.append(connection._place)
        return send(connection, request, **more)

    monkeypatch.setattr(Connection, "send", noted)
    for level in LEVELS[:1] if dies else LEVELS:
        options = _options(two, topic, level, slow=True)
        options["kafka.client.rack"] = f"rack-{follower}"
        plan = planned(options)
        expected = consumed_rows(two.bootstrap, plan, level)
        asked.clear()
        (task,) = plan.tasks
        rows = run_task(task, parse_options(options), batches=BatchLimits(100, 1 << 12))
        batches = [next(rows)]
        assert set(asked) == {two.nodes[leader].bootstrap, two.nodes[follower].bootstrap}
        assert asked.count(two.nodes[leader].bootstrap) == 1  # it named the follower
        if dies:
            two.nodes[follower].kill()
        with closing(rows):
            batches += rows
        assert_as_consumed(by_partition(batches), expected)
        assert (asked[-1] == two.nodes[leader].bootstrap) is dies
        if dies:
            two.start_node(follower)
            wait_until(lambda: two.admin.in_sync(topic) == [2, 3])


def _stored(plan: ScanPlan, options: dict[str, str], folder: Path) -> dict[str, str]:
    """Options that read a plan from a file."""
    file = folder / "plan.json"
    file.write_text(plan.to_json())
    return {**options, "planFile": str(file)}


def _replay_fails(plan: ScanPlan, options: dict[str, str], folder: Path) -> None:
    with pytest.raises(DataLossError, match="unclean election"):
        planned(_stored(plan, options, folder))


def _end_leader(cluster: Cluster, topic: str, *, is_clean: bool) -> int:
    """Ends the leader, which is returned; the other replica, which has everything, leads on."""
    wait_until(lambda: cluster.admin.in_sync(topic) == [2, 3])
    leader = cluster.admin.leader(topic)
    node = cluster.nodes[leader]
    node.stop() if is_clean else node.kill()
    wait_until(lambda: cluster.admin.leader(topic) not in (leader, -1))
    return leader


def _options(cluster: Cluster, topic: str, level: str, *, slow: bool = False) -> dict[str, str]:
    more = {"kafka.max.partition.fetch.bytes": "3000"} if slow else {}
    # Slowly: from brokers alone.
    tier = None if slow else cluster.tier
    return hybrid_options(cluster.bootstrap, tier, subscribe=topic, isolationLevel=level, **more)


def _assert_equal(cluster: Cluster, topic: str) -> list[ScanPlan]:
    plans = []
    for level in LEVELS:
        options = _options(cluster, topic, level)
        plans.append(planned(options))
        expected = consumed_rows(cluster.bootstrap, plans[-1], level)
        assert_as_consumed(rows_of(plans[-1], options), expected)
    return plans


def _write(cluster: Cluster, topic: str, *, segments: int = 0, records: int = 0) -> None:
    """Writes random work, its transactions ended, for so many more segments or records."""
    work = RandomWork(cluster.bootstrap, [(topic, 0)], _seed())
    leader = cluster.admin.leader(topic)
    wanted = len(cluster.admin.local_bases(leader, topic)) + segments
    sent = 0
    while sent < records or len(cluster.admin.local_bases(leader, topic)) < wanted:
        sent += work.step()
    work.finish()
    cluster.admin.wait_stable(topic)  # brokers write markers after the producer has its answer


def _wait_tiered(admin: Admin, topic: str) -> None:
    """Waits until all closed segments are tiered."""
    active = admin.local_bases(admin.leader(topic), topic)[-1]
    admin.wait_tiered(topic, 0, active)


def _seed() -> int:
    seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}")  # noqa: T201  # shown where the test fails
    return seed
