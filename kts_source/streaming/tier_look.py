"""Takes snapshots ("looks") of a stream's topics from the tier, without brokers.

A look describes the start, the end and the segments of each partition. Manifests are read when they
are needed. So even if the tier has years of history, only the manifests of the next batch are read.

New segments appear at the end of a partition's listing, and retention deletes segments at its
beginning. So `ListingMemory` does not repeat a long listing: it lists only the first page and the
keys after the last known segments, and assumes that all other keys are unchanged until the next
full listing. If the new pages contradict the earlier listing, it makes a full listing immediately.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Final

from kts_source.errors import (
    DataLossError,
    StreamOffsetError,
    TieredKafkaError,
    TierNotFoundError,
    TopicNotFoundError,
)
from kts_source.layout.layout import NamingLayout
from kts_source.options.selection import SubscribePattern, TimestampBound, TimestampsBound
from kts_source.planning.bounds import refuse_contradiction
from kts_source.planning.isolation import decide
from kts_source.planning.planner import plan_log
from kts_source.planning.segment_catalog import (
    PLANNING_THREADS,
    DiscoveredTopic,
    SegmentCatalog,
    discover_topic,
    incarnations,
    log_topic,
    wanted_topic_id,
)
from kts_source.planning.side_files import SideFiles
from kts_source.planning.tier_source import layout_of, open_tier_log
from kts_source.read.segment_source import SegmentSource
from kts_source.store.object_store import key_order
from kts_source.streaming.checks import remaining_bounds, report_gone, report_undecided
from kts_source.streaming.lag import STORE, PartitionLag
from kts_source.streaming.look import NewerTopic, PendingSegment, TopicLook, segment_order
from kts_source.texts import some
from kts_source.tier import open_tier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kts_source.layout.layout import PartitionListing, SegmentEntry, TopicFolder
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.options import ScanOptions
    from kts_source.planning.bounds import TimestampLookup
    from kts_source.planning.lineage import Hole, PartitionLog, SegmentRange
    from kts_source.planning.planner import PlannedPartition
    from kts_source.planning.segment_catalog import ListedPartition
    from kts_source.planning.tier_source import TierLog
    from kts_source.store.object_store import ObjectInfo, ObjectStore
    from kts_source.streaming.look import LogLook, Look
    from kts_source.streaming.offsets import (
        BatchRange,
        StreamPosition,
        TopicPartition,
        TopicPosition,
    )
    from segment_format.isolation import OpenTransaction


log = logging.getLogger(__name__)

_FIRST_SEGMENTS: Final = 2
_MAX_SEGMENTS: Final = 256
PAGE: Final = 1000
"""Number of keys that a store lists in one request."""
_SEEN_AGAIN: Final = 30
"""The last objects of a listing, up to this number, are always listed again, because they include
copies in progress.
"""
_GAIN_IN_A_ROW: Final = 8
"""All partitions are listed together if this reduces the number of requests by at least this
factor. The factor is high, because these requests are sequential, but separate listings of
partitions run concurrently.
"""


class TierLogLook:
    """A `LogLook` that describes a partition as one listing of the tier shows it."""

    def __init__(self, options: ScanOptions, tier_log: TierLog) -> None:
        self.place = tier_log.place
        self.tier_log = tier_log
        self.listed = tier_log.listed
        self._options = options
        self._stable: tuple[bool, int] | None = None
        self._ends_before_holes: dict[int, int] = {}
        if tier_log.contradiction is not None:
            refuse_contradiction(self.place, tier_log.contradiction)

    @property
    def log(self) -> PartitionLog:
        """See `LogLook.log`."""
        return self.tier_log.log

    @property
    def written_stop(self) -> int:
        """See `LogLook.written_stop`."""
        return self.log.stop

    @property
    def is_complete(self) -> bool:
        """See `LogLook.is_complete`."""
        return self.tier_log.is_complete

    def end(self) -> int:
        """See `LogLook.end`. For `read_committed`, this is the last stable offset of the records in
        the tier.
        """
        tier_log = self.tier_log
        # Compute the end again if more of the log was read in the meantime.
        while self._stable is None or self._stable[0] != tier_log.is_complete:
            stop = tier_log.log.stop
            end = stop
            if stop > tier_log.log.log_start:
                end = max(tier_log.last_batch_stop(), tier_log.log.log_start)
            if self._options.read_committed and end > tier_log.log.log_start:
                _, decisions = tier_log.decided(end - 1, end)
                end = _first_undecided(decisions.undecided, end)
            if stop == tier_log.log.stop:
                self._stable = tier_log.is_complete, end
        return self._stable[1]

    def end_before(self, hole: Hole) -> int:
        """See `LogLook.end_before`."""
        if hole.start not in self._ends_before_holes:
            self._ends_before_holes[hole.start] = self._end_before(hole)
        return self._ends_before_holes[hole.start]

    def _end_before(self, hole: Hole) -> int:
        log = self.log
        ranges = tuple(span for span in log.ranges if span.stop <= hole.start)
        if not self._options.read_committed or not ranges:
            return hole.start
        log_before = replace(
            log,
            stop=hole.start,
            ranges=ranges,
            holes=tuple(hole_below for hole_below in log.holes if hole_below.stop < hole.start),
            unverifiable=tuple(gap for gap in log.unverifiable if gap.stop < hole.start),
        )
        decisions = decide(log_before, hole.start - 1, hole.start, self.tier_log.side_files)
        return _first_undecided(decisions.undecided, hole.start)

    def epoch_of(self, offset: int) -> int | None:
        """See `LogLook.epoch_of`."""
        epochs = [entry.epoch for entry in self.log.lineage if entry.start_offset <= offset]
        return epochs[-1] if epochs else None

    def first_offset_at_or_after(self, timestamp_ms: int) -> int | None:
        """See `LogLook.first_offset_at_or_after`."""
        return self.tier_log.first_offset_at_or_after(timestamp_ms)

    def lag(self, position: int) -> PartitionLag:
        """See `LogLook.lag`."""
        end = self.end()
        offsets = max(end - position, 0)
        if not offsets:
            return PartitionLag(end, 0, 0, None, self.log.log_start)
        # Use the timestamp of the last record that was read: the next record is rarely older.
        before = self.tier_log.covering(max(position - 1, self.log.log_start), position + 1)
        times = [
            span.segment.max_timestamp_ms
            for span in before.ranges
            if span.start <= position <= span.stop and span.segment.max_timestamp_ms >= 0
        ]
        size, oldest = self._stored_bytes(position), min(times, default=None)
        return PartitionLag(end, offsets, size, oldest, self.log.log_start)

    def _stored_bytes(self, position: int) -> int:
        """Estimates the stored bytes of the listed segments from an offset on."""
        entries = self.listed.entries
        size = 0
        for number, entry in enumerate(entries):
            is_last = number + 1 == len(entries)
            stop = self.log.stop if is_last else entries[number + 1].base_offset
            log_object = entry.object("log")
            if stop <= position or log_object is None:
                continue
            offsets = max(stop - entry.base_offset, 1)
            unread = stop - max(entry.base_offset, position)
            size += log_object.size * min(unread, offsets) // offsets
        return size

    def plan(self, wanted: BatchRange) -> PlannedPartition | None:
        """See `LogLook.plan`. Raises `DataLossError` if offsets were lost after the batch's end was
        chosen, or if the batch ends above the last stable offset.
        """

        def bounds_of(log: PartitionLog, _: TimestampLookup) -> tuple[int, int]:
            return remaining_bounds(self.place, wanted, log.log_start, log.stop)

        try:
            planned = plan_log(self._options, self.tier_log, bounds_of)
        finally:
            self.listed.save()
        if planned is None:
            report_gone(self._options, wanted)
            return None
        plan = planned.plan
        if plan.stop < plan.wanted_stop:
            report_undecided(self.place, wanted, plan.stop, plan.end_reason)
        return planned

    def pending(self, start: int, stop: int) -> Iterator[PendingSegment]:
        """Yields segments like `LogLook.pending`, and skips holes. After it has read the last
        unread manifests of the log, the iterator ends: the segments that it has yielded may be
        wrong, and the caller must start again.
        """
        position, count = start, _FIRST_SEGMENTS
        while position < stop:
            was_complete = self.is_complete
            limit = min(self.tier_log.approximate_stop(position, count), stop)
            log = self.tier_log.covering(position, limit)
            if limit <= position or (self.is_complete and not was_complete):
                return
            for span in log.ranges:
                low, high = max(span.start, position), min(span.stop, limit)
                if low < high:
                    yield _pending_segment(span, low, high)
            position, count = limit, min(2 * count, _MAX_SEGMENTS)


def _first_undecided(undecided: Sequence[OpenTransaction], stop: int) -> int:
    return min([stop, *(transaction.first_offset for transaction in undecided)])


def _pending_segment(span: SegmentRange, start: int, stop: int) -> PendingSegment:
    segment = span.segment
    size = segment.objects.size_in_bytes
    offsets = segment.stop_offset - segment.start_offset
    if stop - start < offsets:
        size = size * (stop - start) // offsets
    return PendingSegment(start, stop, size, segment_order(segment.max_timestamp_ms))


class TierLooker:
    """A `Looker` that takes snapshots of a stream's topics from the tier.

    Args:
        options: Options of the scan. They are also used to open the tier.
    """

    def __init__(self, options: ScanOptions, clock: Callable[[], float]) -> None:
        self._options = replace(options, key_ring=options.key_ring.loaded())
        self.interval_ms = options.stream.listing_interval_ms
        self.tier = open_tier(options)
        self._describing = ThreadPoolExecutor(PLANNING_THREADS, "kts-describe")
        self.pool = ThreadPoolExecutor(PLANNING_THREADS, "kts-look")
        self.waits_for: str | None = None
        self._listings: ListingMemory | None = None
        layout = layout_of(options)
        if self.tier.store.lists_in_pages and isinstance(layout, NamingLayout):
            interval_ms = options.stream.full_listing_interval_ms
            self._listings = ListingMemory(layout, interval_ms, clock)
        self._logged: dict[str, object] = {}  # warnings of each topic, to log them once
        self._absent: set[str] = set()  # topics for which the stream waits
        # Cached, because finding the newest of several topic ids reads all their manifests.
        self._settled: dict[str, tuple[frozenset[str], str]] = {}
        self._older: dict[str, frozenset[str]] = {}  # ids older than an incarnation the stream read

    def close(self) -> None:
        """See `Looker.close`."""
        self._describing.shutdown(wait=False, cancel_futures=True)
        self.pool.shutdown(wait=False, cancel_futures=True)
        self.tier.close()

    def look(self, position: StreamPosition, before: Look | None) -> Look:
        """See `Looker.look`."""
        catalog = self._catalog(remembered=True)
        for topic_look in (before or {}).values():
            for each in topic_look.partitions.values():
                # List everything: objects that fill a hole may be anywhere in the listing.
                if self._listings and isinstance(each, TierLogLook) and each.log.missing:
                    self._listings.forget(each.listed.folder, each.listed.partition)
        looks = {}
        for topic, folders in sorted(self._incarnations(position, catalog).items()):
            look = self._topic(topic, folders, position.topics.get(topic), catalog, before)
            if look is not None:
                looks[topic] = look
        return looks

    def _partitions(
        self,
        partitions: Iterable[ListedPartition],
        catalog: SegmentCatalog,
        before: Mapping[int, LogLook],
    ) -> dict[int, LogLook]:
        """Takes snapshots of the listed partitions of one topic concurrently, and returns them by
        partition number. Reuses the snapshot in `before` if the listing of the partition is
        unchanged.
        """
        bounds = (self._options.starting, self._options.ending)
        has_times = any(isinstance(bound, TimestampBound | TimestampsBound) for bound in bounds)
        in_part = not has_times or self._options.max_timestamp_ahead_ms is not None

        def look_at(listed: ListedPartition) -> TierLogLook | None:
            last_look = before.get(listed.partition)
            if isinstance(last_look, TierLogLook) and _is_same(last_look.listed, listed):
                return last_look
            key = listed.folder, listed.partition
            memory = self._listings
            if memory and memory.is_assumed(*key) and not _new_segments_follow(last_look, listed):
                memory.forget(*key)
                listed = catalog.listed(*key)
            return self._partition(listed, in_part=in_part)

        looks = self.pool.map(look_at, partitions)
        return {look.listed.partition: look for look in looks if look is not None}

    def look_at_batch(
        self, ranges: Mapping[TopicPartition, tuple[str, int]]
    ) -> dict[TopicPartition, LogLook]:
        """See `Looker.again`."""
        catalog = self._catalog()
        folders: dict[tuple[str, str], Sequence[TopicFolder]] = {}
        wanted = []
        for partition, (topic_id, start) in ranges.items():
            name = partition.topic, topic_id
            if name not in folders:
                every = catalog.layout.topic_folders(
                    catalog.store, self._options.key_prefix, partition.topic
                )
                folders[name] = [folder for folder in every if folder.topic_id == topic_id]
            wanted += [(partition, folder, start) for folder in folders[name]]

        def look_at(
            topic_and_start: tuple[TopicPartition, TopicFolder, int],
        ) -> tuple[TopicPartition, TierLogLook | None]:
            partition, folder, start = topic_and_start
            listed = catalog.listed(folder, partition.partition)
            if not listed.has_segments:
                return partition, None
            return partition, self._partition(listed, keeps_from=start)

        looks = self.pool.map(look_at, wanted)
        return {partition: look for partition, look in looks if look is not None}

    def _incarnations(
        self, position: StreamPosition, catalog: SegmentCatalog
    ) -> Mapping[str, Sequence[TopicFolder]]:
        self.waits_for = None
        try:
            folders = incarnations(self._options, catalog, position.topics.keys())
        except TopicNotFoundError as error:
            if not isinstance(self._options.selection, SubscribePattern):
                raise
            log.info("waiting for topics: %s", error)
        except TierNotFoundError as error:
            if not position.topics:
                raise
            self.waits_for = STORE
            log.warning("waiting for topics that existed before: %s", error)
        else:
            for topic in self._options.selection.wanted(position.topics):
                if topic in folders:
                    self._absent.discard(topic)
                elif topic in position.topics and topic not in self._absent:
                    self._absent.add(topic)
                    log.warning("topic %s: waiting, the tier has nothing of it any more", topic)
            return folders
        return {}

    def _catalog(self, *, remembered: bool = False) -> SegmentCatalog:
        """Returns a catalog that lists the tier. With `remembered`, it reuses unchanged parts of
        earlier listings.
        """
        memory = self._listings if remembered else None
        return SegmentCatalog(
            self.tier,
            memory or layout_of(self._options),
            self._describing,
            fail_on_data_loss=self._options.fail_on_data_loss,
        )

    def _partition(
        self, listed: ListedPartition, *, keeps_from: int | None = None, in_part: bool = True
    ) -> TierLogLook | None:
        source = SegmentSource(self.tier, self._options.key_ring, pack=listed.side_files)
        side_files = SideFiles(source, max_batch_bytes=self._options.max_batch_bytes)
        try:
            tier_log = open_tier_log(
                self._options, listed, side_files, in_part=in_part, keeps_from=keeps_from
            )
            look = TierLogLook(self._options, tier_log)
            return None if tier_log.is_empty else look
        except TieredKafkaError as error:
            topic, partition = listed.topic, listed.partition
            raise error.located(topic=topic, partition=partition) from error.__cause__

    def _topic(
        self,
        topic: str,
        folders: Sequence[TopicFolder],
        position: TopicPosition | None,
        catalog: SegmentCatalog,
        before: Look | None,
    ) -> TopicLook | None:
        options = self._options
        topic_id = None if position is None else position.topic_id
        asked = wanted_topic_id(options, topic)
        if None not in (topic_id, asked) and topic_id != asked:
            raise StreamOffsetError(
                f"the checkpoint belongs to topic id {topic_id}, but option 'topicId' is {asked}:"
                " use a new checkpoint to read the topic with the other id",
                topic=topic,
            )
        current: DiscoveredTopic | None
        newer = None
        if topic_id is None:
            current = discover_topic(options, topic, folders, catalog, self.pool)
            if asked is None:
                self._note_older(current)
        else:
            here = [folder for folder in folders if folder.topic_id == topic_id]
            # If all segments have expired, new ones may follow. So missing segments are no loss.
            pinned = replace(
                options, topic_ids={**options.topic_ids, topic: topic_id}, fail_on_data_loss=False
            )
            current = discover_topic(pinned, topic, here, catalog, self.pool) if here else None
            if asked is None:
                newer = self._newer(topic, folders, topic_id, catalog)
            if current is None and newer is None:
                return None
            if current is not None and position is not None:
                _check_parts(current, position, options)
        if current is None:
            return TopicLook(topic, str(topic_id), {}, self._replacement(newer, catalog))
        last = None if before is None else before.get(topic)
        same = {} if last is None or last.topic_id != current.topic_id else last.partitions
        unread = (current.notes, *(listed.orphans for listed in current.partitions))
        if self._logged.get(topic) != unread:
            self._logged[topic] = unread
            log_topic(current, options)
        catalog.expect(len(current.partitions))
        return TopicLook(
            topic,
            current.topic_id,
            self._partitions(current.partitions, catalog, same),
            self._replacement(newer, catalog),
        )

    def _replacement(
        self, newer: DiscoveredTopic | None, catalog: SegmentCatalog
    ) -> NewerTopic | None:
        if newer is None:
            return None
        # Cached, so that all calls return the same snapshots.
        return NewerTopic(
            newer.topic_id, cache(lambda: self._partitions(newer.partitions, catalog, {}))
        )

    def _newer(
        self, topic: str, folders: Sequence[TopicFolder], topic_id: str, catalog: SegmentCatalog
    ) -> DiscoveredTopic | None:
        """Returns the topic that was created under this name after the stream's topic was deleted;
        `None` if there is none.

        A topic that is known to be older never replaces the stream's topic, even if all segments of
        the stream's topic have expired.
        """
        ids = frozenset(folder.topic_id for folder in folders)
        unknown = ids - self._older.get(topic, frozenset()) - {topic_id}
        others = [folder for folder in folders if folder.topic_id in unknown]
        # Ignore a topic id without segments: its first segment is still being copied.
        if not any(self._has_segments(folder, catalog) for folder in others):
            return None
        compared = [folder for folder in folders if folder.topic_id in {*unknown, topic_id}]
        options = self._options
        settled = self._settled.get(topic)
        is_settled = settled is not None and settled[0] == ids
        if settled is not None and is_settled:
            options = replace(options, topic_ids={**options.topic_ids, topic: settled[1]})
        try:
            newest = discover_topic(options, topic, compared, catalog, self.pool)
        except (DataLossError, TopicNotFoundError) as error:  # no id has a complete segment yet
            log.info("%s", error)
            return None
        if not is_settled:
            self._note_older(newest)
            if unknown <= {*newest.older_ids, newest.topic_id}:
                self._settled[topic] = ids, newest.topic_id
        return None if newest.topic_id == topic_id or not newest.partitions else newest

    def _has_segments(self, folder: TopicFolder, catalog: SegmentCatalog) -> bool:
        numbers = catalog.layout.partitions(catalog.store, folder)
        return any(catalog.listed(folder, number).has_segments for number in numbers)

    def _note_older(self, topic: DiscoveredTopic) -> None:
        older = self._older.get(topic.topic, frozenset())
        self._older[topic.topic] = older | topic.older_ids


def _is_same(before: ListedPartition, now: ListedPartition) -> bool:
    def objects(listed: ListedPartition) -> object:
        damaged = [orphan.described for orphan in listed.orphans]
        return listed.folder, listed.entries, listed.orphans, damaged, listed.facts

    return len(before.entries) == len(now.entries) and objects(before) == objects(now)


def _new_segments_follow(last_look: LogLook | None, now: ListedPartition) -> bool:
    """Returns whether the new segments of a partition directly follow the known segments, in one
    leader epoch. If not, a leader may have been elected, and may have copied earlier segments
    again.
    """
    if not isinstance(last_look, TierLogLook) or not last_look.listed.entries or not now.entries:
        return False
    last = last_look.listed.entries[-1]
    numbers = [n for n, entry in enumerate(now.entries) if entry.base_offset >= last.base_offset]
    segments = now.described(numbers)
    if len(segments) < len(numbers) or not segments or now.entries[numbers[0]] != last:
        return False
    epochs = {segments[0].leader_epochs[-1].epoch}
    return all(
        after.start_offset == before.stop_offset
        and {entry.epoch for entry in after.leader_epochs} == epochs
        for before, after in pairwise(segments)
    )


def _check_parts(topic: DiscoveredTopic, position: TopicPosition, options: ScanOptions) -> None:
    """Raises `DataLossError` if a partition has no complete segment, but at least two incomplete
    segments from the stream's offset on. Then their manifests are lost.

    A single incomplete segment may be a copy in progress. Incomplete segments below the stream's
    offset are ignored, because they are probably being deleted.
    """
    for number in topic.empty_partitions:
        start = position.offsets.get(number, 0)
        incomplete = [
            orphan
            for partition, orphan in topic.parts
            if partition == number
            and orphan.base_offset is not None
            and orphan.base_offset >= start
        ]
        if len({orphan.base_offset for orphan in incomplete}) > 1 and options.fail_on_data_loss:
            raise DataLossError(
                f"only incomplete segments exist after offset {start}:"
                f" {some(map(str, incomplete))}; failOnDataLoss=false waits for complete segments",
                topic=topic.topic,
                partition=number,
            )


@dataclass(frozen=True, slots=True)
class _Known:
    infos: list[ObjectInfo]
    listing: PartitionListing
    whole_at: float
    is_whole: bool


class ListingMemory:
    """A `Layout` that remembers the listings of partitions. If few objects are new, it lists a
    partition with one or two requests.

    Several threads may use it, but two threads must not list one partition at the same time.

    Args:
        whole_interval_ms: Maximum age of a full listing in milliseconds. An older one is repeated.
    """

    def __init__(
        self, layout: NamingLayout, whole_interval_ms: int, clock: Callable[[], float]
    ) -> None:
        self.name = layout.name
        self.folder_pattern = layout.folder_pattern
        self.format_versions = layout.format_versions
        self._layout = layout
        self._interval_ms = whole_interval_ms
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._in_a_row: dict[str, list[ObjectInfo]] = {}

    def is_assumed(self, folder: TopicFolder, partition: int) -> bool:
        """Returns whether the last listing of a partition contains keys of an earlier listing,
        which were not listed again.
        """
        remembered = self._known.get(self._layout.partition_folder(folder, partition))
        return remembered is not None and not remembered.is_whole

    def forget(self, folder: TopicFolder, partition: int) -> None:
        """Forgets the listing of a partition. The next listing is then a full listing."""
        self._known.pop(self._layout.partition_folder(folder, partition), None)

    def topic_folders(
        self, store: ObjectStore, key_prefix: str, topic: str | None
    ) -> tuple[TopicFolder, ...]:
        """See `Layout.topic_folders`."""
        return self._layout.topic_folders(store, key_prefix, topic)

    def partitions(self, store: ObjectStore, folder: TopicFolder) -> tuple[int, ...]:
        """See `Layout.partitions`. If the topic has many small partitions, lists all of them
        together; then `list_partition` returns objects from that listing.
        """
        numbers = self._layout.partitions(store, folder)
        prefixes = [self._layout.partition_folder(folder, number) for number in numbers]
        self._in_a_row.clear()
        # List the whole folder only if it belongs to this topic id alone.
        if folder.topic_id in folder.folder and self._is_better_in_a_row(prefixes):
            listed: dict[str, list[ObjectInfo]] = defaultdict(list)
            for info in store.list_objects(folder.folder):
                listed[info.key[: info.key.find("/", len(folder.folder)) + 1]].append(info)
            self._in_a_row.update((prefix, listed[prefix]) for prefix in prefixes)
        return numbers

    def list_partition(
        self, store: ObjectStore, folder: TopicFolder, partition: int
    ) -> PartitionListing:
        """See `Layout.list_partition`. Returns the same object as before if nothing changed."""
        prefix = self._layout.partition_folder(folder, partition)
        remembered = self._known.get(prefix)
        now = self._clock()
        infos = self._in_a_row.pop(prefix, None)
        if infos is None and remembered is not None and self._may_go_on(remembered, now):
            ends = _list_both_ends(store, prefix, remembered.infos)
            if ends is not None:
                remembered = self._noted(remembered, ends, folder, partition)
                self._known[prefix] = replace(remembered, is_whole=False)
                return remembered.listing
        if infos is None:
            infos = list(store.list_objects(prefix))
        remembered = self._noted(remembered, infos, folder, partition)
        self._known[prefix] = replace(remembered, whole_at=now, is_whole=True)
        return remembered.listing

    def describe(self, store: ObjectStore, entry: SegmentEntry) -> RemoteSegment:
        """See `Layout.describe`."""
        return self._layout.describe(store, entry)

    def _noted(
        self,
        remembered: _Known | None,
        infos: list[ObjectInfo],
        folder: TopicFolder,
        partition: int,
    ) -> _Known:
        if remembered is None:
            return _Known(infos, self._layout.grouped(infos, folder, partition), 0, is_whole=True)
        if infos == remembered.infos:
            return remembered
        listing = self._layout.grouped(infos, folder, partition)
        return replace(remembered, infos=infos, listing=listing)

    def _is_better_in_a_row(self, prefixes: Sequence[str]) -> bool:
        if not prefixes or not all(prefix in self._known for prefix in prefixes):
            return False
        counts = [len(self._known[prefix].infos) for prefix in prefixes]
        separate_requests = sum(1 + (count >= PAGE) for count in counts)
        return (1 + sum(counts) // PAGE) * _GAIN_IN_A_ROW <= separate_requests

    def _may_go_on(self, remembered: _Known, now: float) -> bool:
        is_recent = 0 <= (now - remembered.whole_at) * 1000 < self._interval_ms
        return is_recent and len(remembered.infos) >= PAGE


def _list_both_ends(
    store: ObjectStore, prefix: str, known_objects: list[ObjectInfo]
) -> list[ObjectInfo] | None:
    """Lists the first page of a prefix, and the keys after the last known objects. Returns all
    objects, including the known objects in between. Returns `None` if the new pages contradict the
    known objects.
    """
    first = list(islice(store.list_objects(prefix), PAGE))
    resumed = known_objects[-_SEEN_AGAIN - 1].key
    if len(first) < PAGE or key_order(first[-1].key) > key_order(resumed):
        return None
    last = list(store.list_objects(prefix, after=resumed))
    begin = bisect_left(
        known_objects, key_order(first[0].key), key=lambda info: key_order(info.key)
    )
    if (
        known_objects[begin : begin + PAGE] != first
        or known_objects[-_SEEN_AGAIN:] != last[:_SEEN_AGAIN]
    ):
        return None
    new = last[_SEEN_AGAIN:]
    return [*known_objects[begin:], *new] if begin or new else known_objects
