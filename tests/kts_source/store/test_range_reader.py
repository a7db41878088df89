"""Tests the threads that read ranges: their wait for credentials, and their use in a forked
process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import botocore.session
import pytest
from botocore.credentials import Credentials

from kts_source.errors import StoreUnavailableError
from kts_source.store import s3_ranges
from kts_source.store.request_policy import Cancellation, CancelledFetchError, RetryPolicy
from kts_source.store.s3_store import S3Store
from kts_source.store.storage_options import storage_options_from
from tests.kts_source.store.fake_cloud import DATA
from tests.kts_source.store.one_object import KEYS, OneObject

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def bucket(clean_environment: None) -> Iterator[OneObject]:
    with OneObject().serving() as server:
        yield server


@pytest.mark.parametrize("is_cancelled", [False, True])
@pytest.mark.parametrize("number", [1, 2])
def test_read_fails_if_credential_provider_times_out(
    bucket: OneObject, monkeypatch: pytest.MonkeyPatch, number: int, is_cancelled: bool
) -> None:
    """The provider times out at the first read, or when refused credentials are renewed. No thread
    may wait beyond its deadline.
    """
    requests_made, answer, scope = list[object](), threading.Event(), Cancellation()

    def credentials(session: object) -> Credentials:
        if session not in requests_made:
            requests_made.append(session)
        if requests_made.index(session) >= number - 1:
            answer.wait(20)
        return Credentials("AKENV", "secret-0123456789")

    monkeypatch.setattr(botocore.session.Session, "get_credentials", credentials)
    bucket.refuses = lambda _headers: True
    policy = RetryPolicy(max_attempts=1, request_deadline_seconds=20 if is_cancelled else 2)
    store = S3Store("s3://bucket", storage_options_from({"s3.endpoint": bucket.url}), policy)

    def read(_number: int) -> str:
        with scope.scope():
            try:
                return str(store.get_range("x", 0, 9))
            except (StoreUnavailableError, CancelledFetchError) as error:
                return type(error).__name__

    with ThreadPoolExecutor(4) as pool:
        began = time.monotonic()
        reading = [pool.submit(read, number) for number in range(4)]
        while len(requests_made) < number:
            assert time.monotonic() - began < 8
            time.sleep(0.001)
        if is_cancelled:
            scope.cancel()
        results = {future.result() for future in reading}
        store.close()
        assert time.monotonic() - began < 8
    answer.set()
    assert results == {"CancelledFetchError" if is_cancelled else "StoreUnavailableError"}


def test_child_forked_with_held_locks_can_read_in_threads(bucket: OneObject) -> None:
    """The child must replace locks that were held at the fork, because the threads that would
    release them do not exist in it.
    """
    store = bucket.store(**KEYS)
    assert store.get_range("x", 0, 9) == DATA[:9]
    with store._ranges._lock, store._ranges._deciding, s3_ranges._http_clients._lock:
        child = os.fork()
        if child == 0:
            try:
                sys.setswitchinterval(1e-6)
                began = threading.Barrier(16)

                def read(start: int) -> bytes:
                    began.wait(10)
                    return bytes(store.get_range("x", start, start + 9))

                for _ in range(10):
                    store._ranges.reset()
                    s3_ranges._http_clients.reset()
                    with ThreadPoolExecutor(16) as pool:
                        contents = list(pool.map(read, range(16), timeout=10))
                    assert contents == [DATA[start : start + 9] for start in range(16)]
                os._exit(0)
            finally:
                os._exit(1)
    for _ in range(3000):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        time.sleep(0.01)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail("the child hangs")
    assert status == 0
    store.close()
