"""Several values that are wanted together, as one entry of a cache: to make a file costs more than
to write the little that a plan of one partition has to keep.

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
