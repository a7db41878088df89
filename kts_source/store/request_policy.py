"""Retries, deadlines, second requests and cancellation of requests to stores.

`RetryPolicy.run` is the only loop that repeats requests to stores and registries. Client libraries
are set to a single attempt, except that s3fs repeats the parts of an export's uploads. Threads that
run store calls enter the scope of a `Cancellation`; cancelling it ends their waits and pauses.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import random
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from kts_source.errors import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kts_source.store.object_store import Tally

T = TypeVar("T")

_current: ContextVar[Cancellation | None] = ContextVar("cancellation", default=None)


class TransientError(Exception):
    """A failed attempt after which a retry may succeed.

    Its text is free of credentials. Users never see it: the retry loop converts it to
    `StoreUnavailableError`.
    """


class CancelledFetchError(Exception):
    """The caller cancelled the request. Users never see it."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Number of attempts, pauses between them, and timeouts of each attempt.

    A pause is drawn at random between zero and a bound that doubles ("full jitter"), so tasks that
    were throttled together do not retry together.

    Attributes:
        max_attempts: Maximum number of attempts, including the first.
        first_pause_seconds: Bound of the first pause.
        max_pause_seconds: Maximum of the doubling bound.
        give_up_after_seconds: No attempt starts after this much time since the first one started.
        request_deadline_seconds: Deadline of one attempt, from the first byte of the request to the
            last byte of the response.
        connect_timeout_seconds: Connect timeout.
        read_timeout_seconds: Read timeout between bytes.
        hedge_after_seconds: Time without a response after which a ranged read is sent a second
            time; None never sends a second request.
    """

    max_attempts: int = 6
    first_pause_seconds: float = 0.2
    max_pause_seconds: float = 8.0
    give_up_after_seconds: float = 120.0
    request_deadline_seconds: float = 60.0
    connect_timeout_seconds: float = 1.0
    read_timeout_seconds: float = 5.0
    hedge_after_seconds: float | None = None

    def run(self, operation: Callable[[], T], *, uri: str, tally: Tally) -> T:
        """Returns the operation's result, repeating it after each `TransientError`.

        Any other exception ends the loop at once.

        Raises:
            StoreUnavailableError: Every attempt failed. It carries the history of the attempts.
        """
        start = time.monotonic()
        history: list[str] = []
        bound = self.first_pause_seconds
        while True:
            try:
                return operation()
            except TransientError as error:
                last = str(error)
            # Outside the handler, so that an error of the next attempt is not chained to this
            # error.
            elapsed = time.monotonic() - start
            history.append(f"attempt {len(history) + 1}, failed after {elapsed:.2f} s: {last}")
            bound = min(bound, self.max_pause_seconds)
            wait = random.uniform(0, bound)
            is_late = elapsed + wait >= self.give_up_after_seconds
            if is_late or len(history) >= self.max_attempts:
                raise StoreUnavailableError(
                    f"all {len(history)} attempts failed, last: {last}",
                    uri=uri,
                    attempts=tuple(history),
                ) from None
            tally.add(retries=1)
            pause(wait)
            bound *= 2


DEFAULT_RETRY_POLICY = RetryPolicy()


class Cancellation:
    """A flag that is set once and then calls all registered callbacks."""

    def __init__(self) -> None:
        self._is_set = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: dict[object, Callable[[], object]] = {}

    def cancel(self) -> None:
        """Ends all pauses and waits in the scopes of this cancellation."""
        with self._lock:
            self._is_set.set()
            callbacks = list(self._callbacks.values())
            self._callbacks.clear()
        for callback in callbacks:
            callback()

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Applies the cancellation to store calls of this thread until the block ends."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    @contextlib.contextmanager
    def calling(self, callback: Callable[[], object]) -> Iterator[None]:
        """Calls `callback` if the flag is set before the block ends, or was set already."""
        key = object()
        with self._lock:
            is_set = self._is_set.is_set()
            if not is_set:
                self._callbacks[key] = callback
        if is_set:
            callback()
        try:
            yield
        finally:
            with self._lock:
                self._callbacks.pop(key, None)

    def pause(self, seconds: float) -> None:
        """Sleeps. Raises `CancelledFetchError` as soon as the flag is set."""
        if self._is_set.wait(seconds):
            raise CancelledFetchError


@contextlib.contextmanager
def cancelled_by(abort: Callable[[], object]) -> Iterator[None]:
    """Calls `abort` if the current scope is cancelled before the block ends."""
    current = _current.get()
    with contextlib.nullcontext() if current is None else current.calling(abort):
        yield


def pause(seconds: float) -> None:
    """Sleeps.

    Raises:
        CancelledFetchError: The current scope was cancelled.
    """
    current = _current.get()
    if current is None:
        time.sleep(seconds)
    else:
        current.pause(seconds)


def deadline_error(seconds: float) -> TransientError:
    """Returns the error for an attempt that exceeded its deadline."""
    return TransientError(
        f"timeout: no complete response by the deadline {seconds:g} s (option fetchDeadlineMs)"
    )


def await_result(future: Future[T], seconds: float, give_up: Callable[[], object]) -> T:
    """Returns the result of a future.

    `give_up` must cancel the future. It is called when this thread stops waiting, for any reason.

    Raises:
        TransientError: The deadline passed.
        CancelledFetchError: The caller's scope was cancelled.
    """
    try:
        with cancelled_by(give_up):
            return future.result(seconds)
    except concurrent.futures.CancelledError:
        raise CancelledFetchError from None
    except TimeoutError:
        if future.done() and not future.cancelled():
            return future.result()  # or the call's own TimeoutError
        raise deadline_error(seconds) from None
    finally:
        give_up()


def within_deadline(seconds: float, call: Callable[[], T]) -> T:
    """Returns the result of `call()`, which runs in a daemon thread.

    A call that misses the deadline keeps running, but does not block interpreter exit.

    Raises:
        TransientError: The deadline passed.
        CancelledFetchError: The caller's scope was cancelled.
    """
    future: Future[T] = Future()

    def run() -> None:
        with contextlib.suppress(concurrent.futures.InvalidStateError):  # the caller gave up
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001  # raised in the caller's thread
                future.set_exception(error)

    threading.Thread(target=run, name="kts-store-call", daemon=True).start()
    return await_result(future, seconds, future.cancel)


def hedged(call: Callable[[], T], *, after_seconds: float, on_second: Callable[[], object]) -> T:
    """Returns the result of `call()`. If it is late, runs a second `call()` and returns the first
    result of both.

    Most responses of an object store are fast, but a few take ten times as long. A second request
    often finishes before such a straggler. It costs one more request per late response, so it is
    off by default.

    Args:
        call: Makes one attempt, in its own thread, with the current `Cancellation`. The slower
            attempt is cancelled.
        after_seconds: Time after which the first attempt is late.
        on_second: Called when the second attempt starts.

    Raises:
        Exception: The error of the first attempt if it failed before it was late. Otherwise, if
            both failed, the error of the attempt that failed last.
    """
    cancellation = Cancellation()

    def attempt() -> T:
        with cancellation.scope():
            return call()

    with (
        ThreadPoolExecutor(2, thread_name_prefix="kts-hedge") as pool,
        cancelled_by(cancellation.cancel),
    ):
        try:
            waiting = {pool.submit(attempt)}
            done, _ = concurrent.futures.wait(waiting, after_seconds)
            if not done:
                on_second()
                waiting.add(pool.submit(attempt))
            while True:
                done, waiting = concurrent.futures.wait(waiting, return_when=FIRST_COMPLETED)
                answered = [future for future in done if future.exception() is None]
                if answered or not waiting:
                    return (answered or list(done))[0].result()
        finally:
            cancellation.cancel()
