"""An fsspec file system that works on fsspec's event loop, used from any thread of any process.

The file system is made at first use, once per process: neither its connections nor its loop survive
a fork or a pickle. Waiting threads obey a deadline and the current `Cancellation`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from kts_source.secret import scrub
from kts_source.store.cancel import CancelledFetchError, cancelled_by
from kts_source.store.deadline import no_answer
from kts_source.store.hedge import hedged
from kts_source.store.retry import TransientError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

T = TypeVar("T")

_CLOSE_SECONDS = 2.0


class AsyncClient:
    """Owns the file system of this process and runs coroutines on its loop.

    Args:
        connect: Makes the file system.
        deadline_seconds: What one `run` may take.
        prepare: Awaited on the loop before each call: what the first one needs.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        *,
        deadline_seconds: float,
        prepare: Callable[[Any], Awaitable[object]] | None = None,
    ) -> None:
        self._connect = connect
        self._prepare = prepare
        self._deadline_seconds = deadline_seconds
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._filesystem: Any = None
        self._inherited: Any = None

    @property
    def filesystem(self) -> Any:  # noqa: ANN401  # fsspec ships no types
        """The file system of this process, made now if need be."""
        if self._process != os.getpid():
            # A child of a fork: the lock may be held by a thread that is not here. The parent's
            # file system is kept, not dropped: its finaliser would wait for a loop that does not
            # run here.
            self._lock = threading.Lock()
            self._inherited, self._filesystem = self._filesystem, None
            self._process = os.getpid()
        with self._lock:
            if self._filesystem is None:
                self._filesystem = self._connect()
            return self._filesystem

    def run(
        self,
        call: Callable[[Any], Coroutine[Any, Any, T]],
        *,
        hedge_after_seconds: float | None = None,
        on_hedge: Callable[[], object] = lambda: None,
    ) -> T:
        """The result of `call(filesystem)`, awaited on the file system's loop.

        Args:
            call: Makes one attempt.
            hedge_after_seconds: See `hedge.hedged`.
            on_hedge: Called when a second attempt is made.

        Raises:
            TransientError: The deadline passed.
            CancelledFetchError: The caller's scope was cancelled.
        """
        filesystem = self.filesystem

        async def attempt() -> T:
            if self._prepare is not None:
                await self._prepare(filesystem)
            return await hedged(
                lambda: call(filesystem), after_seconds=hedge_after_seconds, on_second=on_hedge
            )

        coroutine = asyncio.wait_for(attempt(), self._deadline_seconds)
        future = asyncio.run_coroutine_threadsafe(coroutine, filesystem.loop)
        try:
            with cancelled_by(future.cancel):
                return future.result()
        except concurrent.futures.CancelledError:
            raise CancelledFetchError from None
        except TimeoutError as error:
            # The time-outs of a client (a silent connection) have a text, the deadline has none.
            text = str(error) or no_answer(self._deadline_seconds)
            raise TransientError(f"time-out: {scrub(text)}") from None
        finally:
            future.cancel()  # when this thread was interrupted; else without effect

    def close(self, closing: Callable[[Any], Coroutine[Any, Any, object] | None]) -> None:
        """Drops the file system; `closing` gives what to await for its connections to end."""
        if self._process != os.getpid():
            return
        with self._lock:
            filesystem, self._filesystem = self._filesystem, None
        if filesystem is None:
            return
        coroutine = closing(filesystem)
        if coroutine is not None:
            future = asyncio.run_coroutine_threadsafe(coroutine, filesystem.loop)
            with contextlib.suppress(Exception):
                future.result(_CLOSE_SECONDS)
