"""Takes snapshots ("looks") of a stream's topics from brokers. The partition leaders define the
start and the end of the logs.

The tier is listed only for offsets that leaders may no longer have on their own disks. Records
produced since the last batch are read from leaders, even if they have been copied to the tier in
the meantime. So a stream that keeps up with the producers never lists the tier.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from kts_source.broker.broker_range import BrokerRange
from kts_source.errors import (
    DataLossError,
    LeaderChangedError,
    OffsetOutOfRangeError,
    OldBrokerError,
    TopicNotFoundError,
)
from kts_source.options.selection import EarliestBound, LatestBound, SubscribePattern
from kts_source.planning.broker_source import (
    BrokerSource,
    TieredPart,
    UnionLog,
    broker_place,
    bytes_per_offset,
    tier_end,
)
from kts_source.planning.cluster_view import ClusterView
from kts_source.planning.lineage import PartitionLog, union_log
from kts_source.planning.planner import plan_log
from kts_source.planning.segment_catalog import PLANNING_THREADS
from kts_source.planning.side_files import SideFiles
from kts_source.read.segment_source import SegmentSource
from kts_source.streaming.checks import remaining_bounds, report_undecided
from kts_source.streaming.lag import BROKERS, PartitionLag
from kts_source.streaming.look import (
    NewerTopic,
    PendingSegment,
    TopicLook,
    broker_chunk_order,
    segment_order,
)
from kts_source.streaming.offsets import TopicPartition
from kts_source.tier import open_tier

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from kts_source.broker.settings import BrokerSettings
    from kts_source.options import ScanOptions
    from kts_source.planning.bounds import TimestampLookup
    from kts_source.planning.cluster_view import BrokerLog
    from kts_source.planning.lineage import Hole
    from kts_source.planning.planner import PlannedPartition
    from kts_source.planning.segment_catalog import ListedPartition
    from kts_source.streaming.look import LogLook, Look, Looker
    from kts_source.streaming.offsets import BatchRange, StreamPosition, TopicPosition
    from kts_source.tier import Tier

log = logging.getLogger(__name__)

_ATTEMPTS: Final = 5
"""Maximum number of attempts to take a snapshot if leaders change in the meantime."""
_CHUNK_BYTES: Final = 64 << 20
"""Maximum size in bytes of the chunks in which offsets that only brokers have are read."""
_SHARES: Final = 64
"""The size of a chunk is the batch limit divided by this number, so that a batch contains rows of
many partitions.
"""
_EPOCHS_AT_ONCE: Final = 100


class TierListing:
    """Lists the tier when a stream from brokers needs older offsets. Thread-safe.

    Args:
        view: Current state of the cluster; its topics are listed.
    """

    def __init__(self, options: ScanOptions, tier: Tier, view: ClusterView) -> None:
        self._options = options
        self._tier = tier
        self._view = view
        self._describing = ThreadPoolExecutor(PLANNING_THREADS, "kts-describe")
        self._lock = threading.Lock()
        self._ids: dict[tuple[str, int], str] = {}
        self._parts: dict[tuple[str, int], TieredPart] = {}
        self._listed_at = float("-inf")

    def close(self) -> None:
        """Stops the threads of the listing."""
        self._describing.shutdown(wait=False, cancel_futures=True)

    def part(self, brokers: BrokerLog, offset: int, *, refresh: bool = False) -> TieredPart:
        """Returns the tier's segments of a partition. Lists the tier again if the last listing may
        be outdated.

        If option `tail` is true and no listed segment has an offset at or above `offset`, returns
        no segments, because brokers serve all these offsets.

        Args:
            brokers: The leader's description of the partition.
            offset: The first wanted offset.
            refresh: True to list the tier again even if the last listing is recent.

        Raises:
            TopicNotFoundError: The tier has no object of a topic although brokers report tiered
                offsets.
        """
        key = brokers.topic, brokers.partition
        if self._options.path:
            with self._lock:
                is_new = refresh or self._ids.get(key) != brokers.topic_id
                if is_new or (not self._is_listing_sufficient(brokers, offset) and self._is_old()):
                    self._list()
        part = self._parts.get(key)
        if part is None or self._ids[key] != brokers.topic_id:
            return TieredPart((), self._side_files(None))
        if self._options.tail and all(segment.stop_offset <= offset for segment in part.segments):
            return TieredPart((), part.side_files)
        return part

    def _is_listing_sufficient(self, brokers: BrokerLog, offset: int) -> bool:
        """Returns whether the last listing is sufficient: its segments or the leader's own disk
        have the offsets of a partition from `offset` on.
        """
        if not self._options.tail:  # every new segment changes the end of the tier
            return False
        part = self._parts.get((brokers.topic, brokers.partition))
        if part is not None and any(segment.stop_offset > offset for segment in part.segments):
            return True
        return brokers.local_start is not None and offset >= brokers.local_start

    def _is_old(self) -> bool:
        age_ms = (time.monotonic() - self._listed_at) * 1000
        return age_ms >= self._options.stream.listing_interval_ms

    def _list(self) -> None:
        logs = self._view.logs
        with ThreadPoolExecutor(PLANNING_THREADS, "kts-list") as pool:
            source = BrokerSource(
                self._options, self._tier, self._describing, pool, view=self._view
            )
            source.list_tier()
            source.check_tier()

            def describe(listed: ListedPartition) -> TieredPart:
                key = listed.topic, listed.partition
                side_files = self._side_files(listed)
                try:
                    return source.tiered_part(key, side_files)
                finally:
                    listed.save()

            described = pool.map(describe, source.listed.values())
            self._parts = dict(zip(source.listed, described, strict=True))
        self._ids = {key: brokers.topic_id for key, brokers in logs.items()}
        self._listed_at = time.monotonic()

    def _side_files(self, listed: ListedPartition | None) -> SideFiles:
        pack = None if listed is None else listed.side_files
        source = SegmentSource(self._tier, self._options.key_ring, pack=pack)
        return SideFiles(source, max_batch_bytes=self._options.max_batch_bytes)


class BrokerLook:
    """A `LogLook` that describes a partition as its leader reports it.

    Args:
        brokers: The leader's description of the partition.
        view: Sends further requests to the leader.
        last_read: The last offset that the stream has read, and the leader epoch that it had then;
            `None` if the epoch is unknown.
    """

    is_complete: Final = True

    def __init__(
        self,
        options: ScanOptions,
        brokers: BrokerLog,
        view: ClusterView,
        listing: TierListing,
        last_read: tuple[int, int] | None,
    ) -> None:
        self._options = options
        self._brokers = brokers
        self._view = view
        self._listing = listing
        self._last_read = last_read
        self.place = broker_place(options, brokers)

    @cached_property
    def log(self) -> PartitionLog:
        """See `LogLook.log`. The log has a start and an end, but no segment ranges."""
        brokers = self._brokers
        end = brokers.end
        if not self._options.tail:
            tiered = self._listing.part(brokers, brokers.log_start)
            end = tier_end(tiered, brokers, self._owned(tiered), self.place)
        return PartitionLog((), brokers.log_start, end, (), (), ())

    @property
    def written_stop(self) -> int:
        """See `LogLook.written_stop`."""
        # The log ends below the high watermark if transactions are open or with `tail=false`.
        return max(self._brokers.high_watermark, self.log.stop)

    def end(self) -> int:
        """See `LogLook.end`."""
        return self.log.stop

    def end_before(self, hole: Hole) -> int:
        """Never called: a log from brokers has no holes, because brokers serve the offsets that are
        missing in the tier.
        """
        raise AssertionError(hole)

    def epoch_of(self, offset: int) -> int | None:
        """See `LogLook.epoch_of`."""
        newest = self._brokers.leader_epoch
        if newest < 0 or not self._brokers.log_start <= offset < self._brokers.end:
            return None
        read, epoch = self._last_read or (offset, -1)
        if offset == self._brokers.end - 1 or (epoch == newest and offset >= read):
            return newest
        owners = (
            epoch for epoch, (low, high) in self._recent_epochs.items() if low <= offset < high
        )
        owner = next(owners, None)
        # If the leader's log no longer contains an epoch, another epoch owns its offsets.
        return self._view.owner(self._brokers, offset) if owner is None else owner

    @cached_property
    def _recent_epochs(self) -> dict[int, tuple[int, int]]:
        """Offset ranges of up to 100 leader epochs, by epoch, for the next calls of `epoch_of`.
        Begins with the epoch that the stream read last; if the stream has read no record, contains
        the newest epochs.
        """
        newest = self._brokers.leader_epoch
        first = max(newest - _EPOCHS_AT_ONCE + 1, 0)
        if self._last_read is not None:
            first = min(self._last_read[1], newest)
        return self._view.owned(
            self._brokers, range(first, min(first + _EPOCHS_AT_ONCE, newest + 1))
        )

    def first_offset_at_or_after(self, timestamp_ms: int) -> int | None:
        """See `LogLook.first_offset_at_or_after`."""
        return self._view.first_offset_dated(self._brokers, timestamp_ms)

    def _merged(self, start: int) -> PartitionLog:
        """Returns the log from offset `start` on, with the segments in the tier as ranges."""
        brokers = self._brokers
        tiered = self._listing.part(brokers, start)
        low = min(brokers.log_start, start)
        return union_log(tiered.segments, low, brokers.end, self._owned(tiered))

    def _owned(self, tiered: TieredPart) -> dict[int, tuple[int, int]]:
        epochs = tiered.epochs
        return self._view.owned(self._brokers, epochs) if epochs else {}

    def pending(self, start: int, stop: int) -> Iterator[PendingSegment]:
        """See `LogLook.pending`. Offsets that are not in the tier are yielded in chunks instead of
        segments.
        """
        if start >= stop:
            return
        position, order = start, segment_order(-1)
        log = self._merged(start)
        each = self._bytes_per_offset(log, start, stop)
        for span in log.ranges:
            low, high = max(span.start, position), min(span.stop, stop)
            if low >= high:
                continue
            for first, last in self._chunks(position, low, each):
                yield PendingSegment(first, last, round((last - first) * each), order)
            segment = span.segment
            offsets = max(segment.stop_offset - segment.start_offset, 1)
            size = segment.objects.size_in_bytes * (high - low) // offsets
            order = segment_order(segment.max_timestamp_ms)
            yield PendingSegment(low, high, size, order)
            position = high
        for turn, (first, last) in enumerate(self._chunks(position, stop, each)):
            order = broker_chunk_order(turn, stop - start)
            yield PendingSegment(first, last, round((last - first) * each), order)

    def _chunks(self, start: int, stop: int, each: float) -> Iterator[tuple[int, int]]:
        stream = self._options.stream
        step = stop - start
        if stream.max_bytes is not None or stream.max_segments is not None:
            size = min(_CHUNK_BYTES, (stream.max_bytes or _SHARES * _CHUNK_BYTES) // _SHARES)
            step = min(step, max(round(size / max(each, 1e-3)), 1))
        if stream.max_offsets is not None:
            step = min(step, max(stream.max_offsets // _SHARES, 1))
        for low in range(start, stop, max(step, 1)):
            yield low, min(low + step, stop)

    def _bytes_per_offset(self, log: PartitionLog, start: int, stop: int) -> float:
        stream = self._options.stream
        if stream.max_bytes is None and stream.max_segments is None:
            return 0.0
        return bytes_per_offset(log, self._brokers, start, stop, self._view)

    def lag(self, position: int) -> PartitionLag:
        """See `LogLook.lag`."""
        end = self.end()
        offsets = max(end - position, 0)
        if not offsets:
            return PartitionLag(end, 0, 0, None, self._brokers.log_start)
        log = self._merged(position)
        size, tiered_to, oldest = 0.0, position, None
        for span in log.ranges:
            segment = span.segment
            unread = span.stop - max(span.start, position)
            if unread <= 0:
                continue
            segment_offsets = max(segment.stop_offset - segment.start_offset, 1)
            size += segment.objects.size_in_bytes * unread / segment_offsets
            if span.start <= position:
                oldest = segment.max_timestamp_ms
            tiered_to = span.stop
        if tiered_to < end:
            each = bytes_per_offset(log, self._brokers, tiered_to, end, self._view)
            size += (end - tiered_to) * each
        if oldest is None:
            oldest = self._view.first_timestamp_ms(self._brokers, position)
        return PartitionLag(end, offsets, round(size), oldest, self._brokers.log_start)

    def plan(self, wanted: BatchRange) -> PlannedPartition:
        """See `LogLook.plan`. Raises `DataLossError` if offsets were lost.

        If the log start has moved into the batch since its end was chosen, the offsets below the
        log start are read from the tier.
        """
        brokers = self._brokers
        if brokers.end < wanted.stop <= brokers.high_watermark:
            report_undecided(self.place, wanted, brokers.end, "transactions are open there")
            wanted = replace(wanted, stop=max(wanted.start, brokers.end))
        try:
            planned = self._plan(wanted, self._listing.part(brokers, wanted.start))
        except OldBrokerError:
            # The offsets may have been moved to the tier after the tier was listed.
            tiered = self._listing.part(brokers, wanted.start, refresh=True)
            planned = self._plan(wanted, tiered)
        broker_part = planned.plan.brokers
        assert broker_part is not None
        gone = [
            (low, min(high, brokers.log_start))
            for low, high in broker_part.ranges
            if low < brokers.log_start
        ]
        if not gone:
            return planned
        names = ", ".join(f"[{low}, {high})" for low, high in gone)
        self.place.raise_or_warn(
            f"offsets {names} of the batch that ends at offset {wanted.stop} are no longer in the"
            f" cluster, which begins at {brokers.log_start}, nor in the tier;"
            " failOnDataLoss=false skips them",
            OffsetOutOfRangeError,
        )
        rest = [
            piece.from_offset(brokers.log_start) if isinstance(piece, BrokerRange) else piece
            for piece in planned.spans
            if not isinstance(piece, BrokerRange) or piece.stop_offset > brokers.log_start
        ]
        return replace(planned, spans=rest)

    def _plan(self, wanted: BatchRange, tiered: TieredPart) -> PlannedPartition:
        def bounds_of(_: PartitionLog, __: TimestampLookup) -> tuple[int, int]:
            return remaining_bounds(self.place, wanted, wanted.start, self._brokers.end)

        brokers = replace(self._brokers, log_start=min(self._brokers.log_start, wanted.start))
        planned = plan_log(
            self._options, UnionLog(self._options, brokers, tiered, self._view), bounds_of
        )
        assert planned is not None
        return planned


class ClusterLooker:
    """A `Looker` that takes snapshots of a stream's topics from brokers.

    Args:
        options: Options of the scan. They are also used to open the tier.
    """

    def __init__(self, options: ScanOptions, settings: BrokerSettings) -> None:
        self._options = replace(options, key_ring=options.key_ring.loaded())
        self._settings = settings
        self.interval_ms = options.stream.poll_interval_ms
        self.tier = open_tier(options)
        self.pool = ThreadPoolExecutor(PLANNING_THREADS, "kts-look")
        self._current = _ClusterAndTier(self._options, settings, self.tier)
        self.waits_for: str | None = None
        self._is_seen = False  # True if a look has returned the current state of the cluster
        self._replayed: _ClusterAndTier | None = None
        self._tier_alone: Looker | None = None
        self._old_listed_at = float("-inf")
        self._replaced: set[str] = set()

    def close(self) -> None:
        """See `Looker.close`."""
        self._current.close()
        if self._replayed is not None:
            self._replayed.close()
        if self._tier_alone is not None:
            self._tier_alone.close()
        self.pool.shutdown(wait=False, cancel_futures=True)
        self.tier.close()

    def look(self, position: StreamPosition, before: Look | None) -> Look:
        """See `Looker.look`.

        Raises:
            TopicNotFoundError: The cluster does not have a topic that the options name.
            DataLossError: The cluster no longer has a topic that the stream has read from.
            BrokerError: Brokers reject the requests or do not respond.
        """
        self.waits_for = None
        try:
            # If this snapshot fails later, the next call must not return the previous snapshot.
            is_new = self._current.renew(_unread(position, before or {}), _counts(position))
            self._is_seen = self._is_seen and not is_new
        except TopicNotFoundError as error:
            if self._options.fail_on_data_loss or not position.topics:
                raise
            self.waits_for = BROKERS
            log.warning("waiting for topics that existed before: %s", error)
            self._current.close()
            return {}
        if before is not None and self._is_seen and not self._must_list(before):
            return before
        view = self._current.view
        if view is None:
            log.info("waiting for topics: no topic of the cluster matches the pattern")
            self._check_gone(position, ())
            self._is_seen = True
            return {}
        self._check_gone(position, view.topics)
        looks: Look = {}
        for topic, now in view.topics.items():
            topic_position = position.topics.get(topic)
            if topic_position is None or topic_position.topic_id in (None, now.topic_id):
                partitions = self._current.looks(topic, topic_position)
                looks[topic] = TopicLook(topic, now.topic_id, partitions, None)
                continue
            assert topic_position.topic_id is not None
            self._check_newer(topic, topic_position.topic_id, now.topic_id)
            newer = NewerTopic(now.topic_id, self._current.looks(topic, None).copy)
            old = self._looks_from_tier(
                {
                    TopicPartition(topic, number): (topic_position.topic_id, offset)
                    for number, offset in topic_position.offsets.items()
                }
            )
            rest = {partition.partition: look for partition, look in old.items()}
            looks[topic] = TopicLook(topic, topic_position.topic_id, rest, newer)
        self._is_seen = True
        return looks

    def look_at_batch(
        self, ranges: Mapping[TopicPartition, tuple[str, int]]
    ) -> Mapping[TopicPartition, LogLook]:
        """See `Looker.again`."""
        if self._replayed is not None:
            self._replayed.close()
        options = replace(
            self._options, topic_ids={}, starting=EarliestBound(), ending=LatestBound()
        )
        batch = {(each.topic, each.partition): ranges[each][0] for each in ranges}
        self._replayed = _ClusterAndTier(options, self._settings, self.tier, batch)
        self._replayed.renew()
        view = self._replayed.view
        looks: dict[TopicPartition, LogLook] = {}
        in_tier = {}
        for partition, (topic_id, start) in ranges.items():
            now = None if view is None else view.topics.get(partition.topic)
            if now is None or now.topic_id != topic_id:
                in_tier[partition] = topic_id, start
                continue
            look = self._replayed.looks(partition.topic, None).get(partition.partition)
            if look is not None:
                looks[partition] = look
        return looks | self._looks_from_tier(in_tier)

    def _check_newer(self, topic: str, before: str, now: str) -> None:
        """Raises `LeaderChangedError` if a broker has outdated metadata: it reports topic id `now`,
        but according to an earlier response, topic id `before` has replaced `now`.
        """
        if now in self._replaced:
            raise LeaderChangedError(
                f"a broker has outdated metadata: topic id {before} has replaced {now}",
                topic=topic,
            )
        self._replaced.add(before)

    def _must_list(self, before: Look) -> bool:
        """Returns whether the tier must be listed although the brokers' state has not changed.

        With `tail=false`, the tier determines the end of the logs. If a topic was deleted and
        created again, only the tier has records of the deleted topic.
        """
        if not self._options.tail:
            return True
        age_ms = (time.monotonic() - self._old_listed_at) * 1000
        is_old = age_ms >= self._options.stream.listing_interval_ms
        return is_old and any(topic.newer is not None for topic in before.values())

    def _looks_from_tier(
        self, ranges: Mapping[TopicPartition, tuple[str, int]]
    ) -> dict[TopicPartition, LogLook]:
        """Takes snapshots of partitions from the tier, because the topics with these ids no longer
        exist in the cluster. `ranges` contains the topic id and the first wanted offset of each
        partition.
        """
        if not ranges or not self._options.path:
            return {}
        if self._tier_alone is None:
            from kts_source.streaming.tier_look import TierLooker

            self._tier_alone = TierLooker(self._options, time.monotonic)
        self._old_listed_at = time.monotonic()
        return dict(self._tier_alone.look_at_batch(ranges))

    def _check_gone(self, position: StreamPosition, topics: Collection[str]) -> None:
        """Raises `DataLossError` if a selected topic that the stream has read was deleted. Logs a
        warning instead if `failOnDataLoss` is false.
        """
        gone = [name for name in position.topics if name not in topics]
        for topic in self._options.selection.wanted(gone):
            if topic not in gone:
                continue
            text = "the cluster no longer has the topic, from which the stream has read"
            if self._options.fail_on_data_loss:
                raise DataLossError(
                    f"{text}: it was deleted; failOnDataLoss=false waits for it",
                    topic=topic,
                )
            log.warning("topic %s: %s", topic, text)


class _ClusterAndTier:
    """The state of the cluster, which `renew` updates, and a listing of the tier.

    `view` is `None` while no topic matches the pattern of `subscribePattern`. If `batch` is set,
    only the partitions of an earlier batch are read; it has the topic id of each partition.
    """

    def __init__(
        self,
        options: ScanOptions,
        settings: BrokerSettings,
        tier: Tier,
        batch: Mapping[tuple[str, int], str] | None = None,
    ) -> None:
        self._options = options
        self._settings = settings
        self._tier = tier
        self._batch = batch
        self._counts: dict[str, int] = {}
        self.view: ClusterView | None = None
        self._listing: TierListing | None = None

    def close(self) -> None:
        if self.view is not None:
            self._counts |= self.view.partition_counts
        for opened in (self.view, self._listing):
            if opened is not None:
                opened.close()
        self.view = self._listing = None

    def renew(
        self, unread: Collection[tuple[str, int]] = (), counts: Mapping[str, int] | None = None
    ) -> bool:
        """Updates the state of the cluster, and returns whether it changed. The log starts of the
        partitions in `unread`, which have unread records, are compared, too. `counts` has the known
        number of partitions by topic id.
        """
        self._counts |= counts or {}
        is_new = False
        for attempt in range(_ATTEMPTS):
            try:
                if self.view is not None:
                    is_new |= self.view.renew(unread)
                else:
                    is_new = True
                    self.view = ClusterView(
                        self._settings, self._options, counts=self._counts, batch=self._batch
                    )
                    self._listing = TierListing(self._options, self._tier, self.view)
                if is_new:
                    # Requests to leaders contain topic names, not ids. If a topic was deleted and
                    # created again, the responses describe the new topic.
                    self.view.check_topics()
            except LeaderChangedError as error:
                if attempt + 1 == _ATTEMPTS:
                    raise
                log.info("requesting metadata again: %s", error)
            except TopicNotFoundError:
                if not isinstance(self._options.selection, SubscribePattern):
                    raise
                was_there = self.view is not None
                self.close()
                return was_there
            else:
                return is_new
        raise AssertionError

    def looks(self, topic: str, topic_position: TopicPosition | None) -> dict[int, LogLook]:
        view, listing = self.view, self._listing
        assert view is not None
        assert listing is not None
        return {
            number: BrokerLook(
                self._options, brokers, view, listing, _last_read(topic_position, number)
            )
            for (name, number), brokers in view.logs.items()
            if name == topic
        }


def _counts(position: StreamPosition) -> dict[str, int]:
    """Returns the number of partitions of each topic in the stream's position, by topic id."""
    return {
        topic.topic_id: max(topic.offsets) + 1
        for topic in position.topics.values()
        if topic.topic_id is not None and topic.offsets
    }


def _unread(position: StreamPosition, look: Look) -> list[TopicPartition]:
    """Returns the partitions that have unread offsets in a snapshot."""
    unread = []
    for name, topic in look.items():
        topic_position = position.topics.get(name)
        if topic.newer is not None:  # the tier has the unread records of the old topic
            continue
        offsets = {} if topic_position is None else topic_position.offsets
        for number, log_look in topic.partitions.items():
            if offsets.get(number, log_look.log.log_start) < log_look.end():
                unread.append(TopicPartition(name, number))
    return unread


def _last_read(topic_position: TopicPosition | None, partition: int) -> tuple[int, int] | None:
    """Returns the last offset of a partition that the stream has read, and the leader epoch that it
    had then; `None` if the epoch is unknown.
    """
    if topic_position is None or partition not in topic_position.epochs:
        return None
    return topic_position.offsets[partition] - 1, topic_position.epochs[partition]
