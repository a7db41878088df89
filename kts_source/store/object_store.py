"""The protocol of every store: list, look up, read a byte range of a pinned version.

A store is opened on a root (a folder, a bucket, or a prefix of a bucket); keys are relative to it,
`/` separates folders, prefixes are taken literally and may end inside a name. Stores are
thread-safe, open their connections lazily and once per process, and can be pickled: the copy opens
its own. Retries live in the stores, nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from kts_source.errors import InvalidKeyError, ObjectChangedError, TruncatedObjectError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kts_source.store.counters import StoreCounters

Data: TypeAlias = bytes | memoryview
"""What was read; a view may be of memory that is used again once the view is gone."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a listing or a look-up says about an object.

    Attributes:
        key: Relative to the store's root.
        size: Bytes.
        version: Opaque text that changes when the object does (ETag, generation, or size and
            modification time); None where the store tells nothing of the kind.
        last_modified_ms: Milliseconds since the epoch.
        storage_class: As the store spells it; None where it has none.
    """

    key: str
    size: int
    version: str | None = None
    last_modified_ms: int | None = None
    storage_class: str | None = None


@runtime_checkable
class ObjectStore(Protocol):
    """Objects below a root. See the module's text for what all stores share."""

    @property
    def pinning(self) -> str:
        """How reads of an object are held to one version, in words."""
        ...

    @property
    def remarks(self) -> tuple[str, ...]:
        """What people should know of how objects are read here; lines of `explain`."""
        ...

    @property
    def is_near(self) -> bool:
        """Whether reading is copying within this machine, so that nothing is gained by reading
        ahead in threads or by keeping copies.
        """
        ...

    @property
    def lists_in_pages(self) -> bool:
        """Whether a listing is asked for page by page as it is read, and one from a key on spares
        the pages before it.
        """
        ...

    @property
    def counters(self) -> StoreCounters:
        """Work done so far by this instance in this process."""
        ...

    def uri(self, key: str) -> str:
        """Where the key is, for people: no credentials, no query string."""
        ...

    def list_folders(self, prefix: str) -> list[str]:
        """The folders one level down, sorted.

        Returns:
            Keys that start with `prefix` and end with the first `/` after it.

        Raises:
            StoreNotFoundError: The bucket or root folder does not exist (where the store can tell).
        """
        ...

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """Every object whose key starts with `prefix`, any depth, in key order; no folder markers.

        Args:
            prefix: Taken literally.
            after: Only keys behind this one, in the order of their UTF-8 bytes.

        Never answered from a cache. An object that vanishes during the listing may be missing from
        it.

        Raises:
            StoreNotFoundError: The bucket or root folder does not exist (where the store can tell).
        """
        ...

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> Data:
        """Bytes [start, stop) of an object: exactly as many, or an error.

        Args:
            key: The object.
            start: First byte.
            stop: One past the last byte. An empty range asks the store nothing.
            version: The version the bytes must belong to; None takes whatever is there.

        Raises:
            ObjectNotFoundError: No such object.
            ObjectChangedError: The object is not of that version (any more).
            TruncatedObjectError: The object ends before `stop`.
            StoreUnavailableError: Retries did not help.
        """
        ...

    def head(self, key: str) -> ObjectInfo:
        """What the store knows about one object.

        Raises:
            ObjectNotFoundError: No such object.
        """
        ...

    def close(self) -> None:
        """Lets connections go. A later call opens them again."""
        ...


def check_key(key: str, uri: str, *, absolute: bool = False) -> None:
    """Refuses keys and prefixes that a client could resolve to outside the root.

    With `absolute`, a leading slash is an ordinary character, as in S3 keys.

    Raises:
        InvalidKeyError: The key is absolute, has a `.` or `..` segment or a zero byte.
    """
    if not absolute and key.startswith("/"):
        raise InvalidKeyError(f"the key {key!r} is absolute and would leave the root", uri=uri)
    if any(segment in (".", "..") for segment in key.split("/")):
        raise InvalidKeyError(f"the key {key!r} has a '.' or '..' segment", uri=uri)
    if "\0" in key:
        raise InvalidKeyError(f"the key {key!r} has a zero byte", uri=uri)


def check_range(start: int, stop: int) -> None:
    """Refuses ranges that are none: negative or backwards.

    Raises:
        ValueError: A mistake of the caller.
    """
    if not 0 <= start <= stop:
        raise ValueError(f"not a byte range: [{start}, {stop})")


def check_version(found: str | None, planned: str | None, *, uri: str) -> None:
    """Refuses an object that is not of the planned version; none planned is any.

    Raises:
        ObjectChangedError: They differ.
    """
    if planned is not None and found != planned:
        raise ObjectChangedError(
            f"the object changed: version {planned} was planned, now {found}", uri=uri
        )


def beyond_end(size: int, start: int, stop: int, *, uri: str) -> TruncatedObjectError:
    """The error for a range [start, stop) of an object that has only `size` bytes."""
    return TruncatedObjectError(
        f"the object has {size} bytes, [{start}, {stop}) was asked for", uri=uri, position=size
    )


def is_behind(key: str, after: str | None) -> bool:
    """Whether a key comes behind another in the order of listings."""
    return after is None or key_order(key) > key_order(after)


def key_order(key: str) -> bytes:
    """What listings are sorted by."""
    return key.encode("utf-8", "surrogateescape")  # a local file's name may be no valid UTF-8
