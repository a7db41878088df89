"""Tests that every store rejects successful responses with wrong bytes, and ends endless
listings.
"""

from __future__ import annotations

import gzip
import importlib.util
import os
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import StoreError, StoreUnavailableError
from kts_source.store.http_exchange import Answer, Exchange
from kts_source.store.request_policy import TransientError
from tests.kts_source.store.fake_cloud import CLOUDS, DATA, QUICK, FakeCloud, Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kts_source.store.object_store import ObjectStore

LIBRARIES = {
    "obstore gcs": ("obstore", "gcsfs"),
    "gcsfs": ("gcsfs",),
    "obstore azure": ("obstore", "adlfs"),
    "adlfs": ("adlfs",),
}


@pytest.fixture
def server(clean_environment: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCloud]:
    for name in list(os.environ):
        if name.startswith(("AZURE_", "GOOGLE_", "STORAGE_EMULATOR")):
            monkeypatch.delenv(name)
    with FakeCloud().serving() as cloud:
        yield cloud


@pytest.fixture(params=CLOUDS)
def cloud(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(
    server: FakeCloud, cloud: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[ObjectStore]:
    for library in LIBRARIES.get(cloud, ()):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    if cloud in ("gcsfs", "adlfs"):
        monkeypatch.setenv("KTS_TUNING", "off")
    store = server.store(cloud, str(tmp_path))
    yield store
    store.close()


WRONG: dict[str, dict[str, str | None]] = {
    "another range": {"Content-Range": "bytes 100-109/2048"},
    "another unit": {"Content-Range": "items 100-109/2048"},
    "unit in capitals, another range": {"Content-Range": "Bytes 100-109/2048"},
    "equals sign": {"Content-Range": "bytes=100-109/2048"},
    "empty header": {"Content-Range": ""},
    "unsatisfied": {"Content-Range": "bytes */2048"},
    "no header": {"Content-Range": None},
    "words": {"Content-Range": "all of it"},
    "more than the object": {"Content-Range": "bytes 0-9/5"},
}


def always(reply: Reply) -> Callable[[int, int], Reply]:
    return lambda _start, _stop: reply


@pytest.mark.parametrize("start", [0, 5])
def test_response_with_another_range_is_refused(
    server: FakeCloud, store: ObjectStore, start: int
) -> None:
    for fault, headers in WRONG.items():
        server.read = always((206, headers, DATA[100:110]))
        with pytest.raises(StoreError) as caught:
            pytest.fail(f"{fault}: {bytes(store.get_range('x', start, start + 10))!r}")
        assert caught.value.uri == store.uri("x")
    assert store.counters.bytes == 0


@pytest.mark.parametrize("start", [0, 5])
def test_full_object_instead_of_a_range_is_refused(
    server: FakeCloud, store: ObjectStore, start: int
) -> None:
    server.read = lambda _start, _stop: (200, {"Content-Range": None}, DATA)
    with pytest.raises(StoreError):
        store.get_range("x", start, start + 10)


@pytest.mark.parametrize("start", [0, 5])
def test_compressed_objects_are_read_as_stored(
    server: FakeCloud, store: ObjectStore, start: int
) -> None:
    """Byte ranges are positions in the stored bytes, even if the object has a Content-Encoding."""
    stored = gzip.compress(b"", mtime=0).ljust(60, b"-")

    def read(first: int, stop: int) -> Reply:
        content_range = f"bytes {first}-{stop - 1}/{len(stored)}"
        headers: dict[str, str | None] = {
            "Content-Encoding": "gzip",
            "Content-Range": content_range,
        }
        return 206, headers, stored[first:stop]

    server.read = read
    assert store.get_range("x", start, start + 20) == stored[start : start + 20]
    assert store.get_range("x", start, len(stored)) == stored[start:]


def test_transient_failure_causes_one_request_per_attempt(
    server: FakeCloud, store: ObjectStore
) -> None:
    server.read = lambda _start, _stop: (503, {"Content-Range": None}, b"busy")
    with pytest.raises(StoreUnavailableError):
        store.get_range("x", 0, 10)
    assert len(server.reads) == QUICK.max_attempts == store.counters.requests


def test_truncated_response_causes_one_request_per_attempt(
    server: FakeCloud, store: ObjectStore
) -> None:
    server.read = lambda first, stop: (
        206,
        {"Content-Length": str(stop - first), "Connection": "close"},
        DATA[first : stop - 1],
    )
    # The server closes the connection after too few bytes.
    server.server.RequestHandlerClass.protocol_version = "HTTP/1.0"  # type: ignore[attr-defined]
    with pytest.raises(StoreUnavailableError):
        store.get_range("x", 0, 10)
    assert len(server.reads) == QUICK.max_attempts


LISTED = ("s3", "gcsfs", "adlfs")


@pytest.mark.parametrize("cloud", LISTED, indirect=True)
@pytest.mark.parametrize("length", [1, 2, 5])
def test_listing_with_repeated_token_raises_error(
    server: FakeCloud, store: ObjectStore, length: int
) -> None:
    server.next_token = lambda token: str((int(token or 0) + 1) % length)
    with pytest.raises(StoreError, match="continuation token twice"):
        list(store.list_objects("t/"))
    assert len(server.seen) <= length + 2


@pytest.mark.parametrize("cloud", LISTED, indirect=True)
def test_listing_of_many_pages_can_be_repeated(server: FakeCloud, store: ObjectStore) -> None:
    """The second listing repeats the tokens of the first."""
    pages = 12
    server.next_token = lambda token: (
        None if int(token or 0) + 1 == pages else str(int(token or 0) + 1)
    )
    for _ in range(2):
        assert len(list(store.list_objects("t/"))) == pages


def test_responses_that_together_cover_a_range_are_accepted_in_any_order() -> None:
    ranges = [Answer(206, f"bytes {position}-{position + 9}/90", 10) for position in (25, 5, 15)]
    Exchange("x", ranges).require_range(5, 35)
    for wrong in (ranges[:2], [*ranges[1:], Answer(206, "bytes 26-35/90", 10)]):
        with pytest.raises(TransientError):
            Exchange("x", wrong).require_range(5, 35)
    Exchange("x", []).require_range(5, 35)
