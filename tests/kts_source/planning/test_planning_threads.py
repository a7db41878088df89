"""Threads of a plan."""

from __future__ import annotations

import os
import threading

import pytest

from kts_source.planning.planning_threads import PLANNING_THREADS, planning_pools


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system binds no threads")
def test_threads_may_run_wherever_the_process_may() -> None:
    before = os.sched_getaffinity(0)
    with planning_pools("a", "b") as pools:
        seen = [pool.submit(os.sched_getaffinity, 0).result() for pool in pools]
    assert seen == [before, before]


def test_as_many_requests_are_under_way_as_there_are_threads() -> None:
    meeting = threading.Barrier(PLANNING_THREADS, timeout=60)
    with planning_pools("a") as (pool,):
        assert len(list(pool.map(lambda _: meeting.wait(), range(PLANNING_THREADS)))) == 96
