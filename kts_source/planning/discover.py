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

from kts_source.errors import (
    DataLossError,
    InvalidOptionError,
    TierNotFoundError,
    TopicNotFoundError,
)
from kts_source.options.selection import Assign, Subscribe, SubscribePattern
from kts_source.planning.key_prefix import did_you_mean, likely_prefixes, prefixes_of_names
from kts_source.planning.segment_catalog import ListedSegments
from kts_source.texts import some

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
        listed: Its segments, at least one, whole or damaged.
        orphans: Objects that belong to no whole segment.
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
        empty_partitions: Named by the user, or known by a folder, without a segment in this
            incarnation.
        parts: What there is of segments in them.
    """

    topic: str
    topic_id: str
    other_ids: tuple[str, ...]
    partitions: tuple[DiscoveredPartition, ...]
    empty_partitions: tuple[int, ...]
    parts: tuple[Orphan, ...]

    @property
    def asked_partitions(self) -> tuple[int, ...]:
        """All that were asked for, with or without segments, ascending."""
        held = (part.partition for part in self.partitions)
        return tuple(sorted([*held, *self.empty_partitions]))

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
        if self.parts:
            found.append(
                f"topic {self.topic}: not read, as there are only parts of segments:"
                f" {some(map(str, self.parts))}"
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
        TopicNotFoundError: A topic that the tier does not have, or of which it has no segment;
            names what it has.
        DataLossError: Segments were there, and no object tells of them any more.
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
    wanted = options.selection.wanted(())
    if available:
        prefixes = prefixes_of_names(options.key_prefix, available, wanted)
        return TopicNotFoundError(
            f"{what} in the tier at {where}; it has {', '.join(sorted(available))}"
            f"{did_you_mean(prefixes)}"
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
        f"{did_you_mean(likely_prefixes(store, layout, options.key_prefix, wanted))}"
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
            listing.segments, describer, describer.kept(folder, partition), listing.orphans
        )
        for (folder, partition), listing in listings.items()
    }
    chosen = _choose(options, topic, folders, listed)
    others = tuple(folder.topic_id for folder in folders if folder != chosen)
    present = {
        partition: listing
        for (folder, partition), listing in listings.items()
        if folder == chosen and _has_segments(listing)
    }
    if topic not in options.topic_ids and "" not in options.topic_ids:
        _check_newest(options, chosen, listings)
    wanted = _wanted_partitions(options, topic, listings)
    partitions = tuple(
        _discovered(chosen, partition, listed[chosen, partition], present[partition].orphans)
        for partition in wanted
        if partition in present
    )
    empty = tuple(partition for partition in wanted if partition not in present)
    parts = tuple(
        orphan
        for partition in empty
        if (chosen, partition) in listings
        for orphan in _parts(options, topic, partition, listings[chosen, partition])
    )
    found = DiscoveredTopic(topic, chosen.topic_id, others, partitions, empty, parts)
    if not partitions and isinstance(options.selection, Subscribe) and options.fail_on_data_loss:
        raise TopicNotFoundError(
            f"no segment of topic {topic!r} at {store.uri(chosen.folder)}; there are"
            f" {some(map(str, parts)) or 'no objects'}",
            topic=topic,
        )
    for note in found.notes:
        log.warning("%s", note)
    return found


def _has_segments(listing: PartitionListing) -> bool:
    """Whether there is a segment that something describes, whole or damaged."""
    return bool(listing.segments) or any(one.described is not None for one in listing.orphans)


def _parts(
    options: ScanOptions, topic: str, partition: int, listing: PartitionListing
) -> tuple[Orphan, ...]:
    """What there is of segments in a partition that has none.

    A broker copies a segment after the one before is there, so parts of one are a first copy under
    way (or one that failed); parts of several tell that there was more.

    Raises:
        DataLossError: There was more, and no loss is allowed.
    """
    parts = tuple(orphan for orphan in listing.orphans if orphan.base_offset is not None)
    if len({orphan.base_offset for orphan in parts}) > 1 and options.fail_on_data_loss:
        raise DataLossError(
            f"only parts of segments are there, not one whole: {some(map(str, parts))};"
            " failOnDataLoss=false leaves the partition out",
            topic=topic,
            partition=partition,
        )
    return parts


def _check_newest(
    options: ScanOptions,
    chosen: TopicFolder,
    listings: Mapping[tuple[TopicFolder, int], PartitionListing],
) -> None:
    """Refuses to read an incarnation while another one may be newer of which no segment is whole:
    the topic is being created again, or what describes the newest segments is lost.

    Raises:
        DataLossError: No loss is allowed.
    """
    known = {folder for (folder, _), listing in listings.items() if _has_segments(listing)}
    newest = max(
        (
            info.last_modified_ms or -1
            for (folder, _), listing in listings.items()
            if folder == chosen
            for entry in listing.segments
            for _, info in entry.objects
        ),
        default=-1,
    )
    newer = [
        orphan
        for (folder, _), listing in listings.items()
        if folder not in known and folder != chosen
        for orphan in listing.orphans
        if orphan.base_offset is not None
        and (orphan.written_ms is None or orphan.written_ms > newest)
    ]
    if not newer:
        return
    text = (
        f"topic {chosen.topic}: the segments of topic id {chosen.topic_id} are older than what"
        f" there is of another one: {some(map(str, newer))}"
    )
    if options.fail_on_data_loss:
        raise DataLossError(
            f"{text}; choose with option 'topicId', or wait for a copy that is under way",
            topic=chosen.topic,
        )
    log.warning("%s", text)


def _wanted_partitions(
    options: ScanOptions,
    topic: str,
    listings: Mapping[tuple[TopicFolder, int], PartitionListing],
) -> tuple[int, ...]:
    if isinstance(options.selection, Assign):
        return options.selection.partitions[topic]
    return tuple(sorted({partition for _, partition in listings}))


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
            for segment in (*segments.all(), *segments.damaged())
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
    last = listed.entries[-1].base_offset if listed.entries else -1
    under_way = [
        orphan
        for orphan in orphans
        if orphan.described is None
        and orphan.base_offset is not None
        and orphan.base_offset >= last
    ]
    for level, found in (
        (logging.WARNING, [orphan for orphan in orphans if orphan not in under_way]),
        (logging.INFO, under_way),
    ):
        if found:
            text = some(map(str, found))
            log.log(level, "%s-%s: no whole segment, not read: %s", folder.topic, partition, text)
    return DiscoveredPartition(folder.topic, folder.topic_id, partition, listed, orphans)
