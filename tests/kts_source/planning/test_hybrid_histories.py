"""Checks that scans of tier and brokers of random histories return the leader's log."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.kts_source.broker.fake_broker import FakeCluster
from tests.kts_source.planning.history import random_history
from tests.kts_source.planning.hybrid_reading import check_hybrid, in_one_thread


def test_scans_of_tier_and_brokers_return_the_log_of_the_leader() -> None:
    outcomes: Counter[str] = Counter()
    with in_one_thread(), FakeCluster() as cluster:
        for seed in range(60):
            check_hybrid(random_history(random.Random(seed)), seed, outcomes, cluster)
    for outcome in ("slices", "ranges", "fallbacks", "read_committed", "read_uncommitted"):
        assert outcomes[outcome] > 40, outcomes
    assert outcomes["rows"] > 1000, outcomes


@pytest.mark.slow
def test_scans_with_metadata_topic_return_the_log_of_the_leader() -> None:
    outcomes: Counter[str] = Counter()
    with in_one_thread(), FakeCluster() as cluster:
        for seed in range(60):
            history = random_history(random.Random(seed))
            check_hybrid(history, seed, outcomes, cluster, by_metadata_topic=True)
    for outcome in ("slices", "ranges", "fallbacks", "read_committed", "read_uncommitted"):
        assert outcomes[outcome] > 40, outcomes
    assert outcomes["rows"] > 1000, outcomes


@pytest.mark.slow
def test_scans_with_old_brokers_return_the_log_of_the_leader_or_raise() -> None:
    """Brokers before Kafka 4.0 do not list aborted transactions of tiered offsets."""
    outcomes: Counter[str] = Counter()
    with in_one_thread(), FakeCluster(versions={"ListOffsets": 9}) as cluster:
        for seed in range(60):
            check_hybrid(random_history(random.Random(seed)), seed, outcomes, cluster)
    for outcome in ("slices", "ranges", "read_committed", "read_uncommitted"):
        assert outcomes[outcome] > 20, outcomes
    assert 0 < outcomes["old brokers refused"] < outcomes["read_committed"], outcomes
