"""Transactions that are open where the tier ends, and log starts that move under a scan."""

from __future__ import annotations

import random
import shutil
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import DataLossError
from kts_source.options import parse_options
from kts_source.read.read_settings import BatchLimits
from kts_source.read.read_task import run_task
from tests.integration.admin import wait_until
from tests.integration.filler import Filler
from tests.integration.hybrid import (
    assert_as_consumed,
    by_partition,
    consumed_rows,
    hybrid_options,
    planned,
    rows_of,
)
from tests.integration.tier_mischief import tiered_segments

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    import pyarrow as pa
    from confluent_kafka import Producer

    from kts_source.planning.scan_plan import ScanPlan
    from tests.integration.admin import Offsets
    from tests.integration.cluster import Cluster

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

LEVELS = ("read_committed", "read_uncommitted")
TOPIC = "border"
_SMALL = BatchLimits(100, 1 << 12)


@pytest.fixture(scope="module")
def filler(cluster: Cluster) -> Filler:
    """Sends records."""
    return Filler(cluster.bootstrap, _seed())


def test_transactions_that_are_open_where_the_tier_ends(
    cluster: Cluster, filler: Filler, tmp_path: Path
) -> None:
    cluster.admin.create_topic(TOPIC, 7)
    first, second = filler.transactional("first"), filler.transactional("second")

    # The marker is the only thing behind the tier.
    for partition, end in enumerate((first.commit_transaction, first.abort_transaction)):
        _open(filler, first, partition)
        _roll(cluster, filler, partition)
        end(30)
        facts = _tiered(cluster, partition)
        assert facts.tiered < facts.last_stable == facts.latest

    # The marker lies beyond the last stable offset, which another transaction holds.
    for partition, end in ((2, first.commit_transaction), (3, first.abort_transaction)):
        _open(filler, first, partition)
        _roll(cluster, filler, partition)
        begun = cluster.admin.offsets(TOPIC, partition).latest
        _open(filler, second, partition)
        end(30)
        facts = _tiered(cluster, partition, begun)
        assert facts.tiered <= facts.last_stable < facts.latest
        _check(cluster, partition, tmp_path)
        second.abort_transaction(30)

    # The last stable offset is exactly where the tier ends: the transaction that holds it has
    # rolled the segment.
    for partition, end in ((4, first.commit_transaction), (5, first.abort_transaction)):
        _open(filler, first, partition)
        _roll(cluster, filler, partition)
        _fill_up(cluster, filler, partition)
        begun = cluster.admin.offsets(TOPIC, partition).latest
        second.begin_transaction()
        second.produce(TOPIC, b"r" * 19_900, partition=partition)
        assert second.flush(30) == 0
        end(30)
        facts = _tiered(cluster, partition, begun)
        assert facts.tiered == facts.last_stable < facts.latest
        _check(cluster, partition, tmp_path)
        second.commit_transaction(30)

    # Nobody has ended it: closed segments behind its first record are not tiered.
    _fill_up(cluster, filler, 6)
    _open(filler, first, 6)
    _roll(cluster, filler, 6)
    facts = cluster.admin.offsets(TOPIC, 6)
    assert facts.last_stable < cluster.admin.local_bases(1, TOPIC, 6)[-1]
    _check(cluster, 6, tmp_path)
    first.abort_transaction(30)

    for partition in range(7):
        _check(cluster, partition, tmp_path)


def test_delete_records_inside_a_batch_and_to_the_end(cluster: Cluster, filler: Filler) -> None:
    cluster.admin.create_topic("deleted")
    filler.send(filler.plain("zstd"), "deleted", 0, 900)
    tiered = cluster.admin.wait_tiered("deleted", 0, 100).tiered
    choice = random.Random(_seed())
    # Inside the tier, then inside what brokers have only.
    for before in (choice.randrange(1, tiered - 1), choice.randrange(tiered + 1, 899)):
        cluster.admin.delete_records("deleted", 0, before)
        for level in LEVELS:
            for tier in (cluster.tier, None):
                options = _options(cluster, "deleted", level, tier)
                plan = planned(options)
                assert plan.partitions[0].start == before
                expected = consumed_rows(cluster.bootstrap, plan, level)
                assert_as_consumed(rows_of(plan, options), expected)
                assert expected["deleted", 0][0].offset == before
    cluster.admin.delete_records("deleted", 0, -1)
    for level in LEVELS:
        options = _options(cluster, "deleted", level, cluster.tier)
        plan = planned(options)
        assert (plan.partitions[0].start, plan.partitions[0].stop) == (900, 900)
        assert rows_of(plan, options) == {}
    # An open transaction holds the last stable offset, and the log start has passed that.
    producer = filler.transactional("first")
    producer.begin_transaction()
    filler.send(producer, "deleted", 0, 20)
    cluster.admin.delete_records("deleted", 0, 910)
    for level, rows in (("read_committed", 0), ("read_uncommitted", 10)):
        options = _options(cluster, "deleted", level, cluster.tier)
        assert sum(map(len, rows_of(planned(options), options).values())) == rows
    producer.commit_transaction(30)
    options = _options(cluster, "deleted", "read_committed", cluster.tier)
    plan = planned(options)
    assert_as_consumed(
        rows_of(plan, options), consumed_rows(cluster.bootstrap, plan, "read_committed")
    )


@pytest.mark.parametrize("has_tier", [True, False])
def test_delete_records_in_mid_scan(cluster: Cluster, filler: Filler, has_tier: bool) -> None:
    topic = f"passed-{has_tier}".lower()
    cluster.admin.create_topic(topic)
    filler.send(filler.plain("none"), topic, 0, 6000)
    cluster.admin.wait_tiered(topic, 0, 4000)
    options = _options(cluster, topic, "read_committed", cluster.tier if has_tier else None)
    options["kafka.max.partition.fetch.bytes"] = "3000"
    plan = planned(options)
    expected = consumed_rows(cluster.bootstrap, plan, "read_committed")[topic, 0]
    begun = {}
    for loss in ("true", "false"):
        given = {**options, "failOnDataLoss": loss}
        rows = _rows(plan, given)
        begun[loss] = rows, [next(rows)]
    cluster.admin.delete_records(topic, 0, 5990)
    for loss, (rows, batches) in begun.items():
        with closing(rows):
            if loss == "true":
                with pytest.raises(DataLossError, match="5990") as caught:
                    batches += rows
                assert caught.value.topic == topic
            else:
                batches += rows
        found = by_partition(batches)[topic, 0]
        # Each row is one of the consumer's, in order, and the last ones are there.
        missing = set(expected) - set(found)
        assert found == [row for row in expected if row not in missing]
        if loss == "false":
            assert all(row.offset < 5990 for row in missing)
        assert missing


def test_retention_deletes_objects_in_mid_slice(cluster: Cluster, filler: Filler) -> None:
    cluster.admin.create_topic("short")
    filler.send(filler.plain("none"), "short", 0, 4000)
    # All that may go there: what is copied later would move the log start once more.
    cluster.admin.wait_local_deleted("short", 0, cluster.admin.local_bases(1, "short")[-1])
    options = _options(cluster, "short", "read_uncommitted", cluster.tier)
    # Each object is read in several requests, none of them ahead.
    options |= {"maxConcurrentRequests": "1", "prefetchBytes": "1"}
    plan = planned(options)
    expected = consumed_rows(cluster.bootstrap, plan, "read_uncommitted")["short", 0]
    begun = {}
    for loss in ("true", "false"):
        given = {**options, "failOnDataLoss": loss}
        rows = _rows(plan, given)
        begun[loss] = rows, [next(rows)]
    cluster.admin.alter_topic("short", retention_ms="1000")
    wait_until(lambda: not tiered_segments(cluster.tier, "short"))
    start = cluster.admin.offsets("short").earliest
    assert start > 0
    for loss, (rows, batches) in begun.items():
        with closing(rows):
            if loss == "true":
                with pytest.raises(DataLossError, match="short"):
                    batches += rows
            else:
                batches += rows
        found = by_partition(batches)["short", 0]
        missing = set(expected) - set(found)
        assert found == [row for row in expected if row not in missing]
        assert all(row.offset < start for row in missing) or loss == "true"
        assert missing


def _rows(plan: ScanPlan, options: dict[str, str]) -> Generator[pa.RecordBatch]:
    """All tasks, in small batches."""
    parsed = parse_options(options)
    for task in plan.tasks:
        yield from run_task(task, parsed, batches=_SMALL)


def _check(cluster: Cluster, partition: int, folder: Path) -> None:
    """The same rows as a consumer's, with the tier whole and with a hole in it."""
    seen = shutil.copytree(cluster.tier, folder / "tier", dirs_exist_ok=True)
    try:
        for _ in range(2):
            for level in LEVELS:
                options = _options(cluster, "", level, seen)
                del options["subscribe"]
                options["assign"] = f'{{"{TOPIC}":[{partition}]}}'
                plan = planned(options)
                expected = consumed_rows(cluster.bootstrap, plan, level)
                assert_as_consumed(rows_of(plan, options), expected)
            segments = tiered_segments(seen, TOPIC, partition)
            if segments:
                random.choice(segments).log.unlink()
    finally:
        shutil.rmtree(seen)


def _options(cluster: Cluster, topic: str, level: str, tier: Path | None) -> dict[str, str]:
    return hybrid_options(cluster.bootstrap, tier, subscribe=topic, isolationLevel=level)


def _open(filler: Filler, producer: Producer, partition: int) -> None:
    """Begins a transaction and sends."""
    producer.begin_transaction()
    filler.send(producer, TOPIC, partition, 20)


def _roll(cluster: Cluster, filler: Filler, partition: int) -> None:
    """Sends until two more segments are closed."""
    wanted = cluster.admin.local_bases(1, TOPIC, partition)[-1]
    for _ in range(2):
        before = wanted
        while wanted == before:
            filler.send(filler.plain("none"), TOPIC, partition, 20)
            wanted = cluster.admin.local_bases(1, TOPIC, partition)[-1]


def _fill_up(cluster: Cluster, filler: Filler, partition: int) -> None:
    """Sends some so that a batch of a segment's size begins the next segment."""
    filler.send(filler.plain("none"), TOPIC, partition, 40)


def _tiered(cluster: Cluster, partition: int, stable: int | None = None) -> Offsets:
    """Waits until the tier has all that it may have: every segment but the active one, and none
    from `stable` on, where a transaction is open.
    """
    bases = cluster.admin.local_bases(1, TOPIC, partition)
    until = max(base for base in bases if stable is None or base <= stable)
    # Markers are written after the producer was told.
    wait_until(lambda: cluster.admin.offsets(TOPIC, partition).last_stable >= (stable or until))
    return cluster.admin.wait_tiered(TOPIC, partition, until)


def _seed() -> int:
    seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}")  # noqa: T201  # shown where the test fails
    return seed
