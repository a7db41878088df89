"""Store for a local folder. Files are read with `pread` in the caller's thread, without retries.

The folders of a key are opened one after the other. Each folder is opened relative to the
descriptor of its parent folder, without following symbolic links. If a name is a symbolic link, the
path of its target is computed, and the folders of that path are opened instead. So no path can lead
out of the root folder, even if another process replaces a folder by a link at any time.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
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
from kts_source.store.object_store import (
    ObjectInfo,
    StoreCounters,
    Tally,
    beyond_end,
    check_key,
    check_range,
    check_version,
    key_order,
    sorts_after,
)
from segment_format.reused_memory import writable_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kts_source.store.object_store import Data

T = TypeVar("T")

# O_NONBLOCK, so that opening a named pipe does not wait for a writer.
_FILE_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
_LISTED_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW
# O_PATH opens parent folders without permission to list them. macOS does not have it.
_ROOT_FLAGS: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_CLOEXEC | os.O_DIRECTORY
_FOLDER_FLAGS: Final = _ROOT_FLAGS | os.O_NOFOLLOW
# Operating systems use different errors for a link that must not be followed.
_LINK_ERRORS: Final = (errno.ELOOP, errno.ENOTDIR, errno.EMLINK)
_MAX_LINKS: Final = 40


def local_root(path: str) -> Path:
    """Returns the folder that a plain path or a `file:` URL names. Percent escapes of a URL are
    decoded.

    Raises:
        InvalidOptionError: The URL names another host.
    """
    if not path.lower().startswith("file:/"):
        return Path(path).absolute()
    url_parts = urlsplit(path)
    if url_parts.netloc not in ("", "localhost"):
        raise InvalidOptionError(
            f"{path} names the host {url_parts.netloc!r}; write file:///folder"
        )
    # `url_parts.path` is not used, because `#` and `?` are ordinary characters of file names.
    text = path.split(":", 1)[1]
    if text.startswith("//"):
        text = text[2 + len(url_parts.netloc) :]
    return Path(unquote(text)).absolute()


def _version(status: os.stat_result) -> str:
    return f"{status.st_size}-{status.st_mtime_ns}"


class LocalStore:
    """Files below a folder. The version of a file consists of its size and its modification time in
    ns.
    """

    is_near = True
    lists_in_pages = False
    pinning = "the file's size and modification time before and after every read"
    remarks = ()

    def __init__(self, root: Path) -> None:
        self._root = root
        self._base = f"{root.as_uri().removesuffix('/')}/"
        self._tally = Tally()

    def __repr__(self) -> str:
        return f"LocalStore({str(self._root)!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return LocalStore, (self._root,)

    @property
    def counters(self) -> StoreCounters:
        """See `ObjectStore.counters`. Each folder that is listed counts as one listing request."""
        return self._tally.snapshot

    def uri(self, key: str) -> str:
        """See `ObjectStore.uri`."""
        return f"{self._base}{quote(os.fsencode(key))}"

    def close(self) -> None:
        """Does nothing."""

    def list_folders(self, prefix: str) -> list[str]:
        """See `ObjectStore.list_folders`."""
        check_key(prefix, self.uri(""))
        folder, folders = prefix[: prefix.rfind("/") + 1], []
        with self._scan(folder) as (_, entries):
            for entry in entries:
                key = folder + entry.name
                if key.startswith(prefix) and self._is_folder(entry, key):
                    folders.append(f"{key}/")
        return sorted(folders)

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list_objects`."""
        check_key(prefix, self.uri(""))
        yield from self._objects(prefix, after, ())

    def _objects(
        self, prefix: str, after: str | None, parents: tuple[tuple[int, int], ...]
    ) -> Iterator[ObjectInfo]:
        """Lists the objects with a prefix. `parents` has the device and inode number of each folder
        above the prefix, to detect cycles of links.
        """
        folder = prefix[: prefix.rfind("/") + 1]
        children: list[tuple[str, ObjectInfo | None]] = []
        with self._scan(folder) as (identity, entries):
            if identity in parents:
                raise StoreError(
                    "a symbolic link points to a folder that contains the link",
                    uri=self.uri(folder),
                )
            for entry in entries:
                key = folder + entry.name
                if not key.startswith(prefix):
                    continue
                if self._is_folder(entry, key):
                    children.append((f"{key}/", None))
                elif sorts_after(key, after) and (info := self._listed_info(entry, key)):
                    children.append((key, info))
        children.sort(key=lambda child: key_order(child[0]))
        for key, info in children:
            if info is None:
                yield from self._objects(key, after, (*parents, identity))
            else:
                yield info

    def _is_folder(self, entry: os.DirEntry[str], key: str) -> bool:
        try:
            return entry.is_dir()
        except OSError as error:  # from the target of a link
            raise self._translate(error, key) from None

    def _listed_info(self, entry: os.DirEntry[str], key: str) -> ObjectInfo | None:
        """Returns the metadata of a listed file, or `None` if it is not a file or no longer
        exists.
        """
        try:
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                status = entry.stat()
                if stat.S_ISREG(status.st_mode):
                    status = self._open(key, _status)
        except (FileNotFoundError, ObjectNotFoundError):
            return None  # deleted after the folder was read, or a broken link
        except OSError as error:
            raise self._translate(error, key) from None
        return _info(key, status) if stat.S_ISREG(status.st_mode) else None

    @contextmanager
    def _scan(self, folder: str) -> Iterator[tuple[tuple[int, int], list[os.DirEntry[str]]]]:
        """Opens a folder and yields its device and inode number, and the list of its entries. For a
        missing folder, yields `(-1, -1)` and an empty list.
        """
        self._tally.add(list_requests=1)
        try:
            descriptor = self._open(folder, _open_folder)
        except ObjectNotFoundError:
            yield (-1, -1), []
            return
        try:
            status = os.fstat(descriptor)
            try:
                with os.scandir(descriptor) as entries:
                    listed = list(entries)
            except OSError as error:
                raise self._translate(error, folder) from None
            yield (status.st_dev, status.st_ino), listed
        finally:
            os.close(descriptor)

    def head(self, key: str) -> ObjectInfo:
        """See `ObjectStore.head`."""
        check_key(key, self._base)
        self._tally.add(requests=1)
        status = self._open(key, _status)
        self._require_file(status, key)
        return _info(key, status)

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> Data:
        """See `ObjectStore.get_range`."""
        check_range(start, stop)
        check_key(key, self._base)
        if start == stop:
            return b""
        self._tally.add(requests=1)
        descriptor = self._open(key, _open_file)
        try:
            return self._read(descriptor, key, start, stop, version)
        finally:
            os.close(descriptor)

    def _read(self, descriptor: int, key: str, start: int, stop: int, version: str | None) -> Data:
        uri = self.uri(key)
        before = os.fstat(descriptor)
        self._require_file(before, key)
        version_before = _version(before)
        check_version(version_before, version, uri=uri)
        if stop > before.st_size:
            raise beyond_end(before.st_size, start, stop, uri=uri)
        data = writable_bytes(stop - start)
        position = start
        while position < stop:
            try:
                size = os.preadv(descriptor, [data[position - start :]], position)
            except OSError as error:
                raise self._translate(error, key) from None
            if not size:
                raise TruncatedObjectError(
                    f"the object shrank to {position} bytes while [{start}, {stop}) was read",
                    uri=uri,
                    position=position,
                )
            position += size
        # A file may be overwritten in place while it is read.
        check_version(_version(os.fstat(descriptor)), version_before, uri=uri)
        self._tally.add(bytes=stop - start)
        return data.toreadonly()

    def _open(self, key: str, use: Callable[[str, int], T]) -> T:
        """Opens the folder that contains the file of a key. Calls `use` with the name of the file
        and the descriptor of the folder, and returns the result.

        `use` must not follow symbolic links: for a link, it must raise an `OSError` with one of the
        numbers in `_LINK_ERRORS`.
        """
        names = [name for name in key.split("/") if name]
        try:
            for _ in range(_MAX_LINKS):
                try:
                    return _open_below(self._root, names or ["."], use)
                except _LinkError as link:
                    names = self._target(names[: link.depth], key) + names[link.depth :]
        except OSError as error:
            raise self._translate(error, key) from None
        raise StoreError("a symbolic link leads back to itself", uri=self.uri(key))

    def _target(self, names: list[str], key: str) -> list[str]:
        """Returns the path of the target of the symbolic link at path `names`, as a list of names
        relative to the root. Does not open the target.
        """
        root = os.path.realpath(self._root)
        target = Path(os.path.realpath(os.path.join(root, *names)))  # noqa: PTH118  # no resolving
        if not target.is_relative_to(root):
            raise InvalidKeyError("a symbolic link leads out of the root folder", uri=self.uri(key))
        return list(target.relative_to(root).parts)

    def _require_root(self) -> None:
        if not self._root.is_dir():
            is_file = self._root.exists()
            problem = "the path is a file, not a folder" if is_file else "the folder does not exist"
            raise StoreNotFoundError(
                f"{problem}. Set option 'path' to the folder that contains the tier",
                uri=self.uri(""),
            )

    def _require_file(self, status: os.stat_result, key: str) -> None:
        if stat.S_ISDIR(status.st_mode):
            raise ObjectNotFoundError("the path is a folder, not an object", uri=self.uri(key))
        if not stat.S_ISREG(status.st_mode):
            raise StoreError("the path is not a regular file", uri=self.uri(key))

    def _translate(self, error: OSError, key: str) -> StoreError:
        if isinstance(error, StoreError):
            return error
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


class _LinkError(Exception):
    """The path contains a symbolic link; `depth` is the number of path components up to and
    including the link.
    """

    def __init__(self, depth: int) -> None:
        super().__init__(depth)
        self.depth = depth


def _open_below(root: Path, names: list[str], use: Callable[[str, int], T]) -> T:
    """Opens the folders `names[:-1]` one below the other, starting at `root`. Calls `use` with the
    last name and the descriptor of the last folder, and returns the result.

    Raises `_LinkError` if one of the names is a symbolic link.
    """
    folder = os.open(root, _ROOT_FLAGS)
    opened = 0
    try:
        for name in names[:-1]:
            child = os.open(name, _FOLDER_FLAGS, dir_fd=folder)
            os.close(folder)
            folder, opened = child, opened + 1
        return use(names[-1], folder)
    except OSError as error:
        if error.errno in _LINK_ERRORS and _is_link(names[opened], folder):
            raise _LinkError(opened + 1) from None
        raise
    finally:
        os.close(folder)


def _open_file(name: str, folder: int) -> int:
    return os.open(name, _FILE_FLAGS, dir_fd=folder)


def _open_folder(name: str, folder: int) -> int:
    return os.open(name, _LISTED_FLAGS, dir_fd=folder)


def _status(name: str, folder: int) -> os.stat_result:
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return status


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False
