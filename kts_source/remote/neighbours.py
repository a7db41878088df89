"""Small side files that stand next to each other in one object, read with one request.

The plugin writes producer snapshot, leader-epoch checkpoint and transaction index one behind the
other. A plan asks the newest segment of a partition for all three, one at a time: the first brings
the others along, where they are small, and they wait here until they are asked for.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from kts_source.remote.segment import IndexType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kts_source.remote.segment import SegmentObjects, StoredIndex
    from kts_source.remote.store import RangeStore

MAX_TOGETHER_BYTES: Final = 64 << 10
"""Of a request that brings more than was asked for: less than its latency is worth."""
_MAX_SEGMENTS: Final = 256  # that something waits for: 16 MiB at most
_TOGETHER: Final = (IndexType.PRODUCER_SNAPSHOT, IndexType.LEADER_EPOCH, IndexType.TRANSACTION)
_FIRST_ASKED: Final = (IndexType.PRODUCER_SNAPSHOT, IndexType.LEADER_EPOCH)
"""Transaction indexes are read of many segments of which nothing else is wanted."""


class NeighbourReads:
    """Reads side files as stored. Used by any thread.

    Args:
        store: Where they are.
    """

    def __init__(self, store: RangeStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._waiting: OrderedDict[tuple[str, str | None], dict[IndexType, bytes]] = OrderedDict()

    def get(self, objects: SegmentObjects, kind: IndexType) -> bytes:
        """The stored bytes of a side file that the segment has.

        Raises:
            TieredKafkaError: See `RangeStore.get_range`.
        """
        wanted = objects.indexes[kind]
        place = wanted.source.key, wanted.source.version
        with self._lock:
            known = self._waiting.get(place, {}).pop(kind, None)
        if known is not None:
            return known
        together = dict(_run(objects, kind))
        start = min(part.start for part in together.values())
        stop = max(part.stop for part in together.values())
        data = self._store.get_range(place[0], start, stop, version=place[1])
        found = {
            name: data[part.start - start : part.stop - start] for name, part in together.items()
        }
        answer = found.pop(kind)
        if found:
            with self._lock:
                self._waiting[place] = found
                if len(self._waiting) > _MAX_SEGMENTS:
                    self._waiting.popitem(last=False)
        return answer


def _run(objects: SegmentObjects, kind: IndexType) -> Iterator[tuple[IndexType, StoredIndex]]:
    """The side file and those to read with it: no gap between them, small together."""
    wanted = objects.indexes[kind]
    yield kind, wanted
    if kind not in _FIRST_ASKED:
        return
    start, stop = wanted.start, wanted.stop
    others = {name: part for name in _TOGETHER if (part := objects.indexes.get(name)) is not None}
    del others[kind]
    grown = True
    while grown:
        grown = False
        for name, part in list(others.items()):
            size = max(stop, part.stop) - min(start, part.start)
            touches = part.stop == start or part.start == stop
            if part.source != wanted.source or not touches or not part.size:
                continue
            if size <= MAX_TOGETHER_BYTES:
                start, stop, grown = min(start, part.start), max(stop, part.stop), True
                yield name, others.pop(name)
