from __future__ import annotations

import gc
import threading
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kts_source.errors import ObjectNotFoundError, StoreError
from kts_source.read.coalesce import ByteRange
from kts_source.read.fetch import FetchedRanges, FetchRequest, fetch_ranges
from kts_source.secret import Secret
from kts_source.store.cancel import cancelled_by
from kts_source.store.counters import StoreCounters, Tally
from kts_source.store.open_store import open_store
from kts_source.store.retry import RetryPolicy, TransientError
from tests.faulty_proxy import Stall, faulty_proxy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kts_source.store.object_store import ObjectInfo, ObjectStore
    from tests.s3 import S3Server

DATA = bytes(range(256)) * 40


class RecordingStore:
    """Objects that are all `DATA`; reads wait for a gate and are written down."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int, str | None]] = []
        self.running = 0
        self.most_running = 0
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Semaphore(0)
        self.failing: dict[int, Exception] = {}
        self._lock = threading.Lock()

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> bytes:
        with self._lock:
            self.asked.append((key, start, stop, version))
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        self.begun.release()
        try:
            with cancelled_by(self.gate.set):
                self.gate.wait()
            if start in self.failing:
                raise self.failing[start]
            return DATA[start:stop]
        finally:
            with self._lock:
                self.running -= 1

    @property
    def counters(self) -> StoreCounters:
        return StoreCounters(requests=len(self.asked))

    def uri(self, key: str) -> str:
        return key

    def list_folders(self, prefix: str) -> list[str]:
        raise NotImplementedError

    def list_objects(self, prefix: str) -> Iterator[ObjectInfo]:
        raise NotImplementedError

    def get_object(self, key: str, *, max_bytes: int, version: str | None = None) -> bytes:
        raise NotImplementedError

    def head(self, key: str) -> ObjectInfo:
        raise NotImplementedError

    def close(self) -> None:
        pass


def requests(count: int, size: int = 100) -> list[FetchRequest]:
    return [FetchRequest("k", "v", ByteRange(n * size, (n + 1) * size)) for n in range(count)]


def fetch(
    store: ObjectStore,
    wanted: list[FetchRequest] | Iterator[FetchRequest],
    *,
    threads: int = 4,
    prefetch_bytes: int = 1000,
    slow_start: bool = False,
) -> FetchedRanges:
    return fetch_ranges(
        store,
        wanted,
        max_concurrent_requests=threads,
        prefetch_bytes=prefetch_bytes,
        slow_start=slow_start,
    )


def fetch_threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("kts-fetch")]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert fetch_threads() == []


@given(
    sizes=st.lists(st.integers(0, 300), max_size=20),
    threads=st.integers(1, 5),
    prefetch_bytes=st.integers(0, 2000),
    slow_start=st.booleans(),
)
def test_results_are_the_ranges_in_order(
    sizes: list[int], threads: int, prefetch_bytes: int, slow_start: bool
) -> None:
    store = RecordingStore()
    wanted = []
    for number, size in enumerate(sizes):
        start = 17 * number
        wanted.append(FetchRequest(f"k{number}", f"v{number}", ByteRange(start, start + size)))
    results = list(
        fetch(store, wanted, threads=threads, prefetch_bytes=prefetch_bytes, slow_start=slow_start)
    )
    assert [one.request for one in results] == wanted
    for request, data in results:
        assert data == DATA[request.byte_range.start : request.byte_range.stop]
    assert sorted(store.asked) == sorted(
        (key, span.start, span.stop, version) for key, version, span in wanted
    )
    assert store.most_running <= threads


def test_nothing_is_read_before_it_is_asked_for() -> None:
    store = RecordingStore()
    with fetch(store, requests(3)):
        assert store.asked == []
        assert fetch_threads() == []


def wait_for(store: RecordingStore, begun: int) -> None:
    for _ in range(begun):
        assert store.begun.acquire(timeout=10)


def test_read_ahead_is_bounded_in_bytes() -> None:
    store = RecordingStore()
    with fetch(store, requests(20), threads=16, prefetch_bytes=350) as results:
        next(results)
        # The first is the consumer's; three more fit into 350 bytes.
        wait_for(store, 4)
        assert len(store.asked) == 4
        next(results)
        wait_for(store, 1)
        assert len(store.asked) == 5


def test_read_ahead_is_bounded_in_requests() -> None:
    store = RecordingStore()
    store.gate.clear()
    with fetch(store, requests(50), threads=3, prefetch_bytes=1 << 30) as results:
        consumer = threading.Thread(target=next, args=(results,))
        consumer.start()
        wait_for(store, 3)
        assert len(store.asked) == 3
        store.gate.set()
        consumer.join()
    assert store.most_running == 3
    assert len(store.asked) < 50


def test_tiny_ranges_make_no_long_queue() -> None:
    store = RecordingStore()
    taken = 0

    def endless() -> Iterator[FetchRequest]:
        nonlocal taken
        while True:
            taken += 1
            yield FetchRequest("k", None, ByteRange(0, 0))

    with fetch(store, endless(), threads=2, prefetch_bytes=1 << 30) as results:
        next(results)
        assert taken < 30


def test_a_range_larger_than_the_read_ahead_is_read_alone() -> None:
    store = RecordingStore()
    with fetch(store, requests(3, size=1000), prefetch_bytes=10) as results:
        next(results)
        assert len(store.asked) == 1
        assert [one.request for one in results] == requests(3, size=1000)[1:]


def test_slow_start_reads_one_range_until_the_second_is_wanted() -> None:
    store = RecordingStore()
    with fetch(store, requests(20), slow_start=True) as results:
        first = next(results)
        assert first.data == DATA[:100]
        assert len(store.asked) == 1
        assert fetch_threads() == []
        next(results)
        wait_for(store, 12)
        assert len(store.asked) == 12


def test_slow_start_reads_little_in_all_until_more_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kts_source.read.fetch.EARLY_BYTES", 1000)
    store = RecordingStore()
    with fetch(store, requests(100), slow_start=True, prefetch_bytes=5000, threads=20) as results:
        next(results)
        next(results)
        wait_for(store, 10)  # all the others at once: one round trip for them together
        for _ in range(8):
            next(results)
            assert len(store.asked) == 10
        next(results)  # the eleventh: who wants more than that is not about to stop
        wait_for(store, 51)
        assert len(store.asked) == 61


def test_an_error_comes_in_its_place() -> None:
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


def test_an_error_of_the_plan_comes_in_its_place() -> None:
    def broken() -> Iterator[FetchRequest]:
        yield from requests(3)
        raise RuntimeError("no more")

    store = RecordingStore()
    with fetch(store, broken()) as results:
        assert [next(results).data for _ in range(3)] == [DATA[:100], DATA[100:200], DATA[200:300]]
        with pytest.raises(RuntimeError, match="no more"):
            next(results)


def test_closing_ends_what_is_under_way() -> None:
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


def test_a_forgotten_fetch_ends() -> None:
    store = RecordingStore()
    results = fetch(store, requests(50))
    next(results)
    assert fetch_threads() != []
    del results
    gc.collect()
    assert fetch_threads() == []


def test_closing_interrupts_the_pause_before_a_retry() -> None:
    class Throttled(RecordingStore):
        def get_range(
            self, key: str, start: int, stop: int, *, version: str | None = None
        ) -> bytes:
            if start == 0:
                return super().get_range(key, start, stop, version=version)

            def refuse() -> bytes:
                self.begun.release()
                raise TransientError("slow down")

            policy = RetryPolicy(first_pause_seconds=600, max_pause_seconds=1200)
            return policy.run(refuse, uri=key, tally=Tally())

    store = Throttled()
    results = fetch(store, requests(10))
    next(results)
    wait_for(store, 3)
    results.close()
    assert fetch_threads() == []


@pytest.mark.s3
def test_closing_aborts_requests_that_stall(s3_server: S3Server) -> None:
    bucket = s3_server.make_bucket()
    for key in ("answered", "stalled"):
        s3_server.put(bucket, key, DATA)
    with faulty_proxy(s3_server.endpoint) as proxy:
        options = {**s3_server.options, "s3.endpoint": proxy.endpoint, "s3.request-timeout": "300"}
        store = open_store(f"s3://{bucket}", Secret(options))
        version = store.head("stalled").version
        proxy.choose = lambda _method, path: Stall() if path.endswith("stalled") else None
        wanted = [FetchRequest("stalled", version, span) for _, _, span in requests(10)]
        results = fetch(store, [wanted[0]._replace(key="answered", version=None), *wanted[1:]])
        assert next(results).data == DATA[:100]
        results.close()
        assert fetch_threads() == []
        store.close()


def test_ranges_of_several_objects_of_a_real_store(tmp_path: Path) -> None:
    wanted = []
    for name in "abc":
        (tmp_path / name).write_bytes(name.encode() * 1000)
    store = open_store(str(tmp_path), Secret({}))
    for name in "cab":
        version = store.head(name).version
        wanted += [FetchRequest(name, version, ByteRange(n, n + 250)) for n in range(0, 1000, 250)]
    assert b"".join(one.data for one in fetch(store, wanted)) == (
        b"c" * 1000 + b"a" * 1000 + b"b" * 1000
    )
    assert store.counters == StoreCounters(requests=15, bytes=3000)


@pytest.mark.parametrize(("threads", "prefetch_bytes"), [(0, 1), (1, -1)])
def test_bounds_out_of_range_are_refused(threads: int, prefetch_bytes: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        fetch(RecordingStore(), [], threads=threads, prefetch_bytes=prefetch_bytes)


# -- near stores


class ThreadsNoted(RecordingStore):
    """Notes the thread of each read, which gives its core away so many times."""

    def __init__(self, waits: int) -> None:
        super().__init__()
        self.threads: list[int] = []
        self._waits = waits

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> bytes:
        self.threads.append(threading.get_ident())
        for _ in range(self._waits):
            time.sleep(1e-4)
        return super().get_range(key, start, stop, version=version)


def near(store: ThreadsNoted, count: int) -> FetchedRanges:
    wanted = [("key", None, ByteRange(10 * at, 10 * at + 10)) for at in range(count)]
    return fetch_ranges(
        store, iter(wanted), max_concurrent_requests=4, prefetch_bytes=1000, near=True
    )


def test_bytes_in_memory_are_read_by_who_wants_them_and_not_ahead() -> None:
    store = ThreadsNoted(waits=0)
    with near(store, 100) as fetched:
        for number, answer in enumerate(fetched, 1):
            assert bytes(answer.data) == DATA[10 * number - 10 : 10 * number]
            assert len(store.asked) == number
    assert number == 100
    assert set(store.threads) == {threading.get_ident()}


def test_bytes_that_must_be_waited_for_are_read_ahead() -> None:
    store = ThreadsNoted(waits=20)
    with near(store, 100) as fetched:
        data = b"".join(answer.data for answer in fetched)
    assert data == DATA[:1000]
    first, *others = dict.fromkeys(store.threads)
    assert first == threading.get_ident()
    assert others
    assert store.threads.count(first) <= 2
