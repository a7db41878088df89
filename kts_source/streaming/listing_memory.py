"""Extends earlier listings of a partition instead of repeating them.

Segments are added at the end of a partition's listing and deleted at its beginning. So a long
listing is not repeated: its first page and the keys after its last segments show the changes. The
keys between are assumed to be unchanged until the next full listing. If two listings overlap and
differ, a full one follows at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from kts_source.store.object_store import key_order

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kts_source.layout.layout import NamingLayout, PartitionListing, SegmentEntry, TopicFolder
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.store.object_store import ObjectInfo, ObjectStore

PAGE: Final = 1000
"""Keys that a store lists in one request."""
_SEEN_AGAIN: Final = 30
"""The last objects are always listed again, because copies in progress are among them."""
_GAIN_IN_A_ROW: Final = 8
"""Minimum factor of requests that a listing of all partitions saves: its requests are sequential,
and those of single partitions concurrent."""


@dataclass(frozen=True, slots=True)
class _Known:
    infos: list[ObjectInfo]
    listing: PartitionListing
    whole_at: float
    is_whole: bool


class ListingMemory:
    """A `Layout` that lists a partition with one or two requests if little is new. Called from any
    thread, with one listing of a partition at a time.

    Args:
        layout: Names and describes segments.
        whole_interval_ms: Time between full listings of a partition.
        clock: Seconds.
    """

    def __init__(
        self, layout: NamingLayout, whole_interval_ms: int, clock: Callable[[], float]
    ) -> None:
        self.name = layout.name
        self.folder_pattern = layout.folder_pattern
        self.format_versions = layout.format_versions
        self._layout = layout
        self._interval_ms = whole_interval_ms
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._in_a_row: dict[str, list[ObjectInfo]] = {}

    def is_assumed(self, folder: TopicFolder, partition: int) -> bool:
        """Returns whether the last listing reused an earlier one."""
        known = self._known.get(self._layout.partition_folder(folder, partition))
        return known is not None and not known.is_whole

    def forget(self, folder: TopicFolder, partition: int) -> None:
        """Makes the next listing of a partition a full one."""
        self._known.pop(self._layout.partition_folder(folder, partition), None)

    def topic_folders(
        self, store: ObjectStore, key_prefix: str, topic: str | None
    ) -> tuple[TopicFolder, ...]:
        """See `Layout.topic_folders`."""
        return self._layout.topic_folders(store, key_prefix, topic)

    def partitions(self, store: ObjectStore, folder: TopicFolder) -> tuple[int, ...]:
        """See `Layout.partitions`. Lists all partitions with one prefix if they are many and small;
        `list_partition` then returns from that listing.
        """
        found = self._layout.partitions(store, folder)
        places = [self._layout.partition_folder(folder, number) for number in found]
        self._in_a_row.clear()
        # Not where other topics are in the same folder.
        if folder.topic_id in folder.folder and self._is_better_in_a_row(places):
            listed: dict[str, list[ObjectInfo]] = defaultdict(list)
            for info in store.list_objects(folder.folder):
                listed[info.key[: info.key.find("/", len(folder.folder)) + 1]].append(info)
            self._in_a_row.update((place, listed[place]) for place in places)
        return found

    def list_partition(
        self, store: ObjectStore, folder: TopicFolder, partition: int
    ) -> PartitionListing:
        """See `Layout.list_partition`. Returns the same listing as before if nothing is new."""
        place = self._layout.partition_folder(folder, partition)
        known = self._known.get(place)
        now = self._clock()
        infos = self._in_a_row.pop(place, None)
        if infos is None and known is not None and self._may_go_on(known, now):
            ends = _ends(store, place, known.infos)
            if ends is not None:
                known = self._noted(known, ends, folder, partition)
                self._known[place] = replace(known, is_whole=False)
                return known.listing
        if infos is None:
            infos = list(store.list_objects(place))
        known = self._noted(known, infos, folder, partition)
        self._known[place] = replace(known, whole_at=now, is_whole=True)
        return known.listing

    def describe(self, store: ObjectStore, entry: SegmentEntry) -> RemoteSegment:
        """See `Layout.describe`."""
        return self._layout.describe(store, entry)

    def _noted(
        self, known: _Known | None, infos: list[ObjectInfo], folder: TopicFolder, partition: int
    ) -> _Known:
        if known is None:
            return _Known(infos, self._layout.grouped(infos, folder, partition), 0, is_whole=True)
        if infos == known.infos:
            return known
        listing = self._layout.grouped(infos, folder, partition)
        return replace(known, infos=infos, listing=listing)

    def _is_better_in_a_row(self, places: Sequence[str]) -> bool:
        if not places or not all(place in self._known for place in places):
            return False
        counts = [len(self._known[place].infos) for place in places]
        apart = sum(1 + (count >= PAGE) for count in counts)
        return (1 + sum(counts) // PAGE) * _GAIN_IN_A_ROW <= apart

    def _may_go_on(self, known: _Known, now: float) -> bool:
        is_recent = 0 <= (now - known.whole_at) * 1000 < self._interval_ms
        return is_recent and len(known.infos) >= PAGE


def _ends(store: ObjectStore, place: str, known: list[ObjectInfo]) -> list[ObjectInfo] | None:
    """Lists only the first page and the keys after the last known objects. Returns `None` if they
    do not fit the known listing.
    """
    first = list(islice(store.list_objects(place), PAGE))
    resumed = known[-_SEEN_AGAIN - 1].key
    if len(first) < PAGE or key_order(first[-1].key) > key_order(resumed):
        return None
    last = list(store.list_objects(place, after=resumed))
    begin = bisect_left(known, key_order(first[0].key), key=lambda info: key_order(info.key))
    if known[begin : begin + PAGE] != first or known[-_SEEN_AGAIN:] != last[:_SEEN_AGAIN]:
        return None
    new = last[_SEEN_AGAIN:]
    return [*known[begin:], *new] if begin or new else known
