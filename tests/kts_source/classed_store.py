"""Provides a store of the golden tier that lists objects with storage classes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kts_source.store.local_store import LocalStore
from tests.golden_data import TIER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kts_source.store.object_store import ObjectInfo


class ClassedStore(LocalStore):
    """Reads the golden tier, and lists each object with a storage class, as S3 does.

    Args:
        classes: Maps the suffix of a key to a storage class; the default is STANDARD.
    """

    def __init__(self, **classes: str) -> None:
        super().__init__(TIER)
        self._classes = classes

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        for info in super().list_objects(prefix, after=after):
            suffix = info.key.rsplit(".", 1)[1]
            yield replace(info, storage_class=self._classes.get(suffix, "STANDARD"))
