from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import (
    AccessDeniedError,
    InvalidKeyError,
    InvalidOptionError,
    ObjectChangedError,
    StoreError,
    StoreNotFoundError,
)
from kts_source.secret import Secret
from kts_source.store.local_store import LocalStore
from kts_source.store.open_store import open_store
from tests.kts_source.store.object_store_suite import DATA, ObjectStoreSuite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kts_source.store.object_store import ObjectStore

NOTHING: Secret[Mapping[str, str]] = Secret({})


@dataclass
class Folder:
    root: Path
    path: str
    storage: Secret[Mapping[str, str]] = field(default_factory=lambda: Secret({}))
    _ticks: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def put(self, key: str, data: bytes) -> None:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        # File systems may round modification times to milliseconds, so two writes of a test may
        # get the same time.
        status = path.stat()
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + next(self._ticks) * 1_000_000))

    def delete(self, key: str) -> None:
        path = self.root / key
        path.unlink()
        path.parent.rmdir()


class TestLocalStore(ObjectStoreSuite):
    @pytest.fixture(scope="class", params=["plain", "file://", "file:"])
    @classmethod
    def make_root(
        cls, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
    ) -> Callable[[], Folder]:
        def make() -> Folder:
            root = tmp_path_factory.mktemp("place") / "a b%20c#d"
            root.mkdir()
            url = root.as_uri()
            path = {"plain": str(root), "file://": url, "file:": f"file:{url[7:]}"}
            return Folder(root, path[request.param])

        return make

    @pytest.fixture
    def missing_root(self, tmp_path: Path) -> Folder:
        return Folder(tmp_path / "none", str(tmp_path / "none"))


def store_of(root: Path) -> ObjectStore:
    return open_store(str(root), NOTHING)


def test_uri_is_the_url_of_the_file(tmp_path: Path) -> None:
    assert store_of(tmp_path).uri("x y/z") == (tmp_path / "x y" / "z").as_uri()
    assert open_store("/", NOTHING).uri("etc") == "file:///etc"


def test_relative_path_starts_at_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "x").write_bytes(b"here")
    monkeypatch.chdir(tmp_path)
    store = open_store("sub", NOTHING)
    monkeypatch.chdir("/")
    assert store.get_range("x", 0, 4) == b"here"


def test_file_url_of_another_host_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="host"):
        open_store("file://server/share", NOTHING)
    assert open_store("file://localhost/x", NOTHING).uri("") == "file:///x/"


def test_absolute_keys_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"1")
    store = store_of(tmp_path)
    for key in (str(tmp_path / "x"), "//x", "/"):
        with pytest.raises(InvalidKeyError, match="absolute"):
            store.get_range(key, 0, 1)
        with pytest.raises(InvalidKeyError, match="absolute"):
            store.list_folders(key)


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (root / "in").mkdir(parents=True)
    (root / "in" / "x").write_bytes(b"x")
    return root


def test_links_inside_the_root_are_followed(linked: Path) -> None:
    (linked / "folder").symlink_to("in")
    (linked / "file").symlink_to("in/x")
    store = store_of(linked)
    assert [info.key for info in store.list_objects("")] == ["file", "folder/x", "in/x"]
    assert store.list_folders("") == ["folder/", "in/"]
    assert store.get_range("folder/x", 0, 1) == store.get_range("file", 0, 1)


@pytest.mark.parametrize("target", ["../outside", "../outside/secret", ".."])
def test_links_to_paths_outside_the_root_are_refused(linked: Path, target: str) -> None:
    (linked / "link").symlink_to(target)
    store = store_of(linked)
    key = "link" if target.endswith("secret") else "link/secret"
    with pytest.raises(InvalidKeyError, match="symbolic link leads out") as caught:
        store.get_range(key, 0, 1)
    assert caught.value.uri == store.uri(key)
    with pytest.raises(InvalidKeyError, match="symbolic link leads out"):
        store.head(key)
    with pytest.raises(InvalidKeyError, match="symbolic link leads out"):
        list(store.list_objects(""))


def test_root_may_be_a_link(linked: Path) -> None:
    alias = linked.parent / "alias"
    alias.symlink_to(linked)
    assert store_of(alias).get_range("in/x", 0, 1) == b"x"


def test_cycle_of_links_raises_error(linked: Path) -> None:
    (linked / "in" / "up").symlink_to("..")
    with pytest.raises(StoreError, match="symbolic link"):
        list(store_of(linked).list_objects(""))
    (linked / "in" / "up").unlink()
    (linked / "self").symlink_to("self")
    with pytest.raises(StoreError, match="symbolic link"):
        store_of(linked).get_range("self", 0, 1)


def test_link_without_target_is_not_an_object(linked: Path) -> None:
    (linked / "gone").symlink_to("in/none")
    assert [info.key for info in store_of(linked).list_objects("")] == ["in/x"]


def test_named_pipe_is_refused_without_waiting_for_a_writer(linked: Path) -> None:
    os.mkfifo(linked / "pipe")
    store = store_of(linked)
    with pytest.raises(StoreError, match="not a regular file"):
        store.get_range("pipe", 0, 1)
    with pytest.raises(StoreError, match="not a regular file"):
        store.head("pipe")
    assert [info.key for info in store.list_objects("")] == ["in/x"]


@pytest.mark.parametrize("how", ["rewritten", "shortened"])
def test_file_changed_during_a_read_raises_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    path = tmp_path / "x"
    path.write_bytes(DATA)
    read = os.preadv

    def change_then_read(descriptor: int, views: list[memoryview], position: int) -> int:
        if how == "shortened":
            os.truncate(path, 4)
        else:
            path.write_bytes(DATA[::-1])
            os.utime(path, ns=(0, 1))
        return read(descriptor, views, position)

    store = store_of(tmp_path)
    monkeypatch.setattr(os, "preadv", change_then_read)
    with pytest.raises(StoreError, match="changed" if how == "rewritten" else "shrank"):
        store.get_range("x", 0, len(DATA))


def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_bytes(DATA)
    read = os.preadv

    def little(descriptor: int, views: list[memoryview], position: int) -> int:
        return read(descriptor, [views[0][:100]], position)

    monkeypatch.setattr(os, "preadv", little)
    assert store_of(tmp_path).get_range("x", 3, 1000) == DATA[3:1000]


def test_permission_error_raises_access_denied_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_bytes(b"x")

    def deny(*_arguments: object, **_named: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", deny)
    with pytest.raises(AccessDeniedError):
        store_of(tmp_path).get_range("x", 0, 1)


def test_version_is_size_and_modification_time(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    os.utime(path, ns=(5, 1_700_000_000_123_456_789))
    info = store_of(tmp_path).head("x")
    assert info.version == "3-1700000000123456789"
    assert info.last_modified_ms == 1_700_000_000_123
    path.write_bytes(b"abd")
    os.utime(path, ns=(5, 1_700_000_000_123_456_790))
    with pytest.raises(ObjectChangedError, match="3-1700000000123456789"):
        store_of(tmp_path).get_range("x", 0, 1, version=info.version)


def test_link_out_of_the_root_is_refused_even_if_its_folder_was_read_before(
    tmp_path: Path,
) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "a").mkdir(parents=True)
    outside.mkdir()
    (outside / "x").write_bytes(b"secret")
    (root / "a" / "x").write_bytes(b"inside")
    store = LocalStore(root)
    assert store.get_range("a/x", 0, 6) == b"inside"
    (root / "a" / "link").symlink_to(outside / "x")
    with pytest.raises(InvalidKeyError):
        store.get_range("a/link", 0, 6)
    assert store.get_range("a/x", 0, 6) == b"inside"
    (root / "a" / "same").symlink_to(root / "a" / "x")
    assert store.get_range("a/same", 0, 6) == b"inside"


def test_object_is_read_after_its_folder_link_was_replaced(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "x").write_bytes(b"one")
    (tmp_path / "folder").symlink_to(tmp_path / "one")
    store = LocalStore(tmp_path)
    assert store.get_range("folder/x", 0, 3) == b"one"
    (tmp_path / "one").rename(tmp_path / "two")
    (tmp_path / "folder").unlink()
    (tmp_path / "folder").symlink_to(tmp_path / "two")
    assert store.get_range("folder/x", 0, 3) == b"one"


# -- folders that are replaced by links


READS: dict[str, Callable[[LocalStore, str], object]] = {
    "get_range": lambda store, folder: store.get_range(f"{folder}/two", 0, 6),
    "head": lambda store, folder: store.head(f"{folder}/two"),
    "list_objects": lambda store, folder: list(store.list_objects(f"{folder}/")),
    "list_folders": lambda store, folder: store.list_folders(f"{folder}/"),
}


@pytest.fixture
def nested(tmp_path: Path) -> Path:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "topic" / "0").mkdir(parents=True)
    (root / "topic" / "0" / "one").write_bytes(b"inside")
    for folder in (outside, outside / "0"):
        folder.mkdir()
        (folder / "two").write_bytes(b"secret")
    return root


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("replaced", ["topic", "topic/0"])
def test_folder_replaced_by_link_after_a_read_is_refused(
    nested: Path, read: str, replaced: str
) -> None:
    store = LocalStore(nested)
    assert store.get_range("topic/0/one", 0, 6) == b"inside"
    assert [info.key for info in store.list_objects("")] == ["topic/0/one"]
    (nested / replaced).rename(nested.parent / "moved")
    (nested / replaced).symlink_to(nested.parent / "outside")
    with pytest.raises(InvalidKeyError, match="leads out of the root"):
        READS[read](store, "topic/0")


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("replaced", ["topic", "topic/0"])
def test_folder_replaced_by_link_during_open_is_refused(
    nested: Path, monkeypatch: pytest.MonkeyPatch, read: str, replaced: str
) -> None:
    """The folder is replaced with a link after all checks, directly before the last system call on
    it.
    """
    store, system_open = LocalStore(nested), os.open
    calls: list[str] = []

    def swapped_then_open(path: str, flags: int, *args: int, dir_fd: int | None = None) -> int:
        if str(path) == replaced.rpartition("/")[2] and not calls:
            calls.append(path)
            (nested / replaced).rename(nested.parent / "moved")
            (nested / replaced).symlink_to(nested.parent / "outside")
        return system_open(path, flags, *args, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", swapped_then_open)
    with pytest.raises(InvalidKeyError, match="leads out of the root"):
        READS[read](store, "topic/0")
    assert calls


def test_folder_replaced_by_link_during_a_listing_is_refused(nested: Path) -> None:
    (nested / "a").mkdir()
    (nested / "a" / "x").write_bytes(b"x")
    listing = LocalStore(nested).list_objects("")
    assert next(listing).key == "a/x"
    (nested / "topic").rename(nested.parent / "moved")
    (nested / "topic").symlink_to(nested.parent / "outside")
    with pytest.raises(InvalidKeyError, match="leads out of the root"):
        list(listing)


def test_replaced_folder_is_read_from_the_new_folder(nested: Path) -> None:
    store = LocalStore(nested)
    assert store.get_range("topic/0/one", 0, 6) == b"inside"
    (nested / "topic").rename(nested.parent / "moved")
    (nested / "topic" / "0").mkdir(parents=True)
    (nested / "topic" / "0" / "one").write_bytes(b"newer!")
    assert store.get_range("topic/0/one", 0, 6) == b"newer!"


@pytest.mark.parametrize("kind", ["absolute", "relative", "chain", "through another root"])
def test_links_inside_the_root_are_read_by_every_operation(nested: Path, kind: str) -> None:
    (nested / "topic" / "0" / "two").write_bytes(b"second")
    alias = nested.parent / "alias"
    alias.symlink_to(nested)
    target = {
        "absolute": str(nested / "topic"),
        "relative": str(Path("..", nested.name, "topic")),
        "chain": "first",
        "through another root": str(alias / "topic"),
    }[kind]
    (nested / "first").symlink_to("topic")
    (nested / "link").symlink_to(target)
    store = LocalStore(nested)
    assert store.get_range("link/0/one", 0, 6) == b"inside"
    assert store.head("link/0/one") == replace(store.head("topic/0/one"), key="link/0/one")
    assert [info.key for info in store.list_objects("link/0/")] == ["link/0/one", "link/0/two"]
    assert store.list_folders("link/") == ["link/0/"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_folder_without_read_permission_can_be_traversed() -> None:
    code = """
import os, sys
from pathlib import Path
from kts_source.store.local_store import LocalStore
store = LocalStore(Path(sys.argv[1]))
os.setegid(65534)
os.seteuid(65534)
print(bytes(store.get_range("topic/one", 0, 6)), store.head("topic/one").size)
"""
    with tempfile.TemporaryDirectory() as root:
        (Path(root) / "topic").mkdir()
        (Path(root) / "topic" / "one").write_bytes(b"inside")
        for folder in (Path(root), Path(root) / "topic"):
            folder.chmod(0o711)
        result = subprocess.run(
            [sys.executable, "-c", code, root], capture_output=True, text=True, timeout=60
        )
    assert result.stdout == "b'inside' 6\n", result.stderr


def test_descriptors_are_closed_after_every_outcome(nested: Path) -> None:
    (nested / "out").symlink_to(nested.parent / "outside")
    (nested / "self").symlink_to("self")
    (nested / "in").symlink_to("topic")
    store = LocalStore(nested)
    for folder in ("topic/0", "in/0", "out", "self", "missing/x", "topic/0/one"):
        for read in READS.values():
            with contextlib.suppress(StoreError):
                read(store, folder)
    below = [path.stat() for path in (nested, *nested.rglob("*")) if not path.is_symlink()]
    for path in Path("/dev/fd").iterdir():
        with contextlib.suppress(OSError):
            status = os.fstat(int(path.name))
            assert not any(os.path.samestat(status, other) for other in below)


def test_path_of_a_file_is_reported_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "tier").touch()
    with pytest.raises(StoreNotFoundError, match="is a file, not a folder"):
        list(open_store(str(tmp_path / "tier"), Secret({})).list_objects(""))
