"""Defines the protocol of a tier's layout, and the listing that a layout returns for a partition.

A layout has the role of KIP-405's `RemoteStorageManager` and KIP-1254's `RemoteStorageFetcher` in
Java, reduced to the methods that a reader needs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from segment_format.errors import InvalidManifestError
from segment_format.kafka_uuid import UUID_TEXT_PATTERN
from segment_format.record.recovery import last_offset

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.store.object_store import ObjectInfo, ObjectStore
    from segment_format.errors import SegmentFormatError
    from segment_format.index.sparse_indexes import OffsetIndex

# Brokers write numbers with the digits of their locale, and `\d` matches the digits of every
# script.
_STEM: Final = re.compile(rf"(\d{{20}})-({UUID_TEXT_PATTERN.pattern})")
_MAX_OFFSET: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TopicFolder:
    """A topic with one of its topic ids. A topic that is deleted and created again has several
    topic ids, called incarnations.

    Attributes:
        folder: Key prefix of all partitions; empty or ending in a slash. Several incarnations have
            the same prefix if the layout has no folder per topic.
    """

    topic: str
    topic_id: str
    folder: str


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """A segment in a listing: the facts in the names of its objects.

    Attributes:
        described_by: Key of the object that describes the segment, such as its manifest; for error
            texts.
        objects: Pairs of a suffix (`log`, `indexes`, …) and the listed object with this suffix.
        next_base: First offset of the next listed segment, if the layout needs it to compute the
            end of this segment.
    """

    topic: str
    topic_id: str
    partition: int
    base_offset: int
    segment_id: str
    described_by: str
    objects: tuple[tuple[str, ObjectInfo], ...]
    next_base: int | None = field(default=None, compare=False)

    def object(self, suffix: str) -> ObjectInfo | None:
        """Returns the listed object with this suffix."""
        return next((info for name, info in self.objects if name == suffix), None)


@dataclass(frozen=True, slots=True)
class Orphan:
    """Listed objects that do not form a complete segment. They are reported, but never read.

    Attributes:
        base_offset: First offset of the incomplete segment; `None` if no object name contains it.
        described: The incomplete segment, which `Layout.describe` accepts; `None` if the object
            that describes it does not exist. The describing object is uploaded last, so the missing
            objects are lost or being deleted.
        written_ms: Time at which the newest of the objects was written, in ms since 1970; `None` if
            the store does not report it.
        sizes: Bytes of each object, if known from a listing.
    """

    keys: tuple[str, ...]
    reason: str
    base_offset: int | None = field(default=None, compare=False)
    described: SegmentEntry | None = field(default=None, compare=False)
    written_ms: int | None = field(default=None, compare=False)
    sizes: tuple[int, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return f"{', '.join(self.keys)} ({self.reason})"


@dataclass(frozen=True, slots=True)
class PartitionListing:
    """The listing of one partition. Segments are in order of base offset, then of segment id.

    Attributes:
        facts: Further facts that the plan of the partition depends on, such as facts from
            checkpoints of a log directory. If they change, the partition is planned again.
    """

    segments: tuple[SegmentEntry, ...]
    orphans: tuple[Orphan, ...]
    facts: tuple[object, ...] = ()


class Layout(Protocol):
    """The layout in which a storage plugin stores segments. Each plan uses its own instance,
    because a layout may have state.

    Attributes:
        name: Value of option `layout`.
        folder_pattern: Pattern of the folders below the key prefix, for error texts.
        format_versions: Versions of the stored form that the layout can read.
    """

    name: str
    folder_pattern: str
    format_versions: tuple[str, ...]

    def topic_folders(
        self, store: ObjectStore, key_prefix: str, topic: str | None
    ) -> tuple[TopicFolder, ...]:
        """Returns the incarnations of `topic` under the key prefix; of every topic if `topic` is
        `None`.
        """

    def partitions(self, store: ObjectStore, folder: TopicFolder) -> tuple[int, ...]:
        """Returns the numbers of the partitions of an incarnation that have objects, in ascending
        order.
        """

    def list_partition(
        self, store: ObjectStore, folder: TopicFolder, partition: int
    ) -> PartitionListing:
        """Lists the segments of one partition. Most layouts use only the names of objects, and read
        no object.
        """

    def describe(self, store: ObjectStore, entry: SegmentEntry) -> RemoteSegment:
        """Returns the description of a listed segment. Reads its manifest or similar objects.

        Raises:
            SegmentFormatError: The objects that describe the segment are not valid.
            ObjectNotFoundError: The objects that describe the segment were deleted after the
                listing.
        """


@dataclass(frozen=True, slots=True)
class SegmentName:
    """The facts about a segment that brokers record and that determine the keys of its objects.

    Attributes:
        custom_metadata: Metadata that the storage plugin gave to the broker, or `None`.
    """

    topic: str
    topic_id: str
    partition: int
    base_offset: int
    segment_id: str
    custom_metadata: bytes | None


@runtime_checkable
class NamingLayout(Layout, Protocol):
    """A layout whose object keys, `<stem>.<suffix>`, can be computed without a listing. All objects
    of a partition are in one folder, and the order of their keys is the order of their base
    offsets.

    Attributes:
        required: Suffixes of the objects that a complete segment has. The object with the last
            suffix is uploaded last.
        optional: Suffixes of further objects that a segment may have.
        described_by: Suffix of the object that describes a segment, for error texts.
    """

    required: tuple[str, ...]
    optional: tuple[str, ...]
    described_by: str

    def partition_folder(self, folder: TopicFolder, partition: int) -> str:
        """Returns the prefix of all keys of a partition, with its final slash."""

    def grouped(
        self, infos: Sequence[ObjectInfo], folder: TopicFolder, partition: int
    ) -> PartitionListing:
        """Groups the listed objects of a partition's folder by segment."""

    def stems(self, key_prefix: str, name: SegmentName) -> tuple[str, ...]:
        """Returns the possible stems of a segment's keys, the most likely first. A stem is a key
        without its suffix. If objects exist for several stems, the first of these is used.
        """


def require_format_version(layout: Layout, version: str) -> None:
    """Raises InvalidManifestError if a layout cannot read this version of the stored form."""
    if version not in layout.format_versions:
        supported = ", ".join(layout.format_versions)
        raise InvalidManifestError(
            f"format version {version[:40]!r} of layout {layout.name!r} is not supported;"
            f" supported: {supported}"
        )


def group_segments(
    infos: Iterable[ObjectInfo],
    folder: TopicFolder,
    partition: int,
    *,
    prefix: str,
    suffixes: Collection[str],
    required: Sequence[str],
    described_by: str,
) -> PartitionListing:
    """Groups a listing of objects `<base offset, 20 digits>-<segment id>.<suffix>` by segment.

    Args:
        infos: The listing, preferably in order of keys.
        folder: Folder of the topic.
        partition: Number of the partition.
        prefix: Common prefix of all keys in the listing.
        suffixes: Suffixes of a segment's objects.
        required: Suffixes of the objects that a complete segment has. If the object with the last
            suffix exists, the upload was complete.
        described_by: Suffix of the object that errors name; by default, the object with the last
            suffix in `required`.
    """
    by_segment: dict[tuple[int, str], dict[str, ObjectInfo]] = defaultdict(dict)
    orphans = []
    segment, last_stem = None, None
    for info in infos:
        stem, _, suffix = info.key.rpartition(".")
        if stem != last_stem:  # the objects of a segment are adjacent in most listings
            segment, last_stem = _parse_stem(stem, len(prefix)), stem
        if segment is None or suffix not in suffixes:
            reason = "not the name of a segment object"
            orphans.append(Orphan((info.key,), reason, sizes=(info.size,)))
        else:
            by_segment[segment][suffix] = info
    segments = []
    for (base_offset, segment_id), objects in sorted(by_segment.items(), key=itemgetter(0)):
        made = segment_or_orphan(
            (folder.topic, folder.topic_id, partition, base_offset, segment_id),
            objects,
            required=required,
            described_by=described_by,
        )
        if isinstance(made, Orphan):
            orphans.append(made)
        else:
            segments.append(made)
    return PartitionListing(tuple(segments), tuple(orphans))


def segment_or_orphan(
    identity: tuple[str, str, int, int, str],
    objects: Mapping[str, ObjectInfo],
    *,
    required: Sequence[str],
    described_by: str,
) -> SegmentEntry | Orphan:
    """Returns the segment that consists of the objects; an orphan if required objects are missing.
    `identity` is topic, topic id, partition, base offset and segment id; `required` and
    `described_by` are arguments of `group_segments`.
    """
    entry = None
    if (last := objects.get(required[-1])) is not None:
        entry = SegmentEntry(
            *identity, objects.get(described_by, last).key, tuple(sorted(objects.items()))
        )
    missing = [suffix for suffix in required if suffix not in objects]
    if entry is not None and not missing:
        return entry
    why = "lost" if entry else "an upload that did not finish"
    times = [info.last_modified_ms for info in objects.values()]
    return Orphan(
        tuple(info.key for info in objects.values()),
        f"no .{', no .'.join(missing)}: {why}, or a delete is running",
        identity[3],
        entry,
        None if None in times else max(time for time in times if time is not None),
        tuple(info.size for info in objects.values()),
    )


def _parse_stem(stem: str, start: int) -> tuple[int, str] | None:
    """Parses the base offset and the segment id from `stem[start:]`; returns `None` if this text
    has another form.
    """
    match = _STEM.fullmatch(stem, start)
    if match is None or int(match[1]) > _MAX_OFFSET:
        return None
    return int(match[1]), match[2]


def read_whole(
    store: ObjectStore, info: ObjectInfo, at_most: int, too_large: type[SegmentFormatError]
) -> bytes:
    """Reads a listed object; raises `too_large` if it has more than `at_most` bytes."""
    if info.size > at_most:
        raise too_large(f"{info.key} has {info.size} bytes, but may have at most {at_most} bytes")
    return bytes(store.get_range(info.key, 0, info.size, version=info.version))


def read_last_offset(
    store: ObjectStore,
    log: ObjectInfo,
    base_offset: int,
    index: OffsetIndex | None = None,
    *,
    size: int | None = None,
    newest: int | None = None,
    next_base: int | None = None,
) -> int:
    """Returns the last offset of the last batch of a segment's log. Reads only the batches from the
    last entry of the offset index on.

    Args:
        store: Store of the log.
        log: The `.log` object, as listed.
        base_offset: Base offset of the segment.
        index: Offset index of the segment; `None` if it cannot be used. Ignored if its last entry
            is not below `size`.
        size: Size of the log in bytes; by default the size of the object.
        newest: Offset of the last entry of the time index; `None` if the time index is empty.
        next_base: Base offset of the next segment; `None` if there is none.

    Raises:
        SegmentFormatError: See `segment_format.record.recovery.last_offset`.
    """
    size = log.size if size is None else size
    position, indexed = 0, None
    if index and int(index.positions[-1]) < size:
        position, indexed = int(index.positions[-1]), int(index.offsets[-1])
    return last_offset(
        partial(store.get_range, log.key, version=log.version),
        size,
        position,
        base_offset=base_offset,
        indexed=indexed,
        newest=newest,
        next_base=next_base,
    )
