"""Which topics, incarnations, partitions and segments the tier has, by its listings.

The listing is never cached and alone decides what exists. A topic that was deleted and created
again stands under two topic ids; one of them is chosen once per topic, before any partition is
looked at.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kts_source.errors import InvalidOptionError, TierNotFoundError, TopicNotFoundError
from kts_source.options.selection import Assign, SubscribePattern
from kts_source.planning.segment_catalog import ListedSegments

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Executor

    from kts_source.layout.layout import Layout, Orphan, PartitionListing, TopicFolder
    from kts_source.options import ScanOptions
    from kts_source.planning.segment_catalog import Describer
    from kts_source.store.object_store import ObjectStore

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DiscoveredPartition:
    """One partition of the chosen incarnation.

    Attributes:
        listed: Its segments, at least one.
        orphans: Objects that belong to no segment.
    """

    topic: str
    topic_id: str
    partition: int
    listed: ListedSegments
    orphans: tuple[Orphan, ...]


@dataclass(frozen=True, slots=True)
class DiscoveredTopic:
    """A topic as the tier holds it.

    Attributes:
        topic_id: The incarnation that is read.
        other_ids: Incarnations that are not.
        partitions: In order of partition number.
        empty_partitions: Named by the user, or known under another id, without objects in this
            incarnation.
    """

    topic: str
    topic_id: str
    other_ids: tuple[str, ...]
    partitions: tuple[DiscoveredPartition, ...]
    empty_partitions: tuple[int, ...]

    @property
    def asked_partitions(self) -> tuple[int, ...]:
        """All that were asked for, with or without segments, ascending."""
        return tuple(
            sorted([*(part.partition for part in self.partitions), *self.empty_partitions])
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the topic should know: which incarnation it is, and what it lacks."""
        found = []
        if self.other_ids:
            others = ", ".join(self.other_ids)
            found.append(f"topic {self.topic}: reading topic id {self.topic_id}, not {others}")
        if self.empty_partitions:
            found.append(
                f"topic {self.topic}: no segments of partitions {list(self.empty_partitions)} under"
                f" topic id {self.topic_id}"
            )
        return tuple(found)


def discover(
    options: ScanOptions,
    store: ObjectStore,
    layout: Layout,
    pool: Executor,
    describer: Describer,
) -> tuple[DiscoveredTopic, ...]:
    """Lists every segment of the selected topics.

    Args:
        options: What to read.
        store: Where to look.
        layout: What to look for.
        pool: Lists partitions side by side.
        describer: Of their segments, where topic ids have to be compared.

    Raises:
        TierNotFoundError: Nothing of the layout's under the path.
        TopicNotFoundError: A topic that the tier does not have; names those it has.
        InvalidOptionError: A topic id that the tier does not have, or a choice that only the user
            can make.
        CorruptSegmentError: A manifest that cannot be read.
    """
    incarnations = _incarnations(options, store, layout)
    return tuple(
        _discover_topic(options, topic, folders, store, layout, pool, describer)
        for topic, folders in sorted(incarnations.items())
    )


def _incarnations(
    options: ScanOptions, store: ObjectStore, layout: Layout
) -> Mapping[str, tuple[TopicFolder, ...]]:
    if isinstance(options.selection, SubscribePattern):
        everything = _by_topic(layout.topic_folders(store, options.key_prefix, None))
        wanted = options.selection.wanted(everything)
        found = {topic: everything[topic] for topic in wanted}
        if not found:
            raise _not_found(
                f"no topic matches {options.selection.pattern!r}",
                tuple(everything),
                options,
                store,
                layout,
            )
        return found
    wanted = options.selection.wanted(())
    found = {
        topic: folders
        for topic in wanted
        if (folders := layout.topic_folders(store, options.key_prefix, topic))
    }
    missing = [topic for topic in wanted if topic not in found]
    if missing:
        available = tuple(_by_topic(layout.topic_folders(store, options.key_prefix, None)))
        what = f"no topic {', '.join(map(repr, missing))}"
        raise _not_found(what, available, options, store, layout)
    return found


def _by_topic(folders: Sequence[TopicFolder]) -> dict[str, tuple[TopicFolder, ...]]:
    grouped: dict[str, list[TopicFolder]] = defaultdict(list)
    for folder in folders:
        grouped[folder.topic].append(folder)
    return {topic: tuple(group) for topic, group in grouped.items()}


def _not_found(
    what: str,
    available: tuple[str, ...],
    options: ScanOptions,
    store: ObjectStore,
    layout: Layout,
) -> TopicNotFoundError | TierNotFoundError:
    where = store.uri(options.key_prefix)
    if available:
        return TopicNotFoundError(
            f"{what} in the tier at {where}; it has {', '.join(sorted(available))}"
        )
    if _looks_like_iceberg(options, store):
        return TierNotFoundError(
            f"{what} at {where}: there are Puffin files of the plugin's Iceberg mode"
            f" (segment.format=iceberg), which"
            " holds no segments; read the table <iceberg.namespace>.<topic> instead"
        )
    return TierNotFoundError(
        f"no tier at {where}: looked for folders named {options.key_prefix}{layout.folder_pattern}"
        f" of layout {options.layout!r}. Check 'path', and 'keyPrefix' (the plugin's key.prefix,"
        f" with its slash if it has one)"
    )


def _looks_like_iceberg(options: ScanOptions, store: ObjectStore) -> bool:
    listed = store.list_objects(options.key_prefix)
    return any(info.key.endswith(".puffin") for _, info in zip(range(10_000), listed, strict=False))


def _discover_topic(
    options: ScanOptions,
    topic: str,
    folders: tuple[TopicFolder, ...],
    store: ObjectStore,
    layout: Layout,
    pool: Executor,
    describer: Describer,
) -> DiscoveredTopic:
    pairs = [
        (folder, partition) for folder in folders for partition in layout.partitions(store, folder)
    ]
    listings = dict(
        zip(pairs, pool.map(lambda pair: layout.list_partition(store, *pair), pairs), strict=True)
    )
    listed = {
        (folder, partition): ListedSegments(
            listing.segments, describer, describer.kept(folder, partition)
        )
        for (folder, partition), listing in listings.items()
    }
    chosen = _choose(options, topic, folders, listed)
    others = tuple(folder.topic_id for folder in folders if folder != chosen)
    present = {
        partition: listing
        for (folder, partition), listing in listings.items()
        if folder == chosen and listing.segments
    }
    wanted = _wanted_partitions(options, topic, present, listings)
    partitions = tuple(
        _discovered(chosen, partition, listed[chosen, partition], present[partition].orphans)
        for partition in wanted
        if partition in present
    )
    empty = tuple(partition for partition in wanted if partition not in present)
    found = DiscoveredTopic(topic, chosen.topic_id, others, partitions, empty)
    for note in found.notes:
        log.warning("%s", note)
    return found


def _wanted_partitions(
    options: ScanOptions,
    topic: str,
    present: Mapping[int, PartitionListing],
    listings: Mapping[tuple[TopicFolder, int], PartitionListing],
) -> tuple[int, ...]:
    if isinstance(options.selection, Assign):
        return options.selection.partitions[topic]
    elsewhere = {partition for (_, partition), listing in listings.items() if listing.segments}
    return tuple(sorted({*present, *elsewhere}))


def _choose(
    options: ScanOptions,
    topic: str,
    folders: tuple[TopicFolder, ...],
    listed: Mapping[tuple[TopicFolder, int], ListedSegments],
) -> TopicFolder:
    ids = ", ".join(folder.topic_id for folder in folders)
    wanted = options.topic_ids.get(topic, options.topic_ids.get(""))
    if wanted is not None:
        for folder in folders:
            if folder.topic_id == wanted:
                return folder
        raise InvalidOptionError(
            f"option 'topicId': topic {topic!r} has no id {wanted}; the tier has {ids}"
        )
    if len(folders) == 1:
        return folders[0]
    newest: dict[TopicFolder, int] = {}
    for folder in folders:
        stamps = [
            segment.event_timestamp_ms
            for (of, _), segments in listed.items()
            if of == folder
            for segment in segments.all()
        ]
        if any(stamp is None for stamp in stamps):
            raise InvalidOptionError(
                f"topic {topic!r} has several topic ids ({ids}) and layout {options.layout!r}"
                f" does not tell which is"
                " newest: choose with option 'topicId'"
            )
        newest[folder] = max((stamp for stamp in stamps if stamp is not None), default=-1)
    latest = max(newest.values())
    winners = [folder for folder, stamp in newest.items() if stamp == latest]
    if len(winners) > 1:
        raise InvalidOptionError(
            f"topic {topic!r} has several topic ids ({ids}) with the same newest event"
            f" timestamp: choose with"
            " option 'topicId'"
        )
    return winners[0]


def _discovered(
    folder: TopicFolder, partition: int, listed: ListedSegments, orphans: tuple[Orphan, ...]
) -> DiscoveredPartition:
    for orphan in orphans:
        log.info("%s-%s: not read: %s (%s)", folder.topic, partition, orphan.keys, orphan.reason)
    return DiscoveredPartition(folder.topic, folder.topic_id, partition, listed, orphans)
