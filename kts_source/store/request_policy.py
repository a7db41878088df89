"""Implements retries, deadlines, hedged requests and cancellation of requests to stores.

`RetryPolicy.run` is the only loop that repeats requests to stores and registries. Client libraries
make a single attempt, except that s3fs repeats the uploads of an export. A thread that calls a
store enters the scope of a `Cancellation`. When it is cancelled, the thread stops waiting for
responses and for the next attempt.
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
    """An attempt failed, but a retry may succeed.

    The text contains no credentials. Users never see this error, because the retry loop converts it
    to `StoreUnavailableError`.
    """


class CancelledFetchError(Exception):
    """The caller cancelled the request. Users never see this error."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Number of attempts, pauses between them, and timeouts of each attempt.

    Each pause has a random length between zero and an upper bound, which doubles after each attempt
    ("full jitter"). So tasks that are throttled together do not retry together.

    Attributes:
        max_attempts: Maximum number of attempts, including the first.
        first_pause_seconds: Upper bound of the first pause.
        max_pause_seconds: The upper bound of a pause never exceeds this time.
        give_up_after_seconds: No attempt starts later than this time after the start of the first
            attempt.
        request_deadline_seconds: Maximum time of one attempt, from the first byte of the request to
            the last byte of the response.
        connect_timeout_seconds: Maximum time for opening a connection.
        read_timeout_seconds: Maximum time without receiving a byte.
        hedge_after_seconds: If a read has no response after this time, a second request is sent.
            None disables second requests.
    """

    max_attempts: int = 6
    first_pause_seconds: float = 0.2
    max_pause_seconds: float = 8.0
    give_up_after_seconds: float = 120.0
    request_deadline_seconds: float = 60.0
    connect_timeout_seconds: float = 10.0
    read_timeout_seconds: float = 5.0
    hedge_after_seconds: float | None = None

    def run(self, operation: Callable[[], T], *, uri: str, tally: Tally) -> T:
        """Calls `operation` and returns its result. If it raises `TransientError`, calls it again
        after a pause.

        Other exceptions are not retried.

        Raises:
            StoreUnavailableError: All attempts failed, or the time for retries is over. The error
                contains the different texts of the failures.
        """
        start = time.monotonic()
        history: list[str] = []
        texts: set[str] = set()
        bound = self.first_pause_seconds
        while True:
            try:
                return operation()
            except TransientError as error:
                last = str(error)
            # This code is outside the `except` block, so that the error of the next attempt is not
            # chained to the error of this attempt.
            elapsed = time.monotonic() - start
            history.append(f"attempt {len(history) + 1}, failed after {elapsed:.2f} s: {last}")
            texts.add(last)
            bound = min(bound, self.max_pause_seconds)
            wait = random.uniform(0, bound)
            is_late = elapsed + wait >= self.give_up_after_seconds
            if is_late or len(history) >= self.max_attempts:
                last = last.rstrip(". ")
                advice = "Check the address and the network, or wait for the end of the outage"
                if len(texts) == 1:
                    message = f"all {len(history)} attempts failed within {elapsed:.1f} s: {last}"
                    raise StoreUnavailableError(f"{message}. {advice}", uri=uri) from None
                raise StoreUnavailableError(
                    f"all {len(history)} attempts failed, last: {last}. {advice}",
                    uri=uri,
                    attempts=tuple(history),
                ) from None
            tally.add(retries=1)
            pause(wait)
            bound *= 2


DEFAULT_RETRY_POLICY = RetryPolicy()


class Cancellation:
    """A flag that can be set once. Setting it calls all registered callbacks."""

    def __init__(self) -> None:
        self._is_set = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: dict[object, Callable[[], object]] = {}

    def cancel(self) -> None:
        """Sets the flag. Threads inside a scope of this cancellation stop pausing and waiting."""
        with self._lock:
            self._is_set.set()
            callbacks = list(self._callbacks.values())
            self._callbacks.clear()
        for callback in callbacks:
            callback()

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Applies this cancellation to the store calls of the current thread until the `with` block
        ends.
        """
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    @contextlib.contextmanager
    def calling(self, callback: Callable[[], object]) -> Iterator[None]:
        """Calls `callback` if the flag is already set, or is set before the `with` block ends."""
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
        """Sleeps. Raises `CancelledFetchError` if the flag is already set, or is set during the
        pause.
        """
        if self._is_set.wait(seconds):
            raise CancelledFetchError


@contextlib.contextmanager
def cancelled_by(abort: Callable[[], object]) -> Iterator[None]:
    """Calls `abort` if the current scope is cancelled before the `with` block ends."""
    current = _current.get()
    with contextlib.nullcontext() if current is None else current.calling(abort):
        yield


def pause(seconds: float) -> None:
    """Sleeps for a number of seconds, or until the current scope is cancelled.

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
    """Waits for a future, at most `seconds`, and returns its result.

    Calls `give_up`, which must cancel the future, if it stops waiting without a result.

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
    """Runs `call()` in a daemon thread and returns its result.

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
    """Runs `call()` and returns its result. If the result is late, runs a second `call()`
    concurrently, and returns the result that arrives first.

    Most responses of an object store are fast, but a few take ten times as long. A second request
    is often answered before such a slow response arrives. Hedging is off by default, because each
    late response costs one more request.

    Args:
        call: Makes one attempt. It is run in a thread of its own, in the scope of the current
            `Cancellation`. The slower attempt is cancelled.
        after_seconds: Time until the second attempt starts.
        on_second: Called when the second attempt starts.

    Raises:
        Exception: The first attempt failed before the second one started, or both attempts failed.
            If both failed, this is the later error.
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
