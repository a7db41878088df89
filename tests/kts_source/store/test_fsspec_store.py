from __future__ import annotations

import importlib.util
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from kts_source.errors import (
    AccessDeniedError,
    InvalidOptionError,
    MissingExtraError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreError,
    StoreUnavailableError,
    TruncatedObjectError,
)
from kts_source.secret import Secret
from kts_source.store.open_store import open_store
from kts_source.store.request_policy import RetryPolicy
from kts_source.store.storage_options import storage_options_from
from tests.kts_source.store.object_store_suite import DATA, ObjectStoreSuite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from kts_source.store.object_store import ObjectStore

NOTHING: Secret[Mapping[str, str]] = Secret({})
QUICK = RetryPolicy(max_attempts=3, first_pause_seconds=0.001, max_pause_seconds=0.01)
_numbers = itertools.count()


@dataclass
class Memory:
    """A folder in fsspec's memory file system, which all tests of a process share."""

    path: str
    root: str = field(default_factory=lambda: f"/place-{next(_numbers)}")
    storage: Secret[Mapping[str, str]] = field(default_factory=lambda: Secret({}))

    def __post_init__(self) -> None:
        self.path = f"memory:/{self.root}"

    def put(self, key: str, data: bytes) -> None:
        MemoryFileSystem().pipe_file(f"{self.root}/{key}", data)

    def delete(self, key: str) -> None:
        MemoryFileSystem().rm_file(f"{self.root}/{key}")


class TestMemoryStore(ObjectStoreSuite):
    requests_per_pinned_read = 2
    knows_missing_root = False

    @pytest.fixture(scope="class")
    @classmethod
    def make_root(cls) -> Iterator[Callable[[], Memory]]:
        before = set(MemoryFileSystem.store)
        yield lambda: Memory("")
        for path in set(MemoryFileSystem.store) - before:
            del MemoryFileSystem.store[path]

    @pytest.fixture
    def missing_root(self) -> Memory:
        return Memory("")


@pytest.mark.parametrize("url", ["memory://", "memory:///"])
def test_root_of_a_file_system_is_listed(url: str) -> None:
    MemoryFileSystem().pipe_file("/root-test/x", b"1")
    store = open_store(url, NOTHING)
    assert [info.key for info in store.list_objects("root-test/")] == ["root-test/x"]
    assert store.get_range("root-test/x", 0, 1) == b"1"
    assert store.uri("a").startswith("memory://")
    MemoryFileSystem().rm_file("/root-test/x")


@pytest.mark.parametrize(
    ("scheme", "extra"),
    [("gs", "gcs"), ("gcs", "gcs"), ("abfs", "azure"), ("abfss", "azure"), ("az", "azure")],
)
def test_missing_library_error_names_the_extra(
    scheme: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    needed = rf"{scheme}:// needs \w+\. Install it with: pip install .*\[{extra}\]'"
    with pytest.raises(MissingExtraError, match=needed):
        open_store(f"{scheme}://bucket/tier", NOTHING)


def test_unknown_url_schemes_are_refused() -> None:
    with pytest.raises(InvalidOptionError, match="unknown scheme nosuch://"):
        open_store("nosuch://x", NOTHING)


def test_path_with_credentials_is_refused_and_masked() -> None:
    with pytest.raises(InvalidOptionError, match="credentials") as caught:
        open_store("sftp://user:very-secret@host/x", NOTHING)
    assert "very-secret" not in str(caught.value)


def test_storage_options_are_passed_to_the_file_system() -> None:
    class Attentive(MemoryFileSystem):  # type: ignore[misc]
        given: ClassVar[list[object]] = []

        def __init__(self, **options: object) -> None:
            self.given.append(options.get("answer"))
            super().__init__()

    fsspec.register_implementation("attentive", Attentive)
    storage = storage_options_from({"storageoptions": '{"answer": 42}'})
    assert list(open_store("attentive://", storage).list_objects("x/")) == []
    assert set(Attentive.given) == {42}


class FailingFileSystem(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A memory file system whose reads raise the errors in `failures`, one error per read."""

    protocol = "failing"
    failures: list[Exception] = []  # noqa: RUF012  # one list on purpose
    short_by = 0

    def cat_file(self, path: str, start: int, end: int, **named: object) -> bytes:
        if self.failures:
            raise self.failures.pop(0)
        return bytes(super().cat_file(path, start=start, end=end - self.short_by))

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("failing://", "memory://")))


class CachingFileSystem(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A memory file system that caches its listings, as the cloud file systems do."""

    protocol = "caching"

    def __init__(self, **named: object) -> None:
        super().__init__(**named)
        self.kept: dict[tuple[str, str], Any] = {}

    def invalidate_cache(self, path: str | None = None) -> None:
        self.kept.clear()

    def _kept(self, method: str, path: str, **named: object) -> object:
        if (method, path) not in self.kept:
            self.kept[method, path] = getattr(super(), method)(path, **named)
        return self.kept[method, path]

    def ls(self, path: str, **named: object) -> object:
        return self._kept("ls", path, **named)

    def find(self, path: str, **named: object) -> object:
        return self._kept("find", path, **named)

    def info(self, path: str, **named: object) -> object:
        return self._kept("info", path, **named)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("caching://", "memory://")))


def test_cached_listings_of_fsspec_are_ignored() -> None:
    fsspec.register_implementation("caching", CachingFileSystem, clobber=True)
    memory = MemoryFileSystem()
    memory.pipe_file("/caching-test/a/x", b"1")
    store = open_store("caching://caching-test", NOTHING)
    version = store.head("a/x").version
    assert store.list_folders("") == ["a/"]
    assert [info.key for info in store.list_objects("")] == ["a/x"]
    memory.pipe_file("/caching-test/a/x", b"22")
    memory.pipe_file("/caching-test/b/y", b"1")
    assert store.list_folders("") == ["a/", "b/"]
    assert [info.key for info in store.list_objects("")] == ["a/x", "b/y"]
    assert store.head("a/x").size == 2
    with pytest.raises(ObjectChangedError):
        store.get_range("a/x", 0, 1, version=version)
    memory.rm("/caching-test", recursive=True)


class HttpError(Exception):
    """An error that has the HTTP status in one of the attributes that cloud clients use."""

    def __init__(self, **names: int) -> None:
        super().__init__("no luck at https://user:pw@host/x?sig=abcdef")
        self.__dict__.update(names)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    fsspec.register_implementation("failing", FailingFileSystem, clobber=True)
    monkeypatch.setattr(FailingFileSystem, "failures", [])
    MemoryFileSystem().pipe_file("/failing-test/x", DATA)
    yield open_store("failing://failing-test", NOTHING, retry_policy=QUICK)
    MemoryFileSystem().rm_file("/failing-test/x")


@pytest.mark.parametrize(
    "failure",
    [
        ConnectionResetError("reset"),
        TimeoutError(),
        HttpError(status=503),
        HttpError(status_code=500),
        HttpError(code=429),
    ],
)
def test_transient_errors_are_retried(failing: ObjectStore, failure: Exception) -> None:
    FailingFileSystem.failures += [failure, failure]
    assert failing.get_range("x", 0, 10) == DATA[:10]
    assert failing.counters.retries == 2


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (FileNotFoundError(), ObjectNotFoundError),
        (HttpError(code=404), ObjectNotFoundError),
        (PermissionError(), AccessDeniedError),
        (HttpError(status_code=403), AccessDeniedError),
        (HttpError(status=412), ObjectChangedError),
        (HttpError(status=416), TruncatedObjectError),
        (HttpError(status=400), StoreError),
        (ValueError("what?"), StoreError),
    ],
)
def test_permanent_errors_are_not_retried(
    failing: ObjectStore, failure: Exception, kind: type[StoreError]
) -> None:
    FailingFileSystem.failures += [failure]
    with pytest.raises(kind) as caught:
        failing.get_range("x", 0, 10)
    assert type(caught.value) is kind
    assert caught.value.uri == failing.uri("x")
    assert failing.counters.retries == 0


def test_short_responses_are_refused(failing: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FailingFileSystem, "short_by", 3)
    with pytest.raises(StoreUnavailableError, match="the response has 7 bytes"):
        failing.get_range("x", 0, 10)


def test_errors_contain_no_secret(failing: ObjectStore) -> None:
    FailingFileSystem.failures += [HttpError(status=400)]
    with pytest.raises(StoreError) as caught:
        failing.get_range("x", 0, 10)
    assert "no luck" in str(caught.value)
    assert "pw" not in str(caught.value)
    assert "abcdef" not in str(caught.value)


def test_asynchronous_file_system_reads_ranges(tmp_path: Path) -> None:
    import http.server
    import threading

    (tmp_path / "x").write_bytes(DATA)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(tmp_path))  # type: ignore[arg-type]

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            store = open_store(url, NOTHING, retry_policy=QUICK)
            assert store.get_range("x", 0, len(DATA)) == DATA
            with pytest.raises(ObjectNotFoundError):
                store.get_range("y", 0, 1)
            # This server ignores ranges and returns the full object.
            with pytest.raises(StoreError):
                store.get_range("x", 0, 10)
            store.close()
        finally:
            server.shutdown()
            thread.join()
