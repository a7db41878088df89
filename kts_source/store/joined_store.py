"""A store with others beside it, whose objects stand under keys of their own.

    tailPath:/<number of the store beside>/<key in it>

So whoever knows only keys and versions reads from all of them: plans, tasks and plan files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kts_source.errors import ObjectNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kts_source.store.counters import StoreCounters
    from kts_source.store.object_store import Data, ObjectInfo, ObjectStore

_BESIDE: Final = "tailPath:/"


def beside(number: int) -> str:
    """The key prefix of a store beside the first one."""
    return f"{_BESIDE}{number}/"


def is_beside(key: str) -> bool:
    """Whether an object is of a store beside the first one."""
    return key.startswith(_BESIDE)


@dataclass(frozen=True, slots=True)
class JoinedStore:
    """An `ObjectStore` over a first store and others beside it.

    Args:
        first: Its keys stay what they are; none begins as those of the others do.
        others: By number.
    """

    first: ObjectStore
    others: tuple[ObjectStore, ...]

    @property
    def pinning(self) -> str:
        """How reads are held to one version."""
        return "; beside it ".join(dict.fromkeys(store.pinning for store in self._all))

    @property
    def remarks(self) -> tuple[str, ...]:
        """Of all of them."""
        return tuple(dict.fromkeys(line for store in self._all for line in store.remarks))

    @property
    def is_near(self) -> bool:
        """Whether all of them are."""
        return all(store.is_near for store in self._all)

    @property
    def lists_in_pages(self) -> bool:
        """Whether the first does: disks beside it are few."""
        return self.first.lists_in_pages

    @property
    def counters(self) -> StoreCounters:
        """Work of all."""
        total = self.first.counters
        for store in self.others:
            total += store.counters
        return total

    def uri(self, key: str) -> str:
        """Where the key is, in its own store."""
        store, own, _ = self._place(key)
        return store.uri(own)

    def close(self) -> None:
        """Lets the connections of all go."""
        for store in self._all:
            store.close()

    def list_folders(self, prefix: str) -> list[str]:
        """See `ObjectStore.list_folders`. A listing is of one store."""
        store, own, before = self._place(prefix)
        return [before + folder for folder in store.list_folders(own)]

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list_objects`. A listing is of one store."""
        store, own, before = self._place(prefix)
        behind = None if after is None else after.removeprefix(before)
        for info in store.list_objects(own, after=behind):
            yield replace(info, key=before + info.key) if before else info

    def head(self, key: str) -> ObjectInfo:
        """See `ObjectStore.head`."""
        store, own, before = self._place(key)
        info = store.head(own)
        return replace(info, key=before + info.key) if before else info

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> Data:
        """See `ObjectStore.get_range`."""
        store, own, _ = self._place(key)
        return store.get_range(own, start, stop, version=version)

    @property
    def _all(self) -> tuple[ObjectStore, ...]:
        return (self.first, *self.others)

    def _place(self, key: str) -> tuple[ObjectStore, str, str]:
        """The store of a key, the key there, and what comes before it here."""
        if not is_beside(key):
            return self.first, key, ""
        number, _, own = key.removeprefix(_BESIDE).partition("/")
        if not (number.isascii() and number.isdigit() and int(number) < len(self.others)):
            raise ObjectNotFoundError(f"option 'tailPath' names {len(self.others)} paths", uri=key)
        return self.others[int(number)], own, beside(int(number))
