"""The tier grows, or is another's, between the questions of a plan and while a scan reads."""

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
    by_partition,
    consumed_rows,
    hybrid_options,
    planned,
    rows_of,
)
from tests.integration.tier_mischief import tiered_segments
from tests.integration.worked_topic import Topic

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from kts_source.read.task_metrics import TaskMetrics
    from tests.integration.cluster import Cluster

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(420)]


def test_segments_are_uploaded_between_the_end_and_the_listing(
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
        plan = planned(options)
        (part,) = plan.partitions
        assert part.stop < grown[-1]  # the tier has passed the end of the plan
        assert all(not task.ranges for task in plan.tasks)
        assert_as_consumed(rows_of(plan, options), consumed_rows(cluster.bootstrap, plan, level))


def test_segments_move_into_the_tier_in_mid_scan(cluster: Cluster) -> None:
    topic = Topic(cluster, "moves")
    topic.write(2)
    topic.settle()
    while cluster.admin.offsets(topic.name).latest < cluster.admin.local_bases(1, "moves")[-1] + 9:
        topic.work.step()
    topic.finish()
    begun = {}
    for level in ISOLATION_LEVELS:
        options = _options(cluster, topic.name, level)
        options["kafka.max.partition.fetch.bytes"] = "1"
        plan = planned(options)
        assert plan.tasks[-1].ranges
        parsed = parse_options(options)
        rows = (row for task in plan.tasks for row in run_task(task, parsed, batches=_SMALL))
        begun[level] = plan, rows, [next(rows)]
    topic.write(2)
    end = topic.settle()
    for level, (plan, rows, batches) in begun.items():
        assert plan.partitions[0].stop <= end  # no planned offset is on the broker's disk
        with closing(rows):
            batches += rows
        expected = consumed_rows(cluster.bootstrap, plan, level)
        assert_as_consumed(by_partition(batches), expected)


def test_two_incarnations_of_a_topic_are_in_the_tier(cluster: Cluster, tmp_path: Path) -> None:
    old = Topic(cluster, "twice")
    old.write(3)
    old.settle()
    seen = tmp_path / "tier"
    shutil.copytree(cluster.tier, seen)
    plans = {level: planned(_options(cluster, "twice", level, seen)) for level in ISOLATION_LEVELS}
    old_rows = rows_of(plans["read_committed"], _options(cluster, "twice", "read_committed", seen))
    cluster.admin.delete_topic("twice")
    for level, plan in plans.items():
        with pytest.raises((DataLossError, TopicNotFoundError)):
            rows_of(plan, _options(cluster, "twice", level, seen) | {"brokerFallback": "false"})
    made: list[Topic] = []

    def make() -> bool:
        try:
            made.append(Topic(cluster, "twice"))
        except KafkaException:
            return False
        return True

    wait_until(make)
    (new,) = made
    new.write(2)
    new.settle()
    # What is left of the old one is deleted in the background.
    (former,) = {segment.log.parent.name for segment in tiered_segments(seen, "twice")}
    ignored = shutil.ignore_patterns(former)
    shutil.copytree(cluster.tier, seen, dirs_exist_ok=True, ignore=ignored)
    ids = {segment.log.parent.name for segment in tiered_segments(seen, "twice")}
    assert len(ids) == 2
    for level in ISOLATION_LEVELS:
        options = _options(cluster, "twice", level, seen)
        fresh = planned(options)
        found = rows_of(fresh, options)
        assert any(task.slices for task in fresh.tasks)
        assert_as_consumed(found, consumed_rows(cluster.bootstrap, fresh, level))
        assert found != old_rows


def test_objects_that_the_reader_may_not_read(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic(cluster, "refused")
    topic.write(3)
    topic.settle()
    read = LocalStore.get_range

    def refuse(store: LocalStore, key: str, *given: Any, **more: Any) -> Any:  # noqa: ANN401
        if key.endswith(".log"):
            raise AccessDeniedError("may not be read", uri=store.uri(key))
        return read(store, key, *given, **more)

    for level in ISOLATION_LEVELS:
        options = _options(cluster, topic.name, level)
        plan = planned(options)
        slices = sum(len(task.slices) for task in plan.tasks)
        assert slices > 1
        ended: list[TaskMetrics] = []
        with monkeypatch.context() as patched:
            patched.setattr(LocalStore, "get_range", refuse)
            patched.setattr("kts_source.read.broker_rows._MAX_SAME_FAILURES", 1000)
            found = rows_of(plan, options, ended)
        assert_as_consumed(found, consumed_rows(cluster.bootstrap, plan, level))
        assert sum(metrics.broker_fallbacks for metrics in ended) == slices


_SMALL = BatchLimits(50, 1 << 11)


def _options(cluster: Cluster, topic: str, level: str, tier: Path | None = None) -> dict[str, str]:
    return hybrid_options(
        cluster.bootstrap, tier or cluster.tier, subscribe=topic, isolationLevel=level
    )
