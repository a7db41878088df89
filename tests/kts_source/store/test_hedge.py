"""Checks that `hedged` sends a second request if the response to the first request is late."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from kts_source.store.request_policy import (
    Cancellation,
    CancelledFetchError,
    await_result,
    hedged,
)


class Attempts:
    """Records the requests that `hedged` starts. A request ends when the test sets its result."""

    def __init__(self) -> None:
        self.made: list[Future[str]] = []
        self.hedges = 0

    def call(self) -> str:
        future: Future[str] = Future()
        self.made.append(future)
        return await_result(future, 60, future.cancel)

    def count(self) -> None:
        self.hedges += 1

    def start(self, pool: ThreadPoolExecutor, *, after_seconds: float, number: int) -> Future[str]:
        """Calls `hedged` in a thread, waits until it has made `number` attempts, and returns the
        future of the call.
        """
        answer = pool.submit(hedged, self.call, after_seconds=after_seconds, on_second=self.count)
        deadline = time.monotonic() + 10
        while len(self.made) < number:
            assert time.monotonic() < deadline, "the attempt was not made"
            time.sleep(0.001)
        return answer


@pytest.fixture
def attempts() -> Attempts:
    return Attempts()


def test_second_request_is_not_sent_if_the_first_response_is_prompt(attempts: Attempts) -> None:
    with ThreadPoolExecutor(1) as pool:
        answer = attempts.start(pool, after_seconds=60, number=1)
        attempts.made[0].set_result("first")
        assert answer.result(10) == "first"
    assert attempts.hedges == 0


@pytest.mark.parametrize("winner", [0, 1])
def test_first_response_is_returned_and_the_slower_request_is_cancelled(
    attempts: Attempts, winner: int
) -> None:
    with ThreadPoolExecutor(1) as pool:
        answer = attempts.start(pool, after_seconds=0, number=2)
        attempts.made[winner].set_result(str(winner))
        assert answer.result(10) == str(winner)
    assert attempts.made[1 - winner].cancelled()
    assert attempts.hedges == 1


def test_response_of_second_request_is_returned_if_the_first_fails(attempts: Attempts) -> None:
    with ThreadPoolExecutor(1) as pool:
        answer = attempts.start(pool, after_seconds=0, number=2)
        attempts.made[0].set_exception(ConnectionError("reset"))
        time.sleep(0.01)
        assert not answer.done()
        attempts.made[1].set_result("second")
        assert answer.result(10) == "second"


def test_failure_of_both_requests_raises_error(attempts: Attempts) -> None:
    with ThreadPoolExecutor(1) as pool:
        answer = attempts.start(pool, after_seconds=0, number=2)
        for future in attempts.made:
            future.set_exception(ConnectionError("reset"))
        with pytest.raises(ConnectionError):
            answer.result(10)


def test_response_is_returned_if_another_request_fails_at_the_same_time() -> None:
    for _ in range(20):
        calls, both = list[int](), threading.Barrier(2)

        def call(calls: list[int] = calls, both: threading.Barrier = both) -> str:
            calls.append(1)
            is_first = len(calls) == 1
            both.wait(10)
            if is_first:
                raise OSError("late")
            return "second"

        def sleep() -> None:
            time.sleep(0.02)

        assert hedged(call, after_seconds=0.001, on_second=sleep) == "second"


def test_cancellation_of_the_caller_cancels_both_requests(attempts: Attempts) -> None:
    cancellation = Cancellation()

    def call() -> str:
        with cancellation.scope():
            return hedged(attempts.call, after_seconds=0, on_second=attempts.count)

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(call)
        while len(attempts.made) < 2:
            time.sleep(0.001)
        cancellation.cancel()
        with pytest.raises(CancelledFetchError):
            answer.result(10)
    assert all(future.cancelled() for future in attempts.made)
