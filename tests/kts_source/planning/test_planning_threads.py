"""Threads of a plan share one core; the thread that asks for the plan keeps all of its own."""

from __future__ import annotations

import os
import threading

import pytest

from kts_source.planning.planning_threads import PLANNING_THREADS, planning_pools


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system binds no threads")
def test_threads_of_all_pools_share_one_core() -> None:
    before = os.sched_getaffinity(0)
    meeting = threading.Barrier(8, timeout=60)

    def cores() -> frozenset[int]:
        meeting.wait()
        return frozenset(os.sched_getaffinity(0))

    with planning_pools("a", "b") as pools:
        seen = {future.result() for future in [pool.submit(cores) for pool in pools * 4]}
    assert len(seen) == 1
    (bound,) = seen
    assert len(bound) == 1
    assert bound <= before
    assert os.sched_getaffinity(0) == before


def test_as_many_requests_are_under_way_as_there_are_threads() -> None:
    meeting = threading.Barrier(PLANNING_THREADS, timeout=60)
    with planning_pools("a") as (pool,):
        assert len(list(pool.map(lambda _: meeting.wait(), range(PLANNING_THREADS)))) == 96
