"""Provides a store that records its reads and delays them, and functions that fetch from it."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from kts_source.read.fetch import Fetched, ReadAhead, fetch_ranges
from kts_source.store.object_store import StoreCounters
from kts_source.store.request_policy import cancelled_by

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from kts_source.store.object_store import Data, ObjectInfo, ObjectStore

DATA = bytes(range(256)) * 40


class FetchRequest(NamedTuple):
    """Bytes [start, stop) of an object."""

    key: str
    version: str | None
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


class RecordingStore:
    """A store in which every object contains `DATA`. Each read is recorded, and waits until the
    event `gate` is set.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int, str | None]] = []
        self.running = 0
        self.max_running = 0
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Semaphore(0)
        self.failing: dict[int, Exception] = {}
        self._lock = threading.Lock()

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> bytes:
        with self._lock:
            self.asked.append((key, start, stop, version))
            self.running += 1
            self.max_running = max(self.max_running, self.running)
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

    pinning = "as the test does"
    remarks = ()
    is_near = False
    lists_in_pages = False

    @property
    def counters(self) -> StoreCounters:
        return StoreCounters(requests=len(self.asked))

    def uri(self, key: str) -> str:
        return key

    def list_folders(self, prefix: str) -> list[str]:
        raise NotImplementedError

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        raise NotImplementedError

    def head(self, key: str) -> ObjectInfo:
        raise NotImplementedError

    def close(self) -> None:
        pass


def requests(count: int, size: int = 100) -> list[FetchRequest]:
    return [FetchRequest("k", "v", n * size, (n + 1) * size) for n in range(count)]


def reads(store: ObjectStore) -> Callable[[FetchRequest], Data]:
    return lambda request: store.get_range(
        request.key, request.start, request.stop, version=request.version
    )


def fetch(
    store: ObjectStore,
    ranges: list[FetchRequest] | Iterator[FetchRequest],
    *,
    threads: int = 4,
    prefetch_bytes: int = 1000,
    slow_start: bool = False,
    while_waiting: Callable[[], object] | None = None,
) -> Generator[Fetched[FetchRequest]]:
    ahead = ReadAhead(threads, prefetch_bytes, slow_start=slow_start)
    return fetch_ranges(reads(store), ranges, ahead, while_waiting=while_waiting)


def fetching(
    store: ObjectStore,
    ranges: list[FetchRequest] | Iterator[FetchRequest],
    **how: Any,  # noqa: ANN401
) -> closing[Generator[Fetched[FetchRequest]]]:
    """Returns a context manager that starts a fetch and closes it at the end of the `with`
    block.
    """
    return closing(fetch(store, ranges, **how))


def fetch_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("kts-fetch")]


def wait_for(store: RecordingStore, begun: int) -> None:
    for _ in range(begun):
        assert store.begun.acquire(timeout=10)
