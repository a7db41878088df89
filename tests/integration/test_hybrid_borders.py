"""Tests scans if a transaction crosses the end of the tier.

Also tests scans while DeleteRecords or retention increases the log start.
"""

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
    consume_rows,
    group_by_partition,
    hybrid_options,
    make_plan,
    read_rows,
)
from tests.integration.tier_mischief import list_tiered_segments

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
    return Filler(cluster.bootstrap, _seed())


def test_scan_returns_rows_of_consumer_if_a_transaction_is_open_at_tier_end(
    cluster: Cluster, filler: Filler, tmp_path: Path
) -> None:
    cluster.admin.create_topic(TOPIC, 7)
    first, second = filler.transactional("first"), filler.transactional("second")

    # Records of the transaction are in the tier, its marker is not.
    for partition, end in enumerate((first.commit_transaction, first.abort_transaction)):
        _open(filler, first, partition)
        _roll(cluster, filler, partition)
        end(30)
        facts = _wait_tiered(cluster, partition)
        assert facts.tiered < facts.last_stable == facts.latest

    # The marker is after the last stable offset, because another transaction is open.
    for partition, end in ((2, first.commit_transaction), (3, first.abort_transaction)):
        _open(filler, first, partition)
        _roll(cluster, filler, partition)
        second_start = cluster.admin.offsets(TOPIC, partition).latest
        _open(filler, second, partition)
        end(30)
        facts = _wait_tiered(cluster, partition, second_start)
        assert facts.tiered <= facts.last_stable < facts.latest
        _check(cluster, partition, tmp_path)
        second.abort_transaction(30)

    # The last stable offset is exactly the end of the tier: the first batch of the open transaction
    # started a new segment.
    for partition, end in ((4, first.commit_transaction), (5, first.abort_transaction)):
        _open(filler, first, partition)
        _roll(cluster, filler, partition)
        _fill_up(cluster, filler, partition)
        second_start = cluster.admin.offsets(TOPIC, partition).latest
        second.begin_transaction()
        second.produce(TOPIC, b"r" * 19_900, partition=partition)
        assert second.flush(30) == 0
        end(30)
        facts = _wait_tiered(cluster, partition, second_start)
        assert facts.tiered == facts.last_stable < facts.latest
        _check(cluster, partition, tmp_path)
        second.commit_transaction(30)

    # The transaction stays open. Closed segments after its first record are therefore not tiered.
    _fill_up(cluster, filler, 6)
    _open(filler, first, 6)
    _roll(cluster, filler, 6)
    facts = cluster.admin.offsets(TOPIC, 6)
    assert facts.last_stable < cluster.admin.local_bases(1, TOPIC, 6)[-1]
    _check(cluster, 6, tmp_path)
    first.abort_transaction(30)

    for partition in range(7):
        _check(cluster, partition, tmp_path)


def test_scan_after_delete_records_starts_at_new_log_start_even_inside_a_batch(
    cluster: Cluster, filler: Filler
) -> None:
    cluster.admin.create_topic("deleted")
    filler.send(filler.plain("zstd"), "deleted", 0, 900)
    tiered = cluster.admin.wait_tiered("deleted", 0, 100).tiered
    choice = random.Random(_seed())
    # Move the log start into the tier, then past its end.
    for before in (choice.randrange(1, tiered - 1), choice.randrange(tiered + 1, 899)):
        cluster.admin.delete_records("deleted", 0, before)
        for level in LEVELS:
            for tier in (cluster.tier, None):
                options = _options(cluster, "deleted", level, tier)
                plan = make_plan(options)
                assert plan.partitions[0].start == before
                expected = consume_rows(cluster.bootstrap, plan, level)
                assert_as_consumed(read_rows(plan, options), expected)
                assert expected["deleted", 0][0].offset == before
    cluster.admin.delete_records("deleted", 0, -1)
    for level in LEVELS:
        options = _options(cluster, "deleted", level, cluster.tier)
        plan = make_plan(options)
        assert (plan.partitions[0].start, plan.partitions[0].stop) == (900, 900)
        assert read_rows(plan, options) == {}
    # DeleteRecords moves the log start past the first record of an open transaction.
    producer = filler.transactional("first")
    producer.begin_transaction()
    filler.send(producer, "deleted", 0, 20)
    cluster.admin.delete_records("deleted", 0, 910)
    for level, rows in (("read_committed", 0), ("read_uncommitted", 10)):
        options = _options(cluster, "deleted", level, cluster.tier)
        assert sum(map(len, read_rows(make_plan(options), options).values())) == rows
    producer.commit_transaction(30)
    options = _options(cluster, "deleted", "read_committed", cluster.tier)
    plan = make_plan(options)
    assert_as_consumed(
        read_rows(plan, options), consume_rows(cluster.bootstrap, plan, "read_committed")
    )


@pytest.mark.parametrize("has_tier", [True, False])
def test_rows_deleted_by_delete_records_during_scan_raise_error_or_are_skipped(
    cluster: Cluster, filler: Filler, has_tier: bool
) -> None:
    topic = f"passed-{has_tier}".lower()
    cluster.admin.create_topic(topic)
    filler.send(filler.plain("none"), topic, 0, 6000)
    cluster.admin.wait_tiered(topic, 0, 4000)
    options = _options(cluster, topic, "read_committed", cluster.tier if has_tier else None)
    options["kafka.max.partition.fetch.bytes"] = "3000"
    plan = make_plan(options)
    expected = consume_rows(cluster.bootstrap, plan, "read_committed")[topic, 0]
    scans = {}
    for fail_on_loss in ("true", "false"):
        options_of_scan = {**options, "failOnDataLoss": fail_on_loss}
        rows = _rows(plan, options_of_scan)
        scans[fail_on_loss] = rows, [next(rows)]
    cluster.admin.delete_records(topic, 0, 5990)
    for fail_on_loss, (rows, batches) in scans.items():
        with closing(rows):
            if fail_on_loss == "true":
                with pytest.raises(DataLossError, match="5990") as caught:
                    batches += rows
                assert caught.value.topic == topic
            else:
                batches += rows
        read = group_by_partition(batches)[topic, 0]
        # The scan returned a subset of the consumer's rows in the same order.
        missing = set(expected) - set(read)
        assert read == [row for row in expected if row not in missing]
        if fail_on_loss == "false":
            assert all(row.offset < 5990 for row in missing)
        assert missing


def test_rows_deleted_by_retention_during_scan_raise_error_or_are_skipped(
    cluster: Cluster, filler: Filler
) -> None:
    cluster.admin.create_topic("short")
    filler.send(filler.plain("none"), "short", 0, 4000)
    # Wait until all closed segments are tiered, because otherwise the log start moves later.
    cluster.admin.wait_local_deleted("short", 0, cluster.admin.local_bases(1, "short")[-1])
    options = _options(cluster, "short", "read_uncommitted", cluster.tier)
    # Each object is read in several requests, without prefetching.
    options |= {"maxConcurrentRequests": "1", "prefetchBytes": "1"}
    plan = make_plan(options)
    expected = consume_rows(cluster.bootstrap, plan, "read_uncommitted")["short", 0]
    scans = {}
    for fail_on_loss in ("true", "false"):
        options_of_scan = {**options, "failOnDataLoss": fail_on_loss}
        rows = _rows(plan, options_of_scan)
        scans[fail_on_loss] = rows, [next(rows)]
    cluster.admin.alter_topic("short", retention_ms="1000")
    wait_until(lambda: not list_tiered_segments(cluster.tier, "short"))
    start = cluster.admin.offsets("short").earliest
    assert start > 0
    for fail_on_loss, (rows, batches) in scans.items():
        with closing(rows):
            if fail_on_loss == "true":
                with pytest.raises(DataLossError, match="short"):
                    batches += rows
            else:
                batches += rows
        read = group_by_partition(batches)["short", 0]
        missing = set(expected) - set(read)
        assert read == [row for row in expected if row not in missing]
        assert all(row.offset < start for row in missing) or fail_on_loss == "true"
        assert missing


def _rows(plan: ScanPlan, options: dict[str, str]) -> Generator[pa.RecordBatch]:
    """Runs all tasks of a plan and yields their rows in small batches."""
    parsed = parse_options(options)
    for task in plan.tasks:
        yield from run_task(task, parsed, batches=_SMALL)


def _check(cluster: Cluster, partition: int, folder: Path) -> None:
    """Compares scans of the tier and the broker with a consumer, at each isolation level.

    Then deletes the `.log` object of one random segment from a copy of the tier, and compares
    again.
    """
    tier_copy = shutil.copytree(cluster.tier, folder / "tier", dirs_exist_ok=True)
    try:
        for _ in range(2):
            for level in LEVELS:
                options = _options(cluster, "", level, tier_copy)
                del options["subscribe"]
                options["assign"] = f'{{"{TOPIC}":[{partition}]}}'
                plan = make_plan(options)
                expected = consume_rows(cluster.bootstrap, plan, level)
                assert_as_consumed(read_rows(plan, options), expected)
            segments = list_tiered_segments(tier_copy, TOPIC, partition)
            if segments:
                random.choice(segments).log.unlink()
    finally:
        shutil.rmtree(tier_copy)


def _options(cluster: Cluster, topic: str, level: str, tier: Path | None) -> dict[str, str]:
    return hybrid_options(cluster.bootstrap, tier, subscribe=topic, isolationLevel=level)


def _open(filler: Filler, producer: Producer, partition: int) -> None:
    """Begins a transaction and sends 20 records."""
    producer.begin_transaction()
    filler.send(producer, TOPIC, partition, 20)


def _roll(cluster: Cluster, filler: Filler, partition: int) -> None:
    """Sends records until two more segments are closed."""
    newest = cluster.admin.local_bases(1, TOPIC, partition)[-1]
    for _ in range(2):
        previous = newest
        while newest == previous:
            filler.send(filler.plain("none"), TOPIC, partition, 20)
            newest = cluster.admin.local_bases(1, TOPIC, partition)[-1]


def _fill_up(cluster: Cluster, filler: Filler, partition: int) -> None:
    """Sends 40 records to the active segment, so that a batch of `segment.bytes` bytes no longer
    fits and starts a new segment.
    """
    filler.send(filler.plain("none"), TOPIC, partition, 40)


def _wait_tiered(cluster: Cluster, partition: int, open_from: int | None = None) -> Offsets:
    """Waits until the tier has all segments that the broker can copy; returns the partition's
    offsets.

    Without an open transaction, the broker can copy all closed segments. If `open_from` is the
    first offset of an open transaction, the broker can copy only segments that end before this
    offset.
    """
    bases = cluster.admin.local_bases(1, TOPIC, partition)
    until = max(base for base in bases if open_from is None or base <= open_from)
    # Brokers may write markers only after the producer's commit returns.
    wait_until(lambda: cluster.admin.offsets(TOPIC, partition).last_stable >= (open_from or until))
    return cluster.admin.wait_tiered(TOPIC, partition, until)


def _seed() -> int:
    seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}")  # noqa: T201  # shown if the test fails
    return seed
