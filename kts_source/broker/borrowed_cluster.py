"""Clusters whose connections one task after the other uses: a login takes as long as a small read.

A task has its cluster to itself until it ends, whichever threads run it: answers come in the order
of requests. Then the next one may have it, in any thread.
"""

from __future__ import annotations

import atexit
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from kts_source.broker.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kts_source.broker.settings import BrokerSettings

_MOST_IDLE: Final = 16
"""Of this process; each may hold a connection to every broker, with the memory of an answer."""
_idle: list[Cluster] = []
_lock = threading.Lock()


@contextmanager
def borrowed_cluster(settings: BrokerSettings) -> Iterator[Cluster]:
    """A cluster that nobody else uses meanwhile, with the connections of an earlier task if there
    are any.

    Args:
        settings: How brokers are reached.
    """
    cluster = _taken(settings) or Cluster(settings)
    try:
        yield cluster
    finally:
        with _lock:
            _idle.append(cluster)
            too_many = _idle.pop(0) if len(_idle) > _MOST_IDLE else None
        if too_many is not None:
            too_many.close()


def _taken(settings: BrokerSettings) -> Cluster | None:
    """The one that was given back last."""
    with _lock:
        for number in reversed(range(len(_idle))):
            if _idle[number].settings == settings:
                return _idle.pop(number)
    return None


@atexit.register
def _close_all() -> None:
    with _lock:
        for cluster in _idle:
            cluster.close()
        _idle.clear()


def _forget() -> None:
    """A child that was forked has the same sockets, and answers come to who asked."""
    global _lock
    _lock = threading.Lock()
    _idle.clear()


os.register_at_fork(after_in_child=_forget)
