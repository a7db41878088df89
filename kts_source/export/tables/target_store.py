"""Where an export writes: new objects, created-if-absent markers, and moves that may be repeated.

Keys are relative to the target's root. What a commit protocol needs of a store is here and nowhere
else: `create` is atomic and tells who was first; `publish` may be repeated by anybody at any time.
"""

from __future__ import annotations

import contextlib
import io
import os
import uuid
from typing import TYPE_CHECKING, Any, Final, Protocol

from kts_source.errors import ExportError, TieredKafkaError, UnsupportedTargetError
from kts_source.store.local_store import LocalStore
from kts_source.store.object_store import ObjectStore, check_key

if TYPE_CHECKING:
    from pathlib import Path

_WRITE_BACK_BYTES: Final = 8 << 20


class TargetStore(ObjectStore, Protocol):
    """Objects below a root that an export reads and writes. The root need not be there before."""

    def read(self, key: str) -> bytes:
        """A whole object.

        Raises:
            ObjectNotFoundError: No such object.
        """
        info = self.head(key)
        return bytes(self.get_range(key, 0, info.size, version=info.version))

    def create(self, key: str, data: bytes) -> bool:
        """Creates an object with all its bytes at once, unless there is one of that key.

        Returns:
            Whether this call created it.
        """
        ...

    def open_output(self, key: str) -> Any:  # noqa: ANN401  # a binary file
        """A new object to write; it counts once the file is closed."""
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

    def delete(self, key: str) -> None:
        """Removes an object; none is fine."""
        ...


def require_create(target: TargetStore) -> None:
    """Makes sure that `create` is atomic here.

    Raises:
        UnsupportedTargetError: It is not.
    """
    probe = f"_kts/probe-{uuid.uuid4().hex}"
    try:
        if target.create(probe, b"1") and not target.create(probe, b"2"):
            return
    except TieredKafkaError:
        raise
    except OSError as error:
        raise UnsupportedTargetError(
            f"cannot create files atomically: {error.strerror}", uri=target.uri("")
        ) from error
    finally:
        target.delete(probe)
    raise UnsupportedTargetError(
        "creating an object replaces one that is there (a store on S3 ignores If-None-Match): two"
        " exports at once could commit the same offsets. Export to a Delta or Iceberg table, or to"
        " another store",
        uri=target.uri(""),
    )


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


class LocalTarget(LocalStore, TargetStore):
    """A folder of this machine, or of a file system that all machines share."""

    def create(self, key: str, data: bytes) -> bool:
        """See `TargetStore.create`: a hard link either appears with all bytes or not at all."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}.draft")
        with _SyncedFile(draft) as file:
            file.write(data)
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

    def publish(self, source: str, destination: str, size: int) -> None:
        """See `TargetStore.publish`: a second name, then the first one goes."""
        draft, path = self._path(source), self._path(destination)
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # gone from its first name: done before?
            try:
                os.link(draft, path)
            except FileExistsError:
                # Somebody stopped between the two steps, or is there now, or the name is taken.
                if not draft.samefile(path):
                    raise ExportError(
                        "the name of a committed file is taken by another file", uri=str(path)
                    ) from None
        length = path.stat().st_size if path.exists() else None
        require_published(length, size, self.uri(source), self.uri(destination))
        _sync_folder(path.parent)
        draft.unlink(missing_ok=True)

    def delete(self, key: str) -> None:
        """See `TargetStore.delete`."""
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        """Returns the path of a key to write or delete.

        Raises:
            InvalidKeyError: A symbolic link leads its folder out of the root.
        """
        check_key(key, self.uri(""))
        self._target(key.split("/")[:-1], key)
        return self._root / key

    def _require_root(self) -> None:
        """There is none before the first object."""


class _SyncedFile(io.BufferedWriter):
    """A new file whose bytes are on the disk once it is closed."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.open("xb", buffering=0))
        self._waiting = 0

    def write(self, data: Any) -> int:  # noqa: ANN401  # any buffer
        written = super().write(data)
        self._waiting += written
        # The disk starts with what is there while the next rows are compressed, or `close` waits
        # for all of it. Nobody reads the pages again soon, so they need not stay.
        if self._waiting >= _WRITE_BACK_BYTES and hasattr(os, "posix_fadvise"):  # not on macOS
            self._waiting = 0
            self.flush()
            os.posix_fadvise(self.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return written

    def close(self) -> None:
        if not self.closed:
            self.flush()
            os.fsync(self.fileno())
        super().close()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
