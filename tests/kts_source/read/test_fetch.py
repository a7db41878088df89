"""Tests that a fetch returns ranges in order and respects the limits of requests and bytes."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kts_source.errors import ObjectNotFoundError, StoreError
from kts_source.secret import Secret
from kts_source.store.object_store import StoreCounters, Tally
from kts_source.store.open_store import open_store
from kts_source.store.request_policy import RetryPolicy, TransientError
from tests.faulty_proxy import Stall, faulty_proxy
from tests.kts_source.read.recording import (
    DATA,
    FetchRequest,
    RecordingStore,
    fetch,
    fetch_threads,
    fetching,
    requests,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.s3 import S3Server


@pytest.fixture(autouse=True)
def require_no_remaining_threads() -> Iterator[None]:
    yield
    assert fetch_threads() == []


@given(
    sizes=st.lists(st.integers(0, 300), max_size=20),
    threads=st.integers(1, 5),
    prefetch_bytes=st.integers(0, 2000),
    slow_start=st.booleans(),
)
def test_fetch_returns_ranges_in_order(
    sizes: list[int], threads: int, prefetch_bytes: int, slow_start: bool
) -> None:
    store = RecordingStore()
    ranges = []
    for number, size in enumerate(sizes):
        start = 17 * number
        ranges.append(FetchRequest(f"k{number}", f"v{number}", start, start + size))
    results = list(
        fetch(store, ranges, threads=threads, prefetch_bytes=prefetch_bytes, slow_start=slow_start)
    )
    assert [fetched.request for fetched in results] == ranges
    for request, data in results:
        assert data == DATA[request.start : request.stop]
    assert sorted(store.asked) == sorted(
        (fetched.key, fetched.start, fetched.stop, fetched.version) for fetched in ranges
    )
    assert store.max_running <= threads


def test_fetch_reads_nothing_before_its_first_result_is_requested() -> None:
    store = RecordingStore()
    with fetching(store, requests(3)):
        assert store.asked == []
        assert fetch_threads() == []


def test_read_ahead_respects_limit_of_bytes() -> None:
    store = RecordingStore()
    with fetching(store, requests(20), threads=16, prefetch_bytes=350) as results:
        next(results)
        # The consumer has the first range. Three more ranges of 100 bytes fit into 350 bytes.
        wait_for(store, 4)
        assert len(store.asked) == 4
        next(results)
        wait_for(store, 1)
        assert len(store.asked) == 5


def test_read_ahead_respects_limit_of_concurrent_requests() -> None:
    store = RecordingStore()
    store.gate.clear()
    with fetching(store, requests(50), threads=3, prefetch_bytes=1 << 30) as results:
        consumer = threading.Thread(target=next, args=(results,))
        consumer.start()
        wait_for(store, 3)
        assert len(store.asked) == 3
        store.gate.set()
        consumer.join()
    assert store.max_running == 3
    assert len(store.asked) < 50


def test_fetch_limits_the_number_of_queued_empty_ranges() -> None:
    store = RecordingStore()
    requested = 0

    def endless() -> Iterator[FetchRequest]:
        nonlocal requested
        while True:
            requested += 1
            yield FetchRequest("k", None, 0, 0)

    with fetching(store, endless(), threads=2, prefetch_bytes=1 << 30) as results:
        next(results)
        assert requested < 30


def test_range_larger_than_prefetch_bytes_is_read_alone() -> None:
    store = RecordingStore()
    with fetching(store, requests(3, size=1000), prefetch_bytes=10) as results:
        next(results)
        assert len(store.asked) == 1
        assert [fetched.request for fetched in results] == requests(3, size=1000)[1:]


def test_earlier_ranges_are_returned_before_a_read_error() -> None:
    store = RecordingStore()
    store.failing = {200: ObjectNotFoundError("gone"), 100: StoreError("earlier")}
    results = fetch(store, requests(20))
    assert next(results).data == DATA[:100]
    with pytest.raises(StoreError, match="earlier"):
        next(results)
    assert fetch_threads() == []
    with pytest.raises(StopIteration):
        next(results)
    assert len(store.asked) < 20


def test_requested_ranges_are_returned_before_an_error_of_the_request_iterator() -> None:
    def broken() -> Iterator[FetchRequest]:
        yield from requests(3)
        raise RuntimeError("the iterator failed")

    store = RecordingStore()
    with fetching(store, broken()) as results:
        assert [next(results).data for _ in range(3)] == [DATA[:100], DATA[100:200], DATA[200:300]]
        with pytest.raises(RuntimeError, match="the iterator failed"):
            next(results)


def test_close_of_fetch_cancels_pending_requests() -> None:
    store = RecordingStore()
    results = fetch(store, requests(50), threads=3)
    next(results)
    store.gate.clear()
    next(results, None)
    results.close()
    assert fetch_threads() == []
    assert store.running == 0
    assert len(store.asked) < 50
    results.close()
    assert next(results, None) is None


def test_fetch_ends_when_it_is_garbage_collected() -> None:
    store = RecordingStore()
    results = fetch(store, requests(50))
    next(results)
    assert fetch_threads() != []
    del results
    gc.collect()
    assert fetch_threads() == []


def test_close_of_fetch_interrupts_the_retry_pause() -> None:
    class Throttled(RecordingStore):
        def get_range(
            self, key: str, start: int, stop: int, *, version: str | None = None
        ) -> bytes:
            if start == 0:
                return super().get_range(key, start, stop, version=version)

            def refuse() -> bytes:
                self.begun.release()
                raise TransientError("the store asks to slow down")

            policy = RetryPolicy(first_pause_seconds=600, max_pause_seconds=1200)
            return policy.run(refuse, uri=key, tally=Tally())

    store = Throttled()
    results = fetch(store, requests(10))
    next(results)
    wait_for(store, 3)
    results.close()
    assert fetch_threads() == []


@pytest.mark.s3
def test_close_of_fetch_aborts_stalled_requests(s3_server: S3Server) -> None:
    bucket = s3_server.make_bucket()
    for key in ("answered", "stalled"):
        s3_server.put(bucket, key, DATA)
    with faulty_proxy(s3_server.endpoint) as proxy:
        options = {**s3_server.options, "s3.endpoint": proxy.endpoint, "s3.request-timeout": "300"}
        store = open_store(f"s3://{bucket}", Secret(options))
        version = store.head("stalled").version
        proxy.choose = lambda _method, path: Stall() if path.endswith("stalled") else None
        ranges = [request._replace(key="stalled", version=version) for request in requests(10)]
        results = fetch(store, [ranges[0]._replace(key="answered", version=None), *ranges[1:]])
        assert next(results).data == DATA[:100]
        results.close()
        assert fetch_threads() == []
        store.close()


def test_fetch_reads_several_objects_of_a_store(tmp_path: Path) -> None:
    ranges = []
    for name in "abc":
        (tmp_path / name).write_bytes(name.encode() * 1000)
    store = open_store(str(tmp_path), Secret({}))
    for name in "cab":
        version = store.head(name).version
        ranges += [FetchRequest(name, version, n, n + 250) for n in range(0, 1000, 250)]
    assert b"".join(fetched.data for fetched in fetch(store, ranges)) == (
        b"c" * 1000 + b"a" * 1000 + b"b" * 1000
    )
    assert store.counters == StoreCounters(requests=15, bytes=3000)


@pytest.mark.parametrize(("threads", "prefetch_bytes"), [(0, 1), (1, -1)])
def test_read_ahead_refuses_limits_out_of_range(threads: int, prefetch_bytes: int) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        fetch(RecordingStore(), [], threads=threads, prefetch_bytes=prefetch_bytes)
