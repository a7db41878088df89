"""From the objects of a partition to its segments, for layouts that name objects
`<base offset, 20 digits>-<segment id>.<suffix>`, and the objects that are read whole.
"""

from __future__ import annotations

import re
from collections import defaultdict
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from kts_source.layout.layout import Orphan, PartitionListing, SegmentEntry
from segment_format.kafka_uuid import UUID_TEXT_PATTERN

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from kts_source.layout.layout import TopicFolder
    from kts_source.store.object_store import ObjectInfo, ObjectStore
    from segment_format.errors import SegmentFormatError

# `\d` takes the digits of every script: a broker's locale chooses them.
_STEM: Final = re.compile(rf"(\d{{20}})-({UUID_TEXT_PATTERN.pattern})")
_MAX_OFFSET: Final = 2**63 - 1


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
    """The segments of a partition's listing, and the objects that belong to none.

    Args:
        infos: The listing, best in order of keys.
        folder: The topic's.
        partition: Number of the partition.
        prefix: What all keys of the listing begin with.
        suffixes: Those that objects of a segment can have.
        required: Those that a whole segment has. The last is uploaded last: where it is, the others
            were.
        described_by: Suffix of the object that errors name; the last required one takes its place.
    """
    found: dict[tuple[int, str], dict[str, ObjectInfo]] = defaultdict(dict)
    orphans = []
    place, last_stem = None, None
    for info in infos:
        stem, _, suffix = info.key.rpartition(".")
        if stem != last_stem:  # the objects of a segment are next to each other in most listings
            place, last_stem = _place(stem, len(prefix)), stem
        if place is None or suffix not in suffixes:
            orphans.append(_stray(info))
        else:
            found[place][suffix] = info
    segments = []
    for (base_offset, segment_id), objects in sorted(found.items(), key=itemgetter(0)):
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
    place: tuple[str, str, int, int, str],
    objects: Mapping[str, ObjectInfo],
    *,
    required: Sequence[str],
    described_by: str,
) -> SegmentEntry | Orphan:
    """What the objects of one segment make: the segment, or an orphan where some are missing.

    Args:
        place: Topic, topic id, partition, base offset and segment id.
        objects: Suffix to object, at least one.
        required: See `group_segments`.
        described_by: See `group_segments`.
    """
    entry = None
    if (last := objects.get(required[-1])) is not None:
        entry = SegmentEntry(
            *place, objects.get(described_by, last).key, tuple(sorted(objects.items()))
        )
    missing = [suffix for suffix in required if suffix not in objects]
    if entry is not None and not missing:
        return entry
    why = "lost" if entry else "an upload that did not finish"
    times = [info.last_modified_ms for info in objects.values()]
    return Orphan(
        tuple(info.key for info in objects.values()),
        f"no .{', no .'.join(missing)}: {why}, or a delete under way",
        place[3],
        entry,
        None if None in times else max(time for time in times if time is not None),
        tuple(info.size for info in objects.values()),
    )


def _stray(info: ObjectInfo) -> Orphan:
    return Orphan((info.key,), "not the name of a segment object", sizes=(info.size,))


def _place(stem: str, start: int) -> tuple[int, str] | None:
    """Base offset and segment id, if `stem` is made of them from position `start` on."""
    match = _STEM.fullmatch(stem, start)
    if match is None or int(match[1]) > _MAX_OFFSET:
        return None
    return int(match[1]), match[2]


def read_whole(
    store: ObjectStore, info: ObjectInfo, at_most: int, too_large: type[SegmentFormatError]
) -> bytes:
    """The bytes of a listed object; raises `too_large` if it has more than `at_most`."""
    if info.size > at_most:
        raise too_large(f"{info.key} has {info.size} bytes; at most {at_most} are read")
    return bytes(store.get_range(info.key, 0, info.size, version=info.version))
