"""Opens a tier: its object store (with timeouts, retries and a mirror) and the caches on the local
disk.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kts_source.cache.caches import NO_CACHE, Caches
from kts_source.store.joined_store import EmptyStore
from kts_source.store.open_store import open_store, storage_of_other_path

if TYPE_CHECKING:
    from kts_source.options import ScanOptions
    from kts_source.store.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class Tier:
    """Store and local caches that a scan reads from.

    Attributes:
        store: Store with the objects of the tier.
        caches: Caches on this machine's disk.
    """

    store: ObjectStore
    caches: Caches = field(default_factory=Caches)

    def close(self) -> None:
        """Closes the connections of the store."""
        self.store.close()


def open_uncached_tier(options: ScanOptions) -> Tier:
    """Opens the tier of a scan without caches.

    Raises:
        InvalidOptionError: The path is invalid, has credentials, or has an unknown scheme.
    """
    return open_tier(replace(options, cache=NO_CACHE))


def open_tier(options: ScanOptions) -> Tier:
    """Opens the tier of a scan. Sends no request. If the options have no path, the tier is empty.

    Local tiers are cached only if an option names a cache folder.

    Raises:
        InvalidOptionError: The path is invalid, has credentials, or has an unknown scheme.
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
                storage_of_other_path(options.path, path, options.storage),
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
