"""The layout of Aiven's tiered storage plugin: a log, an index and a manifest per segment.

    <key.prefix><topic>-<topicId>/<partition>/<baseOffset, 20 digits>-<segmentId>.<suffix>
    suffixes: log, indexes, rsm-manifest

The manifest of a segment is uploaded last, so a segment with a manifest is complete unless it is
being deleted.

A restore with zero copy copies only the manifest to the folder of another topic and topic id. The
manifest still names the original topic, so the log and the indexes are found in its folder. The
plugin finds them by the object key in the segment's custom metadata.

Source: `ObjectKeyFactory` and `RemoteStorageManager` of the plugin.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final

from kts_source.errors import KeyPrefixError
from kts_source.layout.layout import (
    PartitionListing,
    SegmentEntry,
    TopicFolder,
    group_segments,
    read_whole,
)
from kts_source.layout.remote_segment import (
    IndexType,
    ObjectRef,
    RemoteSegment,
    SegmentObjects,
    StoredIndexes,
)
from segment_format.errors import InvalidManifestError
from segment_format.kafka_uuid import uuid_to_text
from segment_format.manifest.object_names import (
    SUFFIXES,
    CustomMetadata,
    parse_custom_metadata,
    parse_topic_directory,
)
from segment_format.manifest.segment_manifest import (
    MANIFEST_VERSION,
    MAX_MANIFEST_BYTES,
    SegmentManifest,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kts_source.layout.layout import SegmentName
    from kts_source.store.object_store import ObjectInfo, ObjectStore
    from segment_format.manifest.segment_manifest import IndexRange
    from segment_format.metadata.model import RemoteLogSegmentMetadata

log = logging.getLogger(__name__)

LOG_SUFFIX, INDEXES_SUFFIX, MANIFEST_SUFFIX = SUFFIXES
_USUAL_STEM: Final = re.compile(r"00[0-9]{18}-[A-Za-z0-9_-]{21}[AQgw]")


class AivenLayout:
    """Reads segments that the plugin stores in its segment format `kafka`."""

    name = "aiven"
    folder_pattern = "<topic>-<topic id>/"
    format_versions: tuple[str, ...] = (MANIFEST_VERSION,)
    required: tuple[str, ...] = SUFFIXES
    optional: tuple[str, ...] = ()
    described_by = MANIFEST_SUFFIX

    def topic_folders(
        self, store: ObjectStore, key_prefix: str, topic: str | None
    ) -> tuple[TopicFolder, ...]:
        """Returns the topic folders `<prefix><topic>-<topicId>/`. Skips other topics with the same
        prefix: the listing of `orders-` for topic `orders` also contains `orders-eu-…`.
        """
        folders = []
        for key in store.list_folders(key_prefix + (f"{topic}-" if topic else "")):
            parsed = parse_topic_directory(key[len(key_prefix) : -1])
            if parsed is not None and (topic is None or parsed[0] == topic):
                folders.append(TopicFolder(parsed[0], uuid_to_text(parsed[1]), key))
        return tuple(sorted(folders, key=lambda folder: (folder.topic, folder.topic_id)))

    def partitions(self, store: ObjectStore, folder: TopicFolder) -> tuple[int, ...]:
        """Returns the partition numbers, which are the names of the folders in a topic's folder."""
        names = (key[len(folder.folder) : -1] for key in store.list_folders(folder.folder))
        return tuple(sorted(int(name) for name in names if name.isascii() and name.isdigit()))

    def list_partition(
        self, store: ObjectStore, folder: TopicFolder, partition: int
    ) -> PartitionListing:
        """Groups the objects of a partition by segment. A complete segment has a log, an index
        object and a manifest.
        """
        infos = list(store.list_objects(self.partition_folder(folder, partition)))
        return self.grouped(infos, folder, partition)

    def partition_folder(self, folder: TopicFolder, partition: int) -> str:
        """Returns the folder of a partition, inside the topic's folder."""
        return f"{folder.folder}{partition}/"

    def grouped(
        self, infos: Sequence[ObjectInfo], folder: TopicFolder, partition: int
    ) -> PartitionListing:
        """Groups the listed objects of a partition's folder by segment."""
        prefix = self.partition_folder(folder, partition)
        segments = _usual_segments(infos, folder, partition, len(prefix))
        if segments is not None:
            return PartitionListing(tuple(segments), ())
        return group_segments(
            infos,
            folder,
            partition,
            prefix=prefix,
            suffixes=SUFFIXES,
            required=self.required,
            described_by=self.described_by,
        )

    def stems(self, key_prefix: str, name: SegmentName) -> tuple[str, ...]:
        """Returns one or two possible stems of the segment's keys: a prefix, followed by the key
        without its suffix.

        The custom metadata of the segment may record the prefix, the key, both or neither. The
        first stem uses the recorded values, and `key_prefix` and the plugin's default key for
        values that are not recorded. Custom metadata that cannot be parsed is logged and ignored.
        If the recorded prefix differs from `key_prefix`, the second stem consists of `key_prefix`
        and the key of the first stem, because the tier may have been copied to another path.
        """
        try:
            recorded = parse_custom_metadata(name.custom_metadata)
        except InvalidManifestError as error:  # written by another plugin
            log.warning("segment %s: custom metadata: %s", name.segment_id, error)
            recorded = CustomMetadata()
        stem = recorded.object_key
        if stem is None:
            folder = f"{name.topic}-{name.topic_id}/{name.partition}"
            stem = f"{folder}/{name.base_offset:020d}-{name.segment_id}"
        prefix = key_prefix if recorded.object_prefix is None else recorded.object_prefix
        return tuple(f"{prefix}{stem}" for prefix in dict.fromkeys((prefix, key_prefix)))

    def describe(self, store: ObjectStore, entry: SegmentEntry) -> RemoteSegment:
        """Reads the manifest of a segment and compares it with the listing."""
        return segment_of(entry, self.manifest(store, entry))

    def manifest(self, store: ObjectStore, entry: SegmentEntry) -> SegmentManifest:
        """Reads the manifest of a listed segment, without comparing it with the listing.

        Raises:
            InvalidManifestError: The object is not a manifest.
            ObjectNotFoundError: The manifest was deleted after the listing.
        """
        info = entry.object(MANIFEST_SUFFIX)
        assert info is not None
        data = read_whole(store, info, MAX_MANIFEST_BYTES, InvalidManifestError)
        return SegmentManifest.from_json(data)


def _usual_segments(
    infos: Sequence[ObjectInfo], folder: TopicFolder, partition: int, start: int
) -> list[SegmentEntry] | None:
    """Groups a listing by segment like `group_segments`, but faster. Returns `None` if a segment
    does not have exactly three objects, or its objects are not adjacent in the listing.
    """
    if len(infos) % 3:
        return None
    segments = []
    before = ""
    for indexes, log, manifest in zip(infos[::3], infos[1::3], infos[2::3], strict=True):
        key = log.key[:-4]
        stem = key[start:]
        if (
            indexes.key != key + ".indexes"
            or log.key != key + ".log"
            or manifest.key != key + ".rsm-manifest"
            or stem <= before
            or _USUAL_STEM.fullmatch(stem) is None
        ):
            return None
        before = stem
        segments.append(
            SegmentEntry(
                folder.topic,
                folder.topic_id,
                partition,
                int(stem[:20]),
                stem[21:],
                manifest.key,
                ((INDEXES_SUFFIX, indexes), (LOG_SUFFIX, log), (MANIFEST_SUFFIX, manifest)),
            )
        )
    return segments


def segment_of(entry: SegmentEntry, manifest: SegmentManifest) -> RemoteSegment:
    """Compares a listed segment with its manifest, and returns the description of the segment.

    Raises:
        InvalidManifestError: Listing and manifest contradict each other, or the manifest has no
            offsets.
        KeyPrefixError: The manifest names another topic: the key prefix of the scan is too short.
    """
    metadata = manifest.metadata
    if metadata is None:
        raise InvalidManifestError(
            "the manifest has no remoteLogSegmentMetadata, like manifests written before September"
            " 2023, so the offsets of the segment are unknown"
        )
    is_copy = is_copied(entry, metadata)
    _check_identity(entry, metadata, is_copy=is_copy)
    size = manifest.chunk_index.transformed_size
    log = entry.object(LOG_SUFFIX)
    stem = _stem(entry, metadata) if is_copy else entry.described_by.removesuffix(MANIFEST_SUFFIX)
    # If the log object is missing or in another folder, use the size in the manifest.
    ref = ObjectRef(stem + LOG_SUFFIX, size, None) if log is None else ObjectRef.of(log)
    if size != ref.size:
        raise InvalidManifestError(
            f"the chunks add up to {size} bytes, but the object {ref.key} has {ref.size}"
            " bytes: the object was truncated, or belongs to another manifest"
        )
    listed = entry.object(INDEXES_SUFFIX)
    indexes = None if listed is None else ObjectRef.of(listed)
    if is_copy and log is None:
        indexes = ObjectRef(stem + INDEXES_SUFFIX, manifest.segment_indexes.transformed_size, None)
    return RemoteSegment(
        topic=entry.topic,
        topic_id=entry.topic_id,
        partition=entry.partition,
        segment_id=entry.segment_id,
        start_offset=metadata.start_offset,
        end_offset=metadata.end_offset,
        max_timestamp_ms=metadata.max_timestamp_ms,
        event_timestamp_ms=metadata.event_timestamp_ms,
        leader_epochs=metadata.segment_leader_epochs,
        objects=SegmentObjects(
            log=ref,
            chunk_index=manifest.chunk_index,
            compression=manifest.compression,
            encryption=manifest.encryption,
            indexes={} if indexes is None else _stored_indexes(manifest, indexes, ref),
        ),
    )


def is_copied(entry: SegmentEntry, metadata: RemoteLogSegmentMetadata) -> bool:
    """Returns whether the manifest describes the same segment of another topic id, whose log is not
    in the folder of this topic id.
    """
    segment_id = metadata.segment_id
    log = entry.object(LOG_SUFFIX)
    own_log = entry.described_by.removesuffix(MANIFEST_SUFFIX) + LOG_SUFFIX
    return (
        uuid_to_text(segment_id.topic_id_partition.topic_id) != entry.topic_id
        and uuid_to_text(segment_id.id) == entry.segment_id
        and (log is None or log.key != own_log or _folder_of(entry) not in entry.described_by)
    )


def _check_identity(
    entry: SegmentEntry, metadata: RemoteLogSegmentMetadata, *, is_copy: bool
) -> None:
    named = metadata.segment_id.topic_id_partition
    expected = (named.topic if is_copy else entry.topic, entry.partition, entry.base_offset)
    if (named.topic, named.partition, metadata.start_offset) != expected:
        if named.topic != entry.topic and entry.topic.endswith(named.topic):
            before = entry.described_by.rpartition(f"{entry.topic}-{entry.topic_id}/")[0]
            prefix = before + entry.topic.removesuffix(named.topic)
            raise KeyPrefixError(
                f"the manifest is of topic {named.topic!r}; did you mean keyPrefix {prefix!r}?",
                key_prefix=prefix,
                topic=entry.topic,
                uri=entry.described_by,
            )
        raise InvalidManifestError(
            f"the manifest describes {named.topic}-{named.partition} from offset"
            f" {metadata.start_offset}, but its name states {entry.topic}-{entry.partition} from"
            f" offset {entry.base_offset}"
        )


def _stem(entry: SegmentEntry, metadata: RemoteLogSegmentMetadata) -> str:
    """Returns the beginning of the keys of the log and the indexes, up to the dot. They are in the
    folder of the topic that the copied manifest names.
    """
    named = metadata.segment_id.topic_id_partition
    stem = entry.described_by.removesuffix(MANIFEST_SUFFIX)
    prefix, own_folder, name = stem.rpartition(_folder_of(entry))
    if not own_folder:  # the custom metadata led to the manifest in the original folder
        return stem
    return f"{prefix}{named.topic}-{uuid_to_text(named.topic_id)}/{named.partition}/{name}"


def _folder_of(entry: SegmentEntry) -> str:
    return f"{entry.topic}-{entry.topic_id}/{entry.partition}/"


_INDEX_FIELDS: Final = tuple((kind, kind.name.lower()) for kind in IndexType)


def _stored_indexes(manifest: SegmentManifest, indexes: ObjectRef, log: ObjectRef) -> StoredIndexes:
    ranges = manifest.segment_indexes
    stored = []
    for kind, field in _INDEX_FIELDS:
        span: IndexRange | None = getattr(ranges, field)
        if span is None:
            continue
        if span.stop > indexes.size:
            raise InvalidManifestError(
                f"the {kind.value} index ends at byte {span.stop}, but the object {indexes.key} has"
                f" only {indexes.size} bytes"
            )
        stored.append((kind, span.position, span.stop))
    return StoredIndexes(indexes, stored, log)
