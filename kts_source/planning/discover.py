"""Which topics, incarnations, partitions and segments the tier has, by its listings.

The listing is never cached and alone decides what exists. A topic that was deleted and created
again stands under two topic ids; one of them is chosen once per topic, before any partition is
looked at.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from kts_source.errors import (
    DataLossError,
    InvalidOptionError,
    TierNotFoundError,
    TopicNotFoundError,
)
from kts_source.options.selection import Assign, Subscribe, SubscribePattern
from kts_source.planning.key_prefix import did_you_mean, likely_prefixes, prefixes_of_names
from kts_source.texts import some

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from concurrent.futures import Executor

    from kts_source.layout.layout import Orphan, TopicFolder
    from kts_source.options import ScanOptions
    from kts_source.planning.segment_catalog import ListedPartition, SegmentCatalog

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DiscoveredTopic:
    """A topic as the tier holds it.

    Attributes:
        topic_id: The incarnation that is read.
        other_ids: Incarnations that are not.
        partitions: Those that have segments, whole or damaged, in order of partition number.
        empty_partitions: Named by the user, or known by a folder, without a segment in this
            incarnation.
        parts: What there is of segments in them.
        older_ids: Those of `other_ids` that have segments, which are older unless the user chose.
        others: What else was listed: partitions of other incarnations, and those of this one that
            hold no segment.
    """

    topic: str
    topic_id: str
    other_ids: tuple[str, ...]
    partitions: tuple[ListedPartition, ...]
    empty_partitions: tuple[int, ...]
    parts: tuple[Orphan, ...]
    older_ids: frozenset[str]
    others: tuple[ListedPartition, ...]

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
                f"topic {self.topic}: not read, as no segment of the partition is whole:"
                f" {some(map(str, self.parts))}"
            )
        return tuple(found)


def discover(
    options: ScanOptions, catalog: SegmentCatalog, pool: Executor
) -> tuple[DiscoveredTopic, ...]:
    """Lists every segment of the selected topics, partitions side by side in `pool`; describes them
    where topic ids have to be compared.

    Raises:
        TierNotFoundError: Nothing of the layout's under the path.
        TopicNotFoundError: A topic that the tier does not have, or of which it has no segment;
            names what it has.
        DataLossError: Segments were there, and no object tells of them any more.
        InvalidOptionError: A topic id that the tier does not have, or a choice that only the user
            can make.
        CorruptSegmentError: A manifest that cannot be read.
    """
    found = []
    for topic, folders in sorted(incarnations(options, catalog).items()):
        found.append(discover_topic(options, topic, folders, catalog, pool))
        log_topic(found[-1])
    return tuple(found)


def incarnations(
    options: ScanOptions, catalog: SegmentCatalog, may_lack: Collection[str] = ()
) -> Mapping[str, Sequence[TopicFolder]]:
    """The folders of the selected topics.

    Args:
        options: What is selected.
        catalog: Of the tier.
        may_lack: Topics that are skipped if the tier has nothing of them.

    Raises:
        TierNotFoundError: See `discover`.
        TopicNotFoundError: Likewise.
    """

    def folders(topic: str | None) -> tuple[TopicFolder, ...]:
        return catalog.layout.topic_folders(catalog.store, options.key_prefix, topic)

    if isinstance(options.selection, SubscribePattern):
        everything: dict[str, list[TopicFolder]] = defaultdict(list)
        for folder in folders(None):
            everything[folder.topic].append(folder)
        found = {topic: everything[topic] for topic in options.selection.wanted(everything)}
        if not found and not may_lack:
            what = f"no topic matches {options.selection.pattern!r}"
            raise _not_found(what, everything, (), options, catalog)
        return found
    named = {topic: folders(topic) for topic in options.selection.wanted(())}
    missing = [topic for topic, there in named.items() if not there and topic not in may_lack]
    if missing:
        what = f"no topic {', '.join(map(repr, missing))}"
        available = {folder.topic for folder in folders(None)}
        raise _not_found(what, available, missing, options, catalog)
    return {topic: there for topic, there in named.items() if there}


def _not_found(
    what: str,
    available: Iterable[str],
    missing: Sequence[str],
    options: ScanOptions,
    catalog: SegmentCatalog,
) -> TopicNotFoundError | TierNotFoundError:
    """Returns the error for topics that the tier does not have.

    Args:
        what: The first words of its message.
        available: Topics under the key prefix.
        missing: The topics that were named and are not among them.
        options: What is selected.
        catalog: Of the tier.
    """
    store, layout = catalog.store, catalog.layout
    names = sorted(available)
    where = store.uri(options.key_prefix)
    if names:
        prefixes = prefixes_of_names(options.key_prefix, names, missing)
        return TopicNotFoundError(
            f"{what} in the tier at {where}; it has {', '.join(names)}{did_you_mean(prefixes)}"
        )
    listed = islice(store.list_objects(options.key_prefix), 10_000)
    if any(info.key.endswith(".puffin") for info in listed):
        return TierNotFoundError(
            f"{what} at {where}: there are Puffin files of the plugin's Iceberg mode"
            " (segment.format=iceberg), which holds no segments; read the table"
            " <iceberg.namespace>.<topic> instead"
        )
    return TierNotFoundError(
        f"no tier at {where}: looked for folders named {options.key_prefix}{layout.folder_pattern}"
        f" of layout {options.layout!r}. Check 'path', and 'keyPrefix' (the plugin's key.prefix,"
        f" with its slash if it has one)"
        f"{did_you_mean(likely_prefixes(store, layout, options.key_prefix, missing))}"
    )


def discover_topic(
    options: ScanOptions,
    topic: str,
    folders: Sequence[TopicFolder],
    catalog: SegmentCatalog,
    pool: Executor,
) -> DiscoveredTopic:
    """Lists the partitions of one topic, of the incarnation that the options or the newest event
    choose among `folders`; see `discover`.
    """
    places = [
        (folder, partition)
        for folder in folders
        for partition in catalog.layout.partitions(catalog.store, folder)
    ]
    listed = list(pool.map(lambda place: catalog.listed(*place), places))
    chosen = _choose(options, topic, folders, listed)
    if topic not in options.topic_ids and "" not in options.topic_ids:
        _check_newest(options, chosen, listed)
    here = {part.partition: part for part in listed if part.folder == chosen}
    wanted: Sequence[int] = sorted({part.partition for part in listed})
    if isinstance(options.selection, Assign):
        wanted = options.selection.partitions[topic]
    held = [here[number] for number in wanted if number in here and here[number].has_segments]
    empty = [number for number in wanted if number not in {part.partition for part in held}]
    parts = [o for number in empty if number in here for o in _only_parts(options, here[number])]
    compared = {part.folder for part in listed if part.has_segments}
    found = DiscoveredTopic(
        topic,
        chosen.topic_id,
        tuple(folder.topic_id for folder in folders if folder != chosen),
        tuple(held),
        tuple(empty),
        tuple(parts),
        frozenset(folder.topic_id for folder in compared - {chosen}),
        tuple(
            part
            for part in listed
            if part.partition in wanted
            and not (part.folder == chosen and part.partition not in empty)
        ),
    )
    if not held and isinstance(options.selection, Subscribe) and options.fail_on_data_loss:
        raise TopicNotFoundError(
            f"no segment of topic {topic!r} at {catalog.store.uri(chosen.folder)}; there are"
            f" {some(map(str, parts)) or 'no objects'}",
            topic=topic,
        )
    return found


def log_topic(found: DiscoveredTopic) -> None:
    """Warns of what is not read of a topic."""
    for part in found.partitions:
        _log_orphans(part)
    for note in found.notes:
        log.warning("%s", note)


def _only_parts(options: ScanOptions, part: ListedPartition) -> list[Orphan]:
    """Objects of a partition that has no segment: parts of segments, and folders set aside.

    A broker copies a segment after the one before is there, so parts of one are a first copy under
    way (or one that failed); parts of several tell that there was more: `DataLossError`, unless
    loss is allowed.
    """
    parts = [orphan for orphan in part.orphans if orphan.base_offset is not None]
    if len({orphan.base_offset for orphan in parts}) > 1 and options.fail_on_data_loss:
        raise DataLossError(
            f"only parts of segments are there, not one whole: {some(map(str, parts))};"
            " failOnDataLoss=false leaves the partition out",
            topic=part.topic,
            partition=part.partition,
        )
    return list(part.orphans)


def _check_newest(
    options: ScanOptions, chosen: TopicFolder, listed: Sequence[ListedPartition]
) -> None:
    """Raises `DataLossError`, or warns, where another incarnation may be newer of which no segment
    is whole: the topic is being created again, or what describes the newest segments is lost.
    """
    known = {chosen, *(part.folder for part in listed if part.has_segments)}
    others = [
        orphan
        for part in listed
        if part.folder not in known
        for orphan in part.orphans
        if orphan.base_offset is not None
    ]
    if not others:
        return
    entries = (entry for part in listed if part.folder == chosen for entry in part.entries)
    written = (info.last_modified_ms or -1 for entry in entries for _, info in entry.objects)
    newest = max(written, default=-1)
    newer = [one for one in others if one.written_ms is None or one.written_ms > newest]
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


def _choose(
    options: ScanOptions,
    topic: str,
    folders: Sequence[TopicFolder],
    listed: Sequence[ListedPartition],
) -> TopicFolder:
    """The incarnation that the user names, or the one with the newest event."""
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
    newest = dict.fromkeys(folders, -1)
    for part in listed:
        for segment in (*part.all(), *part.damaged()):
            if segment.event_timestamp_ms is None:
                raise InvalidOptionError(
                    f"topic {topic!r} has several topic ids ({ids}) and layout {options.layout!r}"
                    " does not tell which is newest: choose with option 'topicId'"
                )
            newest[part.folder] = max(newest[part.folder], segment.event_timestamp_ms)
    latest = max(newest.values())
    winners = [folder for folder, stamp in newest.items() if stamp == latest]
    if len(winners) > 1:
        raise InvalidOptionError(
            f"topic {topic!r} has several topic ids ({ids}) with the same newest event timestamp:"
            " choose with option 'topicId'"
        )
    return winners[0]


def _log_orphans(part: ListedPartition) -> None:
    """Warns of objects that are not read. Those of a copy under way, behind all segments, are
    usual.
    """
    last = part.entries[-1].base_offset if part.entries else -1
    found: dict[int, list[Orphan]] = {logging.WARNING: [], logging.INFO: []}
    for orphan in part.orphans:
        under_way = (
            orphan.described is None
            and orphan.base_offset is not None
            and orphan.base_offset >= last
        )
        found[logging.INFO if under_way else logging.WARNING].append(orphan)
    for level, orphans in found.items():
        if orphans:
            text = some(map(str, orphans))
            log.log(
                level, "%s-%s: no whole segment, not read: %s", part.topic, part.partition, text
            )
