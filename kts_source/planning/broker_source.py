"""Combines a tier and its brokers as the sources of a scan, which reads a topic from its log start
to its end.

The leader defines the log. Offsets in segments on the leader's branch are read from the tier, and
all other offsets from brokers. So holes, damaged segments and segments without description lose no
offsets.

The outcomes of transactions are found separately for each run of adjacent segments. If the abort
marker of a transaction is in the run, the transaction is in a transaction index of the run's
segments. If a transaction is open at the end of a run, it began below the last stable offset, so it
has an outcome. The leader reports which of these transactions were aborted. It is asked at the end
of every run, because brokers may fill holes between runs.

With `tail=false`, a read ends at the tier's end. This is the largest of: the end of all segments,
including damaged ones, because brokers serve their offsets; and the leader's local log start,
because brokers delete their copy of a segment only after its upload.

Source: `LocalLog.collectAbortedTransactions`, `TransactionIndex`, KIP-98.
"""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from kts_source.broker.broker_range import BrokerRange
from kts_source.broker.cluster import LEAK
from kts_source.errors import (
    CorruptSegmentError,
    DataLossError,
    LeaderChangedError,
    OldBrokerError,
    TopicNotFoundError,
)
from kts_source.layout.find_layout import find_layout
from kts_source.planning.bounds import Place
from kts_source.planning.cluster_view import ClusterView
from kts_source.planning.isolation import (
    Decisions,
    EndStates,
    UnknownStartError,
    check_end,
    ends_of_reads,
)
from kts_source.planning.lineage import between, epoch_ranges, runs, union_log
from kts_source.planning.metadata_topic import (
    REMOTE_LOG_METADATA,
    MetadataTopicLayout,
    read_metadata_topic,
)
from kts_source.planning.partition_plan import BrokerPart
from kts_source.planning.segment_catalog import SegmentCatalog
from kts_source.planning.sources import SourceLog, SourcePartition
from kts_source.texts import some
from segment_format.index.producer_snapshot import open_first_offsets
from segment_format.index.transaction_index import AbortedTxn
from segment_format.isolation import AbortedIntervals

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from concurrent.futures import Executor

    from kts_source.broker.cluster import TopicPartition
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.options import ScanOptions
    from kts_source.planning.bounds import Progress
    from kts_source.planning.cluster_view import BrokerLog
    from kts_source.planning.lineage import PartitionLog, SegmentRange
    from kts_source.planning.partition_plan import PartitionPlan
    from kts_source.planning.scan_plan import ScanPlan
    from kts_source.planning.segment_catalog import ListedPartition
    from kts_source.planning.side_files import SideFiles
    from kts_source.tier import Tier

log = logging.getLogger(__name__)

_ATTEMPTS: Final = 5
"""Maximum number of attempts to plan if leaders change in the meantime."""
_SAMPLE_SEGMENTS: Final = 3
"""The bytes per offset are estimated from this number of newest segments."""
_FEW_OFFSETS: Final = 100_000
"""If the tier has no segment, the size of a range with fewer offsets is estimated without fetching
a sample.
"""
_GUESSED_BYTES: Final = 200.0
_EMPTY_IN_A_ROW: Final = 16
"""Number of partitions to look up after the last partition with offsets. There may be gaps, because
a reader has no offsets of empty partitions.
"""


def with_cluster(options: ScanOptions, plan: Callable[[ClusterView], ScanPlan]) -> ScanPlan:
    """Calls `plan` with a view of the cluster. Calls it again with a new view if a leader has
    changed in the meantime.
    """
    assert options.brokers is not None
    was_old = False
    counts: dict[str, int] = {}
    for attempt in range(_ATTEMPTS):
        try:
            with closing(ClusterView(options.brokers, options, counts=counts)) as view:
                try:
                    return plan(view)
                finally:
                    counts |= view.partition_counts
        except (LeaderChangedError, OldBrokerError) as error:
            # The first OldBrokerError may be due to segments that were uploaded after the listing.
            # This is unlikely to happen twice.
            is_old = isinstance(error, OldBrokerError)
            if attempt + 1 == _ATTEMPTS or (is_old and was_old):
                raise
            was_old |= is_old
            log.info("planning again: %s", error)
    raise AssertionError


@dataclass(frozen=True, slots=True)
class TieredPart:
    """The segments of a partition in the tier.

    Attributes:
        segments: All complete segments that can be described, in any order.
        damaged: Segments that lost objects but can be described. Filled only with `tail=false`, to
            find the end of the tier.
        unreadable: Base offset and URI of each segment whose description is invalid or lacks the
            end offset. Filled only with `tail=false`.
        epoch_stops: By leader epoch, one past the last offset with this epoch in segments that the
            metadata topic names; empty if the metadata topic is not read.
    """

    segments: Sequence[RemoteSegment]
    side_files: SideFiles
    damaged: Sequence[RemoteSegment] = ()
    unreadable: Sequence[tuple[int, str]] = ()
    epoch_stops: Mapping[int, int] = field(default_factory=dict)

    @property
    def epochs(self) -> set[int]:
        """Leader epochs of the segments, including damaged segments and segments in the metadata
        topic.
        """
        segments = (*self.segments, *self.damaged)
        claimed = {entry.epoch for segment in segments for entry in segment.leader_epochs}
        return claimed | self.epoch_stops.keys()


class BrokerSource:
    """A `Source` that lists the selected partitions of a cluster and their segments in the tier.

    Args:
        describing: Threads that describe segments.
        pool: Threads that list partitions.
        progress: Offsets that the reader has already read.

    Attributes:
        listed: Partitions that have objects in the tier, and whose topic id exists in the cluster.
    """

    topics: AbstractSet[str] = frozenset()  # the cluster has the list of all partitions

    def __init__(
        self,
        options: ScanOptions,
        tier: Tier,
        describing: Executor,
        pool: Executor,
        *,
        view: ClusterView,
        progress: Progress | None = None,
    ) -> None:
        self._options = options
        self._tier = tier
        self._describing = describing
        self._pool = pool
        self._view = view
        self._progress = progress
        self._named: MetadataTopicLayout | None = None
        self._tiered_topics: set[str] = set()  # also of partitions that are not selected
        self.listed: dict[TopicPartition, ListedPartition] = {}

    @property
    def asked(self) -> Mapping[str, Sequence[int]]:
        """Numbers of the partitions that the options select, by topic."""
        asked: dict[str, list[int]] = {}
        for topic, number in self._view.logs:
            asked.setdefault(topic, []).append(number)
        return asked

    def partitions(self) -> list[SourcePartition]:
        """Lists the selected partitions of the cluster, ascending by topic and number."""
        if self._progress is not None:
            self._check_described(self._progress)
        self.list_tier()
        return [
            SourcePartition(
                brokers.topic,
                brokers.topic_id,
                brokers.partition,
                self.listed.get(key),
                partial(self._open_log, brokers),
            )
            for key, brokers in self._view.logs.items()
        ]

    def _open_log(self, brokers: BrokerLog, side_files: SideFiles, is_resumed: bool) -> UnionLog:
        del is_resumed
        tiered = self.tiered_part((brokers.topic, brokers.partition), side_files)
        has_progress = self._progress is not None
        return UnionLog(
            self._options, brokers, tiered, self._view, self._named, with_lineage=has_progress
        )

    def finish(self) -> list[str]:
        """Checks that no topic was deleted or created again during planning, and that every topic
        with tiered offsets has objects in the tier. Returns notes for the user.
        """
        self._view.check_topics()
        if not self._options.path:
            return []
        self.check_tier()
        return self._notes()

    def _check_described(self, progress: Progress) -> None:
        """Raises `LeaderChangedError` or `BrokerUnavailableError` if brokers describe fewer
        partitions of a topic than the reader has read.
        """
        for name, topic in self._view.topics.items():
            described = count = number = len(topic.leaders)
            while number < count + _EMPTY_IN_A_ROW:
                number += 1
                if progress.bounds_of(name, topic.topic_id, number - 1) is not None:
                    count = number
            if count > described:
                self._view.require_partitions(name, count)

    def list_tier(self) -> None:
        """Lists the tier, or reads its segments from the metadata topic."""
        options, view = self._options, self._view
        layout = find_layout(options.layout)
        if options.by_metadata_topic:
            assert options.brokers is not None
            wanted = {key: brokers.topic_id for key, brokers in view.logs.items()}
            state = read_metadata_topic(
                options.brokers, wanted, max_batch_bytes=options.max_batch_bytes
            )
            layout = self._named = MetadataTopicLayout(layout, state, view.logs)
            self._named.look_up(self._tier.store, options.key_prefix, self._describing)
        # Brokers serve the offsets of segments that cannot be described.
        catalog = SegmentCatalog(self._tier, layout, self._describing, fail_on_data_loss=False)
        pairs = []
        for topic in view.topics.values():
            for folder in layout.topic_folders(catalog.store, options.key_prefix, topic.topic):
                if folder.topic_id != topic.topic_id:
                    continue
                numbers = layout.partitions(catalog.store, folder)
                if set(numbers) - topic.leaders.keys():
                    view.require_partitions(folder.topic, max(numbers) + 1)
                if numbers:
                    self._tiered_topics.add(folder.topic)
                pairs += [(folder, n) for n in numbers if (folder.topic, n) in view.logs]
        listed = self._pool.map(lambda pair: catalog.listed(*pair), pairs)
        self.listed = {(each.topic, each.partition): each for each in listed}
        catalog.expect(len(view.logs))

    def tiered_part(self, key: TopicPartition, side_files: SideFiles) -> TieredPart:
        """Describes the listed segments of a partition."""
        listed = self.listed.get(key)
        segments = listed.all() if listed is not None else ()
        if self._options.tail:
            return TieredPart(segments, side_files)
        stops = self._named.epoch_stops(key) if self._named is not None else {}
        if listed is None:
            return TieredPart((), side_files, epoch_stops=stops)
        damaged, unreadable = listed.damaged(), listed.unreadable()
        if without_end := listed.without_end():
            damaged = [segment for segment in damaged if segment.segment_id not in without_end]
            unreadable += without_end.values()
        return TieredPart(segments, side_files, damaged, unreadable, stops)

    def check_tier(self) -> None:
        """Raises `TopicNotFoundError` if brokers report tiered offsets of a topic, but the tier has
        no object of it. Then the options probably name the wrong path or tier.
        """
        uri = self._tier.store.uri(self._options.key_prefix)
        for brokers in self._view.logs.values():
            is_missing = _is_tiered(brokers) and brokers.topic not in self._tiered_topics
            if is_missing and self._options.fail_on_data_loss:
                problem = f"there is no object of topic id {brokers.topic_id} at {uri}"
                check = "check path, keyPrefix and layout"
                if self._named is not None and not self._named.names_any(brokers.topic):
                    problem = (
                        f"{REMOTE_LOG_METADATA} names no segment of topic id {brokers.topic_id}"
                    )
                    check = "remove option catalog=metadata-topic, so that the tier is listed"
                raise TopicNotFoundError(
                    f"brokers report that offsets [{brokers.log_start}, {brokers.local_start}) are"
                    f" tiered, but {problem}: {check}, or remove option 'path' to read the whole"
                    " topic from brokers",
                    topic=brokers.topic,
                    partition=brokers.partition,
                )

    def _notes(self) -> list[str]:
        uri = self._tier.store.uri(self._options.key_prefix)
        lost = {brokers.topic for brokers in self._view.logs.values() if _is_tiered(brokers)}
        notes = []
        for name, topic in self._view.topics.items():
            if name not in self._tiered_topics:
                notes.append(
                    f"topic {name}: no object of topic id {topic.topic_id} at {uri}; all of it is"
                    " read from brokers"
                )
                log.log(logging.WARNING if name in lost else logging.INFO, "%s", notes[-1])
        named = () if self._named is None else self._named.notes()
        return [*notes, *named]


def _is_tiered(brokers: BrokerLog) -> bool:
    """Returns True if brokers report that they no longer have the first offsets of a partition."""
    return brokers.local_start is not None and brokers.local_start > brokers.log_start


@dataclass(frozen=True, slots=True)
class _TierRun:
    """A run of adjacent segments in the tier, up to the last segment that is needed to find the
    outcomes of transactions.

    Attributes:
        log: The log, with only the ranges of this run.
        ends: Finds the open transactions at the end of each range.
    """

    log: PartitionLog
    ends: EndStates


class UnusableSegmentError(Exception):
    """Raised if the side files of a segment do not show which transactions it contains. Then
    brokers must serve the offsets of the segment.
    """

    def __init__(self, segment_id: str) -> None:
        super().__init__(segment_id)
        self.segment_id = segment_id


class UnionLog(SourceLog):
    """The log of a partition, which is read from the tier and from the leader.

    Args:
        brokers: The log as the leader describes it.
        tiered: Segments in the tier.
        named: Segments that the metadata topic names; `None` if it is not read.
        with_lineage: True to add leader epochs to plans. The first is the epoch of the last offset
            before the plan.
    """

    def __init__(
        self,
        options: ScanOptions,
        brokers: BrokerLog,
        tiered: TieredPart,
        view: ClusterView,
        named: MetadataTopicLayout | None = None,
        *,
        with_lineage: bool = False,
    ) -> None:
        location = replace(broker_place(options, brokers), mirror=tiered.side_files.mirror)
        super().__init__(location, brokers.topic_id, tiered.side_files)
        self._options = options
        self._brokers = brokers
        self._tiered = tiered
        self._view = view
        self._named = named
        self._with_lineage = with_lineage
        self._not_usable: frozenset[str] = frozenset()
        self._tier_runs: list[_TierRun] = []
        epochs = tiered.epochs
        self._owned = view.owned(brokers, epochs) if epochs else {}
        self._end = brokers.end
        if not options.tail:
            self._end = tier_end(tiered, brokers, self._owned, self.place)
        self.log = self._merged()

    def _merged(self) -> PartitionLog:
        brokers = self._brokers
        merged = union_log(
            self._tiered.segments, brokers.log_start, brokers.end, self._owned, self._not_usable
        )
        return replace(merged, stop=self._end)

    def first_offset_at_or_after(self, timestamp_ms: int) -> int | None:
        """Asks the leader for the first offset dated at or after `timestamp_ms`. Returns `None` if
        the log has no such offset.
        """
        offset = self._view.first_offset_dated(self._brokers, timestamp_ms)
        # The leader searches its whole log, but with tail=false the log that is read ends earlier.
        return None if offset is None or offset >= self.log.stop else offset

    def decided(self, start: int, stop: int) -> tuple[PartitionLog, Decisions]:
        """Returns two values: the log, and the aborted transactions that have data in [start,
        stop). If the side files of a segment are unusable, brokers serve its offsets instead.

        Raises:
            DataLossError: Brokers lost records that are needed to find the outcome of a
                transaction, and loss is not allowed.
            BrokerError: The leader does not answer, or is too old for the request.
        """
        while True:
            try:
                aborted = self._aborted(start, stop)
                break
            except UnusableSegmentError as error:
                self._leave_to_brokers(error.segment_id)
        rest = next(between(self.log.ranges, start, stop), None)
        if rest is not None and rest.start < (
            decided_from := self._view.decided_from(self._brokers)
        ):
            raise OldBrokerError(
                f"brokers have offsets [{rest.start}, {decided_from}) only in their tier, and"
                f" {LEAK}. Set option 'path' to the tier, or read with"
                " isolationLevel=read_uncommitted"
            )
        intervals = AbortedIntervals.from_txns(aborted, start_offset=start, stop_offset=stop)
        return self.log, Decisions(intervals, stop, ())

    def _leave_to_brokers(self, segment_id: str) -> None:
        log.info("%s: segment %s is read from brokers", self.place, segment_id)
        self._not_usable |= {segment_id}
        self.log = self._merged()

    def _aborted(self, start: int, stop: int) -> list[AbortedTxn]:
        """Returns the aborted transactions that have records in the segments with offsets [start,
        stop).
        """
        aborted: list[AbortedTxn] = []
        self._tier_runs = []
        for run in runs(self.log.ranges):
            read = [span for span in run if span.start < stop and span.stop > start]
            if not read:
                continue
            last = run.index(read[-1])
            first = run.index(read[0])
            # Ranges before the first one show which transactions are open at its start.
            run_log = replace(self.log, ranges=run, holes=(), unverifiable=())
            ends = EndStates(run_log, self.side_files)
            entries, deciding = self._aborted_in_run(run_log, (first, last), stop, ends)
            aborted += entries
            run_log = replace(run_log, ranges=run[: deciding + 1])
            self._tier_runs.append(_TierRun(run_log, ends))
        return aborted

    def confirm(
        self, surviving: PartitionLog, decisions: Decisions, read: Sequence[tuple[int, int]]
    ) -> bool:
        """Compares the decisions with markers in the log, like `SourceLog.confirm`. Returns False
        if the transaction index of a segment does not match the log. Brokers then serve the offsets
        of this segment in later calls of `decided`.
        """
        for run in self._tier_runs:
            ranges = run.log.ranges
            inside = [span for span in read if ranges[0].start <= span[0] < ranges[-1].stop]
            for number, below in ends_of_reads(ranges, inside):
                try:
                    check_end(run.log, decisions.aborted, run.ends, number, below, self.side_files)
                except (CorruptSegmentError, UnknownStartError) as error:
                    log.warning("%s", error)
                    self._leave_to_brokers(_segment_for_brokers(error, ranges, number).segment_id)
                    return False
        return True

    def _aborted_in_run(
        self, run: PartitionLog, read: tuple[int, int], stop: int, ends: EndStates
    ) -> tuple[list[AbortedTxn], int]:
        """Returns the aborted transactions that the segments of the read show, and the number of
        the last range whose transaction index was read.

        Reads later ranges of `run` only while a transaction that began before offset `stop` has no
        outcome at the end of the range. Such a transaction is included if a later range or the
        leader reports that it was aborted.

        Args:
            run: Consecutive ranges of the log.
            read: Numbers of the first and the last range that the read needs.
            stop: The end of the read, exclusive.
            ends: The transactions that are open at the end of each range of `run`.
        """
        first_read, last_read = read
        end_of_log = self._brokers.end
        aborted: list[AbortedTxn] = []
        began: set[tuple[int, int]] | None = None
        for number, span in enumerate(run.ranges[first_read:], first_read):
            entries = self.side_files.aborted(span.segment)
            if entries is None or (
                entries and number > first_read and not _fits_previous_range(ends, number, entries)
            ):
                raise UnusableSegmentError(span.segment.segment_id)
            is_last = number == len(run.ranges) - 1
            end = span.segment.stop_offset if is_last else span.stop
            aborted += (txn for txn in entries if span.start <= txn.last_offset < end)
            if number < last_read or (not is_last and ends.continues_elsewhere(number)):
                continue
            end = span.segment.stop_offset
            still_open = {
                (producer, first)
                for producer, first in self._open_transactions_at_end(run, number, ends).items()
                if first < min(stop, end_of_log)
            }
            began = still_open if began is None else still_open & began
            if not began:
                return aborted, number
            if min(end, end_of_log - 1) >= self._view.decided_from(self._brokers):
                later = began & self._aborted_at(end, began)
                aborted += (AbortedTxn(producer, first, end, end) for producer, first in later)
                return aborted, number
            # Old brokers do not report all aborted transactions, but the transaction index of the
            # next segment does.
        oldest = min(first for _, first in began or ())
        raise OldBrokerError(
            f"the tier does not contain the end of a transaction that began at offset {oldest}."
            f" Brokers have its records only in their tier, and {LEAK}. Plan again later, or read"
            " with isolationLevel=read_uncommitted"
        )

    def _open_transactions_at_end(
        self, run: PartitionLog, number: int, ends: EndStates
    ) -> Mapping[int, int]:
        """Returns the first offset of each transaction that is open at the end of range `number`,
        by producer id. Uses the producer snapshot; if it is unusable and the brokers are too old to
        serve the segment, replays the log.

        Raises:
            UnusableSegmentError: Brokers must serve the segment, because its snapshot is unusable
                and the log was not replayed or does not show the open transactions.
        """
        span = run.ranges[number]
        segment = span.segment
        snapshot = self.side_files.snapshot(segment)
        if snapshot is not None:
            return open_first_offsets(snapshot)
        is_served = span.start >= self._view.decided_from(self._brokers)
        if is_served or span.stop < segment.stop_offset:
            raise UnusableSegmentError(segment.segment_id)
        try:
            opened = ends.open_after(number)
        except (CorruptSegmentError, UnknownStartError) as error:
            raise UnusableSegmentError(segment.segment_id) from error
        if opened and run.log_start > 0:
            # If a transaction began before the log start, the replay finds the log start as its
            # first offset. Brokers report the real first offset.
            raise UnusableSegmentError(segment.segment_id)
        return opened

    def _aborted_at(self, offset: int, began: set[tuple[int, int]]) -> AbstractSet[tuple[int, int]]:
        """Returns the aborted transactions that are open at `offset` according to the leader, as
        pairs of producer id and first offset. If the leader's own tier lost the records at `offset`
        and loss is allowed, returns all open transactions (`began`).
        """
        try:
            return self._view.aborted_across(self._brokers, offset)
        except DataLossError as error:
            oldest = min(first for _, first in began)
            self.place.raise_or_warn(
                f"transactions that began at offset {oldest} or later are open at offset {offset},"
                f" and their outcome is unknown: {error.message}. failOnDataLoss=false skips"
                " their records"
            )
            return began

    def broker_ranges(self, start: int, stop: int) -> list[BrokerRange]:
        """Returns the broker ranges for those offsets in [start, stop) that are not read from the
        tier.
        """
        brokers = self._brokers
        rest = list(between(self.log.ranges, start, stop))
        if not rest:
            return []
        each = bytes_per_offset(self.log, brokers, rest[0].start, rest[-1].stop, self._view)
        return [
            BrokerRange(
                brokers.topic,
                brokers.topic_id,
                brokers.partition,
                brokers.leader_epoch,
                span.start,
                span.stop,
                self._options.read_committed,
                max(1, round((span.stop - span.start) * each)),
            )
            for span in rest
        ]

    def completed(self, plan: PartitionPlan) -> PartitionPlan:
        """Returns `plan` with its broker ranges, and with leader epochs and facts from the metadata
        topic if they are needed.
        """
        brokers, key = self._brokers, (plan.topic, plan.partition)
        rest = between(self.log.ranges, plan.start, plan.wanted_stop)
        broker_part = BrokerPart(
            brokers.leader_epoch,
            tuple((span.start, span.stop) for span in rest),
            brokers.high_watermark,
            brokers.last_stable_offset,
            brokers.local_start,
        )
        plan = replace(plan, brokers=broker_part)
        if self._with_lineage:
            lineage = self._view.lineage(brokers, plan.start - 1)
            plan = replace(plan, surviving=replace(plan.surviving, lineage=lineage))
        if self._named is not None:
            catalog = self._named.catalog_part(key)
            plan = replace(plan, orphans=self._named.orphans(key), catalog=catalog)
        return plan


def broker_place(options: ScanOptions, brokers: BrokerLog) -> Place:
    """Returns the `Place` of a partition that is read from brokers."""
    holder, beyond = "the tier", "not tiered yet (tail=false)"
    if options.tail:
        holder = "the cluster"
        beyond = "above the last stable offset" if options.read_committed else "not written yet"
    return Place(
        brokers.topic,
        brokers.partition,
        fail_on_data_loss=options.fail_on_data_loss,
        holder=holder,
        beyond=beyond,
    )


def _segment_for_brokers(
    error: CorruptSegmentError | UnknownStartError, ranges: Sequence[SegmentRange], number: int
) -> RemoteSegment:
    """Returns the segment that must be read from brokers because its tiered copy failed with
    `error`. For an `UnknownStartError`, this is the segment of `ranges[number]`. For another error,
    it is the segment that contains the error's offset, or the last segment if none contains it.
    """
    if isinstance(error, UnknownStartError):
        return ranges[number].segment
    if error.offset is not None:
        for span in ranges:
            if span.segment.start_offset <= error.offset < span.segment.stop_offset:
                return span.segment
    return ranges[-1].segment


def _fits_previous_range(ends: EndStates, number: int, entries: Sequence[AbortedTxn]) -> bool:
    """Returns whether transaction-index entries of range `number` agree with the transactions that
    are open at the start of the range.
    """
    try:
        return not ends.contradicts_snapshot(number, entries)
    except UnknownStartError:
        return False


def tier_end(
    tiered: TieredPart,
    brokers: BrokerLog,
    owned: Mapping[int, tuple[int, int]],
    location: Place,
) -> int:
    """Returns one past the last offset of the leader's log that was tiered. `owned` has, by leader
    epoch, the offsets [start, stop) with this epoch on the leader's branch.

    Raises:
        DataLossError: A segment without a valid description begins at or after the end, so the end
            may be higher, and loss is not allowed.
    """
    reached = [brokers.log_start, brokers.local_start or 0]
    reached += (
        min(stop, owned[epoch][1]) for epoch, stop in tiered.epoch_stops.items() if epoch in owned
    )
    reached += (_stop_on_branch(segment, owned) for segment in (*tiered.segments, *tiered.damaged))
    end = min(max(reached), brokers.end)
    unknown = [uri for base, uri in tiered.unreadable if base >= end]
    if unknown:
        location.raise_or_warn(
            f"tail=false ends where the tier ends, and the ends of these segments are unknown:"
            f" {some(unknown)}. Restore their manifests, remove tail=false, or set"
            f" failOnDataLoss=false to end at offset {end}"
        )
    return end


def _stop_on_branch(segment: RemoteSegment, owned: Mapping[int, tuple[int, int]]) -> int:
    """Returns one past the last offset of a segment on the leader's branch; 0 if it is on another
    branch. A segment without leader epochs counts as on the branch: it has message format 0 or 1,
    or lost its checkpoint.
    """
    if not segment.leader_epochs:
        return segment.stop_offset
    stops = [0]
    for epoch, low, high in epoch_ranges(segment):
        start, stop = owned.get(epoch, (0, 0))
        if max(low, start) < min(high, stop):
            stops.append(min(high, stop))
    return max(stops)


def bytes_per_offset(
    log: PartitionLog, brokers: BrokerLog, start: int, stop: int, view: ClusterView
) -> float:
    """Estimates the bytes per offset of the records that brokers serve, from the newest segments of
    the tier. If the tier has no segment, uses the first batches of [start, stop).
    """
    newest = [span.segment for span in log.ranges[-_SAMPLE_SEGMENTS:]]
    if newest:
        offsets = sum(segment.stop_offset - segment.start_offset for segment in newest)
        return sum(segment.objects.size_in_bytes for segment in newest) / max(offsets, 1)
    if stop - start < _FEW_OFFSETS:
        return _GUESSED_BYTES
    return view.bytes_per_offset(brokers, start) or _GUESSED_BYTES
