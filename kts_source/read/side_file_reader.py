"""Small side files that stand next to each other in one object, read with one request.

The plugin writes offset index, time index, producer snapshot, leader-epoch checkpoint and
transaction index one behind the other. A plan asks the newest segment of a partition for the last
three, and a segment that a bound cuts for all of them, one at a time: the first brings the others
along, where they are small, and they stay in the partition's pack (`side_file_pack`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kts_source.layout.remote_segment import IndexType

if TYPE_CHECKING:
    from kts_source.cache.packs import SideFilePack
    from kts_source.layout.remote_segment import SegmentObjects
    from kts_source.tier import Tier

MAX_TOGETHER_BYTES: Final = 64 << 10
"""Of a request that brings more than was asked for: less than its latency is worth."""
_STATE: Final = (IndexType.PRODUCER_SNAPSHOT, IndexType.LEADER_EPOCH, IndexType.TRANSACTION)
_ALL: Final = (IndexType.OFFSET, IndexType.TIMESTAMP, *_STATE)
_TOGETHER: Final = {
    IndexType.PRODUCER_SNAPSHOT: _STATE,
    IndexType.LEADER_EPOCH: _STATE,
    # Whoever looks for a time looks up a position next.
    IndexType.TIMESTAMP: _ALL,
}
"""Transaction and offset indexes are read of many segments of which nothing else is wanted."""


def read_side_file(
    tier: Tier,
    pack: SideFilePack | None,
    objects: SegmentObjects,
    kind: IndexType,
    *,
    is_cut: bool = False,
) -> bytes:
    """The stored bytes of a side file that the segment has.

    Args:
        tier: Where it is.
        pack: Where small side files of the partition are kept, with those beside them. Others, and
            all where it is `None`, are read alone, through the tier's cache.
        objects: The segment.
        kind: Which.
        is_cut: Whether a bound cuts the segment, so that its indexes will be asked for too.

    Raises:
        TieredKafkaError: See `ObjectStore.get_range`.
    """
    wanted = objects.indexes[kind]
    source = wanted.source
    if pack is not None:
        known = pack.find(source, wanted.start, wanted.stop)
        if known is not None:
            return known
        start, stop = _together(objects, kind, _ALL if is_cut else _TOGETHER.get(kind, ()))
        # Planners rarely start at once, see `segment_pack`: no locks for these.
        if stop - start <= MAX_TOGETHER_BYTES and pack.has_room(stop - start):
            data = bytes(tier.store.get_range(source.key, start, stop, version=source.version))
            pack.add(source, start, data)
            return data[wanted.start - start : wanted.stop - start]
    return bytes(tier.caches.side_file(tier.store, source, wanted.start, wanted.stop))


def _together(
    objects: SegmentObjects, kind: IndexType, kinds: tuple[IndexType, ...]
) -> tuple[int, int]:
    """The range of the side file and of those of `kinds` around it: no gaps, small together."""
    wanted = objects.indexes[kind]
    start, stop = wanted.start, wanted.stop
    found = [part for name in kinds if (part := objects.indexes.get(name)) is not None]
    others = sorted(
        (part.start, part.stop) for part in found if part.source == wanted.source and part.size
    )
    for low, high in others:
        if low == stop and high - start <= MAX_TOGETHER_BYTES:
            stop = high
    for low, high in reversed(others):
        if high == start and stop - low <= MAX_TOGETHER_BYTES:
            start = low
    return start, stop
