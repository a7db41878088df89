"""Stores that combine other stores: a main store with additional stores under key prefixes, a store
with a mirror, and an empty store.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from kts_source.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreError,
    StoreNotFoundError,
    StoreUnavailableError,
)
from kts_source.store.object_store import StoreCounters, Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kts_source.store.object_store import Data, ObjectInfo, ObjectStore

log = logging.getLogger(__name__)

T = TypeVar("T")

_BESIDE: Final = "tailPath:/"

# A store that has failed is not used for this time, because each request would repeat all retries.
REST_SECONDS: Final = 30.0
_DOWN: Final = (StoreUnavailableError, AccessDeniedError, StoreNotFoundError)
_FAILURES: Final = (*_DOWN, ObjectNotFoundError)
_MAX_REPORTED: Final = 10_000


def _stem(key: str) -> str:
    """Returns the part of a key that all objects of a segment have in common."""
    return key.rpartition(".")[0]


def additional_store_prefix(number: int) -> str:
    """Returns the prefix of all keys in the additional store number `number`."""
    return f"{_BESIDE}{number}/"


def is_in_additional_store(key: str) -> bool:
    """Returns whether a key belongs to an additional store instead of the main store."""
    return key.startswith(_BESIDE)


@dataclass(frozen=True, slots=True)
class JoinedStore:
    """A main store, and additional stores whose keys begin with `tailPath:/<number>/`.

    Plans and tasks refer to objects by key and version. Because of the prefix, keys of different
    stores differ.

    Args:
        first: The main store. Its keys get no prefix, and never start with `tailPath:/`.
        others: The additional stores. The prefix of a store contains its index.
    """

    first: ObjectStore
    others: tuple[ObjectStore, ...]

    @property
    def pinning(self) -> str:
        """See `ObjectStore.pinning`."""
        return "; additional paths: ".join(dict.fromkeys(store.pinning for store in self._all))

    @property
    def remarks(self) -> tuple[str, ...]:
        """See `ObjectStore.remarks`."""
        return _merge_remarks(self._all)

    @property
    def is_near(self) -> bool:
        """See `ObjectStore.is_near`. True if it is true for all stores."""
        return all(store.is_near for store in self._all)

    @property
    def lists_in_pages(self) -> bool:
        """See `ObjectStore.lists_in_pages`. Returns the property of the main store."""
        return self.first.lists_in_pages

    @property
    def counters(self) -> StoreCounters:
        """Sum of the counters of all stores."""
        return sum((store.counters for store in self._all), StoreCounters())

    def uri(self, key: str) -> str:
        """Returns the URI of an object in the store that contains it."""
        store, own_key, _ = self._locate(key)
        return store.uri(own_key)

    def close(self) -> None:
        """Closes all stores."""
        for store in self._all:
            store.close()

    def list_folders(self, prefix: str) -> list[str]:
        """See `ObjectStore.list_folders`. Lists only the store that the prefix selects."""
        store, own_prefix, before = self._locate(prefix)
        return [before + folder for folder in store.list_folders(own_prefix)]

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list_objects`. Lists only the store that the prefix selects."""
        store, own_prefix, before = self._locate(prefix)
        own_after = None if after is None else after.removeprefix(before)
        for info in store.list_objects(own_prefix, after=own_after):
            yield replace(info, key=before + info.key) if before else info

    def head(self, key: str) -> ObjectInfo:
        """See `ObjectStore.head`."""
        store, own_key, before = self._locate(key)
        info = store.head(own_key)
        return replace(info, key=before + info.key) if before else info

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> Data:
        """See `ObjectStore.get_range`."""
        store, own_key, _ = self._locate(key)
        return store.get_range(own_key, start, stop, version=version)

    @property
    def _all(self) -> tuple[ObjectStore, ...]:
        return (self.first, *self.others)

    def _locate(self, key: str) -> tuple[ObjectStore, str, str]:
        """Returns the store that contains a key, the key inside that store, and the removed prefix
        `tailPath:/<number>/` (empty for the main store).
        """
        if not is_in_additional_store(key):
            return self.first, key, ""
        number, _, own_key = key.removeprefix(_BESIDE).partition("/")
        if not (number.isascii() and number.isdigit() and int(number) < len(self.others)):
            raise ObjectNotFoundError(
                f"the key belongs to tailPath number {number} (from 0), but option 'tailPath' names"
                f" {len(self.others)} paths",
                uri=key,
            )
        return self.others[int(number)], own_key, additional_store_prefix(int(number))


class FallbackStore:
    """A store and its mirror. The mirror has the same keys, and is used when the store fails.

    A listing contains the objects of the first store, and objects that only the mirror has. Objects
    before a folder's first segment that is complete in the first store are excluded, because
    retention has deleted them.

    The two stores assign different versions to the same object. So versions of this class have
    three parts: `<store number>:<size>:<version in that store>`.

    A read first uses the store that the version names. If this store does not respond after all
    retries, denies access, or lacks the bucket or object, the read uses the other store. There, the
    object must have the size that the version states. The first read from the other store records
    the object's version there, and later reads require this recorded version.

    Objects with the same key and size have the same bytes, because segment objects are written once
    and their keys contain a random id. The checksums of the records confirm it.

    If an object has changed, the read fails without using the other store, because a mirror must
    not hide the change.
    """

    is_near = False
    lists_in_pages = False  # a whole listing comes from one store

    def __init__(self, first: ObjectStore, mirror: ObjectStore) -> None:
        self._stores = (first, mirror)
        self._tally = Tally()
        self._lock = threading.Lock()
        self._infos: dict[tuple[int, str], ObjectInfo] = {}
        self._down_until = [0.0, 0.0]
        self._reported: set[str] = set()
        self._failures: list[StoreError | None] = [None, None]
        self._unanswered: dict[str, StoreError] = {}

    def __repr__(self) -> str:
        return f"FallbackStore({self._stores[0]!r}, {self._stores[1]!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return FallbackStore, self._stores

    @property
    def counters(self) -> StoreCounters:
        """Sum of the counters of both stores. Also counts the reads and listings that the mirror
        answered.
        """
        first, mirror = self._stores
        return first.counters + mirror.counters + self._tally.snapshot

    @property
    def pinning(self) -> str:
        """See `ObjectStore.pinning`."""
        return f"{self._stores[0].pinning}; in the mirror by size and the version first met there"

    @property
    def remarks(self) -> tuple[str, ...]:
        """See `ObjectStore.remarks`."""
        return _merge_remarks(self._stores)

    def uri(self, key: str) -> str:
        """Returns the URI of a key in the first store."""
        return self._stores[0].uri(key)

    def close(self) -> None:
        """Closes both stores."""
        for store in self._stores:
            store.close()

    def list_folders(self, prefix: str) -> list[str]:
        """See `ObjectStore.list_folders`."""
        folders = self._try_both(0, lambda number: self._stores[number].list_folders(prefix))
        self._note(f"{prefix} folders", self._failures[0] if self.is_mirror_alone else None)
        return folders

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list_objects`. If one store fails, only the other store is listed."""

        def list_all(number: int) -> list[ObjectInfo]:
            objects = self._stores[number].list_objects(prefix, after=after)
            return [_add_store(number, info) for info in objects]

        listed = self._try_both(0, list_all)
        if self.is_mirror_alone:
            self._note(prefix, self._failures[0])
        elif listed:
            mirrored = self._ask_mirror(prefix, list_all, counts=False) or []
            if not mirrored and after is None and prefix not in self._unanswered:
                self._note(prefix, self._empty_mirror(prefix))
            lost = self._lost(listed, mirrored, is_continued=after is not None)
            listed = sorted([*listed, *lost], key=attrgetter("key")) if lost else listed
        yield from listed

    @property
    def unanswered(self) -> StoreError | None:
        """Error of a store that did not answer which objects it has; `None` if both answered."""
        with self._lock:
            failure = next(iter(self._unanswered.values()), None)
        if failure is None:
            return None
        return failure.extended(
            ". It may have segments that the other store lacks, so run again when it answers. If it"
            " is gone for good, remove fallbackPath, or use the mirror as path"
        )

    def require_answers(self) -> None:
        """Checks that both stores answered which objects they have, so that missing objects are
        lost.

        Raises:
            StoreError: A store did not answer.
        """
        failure = self.unanswered
        if failure is not None:
            raise failure

    def _empty_mirror(self, prefix: str) -> StoreError:
        return StoreNotFoundError(
            "the mirror has no objects here: it is not mounted, or fallbackPath is wrong. Correct"
            " this, or remove fallbackPath",
            uri=self._stores[1].uri(prefix),
        )

    @property
    def is_mirror_alone(self) -> bool:
        """True if the first store does not answer."""
        return time.monotonic() < self._down_until[0]

    def has_objects(self, prefix: str, version: str | None) -> bool:
        """Returns whether the store that `version` names has an object whose key starts with
        `prefix`.
        """
        home = _parse_version(version)[0]
        return self._try_store(home, lambda _: any(self._stores[home].list_objects(prefix)))

    def _note(self, name: str, failure: StoreError | None) -> None:
        """Notes whether a store answered about the object or prefix `name`."""
        with self._lock:
            if failure is not None:
                self._unanswered[name] = failure
            else:
                self._unanswered.pop(name, None)

    def _ask_mirror(self, name: str, read: Callable[[int], T], *, counts: bool = True) -> T | None:
        """Returns the mirror's answer about the object or prefix `name`; `None` if it does not
        answer or lacks the object.
        """
        failure = self._failures[1] if time.monotonic() < self._down_until[1] else None
        answer = None
        if failure is None:
            try:
                answer = self._try_store(1, read, counts=counts)
            except ObjectNotFoundError:
                pass
            except StoreError as error:
                failure = error
        self._note(name, failure)
        return answer

    def _lost(
        self, listed: list[ObjectInfo], mirrored: list[ObjectInfo], *, is_continued: bool
    ) -> list[ObjectInfo]:
        """Returns the objects that the first store has lost: the mirror has them, and the first
        store has an earlier segment in their folder with all of the mirror's objects. Retention
        deletes objects in any order, so it may leave single objects of deleted segments.
        """
        present = {info.key for info in listed}
        incomplete = {_stem(info.key) for info in mirrored if info.key not in present}
        starts: dict[str, str] = {}
        for info in mirrored:
            stem, folder = _stem(info.key), info.key.rpartition("/")[0]
            if is_continued:
                starts[folder] = ""
            elif stem not in incomplete:
                starts[folder] = min(starts.get(folder, stem), stem)
        folders = {info.key.rpartition("/")[0] for info in listed}
        lost = []
        for info in mirrored:
            folder = info.key.rpartition("/")[0]
            is_later = folder in starts and info.key >= starts[folder]
            if info.key not in present and folder in folders and is_later:
                self._report(info.key, "the object is missing")
                lost.append(info)
        return lost

    def in_mirror(
        self, key: str, version: str | None, reason: str, *, size: int | None = None
    ) -> ObjectInfo | None:
        """Returns the mirror's object, to read it in place of an invalid object. Logs the first
        call for a key as a warning with `reason`, unless `reason` is empty.

        Returns `None` if `version` already names the mirror's object, if the mirror fails or lacks
        the object, or if the object does not have `size` bytes.
        """
        if _parse_version(version)[0] == 1:
            return None
        info = self._ask_mirror(key, lambda number: self._stores[number].head(key))
        if info is None or (size is not None and info.size != size):
            return None
        if reason:
            self._report(key, reason)
        return _add_store(1, info)

    def head_again(self, key: str, version: str | None) -> ObjectInfo:
        """Returns the facts about the object in the store that `version` names."""
        home = _parse_version(version)[0]
        read = self._stores[home].head
        return self._try_store(home, lambda _: _add_store(home, read(key)))

    def _report(self, key: str, reason: str) -> None:
        with self._lock:
            is_new = key not in self._reported and len(self._reported) < _MAX_REPORTED
            if is_new:
                self._reported.add(key)
        if is_new:
            log.warning("%s is read from the mirror (fallbackPath): %s", self.uri(key), reason)

    def head(self, key: str) -> ObjectInfo:
        """See `ObjectStore.head`."""
        return self._try_both(0, lambda number: _add_store(number, self._stores[number].head(key)))

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> Data:
        """See `ObjectStore.get_range`."""
        home, size, home_version = _parse_version(version)

        def read(number: int) -> Data:
            own = home_version if number == home else self._version(number, key, size)
            return self._stores[number].get_range(key, start, stop, version=own)

        return self._try_both(home, read)

    def _version(self, number: int, key: str, size: int | None) -> str | None:
        """Returns the version that reads from store `number` must require, if the plan contains
        only the version in the other store. Returns `None` if `size` is `None`.

        The first call for an object looks up its version in store `number`. Each call checks that
        the object has `size` bytes.
        """
        if size is None:
            return None
        info = self._infos.get((number, key))
        if info is None:
            info = self._stores[number].head(key)
            with self._lock:
                info = self._infos.setdefault((number, key), info)
        if info.size != size:
            raise ObjectChangedError(
                f"in this store, the object has {info.size} bytes, but {size} were planned",
                uri=self._stores[number].uri(key),
            )
        return info.version

    def _try_both(self, home: int, read: Callable[[int], T]) -> T:
        other = 1 - home
        if time.monotonic() < self._down_until[home]:
            home, other = other, home
        try:
            return self._try_store(home, read)
        except _FAILURES as error:
            failure = error
        try:
            return self._try_store(other, read)
        except _FAILURES as error:
            # Raise the error of the first store, which the user configured, with one exception: if
            # the object is missing in one store and the other store is down, it may still exist.
            raised, second = (failure, error) if home == 0 else (error, failure)
            if isinstance(raised, ObjectNotFoundError):
                if isinstance(second, ObjectNotFoundError):
                    raise raised from None
                raised, second = second, raised
            raised.attempts = (*raised.attempts, f"the other store failed too: {_summary(second)}")
            raise raised from None

    def _try_store(self, number: int, read: Callable[[int], T], *, counts: bool = True) -> T:
        try:
            answer = read(number)
        except _DOWN as error:
            if number == 1:
                error.message = error.message.replace("option 'path'", "option 'fallbackPath'")
            with self._lock:
                self._failures[number] = error
                is_first = time.monotonic() >= self._down_until[number]
                self._down_until[number] = time.monotonic() + REST_SECONDS
            if is_first:
                log.warning(
                    "%s fails, so the other store is used for the next %d s: %s",
                    ("the first store", "the mirror")[number],
                    REST_SECONDS,
                    _summary(error),
                )
            raise
        if number == 1 and counts:
            self._tally.add(mirrored=1)
        return answer


class EmptyStore:
    """A store without objects, for scans that read brokers only."""

    pinning = "nothing is read"
    remarks = ()
    is_near = True
    lists_in_pages = False
    counters = StoreCounters()

    def uri(self, key: str) -> str:
        """See `ObjectStore.uri`."""
        return f"(no path)/{key}"

    def list_folders(self, prefix: str) -> list[str]:
        """Returns an empty list."""
        return []

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """Returns an empty iterator."""
        return iter(())

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> NoReturn:
        """Raises `ObjectNotFoundError`."""
        self.head(key)

    def head(self, key: str) -> NoReturn:
        """Raises `ObjectNotFoundError`."""
        raise ObjectNotFoundError(
            "the object is in the tier, but option 'path' (the location of the tier) is not given",
            uri=self.uri(key),
        )

    def close(self) -> None:
        """Does nothing."""


def mirror_of(store: ObjectStore) -> FallbackStore | None:
    """Returns the store with a mirror that a tier's store is or contains; `None` if there is no
    mirror.
    """
    main = store.first if isinstance(store, JoinedStore) else store
    return main if isinstance(main, FallbackStore) else None


def head_again(store: ObjectStore, key: str, version: str | None) -> ObjectInfo:
    """Returns the current facts about an object of which `version` is known. With a mirror, the
    version names the store.
    """
    mirrored = mirror_of(store)
    if mirrored is None or is_in_additional_store(key):
        return store.head(key)
    return mirrored.head_again(key, version)


def has_objects(store: ObjectStore, prefix: str, version: str | None) -> bool:
    """Returns whether a store has an object whose key starts with `prefix`. With a mirror,
    `version` names the store.
    """
    mirrored = mirror_of(store)
    if mirrored is None or is_in_additional_store(prefix):
        return any(store.list_objects(prefix))
    return mirrored.has_objects(prefix, version)


def _merge_remarks(stores: tuple[ObjectStore, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line for store in stores for line in store.remarks))


def _summary(error: StoreError) -> str:
    return f"{error.message} [{error.uri}]" if error.uri else error.message


def _add_store(number: int, info: ObjectInfo) -> ObjectInfo:
    return replace(info, version=f"{number}:{info.size}:{info.version or ''}")


def _parse_version(version: str | None) -> tuple[int, int | None, str | None]:
    """Splits a version of `FallbackStore` into the store number, the object's size, and the version
    in that store. Size and version are `None` if they are unknown.
    """
    if version is None:
        return 0, None, None
    number, size, own = version.split(":", 2)
    return int(number), int(size), own or None
