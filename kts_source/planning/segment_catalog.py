"""Lists and describes the topics, topic ids, partitions and segments of a tier. If a tier was not
found, suggests a key prefix or a layout.

Listings are not cached, because only a new listing shows which objects exist. If a topic was
deleted and created again, it has two topic ids; one id is chosen per topic before any partition is
read. The description of a segment is read only when it is needed: from the cache of an earlier
plan, or else by the layout, usually from a manifest.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from kts_source.cache.caches import Bundle
from kts_source.cache.packs import SegmentPack, SideFilePack
from kts_source.errors import (
    CorruptSegmentError,
    DataLossError,
    InvalidOptionError,
    ObjectNotFoundError,
    TieredKafkaError,
    TierNotFoundError,
    TopicNotFoundError,
)
from kts_source.layout.find_layout import BUILT_IN_LAYOUTS, find_layout
from kts_source.layout.layout import PartitionListing
from kts_source.layout.remote_segment import IndexType
from kts_source.options.selection import Assign, Subscribe, SubscribePattern
from kts_source.store.joined_store import is_in_additional_store, mirror_of
from kts_source.store.storage_options import MAX_POOL_CONNECTIONS
from kts_source.texts import printable, some
from segment_format.errors import SegmentFormatError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from concurrent.futures import Executor

    from kts_source.layout.layout import Layout, Orphan, SegmentEntry, TopicFolder
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.options import ScanOptions
    from kts_source.store.object_store import ObjectStore
    from kts_source.tier import Tier


log = logging.getLogger(__name__)

PLANNING_THREADS: Final = MAX_POOL_CONNECTIONS
"""Maximum concurrent requests of one plan."""
_GROUPS: Final = 64
_GROUP_SEGMENTS: Final = 16
_INLINE_SEGMENTS: Final = 8
_SIDE_FILES: Final = frozenset(IndexType) - {IndexType.TRANSACTION}
_MAX_LISTED: Final = 10_000
_MAX_REMEMBERED: Final = 100_000
_COMPLETE: Final[dict[tuple[str, str], bool]] = {}
"""Cache for streams, which list segments repeatedly. Maps the URI and version of a segment's
description to whether the segment is complete; only for segments without a log object.
"""


class SegmentCatalog:
    """Lists and describes the segments of a tier, using its layout.

    The threads of `pool` describe segments concurrently. Do not call this class in a thread of
    `pool`, to avoid deadlocks.
    """

    def __init__(
        self, tier: Tier, layout: Layout, pool: Executor, *, fail_on_data_loss: bool
    ) -> None:
        self.store = tier.store
        self.layout = layout
        self._caches = tier.caches
        self._pool = pool
        self._fail_on_data_loss = fail_on_data_loss
        self._max_inline = 1

    def expect(self, partitions: int) -> None:
        """Sets the number of partitions that will be planned concurrently. If they keep the store
        busy, each partition's own thread reads a few manifests: passing them on takes longer.
        """
        self._max_inline = _INLINE_SEGMENTS if partitions >= PLANNING_THREADS else 1

    def listed(self, folder: TopicFolder, partition: int) -> ListedPartition:
        """Lists the segments of a partition. Cached descriptions are not read again."""
        bundle = None
        if self._caches.index is not None:
            uri = self.store.uri(f"{folder.folder}{folder.topic}-{folder.topic_id}")
            name = self._caches.entry_name("partition", self.layout.name, uri, f"{partition}")
            bundle = Bundle(self._caches.index, name)
        listing = self._with_logless_segments(
            self.layout.list_partition(self.store, folder, partition)
        )
        return ListedPartition(self, folder, partition, listing, bundle)

    def _with_logless_segments(self, listing: PartitionListing) -> PartitionListing:
        """Returns the listing with complete segments that have no log object as segments instead of
        orphans: empty segments, and segments whose objects are in the folder of another topic.

        Compaction may remove all records of a closed segment, and some stores keep no object for an
        upload of zero bytes. A restore with zero copy adds only manifests to the new topic.
        """
        entries = [orphan.described for orphan in listing.orphans if orphan.described is not None]
        if not entries:
            return listing
        apply = map if len(entries) <= self._max_inline else self._pool.map
        complete = apply(self._is_complete, entries)
        moved = [entry for entry, is_complete in zip(entries, complete, strict=True) if is_complete]
        if not moved:
            return listing
        moved_keys = {entry.described_by for entry in moved}
        segments = (*listing.segments, *moved)
        return PartitionListing(
            tuple(sorted(segments, key=lambda entry: (entry.base_offset, entry.segment_id))),
            tuple(
                orphan
                for orphan in listing.orphans
                if orphan.described is None or orphan.described.described_by not in moved_keys
            ),
        )

    def _is_complete(self, entry: SegmentEntry) -> bool:
        """Returns whether a segment without a log object is complete: its description refers to a
        log in another folder, or states 0 bytes and lists every side file except the transaction
        index. Returns False for an unreadable description.
        """
        versions = (info.version for _, info in entry.objects if info.key == entry.described_by)
        version = next(versions, None)
        cache_key = self.store.uri(entry.described_by), version or ""
        if version is not None and cache_key in _COMPLETE:
            return _COMPLETE[cache_key]
        try:
            objects = self.layout.describe(self.store, entry).objects
        except (SegmentFormatError, TieredKafkaError):  # reported where the segment is used
            return False
        is_empty = objects.size_in_bytes == 0 and objects.indexes.keys() >= _SIDE_FILES
        is_elsewhere = _folder(objects.log.key) != _folder(entry.described_by)
        if version is not None and len(_COMPLETE) < _MAX_REMEMBERED:
            _COMPLETE[cache_key] = is_empty or is_elsewhere
        return is_empty or is_elsewhere

    def described(self, entries: Sequence[SegmentEntry]) -> list[RemoteSegment | None]:
        """Returns the description of each segment; `None` for a deleted segment, and, if data loss
        is allowed, for an invalid description.
        """
        if len(entries) <= self._max_inline:
            return self._describe_group(entries)
        size = min(max(len(entries) // _GROUPS, 1), _GROUP_SEGMENTS)
        groups = [entries[start : start + size] for start in range(0, len(entries), size)]
        described = self._pool.map(self._describe_group, groups)
        return [segment for group in described for segment in group]

    def _describe_group(self, entries: Sequence[SegmentEntry]) -> list[RemoteSegment | None]:
        return [self._describe(entry) for entry in entries]

    def _describe(self, entry: SegmentEntry) -> RemoteSegment | None:
        try:
            return self.layout.describe(self.store, entry)
        except ObjectNotFoundError:
            uri = printable(self.store.uri(entry.described_by))
            log.info(
                "%s-%s: the segment at offset %s is not read: %s was deleted after the listing",
                *(entry.topic, entry.partition, entry.base_offset, uri),
            )
            return None
        except SegmentFormatError as error:
            mirrored = self._mirrored(entry, error)
            if mirrored is not None:
                return self._describe(mirrored)
            if self._fail_on_data_loss:
                raise self._corrupt(entry, error) from error
            log.warning("%s; not read", self._corrupt(entry, error))
            return None

    def _mirrored(self, entry: SegmentEntry, error: SegmentFormatError) -> SegmentEntry | None:
        """Returns the segment with the objects of the mirror; `None` if it has none of them."""
        mirror = mirror_of(self.store)
        if mirror is None or is_in_additional_store(entry.described_by):
            return None
        objects = tuple(
            (suffix, mirror.in_mirror(info.key, info.version, error.message) or info)
            for suffix, info in entry.objects
        )
        return None if objects == entry.objects else replace(entry, objects=objects)

    def _corrupt(self, entry: SegmentEntry, error: SegmentFormatError) -> CorruptSegmentError:
        return CorruptSegmentError(
            str(error),
            topic=entry.topic,
            partition=entry.partition,
            offset=entry.base_offset,
            uri=self.store.uri(entry.described_by),
        )


def _folder(key: str) -> str:
    return key.rpartition("/")[0]


class ListedPartition:
    """The listed segments of one partition and topic id. Reads the description of each segment at
    most once. Not thread-safe.

    Attributes:
        entries: Complete segments, ascending by base offset, then by segment id.
        orphans: Objects that belong to no complete segment. An orphan with a description is a
            damaged segment.
        facts: Further facts that the plan depends on, see `PartitionListing`.
        side_files: Cache of the side files that were read.
    """

    def __init__(
        self,
        catalog: SegmentCatalog,
        folder: TopicFolder,
        partition: int,
        listing: PartitionListing,
        bundle: Bundle | None,
    ) -> None:
        self.folder = folder
        self.topic = folder.topic
        self.topic_id = folder.topic_id
        self.partition = partition
        self.entries = listing.segments
        self.orphans = listing.orphans
        self.facts = listing.facts
        self._damaged: list[RemoteSegment | None] | None = None
        self._catalog = catalog
        self._bundle = bundle
        self._pack = SegmentPack(bundle, "segments")
        self.side_files = SideFilePack(bundle, "side files")
        self._described: dict[int, RemoteSegment | None] = {}

    @property
    def has_segments(self) -> bool:
        """True if the listing has a complete segment, or a damaged segment with a description."""
        return bool(self.entries) or bool(self._damaged_entries)

    def described(self, numbers: Iterable[int]) -> list[RemoteSegment]:
        """Returns the descriptions of the entries at indexes `numbers`. Skips entries that were
        deleted or cannot be read.
        """
        wanted = list(numbers)
        missing = []
        for number in wanted:
            if number not in self._described:
                segment = self._pack.find(self.entries[number])
                if segment is None:
                    missing.append(number)
                else:
                    self._described[number] = segment
        if missing:
            fresh = self._catalog.described([self.entries[number] for number in missing])
            for number, segment in zip(missing, fresh, strict=True):
                self._described[number] = segment
                # Do not cache an empty segment: its end may depend on the next listed segment.
                if segment is not None and segment.objects.size_in_bytes:
                    self._pack.add(self.entries[number], segment)
        segments = (self._described[number] for number in wanted)
        return [segment for segment in segments if segment is not None]

    def all(self) -> list[RemoteSegment]:
        """Returns all complete segments that have a readable description."""
        return self.described(range(len(self.entries)))

    def damaged(self) -> list[RemoteSegment]:
        """Returns the segments that lack objects but have a readable description."""
        if self._damaged is None:
            self._damaged = self._catalog.described(self._damaged_entries)
        return [segment for segment in self._damaged if segment is not None]

    def unreadable(self) -> list[tuple[int, str]]:
        """Returns a pair of base offset and URI for each segment whose description is missing or
        invalid. Considers only segments whose description was requested before.
        """
        entries = [self.entries[n] for n, segment in self._described.items() if segment is None]
        damaged = zip(self._damaged_entries, self._damaged or (), strict=False)
        entries += (entry for entry, segment in damaged if segment is None)
        return [(entry.base_offset, self._uri(entry)) for entry in entries]

    def without_end(self) -> dict[str, tuple[int, str]]:
        """Returns base offset and URI of each damaged segment whose end offset is unknown, by
        segment id. The log of such a segment is missing, and its other files show only a lower
        bound.
        """
        described = zip(self._damaged_entries, self._damaged or (), strict=False)
        return {
            entry.segment_id: (entry.base_offset, self._uri(entry))
            for entry, segment in described
            if segment is not None and not segment.end_is_exact and entry.object("log") is None
        }

    def _uri(self, entry: SegmentEntry) -> str:
        return self._catalog.store.uri(entry.described_by)

    @property
    def _damaged_entries(self) -> list[SegmentEntry]:
        return [orphan.described for orphan in self.orphans if orphan.described is not None]

    def save(self, *, releases: bool = False) -> None:
        """Stores descriptions and side files in the cache, for later plans. If `releases`, frees
        the memory of the listing: afterwards, no segment can be described.
        """
        self._pack.save(self.entries)
        self.side_files.save()
        if self._bundle is not None:
            self._bundle.save()
        self._pack, self.side_files = SegmentPack(None, ""), SideFilePack()
        if releases:
            self.entries = ()
            self._described.clear()


@dataclass(frozen=True, slots=True)
class DiscoveredTopic:
    """A topic that the tier contains.

    Attributes:
        other_ids: All other topic ids of the topic in the tier.
        partitions: Partitions that have complete or damaged segments, ascending by number.
        empty_partitions: Selected partitions without a segment under this topic id. The user named
            them, or the tier has a folder for them.
        parts: Objects in the empty partitions that belong to no complete segment, each with the
            number of its partition.
        older_ids: Members of `other_ids` that have segments. They are older than `topic_id`, unless
            the user chose `topic_id`.
        others: Listed partitions that are not in `partitions`: partitions of other topic ids, and
            partitions without a segment under `topic_id`.
    """

    topic: str
    topic_id: str
    other_ids: tuple[str, ...]
    partitions: tuple[ListedPartition, ...]
    empty_partitions: tuple[int, ...]
    parts: tuple[tuple[int, Orphan], ...]
    older_ids: frozenset[str]
    others: tuple[ListedPartition, ...]

    @property
    def asked_partitions(self) -> tuple[int, ...]:
        """Numbers of all selected partitions, with or without segments, ascending."""
        held = (listed.partition for listed in self.partitions)
        return tuple(sorted([*held, *self.empty_partitions]))

    @property
    def id_note(self) -> str | None:
        """Message about the chosen topic id; `None` if the tier has no other id of the topic."""
        if not self.other_ids:
            return None
        others = ", ".join(self.other_ids)
        return f"topic {self.topic}: reading topic id {self.topic_id}, not {others}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages about the chosen topic id, partitions without segments, and objects that are not
        read.
        """
        notes = [] if self.id_note is None else [self.id_note]
        if self.empty_partitions:
            notes.append(
                f"topic {self.topic}: no segments of partitions {list(self.empty_partitions)} under"
                f" topic id {self.topic_id}"
            )
        if self.parts:
            notes.append(
                f"topic {self.topic}: not read, as no segment of the partition is complete:"
                f" {some(str(orphan) for _, orphan in self.parts)}"
            )
        return tuple(notes)


def discover(
    options: ScanOptions, catalog: SegmentCatalog, pool: Executor
) -> tuple[DiscoveredTopic, ...]:
    """Lists every segment of the selected topics; partitions are listed concurrently in `pool`.

    Reads descriptions of segments only to find out which of several topic ids is newest.

    Raises:
        TierNotFoundError: The path has no topic folder of this layout.
        TopicNotFoundError: The tier does not have a topic, or the topic has no segment.
        DataLossError: Segments existed, but their descriptions are lost.
        InvalidOptionError: The tier does not have a topic id that the user chose, or the user must
            choose a topic id.
        CorruptSegmentError: A manifest is invalid.
    """
    topics = []
    chosen = incarnations(options, catalog, skips_lost=not options.fail_on_data_loss)
    for topic, folders in sorted(chosen.items()):
        topics.append(discover_topic(options, topic, folders, catalog, pool))
        if isinstance(options.selection, Assign) and options.fail_on_data_loss:
            _check_exist(topics[-1], folders, catalog)
        log_topic(topics[-1], options)
    check_partitions(options, topics, catalog)
    return tuple(topics)


def _check_exist(
    topic: DiscoveredTopic, folders: Sequence[TopicFolder], catalog: SegmentCatalog
) -> None:
    """Raises `TopicNotFoundError` if a selected partition has a higher number than all partitions
    in the tier. A partition with a lower number exists in Kafka, even if the tier has no segment
    of it.
    """
    if not topic.empty_partitions:
        return
    numbers = {
        number for folder in folders for number in catalog.layout.partitions(catalog.store, folder)
    }
    missing = [number for number in topic.empty_partitions if number > max(numbers, default=-1)]
    if missing:
        others = (
            ". If the partition exists but has no segment yet, set failOnDataLoss=false to read the"
            " other partitions"
        )
        raise TopicNotFoundError(
            f"topic {topic.topic!r} has no partition {', '.join(map(str, missing))} in the tier;"
            f" existing partitions: {', '.join(map(str, sorted(numbers))) or 'none'}"
            f"{others if topic.partitions else ''}"
        )


def check_partitions(
    options: ScanOptions, topics: Sequence[DiscoveredTopic], catalog: SegmentCatalog
) -> None:
    """Raises `TierNotFoundError` if no topic that a pattern selected has a partition. The tier then
    probably has another layout, whose folders look like topics but contain no partitions.
    """
    if not topics or not isinstance(options.selection, SubscribePattern):
        return
    if not any(topic.partitions or topic.others for topic in topics):
        raise _not_found("no partition", (), (), options, catalog)


def incarnations(
    options: ScanOptions,
    catalog: SegmentCatalog,
    may_lack: Collection[str] = (),
    *,
    skips_lost: bool = False,
) -> Mapping[str, Sequence[TopicFolder]]:
    """Returns the folders of each selected topic, one for each topic id. Topics in `may_lack` need
    not exist. If `skips_lost`, one of the named topics must exist, and a warning names the others.
    Raises the errors of `discover`.
    """

    def folders(topic: str | None) -> tuple[TopicFolder, ...]:
        return catalog.layout.topic_folders(catalog.store, options.key_prefix, topic)

    if isinstance(options.selection, SubscribePattern):
        everything: dict[str, list[TopicFolder]] = defaultdict(list)
        for folder in folders(None):
            everything[folder.topic].append(folder)
        matching = {topic: everything[topic] for topic in options.selection.wanted(everything)}
        if not matching and not may_lack:
            problem = f"no topic matches {options.selection.pattern!r}"
            raise _not_found(problem, everything, (), options, catalog)
        return matching
    named = {topic: folders(topic) for topic in options.selection.wanted(())}
    missing = [topic for topic, there in named.items() if not there and topic not in may_lack]
    if missing:
        problem = f"no topic {', '.join(map(repr, missing))}"
        available = {folder.topic for folder in folders(None)}
        error = _not_found(problem, available, missing, options, catalog)
        if len(missing) == len(named) or prefixes_of_names(options.key_prefix, available, missing):
            raise error
        if not skips_lost:
            advice = "set failOnDataLoss=false to read the other topics"
            raise error.advising(f". If retention deleted all of its segments, {advice}")
        log.warning("%s; reading the other topics", error.message)
    return {topic: there for topic, there in named.items() if there}


def _not_found(
    problem: str,
    available: Iterable[str],
    missing: Sequence[str],
    options: ScanOptions,
    catalog: SegmentCatalog,
) -> TopicNotFoundError | TierNotFoundError:
    """Returns the error for topics that the tier does not have; its message begins with
    `problem`.
    """
    store, layout = catalog.store, catalog.layout
    names = sorted(available)
    uri = store.uri(options.key_prefix)
    if names and has_partitions(store, layout, options.key_prefix):
        prefixes = prefixes_of_names(options.key_prefix, names, missing)
        problem += f" in the tier at {uri}; it has {', '.join(names)}{did_you_mean(prefixes)}"
        return TopicNotFoundError(problem, may_have_expired=not prefixes)
    if has_puffin_files(store, options.key_prefix):
        return TierNotFoundError(
            f"{problem} at {uri}: there are Puffin files of the plugin's Iceberg mode"
            " (segment.format=iceberg), which holds no segments; read the table"
            " <iceberg.namespace>.<topic> instead"
        )
    searched = f"no tier at {uri}: searched for folders {options.key_prefix}{layout.folder_pattern}"
    searched += f" of layout {options.layout!r}"
    if hint := hint_of_tier(store, layout, options.key_prefix, missing):
        return TierNotFoundError(f"{searched}; {hint}")
    return TierNotFoundError(
        f"{searched}. Check option 'path', and option 'keyPrefix', which is the plugin's key.prefix"
        " with its slash if it has one"
    )


def has_puffin_files(store: ObjectStore, prefix: str) -> bool:
    """Returns whether one of the first objects with the prefix is a Puffin file, which the plugin's
    Iceberg mode writes.
    """
    listed = islice(store.list_objects(prefix), _MAX_LISTED)
    return any(info.key.endswith(".puffin") for info in listed)


def iceberg_hint(store: ObjectStore, topic: str) -> str:
    """Returns a text about missing offsets of a topic in a store with Puffin files."""
    return (
        f". {store.uri('')} has Puffin files of the plugin's Iceberg mode (segment.format=iceberg),"
        f" so these offsets may be in the table <iceberg.namespace>.{printable(topic)}: read them"
        " there"
    )


def discover_topic(
    options: ScanOptions,
    topic: str,
    folders: Sequence[TopicFolder],
    catalog: SegmentCatalog,
    pool: Executor,
) -> DiscoveredTopic:
    """Lists the partitions of one topic, and chooses the topic id to read: the id in the options,
    or else the id with the newest event. `folders` has one folder per topic id. Raises the errors
    of `discover`.
    """
    pairs = [
        (folder, partition)
        for folder in folders
        for partition in catalog.layout.partitions(catalog.store, folder)
    ]
    listed = list(pool.map(lambda pair: catalog.listed(*pair), pairs))
    chosen = _choose(options, topic, folders, listed)
    if wanted_topic_id(options, topic) is None:
        _check_newest(options, chosen, listed)
    here = {each.partition: each for each in listed if each.folder == chosen}
    wanted: Sequence[int] = sorted({each.partition for each in listed})
    if isinstance(options.selection, Assign):
        wanted = options.selection.partitions[topic]
    held = [here[number] for number in wanted if number in here and here[number].has_segments]
    held_numbers = {each.partition for each in held}
    empty = [number for number in wanted if number not in held_numbers]
    incomplete = [
        (number, orphan)
        for number in empty
        if number in here
        for orphan in _incomplete_segments(options, here[number])
    ]
    with_segments = {each.folder for each in listed if each.has_segments}
    discovered = DiscoveredTopic(
        topic,
        chosen.topic_id,
        tuple(folder.topic_id for folder in folders if folder != chosen),
        tuple(held),
        tuple(empty),
        tuple(incomplete),
        frozenset(folder.topic_id for folder in with_segments - {chosen}),
        tuple(
            each
            for each in listed
            if each.partition in wanted
            and not (each.folder == chosen and each.partition not in empty)
        ),
    )
    if not held and isinstance(options.selection, Subscribe) and options.fail_on_data_loss:
        raise TopicNotFoundError(
            f"topic {topic!r} has no complete segment at {catalog.store.uri(chosen.folder)};"
            f" existing objects: {some(map(str, incomplete)) or 'none'}",
            may_have_expired=not incomplete,
            topic=topic,
        )
    return discovered


def wanted_topic_id(options: ScanOptions, topic: str) -> str | None:
    """Returns the topic id that option `topicId` sets for a topic; `None` if it sets no id."""
    return options.topic_ids.get(topic, options.topic_ids.get(""))


def log_topic(topic: DiscoveredTopic, options: ScanOptions) -> None:
    """Logs objects of a topic that are not read. A topic id that the user chose is no warning."""
    for listed in topic.partitions:
        _log_orphans(listed)
    is_chosen = wanted_topic_id(options, topic.topic) is not None
    for note in topic.notes:
        is_choice = is_chosen and note == topic.id_note
        log.log(logging.INFO if is_choice else logging.WARNING, "%s", note)


def _incomplete_segments(options: ScanOptions, listed: ListedPartition) -> list[Orphan]:
    """Returns the objects of a partition that has no complete segment.

    Raises `DataLossError` if the objects belong to several segments and data loss is not allowed.
    Brokers copy one segment at a time. So a single incomplete segment may be a copy in progress,
    but several prove a loss.
    """
    incomplete = [orphan for orphan in listed.orphans if orphan.base_offset is not None]
    if len({orphan.base_offset for orphan in incomplete}) > 1 and options.fail_on_data_loss:
        raise DataLossError(
            f"only incomplete segments exist: {some(map(str, incomplete))};"
            " set failOnDataLoss=false to skip the partition",
            topic=listed.topic,
            partition=listed.partition,
        )
    return list(listed.orphans)


def _check_newest(
    options: ScanOptions, chosen: TopicFolder, listed: Sequence[ListedPartition]
) -> None:
    """Raises `DataLossError` if another topic id has newer objects than the chosen one. If data
    loss is allowed, logs a warning instead.

    The other topic id has no readable segments: the topic was probably just created again, or the
    descriptions of its segments are lost.
    """
    readable = {chosen, *(each.folder for each in listed if each.has_segments)}
    others = [
        orphan
        for each in listed
        if each.folder not in readable
        for orphan in each.orphans
        if orphan.base_offset is not None
    ]
    if not others:
        return
    entries = (entry for each in listed if each.folder == chosen for entry in each.entries)
    written = (info.last_modified_ms or -1 for entry in entries for _, info in entry.objects)
    newest = max(written, default=-1)
    newer = [orphan for orphan in others if orphan.written_ms is None or orphan.written_ms > newest]
    if not newer:
        return
    text = (
        f"topic {chosen.topic}: the segments of topic id {chosen.topic_id} are older than objects"
        f" of another topic id: {some(map(str, newer))}"
    )
    if options.fail_on_data_loss:
        raise DataLossError(
            f"{text}. Choose the topic id with option 'topicId', or wait until a copy in progress"
            " has ended",
            topic=chosen.topic,
        )
    log.warning("%s", text)


def _choose(
    options: ScanOptions,
    topic: str,
    folders: Sequence[TopicFolder],
    listed: Sequence[ListedPartition],
) -> TopicFolder:
    """Returns the folder of the topic id in the options; without such an option, the folder of the
    topic id with the newest event.
    """
    ids = ", ".join(folder.topic_id for folder in folders)
    wanted = wanted_topic_id(options, topic)
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
    for each in listed:
        for segment in (*each.all(), *each.damaged()):
            if segment.event_timestamp_ms is None:
                raise InvalidOptionError(
                    f"topic {topic!r} has several topic ids ({ids}), and layout {options.layout!r}"
                    " does not record which id is newest; choose an id with option 'topicId'"
                )
            newest[each.folder] = max(newest[each.folder], segment.event_timestamp_ms)
    latest = max(newest.values())
    winners = [folder for folder, timestamp in newest.items() if timestamp == latest]
    if len(winners) > 1:
        raise InvalidOptionError(
            f"topic {topic!r} has several topic ids ({ids}) with the same newest event timestamp;"
            " choose an id with option 'topicId'"
        )
    return winners[0]


def _log_orphans(listed: ListedPartition) -> None:
    """Logs warnings about objects that belong to no complete segment. Logs an object of a copy that
    may be in progress at level INFO, because it is usual.
    """
    last = listed.entries[-1].base_offset if listed.entries else -1
    by_level: dict[int, list[Orphan]] = {logging.WARNING: [], logging.INFO: []}
    for orphan in listed.orphans:
        is_copy_in_progress = (
            orphan.described is None
            and orphan.base_offset is not None
            and orphan.base_offset >= last
        )
        by_level[logging.INFO if is_copy_in_progress else logging.WARNING].append(orphan)
    for level, orphans in by_level.items():
        if orphans:
            text = some(map(str, orphans))
            name = f"{listed.topic}-{listed.partition}"
            log.log(level, "%s: no complete segment, not read: %s", name, text)


MAX_FOLDERS: Final = 8
"""Maximum number of folders to list to suggest a key prefix."""
_MAX_TOPICS: Final = 3
"""Maximum number of topic folders that must show whether a layout fits."""


def hint_of_tier(store: ObjectStore, layout: Layout, key_prefix: str, wanted: Iterable[str]) -> str:
    """Returns a suggestion for the end of an error message: key prefixes, or another layout.
    Returns an empty text if there is no suggestion.
    """
    if prefixes := likely_prefixes(store, layout, key_prefix, wanted):
        return did_you_mean(prefixes).removeprefix("; ")
    for name in BUILT_IN_LAYOUTS:
        if name == layout.name:
            continue
        other = find_layout(name)
        if has_partitions(store, other, key_prefix):
            return f"the objects have layout {name!r}: set layout={name}"
        if prefixes := likely_prefixes(store, other, key_prefix, ()):
            return (
                f"the objects have layout {name!r}: set layout={name} and keyPrefix {prefixes[0]!r}"
            )
    return ""


def has_partitions(store: ObjectStore, layout: Layout, key_prefix: str) -> bool:
    """Returns whether topic folders under a key prefix contain partitions. Folders of another
    layout may have the same names, but they contain no partitions.
    """
    folders = islice(layout.topic_folders(store, key_prefix, None), _MAX_TOPICS)
    return any(layout.partitions(store, folder) for folder in folders)


def likely_prefixes(
    store: ObjectStore, layout: Layout, key_prefix: str, wanted: Iterable[str]
) -> tuple[str, ...]:
    """Suggests key prefixes to try instead of `key_prefix`.

    Searches the parent folder of `key_prefix` and the root of the store, and their subfolders down
    to the first folder with topics. Looks at no more than `MAX_FOLDERS` folders.

    Args:
        store: Store of the tier.
        layout: Layout that recognizes the folders of topics.
        key_prefix: Prefix under which no topic was found. The result does not contain this prefix.
        wanted: Names of topics. If a folder has topics whose names end with one of them, the result
            has the prefixes of these topics. For another folder with topics, the result has the
            folder itself.
    """
    topics = tuple(wanted)
    waiting = list(dict.fromkeys((key_prefix[: key_prefix.rfind("/") + 1], "")))
    visited: set[str] = set()
    prefixes: list[str] = []
    while waiting and len(visited) < MAX_FOLDERS:
        folder = waiting.pop(0)
        if folder in visited:
            continue
        visited.add(folder)
        names = [incarnation.topic for incarnation in layout.topic_folders(store, folder, None)]
        if names:
            prefixes += prefixes_of_names(folder, names, topics) or (folder,)
        else:
            waiting += store.list_folders(folder)
    others = (prefix for prefix in dict.fromkeys(prefixes) if prefix != key_prefix)
    return tuple(prefix for prefix in others if has_partitions(store, layout, prefix))


def prefixes_of_names(folder: str, names: Iterable[str], wanted: Iterable[str]) -> tuple[str, ...]:
    """Returns the key prefixes with which a scan would find the topics in `wanted`, according to
    the names of folders. Example: for topic `orders` and a folder `kts-orders`, the prefix is
    `kts-`.
    """
    ends = ((name, topic) for topic in wanted for name in sorted(names, key=len))
    heads = (name.removesuffix(topic) for name, topic in ends if name.endswith(topic))
    return tuple(dict.fromkeys(folder + head for head in heads))


def did_you_mean(prefixes: Iterable[str]) -> str:
    """Returns a suggestion of key prefixes for the end of an error message; an empty text if there
    are no prefixes.
    """
    names = " or ".join(repr(prefix) for prefix in prefixes)
    return f"; did you mean keyPrefix {names}?" if names else ""
