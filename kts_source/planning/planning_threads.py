"""Threads that plan: many requests under way at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from kts_source.store.storage_options import MAX_POOL_CONNECTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

PLANNING_THREADS: Final = MAX_POOL_CONNECTIONS
"""Requests of a plan under way at a time."""


@contextmanager
def planning_pools(*names: str) -> Iterator[list[ThreadPoolExecutor]]:
    """A pool for each name."""
    pools = [ThreadPoolExecutor(PLANNING_THREADS, thread_name_prefix=name) for name in names]
    try:
        yield pools
    finally:
        for pool in pools:
            pool.shutdown()
