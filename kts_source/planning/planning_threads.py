"""Threads that plan: many requests under way, and what comes back calculated on one core.

Only one thread of an interpreter calculates at a time. Dozens that are woken by answers on several
cores fight for that turn, and every time it moves its data from core to core: a plan of many small
requests takes more than twice the processor time on two cores than on one. So the threads of a plan
share one, where the system lets them.
"""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from kts_source.store.storage_options import MAX_POOL_CONNECTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

PLANNING_THREADS: Final = MAX_POOL_CONNECTIONS
"""Requests of a plan under way at a time."""


@contextmanager
def planning_pools(*names: str) -> Iterator[list[ThreadPoolExecutor]]:
    """A pool for each name; all their threads share one core, which no other thread is bound to."""
    core = _any_core()
    pools = [
        ThreadPoolExecutor(
            PLANNING_THREADS, thread_name_prefix=name, initializer=_stay_on, initargs=(core,)
        )
        for name in names
    ]
    try:
        yield pools
    finally:
        for pool in pools:
            pool.shutdown()


def _any_core() -> int | None:
    """One of the cores this thread may run on: any, so that several plans do not meet on one."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    return random.choice(sorted(os.sched_getaffinity(0)))


def _stay_on(core: int | None) -> None:
    """Binds the calling thread, and it alone."""
    if core is not None:
        with suppress(OSError):  # a container may forbid it
            os.sched_setaffinity(0, {core})
