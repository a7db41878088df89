"""Any other store that fsspec knows: memory, GCS, Azure, HDFS, SFTP and more.

fsspec has no conditional read. With a version, the object is looked up *after* the bytes were read:
if it is still the planned version then, the bytes were of that version. That costs one small
request a read, which a store with a class of its own would save.
"""

from __future__ import annotations

import inspect
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from kts_source.errors import (
    AccessDeniedError,
    InvalidOptionError,
    ObjectChangedError,
    ObjectNotFoundError,
    ObjectTooLargeError,
    StoreError,
    TieredKafkaError,
    TruncatedObjectError,
)
from kts_source.secret import Secret, scrub
from kts_source.store.async_client import AsyncClient
from kts_source.store.cancel import CancelledFetchError
from kts_source.store.counters import StoreCounters, Tally
from kts_source.store.deadline import within_deadline
from kts_source.store.object_store import ObjectInfo, check_key, check_range, is_behind
from kts_source.store.retry import DEFAULT_RETRY_POLICY, RetryPolicy, TransientError
from kts_source.store.storage_options import extra_arguments, secret_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

T = TypeVar("T")

# What the file systems call the thing that changes with the bytes, best first.
_VERSION_NAMES = ("ETag", "etag", "generation", "md5Hash", "content_md5")
_TIME_NAMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")
_CLASS_NAMES = ("StorageClass", "storageClass", "access_tier", "blob_tier")


class FsspecStore:
    """Objects below a URL. The version is what the file system tells, at worst the size alone."""

    pinning = "the ETag, generation, or size and time looked up after every read"
    is_near = False

    def __init__(
        self,
        url: str,
        storage: Secret[Mapping[str, str]],
        *,
        retry_policy: RetryPolicy = DEFAULT_RETRY_POLICY,
    ) -> None:
        import fsspec

        scheme, _, path = url.partition("://")
        self._scheme = scheme.lower()
        if not path and "://" not in url:
            raise InvalidOptionError(f"the path {url} has no //: write {scheme}://…")
        if "?" in path and self._scheme in ("http", "https"):
            raise InvalidOptionError("a path with a query string is not supported")
        try:
            filesystem_class = fsspec.get_filesystem_class(self._scheme)
        except ValueError:
            raise InvalidOptionError(
                f"unknown scheme {scheme}:// in the path; fsspec has no file system of that name"
            ) from None
        except ImportError as error:
            raise InvalidOptionError(f"{scheme}:// needs another package: {error}") from None
        self._url = url.rstrip("/") if path.strip("/") else f"{scheme}://"
        self._root = str(filesystem_class._strip_protocol(self._url)).rstrip("/")  # noqa: SLF001  # fsspec's way to a path
        self._storage = storage
        self._retry_policy = retry_policy
        self._tally = Tally()
        self._hidden = Secret(secret_values(storage.reveal()))
        self._client = AsyncClient(
            self._connect, deadline_seconds=retry_policy.request_deadline_seconds
        )

    def __repr__(self) -> str:
        return f"FsspecStore({self.uri('')!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return _reopened, (self._url, self._storage, self._retry_policy)

    @property
    def counters(self) -> StoreCounters:
        """Work done so far; requests that the file system makes by itself are not seen."""
        return self._tally.snapshot

    def uri(self, key: str) -> str:
        """The URL of the key below the root."""
        return f"{self._url}{key}" if self._url.endswith("/") else f"{self._url}/{key}"

    def close(self) -> None:
        """Drops the file system of this process."""
        self._client.close(lambda _filesystem: None)

    # -- listing

    def list_folders(self, prefix: str) -> list[str]:
        """See `ObjectStore.list_folders`."""
        return sorted(f"{key}/" for key, info in self._entries(prefix) if info is None)

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list_objects`. A request a folder: `find` and `walk` of the file systems
        leave out what they fail to list.
        """
        waiting = self._entries(prefix)
        while waiting:
            key, info = waiting.pop()
            if info is None:
                waiting += self._entries(f"{key}/")
            elif is_behind(key, after):
                yield info

    def _entries(self, prefix: str) -> list[tuple[str, ObjectInfo | None]]:
        """What begins with a prefix in the folder that it ends in, the last key first; no look-up
        stands for a folder.
        """
        check_key(prefix, self.uri(""))
        folder = prefix.rpartition("/")[0]

        def listed(filesystem: Any) -> list[tuple[str, ObjectInfo | None]]:  # noqa: ANN401
            found: list[tuple[str, ObjectInfo | None]] = []
            for entry in self._list(filesystem, folder):
                key = self._key(entry["name"])
                # Some list the folder itself, or a marker of it, along with what is in it.
                if not key.startswith(prefix) or key == folder:
                    continue
                if entry["type"] == "directory":
                    found.append((key, None))
                elif not entry["name"].endswith("/"):
                    found.append((key, _info(key, entry)))
            # A folder sorts as its keys do: with the slash, by bytes.
            found.sort(key=lambda pair: pair[0].encode() + b"/" * (pair[1] is None), reverse=True)
            return found

        return self._request(listed, prefix, listing=True)

    def _list(self, filesystem: Any, folder: str) -> Sequence[dict[str, Any]]:  # noqa: ANN401
        # A cached listing would hide objects that were written since.
        filesystem.invalidate_cache()
        path = self._path(folder) if folder else self._root
        try:
            return list(self._call(filesystem, "ls", path, detail=True))
        except FileNotFoundError:
            if folder and self._is_listed(filesystem, folder):
                raise TransientError("the folder is listed above, but not found itself") from None
            return []

    def _is_listed(self, filesystem: Any, folder: str) -> bool:  # noqa: ANN401
        """Whether the folder above tells of a folder. Some file systems say that there is none
        when they may not look.
        """
        above = folder.rpartition("/")[0]
        self._tally.add(list_requests=1)
        return any(
            entry["type"] == "directory" and self._key(entry["name"]) == folder
            for entry in self._list(filesystem, above)
        )

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _key(self, name: str) -> str:
        # Names come with or without a leading slash, folders with or without one at the end.
        root = self._root.strip("/")
        name = name.strip("/")
        return name[len(root) :].lstrip("/") if not root or name.startswith(root) else name

    # -- reading

    def head(self, key: str) -> ObjectInfo:
        """See `ObjectStore.head`."""
        check_key(key, self.uri(""))
        return self._request(lambda filesystem: self._looked_up(filesystem, key), key)

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> bytes:
        """See `ObjectStore.get_range`."""
        check_range(start, stop)
        check_key(key, self.uri(""))
        if start == stop:
            return b""

        def read(filesystem: Any) -> bytes:  # noqa: ANN401
            data = bytes(self._call(filesystem, "cat_file", self._path(key), start=start, end=stop))
            if version is not None or len(data) != stop - start:
                self._tally.add(requests=1)
                info = self._looked_up(filesystem, key)
                self._require_version(info, version)
                self._require_size(info, start, stop)
            if len(data) != stop - start:
                raise TransientError(f"{len(data)} bytes were answered for [{start}, {stop})")
            return data

        return self._received(self._request(read, key))

    def get_object(self, key: str, *, max_bytes: int, version: str | None = None) -> bytes:
        """See `ObjectStore.get_object`."""
        check_key(key, self.uri(""))

        def read(filesystem: Any) -> bytes:  # noqa: ANN401
            info = self._looked_up(filesystem, key)
            self._require_version(info, version)
            if info.size > max_bytes:
                raise ObjectTooLargeError(
                    f"the object has {info.size} bytes, more than the {max_bytes} allowed here",
                    uri=self.uri(key),
                )
            if not info.size:
                return b""
            self._tally.add(requests=1)
            path = self._path(key)
            data = bytes(self._call(filesystem, "cat_file", path, start=0, end=info.size))
            if len(data) != info.size:
                raise TransientError(f"{len(data)} of {info.size} bytes were answered")
            return data

        return self._received(self._request(read, key))

    def _looked_up(self, filesystem: Any, key: str) -> ObjectInfo:  # noqa: ANN401
        filesystem.invalidate_cache()
        entry = self._call(filesystem, "info", self._path(key))
        if entry["type"] == "directory":
            raise FileNotFoundError
        return _info(key, entry)

    def _received(self, data: bytes) -> bytes:
        self._tally.add(received=len(data))
        return data

    def _require_version(self, info: ObjectInfo, version: str | None) -> None:
        if version is not None and info.version != version:
            raise ObjectChangedError(
                f"the object changed: version {version} was planned, now {info.version}",
                uri=self.uri(info.key),
            )

    def _require_size(self, info: ObjectInfo, start: int, stop: int) -> None:
        if info.size < stop:
            raise TruncatedObjectError(
                f"the object has {info.size} bytes, [{start}, {stop}) was asked for",
                uri=self.uri(info.key),
                position=info.size,
            )

    # -- requests

    def _connect(self) -> Any:  # noqa: ANN401  # fsspec ships no types
        import fsspec

        arguments = extra_arguments(self._storage.reveal())
        named = {**arguments, "skip_instance_cache": True}
        try:
            return within_deadline(
                self._retry_policy.request_deadline_seconds,
                lambda: fsspec.filesystem(self._scheme, **named),
            )
        except TypeError:
            raise InvalidOptionError(
                f"the {self._scheme} file system does not take these storageOptions: "
                f"{', '.join(sorted(arguments))}"
            ) from None

    def _call(self, filesystem: Any, method: str, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        coroutine = getattr(filesystem, f"_{method}", None)
        if getattr(filesystem, "async_impl", False) and inspect.iscoroutinefunction(coroutine):
            return self._client.run(lambda _filesystem: coroutine(*arguments, **named))
        try:
            return within_deadline(
                self._retry_policy.request_deadline_seconds,
                lambda: getattr(filesystem, method)(*arguments, **named),
            )
        except TransientError:
            self.close()  # a connection that hangs is not used again
            raise

    def _request(self, operation: Callable[[Any], T], key: str, *, listing: bool = False) -> T:
        def attempt() -> T:
            self._tally.add(requests=not listing, list_requests=listing)
            try:
                return operation(self._client.filesystem)
            except (TransientError, TieredKafkaError, CancelledFetchError):
                raise
            except Exception as error:  # noqa: BLE001  # every library error becomes one of ours
                raise self._translated(error, key) from None

        return self._retry_policy.run(attempt, uri=self.uri(key), tally=self._tally)

    def _translated(self, error: Exception, key: str) -> StoreError | TransientError:
        uri = self.uri(key)
        status = _status(error)
        text = scrub(f"{type(error).__name__}: {error}", self._hidden.reveal())
        if isinstance(error, FileNotFoundError) or status == 404:
            return ObjectNotFoundError("no such object", uri=uri)
        if isinstance(error, PermissionError) or status in (401, 403):
            return AccessDeniedError(f"access denied: {text}", uri=uri)
        if status == 412:
            return ObjectChangedError("the object changed", uri=uri)
        if status == 416:
            return TruncatedObjectError("the object ends before the range", uri=uri)
        transient = isinstance(error, ConnectionError | TimeoutError | EOFError)
        if transient or status == 429 or (status >= 500 and status != 501) or _is_of_aiohttp(error):
            return TransientError(text)
        return StoreError(f"the store failed: {text}", uri=uri)


def _reopened(
    url: str, storage: Secret[Mapping[str, str]], retry_policy: RetryPolicy
) -> FsspecStore:
    return FsspecStore(url, storage, retry_policy=retry_policy)


def _status(error: Exception) -> int:
    """The HTTP status that the clients of the clouds keep under one name or another; 0 if none."""
    for name in ("status", "status_code", "code"):
        try:
            status = int(getattr(error, name, 0))
        except (TypeError, ValueError):
            continue
        if 400 <= status < 600:
            return status
    return 0


def _is_of_aiohttp(error: Exception) -> bool:
    # Connection failures of the asynchronous clients; answers with a status were sorted out before.
    return not _status(error) and any(
        base.__module__.startswith("aiohttp") for base in type(error).__mro__
    )


def _info(key: str, entry: dict[str, Any]) -> ObjectInfo:
    size = int(entry["size"])
    modified = _moment(next((entry[name] for name in _TIME_NAMES if entry.get(name)), None))
    version = next((str(entry[name]) for name in _VERSION_NAMES if entry.get(name)), None)
    milliseconds = None if modified is None else round(modified * 1000)
    if version is None:
        version = str(size) if modified is None else f"{size}-{modified}"
    storage_class = next((str(entry[name]) for name in _CLASS_NAMES if entry.get(name)), None)
    return ObjectInfo(key, size, version, milliseconds, storage_class)


def _moment(value: object) -> float | None:
    """Seconds since the epoch, however a listing or a look-up spells the time."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if isinstance(value, datetime):
        value = value.timestamp()
    return float(value) if isinstance(value, int | float) else None
