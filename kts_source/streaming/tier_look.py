"""What one listing of the tier shows of the topics of a stream."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from kts_source.errors import (
    DataLossError,
    StreamOffsetError,
    TieredKafkaError,
    TierNotFoundError,
    TopicNotFoundError,
)
from kts_source.layout.find_layout import find_layout
from kts_source.layout.layout import NamingLayout
from kts_source.options.selection import SubscribePattern, TimestampBound, TimestampsBound
from kts_source.planning.discover import (
    DiscoveredTopic,
    discover_topic,
    incarnations,
    log_topic,
)
from kts_source.planning.segment_catalog import PLANNING_THREADS, SegmentCatalog
from kts_source.planning.side_files import SideFiles
from kts_source.read.segment_source import SegmentSource
from kts_source.streaming.listing_memory import ListingMemory
from kts_source.streaming.log_look import NewerTopic, TopicLook
from kts_source.streaming.partition_look import PartitionLook
from kts_source.texts import some
from kts_source.tier import open_tier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kts_source.layout.layout import Layout, TopicFolder
    from kts_source.options import ScanOptions
    from kts_source.planning.segment_catalog import ListedPartition
    from kts_source.streaming.admission import Place
    from kts_source.streaming.log_look import LogLook, Look
    from kts_source.streaming.offsets import StreamPosition, TopicPosition

log = logging.getLogger(__name__)


class Lister:
    """Lists the tier for one stream.

    Args:
        options: What is read. The tier is opened from them.
        clock: Seconds.
    """

    def __init__(self, options: ScanOptions, clock: Callable[[], float]) -> None:
        self._options = replace(options, key_ring=options.key_ring.loaded())
        self.interval_ms = options.stream.listing_interval_ms
        self.tier = open_tier(options)
        self._describing = ThreadPoolExecutor(PLANNING_THREADS, "kts-describe")
        self.pool = ThreadPoolExecutor(PLANNING_THREADS, "kts-look")
        self._listings: ListingMemory | None = None
        layout = self._new_layout()
        if self.tier.store.lists_in_pages and isinstance(layout, NamingLayout):
            interval_ms = options.stream.full_listing_interval_ms
            self._listings = ListingMemory(layout, interval_ms, clock)
        self._told: dict[str, object] = {}  # what was said of a topic, to say it once
        self._absent: set[str] = set()  # topics that are waited for
        # Which of several incarnations is newest takes all their manifests to find out.
        self._settled: dict[str, tuple[frozenset[str], str]] = {}
        self._older: dict[str, frozenset[str]] = {}  # than one that the stream was in since

    def close(self) -> None:
        """Lets the store and the threads go."""
        self._describing.shutdown(wait=False, cancel_futures=True)
        self.pool.shutdown(wait=False, cancel_futures=True)
        self.tier.close()

    def look(self, position: StreamPosition, before: Look | None) -> Look:
        """Lists all selected topics; see `Looker`.

        Raises:
            TieredKafkaError: See `discover`.
        """
        catalog = self._catalog(remembered=True)
        for one in (before or {}).values():
            for part in one.partitions.values():
                # What heals it may be listed anywhere.
                if self._listings and isinstance(part, PartitionLook) and part.log.missing:
                    self._listings.forget(part.part.folder, part.part.partition)
        found = {}
        for topic, folders in sorted(self._incarnations(position, catalog).items()):
            look = self._topic(topic, folders, position.topics.get(topic), catalog, before)
            if look is not None:
                found[topic] = look
        return found

    def _partitions(
        self,
        parts: Iterable[ListedPartition],
        catalog: SegmentCatalog,
        before: Mapping[int, LogLook],
    ) -> dict[int, LogLook]:
        """Looks at listed partitions of one topic side by side."""
        bounds = (self._options.starting, self._options.ending)
        dated = any(isinstance(one, TimestampBound | TimestampsBound) for one in bounds)
        in_part = not dated or self._options.max_timestamp_ahead_ms is not None

        def looked_at(part: ListedPartition) -> PartitionLook:
            known = before.get(part.partition)
            if isinstance(known, PartitionLook) and _same(known.part, part):
                return known
            place = part.folder, part.partition
            memory = self._listings
            if memory and memory.is_assumed(*place) and not _goes_on(known, part):
                memory.forget(*place)
                part = catalog.listed(*place)
            return self._partition(part, in_part=in_part)

        looks = self.pool.map(looked_at, parts)
        return {look.part.partition: look for look in looks if not look.is_empty}

    def again(self, ranges: Mapping[Place, tuple[str, int]]) -> dict[Place, LogLook]:
        """Looks at partitions of a batch that was planned before; see `Looker`."""
        catalog = self._catalog()
        folders: dict[tuple[str, str], Sequence[TopicFolder]] = {}
        wanted = []
        for place, (topic_id, start) in ranges.items():
            name = place.topic, topic_id
            if name not in folders:
                every = catalog.layout.topic_folders(
                    catalog.store, self._options.key_prefix, place.topic
                )
                folders[name] = [folder for folder in every if folder.topic_id == topic_id]
            wanted += [(place, folder, start) for folder in folders[name]]

        def looked_at(one: tuple[Place, TopicFolder, int]) -> tuple[Place, PartitionLook] | None:
            place, folder, start = one
            part = catalog.listed(folder, place.partition)
            if not part.has_segments:
                return None
            return place, self._partition(part, keeps_from=start)

        found = filter(None, self.pool.map(looked_at, wanted))
        return {place: look for place, look in found if not look.is_empty}

    def _incarnations(
        self, position: StreamPosition, catalog: SegmentCatalog
    ) -> Mapping[str, Sequence[TopicFolder]]:
        try:
            found = incarnations(self._options, catalog, position.topics.keys())
        except TopicNotFoundError as error:
            if not isinstance(self._options.selection, SubscribePattern):
                raise
            log.info("waiting for topics: %s", error)
        except TierNotFoundError as error:
            if not position.topics:
                raise
            log.warning("waiting for topics that were there: %s", error)
        else:
            for topic in self._options.selection.wanted(position.topics):
                if topic in found:
                    self._absent.discard(topic)
                elif topic in position.topics and topic not in self._absent:
                    self._absent.add(topic)
                    log.warning("topic %s: waiting, the tier has nothing of it any more", topic)
            return found
        return {}

    def _catalog(self, *, remembered: bool = False) -> SegmentCatalog:
        """A catalog of what is listed from now on.

        Args:
            remembered: Whether listings may go on from earlier ones.
        """
        remembering = self._listings if remembered else None
        return SegmentCatalog(
            self.tier,
            remembering or self._new_layout(),
            self._describing,
            fail_on_data_loss=self._options.fail_on_data_loss,
        )

    def _new_layout(self) -> Layout:
        """Returns a layout that has not looked at anything: an instance is of one plan."""
        options = self._options
        return find_layout(
            options.layout, end_of_log=options.end_of_log, paths=1 + len(options.disk_paths)
        )

    def _partition(
        self, part: ListedPartition, *, keeps_from: int | None = None, in_part: bool = True
    ) -> PartitionLook:
        source = SegmentSource(self.tier, self._options.key_ring, pack=part.side_files)
        side_files = SideFiles(source, max_batch_bytes=self._options.max_batch_bytes)
        try:
            return PartitionLook(
                self._options, part, side_files, keeps_from=keeps_from, in_part=in_part
            )
        except TieredKafkaError as error:
            raise error.located(topic=part.topic, partition=part.partition) from error.__cause__

    def _topic(
        self,
        topic: str,
        folders: Sequence[TopicFolder],
        position: TopicPosition | None,
        catalog: SegmentCatalog,
        before: Look | None,
    ) -> TopicLook | None:
        options = self._options
        known = None if position is None else position.topic_id
        asked = options.topic_ids.get(topic, options.topic_ids.get(""))
        if None not in (known, asked) and known != asked:
            raise StreamOffsetError(
                f"the checkpoint is of topic id {known}, and option 'topicId' says {asked}: begin a"
                " new checkpoint to read another incarnation",
                topic=topic,
            )
        last = None if before is None else before.get(topic)
        found: DiscoveredTopic | None
        if known is None:
            found = discover_topic(options, topic, folders, catalog, self.pool)
            newer = None
            if asked is None:
                self._note_older(found)
        else:
            here = [folder for folder in folders if folder.topic_id == known]
            # What has expired may come again: a partition without segments is no loss by itself.
            pinned = replace(
                options, topic_ids={**options.topic_ids, topic: known}, fail_on_data_loss=False
            )
            found = discover_topic(pinned, topic, here, catalog, self.pool) if here else None
            newer = None
            if asked is None:
                newer = self._newer(topic, folders, known, catalog)
            if found is None and newer is None:
                return None
            if found is not None and position is not None:
                _check_parts(found, position, options)
        if found is None:
            return TopicLook(topic, str(known), {}, self._behind(newer, catalog))
        same = {} if last is None or last.topic_id != found.topic_id else last.partitions
        unread = (found.notes, *(part.orphans for part in found.partitions))
        if self._told.get(topic) != unread:
            self._told[topic] = unread
            log_topic(found)
        catalog.expect(len(found.partitions))
        return TopicLook(
            topic,
            found.topic_id,
            self._partitions(found.partitions, catalog, same),
            self._behind(newer, catalog),
        )

    def _behind(self, newer: DiscoveredTopic | None, catalog: SegmentCatalog) -> NewerTopic | None:
        if newer is None:
            return None
        # Looked at once: what was found in the first look at a log is not to be found anew.
        looks = cache(lambda: self._partitions(newer.partitions, catalog, {}))
        return NewerTopic(newer.topic_id, looks)

    def _newer(
        self, topic: str, folders: Sequence[TopicFolder], known: str, catalog: SegmentCatalog
    ) -> DiscoveredTopic | None:
        """The incarnation that has taken the place of the one that the stream is in.

        One that was seen to be older is none, also when nothing else is left: the segments of the
        stream's own may all have expired.
        """
        ids = frozenset(folder.topic_id for folder in folders)
        unknown = ids - self._older.get(topic, frozenset()) - {known}
        others = [folder for folder in folders if folder.topic_id in unknown]
        # Of one without, the first copy is under way.
        if not any(self._has_segments(folder, catalog) for folder in others):
            return None
        compared = [folder for folder in folders if folder.topic_id in {*unknown, known}]
        options = self._options
        settled = self._settled.get(topic)
        is_settled = settled is not None and settled[0] == ids
        if settled is not None and is_settled:
            options = replace(options, topic_ids={**options.topic_ids, topic: settled[1]})
        try:
            found = discover_topic(options, topic, compared, catalog, self.pool)
        except (DataLossError, TopicNotFoundError) as error:  # another first copy is under way
            log.info("%s", error)
            return None
        if not is_settled:
            self._note_older(found)
            if unknown <= {*found.older_ids, found.topic_id}:
                self._settled[topic] = ids, found.topic_id
        return None if found.topic_id == known or not found.partitions else found

    def _has_segments(self, folder: TopicFolder, catalog: SegmentCatalog) -> bool:
        numbers = catalog.layout.partitions(catalog.store, folder)
        return any(catalog.listed(folder, number).has_segments for number in numbers)

    def _note_older(self, found: DiscoveredTopic) -> None:
        known = self._older.get(found.topic, frozenset())
        self._older[found.topic] = known | found.older_ids


def _same(before: ListedPartition, now: ListedPartition) -> bool:
    def objects(part: ListedPartition) -> object:
        damaged = [one.described for one in part.orphans]
        return part.folder, part.entries, part.orphans, damaged, part.facts

    return len(before.entries) == len(now.entries) and objects(before) == objects(now)


def _goes_on(known: LogLook | None, now: ListedPartition) -> bool:
    """Whether what is new of a partition follows, in the same leader epoch, on what was known.
    After an election brokers may have copied anything else again, too.
    """
    if not isinstance(known, PartitionLook) or not known.part.entries or not now.entries:
        return False
    last = known.part.entries[-1]
    numbers = [at for at, entry in enumerate(now.entries) if entry.base_offset >= last.base_offset]
    found = now.described(numbers)
    if len(found) < len(numbers) or not found or now.entries[numbers[0]] != last:
        return False
    epochs = {found[0].leader_epochs[-1].epoch}
    return all(
        after.start_offset == before.stop_offset
        and {one.epoch for one in after.leader_epochs} == epochs
        for before, after in pairwise(found)
    )


def _check_parts(found: DiscoveredTopic, position: TopicPosition, options: ScanOptions) -> None:
    """A partition of which only parts of several segments are left has lost its manifests; below
    the stream's offset that is a delete under way.

    Raises:
        DataLossError: Above it, unless loss is allowed.
    """
    for number in found.empty_partitions:
        start = position.offsets.get(number, 0)
        parts = [
            part
            for part in found.parts
            if part.base_offset is not None and part.base_offset >= start
        ]
        if len({part.base_offset for part in parts}) > 1 and options.fail_on_data_loss:
            raise DataLossError(
                f"only parts of segments are there behind offset {start}, not one whole:"
                f" {some(map(str, parts))}; failOnDataLoss=false waits for others",
                topic=found.topic,
                partition=number,
            )
