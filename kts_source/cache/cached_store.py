"""A store whose reads of pinned versions are kept on this machine's disk.

Two caches, as the broker and the storage plugin have them: one for what describes segments (side
files, what layouts read; see `cache_packs` for manifests), always; one for chunks of segments, by
option. An entry is named by the object's URI, its version and the byte range; what has no version
is not kept, and listings and look-ups never are. Bytes are kept as the store gave them: encrypted
segments stay encrypted, keys are never kept. Only if the settings ask for it are chunks kept as the
broker wrote them, decrypted and decompressed, so that a second scan does neither.

Concurrent tasks of a machine fetch a range once: who comes second waits for the first, for at most
the read time-out, then fetches itself.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from kts_source.cache.disk_cache import CacheCounters, CacheLimits, DiskCache
from kts_source.store.object_store import pinning
from kts_source.store.storage_options import READ_TIMEOUT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kts_source.layout.remote_segment import SegmentObjects
    from kts_source.secret import Secret
    from kts_source.store.counters import StoreCounters
    from kts_source.store.object_store import Data, ObjectInfo, ObjectStore
    from segment_format.manifest.chunk_index import Chunk

    Restore = Callable[[Chunk, memoryview], bytes | memoryview]

log = logging.getLogger(__name__)

_FOLDER_NAME: Final = "tiered-kafka"
_FORMAT: Final = "v1"


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """What is kept on local disk, and where.

    Attributes:
        index: Bounds of the cache of manifests and side files; `None` = none is kept.
        chunks: Bounds of the cache of chunks; `None` = none is kept.
        folder: Where; `None` = the user's cache folder.
        patience_seconds: How long to wait for another task that fetches the same.
        plaintext: Whether chunks are kept decrypted and decompressed.
    """

    index: CacheLimits | None = None
    chunks: CacheLimits | None = None
    folder: str | None = None
    patience_seconds: float = READ_TIMEOUT_SECONDS
    plaintext: bool = False

    @property
    def off(self) -> bool:
        """Whether nothing is kept."""
        return self.index is None and self.chunks is None


NO_CACHE: Final = CacheSettings()


class CachedStore:
    """A `ObjectStore` that answers reads of a known version from disk where it can.

    Args:
        store: Where everything comes from.
        settings: What is kept.
        scope: Tells apart stores whose URIs do not, such as S3 servers with equal bucket names.
    """

    def __init__(self, store: ObjectStore, settings: CacheSettings, *, scope: str = "") -> None:
        self._store = store
        self._settings = settings
        self._scope = scope
        folder = _usable_folder(settings.folder) if not settings.off else None
        self.index_cache = _opened(folder, "index", settings.index)
        chunk_cache = _opened(folder, "chunks", settings.chunks)
        self._ranges = _CachedRanges(store, self.index_cache, settings, scope)
        self._chunks = _CachedRanges(store, chunk_cache, settings, scope)
        restores = settings.plaintext and chunk_cache is not None
        self.log_store = _LogStore(self, self._chunks, restores=restores)

    def __repr__(self) -> str:
        return f"CachedStore({self._store!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuilt, (self._store, self._settings, self._scope)

    @property
    def counters(self) -> StoreCounters:
        """Work of the store behind; what came from the caches costs it nothing."""
        return self._store.counters

    @property
    def pinning(self) -> str:
        """How reads are held to one version; the version is part of an entry's name."""
        return pinning(self._store)

    @property
    def cache_counters(self) -> CacheCounters:
        """What the caches did so far in this process."""
        caches = (self._ranges.cache, self._chunks.cache)
        return sum((cache.counters for cache in caches if cache), CacheCounters())

    @property
    def behind(self) -> ObjectStore:
        """The store without the caches."""
        return self._store

    def entry_name(self, *parts: str) -> str:
        """The name of an entry of the index cache that belongs to this store."""
        return "\n".join((self._scope, *parts))

    def uri(self, key: str) -> str:
        """See `ObjectStore.uri`."""
        return self._store.uri(key)

    def list_folders(self, prefix: str) -> list[str]:
        """See `ObjectStore.list_folders`."""
        return self._store.list_folders(prefix)

    def list_objects(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list_objects`."""
        return self._store.list_objects(prefix)

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> Data:
        """See `ObjectStore.get_range`; from the cache of side files."""
        return self._ranges.get(key, [_Piece(start, stop)], version)

    def get_object(self, key: str, *, max_bytes: int, version: str | None = None) -> bytes:
        """See `ObjectStore.get_object`; never cached."""
        return self._store.get_object(key, max_bytes=max_bytes, version=version)

    def head(self, key: str) -> ObjectInfo:
        """See `ObjectStore.head`; never cached."""
        return self._store.head(key)

    def close(self) -> None:
        """Lets the connections of the store go; the caches hold nothing open."""
        self._store.close()


class _LogStore:
    """The same store for the bytes of segments: kept chunk by chunk, so that reads cut elsewhere
    find them; or not kept at all.
    """

    def __init__(self, whole: CachedStore, ranges: _CachedRanges, *, restores: bool) -> None:
        self.restores = restores
        self.keeps = ranges.cache is not None
        self._whole = whole
        self._ranges = ranges
        self._expected: dict[tuple[str, str | None], _Expected] = {}

    def expect(self, objects: SegmentObjects, restore: Restore) -> None:
        """Tells where the chunks of an object that is going to be read begin and end.

        Args:
            objects: The segment.
            restore: Decrypts and decompresses one of its chunks; called from any thread.
        """
        if self._ranges.cache is not None:
            self._expected[objects.log.key, objects.log.version] = _Expected(objects, restore)

    @property
    def counters(self) -> StoreCounters:
        """See `ObjectStore.counters`."""
        return self._whole.counters

    def uri(self, key: str) -> str:
        """See `ObjectStore.uri`."""
        return self._whole.uri(key)

    def list_folders(self, prefix: str) -> list[str]:
        """See `ObjectStore.list_folders`."""
        return self._whole.list_folders(prefix)

    def list_objects(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list_objects`."""
        return self._whole.list_objects(prefix)

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> Data:
        """See `ObjectStore.get_range`; from the cache of chunks.

        If `restores`, the range is one of the original segment, at borders of chunks, and an object
        that is expected.
        """
        expected = self._expected.get((key, version))
        if self.restores:
            assert expected is not None
            chunks = expected.objects.chunk_index.chunks(start, stop)
            pieces = [_Piece(c.transformed_position, c.transformed_stop, c) for c in chunks]
            return self._ranges.get(key, pieces, version, expected.restore)
        return self._ranges.get(key, _pieces(expected, start, stop), version)

    def get_object(self, key: str, *, max_bytes: int, version: str | None = None) -> bytes:
        """See `ObjectStore.get_object`."""
        return self._whole.get_object(key, max_bytes=max_bytes, version=version)

    def head(self, key: str) -> ObjectInfo:
        """See `ObjectStore.head`."""
        return self._whole.head(key)

    def close(self) -> None:
        """See `ObjectStore.close`."""
        self._whole.close()


class _Piece(NamedTuple):
    """Stored bytes [start, stop), and the chunk they are where it is to be restored."""

    start: int
    stop: int
    chunk: Chunk | None = None


class _Expected(NamedTuple):
    """A segment that is going to be read."""

    objects: SegmentObjects
    restore: Restore


def _pieces(expected: _Expected | None, start: int, stop: int) -> list[_Piece]:
    if expected is None:
        return [_Piece(start, stop)]
    pieces = []
    position = start
    while position < stop:
        chunk = expected.objects.chunk_index.chunk_at_transformed(position)
        end = stop if chunk is None else min(max(chunk.transformed_stop, position + 1), stop)
        pieces.append(_Piece(position, end))
        position = end
    return pieces


class _CachedRanges:
    """Touching byte ranges of an object, each from the cache or, in as few requests as may be, from
    the store.
    """

    def __init__(
        self, store: ObjectStore, cache: DiskCache | None, settings: CacheSettings, scope: str
    ) -> None:
        self.cache = cache
        self._store = store
        self._patience_seconds = settings.patience_seconds
        self._scope = scope

    def get(
        self,
        key: str,
        pieces: Sequence[_Piece],
        version: str | None,
        restore: Restore | None = None,
    ) -> Data:
        """The bytes of all pieces, which follow each other without a gap; restored ones if told how
        to.
        """
        start, stop = (pieces[0].start, pieces[-1].stop) if pieces else (0, 0)
        if self.cache is None or version is None or start == stop:
            data = self._store.get_range(key, start, stop, version=version)
            return data if restore is None else b"".join(_parts(data, pieces, restore))
        form = "" if restore is None else "restored "
        object_name = f"{self._scope}\n{self._store.uri(key)}\n{version}\n{form}"
        found: list[bytes | None] = []
        names = [f"{object_name}{piece.start}-{piece.stop}" for piece in pieces]
        for name in names:
            found.append(self.cache.get(name))  # noqa: PERF401  # counts, so not a comprehension
        at = 0
        while at < len(pieces):
            if found[at] is not None:
                at += 1
                continue
            end = at
            while end < len(pieces) and found[end] is None:
                end += 1
            self._fetch(self.cache, key, version, pieces, names, found, (at, end), restore)
        whole = [part for part in found if part is not None]
        return whole[0] if len(whole) == 1 else b"".join(whole)

    def _fetch(
        self,
        cache: DiskCache,
        key: str,
        version: str,
        pieces: Sequence[_Piece],
        names: Sequence[str],
        found: list[bytes | None],
        missing: tuple[int, int],
        restore: Restore | None,
    ) -> None:
        """Fills the missing part of `found` from the store, or from who had it under way.

        Requests that overlap nearly always begin or end at the same piece (neighbours of a cut,
        the same scan run twice), so holding the first and the last is enough.
        """
        at, end = missing
        with cache.flight((names[at], names[end - 1]), patience_seconds=self._patience_seconds):
            for number in range(at, end):
                found[number] = cache.peek(names[number])
            while at < end and found[at] is not None:
                at += 1
            while end > at and found[end - 1] is not None:
                end -= 1
            if at == end:
                return
            span = pieces[at:end]
            data = bytes(self._store.get_range(key, span[0].start, span[-1].stop, version=version))
            for number, part in enumerate(_parts(data, span, restore), at):
                found[number] = part
                cache.put(names[number], part)


def _parts(data: Data, pieces: Sequence[_Piece], restore: Restore | None) -> Iterator[bytes]:
    """The bytes of each piece, given those of all."""
    base = pieces[0].start
    for start, stop, chunk in pieces:
        if restore is not None and chunk is not None:
            yield bytes(restore(chunk, memoryview(data)[start - base : stop - base]))
        else:
            yield bytes(data if len(pieces) == 1 else data[start - base : stop - base])


def open_cached(
    store: ObjectStore,
    settings: CacheSettings,
    *,
    storage: Secret[Mapping[str, str]] | None = None,
) -> ObjectStore:
    """`store` behind the caches that the settings ask for.

    A folder of this machine is cached only where the settings name a cache folder: its files are as
    near as their copies would be.
    """
    from kts_source.store.local_store import LocalStore

    if isinstance(store, LocalStore) and settings.folder is None:
        settings = replace(settings, index=None)
    if settings.off:
        return store
    endpoint = storage.reveal().get("s3.endpoint", "") if storage is not None else ""
    scope = hashlib.blake2b(endpoint.encode(), digest_size=8).hexdigest() if endpoint else ""
    return CachedStore(store, settings, scope=scope)


def default_folders() -> Iterator[Path]:
    """Where caches may be, best first; executors may have no home."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    if given.startswith("/"):
        yield Path(given) / _FOLDER_NAME
    home = os.path.expanduser("~")  # noqa: PTH111  # Path.home raises where there is none
    if home.startswith("/") and Path(home).is_dir():
        yield Path(home) / ".cache" / _FOLDER_NAME
    yield Path(tempfile.gettempdir()) / f"{_FOLDER_NAME}-{os.geteuid()}"


def _usable_folder(given: str | None) -> Path | None:
    from kts_source.cache.disk_cache import make_private_folder

    for folder in [Path(given)] if given is not None else default_folders():
        try:
            make_private_folder(folder)
            make_private_folder(folder / _FORMAT)
        except OSError as error:
            log.warning("no cache in %s: %s", folder, error.strerror)
        else:
            return folder / _FORMAT
    return None


def _opened(folder: Path | None, name: str, limits: CacheLimits | None) -> DiskCache | None:
    if folder is None or limits is None:
        return None
    try:
        return DiskCache(folder / name, limits)
    except OSError as error:
        log.warning("no cache in %s: %s", folder / name, error.strerror)
        return None


def _rebuilt(store: ObjectStore, settings: CacheSettings, scope: str) -> CachedStore:
    return CachedStore(store, settings, scope=scope)
