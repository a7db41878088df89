"""Many readers in threads of one process: the rows of each, whatever the others do, and no two
locks of ours taken in both orders.
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

if TYPE_CHECKING:
    from tests.s3 import S3Server

ROOT = Path(__file__).resolve().parents[3]
OURS = (str(ROOT / "kts_source"), str(ROOT / "segment_format"))
READERS = 8
SECONDS = 6


class Orders:
    """Which lock was taken while which other was held, by the lines that made them."""

    def __init__(self) -> None:
        self._held = threading.local()
        self._lock = threading.Lock()
        self._taken: defaultdict[str, set[str]] = defaultdict(set)
        self.made = 0

    def took(self, place: str) -> None:
        stack = self._stack()
        with self._lock:
            for other in stack:
                if other != place:
                    self._taken[other].add(place)
        stack.append(place)

    def gave(self, place: str) -> None:
        stack = self._stack()
        if place in stack:  # a lock may be given back by another thread
            stack.reverse()
            stack.remove(place)
            stack.reverse()

    def circles(self) -> list[str]:
        """Locks that are taken while they are held, by way of others."""

        def reached(start: str) -> set[str]:
            seen: set[str] = set()
            left = list(self._taken[start])
            while left:
                place = left.pop()
                if place not in seen:
                    seen.add(place)
                    left += self._taken.get(place, ())
            return seen

        return [place for place in list(self._taken) if place in reached(place)]

    def _stack(self) -> list[str]:
        if not hasattr(self._held, "stack"):
            self._held.stack = []
        stack: list[str] = self._held.stack
        return stack


class WatchedLock:
    """A lock that tells when it is taken."""

    def __init__(self, inner: Any, place: str, orders: Orders) -> None:  # noqa: ANN401
        self._inner, self._place, self._orders = inner, place, orders

    def acquire(self, *given: Any, **more: Any) -> bool:  # noqa: ANN401
        taken = bool(self._inner.acquire(*given, **more))
        if taken:
            self._orders.took(self._place)
        return taken

    def release(self) -> None:
        self._orders.gave(self._place)
        self._inner.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._inner, name)


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> Orders:
    """Watches the locks that our code makes from now on."""
    found = Orders()

    def watched(make: Any) -> Any:  # noqa: ANN401
        def lock() -> Any:  # noqa: ANN401
            inner = make()
            frame = sys._getframe(1)
            while frame.f_back is not None and frame.f_code.co_filename == threading.__file__:
                frame = frame.f_back
            if not frame.f_code.co_filename.startswith(OURS):
                return inner
            found.made += 1
            place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            return WatchedLock(inner, place, found)

        return lock

    monkeypatch.setattr(threading, "Lock", watched(threading.Lock))
    monkeypatch.setattr(threading, "RLock", watched(threading.RLock))
    return found


def test_watchdog_detects_inconsistent_lock_orders() -> None:
    orders = Orders()
    one, other = (WatchedLock(threading.Lock(), name, orders) for name in ("one", "other"))
    with one, other:
        pass
    assert orders.circles() == []
    with other, one:
        pass
    assert set(orders.circles()) == {"one", "other"}


class Reader(threading.Thread):
    """Reads random scans until the time is over."""

    def __init__(self, number: int, until: float, places: list[dict[str, str]]) -> None:
        super().__init__(name=f"reader {number}", daemon=True)
        self._random = random.Random(f"reader {number}")
        self._until = until
        self._places = places
        self.error: BaseException | None = None
        self.whole = self.parts = 0

    def run(self) -> None:
        try:
            while time.monotonic() < self._until:
                self._read()
        except BaseException as error:  # noqa: BLE001 - raised where the thread is joined
            self.error = error

    def _read(self) -> None:
        source = self._random
        topic = source.choice(("txn", "codecs", "encrypted", "epochs", "evolved"))
        level = source.choice(ISOLATION_LEVELS)
        options = {"includeHeaders": "true", "isolationLevel": level}
        options["targetPartitionBytes"] = source.choice(("16k", "64k", "128m"))
        scan = kts_source.scan(tier_options(topic, **options, **source.choice(self._places)))
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
            self.whole += 1
        else:
            rows = 0
            with closing(scan.batches(threads=threads, ordered=ordered)) as some:
                for batch in some:
                    rows += batch.num_rows
                    if source.random() < 0.3:
                        break
            assert 0 <= rows <= expected.num_rows
            self.parts += 1


@pytest.mark.s3
def test_concurrent_readers_take_locks_in_one_order(
    orders: Orders, s3_server: S3Server, tmp_path: Path
) -> None:
    cached = {"cacheDir": str(tmp_path / "cache"), "chunkCacheBytes": "50m"}
    far = {"path": f"s3://{s3_server.upload(TIER)}", **s3_server.options}
    places = [{}, {}, far, {**far, **cached}, cached]
    until = time.monotonic() + SECONDS
    readers = [Reader(number, until, places) for number in range(READERS)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(SECONDS + 60)
        assert not reader.is_alive(), "a reader hangs"
        if reader.error is not None:
            raise reader.error
    assert sum(reader.whole for reader in readers) > 0
    assert sum(reader.parts for reader in readers) > 0
    assert orders.made > READERS
    assert orders.circles() == []
    until = time.monotonic() + 5  # who makes a connection just then does so to the end
    while [one.name for one in threading.enumerate() if one.name.startswith("kts-")]:
        assert time.monotonic() < until
        time.sleep(0.001)
