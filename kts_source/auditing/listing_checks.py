"""The listed objects of a partition, and the checks that need only the listing."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from kts_source.auditing.report import Finding
from kts_source.errors import TieredKafkaError
from kts_source.layout.aiven import INDEXES_SUFFIX, LOG_SUFFIX
from kts_source.layout.layout import Orphan
from kts_source.planning.estimate import ARCHIVE_CLASSES, DEFAULT_CLASS, monthly_cost
from segment_format.errors import SegmentFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence, Set
    from concurrent.futures import Executor

    from kts_source.layout.aiven import AivenLayout
    from kts_source.layout.layout import SegmentEntry
    from kts_source.layout.remote_segment import ObjectRef, RemoteSegment
    from kts_source.planning.lineage import Hole
    from kts_source.planning.segment_catalog import ListedPartition
    from kts_source.store.object_store import ObjectInfo, ObjectStore

_UNREADABLE: Final = (
    "its manifest cannot be read: delete no object of this segment in any folder, because the"
    " manifest may be a copy of a restore with zero copy"
)


PartitionKey = tuple[str, str, int]
"""Topic, topic id and partition."""


@dataclass(frozen=True)
class PartitionObjects:
    """The listed objects of a partition.

    Attributes:
        entries: The complete segments.
        orphans: Objects that are not part of a complete segment.
        folder: Folder of the topic id. Objects of other folders belong to other topic ids.
        is_restored: True if a manifest may refer to objects in another folder, see `with_sources`.
        references: Names of the segments that have a manifest in the folder, but no log or indexes.
        unreadable: Keys of the manifests of `references` that cannot be read.
        used: Keys of objects that may belong to a segment of another topic id.
    """

    topic: str
    topic_id: str
    partition: int
    entries: tuple[SegmentEntry, ...]
    orphans: tuple[Orphan, ...]
    folder: str = ""
    is_restored: bool = False
    references: frozenset[str] = frozenset()
    unreadable: frozenset[str] = frozenset()
    used: frozenset[str] = frozenset()

    @classmethod
    def of(cls, partition: ListedPartition) -> PartitionObjects:
        """Returns the names, complete segments and orphans of a listed partition."""
        return cls(
            partition.topic,
            partition.topic_id,
            partition.partition,
            partition.entries,
            partition.orphans,
        )

    @property
    def key(self) -> PartitionKey:
        """Topic, topic id and partition, to sort and group partitions."""
        return self.topic, self.topic_id, self.partition

    @property
    def state_key(self) -> str:
        """Name of the partition in the state file. It contains topic name and topic id, because the
        objects of a topic id may be copied to a topic of another name.
        """
        return f"{self.topic}-{self.topic_id}/{self.partition}"

    def with_used(self, owners: Mapping[str, frozenset[PartitionKey]]) -> PartitionObjects:
        """Returns the same objects with the attribute `used`. Used objects are no orphans of this
        topic id, unless its own manifest refers to a lost object.

        Args:
            owners: For each name in the attribute `references` of any partition, and for each
                segment that brokers announce, the keys of these partitions.
        """
        own = frozenset({self.key})
        used = frozenset(
            key
            for key in self.sizes
            if not key.startswith(self.folder) or not owners.get(_name_of(key), own) <= own
        )
        if not used:
            return self
        orphans = [o for o in self.orphans if o.described is not None or not used >= {*o.keys}]
        return replace(self, used=used, orphans=tuple(orphans))

    @property
    def has_manifests(self) -> bool:
        """True if a complete segment or a manifest exists."""
        return bool(self.entries) or any(orphan.described for orphan in self.orphans)

    @property
    def unused(self) -> list[str]:
        """Keys of the objects that no topic with another id uses, in order."""
        return sorted(self.sizes.keys() - self.used)

    def without_used(self, finding: Finding) -> Finding | None:
        """Returns a finding without the objects that may belong to another topic id, if the advice
        of its kind is to delete its objects. Returns `None` if no object remains.
        """
        if not finding.kind.allows_delete or not self.used.intersection(finding.objects):
            return finding
        kept = [key for key in finding.objects if key not in self.used]
        count = len(finding.objects) - len(kept)
        detail = f"{finding.detail}; {count} objects are not listed, because a restored topic may"
        rest = self.finding(finding.name, finding.start, finding.stop, kept, f"{detail} use them")
        return rest if kept else None

    @property
    def stored_bytes(self) -> int:
        """Total size of the objects of all complete segments, as listed."""
        return sum(info.size for entry in self.entries for _, info in entry.objects)

    @cached_property
    def _infos(self) -> list[ObjectInfo]:
        damaged = [
            orphan_segment.described
            for orphan_segment in self.orphans
            if orphan_segment.described is not None
        ]
        return [info for entry in (*self.entries, *damaged) for _, info in entry.objects]

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """Size of every object by object key, as listed."""
        sizes = {info.key: info.size for info in self._infos}
        for orphan in self.orphans:
            sizes.update(zip(orphan.keys, orphan.sizes or (0,) * len(orphan.keys), strict=True))
        return sizes

    @cached_property
    def _classes(self) -> Mapping[str, str]:
        return {info.key: info.storage_class for info in self._infos if info.storage_class}

    def finding(
        self,
        name: str,
        start: int | None,
        stop: int | None,
        objects: Sequence[str],
        detail: str,
    ) -> Finding:
        """Returns a finding `name` about the offsets [`start`, `stop`) and the objects with the
        keys `objects`.
        """
        by_class: Counter[str] = Counter()
        for key in objects:
            by_class[self._classes.get(key, DEFAULT_CLASS)] += self.sizes.get(key, 0)
        stored, dollars = by_class.total(), monthly_cost(by_class)
        return Finding(name, *self.key, start, stop, tuple(objects), stored, detail, dollars)

    def segment_finding(
        self, name: str, segment: RemoteSegment, keys: Sequence[str], detail: str
    ) -> Finding:
        """Returns a finding `name` about all offsets of a segment and the objects with the keys
        `keys`.
        """
        return self.finding(name, segment.start_offset, segment.stop_offset, keys, detail)


def with_sources(
    partition: ListedPartition, layout: AivenLayout, store: ObjectStore, pool: Executor
) -> PartitionObjects:
    """Returns the objects of a listed partition, and the logs and indexes in other folders that its
    manifests refer to. A restore with zero copy uses these objects of the old topic id in place.

    An unreadable manifest without a log may refer to such objects, too. They have the name of its
    segment. `pool` reads manifests of segments without a log.

    Raises:
        StoreError: A request to the store failed.
    """

    def log_key(entry: SegmentEntry) -> str | None:
        try:
            return layout.describe(store, entry).objects.log.key
        except (SegmentFormatError, TieredKafkaError):
            return None

    objects = PartitionObjects.of(partition)
    damaged = [orphan.described for orphan in partition.orphans if orphan.described is not None]
    logless = [e for e in (*partition.entries, *damaged) if e.object(LOG_SUFFIX) is None]
    if not logless:
        return objects
    folder = partition.folder.folder
    log_keys = dict(zip(logless, pool.map(log_key, logless), strict=True))
    sources = {
        entry.segment_id: key.removesuffix(LOG_SUFFIX)
        for entry, key in log_keys.items()
        if key is not None and not key.startswith(folder)
    }
    unreadable = frozenset(e.described_by for e, key in log_keys.items() if key is None)
    orphans = [
        replace(orphan, reason=f"{orphan.reason}; {_UNREADABLE}")
        if orphan.described is not None and orphan.described.described_by in unreadable
        else orphan
        for orphan in objects.orphans
    ]
    objects = replace(objects, orphans=tuple(orphans))
    return replace(
        _with_objects(objects, sources, store) if sources else objects,
        folder=folder,
        is_restored=bool(sources or unreadable),
        references=frozenset(_name_of(entry.described_by) for entry in logless),
        unreadable=unreadable,
    )


def _with_objects(
    objects: PartitionObjects, sources: Mapping[str, str], store: ObjectStore
) -> PartitionObjects:
    """Adds logs and indexes in other folders to segments. `sources` contains their keys without
    suffix, by segment id.
    """
    folders = {stem.rpartition("/")[0] for stem in sources.values()}
    infos = {info.key: info for folder in folders for info in store.list_objects(f"{folder}/")}
    entries, orphans = [], [*objects.orphans]
    for entry in objects.entries:
        stem = sources.get(entry.segment_id)
        if stem is None:
            entries.append(entry)
            continue
        keys = {suffix: stem + suffix for suffix in (LOG_SUFFIX, INDEXES_SUFFIX)}
        found = {suffix: infos[key] for suffix, key in keys.items() if key in infos}
        whole = replace(entry, objects=tuple(sorted({**dict(entry.objects), **found}.items())))
        if missing := [key for suffix, key in keys.items() if suffix not in found]:
            reason = f"its manifest refers to {', '.join(missing)}, which does not exist"
            sizes = tuple(info.size for _, info in whole.objects)
            orphans.append(Orphan(keys_of(whole), reason, entry.base_offset, whole, sizes=sizes))
        else:
            entries.append(whole)
    return replace(objects, entries=tuple(entries), orphans=tuple(orphans))


def segment_name(partition: int, base_offset: int, segment_id: str) -> str:
    """Returns the name of a segment, as in `PartitionObjects.references`."""
    return f"{partition}/{base_offset:020d}-{segment_id}"


def _name_of(key: str) -> str:
    """Returns the end of a key that is equal for all objects of a segment and for all topic ids:
    partition, base offset and segment id.
    """
    return "/".join(key.rpartition(".")[0].rsplit("/", 2)[-2:])


def keys_of(entry: SegmentEntry) -> tuple[str, ...]:
    """Returns the keys of a segment's objects."""
    return tuple(info.key for _, info in entry.objects)


def is_archived(info: ObjectInfo | ObjectRef) -> bool:
    """Returns whether an object is archived: it must be restored before it can be read."""
    return info.storage_class in ARCHIVE_CLASSES


def check_topic_id(partition: PartitionObjects, chosen: str) -> list[Finding]:
    """Returns one finding about all objects of a partition whose topic id is not `chosen`, the id
    that readers use. Returns no finding if there are no objects, or if another topic uses them all.
    """
    count = len(partition.unused)
    text = f"{count} objects have topic id {partition.topic_id}; readers use {chosen}"
    first = min((entry.base_offset for entry in partition.entries), default=None)
    return (
        [partition.finding("other-topic-id", first, None, partition.unused, text)] if count else []
    )


def check_withheld(partition: PartitionObjects, reason: str) -> Finding:
    """Returns a finding without objects about a partition of an older topic id. `reason` says why a
    topic that was restored with zero copy may use them.
    """
    text = (
        f"{len(partition.sizes)} objects have topic id {partition.topic_id}. Delete none of them:"
        f" {reason}"
    )
    first = min((entry.base_offset for entry in partition.entries), default=None)
    return partition.finding("other-topic-id", first, None, [], text)


def check_objects(partition: PartitionObjects, empty_logs: Set[str]) -> Iterator[Finding]:
    """Reports one finding per empty object, and one per archive storage class. `empty_logs` are the
    keys of log objects that are empty because compaction removed all records; they are not
    reported.
    """
    archived: dict[str, list[SegmentEntry]] = defaultdict(list)
    for entry in partition.entries:
        for suffix, info in entry.objects:
            # A segment may be too small to have an index entry.
            may_be_empty = suffix in ("index", "timeindex", "txnindex") or info.key in empty_logs
            if info.size == 0 and not may_be_empty:
                text = f"{info.key} has 0 bytes"
                yield partition.finding("empty-object", entry.base_offset, None, [info.key], text)
        classes = {info.storage_class for _, info in entry.objects if info.storage_class}
        for name in sorted(classes & ARCHIVE_CLASSES):
            archived[name].append(entry)
    for name, entries in archived.items():
        infos = [info for entry in entries for _, info in entry.objects]
        keys = [info.key for info in infos if info.storage_class == name]
        text = f"{len(keys)} objects are in storage class {name}"
        yield partition.finding("archived", entries[0].base_offset, None, keys, text)


def check_duplicates(partition: PartitionObjects) -> Iterator[Finding]:
    """Reports segments that have equal base offsets."""
    by_base: dict[int, list[SegmentEntry]] = defaultdict(list)
    for entry in partition.entries:
        by_base[entry.base_offset].append(entry)
    for base, entries in sorted(by_base.items()):
        if len(entries) > 1:
            keys = [key for entry in entries for key in keys_of(entry)]
            text = f"{len(entries)} segments begin at offset {base}"
            yield partition.finding("duplicate-upload", base, None, keys, text)


class LogGaps(NamedTuple):
    """Facts from manifests and side files that show whether readers need an incomplete segment.

    Attributes:
        holes: Ranges of offsets that no segment has. A hole may never have contained a record.
        stops: End offset (exclusive) of each incomplete segment, by the key of the object that
            describes it, such as the manifest. `None` if unknown.
        in_doubt: Incomplete segments that may belong to the log, each identified by the key of the
            object that describes it.
    """

    holes: Sequence[Hole]
    stops: Mapping[str, int | None]
    in_doubt: Set[str]


def check_orphans(
    partition: PartitionObjects,
    gaps: LogGaps | None,
    *,
    now_ms: int,
    grace_ms: int,
    has_manifests: bool,
) -> Iterator[Finding]:
    """Finds objects that are not part of a complete segment.

    Args:
        partition: The partition.
        gaps: Gaps of the log; `None` at level `listing`, which does not determine them. Without
            gaps, an incomplete segment with a manifest counts as missing if it begins above the
            first complete segment, or if no segment is complete: the manifest shows that the
            segment was complete once.
        now_ms: The time in ms since 1970.
        grace_ms: Age limit in ms. Younger objects of an incomplete segment are reported as a copy
            that is under way.
        has_manifests: True if the layout stores a manifest for each segment. If False, an
            incomplete segment between two complete segments counts as missing at level `listing`.
    """
    bases = {entry.base_offset for entry in partition.entries}
    first, last = min(bases, default=None), max(bases, default=None)
    lost_all = not bases and len({orphan.base_offset for orphan in partition.orphans} - {None}) > 1

    def looks_lost(base: int, is_described: bool) -> bool:
        """Returns True if readers probably need the incomplete segment at offset `base`, judging
        from object names alone. `is_described` is True if the segment has a manifest.
        """
        if is_described:
            return first is None or base > first
        if has_manifests or base in bases or first is None or last is None:
            return False
        return first < base < last

    for orphan in partition.orphans:
        base, entry = orphan.base_offset, orphan.described
        if base is None:
            yield partition.finding("stray-object", None, None, orphan.keys, orphan.reason)
            continue
        if lost_all and entry is None:
            missing: list[tuple[int, int | None]] = [(base, None)]
        elif gaps is None:
            missing = [(base, None)] if looks_lost(base, entry is not None) else []
        else:
            stop = None if entry is None else gaps.stops[entry.described_by]
            missing = _in_holes(base, stop, gaps.holes)
            if entry is not None and not missing and entry.described_by in gaps.in_doubt:
                missing = [(base, stop)]
        if missing or (entry is not None and entry.described_by in partition.unreadable):
            name = "object-missing"
        elif entry is not None:
            name = "half-delete"
        elif orphan.written_ms is not None and now_ms - orphan.written_ms < grace_ms:
            name = "copy-under-way"
        else:
            name = "half-copy"
        for start, end in missing or [(base, None)]:
            yield partition.finding(name, start, end, orphan.keys, orphan.reason)


def _in_holes(base: int, stop: int | None, holes: Sequence[Hole]) -> list[tuple[int, int | None]]:
    """Returns the parts [start, stop) of the segment [`base`, `stop`) that are inside `holes`. If
    `stop` is `None` (unknown), returns (`base`, `None`) if `base` is inside a hole.
    """
    if stop is None:
        return [(base, None)] if any(hole.start <= base < hole.stop for hole in holes) else []
    ranges = ((max(hole.start, base), min(hole.stop, stop)) for hole in holes)
    return [(start, end) for start, end in ranges if start < end]
