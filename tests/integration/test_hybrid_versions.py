"""Other versions of Kafka than the one of all other tests: the oldest or the newest, by chance."""

from __future__ import annotations

import os
import random
import shutil
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import BrokerError
from tests.golden_data import ISOLATION_LEVELS
from tests.integration.background import RandomWork
from tests.integration.cluster import BUSY, Cluster, ClusterSpec
from tests.integration.hybrid import (
    assert_as_consumed,
    consumed_rows,
    hybrid_options,
    planned,
    rows_of,
)
from tests.integration.kafka_jars import NEWEST_KAFKA, OLDEST_KAFKA
from tests.integration.tier_mischief import tiered_segments
from tests.needs import needs
from tests.quick import examples_source

if TYPE_CHECKING:
    from pathlib import Path

    from kts_source.read.task_metrics import TaskMetrics
    from tests.integration.hybrid import Rows

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

SEGMENTS = 6
VERSIONS = os.environ.get(
    "KTS_KAFKA_VERSIONS", examples_source(__name__).choice((OLDEST_KAFKA, NEWEST_KAFKA))
)
"""One a run; those that one names, separated by commas, are all tested."""


@pytest.mark.parametrize("version", VERSIONS.split(","))
def test_other_versions(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("java", "mvn")
    monkeypatch.setattr("kts_source.read.broker_rows._MAX_SAME_FAILURES", 1000)
    is_old = version.startswith("3.")
    spec = ClusterSpec(version=version, settings=BUSY)
    with Cluster(tmp_path / "cluster", spec) as cluster:
        # All on the broker's disk at first, where every version tells aborted transactions well.
        cluster.admin.create_topic("orders", local_retention_bytes="-2")
        _write(cluster)
        active = cluster.admin.local_bases(1, "orders")[-1]
        cluster.admin.wait_tiered("orders", 0, active)
        truth: dict[str, Rows] = {}
        for level in ISOLATION_LEVELS:
            for tier in (None, cluster.tier):
                options = _options(cluster, level, tier)
                plan = planned(options)
                truth[level] = consumed_rows(cluster.bootstrap, plan, level)
                assert_as_consumed(rows_of(plan, options), truth[level])
        assert truth["read_committed"] != truth["read_uncommitted"]
        early = planned(_options(cluster, "read_committed", None))

        cluster.admin.alter_topic("orders", local_retention_bytes="1")
        cluster.admin.wait_local_deleted("orders", 0, active)
        # What was planned from its disk, and is in its tier now.
        options = _options(cluster, "read_committed", None)
        if is_old:
            with pytest.raises(BrokerError, match=r"since the plan was made.*KAFKA-17801"):
                rows_of(early, options)
        else:
            assert_as_consumed(rows_of(early, options), truth["read_committed"])
        for level in ISOLATION_LEVELS:
            # The tier, with brokers for the rest, and where objects are gone after the plan.
            seen = shutil.copytree(cluster.tier, tmp_path / level)
            options = _options(cluster, level, seen)
            plan = planned(options)
            assert any(task.slices for task in plan.tasks)
            assert any(task.ranges for task in plan.tasks)
            assert_as_consumed(rows_of(plan, options), truth[level])
            # And of a part of it: transactions are open where it ends.
            bounded = options | {"endingOffsets": f'{{"orders":{{"0":{active // 2}}}}}'}
            half = {
                place: [row for row in rows if row.offset < active // 2]
                for place, rows in truth[level].items()
            }
            assert_as_consumed(rows_of(planned(bounded), bounded), half)
            for segment in tiered_segments(seen, "orders")[::2]:
                segment.log.unlink()
            ended: list[TaskMetrics] = []
            assert_as_consumed(rows_of(plan, options, ended), truth[level])
            assert any(metrics.broker_fallbacks for metrics in ended)
            # Brokers before 4.0 may return aborted records that they read from their tier.
            for tier in (None, seen):
                options = _options(cluster, level, tier)
                if is_old and level == "read_committed":
                    with pytest.raises(BrokerError, match="KAFKA-17801"):
                        planned(options)
                else:
                    assert_as_consumed(rows_of(planned(options), options), truth[level])


def _write(cluster: Cluster) -> None:
    seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}")  # noqa: T201  # shown where the test fails
    work = RandomWork(cluster.bootstrap, [("orders", 0)], seed)
    # Chance may abort nothing, and then both isolation levels see the same rows.
    aborted = work.filler.transactional("aborted")
    aborted.begin_transaction()
    work.filler.send(aborted, "orders", 0, 50)
    aborted.abort_transaction(30)
    while len(cluster.admin.local_bases(1, "orders")) < SEGMENTS:
        work.step()
    work.finish()
    cluster.admin.wait_stable("orders")


def _options(cluster: Cluster, level: str, tier: Path | None) -> dict[str, str]:
    return hybrid_options(cluster.bootstrap, tier, subscribe="orders", isolationLevel=level)
