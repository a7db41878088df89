"""Checks that a listing is complete or raises an error, whichever request fails, and that it ends
at its deadline.
"""

from __future__ import annotations

import itertools
import os
import threading
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from kts_source.errors import AccessDeniedError, StoreError, StoreUnavailableError
from kts_source.secret import Secret
from kts_source.store.fsspec_store import FsspecStore
from kts_source.store.joined_store import FallbackStore
from kts_source.store.local_store import LocalStore
from kts_source.store.request_policy import Cancellation, CancelledFetchError, RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

QUICK = RetryPolicy(max_attempts=3, first_pause_seconds=0.001, max_pause_seconds=0.01)
KEYS = ["t/0/a", "t/0/b", "t/1/deep/c", "t/1/x", "u"]
_numbers = itertools.count()


class Faulty(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A memory file system that calls a hook before each listing."""

    protocol = "faulty"
    fault: Any = staticmethod(lambda _path: None)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("faulty://", "memory://")))

    def ls(self, path: str, detail: bool = True, **named: object) -> list[object]:
        self.fault(path)
        return list(super().ls(path, detail=detail, **named))


class FaultyAsync(AsyncFileSystem):  # type: ignore[misc]  # fsspec has no types
    """An asynchronous memory file system that calls a hook before each listing."""

    protocol = "faultyasync"
    cachable = False
    fault: Any = staticmethod(lambda _path: None)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(path.replace("faultyasync://", "memory://")))

    async def _ls(self, path: str, detail: bool = True, **named: object) -> object:
        self.fault(path)
        return MemoryFileSystem().ls(path, detail=detail)


@pytest.fixture(params=[Faulty, FaultyAsync])
def faulty(request: pytest.FixtureRequest) -> Iterator[tuple[type[Any], FsspecStore]]:
    kind = request.param
    fsspec.register_implementation(kind.protocol, kind, clobber=True)
    root = f"/listing-{next(_numbers)}"
    for key in KEYS:
        MemoryFileSystem().pipe_file(f"{root}/{key}", b"1")
    yield kind, FsspecStore(f"{kind.protocol}:/{root}", Secret({}), retry_policy=QUICK)
    kind.fault = staticmethod(lambda _path: None)
    MemoryFileSystem().rm(root, recursive=True)


def failing(end: str, error: Exception, times: int = 99) -> tuple[Any, list[str]]:
    """Returns a hook for listings, and the list of the folders that the hook counted. The hook
    counts listings of folders whose paths end with `end`, and raises `error` for the first
    `times` of them.
    """
    listed_paths: list[str] = []

    def fault(path: str) -> None:
        if path.rstrip("/").endswith(end):
            listed_paths.append(path)
            if len(listed_paths) <= times:
                raise error

    return staticmethod(fault), listed_paths


@pytest.mark.parametrize("folder", ["t", "t/0", "t/1", "t/1/deep"])
@pytest.mark.parametrize(
    ("error", "kind", "attempts"),
    [
        (PermissionError(13, "denied"), AccessDeniedError, 1),
        (OSError(5, "input/output error"), StoreError, 1),
        (ConnectionResetError("reset"), StoreUnavailableError, 3),
        (FileNotFoundError("may not look"), StoreUnavailableError, 3),
    ],
)
def test_folder_that_cannot_be_listed_raises_error(
    faulty: tuple[type[Any], FsspecStore],
    folder: str,
    error: Exception,
    kind: type[StoreError],
    attempts: int,
) -> None:
    filesystem, store = faulty
    assert [info.key for info in store.list_objects("")] == KEYS
    filesystem.fault, listed_paths = failing(folder, error)
    with pytest.raises(kind) as caught:
        list(store.list_objects(""))
    assert type(caught.value) is kind
    assert folder in str(caught.value)
    assert len(listed_paths) == attempts
    with pytest.raises(kind):
        list(store.list_objects(f"{folder}/"))
    with pytest.raises(kind):
        store.list_folders(f"{folder}/")


def test_failed_listing_is_retried(
    faulty: tuple[type[Any], FsspecStore],
) -> None:
    filesystem, store = faulty
    filesystem.fault, _ = failing("t/1", ConnectionResetError("reset"), times=2)
    assert [info.key for info in store.list_objects("")] == KEYS
    assert store.counters.retries == 2


def test_listing_omits_folder_that_is_deleted_during_the_listing(
    faulty: tuple[type[Any], FsspecStore],
) -> None:
    filesystem, store = faulty
    root = store._root

    def fault(path: str) -> None:
        if path.endswith("t/1/deep") and MemoryFileSystem().exists(f"{root}/t/1/deep"):
            MemoryFileSystem().rm(f"{root}/t/1/deep", recursive=True)

    filesystem.fault = staticmethod(fault)
    assert [info.key for info in store.list_objects("")] == [key for key in KEYS if "c" not in key]


def test_partition_listing_sends_one_request(faulty: tuple[type[Any], FsspecStore]) -> None:
    _, store = faulty
    assert [info.key for info in store.list_objects("t/0/")] == ["t/0/a", "t/0/b"]
    assert store.counters.list_requests == 1


def test_listing_skips_entry_that_names_the_listed_folder(
    faulty: tuple[type[Any], FsspecStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    filesystem, store = faulty
    if filesystem is FaultyAsync:
        pytest.skip("one of them is enough")
    real = Faulty.ls

    def with_markers(self: Faulty, path: str, detail: bool = True) -> list[object]:
        itself = {"name": path, "type": "directory", "size": 0}
        marker = {"name": f"{path}/", "type": "file", "size": 0}
        return [itself, marker, *list(real(self, path, detail))]

    monkeypatch.setattr(Faulty, "ls", with_markers)
    assert [info.key for info in store.list_objects("")] == KEYS
    assert store.list_folders("t/") == ["t/0/", "t/1/"]


# -- deadlines


@pytest.fixture
def hanging() -> Iterator[threading.Event]:
    """Makes every listing and read wait until the yielded event is set."""
    fsspec.register_implementation("faulty", Faulty, clobber=True)
    event = threading.Event()
    Faulty.fault = staticmethod(lambda _path: event.wait(30))
    yield event
    event.set()
    Faulty.fault = staticmethod(lambda _path: None)


def impatient() -> FsspecStore:
    policy = RetryPolicy(
        max_attempts=2,
        first_pause_seconds=0.001,
        max_pause_seconds=0.01,
        request_deadline_seconds=0.05,
    )
    return FsspecStore("faulty://hangs", Secret({}), retry_policy=policy)


def test_request_to_hanging_file_system_ends_at_the_deadline(hanging: threading.Event) -> None:
    store = impatient()
    with pytest.raises(
        StoreUnavailableError, match=r"0\.05 s \(option fetchDeadlineMs\)"
    ) as caught:
        store.list_folders("t/")
    assert caught.value.uri == "faulty://hangs/t/"
    assert "all 2 attempts failed within" in str(caught.value)
    assert str(caught.value).count("fetchDeadlineMs") == 1
    remaining = [thread for thread in threading.enumerate() if thread.name == "kts-store-call"]
    assert remaining
    # Daemon threads do not block interpreter exit.
    assert all(thread.daemon for thread in remaining)
    hanging.set()
    store._retry_policy = QUICK  # a machine that is busy may need longer than such a deadline
    assert store.list_folders("t/") == []


@pytest.mark.usefixtures("hanging")
def test_hanging_connection_is_not_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    connections_made: list[object] = []
    real = fsspec.filesystem

    def connect(*arguments: object, **named: object) -> object:
        connections_made.append(real(*arguments, **named))
        return connections_made[-1]

    monkeypatch.setattr(fsspec, "filesystem", connect)
    with pytest.raises(StoreUnavailableError):
        impatient().list_folders("t/")
    assert len(connections_made) == 2
    assert connections_made[0] is not connections_made[1]


def test_deadline_applies_to_reads_look_ups_and_connecting(
    hanging: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Faulty, "cat_file", lambda *_, **__: hanging.wait(30))
    with pytest.raises(StoreUnavailableError, match="fetchDeadlineMs"):
        impatient().get_range("x", 0, 1)
    monkeypatch.setattr(Faulty, "info", lambda *_, **__: hanging.wait(30))
    with pytest.raises(StoreUnavailableError, match="fetchDeadlineMs"):
        impatient().head("x")
    monkeypatch.setattr(Faulty, "__init__", lambda *_, **__: hanging.wait(30) and None)
    with pytest.raises(StoreUnavailableError, match="fetchDeadlineMs"):
        impatient().head("x")


@pytest.mark.usefixtures("hanging")
def test_cancelled_call_ends_immediately() -> None:
    cancellation = Cancellation()
    store = FsspecStore("faulty://hangs", Secret({}), retry_policy=QUICK)
    threading.Timer(0.05, cancellation.cancel).start()
    with cancellation.scope(), pytest.raises(CancelledFetchError):
        store.list_folders("")
    # The call still runs, but no thread waits for it.
    assert [thread for thread in threading.enumerate() if thread.name == "kts-store-call"]


# -- local folders


def test_local_folder_that_cannot_be_listed_raises_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in KEYS:
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(b"1")
    real = os.scandir

    def denied(folder: int) -> object:
        if os.path.samestat(os.fstat(folder), (tmp_path / "t" / "1").stat()):
            raise PermissionError(13, "Permission denied")
        return real(folder)

    monkeypatch.setattr(os, "scandir", denied)
    store = LocalStore(tmp_path)
    with pytest.raises(AccessDeniedError, match="t/1"):
        list(store.list_objects(""))
    with pytest.raises(AccessDeniedError, match="t/1"):
        store.list_folders("t/1/")


def test_unreadable_local_entry_raises_error(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "circle").symlink_to("circle")  # it may be a folder
    store = LocalStore(tmp_path)
    for look in (lambda: list(store.list_objects("t/")), lambda: store.list_folders("t/")):
        with pytest.raises(StoreError, match="circle"):
            look()


def test_listing_that_fails_midway_is_read_from_the_mirror(
    tmp_path: Path,
) -> None:
    for root, keys in (("first", "ab"), ("mirror", "abc")):
        (tmp_path / root).mkdir()
        for key in keys:
            (tmp_path / root / key).write_bytes(b"1")

    class Breaks(LocalStore):
        def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[Any]:
            yield next(super().list_objects(prefix, after=after))
            raise StoreUnavailableError("reset", uri="u")

    store = FallbackStore(Breaks(tmp_path / "first"), LocalStore(tmp_path / "mirror"))
    assert [info.key for info in store.list_objects("")] == ["a", "b", "c"]
