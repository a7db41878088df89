"""The protocol of all stores. A store lists objects, looks them up, and reads byte ranges of them.

A store is opened on a root: a folder, a bucket, or a prefix of a bucket. Keys are relative to the
root and use `/` between folders. Prefixes are compared literally and may end inside a name. Stores
are thread-safe. Each process connects when it first uses a store. Stores can be pickled; an
unpickled store opens its own connections. Requests are retried only inside the stores.
"""

from __future__ import annotations

import operator
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from kts_source.errors import InvalidKeyError, ObjectChangedError, StoreError, TruncatedObjectError

if TYPE_CHECKING:
    from collections.abc import Iterator

Data: TypeAlias = bytes | memoryview
"""Bytes of an object. When a view is deleted, its memory may be reused."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Metadata of an object, from a listing or a look-up.

    Attributes:
        key: Key relative to the store's root.
        size: Size in bytes.
        version: Opaque text that changes when the object changes: ETag, generation, or size and
            modification time. None if the store does not report any of them.
        last_modified_ms: Time of the last modification, in milliseconds since the epoch.
        storage_class: Storage class, spelled as the store reports it, or None.
    """

    key: str
    size: int
    version: str | None = None
    last_modified_ms: int | None = None
    storage_class: str | None = None


@dataclass(frozen=True, slots=True)
class StoreCounters:
    """Numbers of requests and bytes of a store, up to one moment or between two moments.

    Attributes:
        requests: Reads and look-ups that were sent, including retries. Providers bill them as GET
            and HEAD requests.
        list_requests: Listing pages that were requested, including retries. Providers bill them as
            LIST requests.
        bytes: Bytes of object data in the responses that were accepted.
        retries: Attempts that repeated a failed attempt.
        hedges: Second requests that were sent because the first one was late.
        mirrored: Reads and listings that the mirror answered.
    """

    requests: int = 0
    list_requests: int = 0
    bytes: int = 0
    retries: int = 0
    hedges: int = 0
    mirrored: int = 0

    def __sub__(self, earlier: StoreCounters) -> StoreCounters:
        """Returns the counts between an earlier snapshot and this one."""
        return StoreCounters(*map(operator.sub, _values(self), _values(earlier)))

    def __add__(self, other: StoreCounters) -> StoreCounters:
        """Returns the sum of the counters of two stores."""
        return StoreCounters(*map(operator.add, _values(self), _values(other)))


_values = operator.attrgetter(*StoreCounters.__slots__)


class Tally:
    """Counts the requests and bytes of a store. Several threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = StoreCounters()

    def add(self, **work: int) -> None:
        """Adds each argument to the counter with its name, which is an attribute of
        `StoreCounters`.
        """
        more = StoreCounters(**work)
        with self._lock:
            self._total += more

    @property
    def snapshot(self) -> StoreCounters:
        """Returns the current totals."""
        return self._total


@runtime_checkable
class ObjectStore(Protocol):
    """Objects below a root. The module's docstring lists the properties that all stores share."""

    @property
    def pinning(self) -> str:
        """Describes for users how reads ensure that all bytes come from one version of an
        object.
        """
        ...

    @property
    def remarks(self) -> tuple[str, ...]:
        """Lines about the way this store reads objects, for the output of `explain`."""
        ...

    @property
    def is_near(self) -> bool:
        """True if the objects are on this machine. Reading ahead in threads and caching would then
        not make reads faster.
        """
        ...

    @property
    def lists_in_pages(self) -> bool:
        """True if a listing sends one request per page, and `after` saves the requests for earlier
        pages.
        """
        ...

    @property
    def counters(self) -> StoreCounters:
        """Counters of this instance in this process."""
        ...

    def uri(self, key: str) -> str:
        """Returns the URI of a key for messages. It contains neither credentials nor a query
        string.
        """
        ...

    def list_folders(self, prefix: str) -> list[str]:
        """Lists the folders directly below a prefix, sorted.

        Returns:
            Beginnings of keys: `prefix` and the following text up to and including the next `/`.

        Raises:
            StoreNotFoundError: The store reports that the bucket or root folder does not exist.
        """
        ...

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """Lists all objects whose key starts with `prefix`, in order of the UTF-8 bytes of the
        keys. Folder markers are omitted.

        Listings never come from a cache. If an object is deleted during the listing, it may or may
        not be listed.

        Args:
            prefix: Prefix of the keys, compared literally.
            after: If given, only keys that sort after this key are listed.

        Raises:
            StoreNotFoundError: The store reports that the bucket or root folder does not exist.
        """
        ...

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> Data:
        """Reads bytes [start, stop) of an object. Returns exactly `stop - start` bytes.

        Args:
            key: Key of the object.
            start: First byte.
            stop: End of the range, exclusive. An empty range sends no request.
            version: Version that the object must have; None accepts any version.

        Raises:
            ObjectNotFoundError: The object does not exist.
            ObjectChangedError: The object has another version.
            TruncatedObjectError: The object ends before `stop`.
            StoreUnavailableError: All attempts failed.
        """
        ...

    def head(self, key: str) -> ObjectInfo:
        """Looks up one object.

        Raises:
            ObjectNotFoundError: The object does not exist.
        """
        ...

    def close(self) -> None:
        """Closes the connections. Later calls of other methods open new ones."""
        ...


def check_key(key: str, uri: str, *, absolute: bool = False) -> None:
    """Checks that a key or prefix cannot be resolved to a path outside the root. `uri` is the URI
    of the root, for the error. `absolute` allows a leading slash, as in S3.

    Raises:
        InvalidKeyError: The key is absolute, or has a `.` or `..` segment or a zero byte.
    """
    if not absolute and key.startswith("/"):
        raise InvalidKeyError(f"the key {key!r} is absolute and would leave the root", uri=uri)
    if any(segment in (".", "..") for segment in key.split("/")):
        raise InvalidKeyError(f"the key {key!r} has a '.' or '..' segment", uri=uri)
    if "\0" in key:
        raise InvalidKeyError(f"the key {key!r} has a zero byte", uri=uri)


def check_range(start: int, stop: int) -> None:
    """Raises `ValueError` unless `0 <= start <= stop`."""
    if not 0 <= start <= stop:
        raise ValueError(f"not a byte range: [{start}, {stop})")


def check_version(version: str | None, planned: str | None, *, uri: str) -> None:
    """Raises `ObjectChangedError` if `version` differs from `planned`, or `StoreError` if `version`
    is None. Accepts every version if `planned` is None.
    """
    if version is None and planned is not None:
        raise StoreError(
            f"the response has no ETag, but version {planned} was planned: a gateway probably"
            " serves a file that was not written through it. Copy the object through the gateway",
            uri=uri,
        )
    if planned is not None and version != planned:
        raise ObjectChangedError(
            f"the object changed: its version was {planned} and is {version} now", uri=uri
        )


def beyond_end(size: int, start: int, stop: int, *, uri: str) -> TruncatedObjectError:
    """Returns the error for a request of bytes [start, stop) of an object that has only `size`
    bytes.
    """
    return TruncatedObjectError(
        f"the object has {size} bytes, but [{start}, {stop}) was requested", uri=uri, position=size
    )


def sorts_after(key: str, after: str | None) -> bool:
    """Returns whether `key` sorts after the key `after` in listings. Returns True if `after` is
    None.
    """
    return after is None or key_order(key) > key_order(after)


def key_order(key: str) -> bytes:
    """Returns the UTF-8 bytes of a key. Listings are sorted by these bytes."""
    return key.encode("utf-8", "surrogateescape")  # names of local files may be invalid UTF-8
