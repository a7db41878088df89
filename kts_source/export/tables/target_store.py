"""The store to which an export writes.

Keys are relative to the target's root. The commit protocol of Parquet folders relies on two
guarantees. `create` is atomic and reports whether this call created the object. `publish` is
idempotent.

In S3, `create` is `PutObject` with `If-None-Match: *`. If a store ignores this condition, two
exports could commit the same offsets. So `require_create` tests the store before anything is
written.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import uuid
from typing import TYPE_CHECKING, Any, Final, Protocol

from kts_source.errors import (
    ExportError,
    InvalidOptionError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreUnavailableError,
    TieredKafkaError,
    UnsupportedTargetError,
)
from kts_source.store.local_store import LocalStore, local_root
from kts_source.store.object_store import ObjectStore, check_key
from kts_source.store.open_store import refuse_credentials, scheme_of
from kts_source.store.s3_store import S3Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from kts_source.secret import Secret


UPLOAD_PART_BYTES: Final = 8 << 20
_WRITE_BACK_BYTES: Final = 8 << 20
_UPLOAD_ATTEMPTS: Final = 5
_COPY_OF: Final = "kts-copy-of"
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""Errors of file systems that cannot create hard links."""


class TargetStore(ObjectStore, Protocol):
    """A store that an export reads and writes. Its keys are relative to a root. The root need not
    exist yet.
    """

    def read(self, key: str) -> bytes:
        """Returns a whole object.

        Raises:
            ObjectNotFoundError: The object does not exist.
        """
        info = self.head(key)
        return bytes(self.get_range(key, 0, info.size, version=info.version))

    def create(self, key: str, data: bytes) -> bool:
        """Creates an object atomically with all its bytes. Does nothing if an object with this key
        exists.

        Returns:
            True if this call created the object.
        """
        ...

    def open_output(self, key: str) -> Any:  # noqa: ANN401  # a binary file
        """Returns a binary file that writes a new object. The object becomes visible when the file
        is closed.
        """
        ...

    def put(self, key: str, data: bytes) -> None:
        """Writes a small object. Replaces an existing one."""
        with self.open_output(key) as file:
            file.write(data)

    def publish(self, source: str, destination: str, size: int) -> None:
        """Moves an object to its final key. Does nothing if it was already moved.

        Args:
            source: Key under which the object was written.
            destination: Final key.
            size: Bytes of the object.

        Raises:
            ExportError: Neither `source` nor `destination` exists, or `destination` is another
                object.
        """
        ...

    def delete(self, key: str) -> None:
        """Deletes an object if it exists."""
        ...


def open_target(path: str, storage: Secret[Mapping[str, str]]) -> TargetStore:
    """Opens the store of a target path, without sending a request.

    Args:
        path: A local folder (plain or `file:///…`) or `s3://bucket/prefix`.
        storage: As for `kts_source.store.open_store.open_store`.

    Raises:
        InvalidOptionError: The path is empty or contains credentials.
        UnsupportedTargetError: The scheme is neither `file` nor `s3`.
    """
    path = path.strip()
    if not path:
        raise InvalidOptionError("the target is empty: give a folder or s3://bucket/prefix")
    scheme = scheme_of(path)
    if scheme == "file":
        return LocalTarget(local_root(path))
    refuse_credentials(path)
    if scheme == "s3":
        bucket, _, prefix = path.partition("://")[2].partition("/")
        return S3Target(f"s3://{bucket}/{prefix.strip('/')}", storage)
    raise UnsupportedTargetError(
        f"cannot export to {scheme}://: targets are local folders and s3://bucket/prefix"
    )


def require_create(target: TargetStore) -> None:
    """Checks with a test object that `create` is atomic in a store.

    Raises:
        UnsupportedTargetError: `create` is not atomic.
    """
    probe = f"_kts/probe-{uuid.uuid4().hex}"
    try:
        if target.create(probe, b"1") and not target.create(probe, b"2"):
            return
    finally:
        target.delete(probe)
    raise UnsupportedTargetError(
        "creating an object replaces an existing one (the store ignores If-None-Match), so two"
        " concurrent exports could commit the same offsets. Export into a Delta or Iceberg table,"
        " or to another store",
        uri=target.uri(""),
    )


def require_published(actual: int | None, size: int, source: str, destination: str) -> None:
    """Raises `ExportError` if the object with the final key is missing or has another size than was
    committed. `actual` is its size, or `None` if it is missing.
    """
    if actual is None:
        raise ExportError(
            f"a committed file is missing: neither {source} nor {destination} exists. Restore it,"
            " or export into another folder",
            uri=destination,
        )
    if actual != size:
        raise ExportError(
            f"a committed file has {actual} bytes instead of {size}: another writer has replaced"
            " it. Restore the file, or export into another folder",
            uri=destination,
        )


@contextlib.contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    """Converts the errors of the operating system that the block raises to errors of the package.

    Raises:
        StoreUnavailableError: A file system of another machine does not respond.
        ExportError: The operating system raised another error.
    """
    try:
        yield
    except TieredKafkaError:
        raise
    except OSError as error:
        is_outage = isinstance(error, TimeoutError | ConnectionError)
        kind = StoreUnavailableError if is_outage else ExportError
        raise kind(
            f"a file cannot be written: {error.strerror or error}. Commits are kept: correct this"
            " and run again to continue",
            uri=str(path),
        ) from error


class LocalTarget(LocalStore, TargetStore):
    """A local folder, or a folder of a shared file system."""

    def create(self, key: str, data: bytes) -> bool:
        """See `TargetStore.create`. Writes a temporary file and creates a hard link to it. So the
        file appears with all its bytes or not at all.
        """
        path = self._path(key)
        draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}.draft")
        with _write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with _SyncedFile(draft) as file:
                    file.write(data)
                if not _link(draft, path):
                    return False
            finally:
                draft.unlink(missing_ok=True)
            _sync_folder(path.parent)
        return True

    def open_output(self, key: str) -> Any:  # noqa: ANN401
        """See `TargetStore.open_output`."""
        path = self._path(key)
        with _write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            return _SyncedFile(path)

    def publish(self, source: str, destination: str, size: int) -> None:
        """See `TargetStore.publish`. Creates a hard link at `destination`, and then deletes
        `source`.
        """
        draft, path = self._path(source), self._path(destination)
        with _write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # published before, or missing
                # If there is a file, another process has stopped between linking and removing, or
                # publishes the file concurrently.
                if not _link(draft, path) and not draft.samefile(path):
                    raise ExportError(
                        "another file has the name of a committed file. Move it away and run again",
                        uri=str(path),
                    )
            length = path.stat().st_size if path.exists() else None
            require_published(length, size, self.uri(source), self.uri(destination))
            _sync_folder(path.parent)
            draft.unlink(missing_ok=True)

    def delete(self, key: str) -> None:
        """See `TargetStore.delete`."""
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        """Returns the path of the file with key `key`, for writing or deleting it.

        Raises:
            InvalidKeyError: The path leads out of the root through a symbolic link.
        """
        check_key(key, self.uri(""))
        self._target(key.split("/")[:-1], key)
        return self._root / key

    def _require_root(self) -> None:
        """Does nothing. Unlike in a tier, the root may be missing, because creating the first
        object creates it.
        """


class _SyncedFile(io.BufferedWriter):
    """A new file that is synced to disk when it is closed."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.open("xb", buffering=0))
        self._path = path
        self._waiting = 0

    def write(self, data: Any) -> int:  # noqa: ANN401  # any buffer
        with _write_errors(self._path):
            return self._write(data)

    def _write(self, data: Any) -> int:  # noqa: ANN401
        written = super().write(data)
        self._waiting += written
        # Start writing these bytes to disk while the next rows are compressed, so that `close` need
        # not wait for all bytes. Drop the written pages from the page cache, because they are not
        # read again soon.
        if self._waiting >= _WRITE_BACK_BYTES and hasattr(os, "posix_fadvise"):  # not on macOS
            self._waiting = 0
            self.flush()
            os.posix_fadvise(self.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return written

    def close(self) -> None:
        with _write_errors(self._path):
            try:
                if not self.closed:
                    self.flush()
                    os.fsync(self.fileno())
            except OSError:
                self.raw.close()  # a later call must not write the rest
                raise
            super().close()


def _link(draft: Path, path: Path) -> bool:
    """Creates a hard link to `draft`. Returns False if `path` exists."""
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise UnsupportedTargetError(
            f"commits need a file system that creates files atomically: {error.strerror}. Export"
            " into another folder",
            uri=str(path),
        ) from error
    return True


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class S3Target(S3Store, TargetStore):
    """Objects in a bucket below a prefix, for reading and writing."""

    def create(self, key: str, data: bytes) -> bool:
        """See `TargetStore.create`."""
        try:
            self._send("put_object", key, Body=data, IfNoneMatch="*")
        except ObjectChangedError:
            # If the response of the first attempt was lost, a repeated request finds the object
            # that the first attempt created.
            return self.read(key) == data
        return True

    def put(self, key: str, data: bytes) -> None:
        """See `TargetStore.put`."""
        self._send("put_object", key, Body=data)

    def open_output(self, key: str) -> Any:  # noqa: ANN401
        """See `TargetStore.open_output`. The file is a multipart upload, which is completed when
        the file is closed.
        """
        filesystem = self._client.filesystem
        # Requests for the parts of an upload are not sent through our retry loop.
        filesystem.retries = _UPLOAD_ATTEMPTS
        return filesystem.open(self._path(key), "wb", block_size=UPLOAD_PART_BYTES)

    def publish(self, source: str, destination: str, size: int) -> None:
        """See `TargetStore.publish`. Copies the object on the server, and then deletes the source.

        The metadata of the copy contain the key of its source. A source key is used by only one
        attempt, so a copy with this key has the right content. ETags cannot be compared, because
        the ETags of a copy and of its source may differ.
        """
        copy = self._head(destination)
        if copy is None:
            self._copy(source, destination)
            copy = self._head(destination)
        length = None if copy is None else int(copy["ContentLength"])
        require_published(length, size, self.uri(source), self.uri(destination))
        if copy is not None and copy.get("Metadata", {}).get(_COPY_OF) != source:
            raise ExportError(
                f"an object that is not a copy of {self.uri(source)} has the name of a committed"
                " file. Move it away and run again",
                uri=self.uri(destination),
            )
        self.delete(source)

    def delete(self, key: str) -> None:
        """See `TargetStore.delete`."""
        self._send("delete_object", key)

    def _copy(self, source: str, destination: str) -> None:
        """Copies an object on the server. Does nothing if the source does not exist. In this case,
        it was already published or is lost.
        """

        def attempt() -> None:
            with contextlib.suppress(FileNotFoundError):
                self._client.filesystem.cp_file(
                    self._path(source),
                    self._path(destination),
                    MetadataDirective="REPLACE",
                    Metadata={_COPY_OF: source},
                )

        self._request(attempt, source)

    def _head(self, key: str) -> Any:  # noqa: ANN401  # the response of botocore
        try:
            return self._send("head_object", key)
        except ObjectNotFoundError:
            return None

    def _send(self, method: str, key: str, **arguments: Any) -> Any:  # noqa: ANN401
        self._check_key(key)
        arguments["Key"] = self._prefix + key
        return self._request(lambda: self._answer(method, arguments), key)

    def _path(self, key: str) -> str:
        self._check_key(key)
        return f"{self._bucket}/{self._prefix}{key}"
