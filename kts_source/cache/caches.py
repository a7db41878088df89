"""The caches of one tier on this machine's disk, and reads of pinned versions through them.

One cache holds what describes segments: side files, and manifests (see `segment_pack`). Another
holds chunks of segments, if an option asks for it. An entry is named by the object's URI, its
version and the byte range. Objects without a version are not kept, and listings never are. Bytes
are kept as the store gave them: encrypted segments stay encrypted, keys are never kept. Only if the
settings ask for it are chunks kept decrypted and decompressed, so that a second scan does neither.

Concurrent tasks of a machine fetch a range once. The second one waits for the first, for at most
the read time-out; then it fetches the range itself.

Several values that are wanted together, as one entry of a cache: to make a file costs more than
to write the little that a plan of one partition has to keep.

    a JSON object of name to number of bytes, ended by LF
    the bytes, one value behind the other
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
    """The values of one entry. Used by one thread at a time.

    Args:
        cache: Where the entry is.
        name: Of the entry.
    """

    def __init__(self, cache: DiskCache, name: str) -> None:
        self._cache = cache
        self._name = name
        self._values: dict[str, bytes] | None = None
        self._changed = False

    def get(self, value_name: str) -> bytes | None:
        """The value of this name, or `None`."""
        return self._all().get(value_name)

    def put(self, value_name: str, data: bytes) -> None:
        """Sets a value, to be written by `save`."""
        self._all()[value_name] = data
        self._changed = True

    def save(self) -> None:
        """Writes the entry if a value was set, and forgets it."""
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
        found = {}
        try:
            at = data.index(b"\n") + 1
            for name, size in json.loads(data[:at]).items():
                if not 0 <= size <= len(data) - at:
                    raise ValueError("not of this length")
                found[name] = data[at : at + size]
                at += size
        except (ValueError, TypeError, AttributeError):
            log.warning("%s: a cache entry that cannot be read is left out", self._name)
            return {}
        return found


_FOLDER_NAME: Final = "tiered-kafka"
_FORMAT: Final = "v1"


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """What is kept on local disk, and where.

    Attributes:
        index: Limits of the cache of manifests and side files; `None` = none is kept.
        chunks: Limits of the cache of chunks; `None` = none is kept.
        folder: Where; `None` = the user's cache folder.
        patience_seconds: How long to wait for another task that fetches the same.
        plaintext: Whether chunks are kept decrypted and decompressed.
        schemas: Limits of the cache of what registries said of ids; `None` = none is kept.
    """

    index: CacheLimits | None = None
    chunks: CacheLimits | None = None
    folder: str | None = None
    patience_seconds: float = DEFAULT_RETRY_POLICY.read_timeout_seconds
    plaintext: bool = False
    schemas: CacheLimits | None = None


NO_CACHE: Final = CacheSettings()


class Caches:
    """What is kept of one tier on this machine's disk.

    Args:
        settings: What is kept.
        scope: Tells apart stores whose URIs do not, such as S3 servers with equal bucket names.

    Attributes:
        index: The cache of manifests and side files; `None` where none is kept.
        chunks: The cache of chunks; `None` where none is kept.
        plaintext: Whether chunks are kept decrypted and decompressed.
    """

    def __init__(self, settings: CacheSettings = NO_CACHE, *, scope: str = "") -> None:
        self.index, self.chunks = _opened(settings)
        self.plaintext = settings.plaintext and self.chunks is not None
        self._scope = scope
        self._patience_seconds = settings.patience_seconds

    @property
    def counters(self) -> CacheCounters:
        """What the caches did so far in this process."""
        caches = (self.index, self.chunks)
        return sum((cache.counters for cache in caches if cache), CacheCounters())

    def entry_name(self, *parts: str) -> str:
        """The name of an entry of the index cache that belongs to this tier."""
        return "\n".join((self._scope, *parts))

    def side_file(self, store: ObjectStore, source: ObjectRef, start: int, stop: int) -> Data:
        """Bytes [start, stop) of an object, from the cache of side files or the store.

        Raises:
            TieredKafkaError: See `ObjectStore.get_range`.
        """
        return self._read(self.index, _Ranges(store, source, [(start, stop)], None))

    def chunk_run(
        self, store: ObjectStore, source: ObjectRef, spans: Sequence[Span], restore: Restore | None
    ) -> Data:
        """The bytes of neighbouring chunks, each from the cache or, in as few requests as may be,
        from the store.

        Args:
            store: Where what is not kept comes from.
            source: The object.
            spans: Stored bytes [start, stop) of each chunk, one at least; each begins where the one
                before ends.
            restore: Decrypts and decompresses the chunk of a number, given its stored bytes; the
                result is what is kept and returned then. `None` where `plaintext` is not set.

        Raises:
            TieredKafkaError: See `ObjectStore.get_range`, and what `restore` raises.
        """
        return self._read(self.chunks, _Ranges(store, source, spans, restore))

    def _read(self, cache: DiskCache | None, wanted: _Ranges) -> Data:
        count = len(wanted.spans)
        if cache is None or wanted.source.version is None:
            is_stored_form = wanted.restore is None
            return wanted.stored(0, count) if is_stored_form else b"".join(wanted.fetch(0, count))
        names = wanted.entry_names(self._scope)
        found = [cache.get(name) for name in names]
        for is_missing, run in groupby(range(count), lambda number: found[number] is None):
            if not is_missing:
                continue
            numbers = list(run)
            # Requests that overlap nearly always begin or end at the same chunk (neighbours of a
            # cut, the same scan run twice), so holding the first and the last is enough.
            held = names[numbers[0]], names[numbers[-1]]
            with cache.flight(held, patience_seconds=self._patience_seconds):
                for number in numbers:
                    found[number] = cache.peek(names[number])
                left = [number for number in numbers if found[number] is None]
                if left:
                    for number, part in enumerate(wanted.fetch(left[0], left[-1] + 1), left[0]):
                        found[number] = part
                        cache.put(names[number], part)
        whole = [part for part in found if part is not None]
        return whole[0] if len(whole) == 1 else b"".join(whole)


@dataclass(frozen=True, slots=True)
class _Ranges:
    """Neighbouring byte ranges of one object, and the form in which they are kept."""

    store: ObjectStore
    source: ObjectRef
    spans: Sequence[Span]
    restore: Restore | None

    def entry_names(self, scope: str) -> list[str]:
        form = "" if self.restore is None else "restored "
        start = f"{scope}\n{self.store.uri(self.source.key)}\n{self.source.version}\n{form}"
        return [f"{start}{low}-{high}" for low, high in self.spans]

    def stored(self, first: int, end: int) -> Data:
        """Of the ranges from number `first` to before `end`, as stored, with one request."""
        start, stop = self.spans[first][0], self.spans[end - 1][1]
        return self.store.get_range(self.source.key, start, stop, version=self.source.version)

    def fetch(self, first: int, end: int) -> Iterator[bytes]:
        """Each of these ranges, in its form."""
        view = memoryview(self.stored(first, end))
        base = self.spans[first][0]
        for number in range(first, end):
            low, high = self.spans[number]
            part = view[low - base : high - base]
            yield bytes(part if self.restore is None else self.restore(number, part))


def default_folders() -> Iterator[Path]:
    """Where caches may be, best first; executors may have no home."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    if given.startswith("/"):
        yield Path(given) / _FOLDER_NAME
    home = os.path.expanduser("~")  # noqa: PTH111  # Path.home raises where there is none
    if home.startswith("/") and Path(home).is_dir():
        yield Path(home) / ".cache" / _FOLDER_NAME
    yield Path(tempfile.gettempdir()) / f"{_FOLDER_NAME}-{os.geteuid()}"


def opened_cache(
    settings: CacheSettings, name: str, limits: CacheLimits | None
) -> DiskCache | None:
    """One more cache beside those of a tier, in the first folder that can be used.

    Args:
        settings: Where.
        name: Of its folder.
        limits: How much is kept; `None` = nothing, and there is no cache.
    """
    (found,) = _all_opened(settings, [(name, limits)])
    return found


def _opened(settings: CacheSettings) -> tuple[DiskCache | None, DiskCache | None]:
    """The caches for side files and for chunks, in the first folder that can be used."""
    index, chunks = _all_opened(settings, [("index", settings.index), ("chunks", settings.chunks)])
    return index, chunks


def _all_opened(
    settings: CacheSettings, wanted: Sequence[tuple[str, CacheLimits | None]]
) -> list[DiskCache | None]:
    if any(limits is not None for _, limits in wanted):
        given = settings.folder
        for folder in [Path(given)] if given is not None else default_folders():
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
