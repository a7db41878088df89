"""Chooses and plans the micro-batches of one running stream.

A restarted stream needs only the positions in the checkpoint. The last snapshot of the topics
("look") and the plan of the last chosen batch are only caches.

Unread segments of all partitions are sorted by the timestamp of their newest record, oldest first.
So event time advances evenly in all partitions, and watermarks drop fewer rows. Segments of the
same partition are read in order of offsets.
"""

from __future__ import annotations

import heapq
import logging
import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kts_source.errors import (
    BrokerError,
    DataLossError,
    LeaderChangedError,
    RegistryError,
    StoreNotFoundError,
    TieredKafkaError,
    TierNotFoundError,
)
from kts_source.options.selection import LATEST_OFFSET, LatestBound, OffsetsBound
from kts_source.planning.bounds import (
    Place,
    check_named,
    check_no_holes,
    requested_value,
    resolve_start,
)
from kts_source.planning.planner import assemble, check_plan, paused_collector
from kts_source.streaming.checks import (
    check_epoch,
    check_new,
    note_deselected,
    report_gone,
    report_recreated,
    report_unread,
    resumed_offset,
)
from kts_source.streaming.lag import BROKERS, REGISTRY, STORE, LagAge, age_to_json, lag_to_json
from kts_source.streaming.look import at_position
from kts_source.streaming.offsets import (
    StreamPosition,
    TopicBegin,
    TopicPartition,
    TopicPosition,
    batch_ranges,
)
from kts_source.texts import some

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kts_source.options import ScanOptions
    from kts_source.planning.lineage import Hole, PartitionLog
    from kts_source.planning.planner import PlannedPartition
    from kts_source.planning.scan_plan import ScanPlan
    from kts_source.streaming.look import LogLook, Look, Looker, PendingSegment, TopicLook
    from kts_source.streaming.offsets import BatchRange


log = logging.getLogger(__name__)

_Result = TypeVar("_Result")
_ATTEMPTS: Final = 3
_SMALL_SHARE: Final = 100
_GOOD_SHARE: Final = 1000
"""Offsets of a partition in a micro-batch: below the first its fixed cost dominates."""
_MANY_BATCHES: Final = 100
"""Number of pending micro-batches from which small ones are worth a warning."""
"""Maximum number of attempts to take a snapshot if leaders change in the meantime."""


@dataclass(frozen=True, slots=True)
class MicroBatchLimits:
    """Limits of a micro-batch; `None` means no limit. A batch ends at the first limit that it
    reaches.

    Attributes:
        offsets: Maximum number of offsets. The batch may end inside a segment.
        size: Maximum of uncompressed segment bytes. The batch ends between segments, and contains
            at least one.
        segments: Maximum number of segments. A partly read segment counts as one.
    """

    offsets: int | None = None
    size: int | None = None
    segments: int | None = None


NO_LIMITS = MicroBatchLimits()


def admit(
    pending: Mapping[TopicPartition, Iterator[PendingSegment]], limits: MicroBatchLimits
) -> dict[TopicPartition, int]:
    """Chooses the segments of a micro-batch. Returns the end offset (exclusive) for each partition
    that the batch reads. Takes only as many segments from the iterators as the batch needs.

    Args:
        pending: Unread segments of each partition, in ascending order.
        limits: Limits of the batch.
    """
    heads: list[tuple[tuple[int, int], TopicPartition, PendingSegment]] = []

    def advance(partition: TopicPartition) -> None:
        segment = next(pending[partition], None)
        if segment is not None:
            heapq.heappush(heads, (segment.order, partition, segment))

    for partition in pending:
        advance(partition)
    ends: dict[TopicPartition, int] = {}
    offsets = size = segments = 0
    while heads:
        _, partition, segment = heapq.heappop(heads)
        if limits.segments is not None and segments == limits.segments:
            break
        if limits.size is not None and segments and size + segment.size > limits.size:
            break
        count = segment.stop - segment.start
        if limits.offsets is not None and offsets + count >= limits.offsets:
            stop = segment.start + limits.offsets - offsets
            if stop > segment.start:
                ends[partition] = stop
            break
        ends[partition] = segment.stop
        offsets, size, segments = offsets + count, size + segment.size, segments + 1
        advance(partition)
    return ends


@dataclass(frozen=True, slots=True)
class PendingPartition:
    """Offsets [start, stop) of a partition that are unread and may be read.

    Attributes:
        has_recorded_start: True if the stream's position contains `start`. If False, the position
            after the next batch must contain it in `begins`.
        look: Snapshot of the partition; `None` if the tier has no segment of the partition.
    """

    partition: TopicPartition
    topic_id: str
    start: int
    stop: int
    has_recorded_start: bool
    look: LogLook | None


def pending_partitions(
    options: ScanOptions, position: StreamPosition, look: Look
) -> list[PendingPartition]:
    """Returns the unread offsets of all partitions, sorted by topic and partition. The range of a
    partition without unread offsets is empty.

    Raises:
        DataLossError: Offsets were lost, before or after the stream read them.
        InvalidOptionError: The JSON in option `startingOffsets`, or in a similar option, names a
            partition that does not exist.
    """
    if position.is_initial:
        return _initial_partitions(options, look)
    pending: list[PendingPartition] = []
    for name, topic in sorted(look.items()):
        topic_position = position.topics.get(name)
        if topic_position is None or topic_position.topic_id is None:
            if topic_position is not None:
                log.warning(
                    "topic %s: the checkpoint has no topic id; continuing with the newest id, %s",
                    name,
                    topic.topic_id,
                )
            pending += _resumed_partitions(topic, topic_position)
            continue
        partitions = list(_resumed_partitions(topic, topic_position))
        if topic.newer is not None and all(each.start >= each.stop for each in partitions):
            newer = topic.newer
            report_recreated(
                name,
                topic_position.topic_id,
                newer.topic_id,
                fail_on_data_loss=options.fail_on_data_loss,
            )
            looks = sorted(newer.partitions().items())
            partitions = [_new_partition(each, newer.topic_id) for _, each in looks]
        pending += partitions
    return pending


def _resumed_partitions(
    topic: TopicLook, position: TopicPosition | None
) -> Iterator[PendingPartition]:
    offsets: Mapping[int, int] = {} if position is None else position.offsets
    epochs: Mapping[int, int] = {} if position is None else position.epochs
    for number, look in sorted(topic.partitions.items()):
        if number not in offsets:
            yield _new_partition(look, topic.topic_id)
            continue
        before = offsets[number]
        start = resumed_offset(
            look.place,
            before,
            epochs.get(number),
            log_start=look.log.log_start,
            stop=look.written_stop,
            owner=look.epoch_of(before - 1),
        )
        partition = TopicPartition(topic.topic, number)
        stop = max(start, look.end())
        yield PendingPartition(partition, topic.topic_id, start, stop, start == before, look)


def _new_partition(look: LogLook, topic_id: str) -> PendingPartition:
    stop = look.end()
    start = look.log.log_start
    check_new(look.place, start)
    partition = TopicPartition(look.place.topic, look.place.partition)
    return PendingPartition(
        partition, topic_id, start, max(start, stop), has_recorded_start=False, look=look
    )


def _initial_partitions(options: ScanOptions, look: Look) -> list[PendingPartition]:
    """Returns the partitions of a new stream, with the start offsets that the options define."""
    held = {(topic.topic, number) for topic in look.values() for number in topic.partitions}
    # Without brokers, partitions that have no segments are unknown.
    check_named(options, held, look.keys() if options.brokers is None else frozenset())
    pending = []
    for name, topic in sorted(look.items()):
        for number, log_look in sorted(topic.partitions.items()):
            partition = TopicPartition(name, number)
            start = _initial_offset(options, log_look, log_look.end())
            stop = max(start, log_look.end())
            pending.append(
                PendingPartition(partition, topic.topic_id, start, stop, False, log_look)
            )
        # Add the partitions that the options name and that have no segments yet.
        if isinstance(options.starting, OffsetsBound):
            for number, start in sorted(options.starting.offsets.get(name, {}).items()):
                if number not in topic.partitions and start >= 0:
                    partition = TopicPartition(name, number)
                    pending.append(
                        PendingPartition(partition, topic.topic_id, start, start, False, None)
                    )
    return pending


def _initial_offset(options: ScanOptions, look: LogLook, end: int) -> int:
    starting = options.starting
    wanted = requested_value(starting, look.place)
    if isinstance(starting, LatestBound):
        return end
    if isinstance(starting, OffsetsBound) and wanted is not None:
        if wanted == LATEST_OFFSET:
            return end
        if wanted > look.log.stop:  # not tiered yet
            return wanted

    def lookup(timestamp_ms: int) -> tuple[PartitionLog, int | None]:
        offset = look.first_offset_at_or_after(timestamp_ms)
        return look.log, offset

    return resolve_start(options, look.place, look.log, lookup)


def next_position(
    position: StreamPosition,
    pending: Sequence[PendingPartition],
    ends: Mapping[TopicPartition, int],
) -> StreamPosition:
    """Returns the position after a batch; returns `position` itself if the batch would be empty.

    The first batch of a new stream may be empty, because Spark requires a first batch. Partitions
    that are in `position` but not in `pending` keep their offsets.

    Args:
        position: Position before the batch.
        pending: Partitions that the batch may read.
        ends: End offsets of the batch, exclusive. Nothing is read from other partitions.
    """
    if not position.is_initial and all(ends.get(p.partition, 0) <= p.start for p in pending):
        return position
    topics = dict(position.topics)
    begins: dict[str, TopicBegin] = {}
    for each in pending:
        topic, number = each.partition
        topic_position = topics.get(topic)
        if topic_position is None or topic_position.topic_id not in (None, each.topic_id):
            topic_position = TopicPosition(each.topic_id, {})
        stop = max(each.start, ends.get(each.partition, each.start))
        epochs = dict(topic_position.epochs)
        if stop != topic_position.offsets.get(number):
            epochs.pop(number, None)
            # Store the epoch only if this stream has read the record.
            epoch = None if each.look is None else each.look.epoch_of(stop - 1)
            if stop > each.start and epoch is not None:
                epochs[number] = epoch
        topics[topic] = TopicPosition(
            each.topic_id, {**topic_position.offsets, number: stop}, epochs
        )
        if not each.has_recorded_start:
            begin = begins.get(topic, TopicBegin(each.topic_id, {}))
            begins[topic] = TopicBegin(each.topic_id, {**begin.offsets, number: each.start})
    return StreamPosition(topics, begins)


class TierStream:
    """Chooses and plans the micro-batches of one query. Only one thread at a time may use it.

    Args:
        options: Options of the scan; they contain the limits of a batch.
    """

    def __init__(self, options: ScanOptions, clock: Callable[[], float] = time.time) -> None:
        self._options = replace(options, key_ring=options.key_ring.loaded())
        self._clock = clock
        self._looker = _looker(self._options, clock)
        self._look: Look | None = None
        self._lag_look: Look | None = None  # the last look that found the tier and topics
        self._has_answered = False
        self._asked_at = self._batch_at = float("-inf")
        self._hole_seen_at: dict[tuple[str, int, int], float] = {}
        self._ends_here = options.stream.stop_at_end
        self._target: dict[tuple[TopicPartition, str], int] | None = None
        self._seen: dict[tuple[TopicPartition, str], int] = {}  # ends in the last look
        self._planned: tuple[StreamPosition, StreamPosition, ScanPlan] | None = None
        self._answered: StreamPosition | None = None
        self._lag: tuple[Look, StreamPosition, dict[str, Any]] | None = None
        self._nothing_new: tuple[Look, StreamPosition] | None = None
        self._has_failed = False
        self._has_small_batches = False
        self._waiting_for: str | None = None
        self._looked_at_ms: int | None = None
        self._is_stale = False
        self._is_noted = False

    def close(self) -> None:
        """Closes the connections and stops the threads."""
        self._looker.close()

    def fix_end(self) -> None:
        """Makes the next call of `next` fix the end of the stream: the stream then ends at the
        current end of each partition, and ignores later offsets.
        """
        self._ends_here = True

    def next(self, position: StreamPosition, *, limited: bool = True) -> StreamPosition:
        """Chooses the next batch and returns its end. Returns `position` itself if there is nothing
        new, or the stream must wait.

        Args:
            position: The stream's position.
            limited: True if the batch limits in the options apply.

        Raises:
            TieredKafkaError: The stream cannot continue. If waiting may help, an earlier call has
                succeeded, and the stream has no fixed end, the error is logged instead.
        """
        if not self._is_noted:
            self._is_noted = True
            note_deselected(self._options.selection, position)
        try:
            with paused_collector():
                end = self._next_of(position, limited=limited)
        except TieredKafkaError as error:
            # The next snapshot waits for a tier that has disappeared since the last snapshot.
            is_gone = isinstance(error, StoreNotFoundError) and self._options.brokers is None
            # Not in the first call: Spark would use the position as the end of the topic.
            if not (error.retriable or is_gone) or not self._has_answered or self._ends_here:
                raise
            self._is_stale |= is_gone
            self._waiting_for = _failed_service(error)
            log.warning("the stream waits for the %s: %s", self._waiting_for, error)
            self._has_failed = True
            self._answered = position
            return position
        if not self._has_failed:
            self._waiting_for = self._looker.waits_for
        self._has_answered = True
        self._answered = end
        return end

    def lag(self) -> dict[str, Any] | None:
        """Returns the lag at the position that `next` returned last; `None` before the first call
        of `next`. Sends no listing requests.

        During an outage, or after the tier has disappeared, the lag compares with the last known
        ends and is marked as stale.

        Raises:
            TieredKafkaError: The lag cannot be computed, and no earlier lag is known.
        """
        look, position = self._look if self._lag_look is None else self._lag_look, self._answered
        if look is None or position is None:
            return None
        try:
            lag = self._lag_at(look, position)
        except TieredKafkaError as error:
            # The ends are known, but brokers or the store do not describe the unread offsets.
            if self._lag is None or not (error.retriable or self._is_stale):
                raise
            age = LagAge(self._looked_at_ms, True, _failed_service(error))
            return {**self._lag[2], **age_to_json(age)}
        age = LagAge(self._looked_at_ms, self._is_stale, self._waiting_for)
        return {**lag, **age_to_json(age)}

    def _lag_at(self, look: Look, position: StreamPosition) -> dict[str, Any]:
        if self._lag is None or self._lag[0] is not look or self._lag[1] != position:
            lags = {}
            for topic in at_position(look, position).values():
                topic_position = position.topics.get(topic.topic)
                is_same = topic_position is not None and topic_position.topic_id in (
                    None,
                    topic.topic_id,
                )
                for number, log_look in topic.partitions.items():
                    offset = (
                        topic_position.offsets.get(number)
                        if topic_position is not None and is_same
                        else None
                    )
                    lags[TopicPartition(topic.topic, number)] = log_look.lag(
                        log_look.log.log_start if offset is None else offset
                    )
            self._lag = look, position, lag_to_json(lags)
        return self._lag[2]

    def plan(self, start: StreamPosition, end: StreamPosition) -> ScanPlan | None:
        """Plans the batch between two positions. Returns `None` if the batch is empty.

        Raises:
            TieredKafkaError: Offsets of the batch can no longer be read.
        """
        planned, self._planned = self._planned, None
        ranges = batch_ranges(start, end)
        if not ranges:
            return None
        self._batch_at = self._clock()
        if planned is not None and planned[:2] == (start, end):
            return planned[2]
        with paused_collector():
            return _with_retries(lambda: self._plan_again(ranges))

    def _plan_again(self, ranges: Sequence[BatchRange]) -> ScanPlan:
        looks = self._looker.look_at_batch(
            {each.partition: (each.topic_id, each.start) for each in ranges}
        )
        plan = self._plan(ranges, looks)
        # Check the epochs after planning, because planning may have read more of a log.
        for wanted in ranges:
            look = looks.get(wanted.partition)
            if look is not None and wanted.epoch is not None:
                check_epoch(look.place, wanted, look.epoch_of(wanted.stop - 1))
        return plan

    def _next_of(self, position: StreamPosition, *, limited: bool) -> StreamPosition:
        def attempt() -> StreamPosition:
            try:
                return self._next(position, limited=limited)
            except LeaderChangedError:
                self._asked_at = float("-inf")
                raise

        return _with_retries(attempt)

    def _next(self, position: StreamPosition, *, limited: bool) -> StreamPosition:
        look = self._current_look(position)
        nothing_new = self._nothing_new
        # After a failure, the batch is chosen again at the next snapshot, even if nothing changed.
        if self._has_failed or (
            nothing_new is not None and nothing_new[0] is look and nothing_new[1] == position
        ):
            return position
        while True:
            end = self._choose(position, look, limited=limited)
            if end is not None:
                return end

    def _current_look(self, position: StreamPosition) -> Look:
        """Returns the last snapshot of the topics, or takes a new one if the last one is too
        old.
        """
        age_ms = (self._clock() - self._asked_at) * 1000
        if self._look is None or not 0 <= age_ms < self._looker.interval_ms:
            self._has_failed = False
            self._is_stale = self._look is not None  # until the look succeeds
            try:
                self._look = self._looker.look(position, self._look)
            finally:
                self._asked_at = self._clock()
            self._is_stale = self._looker.waits_for is not None
            if self._looker.waits_for == STORE and self._ends_here:
                raise TierNotFoundError(
                    "the tier that this stream has read no longer exists, so a run with a fixed end"
                    " would look complete. Restore the tier or correct option 'path', and start the"
                    " query again",
                    uri=self._looker.tier.store.uri(""),
                )
            if not self._is_stale:
                self._looked_at_ms, self._lag_look = round(self._asked_at * 1000), self._look
        self._look = at_position(self._look, position)
        return self._look

    def _choose(
        self, position: StreamPosition, look: Look, *, limited: bool
    ) -> StreamPosition | None:
        """Chooses the next batch and returns its end. Returns `position` itself if the stream must
        wait.

        Returns `None` if the caller must call it again: while it chose the batch, it read the rest
        of a partition's log, so its choice may be wrong.
        """
        target = self._target
        pending = pending_partitions(self._options, position, look)
        looks = {each.partition: each.look for each in pending if each.look is not None}
        complete = _complete(looks)
        existing = {(each.partition, each.topic_id): each for each in pending}
        # Check partitions without objects. In others, a hole or the next segment shows a loss.
        gone = {key: stop for key, stop in self._seen.items() if key not in existing}
        self._check_unread(position, look, existing, gone)
        self._seen = {key: each.stop for key, each in existing.items()}
        if self._ends_here:
            self._check_unread(position, look, existing, target or {})
            pending = self._up_to_target(pending)
        elif limited and self._must_wait(pending):
            return position
        pending = [self._up_to_hole(each) for each in pending]
        segments = {
            each.partition: each.look.pending(each.start, each.stop)
            for each in pending
            if each.look is not None
        }
        if limited:
            self._note_small_batches(pending)
        ends = admit(segments, self._limits() if limited else NO_LIMITS)
        end = next_position(position, pending, ends)
        if end is not position and _complete(looks) == complete:
            # Plan before Spark writes the end to a checkpoint, because planning may fail.
            try:
                self._planned = position, end, self._plan(batch_ranges(position, end), looks)
            except DataLossError:
                if _complete(looks) == complete:
                    raise
        if _complete(looks) != complete:
            self._target = target
            return None
        if end is position:
            self._nothing_new = look, position
        return end

    def _plan(
        self, ranges: Sequence[BatchRange], looks: Mapping[TopicPartition, LogLook]
    ) -> ScanPlan:
        options = self._options

        def plan(wanted: BatchRange) -> PlannedPartition | None:
            look = looks.get(wanted.partition)
            if look is None:
                report_gone(options, wanted)
                return None
            try:
                return look.plan(wanted)
            except TieredKafkaError as error:
                topic, partition = wanted.partition
                error = error.located(topic=topic, partition=partition)
                raise error from error.__cause__

        planned = [each for each in self._looker.pool.map(plan, ranges) if each is not None]
        asked: dict[str, list[int]] = {}
        for wanted in ranges:
            asked.setdefault(wanted.partition.topic, []).append(wanted.partition.partition)
        scan_plan = assemble(options, planned, (), asked)
        check_plan(scan_plan, options, self._looker.tier.store)
        return scan_plan

    def _limits(self) -> MicroBatchLimits:
        settings = self._options.stream
        return MicroBatchLimits(settings.max_offsets, settings.max_bytes, settings.max_segments)

    def _note_small_batches(self, pending: Sequence[PendingPartition]) -> None:
        """Warns once if `maxOffsetsPerTrigger` splits the unread offsets into many tiny batches."""
        limit = self._options.stream.max_offsets
        unread = [each.stop - each.start for each in pending if each.stop > each.start]
        if limit is None or limit >= _SMALL_SHARE * len(unread) or self._has_small_batches:
            return
        batches = math.ceil(sum(unread) / limit)
        if batches < _MANY_BATCHES:
            return
        self._has_small_batches = True
        places = some(f"{each.partition.topic}-{each.partition.partition}" for each in pending)
        log.warning(
            "option maxOffsetsPerTrigger=%d splits %d unread offsets of %s into about %d"
            " micro-batches, and each has a fixed cost of about a second. Set the option to at"
            " least %d",
            *(limit, sum(unread), places, batches, _GOOD_SHARE * len(unread)),
        )

    def _must_wait(self, pending: Sequence[PendingPartition]) -> bool:
        """Returns whether the stream must wait for more offsets: there are fewer than
        `min_offsets`, and the last batch started less than `max_delay_ms` ago.
        """
        settings = self._options.stream
        if settings.min_offsets is None:
            return False
        waited_ms = (self._clock() - self._batch_at) * 1000
        new = sum(each.stop - each.start for each in pending)
        return new < settings.min_offsets and 0 <= waited_ms < settings.max_delay_ms

    def _check_unread(
        self,
        position: StreamPosition,
        look: Look,
        existing: Mapping[tuple[TopicPartition, str], PendingPartition],
        ends: Mapping[tuple[TopicPartition, str], int],
    ) -> None:
        """Checks that no offset below a partition's end in `ends` was lost before the stream read
        it. Raises `OffsetOutOfRangeError` if such an offset is unread and the log now ends at or
        below the stream's offset. Logs a warning instead if `failOnDataLoss` is false.
        """
        for (partition, topic_id), stop in ends.items():
            topic, topic_position = look.get(partition.topic), position.topics.get(partition.topic)
            # A topic that was created again is reported separately.
            if (
                topic_position is None
                or topic_position.topic_id != topic_id
                or (topic and topic.newer)
            ):
                continue
            rest = existing.get((partition, topic_id))
            offset = (
                topic_position.offsets.get(partition.partition, stop)
                if rest is None
                else rest.start
            )
            if offset < stop and (rest is None or rest.stop <= offset):
                is_strict = self._options.fail_on_data_loss
                report_unread(Place(*partition, fail_on_data_loss=is_strict), offset, stop)

    def _up_to_target(self, pending: Sequence[PendingPartition]) -> list[PendingPartition]:
        """Returns the unread offsets below the fixed end of the stream. Omits partitions that were
        created after the end was fixed.
        """
        if self._target is None:
            self._target = {(each.partition, each.topic_id): each.stop for each in pending}
        target = self._target
        return [
            replace(
                each, stop=max(each.start, min(each.stop, target[each.partition, each.topic_id]))
            )
            for each in pending
            if (each.partition, each.topic_id) in target
        ]

    def _up_to_hole(self, pending: PendingPartition) -> PendingPartition:
        """Returns the unread offsets before the first hole that the stream must not skip. Returns
        `pending` if there is no such hole.

        The stream must not skip a hole if a copy of its offsets may be in progress, or if
        `failOnDataLoss` is true.

        Raises:
            DataLossError: The stream has reached the hole, and its offsets are lost.
        """
        look = pending.look
        for hole in look.log.missing if look is not None and look.is_complete else ():
            assert look is not None
            may_heal = hole.stop > pending.start and self._may_be_copied_later(
                pending.partition, hole
            )
            if hole.stop <= pending.start or not (may_heal or self._options.fail_on_data_loss):
                continue
            stop = max(pending.start, min(pending.stop, look.end_before(hole)))
            if stop == pending.start:
                if not may_heal:
                    check_no_holes(look.place, look.log, hole.start, hole.stop)
                log.warning(
                    "%s: waiting at offset %d for offsets [%d, %d): a copy may be in progress",
                    look.place,
                    stop,
                    hole.start,
                    hole.stop,
                )
            return replace(pending, stop=stop)
        return pending

    def _may_be_copied_later(self, partition: TopicPartition, hole: Hole) -> bool:
        """Returns whether a copy of the offsets of a hole may be in progress."""
        now = self._clock()
        since = self._hole_seen_at.setdefault((*partition, hole.start), now)
        if hole.after.event_timestamp_ms is not None:
            since = min(since, hole.after.event_timestamp_ms / 1000)
        return (now - since) * 1000 < self._options.stream.hole_grace_ms


def _with_retries(attempt: Callable[[], _Result]) -> _Result:
    """Calls `attempt` again if it raises `LeaderChangedError`, at most three times in total."""
    for number in range(_ATTEMPTS):
        try:
            return attempt()
        except LeaderChangedError as error:
            if number + 1 == _ATTEMPTS:
                raise
            log.info("taking the snapshot again: %s", error)
    raise AssertionError


def _failed_service(error: TieredKafkaError) -> str:
    """Returns the service that caused an error: `BROKERS`, `REGISTRY` or `STORE`."""
    if isinstance(error, BrokerError):
        return BROKERS
    return REGISTRY if isinstance(error, RegistryError) else STORE


def _looker(options: ScanOptions, clock: Callable[[], float]) -> Looker:
    # Imported on demand: most streams read only the tier.
    if options.brokers is None:
        from kts_source.streaming.tier_look import TierLooker

        return TierLooker(options, clock)
    from kts_source.streaming.cluster_look import ClusterLooker

    return ClusterLooker(options, options.brokers)


def _complete(looks: Mapping[TopicPartition, LogLook]) -> set[TopicPartition]:
    return {partition for partition, look in looks.items() if look.is_complete}
