"""A partition's objects, and findings of it made short."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kts_source.auditing.report import Finding
from kts_source.planning.estimate import ARCHIVE_CLASSES, DEFAULT_CLASS, monthly_cost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kts_source.layout.layout import Orphan, SegmentEntry
    from kts_source.layout.remote_segment import ObjectRef, RemoteSegment
    from kts_source.planning.segment_catalog import ListedPartition
    from kts_source.store.object_store import ObjectInfo


@dataclass(frozen=True, slots=True)
class Place:
    """A partition of an incarnation.

    Attributes:
        sizes: Listed bytes of every object of it, by key.
        classes: Storage class of its objects, by key, where the store tells.
    """

    topic: str
    topic_id: str
    partition: int
    sizes: Mapping[str, int]
    classes: Mapping[str, str]

    def finding(
        self,
        name: str,
        start: int | None,
        stop: int | None,
        objects: Sequence[str],
        detail: str,
    ) -> Finding:
        """A finding about offsets [start, stop) and these objects."""
        stored = sum(self.sizes.get(key, 0) for key in objects)
        place = self.topic, self.topic_id, self.partition
        by_class: Counter[str] = Counter()
        for key in objects:
            by_class[self.classes.get(key, DEFAULT_CLASS)] += self.sizes.get(key, 0)
        dollars = monthly_cost(by_class)
        return Finding(name, *place, start, stop, tuple(objects), stored, detail, dollars)

    def of_segment(
        self, name: str, segment: RemoteSegment, keys: Sequence[str], detail: str
    ) -> Finding:
        """A finding about all offsets of a segment."""
        return self.finding(name, segment.start_offset, segment.stop_offset, keys, detail)


def keys_of(entry: SegmentEntry) -> tuple[str, ...]:
    """The objects of a segment."""
    return tuple(info.key for _, info in entry.objects)


def is_archived(one: ObjectInfo | ObjectRef) -> bool:
    """Whether an object must be restored before it can be read."""
    return one.storage_class in ARCHIVE_CLASSES


@dataclass(frozen=True, slots=True)
class PartitionObjects:
    """What the listing of a partition shows."""

    topic: str
    topic_id: str
    partition: int
    entries: tuple[SegmentEntry, ...]
    orphans: tuple[Orphan, ...]

    @classmethod
    def of(cls, part: ListedPartition) -> PartitionObjects:
        """Without what belongs to a plan."""
        return cls(part.topic, part.topic_id, part.partition, part.entries, part.orphans)

    @property
    def place(self) -> str:
        """Its name in the state of an audit. A folder may have been copied for another topic."""
        return f"{self.topic}-{self.topic_id}/{self.partition}"

    @property
    def stored_bytes(self) -> int:
        """All listed objects of its segments."""
        return sum(info.size for entry in self.entries for _, info in entry.objects)
