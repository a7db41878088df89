"""Several values that are wanted together as one entry of a cache: a file costs more to make than
what a plan of one partition writes to it.

    a JSON object of name to number of bytes, ended by LF
    the bytes, one value behind the other
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kts_source.cache.disk_cache import DiskCache

log = logging.getLogger(__name__)


class CachedParts:
    """The values of one entry. Used by one thread at a time.

    Args:
        cache: Where the entry is.
        name: Of the entry.
    """

    def __init__(self, cache: DiskCache, name: str) -> None:
        self._cache = cache
        self._name = name
        self._parts: dict[str, bytes] | None = None
        self._changed = False

    def get(self, part: str) -> bytes | None:
        """The value of this name, or `None`."""
        return self._all().get(part)

    def put(self, part: str, data: bytes) -> None:
        """Sets a value, to be written by `save`."""
        self._all()[part] = data
        self._changed = True

    def save(self) -> None:
        """Writes the entry if a value was set, and forgets it."""
        parts, self._parts = self._parts, None
        if self._changed and parts is not None:
            sizes = json.dumps({name: len(data) for name, data in parts.items()})
            self._cache.put(self._name, b"".join([sizes.encode(), b"\n", *parts.values()]))
        self._changed = False

    def _all(self) -> dict[str, bytes]:
        if self._parts is None:
            data = self._cache.get(self._name)
            self._parts = {} if data is None else self._parsed(data)
        return self._parts

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
            log.warning("%s: an entry that cannot be read; doing without", self._name)
            return {}
        return found
