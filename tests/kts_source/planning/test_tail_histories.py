"""Checks scans of a tier and of broker disks after random sequences of events.

Each scan must return the log of the leader.
"""

from __future__ import annotations

import random
from collections import Counter

from tests.kts_source.planning.history import random_history
from tests.kts_source.planning.tail_reading import (
    check_older_disks,
    check_tail,
    in_one_thread,
)


def test_scans_of_tiers_with_disks_return_the_log_of_the_leader() -> None:
    outcomes: Counter[str] = Counter()
    with in_one_thread():
        for seed in range(50):
            check_tail(random_history(random.Random(seed)), seed, outcomes)
    for outcome in ("tier", "disk", "read_committed", "read_uncommitted"):
        assert outcomes[outcome] > 30, outcomes
    assert outcomes["rows"] > 500, outcomes
    assert outcomes["lost"] + outcomes["spoiled"] < 20, outcomes


def test_scan_with_outdated_disk_returns_log_of_leader() -> None:
    outcomes: Counter[str] = Counter()
    with in_one_thread():
        for seed in range(60):
            check_older_disks(random_history(random.Random(seed)), seed, outcomes)
    for outcome in ("tier", "disk", "read_committed", "read_uncommitted"):
        assert outcomes[outcome] > 20, outcomes
