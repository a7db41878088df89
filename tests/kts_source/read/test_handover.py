"""Tests reads in several threads: they return all batches, in order if requested, and buffer only
few batches that the consumer has not yet taken.
"""

from __future__ import annotations

import threading
import time
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kts_source.read import handover
from kts_source.read.handover import in_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


def reads_of(sizes: list[int]) -> list[Callable[[], Iterator[pa.RecordBatch]]]:
    def read(number: int, size: int) -> Iterator[pa.RecordBatch]:
        for index in range(size):
            yield batch(number, index)

    return [partial(read, number, size) for number, size in enumerate(sizes)]


def pairs(batches: Iterator[pa.RecordBatch]) -> list[tuple[int, int]]:
    return [tuple(record_batch.column("n").to_pylist()) for record_batch in batches]


def live_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("kts-read")]


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(0, 5), max_size=8), threads=st.integers(1, 5))
def test_all_batches_are_returned_exactly_once(sizes: list[int], threads: int) -> None:
    due = [(number, index) for number, size in enumerate(sizes) for index in range(size)]
    assert pairs(in_threads(reads_of(sizes), threads, ordered=True)) == due
    loose = pairs(in_threads(reads_of(sizes), threads, ordered=False))
    assert sorted(loose) == due
    assert live_threads() == []


@pytest.mark.parametrize("ordered", [True, False])
def test_slow_read_delays_later_reads_only_if_ordered(ordered: bool) -> None:
    second_has_ended = threading.Event()

    def late() -> Iterator[pa.RecordBatch]:
        yield batch(0, 0)
        assert second_has_ended.wait(30)
        yield batch(0, 1)

    def second() -> Iterator[pa.RecordBatch]:
        yield batch(1, 0)
        yield batch(1, 1)
        second_has_ended.set()

    pairs_found = pairs(in_threads([late, second, *reads_of([1, 1, 1])], 2, ordered=ordered))
    in_order = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 0), (1, 0), (2, 0)]
    assert sorted(pairs_found) == sorted(in_order)
    assert (pairs_found == in_order) == ordered


@pytest.mark.parametrize("ordered", [True, False])
def test_error_of_a_read_is_raised_and_ends_other_reads(ordered: bool) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield batch(1, 0)
        raise ValueError("the read failed")

    reads = [*reads_of([3]), broken, *reads_of([1000] * 4)]
    received: list[pa.RecordBatch] = []
    with pytest.raises(ValueError, match="the read failed"):
        received.extend(in_threads(reads, 2, ordered=ordered))
    if ordered:
        assert pairs(iter(received)) == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert live_threads() == []


@pytest.mark.parametrize("fails_late", [True, False])
def test_exception_kept_by_the_caller_does_not_keep_batches_in_memory(fails_late: bool) -> None:
    size, waiting = 1 << 20, threading.Event()

    def broken() -> Iterator[pa.RecordBatch]:
        yield from ()
        assert not fails_late or waiting.wait(30)
        raise ValueError("the read failed")

    def large() -> Iterator[pa.RecordBatch]:
        for _ in range(8):
            yield pa.record_batch({"n": pa.nulls(size // 8, pa.int64())})
        waiting.set()

    before = pa.total_allocated_bytes()
    batches = in_threads([*reads_of([1]), broken, large], 3, ordered=True)
    assert pairs(iter([next(batches)])) == [(0, 0)]
    assert waiting.wait(30)
    assert pa.total_allocated_bytes() - before >= 7 * size
    with pytest.raises(ValueError, match="the read failed") as kept:
        next(batches)
    assert kept.tb is not None
    assert pa.total_allocated_bytes() - before < size


def test_interrupt_kept_by_the_caller_does_not_keep_batches_in_memory() -> None:
    size, waiting = 1 << 20, threading.Event()

    def large() -> Iterator[pa.RecordBatch]:
        for _ in range(8):
            yield pa.record_batch({"n": pa.nulls(size // 8, pa.int64())})
        waiting.set()

    def late() -> Iterator[pa.RecordBatch]:
        assert waiting.wait(30)
        yield batch(0, 0)

    before = pa.total_allocated_bytes()
    batches = in_threads([late, large], 2, ordered=True)
    next(batches)
    next(batches)
    with pytest.raises(KeyboardInterrupt) as kept:
        batches.throw(KeyboardInterrupt())
    assert kept.tb is not None
    # The consumer still holds the batch that was returned last.
    assert pa.total_allocated_bytes() - before < 2 * size


@pytest.mark.parametrize("ordered", [True, False])
def test_close_ends_all_threads_and_reads(ordered: bool) -> None:
    closed: list[int] = []

    def endless(number: int) -> Iterator[pa.RecordBatch]:
        try:
            while True:
                yield batch(number, 0)
        finally:
            closed.append(number)

    reads = [partial(endless, number) for number in range(9)]
    with closing(in_threads(reads, 3, ordered=ordered)) as batches:
        next(batches)
    assert live_threads() == []
    assert set(closed) <= {0, 1, 2}
    assert 0 in closed


def test_batches_that_wait_for_a_slow_consumer_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "WAITING_BYTES", 4 * batch(0, 0).nbytes)
    lock, begun = threading.Lock(), [0]

    def counted(size: int) -> Iterator[pa.RecordBatch]:
        for index in range(size):
            with lock:
                begun[0] += 1
            yield batch(index, index)

    reads = [partial(counted, size) for size in (50, 1, 1, 1, 1, 1, 1, 1, 1, 1, 50, 50)]
    with closing(in_threads(reads, 2, ordered=True)) as batches:
        for consumed in range(1, 60):
            next(batches)
            if consumed % 20 == 0:
                time.sleep(0.05)
                # Each of two threads has at most 2 * 4 waiting batches and one batch in progress.
                assert begun[0] - consumed <= 18


def test_no_thread_starts_before_the_first_batch_is_requested() -> None:
    batches = in_threads(reads_of([5]), 2, ordered=True)
    time.sleep(0.01)
    assert live_threads() == []
    batches.close()
