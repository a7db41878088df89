"""Tests that scans of tier and broker return the same rows as a consumer."""

from __future__ import annotations

import random
import shutil
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from kts_source.errors import (
    BrokerUnavailableError,
    DataLossError,
    InvalidOptionError,
    OffsetOutOfRangeError,
    StoreError,
    TopicNotFoundError,
)
from kts_source.options import parse_options
from kts_source.planning.describe import describe
from kts_source.read.read_task import run_task
from tests.integration.broker import running_broker
from tests.integration.hybrid import (
    assert_as_consumed,
    consume_rows,
    hybrid_options,
    make_plan,
    read_rows,
)
from tests.integration.workload import TOPICS, TierFacts, fill
from tests.needs import needs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kts_source.read.task_metrics import TaskMetrics
    from tests.integration.broker import Broker

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(420)]

LEVELS = ("read_committed", "read_uncommitted")
EVERY = ",".join(TOPICS)


@pytest.fixture(scope="module")
def filled_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, TierFacts]]:
    """Runs a broker that has tiered all closed segments.

    Yields two values: the broker and its offsets.
    """
    needs("java", "mvn")
    with running_broker(tmp_path_factory.mktemp("hybrid") / "broker") as broker:
        yield broker, fill(broker)


@pytest.mark.parametrize("level", LEVELS)
def test_scan_of_tier_and_brokers_returns_rows_of_consumer(
    filled_broker: tuple[Broker, TierFacts], level: str
) -> None:
    broker, _ = filled_broker
    plans = []
    for more in ({}, {"minPartitions": "40"}, {"maxRecordsPerPartition": "97"}):
        options = hybrid_options(
            broker.bootstrap, broker.tier, subscribe=EVERY, isolationLevel=level, **more
        )
        plan = make_plan(options)
        assert_as_consumed(read_rows(plan, options), consume_rows(broker.bootstrap, plan, level))
        plans.append(plan)
    # Each of the three plans reads from the tier and from brokers.
    assert all(any(task.slices for task in plan.tasks) for plan in plans)
    assert all(any(task.ranges for task in plan.tasks) for plan in plans)
    assert len(plans[1].tasks) > len(plans[0].tasks)


@pytest.mark.parametrize("level", LEVELS)
def test_scan_of_brokers_alone_returns_rows_of_consumer(
    filled_broker: tuple[Broker, TierFacts], level: str
) -> None:
    broker, facts = filled_broker
    options = hybrid_options(broker.bootstrap, subscribe=EVERY, isolationLevel=level)
    plan = make_plan(options)
    assert_as_consumed(read_rows(plan, options), consume_rows(broker.bootstrap, plan, level))
    starts = {(p.topic, p.partition): p.start for p in plan.partitions}
    assert starts == {key: facts.starts[key] for key in starts}


@pytest.mark.parametrize("level", LEVELS)
def test_scan_with_objects_missing_before_listing_returns_all_rows(
    filled_broker: tuple[Broker, TierFacts], tmp_path: Path, level: str
) -> None:
    broker, _ = filled_broker
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201  # shown if the test fails
    choose = random.Random(seed)
    tier = _copy(broker.tier, tmp_path)
    files = sorted(tier.rglob("*-*"))
    # Keep transaction indexes: readers of this layout cannot notice that one is missing.
    removable = [path for path in files if path.is_file() and path.suffix != ".txnindex"]
    for path in choose.sample(removable, 12):
        path.unlink()
    options = hybrid_options(broker.bootstrap, tier, subscribe=EVERY, isolationLevel=level)
    plan = make_plan(options)
    assert_as_consumed(read_rows(plan, options), consume_rows(broker.bootstrap, plan, level))


@pytest.mark.parametrize("level", LEVELS)
def test_scan_with_objects_missing_after_planning_reads_from_brokers(
    filled_broker: tuple[Broker, TierFacts],
    tmp_path: Path,
    level: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, _ = filled_broker
    monkeypatch.setattr("kts_source.read.broker_rows._MAX_SAME_FAILURES", 1000)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201  # shown if the test fails
    choose = random.Random(seed)
    tier = _copy(broker.tier, tmp_path)
    options = hybrid_options(
        broker.bootstrap,
        tier,
        subscribe=EVERY,
        isolationLevel=level,
        targetPartitionBytes=choose.choice(("3000", "7000", "1000000")),
    )
    plan = make_plan(options)
    logs = sorted(tier.rglob("*.log"))
    for path in choose.sample(logs, len(logs) // 2):
        path.unlink()
    ended: list[TaskMetrics] = []
    assert_as_consumed(read_rows(plan, options, ended), consume_rows(broker.bootstrap, plan, level))
    assert sum(metrics.broker_fallbacks for metrics in ended) >= len(logs) // 2
    with pytest.raises(DataLossError, match="the object was deleted"):
        read_rows(plan, {**options, "brokerFallback": "false"})


def test_scan_raises_store_error_if_many_objects_fail_in_the_same_way(
    filled_broker: tuple[Broker, TierFacts], tmp_path: Path
) -> None:
    broker, _ = filled_broker
    tier = _copy(broker.tier, tmp_path)
    options = hybrid_options(broker.bootstrap, tier, subscribe=EVERY)
    plan = make_plan(options)
    for path in tier.rglob("*.log"):
        path.unlink()
    with pytest.raises(StoreError, match="failed in the same way"):
        read_rows(plan, options)


def test_scan_with_option_tail_false_ends_where_the_tier_ends(
    filled_broker: tuple[Broker, TierFacts],
) -> None:
    broker, facts = filled_broker
    options = hybrid_options(
        broker.bootstrap,
        broker.tier,
        subscribe="plain,trimmed",
        tail="false",
        isolationLevel="read_uncommitted",
    )
    plan = make_plan(options)
    ends = {(p.topic, p.partition): p.stop for p in plan.partitions}
    assert ends == {key: facts.tier_ends[key] for key in ends}
    assert_as_consumed(
        read_rows(plan, options), consume_rows(broker.bootstrap, plan, "read_uncommitted")
    )


def test_scan_starts_at_first_record_at_or_after_starting_timestamp(
    filled_broker: tuple[Broker, TierFacts],
) -> None:
    broker, facts = filled_broker
    tier_end = facts.tier_ends["plain", 0]
    for number in (tier_end - 300, tier_end + 50):
        options = hybrid_options(
            broker.bootstrap,
            broker.tier,
            assign='{"plain":[0]}',
            startingTimestamp=str(1_700_000_000_000 + 1000 * number),
        )
        plan = make_plan(options)
        assert_as_consumed(
            read_rows(plan, options), consume_rows(broker.bootstrap, plan, "read_committed")
        )
        # Records are one second apart, except for a few records with earlier timestamps.
        assert abs(plan.partitions[0].start - number) <= 1


def test_scan_after_delete_records_starts_at_log_start(
    filled_broker: tuple[Broker, TierFacts],
) -> None:
    broker, facts = filled_broker
    middle = facts.starts["plain", 2] + 123
    broker.delete_records({("plain", 2): middle})
    options = hybrid_options(broker.bootstrap, broker.tier, assign='{"plain":[2]}')
    plan = make_plan(options)
    assert plan.partitions[0].start == middle
    assert_as_consumed(
        read_rows(plan, options), consume_rows(broker.bootstrap, plan, "read_committed")
    )
    with pytest.raises(OffsetOutOfRangeError, match="below the log start"):
        make_plan({**options, "startingOffsets": '{"plain":{"2":5}}'})


def test_stored_plan_returns_planned_rows_until_they_are_deleted(
    filled_broker: tuple[Broker, TierFacts], tmp_path: Path
) -> None:
    broker, facts = filled_broker
    options = hybrid_options(broker.bootstrap, broker.tier, subscribe="append")
    plan = make_plan(options)
    file = tmp_path / "plan.json"
    file.write_text(plan.to_json())
    again = make_plan({**options, "planFile": str(file)})
    assert again.tasks == plan.tasks
    assert read_rows(again, options) == read_rows(plan, options)
    tier_only = {
        name: text
        for name, text in {**options, "planFile": str(file)}.items()
        if not name.startswith("kafka.")
    }
    with pytest.raises(InvalidOptionError, match=r"kafka\.bootstrap\.servers"):
        make_plan(tier_only)
    broker.delete_records({("append", 0): facts.latest["append", 0] - 10})
    with pytest.raises(DataLossError, match="starts at"):
        make_plan({**options, "planFile": str(file)})
    with pytest.raises(DataLossError, match="append"):
        read_rows(plan, options)


def test_scan_of_recreated_topic_raises_data_loss_error(
    filled_broker: tuple[Broker, TierFacts],
) -> None:
    broker, _ = filled_broker
    broker.create_topics({"again": 1})
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(50):
        producer.produce("again", b"old %d" % number, partition=0)
    producer.flush(30)
    options = hybrid_options(broker.bootstrap, broker.tier, subscribe="again")
    plan = make_plan(options)
    admin = broker.new_admin()
    for future in admin.delete_topics(["again"]).values():
        future.result()
    with pytest.raises((DataLossError, TopicNotFoundError)):
        read_rows(plan, options)
    for attempt in range(50):
        try:
            broker.create_topics({"again": 1})
            break
        except Exception:  # the deletion is still in progress
            if attempt == 49:
                raise
    for number in range(60):
        producer.produce("again", b"new %d" % number, partition=0)
    producer.flush(30)
    with pytest.raises(DataLossError, match="created again"):
        read_rows(plan, options)
    fresh = make_plan(options)
    assert [row.value for row in read_rows(fresh, options)["again", 0]] == [
        b"new %d" % number for number in range(60)
    ]


def test_scan_after_tasks_were_closed_early_returns_rows_of_consumer(
    filled_broker: tuple[Broker, TierFacts],
) -> None:
    broker, _ = filled_broker
    options = hybrid_options(
        broker.bootstrap,
        subscribe="plain",
        kafka__max__partition__fetch__bytes="2000",
        isolationLevel="read_uncommitted",
    )
    plan = make_plan(options)
    (task,) = plan.tasks
    parsed = parse_options(options)
    for _ in range(3):
        with closing(run_task(task, parsed)) as rows:
            next(rows)
    assert_as_consumed(
        read_rows(plan, options), consume_rows(broker.bootstrap, plan, "read_uncommitted")
    )


def test_describe_reports_how_many_offsets_only_brokers_have(
    filled_broker: tuple[Broker, TierFacts],
) -> None:
    broker, facts = filled_broker
    options = hybrid_options(broker.bootstrap, broker.tier, subscribe="plain-sparse")
    for partition in describe(options).partitions:
        key = partition.topic, partition.partition
        assert partition.high_watermark == facts.latest[key]
        assert partition.tier_end == facts.tier_ends[key]
        assert partition.broker_offsets == facts.latest[key] - facts.tier_ends[key]
    text = make_plan(options).explain()
    assert f"the tier ends at {facts.tier_ends['plain-sparse', 0]}" in text


def test_plan_without_reachable_broker_raises_error_with_advice() -> None:
    options = hybrid_options("127.0.0.1:1", subscribe="plain", kafka__request__timeout__ms="1000")
    with pytest.raises(BrokerUnavailableError, match="without this option reads only the tier"):
        make_plan(options)


def _copy(tier: Path, folder: Path) -> Path:
    """Copies the tier, so that tests can delete objects without changing the broker's tier."""
    return shutil.copytree(tier, folder / "tier", copy_function=shutil.copy2)
