"""Where an export writes: new objects, created-if-absent markers, and moves that may be repeated.

Keys are relative to the target's root. What a commit protocol needs of a store is here and nowhere
else: `create` is atomic and tells who was first; `publish` may be repeated by anybody at any time.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from kts_source.errors import ExportError, ObjectNotFoundError, UnsupportedTargetError
from kts_source.store.object_store import check_key

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_WRITE_BACK_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class TargetObject:
    """One object below the root.

    Attributes:
        size: Bytes.
        modified_ms: Milliseconds since the epoch.
    """

    key: str
    size: int
    modified_ms: int


class TargetStore(Protocol):
    """Objects below a root that an export writes."""

    def uri(self, key: str) -> str:
        """Where the key is, for people and for table logs: no credentials."""
        ...

    def require_create(self) -> None:
        """Makes sure that `create` is atomic here.

        Raises:
            UnsupportedTargetError: It is not.
        """
        ...

    def create(self, key: str, data: bytes) -> bool:
        """Creates an object with all its bytes at once, unless there is one of that key.

        Returns:
            Whether this call created it.
        """
        ...

    def open_output(self, key: str) -> Any:  # noqa: ANN401  # a binary file
        """A new object to write; it counts once the file is closed."""
        ...

    def read(self, key: str) -> bytes:
        """A whole small object.

        Raises:
            ObjectNotFoundError: No such object.
        """
        ...

    def publish(self, source: str, destination: str, size: int) -> None:
        """Gives an object its final name. Does nothing when that was done before.

        Args:
            source: Key it was written under.
            destination: Key it shall have.
            size: Its bytes.

        Raises:
            ExportError: Neither key exists, or the final one has other bytes.
        """
        ...

    def list_objects(self, prefix: str) -> Iterator[TargetObject]:
        """Every object whose key starts with a folder's prefix, any depth, in key order."""
        ...

    def delete(self, key: str) -> None:
        """Removes an object; none is fine."""
        ...

    def close(self) -> None:
        """Lets connections go."""
        ...


def both_listed(target: TargetStore, prefix: str) -> Iterator[TargetObject]:
    """The data files of an export into a table, and what compactions spilled."""
    yield from target.list_objects(prefix)
    yield from target.list_objects("_kts/")


class LocalTarget:
    """A folder of this machine, or of a file system that all machines share."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __repr__(self) -> str:
        return f"LocalTarget({str(self._root)!r})"

    def uri(self, key: str) -> str:
        """See `TargetStore.uri`; a plain path, as table logs want it."""
        return str(self._path(key))

    def require_create(self) -> None:
        """See `TargetStore.require_create`."""
        probe = f"_kts/probe-{uuid.uuid4().hex}"
        try:
            if not self.create(probe, b"") or self.create(probe, b""):
                raise UnsupportedTargetError(f"{self._root} does not create files atomically")
        except OSError as error:
            raise UnsupportedTargetError(
                f"{self._root} cannot create files atomically: {error.strerror}"
            ) from error
        finally:
            self.delete(probe)

    def create(self, key: str, data: bytes) -> bool:
        """See `TargetStore.create`: a hard link either appears with all bytes or not at all."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}.draft")
        with draft.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
        finally:
            draft.unlink()
        _sync_folder(path.parent)
        return True

    def open_output(self, key: str) -> Any:  # noqa: ANN401
        """See `TargetStore.open_output`."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        return _SyncedFile(path)

    def read(self, key: str) -> bytes:
        """See `TargetStore.read`."""
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            raise ObjectNotFoundError("no such object", uri=self.uri(key)) from None

    def publish(self, source: str, destination: str, size: int) -> None:
        """See `TargetStore.publish`: a second name, then the first one goes."""
        draft, path = self._path(source), self._path(destination)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(draft, path)
        except FileNotFoundError:
            self._require_published(source, destination, size)
            return
        except FileExistsError:
            # Either somebody stopped between the two steps, or is there now, or the name is taken.
            with contextlib.suppress(FileNotFoundError):
                if not draft.samefile(path):
                    raise ExportError(
                        "the name of a committed file is taken by another file", uri=str(path)
                    ) from None
            self._require_published(source, destination, size)
        _sync_folder(path.parent)
        draft.unlink(missing_ok=True)

    def _require_published(self, source: str, destination: str, size: int) -> None:
        require_published(self._size(destination), size, self.uri(source), self.uri(destination))

    def list_objects(self, prefix: str) -> Iterator[TargetObject]:
        """See `TargetStore.list_objects`."""
        folder = self._path(prefix)
        for path in sorted(folder.rglob("*")):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                if path.is_file():
                    key = path.relative_to(self._root).as_posix()
                    yield TargetObject(key, status.st_size, status.st_mtime_ns // 1_000_000)

    def delete(self, key: str) -> None:
        """See `TargetStore.delete`."""
        self._path(key).unlink(missing_ok=True)

    def close(self) -> None:
        """See `TargetStore.close`."""

    def _size(self, key: str) -> int | None:
        try:
            return self._path(key).stat().st_size
        except FileNotFoundError:
            return None

    def _path(self, key: str) -> Path:
        check_key(key, str(self._root))
        return self._root / key


class _SyncedFile:
    """A new file whose bytes are on the disk once it is closed."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")
        self._waiting = 0

    def write(self, data: Any) -> int:  # noqa: ANN401  # any buffer
        written = self._file.write(data)
        self._waiting += written
        if self._waiting >= _WRITE_BACK_BYTES:
            self._begin_to_write_back()
        return written

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        self._file.flush()

    @property
    def closed(self) -> bool:
        return self._file.closed

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def _begin_to_write_back(self) -> None:
        """The disk starts with what is there while the next rows are compressed, or `close` waits
        for all of it. Nobody reads the pages again soon, so they need not stay.
        """
        self._waiting = 0
        if hasattr(os, "posix_fadvise"):  # not on macOS
            self._file.flush()
            os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def require_published(found: int | None, size: int, source: str, destination: str) -> None:
    """Raises unless the final object is there with the bytes that were committed."""
    if found is None:
        raise ExportError(
            f"a committed file is gone: neither {source} nor {destination} exists", uri=destination
        )
    if found != size:
        raise ExportError(
            f"a committed file has {size} bytes, and {found} are under its name: somebody else"
            " writes there",
            uri=destination,
        )


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
