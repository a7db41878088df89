"""The store of a tier as its options describe it: time-outs, attempts, the mirror, the caches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kts_source.cache.cached_store import open_cached
from kts_source.store.open_store import open_store

if TYPE_CHECKING:
    from kts_source.options import ScanOptions
    from kts_source.store.object_store import ObjectStore


def open_tier(options: ScanOptions) -> ObjectStore:
    """The store that a scan reads. Nothing is asked of it yet.

    Raises:
        InvalidOptionError: See `open_store`.
    """
    return open_cached(_open_stores(options), options.cache, storage=options.storage)


def _open_stores(options: ScanOptions) -> ObjectStore:
    fetch = options.fetch
    first = open_store(options.path, options.storage, retry_policy=fetch.retry_policy)
    if fetch.fallback_path is None:
        return first
    from kts_source.store.replica_store import FallbackStore

    mirror = open_store(
        fetch.fallback_path, fetch.fallback_storage, retry_policy=fetch.retry_policy
    )
    return FallbackStore(first, mirror)
