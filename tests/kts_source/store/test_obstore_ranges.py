"""Tests how errors of obstore are parsed, and what happens to cancelled requests."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kts_source.store.client_store import AsyncClient
from kts_source.store.object_store import Tally
from kts_source.store.obstore_stores import _Loop, read_error
from kts_source.store.request_policy import Cancellation, CancelledFetchError
from tests.kts_source.store.fake_cloud import QUICK

# -- errors of obstore 0.12

TOLD = [
    (
        "GenericError",
        "Generic S3 error: Error performing GET http://h/b/k in 4.5ms - Server returned non-2xx"
        " status code: 400 Bad Request: <Error><Code>RequestTimeout</Code></Error>"
        "\n\nDebug source:\nx",
        (400, "RequestTimeout"),
    ),
    (
        # The object key in this text looks like a response.
        "FileNotFoundError",
        "Object at location a status code: 503 x not found: Error performing GET http://h/b/k in"
        " 43ms - Server returned non-2xx status code: 404 Not Found: ",
        (404, ""),
    ),
    (
        "GenericError",
        "Generic S3 error: Wanted range starting at 9, but object was only 3 bytes long",
        (416, ""),
    ),
    ("GenericError", "Generic S3 error: HTTP error: request or response body error", (0, "")),
    (
        "UnauthenticatedError",
        "The operation lacked valid authentication credentials for path k: Error performing GET"
        " http://h/b/k in 4ms - Server returned non-2xx status code: 401 Unauthorized: ",
        (401, ""),
    ),
    (
        "UnauthenticatedError",
        "The operation lacked valid authentication credentials for path External GCP credential"
        " provider: OSError: x\n\nDebug source:\nx",
        (0, ""),
    ),
    ("NotModifiedError", "Object at location k not modified: x", (304, "")),
]


@pytest.mark.parametrize(("name", "text", "expected"), TOLD)
def test_error_text_contains_status_and_code(
    name: str, text: str, expected: tuple[int, str]
) -> None:
    failure = read_error(name, text)
    assert (failure.status, failure.code) == expected
    assert failure.was_sent is ("provider" not in text)
    assert "Debug" not in failure.text


# -- abandoned requests


def test_failure_of_a_cancelled_request_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """If a task's error is never read, asyncio logs it when the task is garbage-collected. The text
    of the error may contain secrets.
    """
    client = AsyncClient(_Loop, QUICK, Tally())
    begun, ended = threading.Event(), threading.Event()

    async def attempt(_loop: object) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.set()
            raise ValueError("with a secret") from None

    scope = Cancellation()
    with ThreadPoolExecutor(1) as pool:

        def read() -> None:
            with scope.scope():
                client.run(attempt)

        reading = pool.submit(read)
        assert begun.wait(10)
        scope.cancel()
        with pytest.raises(CancelledFetchError):
            reading.result(10)
        assert ended.wait(10)
    for _ in range(3):
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0.01), _Loop().loop).result(10)
        gc.collect()
    assert "secret" not in caplog.text
