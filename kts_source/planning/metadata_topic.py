"""Reads the topic `__remote_log_metadata`, which lists the segments of a tier.

Brokers write events to this topic when they start or finish the copy or the deletion of a segment.
Each partition of the topic is read from its log start to the high watermark that it had at the
start of the read, so the result is consistent. Only metadata partitions with events of the selected
partitions are read. If the topic has lost events, some segments are unknown, or are listed although
they were deleted. The scan tolerates this: brokers serve the offsets of unknown segments, and the
objects of every segment are looked up in the store.

Source: `TopicBasedRemoteLogMetadataManager`, `ConsumerTask`, `RemoteLogMetadataCache`; KIP-405.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np

from kts_source.broker.broker_range import BrokerRange
from kts_source.broker.cluster import EARLIEST, LATEST, Cluster
from kts_source.broker.fetch_range import RangeFetcher
from kts_source.errors import (
    AccessDeniedError,
    BrokerAccessError,
    CorruptSegmentError,
    InvalidOptionError,
    ObjectNotFoundError,
    TopicNotFoundError,
)
from kts_source.layout.layout import (
    NamingLayout,
    Orphan,
    PartitionListing,
    SegmentEntry,
    SegmentName,
    TopicFolder,
    segment_or_orphan,
)
from kts_source.planning.lineage import MAX_OFFSET
from kts_source.planning.partition_plan import CatalogPart
from kts_source.texts import some
from segment_format.errors import InvalidManifestError, SegmentFormatError
from segment_format.kafka_uuid import uuid_from_text, uuid_to_text
from segment_format.metadata.columns import metadata_records, parse_metadata_columns
from segment_format.metadata.live_segments import LiveSegments
from segment_format.metadata.model import RemoteLogSegmentMetadata, RemoteLogSegmentState
from segment_format.metadata.remote_log_segment_metadata import metadata_partition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Executor

    import pyarrow as pa

    from kts_source.broker.cluster import TopicPartition
    from kts_source.broker.settings import BrokerSettings
    from kts_source.errors import DataLossError
    from kts_source.layout.layout import Layout
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.planning.cluster_view import BrokerLog
    from kts_source.store.object_store import ObjectInfo, ObjectStore
    from segment_format.metadata.columns import MetadataColumns

log = logging.getLogger(__name__)

REMOTE_LOG_METADATA: Final = "__remote_log_metadata"
_HALF_BITS: Final = 64
_INSTEAD: Final = "or remove option catalog=metadata-topic, so that the tier is listed"


@dataclass(frozen=True, slots=True)
class MetadataRead:
    """The offsets read from one partition of the topic `__remote_log_metadata`.

    Attributes:
        start: First offset read, inclusive.
        stop: The high watermark when the read began: one past the last offset read.
        records: Number of records read, including events of partitions that are not selected.
        missing: Descriptions of events that the partition has lost, for messages.
    """

    number: int
    start: int
    stop: int
    records: int
    missing: tuple[str, ...]


@dataclass(slots=True)
class NamedSegments:
    """The segments of one wanted partition according to the topic `__remote_log_metadata`,
    ascending by start offset.

    Attributes:
        read: The read of the metadata partition that has the events of these segments.
        live: Segments that consumers may read (COPY_SEGMENT_FINISHED).
        copying: Segments whose copy is in progress or was abandoned (COPY_SEGMENT_STARTED).
        deleting: Segments whose deletion is in progress (DELETE_SEGMENT_STARTED).
    """

    read: MetadataRead
    live: list[RemoteLogSegmentMetadata] = field(default_factory=list)
    copying: list[RemoteLogSegmentMetadata] = field(default_factory=list)
    deleting: list[RemoteLogSegmentMetadata] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MetadataState:
    """The segments of all wanted partitions according to the topic `__remote_log_metadata`.

    Attributes:
        reads: The partitions of the metadata topic that were read, ascending by number.
        partitions: The segments of each wanted partition, by topic and partition number.
    """

    reads: tuple[MetadataRead, ...]
    partitions: Mapping[TopicPartition, NamedSegments]


def read_metadata_topic(
    settings: BrokerSettings, wanted: Mapping[TopicPartition, str], *, max_batch_bytes: int
) -> MetadataState:
    """Reads the segments of the wanted partitions from the topic `__remote_log_metadata`.

    Args:
        settings: Broker connection settings.
        wanted: Current topic id of each wanted partition.
        max_batch_bytes: Maximum size of a record batch.

    Raises:
        BrokerAccessError: The user may not read the topic.
        TopicNotFoundError: The cluster has no topic `__remote_log_metadata`.
        CorruptSegmentError: A record is invalid.
        BrokerError: Brokers refuse a request, or do not answer.
    """
    with closing(Cluster(settings)) as cluster:
        try:
            return _read(cluster, wanted, max_batch_bytes)
        except BrokerAccessError as error:
            raise BrokerAccessError(
                "catalog=metadata-topic reads an internal topic that the user may not read: allow"
                f" the operations Describe and Read on the topic {REMOTE_LOG_METADATA}, {_INSTEAD}",
                topic=REMOTE_LOG_METADATA,
                partition=error.partition,
            ) from error


def _read(
    cluster: Cluster, wanted: Mapping[TopicPartition, str], max_batch_bytes: int
) -> MetadataState:
    topic = cluster.topics([REMOTE_LOG_METADATA]).get(REMOTE_LOG_METADATA)
    if topic is None:
        raise TopicNotFoundError(
            "the cluster has no such topic, or does not show it to this user. The cluster may have"
            " no tiered storage, or may store its metadata elsewhere. Allow the operation Describe"
            f" on the topic, {_INSTEAD}",
            topic=REMOTE_LOG_METADATA,
        )
    count = len(topic.leaders)
    holders = {
        key: metadata_partition(uuid_from_text(topic_id), key[1], count)
        for key, topic_id in wanted.items()
    }
    held: dict[int, dict[tuple[str, int], TopicPartition]] = defaultdict(dict)
    for key, number in holders.items():
        held[number][wanted[key], key[1]] = key
    sources = [(REMOTE_LOG_METADATA, number) for number in sorted(held)]
    # Request the ends first, because records that are written later belong to a later state.
    ends = cluster.offsets(sources, LATEST, read_committed=False)
    starts = cluster.offsets(sources, EARLIEST, read_committed=False)
    epochs = cluster.last_epochs(ends)
    partitions: dict[TopicPartition, NamedSegments] = {}
    reads = []
    for source in sources:
        offsets = BrokerRange(
            topic=REMOTE_LOG_METADATA,
            topic_id=topic.topic_id,
            partition=source[1],
            leader_epoch=epochs[source],
            start_offset=starts[source],
            stop_offset=max(ends[source], starts[source]),
            read_committed=False,
            nominal_bytes=0,
        )
        named = _named_segments(cluster, offsets, held[source[1]], max_batch_bytes)
        partitions |= named
        reads.append(next(iter(named.values())).read)
    return MetadataState(tuple(reads), {key: partitions[key] for key in wanted})


def _named_segments(
    cluster: Cluster,
    offsets: BrokerRange,
    wanted: Mapping[tuple[str, int], TopicPartition],
    max_batch_bytes: int,
) -> dict[TopicPartition, NamedSegments]:
    """Reads the offsets `offsets` of one partition of the topic `__remote_log_metadata`. Returns
    the segments of the wanted partitions. `wanted` maps topic id and partition number to the wanted
    partition.
    """
    missing: list[str] = []
    if offsets.start_offset > 0:
        missing.append(f"it begins at offset {offsets.start_offset}")

    def note_loss(start: int, stop: int, error: DataLossError) -> None:
        missing.append(f"offsets [{start}, {stop}) were deleted while it was read: {error.message}")

    fetcher = RangeFetcher(cluster, offsets, max_batch_bytes=max_batch_bytes, on_loss=note_loss)
    halves = np.array(
        sorted({uuid_from_text(topic_id).int >> _HALF_BITS for topic_id, _ in wanted}), np.uint64
    )
    segments = LiveSegments()
    records = 0
    for rows in _rows(fetcher, offsets, max_batch_bytes):
        records += len(rows)
        events = _parsed(rows, offsets)
        mine = np.flatnonzero(np.isin(events.topic_id[:, 0], halves))
        segments.add(events if len(mine) == len(events) else events.rows(mine))
    live = list(metadata_records(segments.segments()))
    dropped = segments.dropped
    if dropped.unknown_segment:
        missing.append(f"{dropped.unknown_segment} updates are of segments that it does not name")
    if dropped.forbidden_transition:
        missing.append(f"{dropped.forbidden_transition} events are out of order")
    read = MetadataRead(
        offsets.partition, offsets.start_offset, offsets.stop_offset, records, tuple(missing)
    )
    named = {key: NamedSegments(read) for key in wanted.values()}
    for segment in live:
        assert isinstance(segment, RemoteLogSegmentMetadata)
        owner = segment.segment_id.topic_id_partition
        key = wanted.get((uuid_to_text(owner.topic_id), owner.partition))
        if key is None:
            continue
        match segment.state:
            case RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                named[key].live.append(segment)
            case RemoteLogSegmentState.COPY_SEGMENT_STARTED:
                named[key].copying.append(segment)
            case _:
                named[key].deleting.append(segment)
    return named


def _rows(
    fetcher: RangeFetcher, offsets: BrokerRange, max_batch_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Yields the records as batches of columns `offset` and `value`."""
    from segment_format.arrow import RecordDecoder  # imports the kernels

    decoder = RecordDecoder(
        columns=("offset", "value"),
        start_offset=offsets.start_offset,
        stop_offset=offsets.stop_offset,
        offset_bounds=(0, MAX_OFFSET),
        max_batch_bytes=max_batch_bytes,
    )
    try:
        with closing(fetcher.batches()) as answers:
            for answer in answers:
                yield from decoder.feed(answer.data)
        yield from decoder.finish()
    except SegmentFormatError as error:
        raise CorruptSegmentError(
            f"a broker sent invalid records: {error.message}",
            topic=offsets.topic,
            partition=offsets.partition,
            offset=error.offset,
        ) from error


def _parsed(rows: pa.RecordBatch, offsets: BrokerRange) -> MetadataColumns:
    if rows.column("value").null_count:  # tombstones
        rows = rows.filter(rows.column("value").is_valid())
    try:
        return parse_metadata_columns(rows.column("value"), rows.column("offset").to_numpy())
    except SegmentFormatError as error:
        raise CorruptSegmentError(
            f"the record is invalid: {error.message}. If the cluster is newer than this package,"
            f" update the package, {_INSTEAD}",
            topic=offsets.topic,
            partition=offsets.partition,
            offset=error.offset,
        ) from error


_MISSING: Final = (
    f"named by {REMOTE_LOG_METADATA} and missing: deleted in the meantime, lost, or under another"
    " path or keyPrefix"
)
_REFUSED: Final = "the store denies access to it, or to whether it exists"


class MetadataTopicLayout:
    """A `Layout` that lists segments according to the metadata topic, if their objects exist in the
    store.

    Computes the keys of a segment's objects from the brokers' metadata, and looks up every key in
    the store. A segment without its objects is an orphan; brokers serve its offsets. If the user
    may not list a store, some stores answer "access denied" for a missing key. So a segment with
    this answer is an orphan. If no segment is found, the answer is an error. Do not share an
    instance between plans.

    Args:
        logs: Log of each partition according to its leader. Segments that have no offset of this
            log are not looked up.

    Raises:
        InvalidOptionError: The layout needs a listing to find the keys of a segment.
    """

    def __init__(
        self, layout: Layout, state: MetadataState, logs: Mapping[TopicPartition, BrokerLog]
    ) -> None:
        if not isinstance(layout, NamingLayout):
            raise InvalidOptionError(
                f"option catalog=metadata-topic: layout {layout.name!r} needs a listing to find"
                " the objects of a segment (it has no method 'stems'); remove the option"
            )
        self._layout = layout
        self._state = state
        self._logs = logs
        # Caches need a separate name, because `describe` also compares segments with the topic.
        self.name = f"{layout.name} by {REMOTE_LOG_METADATA}"
        self.folder_pattern = layout.folder_pattern
        self.format_versions = layout.format_versions
        self._listings: dict[TopicPartition, PartitionListing] = {}
        self._named: dict[str, RemoteLogSegmentMetadata] = {}

    def look_up(self, store: ObjectStore, key_prefix: str, pool: Executor) -> None:
        """Looks up, concurrently in `pool`, the objects of all segments that consumers may read.

        Raises:
            AccessDeniedError: The store denies access to some objects, and no segment was found.
            StoreError: The store does not answer.
        """
        named = [
            (key, segment)
            for key, segments in self._state.partitions.items()
            for segment in segments.live
            if segment.end_offset >= self._logs[key].log_start
            and segment.start_offset < self._logs[key].end
        ]
        self._named = {uuid_to_text(segment.segment_id.id): segment for _, segment in named}
        results = pool.map(lambda pair: self._looked_up(store, key_prefix, *pair), named)
        entries: dict[TopicPartition, list[SegmentEntry]] = defaultdict(list)
        orphans: dict[TopicPartition, list[Orphan]] = defaultdict(list)
        refused: AccessDeniedError | None = None
        for (key, _), result in zip(named, results, strict=True):
            if isinstance(result, SegmentEntry):
                entries[key].append(result)
            elif isinstance(result, Orphan):
                orphans[key].append(result)
            else:
                refused = refused or result[1]
                orphans[key].append(result[0])
        if refused is not None and not entries:
            raise refused
        for key, segments in self._state.partitions.items():
            if orphans[key]:
                log.warning("%s-%s: not read: %s", *key, some(map(str, orphans[key])))
            in_progress = [
                Orphan((self._key(key_prefix, key, segment),), reason)
                for unfinished, reason in (
                    (segments.copying, "a copy in progress, or given up"),
                    (segments.deleting, "a deletion in progress"),
                )
                for segment in unfinished
            ]
            self._listings[key] = PartitionListing(
                tuple(
                    sorted(entries[key], key=lambda entry: (entry.base_offset, entry.segment_id))
                ),
                (*orphans[key], *in_progress),
            )

    def orphans(self, key: TopicPartition) -> tuple[Orphan, ...]:
        """Returns the segments of a partition that are in the metadata topic but cannot be read:
        objects are missing, or a copy or deletion is in progress.
        """
        return self._listings[key].orphans

    def names_any(self, topic: str) -> bool:
        """Returns whether the metadata topic names a segment of `topic`. Only segments that
        consumers may read count.
        """
        partitions = self._state.partitions.items()
        return any(segments.live for (name, _), segments in partitions if name == topic)

    def epoch_stops(self, key: TopicPartition) -> dict[int, int]:
        """Returns, for each leader epoch of a partition, one past the last offset with this epoch
        in segments that consumers may read. Includes segments whose objects do not exist.
        """
        epoch_stops: dict[int, int] = {}
        for segment in self._state.partitions[key].live:
            entries = segment.segment_leader_epochs
            stops = [*(entry.start_offset for entry in entries[1:]), segment.end_offset + 1]
            for entry, stop in zip(entries, stops, strict=False):
                epoch_stops[entry.epoch] = max(stop, epoch_stops.get(entry.epoch, 0))
        return epoch_stops

    def catalog_part(self, key: TopicPartition) -> CatalogPart:
        """Returns a summary of a partition in the metadata topic, for its plan."""
        segments = self._state.partitions[key]
        return CatalogPart(
            partition=segments.read.number,
            start=segments.read.start,
            stop=segments.read.stop,
            records=segments.read.records,
            live=len(segments.live),
            copying=len(segments.copying),
            deleting=len(segments.deleting),
            not_named=tuple(_offsets_without_segment(segments, self._logs[key])),
        )

    def notes(self) -> list[str]:
        """Returns notes for the user, and logs them as warnings: about missing entries of the
        metadata topic, and about offsets that are in no named segment although brokers no longer
        have them on their disks.
        """
        notes = [
            f"{REMOTE_LOG_METADATA}-{read.number} lacks entries: {some(read.missing)}; segments"
            " that it does not name are read from brokers"
            for read in self._state.reads
            if read.missing
        ]
        not_named = [
            f"{topic}-{number} [{start}, {stop})"
            for (topic, number), segments in self._state.partitions.items()
            for start, stop in _offsets_without_segment(segments, self._logs[topic, number])
        ]
        if not_named:
            notes.append(
                f"{REMOTE_LOG_METADATA} names no segment of offsets that brokers have in the tier"
                f" only, and brokers read them there: {some(not_named)}; to read them from the tier"
                " directly, remove option catalog=metadata-topic"
            )
        for note in notes:
            log.warning("%s", note)
        return notes

    def topic_folders(
        self, store: ObjectStore, key_prefix: str, topic: str | None
    ) -> tuple[TopicFolder, ...]:
        """Returns a `TopicFolder` for each topic that has segments, with the current topic id of
        the topic. If `topic` is set, returns only the folder of this topic.
        """
        pairs = {
            (name, self._logs[name, number].topic_id)
            for (name, number), listing in self._listings.items()
            if topic in (None, name) and listing.segments
        }
        return tuple(TopicFolder(*pair, key_prefix) for pair in sorted(pairs))

    def partitions(self, store: ObjectStore, folder: TopicFolder) -> tuple[int, ...]:
        """Returns the numbers of the wanted partitions of a topic, in ascending order."""
        return tuple(sorted(number for name, number in self._listings if name == folder.topic))

    def list_partition(
        self, store: ObjectStore, folder: TopicFolder, partition: int
    ) -> PartitionListing:
        """Returns the segments of a partition that `look_up` has found."""
        return self._listings[folder.topic, partition]

    def describe(self, store: ObjectStore, entry: SegmentEntry) -> RemoteSegment:
        """Describes a segment with the plugin's layout, and compares the description with the
        metadata topic.

        Raises:
            InvalidManifestError: The metadata topic contradicts the description.
            ObjectNotFoundError: An object was deleted after `look_up`.
            AccessDeniedError: The store refuses to read an object that exists.
        """
        try:
            segment = self._layout.describe(store, entry)
        except AccessDeniedError:
            if _exists(store, entry):
                raise
            raise ObjectNotFoundError(_REFUSED, uri=store.uri(entry.described_by)) from None
        named = self._named[entry.segment_id]
        size = segment.objects.size_in_bytes
        has_same_end = (
            segment.end_offset == named.end_offset
            if segment.end_is_exact
            else segment.end_offset <= named.end_offset
        )
        if (
            segment.start_offset != named.start_offset
            or not has_same_end
            or size != named.segment_size_in_bytes
        ):
            raise InvalidManifestError(
                f"the objects of the segment have offsets {segment.start_offset} to"
                f" {segment.end_offset} and {size} bytes, but {REMOTE_LOG_METADATA} states offsets"
                f" {named.start_offset} to {named.end_offset} and"
                f" {named.segment_size_in_bytes} bytes"
            )
        return replace(segment, end_offset=named.end_offset, end_is_exact=True)

    def _looked_up(
        self,
        store: ObjectStore,
        key_prefix: str,
        key: TopicPartition,
        segment: RemoteLogSegmentMetadata,
    ) -> SegmentEntry | Orphan | tuple[Orphan, AccessDeniedError]:
        name = self._name(key, segment)
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
                # An object that the store hides may be required, such as a transaction index.
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
        return Orphan(tuple(keys), _MISSING, segment.start_offset)

    def _key(self, key_prefix: str, key: TopicPartition, segment: RemoteLogSegmentMetadata) -> str:
        (stem,) = islice(self._layout.stems(key_prefix, self._name(key, segment)), 1)
        return f"{stem}.{self._layout.required[-1]}"

    def _name(self, key: TopicPartition, segment: RemoteLogSegmentMetadata) -> SegmentName:
        topic, partition = key
        return SegmentName(
            topic,
            self._logs[key].topic_id,
            partition,
            segment.start_offset,
            uuid_to_text(segment.segment_id.id),
            segment.custom_metadata,
        )


def _exists(store: ObjectStore, entry: SegmentEntry) -> bool:
    """Returns whether the store still has all objects of a segment."""
    try:
        for _, info in entry.objects:
            store.head(info.key)
    except (AccessDeniedError, ObjectNotFoundError):
        return False
    return True


def _offsets_without_segment(
    segments: NamedSegments, brokers: BrokerLog
) -> Iterator[tuple[int, int]]:
    """Yields the offset ranges [start, stop) that no segment in the metadata topic has, although
    the leader no longer has them on its disk.
    """
    position = brokers.log_start
    stop = position if brokers.local_start is None else min(brokers.local_start, brokers.end)
    # Segments in deletion count, too: the topic still has them.
    for segment in sorted(
        [*segments.live, *segments.deleting], key=lambda segment: segment.start_offset
    ):
        if segment.start_offset >= stop:
            break
        if segment.start_offset > position:
            yield position, segment.start_offset
        position = max(position, segment.end_offset + 1)
    if position < stop:
        yield position, stop
