"""The protocol of all stores: list, look up, and read byte ranges of a pinned version.

A store is opened on a root: a folder, a bucket, or a prefix of a bucket. Keys are relative to the
root and use `/` between folders. Prefixes are literal and may end inside a name. Stores are
thread-safe, connect lazily and once per process, and can be pickled; the copy opens its own
connections. Retries happen inside the stores only.
"""

from __future__ import annotations

import operator
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from kts_source.errors import InvalidKeyError, ObjectChangedError, TruncatedObjectError

if TYPE_CHECKING:
    from collections.abc import Iterator

Data: TypeAlias = bytes | memoryview
"""Bytes of an object. The memory of a view may be reused once the view is deleted."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Metadata of an object, from a listing or a look-up.

    Attributes:
        key: Key relative to the store's root.
        size: Size in bytes.
        version: Opaque text that changes when the object changes: ETag, generation, or size and
            modification time. None if the store reports none of these.
        last_modified_ms: Milliseconds since the epoch.
        storage_class: Storage class as the store spells it, or None.
    """

    key: str
    size: int
    version: str | None = None
    last_modified_ms: int | None = None
    storage_class: str | None = None


@dataclass(frozen=True, slots=True)
class StoreCounters:
    """A snapshot of a store's work.

    Attributes:
        requests: Reads and look-ups sent, counting every attempt (GET and HEAD prices).
        list_requests: Listing pages requested, counting every attempt (LIST prices).
        bytes: Bytes of object data received in accepted responses.
        retries: Attempts repeated after a failure.
        hedges: Second requests sent because the first was late.
        mirrored: Reads and listings served by the mirror.
    """

    requests: int = 0
    list_requests: int = 0
    bytes: int = 0
    retries: int = 0
    hedges: int = 0
    mirrored: int = 0

    def __sub__(self, earlier: StoreCounters) -> StoreCounters:
        """Returns the work between two snapshots."""
        return StoreCounters(*map(operator.sub, _values(self), _values(earlier)))

    def __add__(self, other: StoreCounters) -> StoreCounters:
        """Returns the work of two stores."""
        return StoreCounters(*map(operator.add, _values(self), _values(other)))


_values = operator.attrgetter(*StoreCounters.__slots__)


class Tally:
    """Adds up `StoreCounters` from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = StoreCounters()

    def add(self, **work: int) -> None:
        """Adds work, given by the names of `StoreCounters`."""
        more = StoreCounters(**work)
        with self._lock:
            self._total += more

    @property
    def snapshot(self) -> StoreCounters:
        """Current totals."""
        return self._total


@runtime_checkable
class ObjectStore(Protocol):
    """Objects below a root. The module's docstring lists the properties that all stores share."""

    @property
    def pinning(self) -> str:
        """Describes how reads are pinned to one version of an object."""
        ...

    @property
    def remarks(self) -> tuple[str, ...]:
        """Lines of `explain` about how this store reads objects."""
        ...

    @property
    def is_near(self) -> bool:
        """True if a read only copies bytes within this machine.

        Then reading ahead in threads and caching have no benefit.
        """
        ...

    @property
    def lists_in_pages(self) -> bool:
        """True if listings are requested page by page, and `after` skips earlier pages."""
        ...

    @property
    def counters(self) -> StoreCounters:
        """Work of this instance in this process."""
        ...

    def uri(self, key: str) -> str:
        """Returns the URI of a key for messages, without credentials and query string."""
        ...

    def list_folders(self, prefix: str) -> list[str]:
        """Lists the folders one level down, sorted.

        Returns:
            Keys that start with `prefix` and end with the first `/` after it.

        Raises:
            StoreNotFoundError: The bucket or root folder does not exist, if the store reports it.
        """
        ...

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """Lists all objects whose key starts with `prefix`, in key order, without folder markers.

        Listings never come from a cache. An object that is deleted during the listing may be
        missing from it.

        Args:
            prefix: Literal prefix.
            after: List only keys after this one, in the order of their UTF-8 bytes.

        Raises:
            StoreNotFoundError: The bucket or root folder does not exist, if the store reports it.
        """
        ...

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> Data:
        """Reads bytes [start, stop) of an object and returns exactly that many.

        Args:
            key: Key of the object.
            start: First byte.
            stop: End of the range, exclusive. An empty range sends no request.
            version: Version that the object must have; None accepts any.

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
        """Closes the connections. A later call opens new ones."""
        ...


def check_key(key: str, uri: str, *, absolute: bool = False) -> None:
    """Checks that no client can resolve a key or prefix to a path outside the root.

    Args:
        key: Key or prefix.
        uri: URI of the root, for the error.
        absolute: True if a leading slash is an ordinary character, as in S3 keys.

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
    """Raises `ValueError` if [start, stop) is not a byte range."""
    if not 0 <= start <= stop:
        raise ValueError(f"not a byte range: [{start}, {stop})")


def check_version(version: str | None, planned: str | None, *, uri: str) -> None:
    """Raises `ObjectChangedError` if the version is not the planned one; None accepts any."""
    if planned is not None and version != planned:
        raise ObjectChangedError(
            f"the object changed: version {planned} was planned, now {version}", uri=uri
        )


def beyond_end(size: int, start: int, stop: int, *, uri: str) -> TruncatedObjectError:
    """Returns the error for a range [start, stop) of an object that has only `size` bytes."""
    return TruncatedObjectError(
        f"the object has {size} bytes, but [{start}, {stop}) was requested", uri=uri, position=size
    )


def is_behind(key: str, after: str | None) -> bool:
    """Returns whether a key sorts after another one in listings."""
    return after is None or key_order(key) > key_order(after)


def key_order(key: str) -> bytes:
    """Returns the sort key of listings: UTF-8 bytes."""
    return key.encode("utf-8", "surrogateescape")  # names of local files may be invalid UTF-8
