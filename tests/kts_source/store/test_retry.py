from __future__ import annotations

import random
import time

import pytest

from kts_source.errors import StoreError, StoreUnavailableError
from kts_source.store import request_policy
from kts_source.store.object_store import StoreCounters, Tally
from kts_source.store.request_policy import RetryPolicy, TransientError


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Records the requested pauses instead of waiting."""
    pauses: list[float] = []
    monkeypatch.setattr(request_policy, "pause", pauses.append)
    return pauses


class Flaky:
    def __init__(self, failures: int) -> None:
        self.left = failures
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise TransientError(f"failure {self.calls}")
        return "done"


def test_request_is_not_repeated_after_success(pauses: list[float]) -> None:
    tally, operation = Tally(), Flaky(2)
    assert RetryPolicy().run(operation, uri="u", tally=tally) == "done"
    assert operation.calls == 3
    assert tally.snapshot == StoreCounters(retries=2)
    assert len(pauses) == 2


def test_error_after_last_attempt_lists_all_attempts(pauses: list[float]) -> None:
    tally, operation = Tally(), Flaky(99)
    with pytest.raises(
        StoreUnavailableError, match="all 3 attempts failed, last: failure 3"
    ) as caught:
        RetryPolicy(max_attempts=3).run(operation, uri="s3://b/k", tally=tally)
    assert operation.calls == 3
    assert tally.snapshot.retries == len(pauses) == 2
    assert [line.split(",")[0] for line in caught.value.attempts] == [
        "attempt 1",
        "attempt 2",
        "attempt 3",
    ]
    assert [line.rsplit(" ", 2)[1:] for line in caught.value.attempts] == [
        ["failure", str(number)] for number in (1, 2, 3)
    ]
    assert caught.value.uri == "s3://b/k"


def test_pauses_are_random_below_a_limit_that_doubles(pauses: list[float]) -> None:
    policy = RetryPolicy(max_attempts=9, first_pause_seconds=1, max_pause_seconds=20)
    for _ in range(50):
        with pytest.raises(StoreUnavailableError):
            policy.run(Flaky(99), uri="u", tally=Tally())
    for number in range(8):
        column = pauses[number::8]
        bound = min(2**number, 20)
        assert max(column) <= bound
        # Full jitter: anything from zero up, not a fixed pause with a little noise.
        assert min(column) < bound / 2 < max(column)


def test_permanent_error_ends_the_retries(pauses: list[float]) -> None:
    def broken() -> None:
        raise StoreError("final")

    with pytest.raises(StoreError, match="final"):
        RetryPolicy().run(broken, uri="u", tally=Tally())
    assert pauses == []


def test_no_attempt_starts_after_the_time_limit(pauses: list[float]) -> None:
    operation = Flaky(99)
    with pytest.raises(StoreUnavailableError):
        RetryPolicy(give_up_after_seconds=0).run(operation, uri="u", tally=Tally())
    assert operation.calls == 1
    assert pauses == []


def test_no_pause_exceeds_the_time_limit(
    pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "uniform", lambda _low, high: high)
    operation = Flaky(99)
    policy = RetryPolicy(first_pause_seconds=4, max_pause_seconds=60, give_up_after_seconds=7)
    with pytest.raises(StoreUnavailableError, match="2 attempts"):
        policy.run(operation, uri="u", tally=Tally())
    assert pauses == [4]


def test_pause_limit_does_not_overflow_after_many_attempts(pauses: list[float]) -> None:
    with pytest.raises(StoreUnavailableError, match="3000 attempts"):
        RetryPolicy(max_attempts=3000).run(Flaky(9999), uri="u", tally=Tally())
    assert max(pauses) <= 8


def test_first_attempt_counts_towards_the_time_limit(pauses: list[float]) -> None:
    class Slow(Flaky):
        def __call__(self) -> str:
            time.sleep(0.02)
            return super().__call__()

    operation = Slow(99)
    with pytest.raises(StoreUnavailableError, match="1 attempts"):
        RetryPolicy(give_up_after_seconds=0.01).run(operation, uri="u", tally=Tally())
    assert operation.calls == 1
    assert pauses == []


def test_permanent_error_is_not_chained_to_a_transient_error(pauses: list[float]) -> None:
    operation = Flaky(1)

    def then_broken() -> None:
        operation()
        raise StoreError("final")

    with pytest.raises(StoreError, match="final") as caught:
        RetryPolicy().run(then_broken, uri="u", tally=Tally())
    assert caught.value.__context__ is None
    assert len(pauses) == 1
