"""Store for those file systems of fsspec that have no store class of their own: memory, HDFS, SFTP,
HTTP and more.

fsspec cannot require the version of an object in a read. So if a read requires a version, the store
looks up the object *after* it has read the bytes. If the object still has the required version, the
bytes belong to this version. This costs one small request per read.
"""

from __future__ import annotations

import inspect
from datetime import datetime
from typing import TYPE_CHECKING, Any

from kts_source.errors import InvalidOptionError, MissingExtraError
from kts_source.store.client_store import ClientStore
from kts_source.store.http_exchange import Exchange, watched_session
from kts_source.store.object_store import (
    Data,
    ObjectInfo,
    beyond_end,
    check_version,
    key_order,
    sorts_after,
)
from kts_source.store.request_policy import (
    DEFAULT_RETRY_POLICY,
    RetryPolicy,
    TransientError,
    within_deadline,
)
from kts_source.store.storage_options import filesystem_arguments

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kts_source.secret import Secret

_TIME_NAMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")
_HADOOP_LIBRARIES = ("libjvm", "libhdfs")
_CLASS_NAMES = ("StorageClass", "storageClass", "access_tier", "blob_tier")


class FsspecStore(ClientStore):
    """Objects below a URL. If the file system reports several values that can be used as the
    version of an object, `_info` chooses the most reliable one.
    """

    pinning = "the ETag, generation, or size and time looked up after every read"
    _absolute_keys = False
    # Name of the file system's argument with the arguments of its aiohttp session, or None.
    _session_argument: str | None = None
    # Attributes that change when the object's bytes change, most reliable first.
    _version_names: tuple[str, ...] = ("ETag", "etag", "generation", "md5Hash", "content_md5")

    def __init__(
        self,
        url: str,
        storage: Secret[Mapping[str, str]],
        retry_policy: RetryPolicy = DEFAULT_RETRY_POLICY,
    ) -> None:
        import fsspec

        scheme, _, path = url.partition("://")
        self._scheme = scheme.lower()
        if not path and "://" not in url:
            raise InvalidOptionError(f"the path {url} has no //: write {url.partition(':')[0]}://…")
        if "?" in path and self._scheme in ("http", "https"):
            raise InvalidOptionError("the path has a query string, which is not supported")
        try:
            filesystem_class = fsspec.get_filesystem_class(self._scheme)
        except ValueError:
            raise InvalidOptionError(
                f"unknown scheme {scheme}:// in the path; fsspec has no file system of that name"
            ) from None
        except ImportError as error:
            raise MissingExtraError(f"{scheme}:// needs another package: {error}") from None
        url = url.rstrip("/") if path.strip("/") else f"{scheme}://"
        self._root = str(filesystem_class._strip_protocol(url)).rstrip("/")  # noqa: SLF001  # fsspec's way to a path
        super().__init__(url, storage, retry_policy)
        if self._scheme in ("http", "https"):
            self._session_argument = "client_kwargs"

    def uri(self, key: str) -> str:
        """See `ObjectStore.uri`."""
        return f"{self._url}{key}" if self._url.endswith("/") else f"{self._url}/{key}"

    def close(self) -> None:
        """See `ObjectStore.close`."""
        self._client.close()

    def list_folders(self, prefix: str) -> list[str]:
        """See `ObjectStore.list_folders`."""
        return sorted(f"{key}/" for key, info in self._entries(prefix) if info is None)

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list_objects`. Sends one request per folder.

        The methods `find` and `walk` of fsspec are not used, because they silently skip folders
        that cannot be listed.
        """
        waiting = self._entries(prefix)
        while waiting:
            key, info = waiting.pop()
            if info is None:
                waiting += self._entries(f"{key}/")
            elif sorts_after(key, after):
                yield info

    def _entries(self, prefix: str) -> list[tuple[str, ObjectInfo | None]]:
        """Lists the keys of one folder that start with the prefix, in descending order. Returns
        pairs of a key and its `ObjectInfo`, or `None` if the key is a folder.
        """
        self._check_key(prefix)
        folder = prefix.rpartition("/")[0]

        def list_folder() -> list[tuple[str, ObjectInfo | None]]:
            entries: list[tuple[str, ObjectInfo | None]] = []
            for entry in self._list(folder):
                key = self._key(entry["name"])
                # Some file systems also list the folder itself, or its marker object.
                if not key.startswith(prefix) or key == folder:
                    continue
                if entry["type"] == "directory":
                    entries.append((key, None))
                elif not entry["name"].endswith("/"):
                    entries.append((key, self._info(key, entry)))
            # A folder sorts like the keys in it: by UTF-8 bytes, with a slash at the end.
            entries.sort(
                key=lambda pair: key_order(pair[0] + "/" * (pair[1] is None)), reverse=True
            )
            return entries

        return self._request(list_folder, prefix, listing=True)

    def _list(self, folder: str) -> Sequence[dict[str, Any]]:
        path = self._path(folder) if folder else self._root
        try:
            return list(self._call_uncached("ls", path, detail=True))
        except FileNotFoundError:
            if folder and self._is_listed(folder):
                raise TransientError(
                    "the folder appears in its parent folder, but cannot be listed itself"
                ) from None
            return []

    def _is_listed(self, folder: str) -> bool:
        """Returns whether the listing of the parent folder contains a folder. Needed because some
        file systems report a folder as missing if the user may not list it.
        """
        self._tally.add(list_requests=1)
        return any(
            entry["type"] == "directory" and self._key(entry["name"]) == folder
            for entry in self._list(folder.rpartition("/")[0])
        )

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _key(self, name: str) -> str:
        # Names may start with a slash, and names of folders may end with one.
        root = self._root.strip("/")
        name = name.strip("/")
        return name[len(root) :].lstrip("/") if not root or name.startswith(root) else name

    def _connect(self) -> Any:  # noqa: ANN401  # fsspec ships no types
        import fsspec

        arguments = filesystem_arguments(self._url, self._storage.reveal())
        named = {**arguments, "skip_instance_cache": True}
        if (name := self._session_argument) is not None:
            named[name] = watched_session(arguments.get(name) or {})
        try:
            return within_deadline(
                self._retry_policy.request_deadline_seconds,
                lambda: fsspec.filesystem(self._scheme, **named),
            )
        except TypeError:
            raise InvalidOptionError(
                f"the {self._scheme} file system does not support these storageOptions: "
                f"{', '.join(sorted(arguments))}"
            ) from None
        except OSError as error:
            if self._scheme == "hdfs" and any(name in str(error) for name in _HADOOP_LIBRARIES):
                raise MissingExtraError(
                    "hdfs:// needs Java and the native library of Hadoop (libhdfs) on every machine"
                    " that reads. Install both, set JAVA_HOME and HADOOP_HOME, and set CLASSPATH to"
                    " the output of `hadoop classpath --glob`"
                ) from None
            raise

    def _look_up(self, key: str) -> ObjectInfo:
        entry: dict[str, Any] = self._call_uncached("info", self._path(key))
        if entry["type"] == "directory":
            raise FileNotFoundError
        return self._info(key, entry)

    def _info(self, key: str, entry: Mapping[str, Any]) -> ObjectInfo:
        size = int(entry["size"])
        modified = _seconds(_first_value(entry, _TIME_NAMES))
        version = _first_value(entry, self._version_names)
        storage_class = _first_value(entry, _CLASS_NAMES)
        if version is None:
            version = size if modified is None else f"{size}-{modified}"
        return ObjectInfo(
            key,
            size,
            str(version),
            None if modified is None else round(modified * 1000),
            None if storage_class is None else str(storage_class),
        )

    def _read(self, key: str, start: int, stop: int, version: str | None) -> Data:
        exchange, path = Exchange(self.uri(key)), self._path(key)
        data = bytes(self._call("cat_file", path, start=start, end=stop, exchange=exchange))
        exchange.require_range(start, stop)
        if version is not None or len(data) != stop - start:
            self._tally.add(requests=1)
            info = self._look_up(key)
            check_version(info.version, version, uri=self.uri(key))
            if info.size < stop:
                raise beyond_end(info.size, start, stop, uri=self.uri(key))
        return data

    def _call_uncached(self, method: str, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        # A cached listing would hide new objects.
        self._client.filesystem.invalidate_cache()
        return self._call(method, *arguments, **named)

    def _call(
        self,
        method: str,
        *arguments: Any,  # noqa: ANN401
        exchange: Exchange | None = None,
        **named: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        watch = exchange or Exchange(self.uri(""))
        filesystem = self._client.filesystem
        coroutine = getattr(filesystem, f"_{method}", None)
        if getattr(filesystem, "async_impl", False) and inspect.iscoroutinefunction(coroutine):

            async def call_watched(_filesystem: Any) -> Any:  # noqa: ANN401
                watch.start()
                return await coroutine(*arguments, **named)

            return self._client.run(call_watched)
        try:
            return within_deadline(
                self._retry_policy.request_deadline_seconds,
                lambda: getattr(filesystem, method)(*arguments, **named),
            )
        except TransientError:
            self.close()  # do not reuse a connection that hangs
            raise

    def _failure(self, error: Exception, key: str, *, listing: bool) -> tuple[int, str]:
        status = _status(error)
        if isinstance(error, FileNotFoundError):
            status = 404
        elif isinstance(error, PermissionError):
            status = 403
        elif isinstance(error, ConnectionError | TimeoutError | EOFError):
            status = 503
        elif not status and any(
            base.__module__.startswith("aiohttp") for base in type(error).__mro__
        ):
            status = 503  # a failed connection: responses have a status
        return status, self._text(error)


def _status(error: Exception) -> int:
    """Returns the HTTP status of a cloud library's error; 0 if the error has no status."""
    for name in ("status", "status_code", "code"):
        try:
            status = int(getattr(error, name, 0))
        except (TypeError, ValueError):
            continue
        if 400 <= status < 600:
            return status
    return 0


def _first_value(entry: Mapping[str, Any], names: tuple[str, ...]) -> Any:  # noqa: ANN401
    return next((entry[name] for name in names if entry.get(name)), None)


def _seconds(value: object) -> float | None:
    """Converts a number, a `datetime` or an ISO text to seconds since the epoch; returns `None` for
    other values.
    """
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if isinstance(value, datetime):
        value = value.timestamp()
    return float(value) if isinstance(value, int | float) else None
