"""What the listing of a partition shows by itself."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from kts_source.auditing.place import Place, keys_of
from kts_source.planning.estimate import ARCHIVE_CLASSES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Set

    from kts_source.auditing.place import PartitionObjects
    from kts_source.auditing.report import Finding
    from kts_source.layout.layout import SegmentEntry
    from kts_source.planning.lineage import Hole


def place_of(part: PartitionObjects) -> Place:
    """The partition, with the sizes of its objects."""
    described = [one.described for one in part.orphans if one.described is not None]
    infos = [info for entry in (*part.entries, *described) for _, info in entry.objects]
    sizes = {info.key: info.size for info in infos}
    classes = {info.key: info.storage_class for info in infos if info.storage_class}
    for orphan in part.orphans:
        sizes.update(zip(orphan.keys, orphan.sizes or (0,) * len(orphan.keys), strict=True))
    return Place(part.topic, part.topic_id, part.partition, sizes, classes)


def other_incarnation(part: PartitionObjects, chosen: str) -> list[Finding]:
    """What there is of a topic id that is not read."""
    place = place_of(part)
    if not place.sizes:
        return []
    bases = [entry.base_offset for entry in part.entries]
    text = f"{len(place.sizes)} objects of topic id {part.topic_id}; {chosen} is read"
    first = min(bases, default=None)
    return [place.finding("other-topic-id", first, None, sorted(place.sizes), text)]


def of_every_object(place: Place, part: PartitionObjects, empty_logs: Set[str]) -> list[Finding]:
    """Finds objects that are empty or archived; those of a storage class make one finding.

    Args:
        place: The partition.
        part: Its listing.
        empty_logs: Keys of logs that have no byte because compaction removed all their records.
    """
    found = []
    archived: dict[str, list[SegmentEntry]] = defaultdict(list)
    for entry in part.entries:
        for suffix, info in entry.objects:
            if info.size == 0 and _holds_bytes(suffix) and info.key not in empty_logs:
                text = f"{info.key} has no byte"
                at = entry.base_offset
                found.append(place.finding("empty-object", at, None, [info.key], text))
        classes = {info.storage_class for _, info in entry.objects if info.storage_class}
        for name in sorted(classes & ARCHIVE_CLASSES):
            archived[name].append(entry)
    for name, entries in archived.items():
        keys = [
            info.key for entry in entries for _, info in entry.objects if info.storage_class == name
        ]
        text = f"{len(keys)} objects of storage class {name}"
        found.append(place.finding("archived", entries[0].base_offset, None, keys, text))
    return found


def _holds_bytes(suffix: str) -> bool:
    """Whether an object with this suffix is never empty: small segments have empty indexes."""
    return suffix not in ("index", "timeindex", "txnindex")


def duplicates(place: Place, part: PartitionObjects) -> list[Finding]:
    """Segments that share their base offset, as far as names tell."""
    by_base: dict[int, list[SegmentEntry]] = defaultdict(list)
    for entry in part.entries:
        by_base[entry.base_offset].append(entry)
    return [
        place.finding(
            "duplicate-upload",
            base,
            None,
            [key for entry in entries for key in keys_of(entry)],
            f"{len(entries)} segments begin at offset {base}",
        )
        for base, entries in sorted(by_base.items())
        if len(entries) > 1
    ]


class KnownLog(NamedTuple):
    """What manifests and side files tell of a partition.

    Attributes:
        holes: Offsets that no segment holds, also where there may have been no record.
        stops: One past the last offset of each segment that lacks objects, by the key of what
            describes it.
        in_doubt: Keys of those of which the log may be, as nothing tells that it is of others.
    """

    holes: Sequence[Hole]
    stops: Mapping[str, int | None]
    in_doubt: Set[str]


def half_segments(
    place: Place,
    part: PartitionObjects,
    known: KnownLog | None,
    *,
    now_ms: int,
    grace_ms: int,
    has_manifests: bool,
) -> list[Finding]:
    """Objects that make no segment.

    Args:
        place: The partition.
        part: Its listing.
        known: `None` where only names are. Then what is above the first whole segment, and was
            whole once, counts as missed.
        now_ms: The time in ms since 1970.
        grace_ms: Copies that are younger may be under way.
        has_manifests: Whether the layout describes segments by an object of their own. If not, a
            segment between whole ones counts as missed where only names are known.
    """
    whole = {entry.base_offset for entry in part.entries}
    bases = {one.base_offset for one in part.orphans if one.base_offset is not None}
    first = min((entry.base_offset for entry in part.entries), default=None)
    lost_all = first is None and len(bases) > 1
    found = []
    for orphan in part.orphans:
        base, entry = orphan.base_offset, orphan.described
        if base is None:
            found.append(place.finding("stray-object", None, None, orphan.keys, orphan.reason))
            continue
        missed: list[tuple[int, int | None]]
        if known is None:
            is_lost = entry is not None and (first is None or base > first)
            if entry is None and not has_manifests and base not in whole:
                is_lost = bool(whole) and min(whole) < base < max(whole)
            missed = [(base, None)] if is_lost else []
        elif entry is None:
            missed = _missed(base, None, known.holes)
        else:
            stop = known.stops[entry.described_by]
            missed = _missed(base, stop, known.holes)
            if not missed and entry.described_by in known.in_doubt:
                missed = [(base, stop)]
        if lost_all and entry is None:
            missed = [(base, None)]
        if entry is not None:
            name = "half-delete"
        elif orphan.written_ms is not None and now_ms - orphan.written_ms < grace_ms:
            name = "copy-under-way"
        else:
            name = "half-copy"
        if missed:
            name = "object-missing"
        for start, stop in missed or [(base, None)]:
            found.append(place.finding(name, start, stop, orphan.keys, orphan.reason))
    return found


def _missed(base: int, stop: int | None, holes: Sequence[Hole]) -> list[tuple[int, int | None]]:
    """What of a segment lies in holes; up to the end where that is known."""
    if stop is None:
        return [(base, None)] if any(one.start <= base < one.stop for one in holes) else []
    parts = ((max(one.start, base), min(one.stop, stop)) for one in holes)
    return [(low, high) for low, high in parts if low < high]
