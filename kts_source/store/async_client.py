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
    from collections.abc import Callable, Coroutine

    from kts_source.store.counters import Tally
    from kts_source.store.retry import RetryPolicy

T = TypeVar("T")

_CLOSE_SECONDS = 2.0


class AsyncClient:
    """Owns the file system of this process and runs coroutines on its loop.

    Args:
        connect: Makes the file system.
        policy: The deadline of one `run`, and when a read is late.
        tally: Where second requests are counted.
    """

    def __init__(self, connect: Callable[[], Any], policy: RetryPolicy, tally: Tally) -> None:
        self._connect = connect
        self._policy = policy
        self._tally = tally
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

    def run(self, call: Callable[[Any], Coroutine[Any, Any, T]], *, hedge: bool = False) -> T:
        """The result of `call(filesystem)`, awaited on the file system's loop.

        Args:
            call: Makes one attempt.
            hedge: Whether a late answer is asked for a second time, if the policy says so.

        Raises:
            TransientError: The deadline passed.
            CancelledFetchError: The caller's scope was cancelled.
        """
        filesystem = self.filesystem

        async def attempt() -> T:
            if not hedge or self._policy.hedge_after_seconds is None:
                return await call(filesystem)
            await filesystem.set_session()  # two first requests at a time would make two
            return await hedged(
                lambda: call(filesystem),
                after_seconds=self._policy.hedge_after_seconds,
                on_second=lambda: self._tally.add(requests=1, hedges=1),
            )

        seconds = self._policy.request_deadline_seconds
        is_over = threading.Event()

        async def while_wanted() -> T:
            try:
                return await attempt()
            except Exception:
                if is_over.is_set():
                    # The loop would log what nobody waits for, with credentials in its text.
                    raise asyncio.CancelledError from None
                raise

        coroutine = asyncio.wait_for(while_wanted(), seconds)
        future = asyncio.run_coroutine_threadsafe(coroutine, filesystem.loop)

        def give_up() -> None:
            is_over.set()
            future.cancel()

        try:
            with cancelled_by(give_up):
                return future.result()
        except concurrent.futures.CancelledError:
            raise CancelledFetchError from None
        except TimeoutError as error:
            # The time-outs of a client (a silent connection) have a text, the deadline has none.
            raise TransientError(f"time-out: {scrub(str(error) or no_answer(seconds))}") from None
        finally:
            give_up()  # when this thread was interrupted; else without effect

    def drop(self, filesystem: Any) -> None:  # noqa: ANN401
        """Makes another one at the next use, unless this one was replaced already. Who still uses
        it may go on.
        """
        with self._lock:
            if self._filesystem is filesystem:
                self._filesystem = None

    def close(self, disconnect: Callable[[Any], Coroutine[Any, Any, object]] | None = None) -> None:
        """Drops the file system of this process; `disconnect` ends its connections."""
        if self._process != os.getpid():
            return
        with self._lock:
            filesystem, self._filesystem = self._filesystem, None
        if filesystem is not None and disconnect is not None:
            future = asyncio.run_coroutine_threadsafe(disconnect(filesystem), filesystem.loop)
            with contextlib.suppress(Exception):
                future.result(_CLOSE_SECONDS)
