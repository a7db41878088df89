"""Tests the slow start of a fetch, and reads of near stores, such as local folders."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from kts_source.read import fetch
from kts_source.read.fetch import ReadAhead, fetch_ranges
from tests.kts_source.read.recording import (
    DATA,
    FetchRequest,
    RecordingStore,
    fetch_threads,
    fetching,
    reads,
    requests,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@pytest.fixture(autouse=True)
def require_no_remaining_threads() -> Iterator[None]:
    yield
    assert fetch_threads() == []


def test_slow_start_reads_one_range_first() -> None:
    store = RecordingStore()
    with fetching(store, requests(20), slow_start=True) as results:
        first = next(results)
        assert first.data == DATA[:100]
        assert len(store.asked) == 1
        next(results)
        wait_for(store, 12)
        assert len(store.asked) == 12


def test_slow_start_limits_bytes_of_first_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kts_source.read.fetch.EARLY_BYTES", 1000)
    store = RecordingStore()
    with fetching(
        store, requests(100), slow_start=True, prefetch_bytes=5000, threads=20
    ) as results:
        next(results)
        next(results)
        wait_for(store, 10)  # all others at once: a single round trip for all of them
        for _ in range(8):
            next(results)
            assert len(store.asked) == 10
        next(results)  # the eleventh: the consumer probably continues
        wait_for(store, 51)
        assert len(store.asked) == 61


def test_slow_start_runs_callback_while_it_waits_for_first_response() -> None:
    store, threads = RecordingStore(), []
    store.gate.clear()

    def work() -> None:
        assert len(store.asked) == 1  # the request is in flight
        threads.append(threading.current_thread())
        store.gate.set()  # the response arrives only after the work is done

    with fetching(store, requests(5), slow_start=True, while_waiting=work) as results:
        assert b"".join(bytes(fetched.data) for fetched in results) == DATA[:500]
    assert threads == [threading.current_thread()]


def test_callback_is_not_run_if_first_response_is_ready() -> None:
    done: list[None] = []
    with fetching(
        RecordingStore(), requests(5), slow_start=True, while_waiting=lambda: done.append(None)
    ) as results:
        assert next(results).data == DATA[:100]
    assert done == []


def test_callback_runs_only_in_a_slow_start() -> None:
    store, done = RecordingStore(), list[None]()
    with fetching(store, requests(5), while_waiting=lambda: done.append(None)) as results:
        assert len(list(results)) == 5
    assert done == []


def test_error_of_callback_is_ignored() -> None:
    store = RecordingStore()
    store.gate.clear()

    def work() -> None:
        store.gate.set()
        raise ImportError("the decoder cannot be imported")

    with fetching(store, requests(2), slow_start=True, while_waiting=work) as results:
        assert next(results).data == DATA[:100]


# -- near stores


class Timed(RecordingStore):
    """A store that records the thread of each read. Each read also advances the test's clock by the
    next of `seconds`.
    """

    def __init__(self, seconds: Sequence[float], clock: Clock) -> None:
        super().__init__()
        self.threads: list[int] = []
        self._seconds = seconds
        self._clock = clock

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> bytes:
        self._clock.now += self._seconds[start // 10]
        self.threads.append(threading.get_ident())
        return super().get_range(key, start, stop, version=version)


class Clock:
    """A clock that advances only when a `Timed` store is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


def read_near(seconds: Sequence[float], monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Makes one read of ten bytes for each duration in `seconds`. Returns, for each read, whether
    the consumer's own thread executed it.
    """
    clock = Clock()
    monkeypatch.setattr(fetch, "time", clock)
    store = Timed(seconds, clock)
    ranges = [
        FetchRequest("key", None, 10 * position, 10 * position + 10)
        for position in range(len(seconds))
    ]
    ahead = ReadAhead(4, 1000, slow_start=False)
    with closing(fetch_ranges(reads(store), ranges, ahead, near=True)) as fetched:
        for number, answer in enumerate(fetched, 1):
            assert bytes(answer.data) == DATA[10 * number - 10 : 10 * number]
            own = [thread_id == threading.get_ident() for thread_id in store.threads]
            assert not all(own) or len(own) == number, "there is no read-ahead"
    assert number == len(seconds)
    return own


def test_near_store_that_is_fast_is_read_in_the_consumer_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert all(read_near([0.0] * 100, monkeypatch))


def test_single_slow_read_does_not_make_a_store_count_as_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert all(read_near([0.0008, 0.0008, 0.0008, 0.04] + [0.0008] * 96, monkeypatch))


def test_slow_near_store_is_read_ahead_after_six_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_near([0.02] * 100, monkeypatch) == [True] * 6 + [False] * 94


def test_near_store_that_becomes_slow_is_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_near([0.0] * 60 + [0.05] * 40, monkeypatch) == [True] * 63 + [False] * 37


def test_large_requests_may_take_longer_before_a_store_counts_as_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch, "_NEAR_BYTES_PER_SECOND", 100.0)
    assert all(read_near([0.1] * 50, monkeypatch))
