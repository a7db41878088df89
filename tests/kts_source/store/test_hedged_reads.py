"""Tests second requests for late responses while many threads read."""

from __future__ import annotations

import importlib.util
import itertools
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from kts_source.store.request_policy import RetryPolicy
from tests.kts_source.store.fake_cloud import DATA, ETAG, GENERATION, FakeCloud, Reply

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

POLICY = RetryPolicy(
    max_attempts=3,
    first_pause_seconds=0.001,
    connect_timeout_seconds=10.0,
    read_timeout_seconds=20.0,
    hedge_after_seconds=0.1,
)
READS = 96
LATE_SECONDS = 0.6


@pytest.fixture
def server(clean_environment: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCloud]:
    for name in list(os.environ):
        if name.startswith(("AZURE_", "GOOGLE_", "STORAGE_EMULATOR")):
            monkeypatch.delenv(name)
    with FakeCloud().serving() as cloud:
        yield cloud


@pytest.mark.parametrize("second", ["answers", "fails"])
@pytest.mark.parametrize("cloud", ["s3", "s3fs", "obstore gcs", "obstore azure", "presigned"])
def test_hedged_reads_return_the_requested_bytes(
    server: FakeCloud, tmp_path: Path, cloud: str, second: str
) -> None:
    if "obstore" in cloud and importlib.util.find_spec("obstore") is None:
        pytest.skip("obstore is not installed")
    numbers, late = itertools.count(), set[int]()

    def read(start: int, stop: int) -> Reply | None:
        if start in late and second == "fails":
            return 503, {"Content-Range": None}, b"busy"
        if next(numbers) % 12 == 5:
            late.add(start)
            time.sleep(LATE_SECONDS)
        return 206, {}, DATA[start:stop]

    server.read = read
    store = server.store(cloud, str(tmp_path), POLICY)
    version = {"obstore gcs": GENERATION}.get(cloud, ETAG)

    def read_one(number: int) -> bytes:
        start = number * 10
        return bytes(store.get_range("x", start, start + 10, version=version))

    with ThreadPoolExecutor(8) as pool:
        contents = list(pool.map(read_one, range(READS)))
    assert b"".join(contents) == DATA[: READS * 10]
    counters = store.counters
    assert counters.hedges >= 1
    assert counters.requests == READS + counters.hedges + counters.retries
    assert counters.bytes == READS * 10
    store.close()
