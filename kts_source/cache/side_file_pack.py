"""The small side files that plans of one partition looked at, as stored, as one value in the index
cache.

    a JSON list of [object key, version, first byte, one past the last], ended by LF
    the bytes, one behind the other

What is large or of no known version is not here (`Caches.side_file` keeps it, if at all), nor is
more than `MAX_PACK_BYTES` in all: what the last plan looked at goes before what earlier ones did.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kts_source.cache.bundle import Bundle
    from kts_source.cache.disk_cache import DiskCache
    from kts_source.layout.remote_segment import ObjectRef

log = logging.getLogger(__name__)

MAX_PACK_BYTES: Final = 1 << 20
_Place = tuple[str, str]  # object key, version
_Part = tuple[int, int, "bytes | memoryview"]  # first byte, one past the last, what is there


class SideFilePack:
    """Parts of objects that hold side files. Used by one thread at a time.

    Args:
        cache: Where it is kept between plans; `None` keeps nothing longer than the instance.
        name: Of the value.
    """

    def __init__(self, cache: DiskCache | Bundle | None = None, name: str = "") -> None:
        self._cache = cache
        self._name = name
        self._earlier: dict[_Place, list[_Part]] | None = None
        self._used: dict[_Place, list[_Part]] = {}
        self._used_bytes = 0
        self._changed = False

    def find(self, source: ObjectRef, start: int, stop: int) -> bytes | None:
        """Bytes [start, stop) of this version of an object, if they were read before."""
        if source.version is None:
            return None
        place = source.key, source.version
        known = _holding(self._used.get(place, []), start, stop)
        if known is None:
            if self._earlier is None:
                self._earlier = self._loaded()
            known = _holding(self._earlier.get(place, []), start, stop)
            if known is None or not self._take(place, known):
                return None
        return bytes(known[2][start - known[0] : stop - known[0]])

    def add(self, source: ObjectRef, start: int, data: bytes) -> None:
        """Keeps bytes read just now, from byte `start` on, if there is room."""
        if source.version is None:
            return
        self._changed |= self._take((source.key, source.version), (start, start + len(data), data))

    def has_room(self, size: int) -> bool:
        """Whether so many more bytes can be kept."""
        return self._used_bytes + size <= MAX_PACK_BYTES

    def save(self) -> None:
        """Writes the value if there is something new, with as much as there is room for of what
        earlier plans looked at.
        """
        if self._cache is None or not self._changed:
            return
        self._changed = False
        left = MAX_PACK_BYTES
        parts: dict[tuple[str, str, int, int], bytes | memoryview] = {}
        for kept in (self._used, self._earlier or {}):
            for (key, version), found in kept.items():
                for start, stop, data in found:
                    if stop - start <= left and (key, version, start, stop) not in parts:
                        parts[key, version, start, stop] = data
                        left -= stop - start
        header = json.dumps(list(parts), separators=(",", ":")).encode()
        self._cache.put(self._name, b"".join([header, b"\n", *parts.values()]))

    # -- inside

    def _take(self, place: _Place, part: _Part) -> bool:
        if not self.has_room(part[1] - part[0]):
            return False
        self._used_bytes += part[1] - part[0]
        self._used.setdefault(place, []).append(part)
        return True

    def _loaded(self) -> dict[_Place, list[_Part]]:
        data = self._cache.get(self._name) if self._cache is not None else None
        if data is None:
            return {}
        found: dict[_Place, list[_Part]] = {}
        try:
            at = data.index(b"\n") + 1
            for key, version, start, stop in json.loads(data[:at]):
                end = at + stop - start
                if not at <= end <= len(data) or start < 0:
                    raise ValueError("not of this length")
                found.setdefault((key, version), []).append((start, stop, memoryview(data)[at:end]))
                at = end
        except (ValueError, TypeError):
            log.warning("%s: a value that cannot be read; reading side files anew", self._name)
            return {}
        return found


def _holding(parts: list[_Part], start: int, stop: int) -> _Part | None:
    return next((part for part in parts if part[0] <= start and stop <= part[1]), None)
