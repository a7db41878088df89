"""The layout of Aiven's tiered storage plugin: three objects a segment, described by a JSON
manifest.

    <key.prefix><topic>-<topicId>/<partition>/<baseOffset, 20 digits>-<segmentId>.{log,indexes,rsm-
    manifest}

The manifest is uploaded last, so a manifest stands for a complete segment unless a delete is under
way. Source: `ObjectKeyFactory` and `RemoteStorageManager` of the plugin.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Final, TypeAlias

from kts_source.errors import KeyPrefixError
from kts_source.layout.layout import Orphan, PartitionListing, SegmentEntry, TopicFolder
from kts_source.layout.remote_segment import (
    Envelope,
    IndexType,
    ObjectRef,
    RemoteSegment,
    SegmentObjects,
    StoredIndex,
)
from segment_format.errors import InvalidManifestError
from segment_format.kafka_uuid import uuid_to_text
from segment_format.manifest.object_key import parse_segment_file_name, parse_topic_directory
from segment_format.manifest.segment_manifest import MANIFEST_VERSION, SegmentManifest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kts_source.store.object_store import ObjectInfo, ObjectStore

_LOG: Final = "log"
_INDEXES: Final = "indexes"
_MANIFEST: Final = "rsm-manifest"
_SUFFIXES: Final = (_LOG, _INDEXES, _MANIFEST)
_IN_ORDER: Final = tuple(sorted(_SUFFIXES))
_ENDINGS: Final = tuple(f".{suffix}" for suffix in _IN_ORDER)
_OFFSET_DIGITS: Final = 20
_USUAL_STEM: Final = re.compile(r"[0-9]{20}-[A-Za-z0-9_-]{21}[AQgw]")
_MAX_OFFSET_DIGITS: Final = f"{(1 << 63) - 1:020d}"
MAX_MANIFEST_BYTES: Final = 16 << 20  # the plugin bounds the chunk list to 10 MiB before base64


class AivenLayout:
    """Segments as the plugin's `kafka` segment format stores them."""

    name = "aiven"
    folder_pattern = "<topic>-<topic id>/"
    format_versions: tuple[str, ...] = (MANIFEST_VERSION,)

    def topic_folders(
        self, store: ObjectStore, key_prefix: str, topic: str | None
    ) -> tuple[TopicFolder, ...]:
        """Folders `<prefix><topic>-<topicId>/`; `orders-` also lists `orders-eu-…`, which is
        filtered out here.
        """
        folders = []
        for key in store.list_folders(key_prefix + (f"{topic}-" if topic else "")):
            parsed = parse_topic_directory(key[len(key_prefix) : -1])
            if parsed is not None and (topic is None or parsed[0] == topic):
                folders.append(TopicFolder(parsed[0], uuid_to_text(parsed[1]), key))
        return tuple(sorted(folders, key=lambda folder: (folder.topic, folder.topic_id)))

    def partitions(self, store: ObjectStore, folder: TopicFolder) -> tuple[int, ...]:
        """Folders below the topic's that are named by a number."""
        names = (key[len(folder.folder) : -1] for key in store.list_folders(folder.folder))
        return tuple(sorted(int(name) for name in names if name.isascii() and name.isdigit()))

    def list_partition(
        self, store: ObjectStore, folder: TopicFolder, partition: int
    ) -> PartitionListing:
        """Groups the objects of a partition by segment; only those with all three are segments."""
        infos = list(store.list_objects(f"{folder.folder}{partition}/"))
        return listed_segments(infos, folder, partition)

    def describe(self, store: ObjectStore, entry: SegmentEntry) -> RemoteSegment:
        """Reads the manifest and checks it against what is listed."""
        info = entry.object(_MANIFEST)
        assert info is not None
        data = store.get_range(info.key, 0, _bounded(info), version=info.version)
        return _segment(entry, SegmentManifest.from_json(bytes(data)))


def listed_segments(
    infos: Sequence[ObjectInfo], folder: TopicFolder, partition: int
) -> PartitionListing:
    """What `grouped_segments` makes of a listing, fast where three objects in a row are a segment
    with the names that the plugin gives them: as nearly all are in a large tier.
    """
    start = len(folder.folder) + len(f"{partition}/")
    first, second, third = _ENDINGS
    segments: list[SegmentEntry] = []
    rest = []
    before = ""
    at, last = 0, len(infos) - len(_ENDINGS)
    while at <= last:
        indexes, log, manifest = infos[at], infos[at + 1], infos[at + 2]
        whole = log.key[: -len(second)]
        stem = whole[start:]
        if (
            indexes.key != whole + first
            or log.key != whole + second
            or manifest.key != whole + third
            or stem <= before
            or _USUAL_STEM.fullmatch(stem) is None
            or stem[:_OFFSET_DIGITS] > _MAX_OFFSET_DIGITS
        ):
            rest.append(indexes)
            at += 1
            continue
        before = stem
        segments.append(
            SegmentEntry.listed(
                folder,
                partition,
                int(stem[:_OFFSET_DIGITS]),
                stem[_OFFSET_DIGITS + 1 :],
                manifest,
                ((_INDEXES, indexes), (_LOG, log), (_MANIFEST, manifest)),
            )
        )
        at += 3
    rest += infos[at:]
    if not rest:
        return PartitionListing(tuple(segments), ())
    known = {(segment.base_offset, segment.segment_id) for segment in segments}
    found, orphans = _grouped(rest, start)
    if not known.isdisjoint(found):
        return grouped_segments(infos, folder, partition)
    others = _listing(found, orphans, folder, partition)
    segments += others.segments
    segments.sort(key=lambda segment: (segment.base_offset, segment.segment_id))
    return PartitionListing(tuple(segments), others.orphans)


def grouped_segments(
    infos: Iterable[ObjectInfo], folder: TopicFolder, partition: int
) -> PartitionListing:
    """The segments of a partition's listing, and what belongs to none."""
    found, orphans = _grouped(infos, len(folder.folder) + len(f"{partition}/"))
    return _listing(found, orphans, folder, partition)


_Groups: TypeAlias = dict[tuple[int, str], dict[str, "ObjectInfo"]]


def _grouped(infos: Iterable[ObjectInfo], start: int) -> tuple[_Groups, list[Orphan]]:
    """Objects by base offset, segment id and suffix, and those of other names."""
    found: _Groups = defaultdict(dict)
    orphans = []
    for info in infos:
        parsed = parse_segment_file_name(info.key[start:])
        if parsed is None:
            orphans.append(Orphan((info.key,), "not the name of a segment object"))
        else:
            found[parsed[0], uuid_to_text(parsed[1])][parsed[2]] = info
    return found, orphans


def _listing(
    found: _Groups, orphans: list[Orphan], folder: TopicFolder, partition: int
) -> PartitionListing:
    segments = []
    for base, id_text in sorted(found):
        objects = found[base, id_text]
        if len(objects) < len(_SUFFIXES):
            missing = [suffix for suffix in _SUFFIXES if suffix not in objects]
            described = None
            if _MANIFEST in objects:
                ordered = tuple(objects.items())
                described = SegmentEntry.listed(
                    folder, partition, base, id_text, objects[_MANIFEST], ordered
                )
            orphans.append(Orphan.of(objects, missing, base_offset=base, described=described))
            continue
        ordered = tuple([(suffix, objects[suffix]) for suffix in _IN_ORDER])
        segments.append(
            SegmentEntry.listed(folder, partition, base, id_text, objects[_MANIFEST], ordered)
        )
    return PartitionListing(tuple(segments), tuple(orphans))


def _bounded(info: ObjectInfo) -> int:
    if info.size > MAX_MANIFEST_BYTES:
        raise InvalidManifestError(
            f"manifest of {info.size} bytes; at most {MAX_MANIFEST_BYTES} are read"
        )
    return info.size


def _segment(entry: SegmentEntry, manifest: SegmentManifest) -> RemoteSegment:
    metadata = manifest.metadata
    if metadata is None:
        raise InvalidManifestError(
            "manifest without remoteLogSegmentMetadata (written before September 2023): its"
            " offsets are unknown"
        )
    named = metadata.segment_id.topic_id_partition
    if (named.topic, named.partition, metadata.start_offset) != (
        entry.topic,
        entry.partition,
        entry.base_offset,
    ):
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
            f"manifest is of {named.topic}-{named.partition} from offset {metadata.start_offset},"
            f" its name of {entry.topic}-{entry.partition} from {entry.base_offset}"
        )
    size = manifest.chunk_index.transformed_size
    listed = entry.object(_LOG)
    if listed is None:  # of a damaged segment, what the manifest promises
        log = ObjectRef(f"{entry.described_by.removesuffix(_MANIFEST)}{_LOG}", size, None)
    else:
        log = ObjectRef.of(listed)
    if size != log.size:
        raise InvalidManifestError(
            f"the chunks add up to {size} bytes, but the object {log.key} has {log.size}:"
            f" truncated, or not of this manifest"
        )
    encryption = manifest.encryption
    indexes = entry.object(_INDEXES)
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
            log=log,
            chunk_index=manifest.chunk_index,
            compression=manifest.compression,
            encryption=None
            if encryption is None
            else Envelope(encryption.data_key, encryption.aad),
            indexes={} if indexes is None else _stored_indexes(manifest, ObjectRef.of(indexes)),
        ),
    )


def _stored_indexes(manifest: SegmentManifest, indexes: ObjectRef) -> dict[IndexType, StoredIndex]:
    ranges = manifest.segment_indexes
    stored = {}
    for kind, part in (
        (IndexType.OFFSET, ranges.offset),
        (IndexType.TIMESTAMP, ranges.timestamp),
        (IndexType.PRODUCER_SNAPSHOT, ranges.producer_snapshot),
        (IndexType.LEADER_EPOCH, ranges.leader_epoch),
        (IndexType.TRANSACTION, ranges.transaction),
    ):
        if part is None:
            continue
        if part.position + part.size > indexes.size:
            raise InvalidManifestError(
                f"the {kind.value} index ends at byte {part.position + part.size}, but the object"
                f" {indexes.key} has {indexes.size}"
            )
        stored[kind] = StoredIndex(indexes, part.position, part.position + part.size)
    return stored
