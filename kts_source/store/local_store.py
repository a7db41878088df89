"""A folder of this machine: no client, no retries, `pread` into the caller's thread."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote, urlsplit

from kts_source.errors import (
    AccessDeniedError,
    InvalidKeyError,
    InvalidOptionError,
    ObjectNotFoundError,
    StoreError,
    StoreNotFoundError,
    TruncatedObjectError,
)
from kts_source.store.counters import StoreCounters, Tally
from kts_source.store.object_store import (
    ObjectInfo,
    beyond_end,
    check_key,
    check_range,
    check_version,
    is_behind,
    key_order,
)
from segment_format.reused_memory import writable_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kts_source.store.object_store import Data


# Non-blocking: opening a named pipe must fail, not wait for a writer.
_OPEN_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_MAX_KNOWN_FOLDERS: Final = 10_000


def local_root(path: str) -> Path:
    """The folder a plain path or a `file:` URL names (percent escapes of URLs are resolved).

    Raises:
        InvalidOptionError: The URL names another host.
    """
    if not path.lower().startswith("file:/"):
        return Path(path).absolute()
    parts = urlsplit(path)
    if parts.netloc not in ("", "localhost"):
        raise InvalidOptionError(f"{path} names the host {parts.netloc!r}; write file:///folder")
    # Hash and question mark are ordinary characters of file names.
    text = path.split(":", 1)[1]
    if text.startswith("//"):
        text = text[2 + len(parts.netloc) :]
    return Path(unquote(text)).absolute()


def _version(status: os.stat_result) -> str:
    return f"{status.st_size}-{status.st_mtime_ns}"


class LocalStore:
    """Files below a folder. The version of a file is its size and modification time in ns."""

    is_near = True
    lists_in_pages = False
    pinning = "the file's size and modification time before and after every read"
    remarks = ()

    def __init__(self, root: Path) -> None:
        self._root = root
        self._base = f"{root.as_uri().removesuffix('/')}/"
        self._tally = Tally()
        # Folder of a key to where it really is: looking that up costs more than a small read.
        self._folders: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"LocalStore({str(self._root)!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return LocalStore, (self._root,)

    @property
    def counters(self) -> StoreCounters:
        """Work done so far; a listing request is one folder read."""
        return self._tally.snapshot

    def uri(self, key: str) -> str:
        """The file's URL, percent-escaped."""
        return f"{self._base}{quote(os.fsencode(key))}"

    def close(self) -> None:
        """Nothing is held open."""

    # -- listing

    def list_folders(self, prefix: str) -> list[str]:
        """See `ObjectStore.list_folders`."""
        return sorted(key for key, _ in self._children(prefix) if key.endswith("/"))

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list_objects`."""
        for key, entry in sorted(self._children(prefix), key=lambda pair: key_order(pair[0])):
            if key.endswith("/"):
                if entry.is_symlink() and Path(entry.path).parent.resolve().is_relative_to(
                    self._resolve(key)
                ):
                    raise StoreError(
                        "a symbolic link leads to a folder that holds it", uri=self.uri(key)
                    )
                yield from self.list_objects(key, after=after)
                continue
            try:
                status = entry.stat()
            except FileNotFoundError:
                continue  # deleted since the folder was read, or a link to nothing
            except OSError as error:
                raise self._translated(error, key) from None
            if stat.S_ISREG(status.st_mode) and is_behind(key, after):
                if entry.is_symlink():
                    self._resolve(key)
                yield _info(key, status)

    def _children(self, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """What begins with a prefix in the folder that it ends in; folders' keys end in a slash."""
        check_key(prefix, self.uri(""))
        folder = prefix[: prefix.rfind("/") + 1]
        for entry in self._entries(folder):
            key = folder + entry.name
            if not key.startswith(prefix):
                continue
            try:
                yield (f"{key}/" if entry.is_dir() else key), entry
            except OSError as error:  # a link whose end cannot be looked at: nobody knows
                raise self._translated(error, key) from None

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        self._tally.add(list_requests=1)
        path = self._resolve(folder)
        try:
            with os.scandir(path) as entries:
                return list(entries)
        except (FileNotFoundError, NotADirectoryError):
            self._require_root()
            return []
        except OSError as error:
            raise self._translated(error, folder) from None

    # -- reading

    def head(self, key: str) -> ObjectInfo:
        """See `ObjectStore.head`."""
        self._tally.add(requests=1)
        path = self._resolve(key)
        try:
            status = path.stat()
        except OSError as error:
            raise self._translated(error, key) from None
        self._require_file(status, key)
        return _info(key, status)

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> Data:
        """See `ObjectStore.get_range`."""
        check_range(start, stop)
        if start == stop:
            check_key(key, self.uri(""))
            return b""
        descriptor = self._open(key)
        try:
            return self._read(descriptor, key, start, stop, version)
        finally:
            os.close(descriptor)

    def _open(self, key: str) -> int:
        self._tally.add(requests=1)
        check_key(key, self._base)
        folder, _, name = key.rpartition("/")
        known = self._folders.get(folder)
        if known is not None and name:
            try:
                return os.open(f"{known}/{name}", _OPEN_FLAGS | os.O_NOFOLLOW)
            except OSError:
                # A link, or the folder is another one by now. Another thread may have seen it too.
                self._folders.pop(folder, None)
        path = self._resolve(key)
        try:
            descriptor = os.open(path, _OPEN_FLAGS)
        except OSError as error:
            raise self._translated(error, key) from None
        if path.name == name and len(self._folders) < _MAX_KNOWN_FOLDERS:
            self._folders[folder] = str(path.parent)
        return descriptor

    def _read(self, descriptor: int, key: str, start: int, stop: int, version: str | None) -> Data:
        uri = self.uri(key)
        before = os.fstat(descriptor)
        self._require_file(before, key)
        found = _version(before)
        check_version(found, version, uri=uri)
        if stop > before.st_size:
            raise beyond_end(before.st_size, start, stop, uri=uri)
        data = writable_bytes(stop - start)
        position = start
        while position < stop:
            try:
                size = os.preadv(descriptor, [data[position - start :]], position)
            except OSError as error:
                raise self._translated(error, key) from None
            if not size:
                raise TruncatedObjectError(
                    f"the object shrank to {position} bytes while [{start}, {stop}) was read",
                    uri=uri,
                    position=position,
                )
            position += size
        # Files are replaced in place: what was read counts only if nothing happened meanwhile.
        check_version(_version(os.fstat(descriptor)), found, uri=uri)
        self._tally.add(bytes=stop - start)
        return data.toreadonly()

    # -- checks

    def _resolve(self, key: str) -> Path:
        check_key(key, self.uri(""))
        path = self._root / key
        root = self._root.resolve()
        try:
            resolved = path.resolve()
        except (OSError, RuntimeError):  # a cycle of links
            raise StoreError("a symbolic link leads back to itself", uri=self.uri(key)) from None
        if not resolved.is_relative_to(root):
            raise InvalidKeyError("a symbolic link leads out of the root folder", uri=self.uri(key))
        return resolved

    def _require_root(self) -> None:
        if not self._root.is_dir():
            raise StoreNotFoundError("the folder does not exist", uri=self.uri(""))

    def _require_file(self, status: os.stat_result, key: str) -> None:
        if stat.S_ISDIR(status.st_mode):
            raise ObjectNotFoundError("a folder, not an object", uri=self.uri(key))
        if not stat.S_ISREG(status.st_mode):
            raise StoreError("not a regular file", uri=self.uri(key))

    def _translated(self, error: OSError, key: str) -> StoreError:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            self._require_root()
            return ObjectNotFoundError("no such object", uri=self.uri(key))
        if isinstance(error, PermissionError):
            return AccessDeniedError("permission denied", uri=self.uri(key))
        return StoreError(error.strerror or type(error).__name__, uri=self.uri(key))


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(
        key=key,
        size=status.st_size,
        version=_version(status),
        last_modified_ms=status.st_mtime_ns // 1_000_000,
    )
