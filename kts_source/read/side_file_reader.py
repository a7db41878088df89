"""Small side files that stand next to each other in one object, read with one request.

The plugin writes offset index, time index, producer snapshot, leader-epoch checkpoint and
transaction index one behind the other. A plan asks the newest segment of a partition for the last
three, and a segment that a bound cuts for all of them, one at a time: the first brings the others
along, where they are small, and they wait here until they are asked for, or in the partition's pack
(`cache_sides`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from kts_source.layout.remote_segment import IndexType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kts_source.cache.side_file_pack import SideFilePack
    from kts_source.layout.remote_segment import SegmentObjects, StoredIndex
    from kts_source.tier import Tier

MAX_TOGETHER_BYTES: Final = 64 << 10
"""Of a request that brings more than was asked for: less than its latency is worth."""
_MAX_SEGMENTS: Final = 256  # that something waits for: 16 MiB at most
_STATE: Final = (IndexType.PRODUCER_SNAPSHOT, IndexType.LEADER_EPOCH, IndexType.TRANSACTION)
_ALL: Final = (IndexType.OFFSET, IndexType.TIMESTAMP, *_STATE)
_TOGETHER: Final = {
    IndexType.PRODUCER_SNAPSHOT: _STATE,
    IndexType.LEADER_EPOCH: _STATE,
    # Whoever looks for a time looks up a position next.
    IndexType.TIMESTAMP: _ALL,
}
"""Transaction and offset indexes are read of many segments of which nothing else is wanted."""


class SideFileReader:
    """Reads side files as stored. Used by any thread, with a pack by one at a time.

    Args:
        tier: Where they are.
        pack: What was read of the partition; small ones are kept there, not in the tier's cache.
    """

    def __init__(self, tier: Tier, pack: SideFilePack | None = None) -> None:
        self._tier = tier
        self._pack = pack
        self._lock = threading.Lock()
        self._waiting: OrderedDict[tuple[str, str | None], dict[IndexType, bytes]] = OrderedDict()

    def get(self, objects: SegmentObjects, kind: IndexType, *, is_cut: bool = False) -> bytes:
        """The stored bytes of a side file that the segment has.

        Args:
            objects: The segment.
            kind: Which.
            is_cut: Whether a bound cuts the segment, so that its indexes will be asked for too.

        Raises:
            TieredKafkaError: See `ObjectStore.get_range`.
        """
        wanted = objects.indexes[kind]
        if self._pack is not None:
            known = self._pack.find(wanted.source, wanted.start, wanted.stop)
        else:
            known = self._waited(wanted, kind)
        if known is not None:
            return known
        kinds = _ALL if is_cut else _TOGETHER.get(kind, ())
        together = dict(_run(objects, kind, kinds))
        start = min(part.start for part in together.values())
        stop = max(part.stop for part in together.values())
        source = wanted.source
        if self._pack is not None and stop - start <= MAX_TOGETHER_BYTES:
            # Several planners rarely start at once, see `cache_packs`: no locks for these.
            if self._pack.has_room(stop - start):
                store = self._tier.store
                data = bytes(store.get_range(source.key, start, stop, version=source.version))
                self._pack.add(source, start, data)
                return data[wanted.start - start : wanted.stop - start]
            start, stop, together = wanted.start, wanted.stop, {kind: wanted}
        tier = self._tier
        data = bytes(tier.caches.side_file(tier.store, source.key, start, stop, source.version))
        found = {
            name: data[part.start - start : part.stop - start] for name, part in together.items()
        }
        answer = found.pop(kind)
        if found:
            with self._lock:
                self._waiting[source.key, source.version] = found
                if len(self._waiting) > _MAX_SEGMENTS:
                    self._waiting.popitem(last=False)
        return answer

    def _waited(self, wanted: StoredIndex, kind: IndexType) -> bytes | None:
        with self._lock:
            return self._waiting.get((wanted.source.key, wanted.source.version), {}).pop(kind, None)


def _run(
    objects: SegmentObjects, kind: IndexType, kinds: tuple[IndexType, ...]
) -> Iterator[tuple[IndexType, StoredIndex]]:
    """The side file and those of `kinds` to read with it: no gap between them, small together."""
    wanted = objects.indexes[kind]
    yield kind, wanted
    start, stop = wanted.start, wanted.stop
    others = {
        name: part
        for name in kinds
        if name is not kind and (part := objects.indexes.get(name)) is not None
    }
    grown = bool(others)
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
