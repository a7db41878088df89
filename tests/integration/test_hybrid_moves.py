"""Tests scans while the tier grows or changes during planning or reading."""

from __future__ import annotations

import shutil
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaException

from kts_source.errors import AccessDeniedError, DataLossError, TopicNotFoundError
from kts_source.options import parse_options
from kts_source.planning.broker_source import BrokerSource
from kts_source.read.read_settings import BatchLimits
from kts_source.read.read_task import run_task
from kts_source.store.local_store import LocalStore
from tests.golden_data import ISOLATION_LEVELS
from tests.integration.admin import wait_until
from tests.integration.hybrid import (
    assert_as_consumed,
    consume_rows,
    group_by_partition,
    hybrid_options,
    make_plan,
    read_rows,
)
from tests.integration.tier_mischief import list_tiered_segments
from tests.integration.worked_topic import Topic

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from kts_source.read.task_metrics import TaskMetrics
    from tests.integration.cluster import Cluster

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(420)]


def test_plan_ignores_segments_tiered_after_its_end_offsets_were_read(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic(cluster, "grows")
    topic.write(3)
    topic.settle()
    list_tier = BrokerSource.list_tier
    grown: list[int] = []

    def list_late(source: BrokerSource) -> None:
        topic.write(2)
        grown.append(topic.settle())
        list_tier(source)

    monkeypatch.setattr(BrokerSource, "list_tier", list_late)
    for level in ISOLATION_LEVELS:
        options = _options(cluster, topic.name, level)
        plan = make_plan(options)
        (partition,) = plan.partitions
        assert partition.stop < grown[-1]  # the tier already contains more than the plan
        assert all(not task.ranges for task in plan.tasks)
        assert_as_consumed(read_rows(plan, options), consume_rows(cluster.bootstrap, plan, level))


def test_scan_returns_all_rows_if_segments_are_tiered_during_the_scan(cluster: Cluster) -> None:
    topic = Topic(cluster, "moves")
    topic.write(2)
    topic.settle()
    while cluster.admin.offsets(topic.name).latest < cluster.admin.local_bases(1, "moves")[-1] + 9:
        topic.work.step()
    topic.finish()
    scans = {}
    for level in ISOLATION_LEVELS:
        options = _options(cluster, topic.name, level)
        options["kafka.max.partition.fetch.bytes"] = "1"
        plan = make_plan(options)
        assert plan.tasks[-1].ranges
        parsed = parse_options(options)
        rows = (row for task in plan.tasks for row in run_task(task, parsed, batches=_SMALL))
        scans[level] = plan, rows, [next(rows)]
    topic.write(2)
    end = topic.settle()
    for level, (plan, rows, batches) in scans.items():
        assert plan.partitions[0].stop <= end  # no planned offset is on the broker's disk
        with closing(rows):
            batches += rows
        expected = consume_rows(cluster.bootstrap, plan, level)
        assert_as_consumed(group_by_partition(batches), expected)


def test_scan_of_recreated_topic_ignores_tiered_segments_of_old_topic(
    cluster: Cluster, tmp_path: Path
) -> None:
    old = Topic(cluster, "twice")
    old.write(3)
    old.settle()
    tier_copy = tmp_path / "tier"
    shutil.copytree(cluster.tier, tier_copy)
    plans = {
        level: make_plan(_options(cluster, "twice", level, tier_copy)) for level in ISOLATION_LEVELS
    }
    old_rows = read_rows(
        plans["read_committed"], _options(cluster, "twice", "read_committed", tier_copy)
    )
    cluster.admin.delete_topic("twice")
    for level, plan in plans.items():
        with pytest.raises((DataLossError, TopicNotFoundError)):
            read_rows(
                plan, _options(cluster, "twice", level, tier_copy) | {"brokerFallback": "false"}
            )
    created: list[Topic] = []

    def create() -> bool:
        try:
            created.append(Topic(cluster, "twice"))
        except KafkaException:
            return False
        return True

    wait_until(create)
    (new,) = created
    new.write(2)
    new.settle()
    # Skip the old topic's segments: the broker deletes them in the background, the copy has them.
    (former,) = {segment.log.parent.name for segment in list_tiered_segments(tier_copy, "twice")}
    ignored = shutil.ignore_patterns(former)
    shutil.copytree(cluster.tier, tier_copy, dirs_exist_ok=True, ignore=ignored)
    ids = {segment.log.parent.name for segment in list_tiered_segments(tier_copy, "twice")}
    assert len(ids) == 2
    for level in ISOLATION_LEVELS:
        options = _options(cluster, "twice", level, tier_copy)
        fresh = make_plan(options)
        rows = read_rows(fresh, options)
        assert any(task.slices for task in fresh.tasks)
        assert_as_consumed(rows, consume_rows(cluster.bootstrap, fresh, level))
        assert rows != old_rows


def test_scan_reads_from_brokers_if_access_to_log_objects_is_denied(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic(cluster, "refused")
    topic.write(3)
    topic.settle()
    read = LocalStore.get_range

    def refuse(store: LocalStore, key: str, *arguments: Any, **more: Any) -> Any:  # noqa: ANN401
        if key.endswith(".log"):
            raise AccessDeniedError("the test denies reading logs", uri=store.uri(key))
        return read(store, key, *arguments, **more)

    for level in ISOLATION_LEVELS:
        options = _options(cluster, topic.name, level)
        plan = make_plan(options)
        slices = sum(len(task.slices) for task in plan.tasks)
        assert slices > 1
        ended: list[TaskMetrics] = []
        with monkeypatch.context() as patched:
            patched.setattr(LocalStore, "get_range", refuse)
            patched.setattr("kts_source.read.broker_rows._MAX_SAME_FAILURES", 1000)
            rows = read_rows(plan, options, ended)
        assert_as_consumed(rows, consume_rows(cluster.bootstrap, plan, level))
        assert sum(metrics.broker_fallbacks for metrics in ended) == slices


_SMALL = BatchLimits(50, 1 << 11)


def _options(cluster: Cluster, topic: str, level: str, tier: Path | None = None) -> dict[str, str]:
    return hybrid_options(
        cluster.bootstrap, tier or cluster.tier, subscribe=topic, isolationLevel=level
    )
