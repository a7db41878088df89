"""A thread that waits for an answer does what it was given for that time."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import fsspec.asyn
import pytest

from kts_source.read.coalesce import ByteRange
from kts_source.read.fetch import fetch_ranges
from kts_source.store.async_client import AsyncClient
from kts_source.store.meanwhile import doing_meanwhile, take_work
from kts_source.store.retry import TransientError
from tests.kts_source.planning.memory_store import MemoryStore


class FileSystem:
    """What `AsyncClient` needs of one."""

    def __init__(self) -> None:
        self.loop = fsspec.asyn.get_loop()


def client(prepare: Any = None) -> AsyncClient:  # noqa: ANN401
    return AsyncClient(FileSystem, deadline_seconds=10, prepare=prepare)


async def turned(event: threading.Event) -> str:
    for _ in range(5000):
        if event.is_set():
            return "answer"
        await asyncio.sleep(0.001)
    raise AssertionError("nobody worked")


def test_the_work_is_done_while_the_answer_is_awaited() -> None:
    event, threads = threading.Event(), []

    def work() -> None:
        threads.append(threading.current_thread())
        event.set()

    with doing_meanwhile(work):
        # The answer comes only once the work is done.
        assert client().run(lambda _: turned(event)) == "answer"
        assert client().run(lambda _: turned(event)) == "answer"
    assert threads == [threading.current_thread()]
    assert take_work() is None


def test_the_work_waits_for_the_client() -> None:
    prepared, order = threading.Event(), []

    async def prepare(_filesystem: FileSystem) -> None:
        await asyncio.sleep(0.01)
        order.append("client")
        prepared.set()

    done = threading.Event()

    def work() -> None:
        order.append("work")
        assert prepared.is_set()
        done.set()

    with doing_meanwhile(work):
        client(prepare).run(lambda _: turned(done))
    assert order == ["client", "work"]


def test_an_error_of_the_work_is_no_error_of_the_request() -> None:
    tried = threading.Event()

    def work() -> None:
        tried.set()
        raise ImportError("no decoder")

    with doing_meanwhile(work):
        assert client().run(lambda _: turned(tried)) == "answer"


def test_a_request_that_cannot_be_made_fails_as_without_work() -> None:
    async def prepare(_filesystem: FileSystem) -> None:
        raise ValueError("no such profile")

    done: list[None] = []
    with doing_meanwhile(lambda: done.append(None)), pytest.raises(ValueError, match="profile"):
        client(prepare).run(lambda _: asyncio.sleep(0))
    assert done == []


def test_preparing_obeys_the_deadline() -> None:
    async def prepare(_filesystem: FileSystem) -> None:
        await asyncio.sleep(60)

    slow = AsyncClient(FileSystem, deadline_seconds=0.01, prepare=prepare)
    with doing_meanwhile(lambda: None), pytest.raises(TransientError, match="deadline"):
        slow.run(lambda _: asyncio.sleep(0))


class Working(MemoryStore):
    """Does the work that waits in the thread of each read."""

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> bytes:
        if (work := take_work()) is not None:
            work()
        return super().get_range(key, start, stop, version=version)


@pytest.mark.parametrize("slow_start", [True, False])
def test_only_the_consumer_of_a_slow_start_works(slow_start: bool) -> None:
    store, threads = Working({"a": bytes(100)}), []
    ranges = [("a", None, ByteRange(start, start + 10)) for start in range(0, 100, 10)]
    with fetch_ranges(
        store,
        ranges,
        max_concurrent_requests=2,
        prefetch_bytes=20,
        slow_start=slow_start,
        meanwhile=lambda: threads.append(threading.current_thread()),
    ) as fetched:
        assert b"".join(one.data for one in fetched) == bytes(100)
    assert threads == [threading.current_thread()] * slow_start
