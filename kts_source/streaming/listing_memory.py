"""Listings that go on from what an earlier one showed.

Segments come at the end of a partition's listing and go at its beginning. So a long listing that is
known is not read again as a whole: its first page and what is behind its last segments show what
changed. What is between is taken to be as it was, until the next whole listing. Anything that does
not fit, two listings that overlap and differ, leads to a whole one at once.
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
"""So many of the last objects are listed every time: copies under way are among them."""
_GAIN_IN_A_ROW: Final = 8
"""A listing of all partitions in a row must spare so many times its requests: they come one after
the other, those of partitions side by side."""


@dataclass(frozen=True, slots=True)
class _Known:
    infos: list[ObjectInfo]
    listing: PartitionListing
    whole_at: float
    is_whole: bool


class ListingMemory:
    """A `Layout` whose listings of a partition cost a request or two where little is new. From any
    thread, one listing of a partition at a time.

    Args:
        layout: How segments are named and described.
        whole_interval_ms: After so long a partition is listed as a whole again.
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
        """Whether the last listing was in part taken from an earlier one."""
        known = self._known.get(self._layout.partition_folder(folder, partition))
        return known is not None and not known.is_whole

    def forget(self, folder: TopicFolder, partition: int) -> None:
        """The next listing of a partition is a whole one."""
        self._known.pop(self._layout.partition_folder(folder, partition), None)

    def topic_folders(
        self, store: ObjectStore, key_prefix: str, topic: str | None
    ) -> tuple[TopicFolder, ...]:
        """See `Layout.topic_folders`."""
        return self._layout.topic_folders(store, key_prefix, topic)

    def partitions(self, store: ObjectStore, folder: TopicFolder) -> tuple[int, ...]:
        """See `Layout.partitions`. Where many of them have few segments each, all are listed in a
        row, which answers `list_partition`.
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
        """See `Layout.list_partition`. Where nothing is new, the same listing as before."""
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
    """A listing of which only the first page and what is behind the last known objects were asked
    for; `None` where these do not fit to what is known.
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
