"""A store without objects: where brokers alone are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from kts_source.errors import ObjectNotFoundError
from kts_source.store.counters import StoreCounters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kts_source.store.object_store import ObjectInfo


class EmptyStore:
    """See `ObjectStore`."""

    pinning = "nothing is read"
    remarks = ()
    is_near = True
    lists_in_pages = False

    @property
    def counters(self) -> StoreCounters:
        """Nothing is asked of it."""
        return StoreCounters()

    def uri(self, key: str) -> str:
        """A key, for a text."""
        return f"(no path)/{key}"

    def list_folders(self, prefix: str) -> list[str]:
        """None."""
        return []

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """None."""
        return iter(())

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> NoReturn:
        """Raises `ObjectNotFoundError`."""
        self.head(key)

    def head(self, key: str) -> NoReturn:
        """Raises `ObjectNotFoundError`."""
        raise ObjectNotFoundError("option 'path' is not given", uri=self.uri(key))

    def close(self) -> None:
        """Nothing is open."""
