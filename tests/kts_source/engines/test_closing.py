"""Checks that a reader that stops early does not wait for pending responses of the store."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

import kts_source
from tests.faulty_proxy import faulty_proxy
from tests.golden_data import KEY_PREFIX, TIER, tier_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.faulty_proxy import Answer
    from tests.s3 import S3Server

pytestmark = pytest.mark.s3

LATE_SECONDS = 4.0


class DelayedResponses:
    """Delays the responses to GET requests of `.log` objects, except the first three."""

    def __init__(self) -> None:
        self.undelayed = 3
        self.waiting = threading.Event()
        self.released = threading.Event()

    def choose(self, method: str, path: str) -> Callable[[Answer], None] | None:
        if method != "GET" or ".log" not in path:
            return None
        self.undelayed -= 1
        return None if self.undelayed >= 0 else self._late

    def _late(self, _answer: Answer) -> None:
        self.waiting.set()
        self.released.wait(LATE_SECONDS)


@pytest.fixture
def delayed() -> DelayedResponses:
    return DelayedResponses()


@pytest.fixture
def tier(
    s3_server: S3Server, delayed: DelayedResponses, tmp_path: Path
) -> Iterator[kts_source.Scan]:
    (folder,) = (TIER / KEY_PREFIX).glob("txn-*")
    shutil.copytree(folder, tmp_path / KEY_PREFIX / folder.name)
    bucket = s3_server.upload(tmp_path)
    with faulty_proxy(s3_server.endpoint) as proxy:
        options = {**s3_server.options, "path": f"s3://{bucket}", "s3.endpoint": proxy.endpoint}
        options |= {"targetPartitionBytes": "32k", "cache": "false"}
        scan = kts_source.scan(tier_options("txn", **options))
        assert len(scan.tasks) > 9
        proxy.choose = delayed.choose
        yield scan
        delayed.released.set()


def test_close_aborts_waiting_threads(tier: kts_source.Scan, delayed: DelayedResponses) -> None:
    batches = tier.batches(threads=4)
    next(batches)
    assert delayed.waiting.wait(10)
    began = time.monotonic()
    batches.close()
    # A thread that is opening a connection first completes the connection, then closes it.
    while [thread for thread in threading.enumerate() if thread.name.startswith("kts-")]:
        assert time.monotonic() - began < LATE_SECONDS / 2
        time.sleep(0.001)
    assert time.monotonic() - began < LATE_SECONDS / 2


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Lets SIGINT raise KeyboardInterrupt, also in a background job, whose shell ignores SIGINT."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.mark.usefixtures("interrupts")
def test_ctrl_c_aborts_waiting_threads(tier: kts_source.Scan, delayed: DelayedResponses) -> None:
    moments: list[float] = []

    def interrupt() -> None:
        if delayed.waiting.wait(10):
            moments.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        tier.count(threads=4)
    assert time.monotonic() - moments[0] < LATE_SECONDS / 2
