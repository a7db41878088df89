"""Checks that concurrent readers return all rows, and that all threads acquire locks in a
consistent order. This order makes deadlocks impossible.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import kts_source
from tests.golden_data import (
    ISOLATION_LEVELS,
    TIER,
    assert_same_rows,
    expected_table,
    tier_options,
)
from tests.quick import only

if TYPE_CHECKING:
    from tests.s3 import S3Server

ROOT = Path(__file__).resolve().parents[3]
OURS = (str(ROOT / "kts_source"), str(ROOT / "segment_format"))
READERS = 8


class LockOrders:
    """Records which locks a thread acquires while it holds other locks. A lock is named after the
    file and line that created it.
    """

    def __init__(self) -> None:
        self._held = threading.local()
        self._lock = threading.Lock()
        self._taken: defaultdict[str, set[str]] = defaultdict(set)
        self.created = 0

    def record_acquire(self, lock: str) -> None:
        stack = self._stack()
        with self._lock:
            for other in stack:
                if other != lock:
                    self._taken[other].add(lock)
        stack.append(lock)

    def record_release(self, lock: str) -> None:
        stack = self._stack()
        if lock in stack:  # another thread may release a lock
            stack.reverse()
            stack.remove(lock)
            stack.reverse()

    def cycles(self) -> list[str]:
        """Returns the names of locks that threads acquired in contradicting orders, which can cause
        a deadlock.
        """

        def reached(start: str) -> set[str]:
            visited: set[str] = set()
            pending = list(self._taken[start])
            while pending:
                lock = pending.pop()
                if lock not in visited:
                    visited.add(lock)
                    pending += self._taken.get(lock, ())
            return visited

        return [lock for lock in list(self._taken) if lock in reached(lock)]

    def _stack(self) -> list[str]:
        if not hasattr(self._held, "stack"):
            self._held.stack = []
        stack: list[str] = self._held.stack
        return stack


class WatchedLock:
    """A lock that records when it is acquired and released."""

    def __init__(self, inner: Any, line: str, orders: LockOrders) -> None:  # noqa: ANN401
        self._inner, self._line, self._orders = inner, line, orders

    def acquire(self, *arguments: Any, **options: Any) -> bool:  # noqa: ANN401
        is_acquired = bool(self._inner.acquire(*arguments, **options))
        if is_acquired:
            self._orders.record_acquire(self._line)
        return is_acquired

    def release(self) -> None:
        self._orders.record_release(self._line)
        self._inner.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._inner, name)


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> LockOrders:
    """Replaces the lock classes during the test. The returned object records in which order threads
    acquire the locks that `kts_source` and `segment_format` create.
    """
    lock_orders = LockOrders()

    def watched(make: Any) -> Any:  # noqa: ANN401
        def lock() -> Any:  # noqa: ANN401
            inner = make()
            frame = sys._getframe(1)
            while frame.f_back is not None and frame.f_code.co_filename == threading.__file__:
                frame = frame.f_back
            if not frame.f_code.co_filename.startswith(OURS):
                return inner
            lock_orders.created += 1
            line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            return WatchedLock(inner, line, lock_orders)

        return lock

    monkeypatch.setattr(threading, "Lock", watched(threading.Lock))
    monkeypatch.setattr(threading, "RLock", watched(threading.RLock))
    return lock_orders


def test_watchdog_detects_inconsistent_lock_orders() -> None:
    orders = LockOrders()
    first, second = (WatchedLock(threading.Lock(), name, orders) for name in ("first", "second"))
    with first, second:
        pass
    assert orders.cycles() == []
    with second, first:
        pass
    assert set(orders.cycles()) == {"first", "second"}


class Reader(threading.Thread):
    """Reads random scans until the deadline, partly or completely, and checks the rows."""

    def __init__(self, number: int, deadline: float, locations: list[dict[str, str]]) -> None:
        super().__init__(name=f"reader {number}", daemon=True)
        self._random = random.Random(f"reader {number}")
        self._deadline = deadline
        self._locations = locations
        self.error: BaseException | None = None
        self.full_reads = self.partial_reads = 0

    def run(self) -> None:
        try:
            while time.monotonic() < self._deadline:
                self._read()
        except BaseException as error:  # noqa: BLE001 - raised where the thread is joined
            self.error = error

    def _read(self) -> None:
        source = self._random
        topic = source.choice(("txn", "codecs", "encrypted", "epochs", "evolved"))
        level = source.choice(ISOLATION_LEVELS)
        options = {"includeHeaders": "true", "isolationLevel": level}
        options["targetPartitionBytes"] = source.choice(("16k", "64k", "128m"))
        scan = kts_source.scan(tier_options(topic, **options, **source.choice(self._locations)))
        threads, ordered = source.randint(1, 3), source.random() < 0.5
        expected = expected_table(topic, level)
        if source.random() < 0.5:
            with scan.to_reader(threads=threads, ordered=ordered) as reader:
                batches = []
                for batch in reader:
                    batches.append(batch)
                    if source.random() < 0.05:
                        time.sleep(0.01)  # a slow consumer
            assert_same_rows(pa.Table.from_batches(batches, scan.schema), expected)
            self.full_reads += 1
        else:
            rows = 0
            with closing(scan.batches(threads=threads, ordered=ordered)) as stream:
                for batch in stream:
                    rows += batch.num_rows
                    if source.random() < 0.3:
                        break
            assert 0 <= rows <= expected.num_rows
            self.partial_reads += 1


@pytest.mark.s3
@pytest.mark.parametrize("seconds", only(1, [2, 6]))
def test_concurrent_readers_acquire_locks_in_consistent_order(
    orders: LockOrders, s3_server: S3Server, tmp_path: Path, seconds: int
) -> None:
    cached = {"cacheDir": str(tmp_path / "cache"), "chunkCacheBytes": "50m"}
    remote = {"path": f"s3://{s3_server.upload(TIER)}", **s3_server.options}
    locations = [{}, {}, remote, {**remote, **cached}, cached]
    deadline = time.monotonic() + seconds
    readers = [Reader(number, deadline, locations) for number in range(READERS)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(seconds + 60)
        assert not reader.is_alive(), "a reader hangs"
        if reader.error is not None:
            raise reader.error
    assert sum(reader.full_reads for reader in readers) > 0
    assert sum(reader.partial_reads for reader in readers) > 0
    assert orders.created > READERS
    assert orders.cycles() == []
    deadline = time.monotonic() + 5  # a thread that is opening a connection completes it first
    while [thread.name for thread in threading.enumerate() if thread.name.startswith("kts-")]:
        assert time.monotonic() < deadline
        time.sleep(0.001)
