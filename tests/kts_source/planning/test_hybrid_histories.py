"""Random lives of a tiered topic, read from tier and brokers: the leader's log, always."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.kts_source.broker.fake_broker import FakeCluster
from tests.kts_source.planning.history import random_history
from tests.kts_source.planning.hybrid_reading import check_hybrid, in_one_thread


def test_hybrid_histories() -> None:
    outcomes: Counter[str] = Counter()
    with in_one_thread(), FakeCluster() as cluster:
        for seed in range(60):
            check_hybrid(random_history(random.Random(seed)), seed, outcomes, cluster)
    for outcome in ("slices", "ranges", "fallbacks", "read_committed", "read_uncommitted"):
        assert outcomes[outcome] > 40, outcomes
    assert outcomes["rows"] > 1000, outcomes


@pytest.mark.slow
def test_hybrid_histories_by_the_metadata_topic() -> None:
    outcomes: Counter[str] = Counter()
    with in_one_thread(), FakeCluster() as cluster:
        for seed in range(60):
            history = random_history(random.Random(seed))
            check_hybrid(history, seed, outcomes, cluster, by_metadata_topic=True)
    for outcome in ("slices", "ranges", "fallbacks", "read_committed", "read_uncommitted"):
        assert outcomes[outcome] > 40, outcomes
    assert outcomes["rows"] > 1000, outcomes


@pytest.mark.slow
def test_hybrid_histories_of_old_brokers() -> None:
    """Which list no aborted transaction where they read their tier: refused, or the same rows."""
    outcomes: Counter[str] = Counter()
    with in_one_thread(), FakeCluster(versions={"ListOffsets": 9}) as cluster:
        for seed in range(60):
            check_hybrid(random_history(random.Random(seed)), seed, outcomes, cluster)
    for outcome in ("slices", "ranges", "read_committed", "read_uncommitted"):
        assert outcomes[outcome] > 20, outcomes
    assert 0 < outcomes["old brokers refused"] < outcomes["read_committed"], outcomes
