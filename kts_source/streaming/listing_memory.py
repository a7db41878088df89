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
        remembered = self._known.get(self._layout.partition_folder(folder, partition))
        return remembered is not None and not remembered.is_whole

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
        numbers = self._layout.partitions(store, folder)
        prefixes = [self._layout.partition_folder(folder, number) for number in numbers]
        self._in_a_row.clear()
        # Not where other topics are in the same folder.
        if folder.topic_id in folder.folder and self._is_better_in_a_row(prefixes):
            listed: dict[str, list[ObjectInfo]] = defaultdict(list)
            for info in store.list_objects(folder.folder):
                listed[info.key[: info.key.find("/", len(folder.folder)) + 1]].append(info)
            self._in_a_row.update((prefix, listed[prefix]) for prefix in prefixes)
        return numbers

    def list_partition(
        self, store: ObjectStore, folder: TopicFolder, partition: int
    ) -> PartitionListing:
        """See `Layout.list_partition`. Returns the same listing as before if nothing is new."""
        prefix = self._layout.partition_folder(folder, partition)
        remembered = self._known.get(prefix)
        now = self._clock()
        infos = self._in_a_row.pop(prefix, None)
        if infos is None and remembered is not None and self._may_go_on(remembered, now):
            ends = _ends(store, prefix, remembered.infos)
            if ends is not None:
                remembered = self._noted(remembered, ends, folder, partition)
                self._known[prefix] = replace(remembered, is_whole=False)
                return remembered.listing
        if infos is None:
            infos = list(store.list_objects(prefix))
        remembered = self._noted(remembered, infos, folder, partition)
        self._known[prefix] = replace(remembered, whole_at=now, is_whole=True)
        return remembered.listing

    def describe(self, store: ObjectStore, entry: SegmentEntry) -> RemoteSegment:
        """See `Layout.describe`."""
        return self._layout.describe(store, entry)

    def _noted(
        self,
        remembered: _Known | None,
        infos: list[ObjectInfo],
        folder: TopicFolder,
        partition: int,
    ) -> _Known:
        if remembered is None:
            return _Known(infos, self._layout.grouped(infos, folder, partition), 0, is_whole=True)
        if infos == remembered.infos:
            return remembered
        listing = self._layout.grouped(infos, folder, partition)
        return replace(remembered, infos=infos, listing=listing)

    def _is_better_in_a_row(self, prefixes: Sequence[str]) -> bool:
        if not prefixes or not all(prefix in self._known for prefix in prefixes):
            return False
        counts = [len(self._known[prefix].infos) for prefix in prefixes]
        separate_requests = sum(1 + (count >= PAGE) for count in counts)
        return (1 + sum(counts) // PAGE) * _GAIN_IN_A_ROW <= separate_requests

    def _may_go_on(self, remembered: _Known, now: float) -> bool:
        is_recent = 0 <= (now - remembered.whole_at) * 1000 < self._interval_ms
        return is_recent and len(remembered.infos) >= PAGE


def _ends(
    store: ObjectStore, prefix: str, known_objects: list[ObjectInfo]
) -> list[ObjectInfo] | None:
    """Lists only the first page and the keys after the last known objects. Returns `None` if they
    do not fit the known listing.
    """
    first = list(islice(store.list_objects(prefix), PAGE))
    resumed = known_objects[-_SEEN_AGAIN - 1].key
    if len(first) < PAGE or key_order(first[-1].key) > key_order(resumed):
        return None
    last = list(store.list_objects(prefix, after=resumed))
    begin = bisect_left(
        known_objects, key_order(first[0].key), key=lambda info: key_order(info.key)
    )
    if (
        known_objects[begin : begin + PAGE] != first
        or known_objects[-_SEEN_AGAIN:] != last[:_SEEN_AGAIN]
    ):
        return None
    new = last[_SEEN_AGAIN:]
    return [*known_objects[begin:], *new] if begin or new else known_objects
