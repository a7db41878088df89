"""Provides an object store in memory, for fast tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kts_source.errors import ObjectNotFoundError, TruncatedObjectError
from kts_source.store.object_store import ObjectInfo, StoreCounters, sorts_after

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class MemoryStore:
    """`ObjectStore` that returns the bytes of a mapping. The mapping may change between calls.

    Args:
        objects: Bytes by key.
        modified: Modification times in ms by key. Objects that are not in this mapping have no
            modification time.
    """

    def __init__(
        self, objects: Mapping[str, bytes], modified: Mapping[str, int] | None = None
    ) -> None:
        self._objects = objects
        self._modified = modified or {}

    pinning = "as the test does"
    remarks = ()
    is_near = False
    lists_in_pages = False

    @property
    def counters(self) -> StoreCounters:
        return StoreCounters()

    def uri(self, key: str) -> str:
        return f"mem:///{key}"

    def list_folders(self, prefix: str) -> list[str]:
        return sorted(
            {
                key[: key.index("/", len(prefix)) + 1]
                for key in self._objects
                if key.startswith(prefix) and "/" in key[len(prefix) :]
            }
        )

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        for key in sorted(self._objects):
            if key.startswith(prefix) and sorts_after(key, after):
                yield self.head(key)

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> bytes:
        self.head(key)
        data = self._objects[key][start:stop]
        if len(data) != stop - start:
            text = f"the object has only {len(data)} bytes of range [{start}, {stop})"
            raise TruncatedObjectError(text, uri=self.uri(key))
        return data

    def head(self, key: str) -> ObjectInfo:
        if key not in self._objects:
            raise ObjectNotFoundError("the object does not exist", uri=self.uri(key))
        size = len(self._objects[key])
        return ObjectInfo(key, size, version="1", last_modified_ms=self._modified.get(key))

    def close(self) -> None:
        """Does nothing, because the store has no resources."""
