"""The layout of a tier that is not listed: its segments are those that the metadata topic names.

The keys of a segment's objects follow from what brokers know of it, and every object is looked up
by its key. So only segments are found whose objects are there, as by a listing. What is named and
not there (deleted meanwhile, lost, or under another prefix) is reported as an orphan, and brokers
serve its offsets.

A store that may not be listed can answer "denied" for a key that is not there. So a refusal leaves
out one segment, unless all look-ups are refused.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from kts_source.errors import AccessDeniedError, InvalidOptionError, ObjectNotFoundError
from kts_source.layout.layout import (
    NamingLayout,
    Orphan,
    PartitionListing,
    SegmentEntry,
    SegmentName,
    TopicFolder,
    segment_or_orphan,
)
from kts_source.planning.metadata_topic import REMOTE_LOG_METADATA
from kts_source.planning.scan_plan import CatalogPart
from kts_source.texts import some
from segment_format.errors import InvalidManifestError
from segment_format.kafka_uuid import uuid_to_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Executor

    from kts_source.broker.cluster import TopicPartition
    from kts_source.layout.layout import Layout
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.planning.cluster_view import BrokerLog
    from kts_source.planning.metadata_topic import MetadataState, NamedSegments
    from kts_source.store.object_store import ObjectInfo, ObjectStore
    from segment_format.metadata.model import RemoteLogSegmentMetadata

log = logging.getLogger(__name__)

_NOT_THERE: Final = (
    f"named by {REMOTE_LOG_METADATA} and not there: deleted meanwhile, lost, or of another path or"
    " keyPrefix"
)
_REFUSED: Final = "the store refuses to show it, or to tell that it is not there"


class MetadataTopicLayout:
    """A layout of one plan, whose listings are what the metadata topic names and the store has.

    Args:
        layout: How the storage plugin names and describes objects.
        state: What the topic tells.
        logs: What leaders say of the partitions; segments outside of their logs are not looked up.

    Raises:
        InvalidOptionError: The layout cannot tell keys without a listing.
    """

    def __init__(
        self, layout: Layout, state: MetadataState, logs: Mapping[TopicPartition, BrokerLog]
    ) -> None:
        if not isinstance(layout, NamingLayout):
            raise InvalidOptionError(
                f"option catalog=metadata-topic: layout {layout.name!r} does not tell the keys of"
                " objects without a listing (method 'stems'); leave the option out"
            )
        self._layout = layout
        self._state = state
        self._logs = logs
        # What caches keep of described segments was compared with the topic.
        self.name = f"{layout.name} by {REMOTE_LOG_METADATA}"
        self.folder_pattern = layout.folder_pattern
        self.format_versions = layout.format_versions
        self._listings: dict[TopicPartition, PartitionListing] = {}
        self._named: dict[str, RemoteLogSegmentMetadata] = {}

    def look_up(self, store: ObjectStore, key_prefix: str, pool: Executor) -> None:
        """Looks for the objects of all segments that are named, side by side in `pool`.

        Raises:
            AccessDeniedError: The store refuses every look-up.
            StoreError: The store does not answer.
        """
        named = [
            (place, segment)
            for place, of in self._state.partitions.items()
            for segment in of.live
            if segment.end_offset >= self._logs[place].log_start
            and segment.start_offset < self._logs[place].end
        ]
        self._named = {uuid_to_text(segment.segment_id.id): segment for _, segment in named}
        found = pool.map(lambda pair: self._looked_up(store, key_prefix, *pair), named)
        entries: dict[TopicPartition, list[SegmentEntry]] = defaultdict(list)
        orphans: dict[TopicPartition, list[Orphan]] = defaultdict(list)
        refused: AccessDeniedError | None = None
        for (place, _), made in zip(named, found, strict=True):
            if isinstance(made, SegmentEntry):
                entries[place].append(made)
            elif isinstance(made, Orphan):
                orphans[place].append(made)
            else:
                refused = refused or made[1]
                orphans[place].append(made[0])
        if refused is not None and not entries:
            raise refused
        for place, of in self._state.partitions.items():
            if orphans[place]:
                log.warning("%s-%s: not read: %s", *place, some(map(str, orphans[place])))
            under_way = [
                Orphan((self._key(key_prefix, place, segment),), what)
                for segments, what in (
                    (of.copying, "a copy in progress, or given up"),
                    (of.deleting, "a deletion in progress"),
                )
                for segment in segments
            ]
            self._listings[place] = PartitionListing(
                tuple(sorted(entries[place], key=lambda one: (one.base_offset, one.segment_id))),
                (*orphans[place], *under_way),
            )

    def orphans(self, place: TopicPartition) -> tuple[Orphan, ...]:
        """What is named of a partition and not read: not there, or in progress."""
        return self._listings[place].orphans

    def names_any(self, topic: str) -> bool:
        """Whether the topic names segments of this one that may be read."""
        return any(of.live for (name, _), of in self._state.partitions.items() if name == topic)

    def epoch_stops(self, place: TopicPartition) -> dict[int, int]:
        """Leader epoch to one past its last offset in segments that the topic names as copied,
        whether their objects exist or not.
        """
        found: dict[int, int] = {}
        for segment in self._state.partitions[place].live:
            entries = segment.segment_leader_epochs
            stops = [*(entry.start_offset for entry in entries[1:]), segment.end_offset + 1]
            for entry, stop in zip(entries, stops, strict=False):
                found[entry.epoch] = max(stop, found.get(entry.epoch, 0))
        return found

    def catalog_part(self, place: TopicPartition) -> CatalogPart:
        """What the topic told of a partition."""
        of = self._state.partitions[place]
        return CatalogPart(
            partition=of.read.number,
            start=of.read.start,
            stop=of.read.stop,
            records=of.read.records,
            live=len(of.live),
            copying=len(of.copying),
            deleting=len(of.deleting),
            not_named=tuple(_not_named(of, self._logs[place])),
        )

    def notes(self) -> list[str]:
        """What the topic is known to lack, in words."""
        found = [
            f"{REMOTE_LOG_METADATA}-{read.number} lacks entries: {some(read.missing)}; segments"
            " that it does not name are read from brokers"
            for read in self._state.reads
            if read.missing
        ]
        behind = [
            f"{topic}-{number} [{start}, {stop})"
            for (topic, number), of in self._state.partitions.items()
            for start, stop in _not_named(of, self._logs[topic, number])
        ]
        if behind:
            found.append(
                f"{REMOTE_LOG_METADATA} names no segment of offsets that brokers have in the tier"
                f" only, and brokers read them there: {some(behind)}; to read them from the tier"
                " directly, leave option catalog=metadata-topic out"
            )
        for note in found:
            log.warning("%s", note)
        return found

    def topic_folders(
        self, store: ObjectStore, key_prefix: str, topic: str | None
    ) -> tuple[TopicFolder, ...]:
        """The incarnation that the cluster has, if there are segments of it."""
        found = {
            (name, self._logs[name, number].topic_id)
            for (name, number), listing in self._listings.items()
            if topic in (None, name) and listing.segments
        }
        return tuple(TopicFolder(*pair, key_prefix) for pair in sorted(found))

    def partitions(self, store: ObjectStore, folder: TopicFolder) -> tuple[int, ...]:
        """Those wanted."""
        return tuple(sorted(number for name, number in self._listings if name == folder.topic))

    def list_partition(
        self, store: ObjectStore, folder: TopicFolder, partition: int
    ) -> PartitionListing:
        """What `look_up` has found."""
        return self._listings[folder.topic, partition]

    def describe(self, store: ObjectStore, entry: SegmentEntry) -> RemoteSegment:
        """The segment as the plugin's layout describes it, if the topic says the same of it.

        Raises:
            InvalidManifestError: It says something else.
            ObjectNotFoundError: An object has gone since it was looked up.
            AccessDeniedError: The store refuses to read what is there.
        """
        try:
            segment = self._layout.describe(store, entry)
        except AccessDeniedError:
            if _is_there(store, entry):
                raise
            raise ObjectNotFoundError(_REFUSED, uri=store.uri(entry.described_by)) from None
        named = self._named[entry.segment_id]
        size = segment.objects.size_in_bytes
        ends_alike = (
            segment.end_offset == named.end_offset
            if segment.end_is_exact
            else segment.end_offset <= named.end_offset
        )
        if (
            segment.start_offset != named.start_offset
            or not ends_alike
            or size != named.segment_size_in_bytes
        ):
            raise InvalidManifestError(
                f"its objects are of offsets {segment.start_offset} to {segment.end_offset} in"
                f" {size} bytes, but {REMOTE_LOG_METADATA} names offsets {named.start_offset} to"
                f" {named.end_offset} in {named.segment_size_in_bytes} bytes"
            )
        return replace(segment, end_offset=named.end_offset, end_is_exact=True)

    def _looked_up(
        self,
        store: ObjectStore,
        key_prefix: str,
        place: TopicPartition,
        segment: RemoteLogSegmentMetadata,
    ) -> SegmentEntry | Orphan | tuple[Orphan, AccessDeniedError]:
        name = self._name(place, segment)
        last = self._layout.required[-1]
        objects: dict[str, ObjectInfo] = {}
        keys: list[str] = []
        refused = None
        for stem in self._layout.stems(key_prefix, name):
            keys.append(f"{stem}.{last}")
            try:
                objects[last] = store.head(keys[-1])
                for suffix in (*self._layout.required[:-1], *self._layout.optional):
                    try:
                        objects[suffix] = store.head(f"{stem}.{suffix}")
                    except ObjectNotFoundError:
                        continue
            except ObjectNotFoundError:
                continue
            except AccessDeniedError as error:
                # An object that is hidden may be one that matters, such as a transaction index.
                refused = error
                objects.clear()
                continue
            return segment_or_orphan(
                (name.topic, name.topic_id, name.partition, name.base_offset, name.segment_id),
                objects,
                required=self._layout.required,
                described_by=self._layout.described_by,
            )
        if refused is not None:
            return Orphan(tuple(keys), _REFUSED, segment.start_offset), refused
        return Orphan(tuple(keys), _NOT_THERE, segment.start_offset)

    def _key(
        self, key_prefix: str, place: TopicPartition, segment: RemoteLogSegmentMetadata
    ) -> str:
        (stem,) = islice(self._layout.stems(key_prefix, self._name(place, segment)), 1)
        return f"{stem}.{self._layout.required[-1]}"

    def _name(self, place: TopicPartition, segment: RemoteLogSegmentMetadata) -> SegmentName:
        topic, partition = place
        return SegmentName(
            topic,
            self._logs[place].topic_id,
            partition,
            segment.start_offset,
            uuid_to_text(segment.segment_id.id),
            segment.custom_metadata,
        )


def _is_there(store: ObjectStore, entry: SegmentEntry) -> bool:
    """Whether the store still shows all objects of a segment."""
    try:
        for _, info in entry.objects:
            store.head(info.key)
    except (AccessDeniedError, ObjectNotFoundError):
        return False
    return True


def _not_named(of: NamedSegments, brokers: BrokerLog) -> Iterator[tuple[int, int]]:
    """Offsets that are not on the leader's disk any more, and in no segment that is named."""
    at = brokers.log_start
    stop = at if brokers.local_start is None else min(brokers.local_start, brokers.end)
    # What retention deletes was named, and the log start has moved behind it since.
    for segment in sorted([*of.live, *of.deleting], key=lambda one: one.start_offset):
        if segment.start_offset >= stop:
            break
        if segment.start_offset > at:
            yield at, segment.start_offset
        at = max(at, segment.end_offset + 1)
    if at < stop:
        yield at, stop
