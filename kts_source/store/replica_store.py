"""A store and its mirror: the same keys in two places. The mirror is asked when the first fails.

The versions of one store mean nothing in the other. So a version here has three parts,

    <place>:<size>:<version in that place>

and a read goes first to the place that the version names. The other place is asked only after that
one failed. Its object must have the same size, and the version found by the first such read pins
all later reads. Segment objects are written once, under keys with a random id, so equal key and
size mean equal bytes; checksums check them again.

A place fails when it gives no answer after all retries, no access, no bucket or no such object. An
object that has changed is an error at once: a mirror must not hide that.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from kts_source.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreError,
    StoreNotFoundError,
    StoreUnavailableError,
)
from kts_source.store.counters import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kts_source.store.counters import StoreCounters
    from kts_source.store.object_store import Data, ObjectInfo, ObjectStore

log = logging.getLogger(__name__)

T = TypeVar("T")

# A store that is down costs every request all of its retries; it is left alone for so long.
REST_SECONDS: Final = 30.0
_DOWN: Final = (StoreUnavailableError, AccessDeniedError, StoreNotFoundError)
_FAILURES: Final = (*_DOWN, ObjectNotFoundError)


class FallbackStore:
    """An `ObjectStore` over two places with the same keys; the mirror answers for the first."""

    is_near = False  # the mirror may be anywhere
    lists_in_pages = False  # a listing comes from one place as a whole

    def __init__(self, first: ObjectStore, mirror: ObjectStore) -> None:
        self._places = (first, mirror)
        self._tally = Tally()
        self._lock = threading.Lock()
        self._found: dict[tuple[int, str], ObjectInfo] = {}
        self._down_until = [0.0, 0.0]

    def __repr__(self) -> str:
        return f"FallbackStore({self._places[0]!r}, {self._places[1]!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return FallbackStore, self._places

    @property
    def counters(self) -> StoreCounters:
        """Work of both places."""
        first, mirror = self._places
        return first.counters + mirror.counters + self._tally.snapshot

    @property
    def pinning(self) -> str:
        """How reads are held to one version."""
        return f"{self._places[0].pinning}; in the mirror by size and the version first met there"

    @property
    def remarks(self) -> tuple[str, ...]:
        """Of both places."""
        return tuple(dict.fromkeys(line for store in self._places for line in store.remarks))

    def uri(self, key: str) -> str:
        """Where the key is in the first place."""
        return self._places[0].uri(key)

    def close(self) -> None:
        """Lets the connections of both go."""
        for place in self._places:
            place.close()

    def list_folders(self, prefix: str) -> list[str]:
        """See `ObjectStore.list_folders`."""
        return self._tried(0, lambda number: self._places[number].list_folders(prefix))

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list_objects`. A listing comes from one place as a whole."""
        yield from self._tried(
            0,
            lambda number: [
                _stamped(number, info)
                for info in self._places[number].list_objects(prefix, after=after)
            ],
        )

    def head(self, key: str) -> ObjectInfo:
        """See `ObjectStore.head`."""
        return self._tried(0, lambda number: _stamped(number, self._places[number].head(key)))

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> Data:
        """See `ObjectStore.get_range`."""
        home, size, pin = _parsed(version)

        def read(number: int) -> Data:
            own = pin if number == home else self._version(number, key, size)
            return self._places[number].get_range(key, start, stop, version=own)

        return self._tried(home, read)

    def _version(self, number: int, key: str, size: int | None) -> str | None:
        """The version that pins reads of an object where the plan did not find it."""
        if size is None:
            return None
        info = self._found.get((number, key))
        if info is None:
            info = self._places[number].head(key)
            with self._lock:
                info = self._found.setdefault((number, key), info)
        if info.size != size:
            raise ObjectChangedError(
                f"the object of the other store has {info.size} bytes, {size} were planned",
                uri=self._places[number].uri(key),
            )
        return info.version

    def _tried(self, home: int, read: Callable[[int], T]) -> T:
        other = 1 - home
        if time.monotonic() < self._down_until[home]:
            home, other = other, home
        try:
            return self._asked(home, read)
        except _FAILURES as error:
            failure = error
        try:
            return self._asked(other, read)
        except _FAILURES as error:
            # The first place is the one the user knows; what it said is what counts, unless it is
            # the mirror alone that has trouble.
            told, also = (failure, error) if home == 0 else (error, failure)
            if isinstance(told, ObjectNotFoundError):
                if isinstance(also, ObjectNotFoundError):
                    raise told from None
                told, also = also, told  # nobody knows whether the object is gone
            told.attempts = (*told.attempts, f"the other store failed too: {_in_a_line(also)}")
            raise told from None

    def _asked(self, number: int, read: Callable[[int], T]) -> T:
        try:
            answer = read(number)
        except _DOWN as error:
            with self._lock:
                fresh = time.monotonic() >= self._down_until[number]
                self._down_until[number] = time.monotonic() + REST_SECONDS
            if fresh:
                log.warning(
                    "%s fails, the other store is asked for the next %d s: %s",
                    ("the first store", "the mirror")[number],
                    REST_SECONDS,
                    _in_a_line(error),
                )
            raise
        if number == 1:
            self._tally.add(mirrored=1)
        return answer


def _in_a_line(error: StoreError) -> str:
    return f"{error.message} [{error.uri}]" if error.uri else error.message


def _stamped(number: int, info: ObjectInfo) -> ObjectInfo:
    return replace(info, version=f"{number}:{info.size}:{info.version or ''}")


def _parsed(version: str | None) -> tuple[int, int | None, str | None]:
    """Place, size and the place's own version; no size where nothing is pinned."""
    if version is None:
        return 0, None, None
    number, size, own = version.split(":", 2)
    return int(number), int(size), own or None
