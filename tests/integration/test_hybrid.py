"""Tier and brokers in one table, against a consumer of a real broker."""

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
    consumed_rows,
    hybrid_options,
    planned,
    rows_of,
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
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, TierFacts]]:
    """A broker that runs, with topics of which the closed segments are tiered."""
    needs("java", "mvn")
    with running_broker(tmp_path_factory.mktemp("hybrid") / "broker") as broker:
        yield broker, fill(broker)


@pytest.mark.parametrize("level", LEVELS)
def test_the_whole_topic_as_a_consumer_has_it(world: tuple[Broker, TierFacts], level: str) -> None:
    broker, _ = world
    plans = []
    for more in ({}, {"minPartitions": "40"}, {"maxRecordsPerPartition": "97"}):
        options = hybrid_options(
            broker.bootstrap, broker.tier, subscribe=EVERY, isolationLevel=level, **more
        )
        plan = planned(options)
        assert_as_consumed(rows_of(plan, options), consumed_rows(broker.bootstrap, plan, level))
        plans.append(plan)
    # Both parts are read, and the tier has most of it.
    assert all(any(task.slices for task in plan.tasks) for plan in plans)
    assert all(any(task.ranges for task in plan.tasks) for plan in plans)
    assert len(plans[1].tasks) > len(plans[0].tasks)


@pytest.mark.parametrize("level", LEVELS)
def test_brokers_alone(world: tuple[Broker, TierFacts], level: str) -> None:
    broker, facts = world
    options = hybrid_options(broker.bootstrap, subscribe=EVERY, isolationLevel=level)
    plan = planned(options)
    assert_as_consumed(rows_of(plan, options), consumed_rows(broker.bootstrap, plan, level))
    starts = {(part.topic, part.partition): part.start for part in plan.partitions}
    assert starts == {place: facts.starts[place] for place in starts}


@pytest.mark.parametrize("level", LEVELS)
def test_objects_that_are_gone_before_the_listing_are_no_loss(
    world: tuple[Broker, TierFacts], tmp_path: Path, level: str
) -> None:
    broker, _ = world
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201  # shown where the test fails
    choose = random.Random(seed)
    tier = _copy(broker.tier, tmp_path)
    files = sorted(tier.rglob("*-*"))
    # Nothing in this tier tells that a segment had a transaction index.
    told = [path for path in files if path.is_file() and path.suffix != ".txnindex"]
    for path in choose.sample(told, 12):
        path.unlink()
    options = hybrid_options(broker.bootstrap, tier, subscribe=EVERY, isolationLevel=level)
    plan = planned(options)
    assert_as_consumed(rows_of(plan, options), consumed_rows(broker.bootstrap, plan, level))


@pytest.mark.parametrize("level", LEVELS)
def test_brokers_step_in_where_the_tier_fails(
    world: tuple[Broker, TierFacts],
    tmp_path: Path,
    level: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, _ = world
    monkeypatch.setattr("kts_source.read.broker_rows._MAX_SAME_FAILURES", 1000)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201  # shown where the test fails
    choose = random.Random(seed)
    tier = _copy(broker.tier, tmp_path)
    options = hybrid_options(
        broker.bootstrap,
        tier,
        subscribe=EVERY,
        isolationLevel=level,
        targetPartitionBytes=choose.choice(("3000", "7000", "1000000")),
    )
    plan = planned(options)
    logs = sorted(tier.rglob("*.log"))
    for path in choose.sample(logs, len(logs) // 2):
        path.unlink()
    ended: list[TaskMetrics] = []
    assert_as_consumed(rows_of(plan, options, ended), consumed_rows(broker.bootstrap, plan, level))
    assert sum(metrics.broker_fallbacks for metrics in ended) >= len(logs) // 2
    with pytest.raises(DataLossError, match="the object was deleted"):
        rows_of(plan, {**options, "brokerFallback": "false"})


def test_many_failures_alike_are_an_error(world: tuple[Broker, TierFacts], tmp_path: Path) -> None:
    broker, _ = world
    tier = _copy(broker.tier, tmp_path)
    options = hybrid_options(broker.bootstrap, tier, subscribe=EVERY)
    plan = planned(options)
    for path in tier.rglob("*.log"):
        path.unlink()
    with pytest.raises(StoreError, match="failed alike"):
        rows_of(plan, options)


def test_tail_false_reads_what_is_tiered(world: tuple[Broker, TierFacts]) -> None:
    broker, facts = world
    options = hybrid_options(
        broker.bootstrap,
        broker.tier,
        subscribe="plain,trimmed",
        tail="false",
        isolationLevel="read_uncommitted",
    )
    plan = planned(options)
    ends = {(part.topic, part.partition): part.stop for part in plan.partitions}
    assert ends == {place: facts.tier_ends[place] for place in ends}
    assert_as_consumed(
        rows_of(plan, options), consumed_rows(broker.bootstrap, plan, "read_uncommitted")
    )


def test_timestamps_are_answered_by_the_brokers(world: tuple[Broker, TierFacts]) -> None:
    broker, facts = world
    tier_end = facts.tier_ends["plain", 0]
    for inside in (tier_end - 300, tier_end + 50):
        given = hybrid_options(
            broker.bootstrap,
            broker.tier,
            assign='{"plain":[0]}',
            startingTimestamp=str(1_700_000_000_000 + 1000 * inside),
        )
        plan = planned(given)
        assert_as_consumed(
            rows_of(plan, given), consumed_rows(broker.bootstrap, plan, "read_committed")
        )
        # Records are dated a second apart, a few of them late.
        assert abs(plan.partitions[0].start - inside) <= 1


def test_deleted_records_are_not_read(world: tuple[Broker, TierFacts]) -> None:
    broker, facts = world
    middle = facts.starts["plain", 2] + 123
    broker.delete_records({("plain", 2): middle})
    options = hybrid_options(broker.bootstrap, broker.tier, assign='{"plain":[2]}')
    plan = planned(options)
    assert plan.partitions[0].start == middle
    assert_as_consumed(
        rows_of(plan, options), consumed_rows(broker.bootstrap, plan, "read_committed")
    )
    with pytest.raises(OffsetOutOfRangeError, match="below the log start"):
        planned({**options, "startingOffsets": '{"plain":{"2":5}}'})


def test_a_stored_plan_gives_the_same_rows_or_fails(
    world: tuple[Broker, TierFacts], tmp_path: Path
) -> None:
    broker, facts = world
    options = hybrid_options(broker.bootstrap, broker.tier, subscribe="append")
    plan = planned(options)
    file = tmp_path / "plan.json"
    file.write_text(plan.to_json())
    again = planned({**options, "planFile": str(file)})
    assert again.tasks == plan.tasks
    assert rows_of(again, options) == rows_of(plan, options)
    tier_only = {
        name: text
        for name, text in {**options, "planFile": str(file)}.items()
        if not name.startswith("kafka.")
    }
    with pytest.raises(InvalidOptionError, match=r"kafka\.bootstrap\.servers"):
        planned(tier_only)
    broker.delete_records({("append", 0): facts.latest["append", 0] - 10})
    with pytest.raises(DataLossError, match="starts at"):
        planned({**options, "planFile": str(file)})
    with pytest.raises(DataLossError, match="append"):
        rows_of(plan, options)


def test_a_topic_that_was_created_again_is_another(world: tuple[Broker, TierFacts]) -> None:
    broker, _ = world
    broker.create_topics({"again": 1})
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(50):
        producer.produce("again", b"old %d" % number, partition=0)
    producer.flush(30)
    options = hybrid_options(broker.bootstrap, broker.tier, subscribe="again")
    plan = planned(options)
    admin = broker.new_admin()
    for future in admin.delete_topics(["again"]).values():
        future.result()
    with pytest.raises((DataLossError, TopicNotFoundError)):
        rows_of(plan, options)
    for attempt in range(50):
        try:
            broker.create_topics({"again": 1})
            break
        except Exception:  # the deletion is still under way
            if attempt == 49:
                raise
    for number in range(60):
        producer.produce("again", b"new %d" % number, partition=0)
    producer.flush(30)
    with pytest.raises(DataLossError, match="created again"):
        rows_of(plan, options)
    fresh = planned(options)
    assert [row.value for row in rows_of(fresh, options)["again", 0]] == [
        b"new %d" % number for number in range(60)
    ]


def test_a_task_that_is_closed_early_leaves_nothing_behind(
    world: tuple[Broker, TierFacts],
) -> None:
    broker, _ = world
    options = hybrid_options(
        broker.bootstrap,
        subscribe="plain",
        kafka__max__partition__fetch__bytes="2000",
        isolationLevel="read_uncommitted",
    )
    plan = planned(options)
    (task,) = plan.tasks
    parsed = parse_options(options)
    for _ in range(3):
        with closing(run_task(task, parsed)) as rows:
            next(rows)
    assert_as_consumed(
        rows_of(plan, options), consumed_rows(broker.bootstrap, plan, "read_uncommitted")
    )


def test_description_tells_how_far_the_tier_lags(world: tuple[Broker, TierFacts]) -> None:
    broker, facts = world
    options = hybrid_options(broker.bootstrap, broker.tier, subscribe="plain-sparse")
    for part in describe(options).partitions:
        place = part.topic, part.partition
        assert part.high_watermark == facts.latest[place]
        assert part.tier_end == facts.tier_ends[place]
        assert part.broker_offsets == facts.latest[place] - facts.tier_ends[place]
    text = planned(options).explain()
    assert f"the tier ends at {facts.tier_ends['plain-sparse', 0]}" in text


def test_no_broker_is_an_error_that_says_what_to_do() -> None:
    options = hybrid_options("127.0.0.1:1", subscribe="plain", kafka__request__timeout__ms="1000")
    with pytest.raises(BrokerUnavailableError, match="remove that option"):
        planned(options)


def _copy(tier: Path, folder: Path) -> Path:
    """The tier in a folder of the test's own; the broker goes on with its own one."""
    return shutil.copytree(tier, folder / "tier", copy_function=shutil.copy2)
