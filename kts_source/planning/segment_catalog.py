"""Listed segments of a partition, described as they are asked for: from the pack of an earlier
plan, else by the layout, which reads a manifest or the like.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from kts_source.cache.caches import Bundle
from kts_source.cache.packs import SegmentPack, SideFilePack
from kts_source.errors import CorruptSegmentError, ObjectNotFoundError, TieredKafkaError
from kts_source.layout.layout import PartitionListing
from kts_source.layout.remote_segment import IndexType
from kts_source.store.storage_options import MAX_POOL_CONNECTIONS
from kts_source.texts import printable
from segment_format.errors import SegmentFormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from concurrent.futures import Executor

    from kts_source.layout.layout import Layout, SegmentEntry, TopicFolder
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.tier import Tier

log = logging.getLogger(__name__)

PLANNING_THREADS: Final = MAX_POOL_CONNECTIONS
"""Requests of a plan under way at a time."""
_GROUPS: Final = 64
_GROUP_SEGMENTS: Final = 16
_FEW: Final = 8
_SIDE_FILES: Final = frozenset(IndexType) - {IndexType.TRANSACTION}
_REMEMBERED: Final = 100_000
_EMPTY: Final[dict[tuple[str, str], bool]] = {}
"""Whether segments without a log object are empty, by URI and version of what describes them: a
stream lists them again and again.
"""


class SegmentCatalog:
    """Lists and describes the segments of a tier.

    Args:
        tier: Where the segments are. Manifests are not in its caches: packs keep what they said.
        layout: How they are listed and described.
        pool: Where they are described, side by side. It must not be the caller's own.
        fail_on_data_loss: Whether a manifest that cannot be read is an error.
    """

    def __init__(
        self, tier: Tier, layout: Layout, pool: Executor, *, fail_on_data_loss: bool
    ) -> None:
        self.store = tier.store
        self.layout = layout
        self._caches = tier.caches
        self._pool = pool
        self._fail_on_data_loss = fail_on_data_loss
        self._alone = 1

    def expect(self, partitions: int) -> None:
        """Tells how many partitions are going to be planned side by side. Where they keep the store
        busy, each of them reads a few manifests itself, one after the other: to hand them to
        threads and back takes longer than all else that is done about them.
        """
        self._alone = _FEW if partitions >= PLANNING_THREADS else 1

    def listed(self, folder: TopicFolder, partition: int) -> ListedPartition:
        """Lists a partition. What earlier plans kept of its segments is not described again."""
        kept = None
        if self._caches.index is not None:
            uri = self.store.uri(f"{folder.folder}{folder.topic}-{folder.topic_id}")
            name = self._caches.entry_name("partition", self.layout.name, uri, f"{partition}")
            kept = Bundle(self._caches.index, name)
        listing = self._with_empty_segments(
            self.layout.list_partition(self.store, folder, partition)
        )
        return ListedPartition(self, folder, partition, listing, kept)

    def _with_empty_segments(self, listing: PartitionListing) -> PartitionListing:
        """Moves segments without a log object to the whole ones if their logs had no byte.

        Compaction leaves closed segments without records, and S3 keeps no object for an upload of
        zero bytes.
        """
        damaged = [orphan for orphan in listing.orphans if orphan.described is not None]
        if not damaged:
            return listing
        are_empty = map if len(damaged) <= self._alone else self._pool.map
        entries = [one.described for one in damaged if one.described is not None]
        empty = {
            entry.described_by
            for entry, is_empty in zip(entries, are_empty(self.is_empty, entries), strict=True)
            if is_empty
        }
        moved = [entry for entry in entries if entry.described_by in empty]
        if not moved:
            return listing
        return PartitionListing(
            tuple(
                sorted(
                    (*listing.segments, *moved),
                    key=lambda entry: (entry.base_offset, entry.segment_id),
                )
            ),
            tuple(
                orphan
                for orphan in listing.orphans
                if orphan.described is None or orphan.described.described_by not in empty
            ),
        )

    def is_empty(self, entry: SegmentEntry) -> bool:
        """Whether a segment has a log of zero bytes and all side files, by its description."""
        described_by = next(
            (info for _, info in entry.objects if info.key == entry.described_by), None
        )
        version = None if described_by is None else described_by.version
        place = self.store.uri(entry.described_by), version or ""
        if version is not None and place in _EMPTY:
            return _EMPTY[place]
        try:
            objects = self.layout.describe(self.store, entry).objects
        except (SegmentFormatError, TieredKafkaError):  # reported where the segment is used
            return False
        is_empty = objects.size_in_bytes == 0 and objects.indexes.keys() >= _SIDE_FILES
        if version is not None and len(_EMPTY) < _REMEMBERED:
            _EMPTY[place] = is_empty
        return is_empty

    def described(self, entries: Sequence[SegmentEntry]) -> list[RemoteSegment | None]:
        """Each as the layout describes it; `None` for one that has gone, or cannot be read where
        loss is allowed.

        Raises:
            CorruptSegmentError: What describes a segment cannot be read.
        """
        if len(entries) <= self._alone:
            return self._group(entries)
        size = min(max(len(entries) // _GROUPS, 1), _GROUP_SEGMENTS)
        groups = [entries[at : at + size] for at in range(0, len(entries), size)]
        return [found for group in self._pool.map(self._group, groups) for found in group]

    def _group(self, entries: Sequence[SegmentEntry]) -> list[RemoteSegment | None]:
        return [self._described(entry) for entry in entries]

    def _described(self, entry: SegmentEntry) -> RemoteSegment | None:
        try:
            return self.layout.describe(self.store, entry)
        except ObjectNotFoundError:
            uri = printable(self.store.uri(entry.described_by))
            log.warning("%s has gone since it was listed: a delete under way; not read", uri)
            return None
        except SegmentFormatError as error:
            failure = CorruptSegmentError(
                str(error),
                topic=entry.topic,
                partition=entry.partition,
                offset=entry.base_offset,
                uri=self.store.uri(entry.described_by),
            )
            if self._fail_on_data_loss:
                raise failure from error
            log.warning("%s; not read", failure)
            return None


class ListedPartition:
    """The listed segments of one partition and topic id, each described at most once. Used by one
    thread at a time.

    Attributes:
        folder: The incarnation of its topic.
        entries: Whole segments, in order of base offset, then segment id.
        orphans: Objects that belong to no whole segment; those that are described, are damaged
            segments.
        facts: See `PartitionListing`.
        side_files: What was read of their side files.
    """

    def __init__(
        self,
        catalog: SegmentCatalog,
        folder: TopicFolder,
        partition: int,
        listing: PartitionListing,
        kept: Bundle | None,
    ) -> None:
        self.folder = folder
        self.topic = folder.topic
        self.topic_id = folder.topic_id
        self.partition = partition
        self.entries = listing.segments
        self.orphans = listing.orphans
        self.facts = listing.facts
        self._damaged: list[RemoteSegment | None] | None = None
        self._catalog = catalog
        self._kept = kept
        self._pack = SegmentPack(kept, "segments")
        self.side_files = SideFilePack(kept, "side files")
        self._described: dict[int, RemoteSegment | None] = {}

    @property
    def has_segments(self) -> bool:
        """Whether there is a segment that something describes, whole or damaged."""
        return bool(self.entries) or any(one.described is not None for one in self.orphans)

    def described(self, numbers: Iterable[int]) -> list[RemoteSegment]:
        """These of the entries, in their order; those that have gone or cannot be read are left
        out.

        Raises:
            CorruptSegmentError: What describes a segment cannot be read.
        """
        wanted = list(numbers)
        missing = []
        for number in wanted:
            if number not in self._described:
                known = self._pack.find(self.entries[number])
                if known is None:
                    missing.append(number)
                else:
                    self._described[number] = known
        if missing:
            fresh = self._catalog.described([self.entries[number] for number in missing])
            for number, segment in zip(missing, fresh, strict=True):
                self._described[number] = segment
                # The end of an empty segment may depend on the next one in the listing.
                if segment is not None and segment.objects.size_in_bytes:
                    self._pack.add(self.entries[number], segment)
        found = (self._described[number] for number in wanted)
        return [segment for segment in found if segment is not None]

    def all(self) -> list[RemoteSegment]:
        """All that can be described."""
        return self.described(range(len(self.entries)))

    def damaged(self) -> list[RemoteSegment]:
        """The segments that lack some of their objects, as far as something describes them."""
        if self._damaged is None:
            self._damaged = self._catalog.described(self._damaged_entries)
        return [segment for segment in self._damaged if segment is not None]

    def unreadable(self) -> list[tuple[int, str]]:
        """Base offset and URI of the segments, whole or damaged, that were to be described and
        whose description is gone or not valid.
        """
        entries = [self.entries[at] for at, one in self._described.items() if one is None]
        damaged = zip(self._damaged_entries, self._damaged or (), strict=False)
        entries += (entry for entry, segment in damaged if segment is None)
        return [(one.base_offset, self._catalog.store.uri(one.described_by)) for one in entries]

    def without_end(self) -> dict[str, tuple[int, str]]:
        """Returns base offset and URI, by segment id, of damaged segments whose log is gone and
        whose other files tell a lower bound of their end alone.
        """
        described = zip(self._damaged_entries, self._damaged or (), strict=False)
        return {
            entry.segment_id: (entry.base_offset, self._catalog.store.uri(entry.described_by))
            for entry, segment in described
            if segment is not None and not segment.end_is_exact and entry.object("log") is None
        }

    @property
    def _damaged_entries(self) -> list[SegmentEntry]:
        return [one.described for one in self.orphans if one.described is not None]

    def save(self) -> None:
        """Keeps what was described and read for later plans."""
        self._pack.save(self.entries)
        self.side_files.save()
        if self._kept is not None:
            self._kept.save()
        # What is asked for from now on is described already.
        self._pack, self.side_files = SegmentPack(None, ""), SideFilePack()
