"""One running stream: what the next micro-batch holds, and its plan.

It remembers nothing that a restart must know: all that is in the positions. What it keeps between
calls saves work: the last listing, and the plan of a batch that was just chosen.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kts_source.errors import DataLossError, LeaderChangedError, TieredKafkaError
from kts_source.planning import bounds
from kts_source.planning.assemble import assembled
from kts_source.planning.gc_pause import paused_collector
from kts_source.planning.plan_checks import check_plan
from kts_source.streaming.admission import NO_LIMITS, BatchLimits, Place, admit
from kts_source.streaming.batch import batch_ranges, check_epoch, check_gone
from kts_source.streaming.checks import check_kept, note_deselected
from kts_source.streaming.lag import lag_to_json
from kts_source.streaming.log_look import where_stream_is
from kts_source.streaming.next_position import next_position
from kts_source.streaming.pending import pending_partitions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kts_source.options import ScanOptions
    from kts_source.planning.assemble import PlannedPartition
    from kts_source.planning.lineage import Hole
    from kts_source.planning.scan_plan import ScanPlan
    from kts_source.streaming.batch import BatchRange
    from kts_source.streaming.log_look import LogLook, Look, Looker
    from kts_source.streaming.offsets import StreamPosition
    from kts_source.streaming.pending import PendingPartition

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")
_ATTEMPTS: Final = 3
"""How often a look begins anew where a leader changes."""


class TierStream:
    """Chooses and plans the micro-batches of one query. Used by one thread at a time.

    Args:
        options: What is read, and the limits of a batch.
        clock: Seconds since the epoch.
    """

    def __init__(self, options: ScanOptions, clock: Callable[[], float] = time.time) -> None:
        self._options = replace(options, key_ring=options.key_ring.loaded())
        self._clock = clock
        self._looker = _looker(self._options, clock)
        self._look: Look | None = None
        self._has_answered = False
        self._asked_at = self._batch_at = float("-inf")
        self._hole_seen_at: dict[tuple[str, int, int], float] = {}
        self._ends_here = options.stream.stop_at_end
        self._target: dict[tuple[Place, str], int] | None = None
        self._seen: dict[tuple[Place, str], int] = {}  # ends, by the last look
        self._planned: tuple[StreamPosition, StreamPosition, ScanPlan] | None = None
        self._answered: StreamPosition | None = None
        self._lag: tuple[Look, StreamPosition, dict[str, Any]] | None = None
        self._nothing_new: tuple[Look, StreamPosition] | None = None
        self._has_failed = False
        self._is_noted = False

    def close(self) -> None:
        """Lets the store go."""
        self._looker.close()

    def fix_end(self) -> None:
        """From the next look on nothing counts that is tiered after it."""
        self._ends_here = True

    def next(self, position: StreamPosition, *, limited: bool = True) -> StreamPosition:
        """Where the next batch ends; `position` itself when there is nothing to read, or when it
        is better to wait.

        Args:
            position: Where the stream is.
            limited: Whether the limits of the options hold.

        Raises:
            TieredKafkaError: What cannot be mended by waiting.
        """
        if not self._is_noted:
            self._is_noted = True
            note_deselected(self._options.selection, position)
        try:
            with paused_collector():
                end = self._next_of(position, limited=limited)
        except TieredKafkaError as error:
            # An end that nobody has seen would be taken for the end of the topic.
            if not error.retriable or not self._has_answered or self._ends_here:
                raise
            log.warning("the stream waits for its store: %s", error)
            self._has_failed = True
            self._answered = position
            return position
        self._has_answered = True
        self._answered = end
        return end

    def lag(self) -> dict[str, Any] | None:
        """How far the stream is behind, after the batch whose end was answered last; `None` before
        the first one. Nothing is listed for it.
        """
        look, position = self._look, self._answered
        if look is None or position is None:
            return None
        if self._lag is None or self._lag[0] is not look or self._lag[1] != position:
            lags = {}
            for topic in where_stream_is(look, position).values():
                known = position.topics.get(topic.topic)
                same = known is not None and known.topic_id in (None, topic.topic_id)
                for number, part in topic.partitions.items():
                    at = known.offsets.get(number) if known is not None and same else None
                    lags[Place(topic.topic, number)] = part.lag(
                        part.log.log_start if at is None else at
                    )
            self._lag = look, position, lag_to_json(lags)
        return self._lag[2]

    def plan(self, start: StreamPosition, end: StreamPosition) -> ScanPlan | None:
        """The plan of the batch between two positions; `None` where there is nothing between them.

        Raises:
            TieredKafkaError: It cannot be read any more as it was fixed.
        """
        planned, self._planned = self._planned, None
        ranges = batch_ranges(start, end)
        if not ranges:
            return None
        self._batch_at = self._clock()
        if planned is not None and planned[:2] == (start, end):
            return planned[2]
        with paused_collector():
            return _settled(lambda: self._replayed(ranges))

    def _replayed(self, ranges: Sequence[BatchRange]) -> ScanPlan:
        looks = self._looker.again({one.place: (one.topic_id, one.start) for one in ranges})
        plan = self._plan(ranges, looks)
        # Behind the plan, which may have had to read more of a log.
        for one in ranges:
            look = looks.get(one.place)
            if look is not None and one.epoch is not None:
                check_epoch(look.place, one, look.epoch_of(one.stop - 1))
        return plan

    def _next_of(self, position: StreamPosition, *, limited: bool) -> StreamPosition:
        """The end of the next batch; looks again where a leader changes in the meantime."""

        def attempt() -> StreamPosition:
            try:
                return self._next(position, limited=limited)
            except LeaderChangedError:
                self._asked_at = float("-inf")
                raise

        return _settled(attempt)

    def _next(self, position: StreamPosition, *, limited: bool) -> StreamPosition:
        tier = self._fresh(position)
        known = self._nothing_new
        # What failed is not tried again before it is time for the next look, and then it is, even
        # if that look shows nothing new.
        if self._has_failed or (known is not None and known[0] is tier and known[1] == position):
            return position
        while True:
            chosen = self._chosen(position, tier, limited=limited)
            if chosen is not None:
                return chosen

    def _fresh(self, position: StreamPosition) -> Look:
        """The last look, or a new one where it is old enough."""
        age_ms = (self._clock() - self._asked_at) * 1000
        if self._look is None or not 0 <= age_ms < self._looker.interval_ms:
            self._has_failed = False
            try:
                self._look = self._looker.look(position, self._look)
            finally:
                self._asked_at = self._clock()
        self._look = where_stream_is(self._look, position)
        return self._look

    def _chosen(
        self, position: StreamPosition, tier: Look, *, limited: bool
    ) -> StreamPosition | None:
        """Where the next batch ends; `None` where more had to be read of a log than was thought:
        what was found before may be wrong then.
        """
        target = self._target
        parts = pending_partitions(self._options, position, tier)
        looks = {part.place: part.look for part in parts if part.look is not None}
        complete = _complete(looks)
        there = {(part.place, part.topic_id): part for part in parts}
        # As long as there is something of a partition, a hole or its next segment tells a loss.
        gone = {key: stop for key, stop in self._seen.items() if key not in there}
        self._check_kept(position, tier, there, gone)
        self._seen = {key: part.stop for key, part in there.items()}
        if self._ends_here:
            self._check_kept(position, tier, there, target or {})
            parts = self._up_to_target(parts)
        elif limited and self._delays(parts):
            return position
        parts = [self._up_to_hole(part) for part in parts]
        pending = {
            part.place: part.look.pending(part.start, part.stop)
            for part in parts
            if part.look is not None
        }
        ends = admit(pending, self._limits() if limited else NO_LIMITS)
        end = next_position(position, parts, ends)
        if end is not position and _complete(looks) == complete:
            # Before its end is fixed: what cannot be planned must not stand in a checkpoint.
            try:
                self._planned = position, end, self._plan(batch_ranges(position, end), looks)
            except DataLossError:
                if _complete(looks) == complete:
                    raise
        if _complete(looks) != complete:
            self._target = target
            return None
        if end is position:
            self._nothing_new = tier, position
        return end

    def _plan(self, ranges: Sequence[BatchRange], looks: Mapping[Place, LogLook]) -> ScanPlan:
        options = self._options

        def planned(wanted: BatchRange) -> PlannedPartition | None:
            look = looks.get(wanted.place)
            if look is None:
                check_gone(options, wanted)
                return None
            try:
                return look.plan(wanted)
            except TieredKafkaError as error:
                topic, partition = wanted.place
                error = error.located(topic=topic, partition=partition)
                raise error from error.__cause__

        parts = [one for one in self._looker.pool.map(planned, ranges) if one is not None]
        asked: dict[str, list[int]] = {}
        for wanted in ranges:
            asked.setdefault(wanted.place.topic, []).append(wanted.place.partition)
        plan = assembled(options, parts, (), asked)
        check_plan(plan, options, self._looker.tier.store)
        return plan

    def _limits(self) -> BatchLimits:
        settings = self._options.stream
        return BatchLimits(settings.max_offsets, settings.max_bytes, settings.max_segments)

    def _delays(self, parts: Sequence[PendingPartition]) -> bool:
        """Whether too little is new for a batch, and the last one is not long ago."""
        settings = self._options.stream
        if settings.min_offsets is None:
            return False
        waited_ms = (self._clock() - self._batch_at) * 1000
        new = sum(part.stop - part.start for part in parts)
        return new < settings.min_offsets and 0 <= waited_ms < settings.max_delay_ms

    def _check_kept(
        self,
        position: StreamPosition,
        tier: Look,
        there: Mapping[tuple[Place, str], PendingPartition],
        ends: Mapping[tuple[Place, str], int],
    ) -> None:
        """What once was there to be read must not have gone unread.

        Raises:
            DataLossError: It has, all that is left has been read, and loss is not allowed.
        """
        for (place, topic_id), stop in ends.items():
            topic, known = tier.get(place.topic), position.topics.get(place.topic)
            # Where a topic was created again, that is told.
            if known is None or known.topic_id != topic_id or (topic and topic.newer):
                continue
            part = there.get((place, topic_id))
            at = known.offsets.get(place.partition, stop) if part is None else part.start
            if at < stop and (part is None or part.stop <= at):
                strict = self._options.fail_on_data_loss
                check_kept(bounds.Place(*place, fail_on_data_loss=strict), at, stop)

    def _up_to_target(self, parts: Sequence[PendingPartition]) -> list[PendingPartition]:
        """The parts up to the end that was fixed; what was not there then is left to others."""
        if self._target is None:
            self._target = {(part.place, part.topic_id): part.stop for part in parts}
        target = self._target
        return [
            replace(part, stop=max(part.start, min(part.stop, target[part.place, part.topic_id])))
            for part in parts
            if (part.place, part.topic_id) in target
        ]

    def _up_to_hole(self, part: PendingPartition) -> PendingPartition:
        """The part up to the first hole that a batch may not pass over: one that may be a copy
        under way, or any where loss is not allowed.

        Raises:
            DataLossError: All that lies before the hole has been read.
        """
        look = part.look
        for hole in look.log.missing if look is not None and look.is_complete else ():
            assert look is not None
            heals = hole.stop > part.start and self._may_heal(part.place, hole)
            if hole.stop <= part.start or not (heals or self._options.fail_on_data_loss):
                continue
            stop = max(part.start, min(part.stop, look.end_before(hole)))
            if stop == part.start:
                if not heals:
                    bounds.check_no_holes(look.place, look.log, hole.start, hole.stop)
                log.warning(
                    "%s: waiting at offset %d for offsets [%d, %d), which may be a copy under way",
                    look.place,
                    stop,
                    hole.start,
                    hole.stop,
                )
            return replace(part, stop=stop)
        return part

    def _may_heal(self, place: Place, hole: Hole) -> bool:
        """Whether missing offsets may be a copy under way."""
        now = self._clock()
        since = self._hole_seen_at.setdefault((*place, hole.start), now)
        if hole.after.event_timestamp_ms is not None:
            since = min(since, hole.after.event_timestamp_ms / 1000)
        return (now - since) * 1000 < self._options.stream.hole_grace_ms


def _settled(attempt: Callable[[], _Result]) -> _Result:
    """Repeats an attempt during which a leader changed, or metadata lacked partitions."""
    for number in range(_ATTEMPTS):
        try:
            return attempt()
        except LeaderChangedError as error:
            if number + 1 == _ATTEMPTS:
                raise
            log.info("looking again: %s", error)
    raise AssertionError


def _looker(options: ScanOptions, clock: Callable[[], float]) -> Looker:
    if options.brokers is None:
        from kts_source.streaming.tier_look import Lister

        return Lister(options, clock)
    # Not at import time: most streams are of the tier alone.
    from kts_source.streaming.cluster_look import ClusterLooker

    return ClusterLooker(options, options.brokers)


def _complete(looks: Mapping[Place, LogLook]) -> set[Place]:
    return {place for place, look in looks.items() if look.is_complete}
