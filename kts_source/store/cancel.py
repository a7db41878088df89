"""Stopping what other threads wait for.

A fetch that is no longer wanted must end now, not after a slow answer or a retry's pause. Whoever
runs store calls in its threads makes one `Cancellation` and enters its `scope` there; the stores
pause through `pause` and put what they wait for under `cancelled_by`. Outside any scope both do
nothing special.
"""

from __future__ import annotations

import contextlib
import threading
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_current: ContextVar[Cancellation | None] = ContextVar("cancellation", default=None)


class CancelledFetchError(Exception):
    """The caller is no longer interested; never reaches a user."""


class Cancellation:
    """A flag that can be raised once, and what to call when it is."""

    def __init__(self) -> None:
        self._raised = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: dict[object, Callable[[], object]] = {}

    def cancel(self) -> None:
        """Wakes every pause and aborts every wait of the scopes."""
        with self._lock:
            self._raised.set()
            callbacks = list(self._callbacks.values())
            self._callbacks.clear()
        for callback in callbacks:
            callback()

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Store calls made inside, in this thread, obey this cancellation."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    @contextlib.contextmanager
    def calling(self, callback: Callable[[], object]) -> Iterator[None]:
        """Calls back if the flag is, or gets, raised before the block ends."""
        mark = object()
        with self._lock:
            raised = self._raised.is_set()
            if not raised:
                self._callbacks[mark] = callback
        if raised:
            callback()
        try:
            yield
        finally:
            with self._lock:
                self._callbacks.pop(mark, None)

    def pause(self, seconds: float) -> None:
        """Sleeps, or raises `CancelledFetchError` as soon as the flag is raised."""
        if self._raised.wait(seconds):
            raise CancelledFetchError


@contextlib.contextmanager
def cancelled_by(abort: Callable[[], object]) -> Iterator[None]:
    """Calls `abort` if the current scope is, or gets, cancelled before the block ends."""
    current = _current.get()
    with contextlib.nullcontext() if current is None else current.calling(abort):
        yield


def pause(seconds: float) -> None:
    """Sleeps, unless the current scope is or gets cancelled.

    Raises:
        CancelledFetchError: The scope was cancelled.
    """
    current = _current.get()
    if current is None:
        time.sleep(seconds)
    else:
        current.pause(seconds)
