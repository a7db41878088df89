"""A tier as its options describe it: the store with its time-outs, attempts and mirror, and what is
kept of it on local disk.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kts_source.cache.caches import NO_CACHE, Caches
from kts_source.store.joined_store import EmptyStore
from kts_source.store.open_store import open_store, storage_beside

if TYPE_CHECKING:
    from kts_source.options import ScanOptions
    from kts_source.store.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class Tier:
    """Where a scan reads.

    Attributes:
        store: Objects and listings.
        caches: What is kept of them on this machine's disk; nothing unless given.
    """

    store: ObjectStore
    caches: Caches = field(default_factory=Caches)

    def close(self) -> None:
        """Lets the connections of the store go; the caches hold nothing open."""
        self.store.close()


def open_uncached_tier(options: ScanOptions) -> Tier:
    """Opens the tier of a scan without any cache, so that every byte comes from the store.

    Raises:
        InvalidOptionError: See `open_store`.
    """
    return open_tier(replace(options, cache=NO_CACHE))


def open_tier(options: ScanOptions) -> Tier:
    """The tier that a scan reads. Nothing is asked of it yet.

    Without a path there is nothing in it: brokers alone are read.

    A folder of this machine is cached only where an option names a cache folder: its files are as
    near as their copies would be.

    Raises:
        InvalidOptionError: See `open_store`.
    """
    if not options.path:
        return Tier(EmptyStore())
    fetch, settings = options.fetch, options.cache
    store = open_store(options.path, options.storage, retry_policy=fetch.retry_policy)
    if fetch.fallback_path is not None:
        from kts_source.store.joined_store import FallbackStore

        mirror = open_store(
            fetch.fallback_path, fetch.fallback_storage, retry_policy=fetch.retry_policy
        )
        store = FallbackStore(store, mirror)
    if beside := options.tail_paths or options.disk_paths:
        from kts_source.store.joined_store import JoinedStore

        disks = [
            open_store(
                path,
                storage_beside(options.path, path, options.storage),
                retry_policy=fetch.retry_policy,
            )
            for path in beside
        ]
        store = JoinedStore(store, tuple(disks))
    if store.is_near and settings.folder is None:
        settings = replace(settings, index=None)
    endpoint = options.storage.reveal().get("s3.endpoint", "")
    scope = hashlib.blake2b(endpoint.encode(), digest_size=8).hexdigest() if endpoint else ""
    return Tier(store, Caches(settings, scope=scope))
