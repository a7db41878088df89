"""What a tier's layout must tell: which segments there are, and how to read each of them.

A layout plays the part that KIP-405's `RemoteStorageManager` and KIP-1254's `RemoteStorageFetcher`
play in Java, reduced to what a reader needs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from segment_format.errors import InvalidManifestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.store.object_store import ObjectInfo, ObjectStore


@dataclass(frozen=True, slots=True)
class TopicFolder:
    """One incarnation of a topic: the folder that holds its partitions.

    Attributes:
        folder: Key prefix of its own, or one that it shares with others where there is a folder for
            every partition; empty or ending in a slash.
    """

    topic: str
    topic_id: str
    folder: str


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """A segment known by its name alone: whole, or one of `PartitionListing.orphans` that is
    described.

    Attributes:
        described_by: Key of the object that describes the segment, for error texts.
        objects: Suffix (`log`, `indexes`, …) and the listed object.
        next_base: First offset of the next listed segment, where the layout needs it to know where
            this one ends.
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
        """The listed object with this suffix."""
        return next((info for name, info in self.objects if name == suffix), None)


@dataclass(frozen=True, slots=True)
class Orphan:
    """Listed objects that do not make a segment; they are reported and never read.

    Attributes:
        base_offset: Where the segment begins that they are of; `None` where no name tells.
        described: That segment, where what describes it is there: it was whole once, so what is
            missing is lost, or being deleted. `Layout.describe` must tell its facts all the same.
        written_ms: When the last of the objects was written; `None` where the store does not tell.
        sizes: Bytes of each of the objects, where a listing told.
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
    """What the listing of one partition shows, segments in order of (base offset, segment id).

    Attributes:
        facts: What the segments depend on beyond their own objects, such as checkpoints of a log
            directory. A look at the partition is repeated when they change.
    """

    segments: tuple[SegmentEntry, ...]
    orphans: tuple[Orphan, ...]
    facts: tuple[object, ...] = ()


class Layout(Protocol):
    """How a storage plugin lays segments out. An instance is of one plan; most hold no state.

    Attributes:
        name: Value of option `layout`.
        folder_pattern: Shape of the folders below the key prefix, for error texts.
        format_versions: Versions of the stored form that it can read.
    """

    name: str
    folder_pattern: str
    format_versions: tuple[str, ...]

    def topic_folders(
        self, store: ObjectStore, key_prefix: str, topic: str | None
    ) -> tuple[TopicFolder, ...]:
        """The incarnations of `topic`, or of every topic, under the key prefix."""

    def partitions(self, store: ObjectStore, folder: TopicFolder) -> tuple[int, ...]:
        """Partitions of an incarnation that have objects, ascending."""

    def list_partition(
        self, store: ObjectStore, folder: TopicFolder, partition: int
    ) -> PartitionListing:
        """The segments of one partition, by name alone."""

    def describe(self, store: ObjectStore, entry: SegmentEntry) -> RemoteSegment:
        """The facts of a listed segment; reads its manifest or the like.

        Raises:
            SegmentFormatError: What describes the segment is not valid.
            ObjectNotFoundError: It has gone since the listing.
        """


@dataclass(frozen=True, slots=True)
class SegmentName:
    """What brokers know of a segment that its objects are named by.

    Attributes:
        custom_metadata: What the storage plugin had the broker keep of it, or `None`.
    """

    topic: str
    topic_id: str
    partition: int
    base_offset: int
    segment_id: str
    custom_metadata: bytes | None


@runtime_checkable
class NamingLayout(Layout, Protocol):
    """A layout that tells the keys of a segment's objects, `<stem>.<suffix>`, without a listing.
    Those of a partition are in one folder, in the order of base offsets.

    Attributes:
        required: Suffixes that a whole segment has; where the last is, the others were.
        optional: Further suffixes that it may have.
        described_by: Suffix of the object that errors name.
    """

    required: tuple[str, ...]
    optional: tuple[str, ...]
    described_by: str

    def partition_folder(self, folder: TopicFolder, partition: int) -> str:
        """What all keys of a partition begin with, with the slash at its end."""

    def grouped(
        self, infos: Sequence[ObjectInfo], folder: TopicFolder, partition: int
    ) -> PartitionListing:
        """The segments of one partition, from the listing of its folder."""

    def stems(self, key_prefix: str, name: SegmentName) -> tuple[str, ...]:
        """Where the segment may be: the first stem that has objects is the one."""


def require_format_version(layout: Layout, version: str) -> None:
    """Refuses a stored form that a layout does not know.

    Raises:
        InvalidManifestError: Names the versions that it does.
    """
    if version not in layout.format_versions:
        supported = ", ".join(layout.format_versions)
        raise InvalidManifestError(
            f"format version {version[:40]!r} of layout {layout.name!r} is not supported;"
            f" supported: {supported}"
        )
