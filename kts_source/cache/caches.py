"""The caches of one tier on this machine's disk, and reads of objects through these caches.

The index cache contains side files, and facts from manifests (see `SegmentPack`). The optional
chunk cache contains chunks of segments. The name of an entry consists of the object's URI, the
object's version and the byte range. Listings and objects without a version are not cached. Bytes
are cached as stored: encrypted segments stay encrypted, and keys are never cached. There is one
exception: if `CacheSettings.plaintext` is True, chunks are cached decrypted and decompressed.

If a task needs a range that another task on this machine is fetching, it waits for that other task.
After the read timeout, the waiting task fetches the range itself.

A `Bundle` stores several values in one entry, because a plan of one partition stores only a few
bytes, and a file for each of them would cost more. Its format is:

    a JSON object that maps the name of each value to its number of bytes, followed by LF
    the bytes of all values, concatenated
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kts_source.cache.disk_cache import CacheCounters, CacheLimits, DiskCache, make_private_folder
from kts_source.store.request_policy import DEFAULT_RETRY_POLICY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kts_source.layout.remote_segment import ObjectRef
    from kts_source.store.object_store import Data, ObjectStore

    Restore = Callable[[int, memoryview], bytes | memoryview]
    Span = tuple[int, int]


log = logging.getLogger(__name__)


class Bundle:
    """Several named values that are stored in one cache entry. Used by one thread at a time."""

    def __init__(self, cache: DiskCache, name: str) -> None:
        self._cache = cache
        self._name = name
        self._values: dict[str, bytes] | None = None
        self._changed = False

    def get(self, value_name: str) -> bytes | None:
        """Returns the value with this name; `None` if the cache entry does not contain it."""
        return self._all().get(value_name)

    def put(self, value_name: str, data: bytes) -> None:
        """Sets a value in memory. `save` writes it to the cache."""
        self._all()[value_name] = data
        self._changed = True

    def save(self) -> None:
        """Writes the cache entry if a value was set since the last call. Releases the memory of the
        values.
        """
        values, self._values = self._values, None
        if self._changed and values is not None:
            sizes = json.dumps({name: len(data) for name, data in values.items()})
            self._cache.put(self._name, b"".join([sizes.encode(), b"\n", *values.values()]))
        self._changed = False

    def _all(self) -> dict[str, bytes]:
        if self._values is None:
            data = self._cache.get(self._name)
            self._values = {} if data is None else self._parsed(data)
        return self._values

    def _parsed(self, data: bytes) -> dict[str, bytes]:
        values = {}
        try:
            start = data.index(b"\n") + 1
            for name, size in json.loads(data[:start]).items():
                if not 0 <= size <= len(data) - start:
                    raise ValueError("the size of a value exceeds the entry")
                values[name] = data[start : start + size]
                start += size
        except (ValueError, TypeError, AttributeError):
            log.info("cache entry %s cannot be read, so it is ignored", self._name)
            return {}
        return values


_FOLDER_NAME: Final = "tiered-kafka"
_FORMAT: Final = "v1"


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Settings of the caches on local disk. A cache is off if its limits are `None`.

    Attributes:
        index: Limits of the index cache, which contains facts from manifests and side files.
        chunks: Limits of the chunk cache.
        folder: Folder that contains the caches; `None` = the user's cache folder.
        patience_seconds: Maximum time in seconds to wait for another task that fetches the same
            range.
        plaintext: True if chunks are cached decrypted and decompressed.
        schemas: Limits of the cache of schemas from a schema registry.
    """

    index: CacheLimits | None = None
    chunks: CacheLimits | None = None
    folder: str | None = None
    patience_seconds: float = DEFAULT_RETRY_POLICY.read_timeout_seconds
    plaintext: bool = False
    schemas: CacheLimits | None = None


NO_CACHE: Final = CacheSettings()


class Caches:
    """The caches of one tier on this machine's disk.

    Args:
        scope: Text that all entry names begin with. It distinguishes stores that have equal URIs,
            such as two S3 servers with the same bucket name.

    Attributes:
        index: The cache of side files and of facts from manifests; `None` if it is off.
        chunks: The cache of chunks; `None` if it is off.
        plaintext: True if chunks are cached decrypted and decompressed.
    """

    def __init__(self, settings: CacheSettings = NO_CACHE, *, scope: str = "") -> None:
        self.index, self.chunks = _opened(settings)
        self.plaintext = settings.plaintext and self.chunks is not None
        self._scope = scope
        self._patience_seconds = settings.patience_seconds

    @property
    def counters(self) -> CacheCounters:
        """Sum of the counters of both caches in this process."""
        caches = (self.index, self.chunks)
        return sum((cache.counters for cache in caches if cache), CacheCounters())

    def entry_name(self, *names: str) -> str:
        """Returns the name of an entry in the index cache. The name consists of `names` and the
        scope of this tier.
        """
        return "\n".join((self._scope, *names))

    def side_file(self, store: ObjectStore, source: ObjectRef, start: int, stop: int) -> Data:
        """Returns bytes [start, stop) of an object, from the cache or the store.

        Raises:
            TieredKafkaError: See `ObjectStore.get_range`.
        """
        return self._read(self.index, _Ranges(store, source, [(start, stop)], None))

    def chunk_run(
        self, store: ObjectStore, source: ObjectRef, spans: Sequence[Span], restore: Restore | None
    ) -> Data:
        """Returns the bytes of adjacent chunks. Reads chunks that are not cached from the store,
        with one request per run of adjacent chunks.

        Args:
            store: Store of the object.
            source: The object that contains the chunks.
            spans: Byte range [start, stop) of each chunk in the object. The chunks must be
                adjacent, and there must be at least one.
            restore: Decrypts and decompresses a chunk before it is cached. Called with two values:
                the index of the chunk in `spans`, and its stored bytes. `None` = the stored bytes
                are cached and returned. It must be `None` if the attribute `plaintext` is False.

        Raises:
            TieredKafkaError: See `ObjectStore.get_range`. Errors of `restore` are raised, too.
        """
        return self._read(self.chunks, _Ranges(store, source, spans, restore))

    def _read(self, cache: DiskCache | None, wanted: _Ranges) -> Data:
        count = len(wanted.spans)
        if cache is None or wanted.source.version is None:
            is_stored_form = wanted.restore is None
            return wanted.stored(0, count) if is_stored_form else b"".join(wanted.fetch(0, count))
        names = wanted.entry_names(self._scope)
        entries = [cache.get(name) for name in names]
        for is_missing, run in groupby(range(count), lambda number: entries[number] is None):
            if not is_missing:
                continue
            numbers = list(run)
            # Two requests overlap if they are for adjacent slices, or if the same scan runs twice.
            # In both cases they nearly always share the first or last chunk, so locks on these two
            # chunks are enough.
            held = names[numbers[0]], names[numbers[-1]]
            with cache.flight(held, patience_seconds=self._patience_seconds):
                for number in numbers:
                    entries[number] = cache.peek(names[number])
                left = [number for number in numbers if entries[number] is None]
                if left:
                    for number, entry in enumerate(wanted.fetch(left[0], left[-1] + 1), left[0]):
                        entries[number] = entry
                        cache.put(names[number], entry)
        pieces = [entry for entry in entries if entry is not None]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


@dataclass(frozen=True, slots=True)
class _Ranges:
    """Adjacent byte ranges [start, stop) of one object, for `Caches.chunk_run`."""

    store: ObjectStore
    source: ObjectRef
    spans: Sequence[Span]
    restore: Restore | None

    def entry_names(self, scope: str) -> list[str]:
        form = "" if self.restore is None else "restored "
        start = f"{scope}\n{self.store.uri(self.source.key)}\n{self.source.version}\n{form}"
        return [f"{start}{low}-{high}" for low, high in self.spans]

    def stored(self, first: int, end: int) -> Data:
        """Reads the ranges with the indexes [`first`, `end`) with one request. Returns their bytes
        as stored, concatenated.
        """
        start, stop = self.spans[first][0], self.spans[end - 1][1]
        return self.store.get_range(self.source.key, start, stop, version=self.source.version)

    def fetch(self, first: int, end: int) -> Iterator[bytes]:
        """Reads the ranges with the indexes [`first`, `end`) with one request. Yields the bytes of
        each range in the form in which they are cached.
        """
        view = memoryview(self.stored(first, end))
        base = self.spans[first][0]
        for number in range(first, end):
            low, high = self.spans[number]
            chunk = view[low - base : high - base]
            yield bytes(chunk if self.restore is None else self.restore(number, chunk))


def default_folders() -> Iterator[Path]:
    """Yields the possible folders of the caches, best first. The last one is in the folder for
    temporary files, because executors may have no home folder.
    """
    cache_home = os.environ.get("XDG_CACHE_HOME", "")
    if cache_home.startswith("/"):
        yield Path(cache_home) / _FOLDER_NAME
    home = os.path.expanduser("~")  # noqa: PTH111  # Path.home raises if it is unknown
    if home.startswith("/") and Path(home).is_dir():
        yield Path(home) / ".cache" / _FOLDER_NAME
    yield Path(tempfile.gettempdir()) / f"{_FOLDER_NAME}-{os.geteuid()}"


def opened_cache(
    settings: CacheSettings, name: str, limits: CacheLimits | None
) -> DiskCache | None:
    """Opens the cache `name` in the first usable folder. Returns `None` if `limits` is `None`. The
    caches of this machine are subfolders of one folder.
    """
    (cache,) = _all_opened(settings, [(name, limits)])
    return cache


def _opened(settings: CacheSettings) -> tuple[DiskCache | None, DiskCache | None]:
    """Opens the index cache and the chunk cache in the first usable folder. Each of them is `None`
    if it is off.
    """
    index, chunks = _all_opened(settings, [("index", settings.index), ("chunks", settings.chunks)])
    return index, chunks


def _all_opened(
    settings: CacheSettings, wanted: Sequence[tuple[str, CacheLimits | None]]
) -> list[DiskCache | None]:
    if any(limits is not None for _, limits in wanted):
        configured = settings.folder
        for folder in [Path(configured)] if configured is not None else default_folders():
            inner = folder / _FORMAT
            try:
                make_private_folder(folder)
                make_private_folder(inner)
                return [
                    None if limits is None else DiskCache(inner / name, limits)
                    for name, limits in wanted
                ]
            except OSError as error:
                log.warning("no cache in %s: %s", folder, error.strerror)
    return [None] * len(wanted)
