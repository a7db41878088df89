"""Tests scans with the oldest or the newest supported Kafka version, chosen at random."""

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
    consume_rows,
    hybrid_options,
    make_plan,
    read_rows,
)
from tests.integration.kafka_jars import NEWEST_KAFKA, OLDEST_KAFKA
from tests.integration.tier_mischief import list_tiered_segments
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
"""Versions to test, separated by commas; one random version by default."""


def _rows_below(rows_by_partition: Rows, stop: int) -> Rows:
    return {
        partition: [row for row in rows if row.offset < stop]
        for partition, rows in rows_by_partition.items()
    }


@pytest.mark.parametrize("version", VERSIONS.split(","))
def test_scan_with_oldest_or_newest_kafka_returns_rows_of_consumer_or_raises(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("java", "mvn")
    monkeypatch.setattr("kts_source.read.broker_rows._MAX_SAME_FAILURES", 1000)
    is_old = version.startswith("3.")
    spec = ClusterSpec(version=version, settings=BUSY)
    with Cluster(tmp_path / "cluster", spec) as cluster:
        # At first, all segments are on the broker's disk. All versions report aborted transactions
        # of such segments correctly.
        cluster.admin.create_topic("orders", local_retention_bytes="-2")
        _write(cluster)
        active = cluster.admin.local_bases(1, "orders")[-1]
        cluster.admin.wait_tiered("orders", 0, active)
        expected: dict[str, Rows] = {}
        for level in ISOLATION_LEVELS:
            for tier in (None, cluster.tier):
                options = _options(cluster, level, tier)
                plan = make_plan(options)
                expected[level] = consume_rows(cluster.bootstrap, plan, level)
                assert_as_consumed(read_rows(plan, options), expected[level])
        assert expected["read_committed"] != expected["read_uncommitted"]
        early = make_plan(_options(cluster, "read_committed", None))

        cluster.admin.alter_topic("orders", local_retention_bytes="1")
        cluster.admin.wait_local_deleted("orders", 0, active)
        # When the plan was made, its offsets were on disk. Now they are only in the tier.
        options = _options(cluster, "read_committed", None)
        if is_old:
            with pytest.raises(BrokerError, match=r"since the plan was made.*KAFKA-17801"):
                read_rows(early, options)
        else:
            assert_as_consumed(read_rows(early, options), expected["read_committed"])
        for level in ISOLATION_LEVELS:
            # Read from tier and brokers; later also with objects missing.
            tier_copy = shutil.copytree(cluster.tier, tmp_path / level)
            options = _options(cluster, level, tier_copy)
            plan = make_plan(options)
            assert any(task.slices for task in plan.tasks)
            assert any(task.ranges for task in plan.tasks)
            assert_as_consumed(read_rows(plan, options), expected[level])
            # Read a range that ends inside transactions.
            bounded = options | {"endingOffsets": f'{{"orders":{{"0":{active // 2}}}}}'}
            expected_half = _rows_below(expected[level], active // 2)
            assert_as_consumed(read_rows(make_plan(bounded), bounded), expected_half)
            for segment in list_tiered_segments(tier_copy, "orders")[::2]:
                segment.log.unlink()
            ended: list[TaskMetrics] = []
            assert_as_consumed(read_rows(plan, options, ended), expected[level])
            assert any(metrics.broker_fallbacks for metrics in ended)
            # From the tier, brokers before 4.0 may return records of aborted transactions.
            for tier in (None, tier_copy):
                options = _options(cluster, level, tier)
                if is_old and level == "read_committed":
                    with pytest.raises(BrokerError, match="KAFKA-17801"):
                        make_plan(options)
                else:
                    assert_as_consumed(read_rows(make_plan(options), options), expected[level])


def _write(cluster: Cluster) -> None:
    seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}")  # noqa: T201  # shown if the test fails
    work = RandomWork(cluster.bootstrap, [("orders", 0)], seed)
    # Without an aborted transaction, both isolation levels would return the same rows.
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
