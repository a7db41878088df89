"""Finds aborted transactions, and the end of a read_committed read, using only files of the tier.

The abort marker of a transaction may be in a later segment than its data. Only the segment with the
marker has the transaction in its transaction index. A producer snapshot records which transactions
are open at the end of its segment. So `decide` starts at the last segment of the wanted offsets,
and reads later segments until it has the outcome of every transaction that began in or before the
wanted offsets. A transaction that is still open at the end of the tier limits the read: its first
offset is the last stable offset of the tier. Source: KIP-98, KIP-405; `CompletedFetch`,
`RemoteLogManager.collectAbortedTransactions`, `TransactionIndex`.

A plan compares the transactions that are open at its end with the log. A reader that commits its
rows in steps also relies on the outcome of the transactions that are open at the end of each step,
so `check_early_stops` compares these transactions, too.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise, zip_longest
from operator import attrgetter
from typing import TYPE_CHECKING

from kts_source.errors import ObjectNotFoundError, TieredKafkaError
from kts_source.planning.lineage import runs
from kts_source.planning.segment_catalog import PLANNING_THREADS
from kts_source.planning.side_files import SideFiles
from kts_source.read.segment_source import SegmentSource
from kts_source.tier import open_tier
from segment_format.errors import CorruptIndexError
from segment_format.index.producer_snapshot import open_first_offsets
from segment_format.index.transaction_index import AbortedTxn
from segment_format.isolation import NO_ABORTED, AbortedIntervals, OpenTransaction
from segment_format.transaction_check import transaction_message

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kts_source.options import ScanOptions
    from kts_source.planning.lineage import Hole, PartitionLog, SegmentRange
    from kts_source.planning.partition_plan import PartitionPlan
    from kts_source.planning.side_files import Replay


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Decisions:
    """The outcomes of the transactions that have data in a range of offsets.

    Attributes:
        aborted: Intervals of offsets in which the batches of a producer are skipped.
        stop: The end of the range, or the first offset of the first undecided transaction,
            whichever is lower.
        undecided: Transactions that began below the end of the range and have no outcome in the
            tier.
        lost: Transactions whose marker may be in a gap of the log. Their records are skipped,
            because the outcome is unknown.
        unknown_after: A gap after which the open transactions are unknown, because no later
            producer snapshot is usable; `None` if there is no such gap.
        ends: The transactions that are open at the end of each range of the log, for `check_ends`.
    """

    aborted: AbortedIntervals
    stop: int
    undecided: tuple[OpenTransaction, ...]
    lost: tuple[AbortedTxn, ...] = ()
    unknown_after: Hole | None = None
    ends: EndStates | None = field(default=None, repr=False, compare=False)


def decide(partition: PartitionLog, start: int, stop: int, side_files: SideFiles) -> Decisions:
    """Finds the outcome of every transaction that has data in offsets [start, stop).

    Usually reads one producer snapshot, and the transaction indexes that exist. If the snapshot is
    not usable, reads the nearest earlier snapshot that is usable, and the logs after it. No file is
    read twice.

    Raises:
        UnknownStartError: Segments before the ranges of `partition` are needed.
    """
    read = [n for n, span in enumerate(partition.ranges) if span.start < stop and span.stop > start]
    if not read:  # the whole range is in a hole
        return Decisions(NO_ABORTED, stop, ())
    first, last = read[0], read[-1]
    ends = EndStates(partition, side_files)
    horizon = last
    while horizon + 1 < len(partition.ranges) and (
        ends.continues_elsewhere(horizon) or ends.undecided(horizon, below=stop)
    ):
        horizon += 1
    if first < last and stop < partition.ranges[last].stop and ends.is_known(last - 1):
        ends.open_after(last - 1)  # for `check_ends`; raises if it needs earlier ranges
    for number in cut_ranges(partition.ranges, last):
        if number >= first and ends.is_known(number):
            ends.open_after(number)  # for `check_ends`, too
    undecided = ends.undecided(horizon, below=stop)
    aborted = [
        txn for n in range(first, horizon + 1) for txn in ends.aborted(n, is_first=n == first)
    ]
    _refuse_overlaps(partition, aborted, side_files)
    aborted += _with_first_offsets_of_snapshots(partition, first, horizon, ends, aborted)
    in_gaps = _lost_in_gaps(partition, first, horizon, ends, aborted)
    lost = tuple(txn for txn in in_gaps if txn.first_offset < stop)
    aborted += lost
    clamped = min([stop, *(txn.first_offset for txn in undecided)])
    return Decisions(
        aborted=AbortedIntervals.from_txns(aborted, start_offset=start, stop_offset=stop),
        stop=max(clamped, start),
        undecided=undecided,
        lost=lost,
        unknown_after=ends.unknown_after,
        ends=ends,
    )


def check_ends(
    partition: PartitionLog,
    decisions: Decisions,
    read: Sequence[tuple[int, int]],
    side_files: SideFiles,
) -> None:
    """Compares the transaction indexes with markers in the log after the offsets that tasks read.

    A task compares its records with the markers in the same segment. If a transaction is open at
    the end of a segment, its marker is in a later segment, which tasks read partly or not at all.
    So this function reads later segments up to the marker.

    Args:
        partition: The log.
        decisions: The outcomes of the transactions, as `decide` returned them.
        read: Offset ranges [start, stop) that tasks read from segments, ascending.
        side_files: Reads the segments.

    Raises:
        CorruptSegmentError: A transaction index contradicts the log.
    """
    if decisions.ends is None:
        return
    lost = frozenset((txn.producer_id, txn.last_offset) for txn in decisions.lost)
    for number, below in ends_of_reads(partition.ranges, read):
        try:
            check_end(partition, decisions.aborted, decisions.ends, number, below, side_files, lost)
        except UnknownStartError:
            segment = partition.ranges[number].segment
            log.warning(
                "%s-%s: the transactions that are open at offset %d are not checked, because only"
                " segments before the read record them",
                *(segment.topic, segment.partition, below),
            )


def ends_of_reads(
    ranges: Sequence[SegmentRange], read: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Yields the arguments `number` and `below` of each necessary call of `check_end`. `ranges`
    must contain all offsets in `read`, which has the ascending offset ranges [start, stop) that
    tasks read.
    """
    cuts = [*cut_ranges(ranges, len(ranges))]
    start_of_run: int | None = None
    for (start, stop), following in zip_longest(read, read[1:]):
        if start_of_run is None:
            start_of_run = start
        if following is not None and following[0] == stop:
            continue
        last = bisect_left(ranges, stop, key=attrgetter("start")) - 1
        for number in cuts:
            if number < last and start_of_run < ranges[number].stop:
                # The segment's snapshot belongs to another offset than the end of this range, so
                # tasks cannot find out which transactions are open there.
                yield number, ranges[number].stop
        if ranges[last].start > start_of_run and stop < ranges[last].stop:
            # The read ends inside this segment. In the rest of it, tasks compare only the markers
            # of transactions that have data in this segment.
            yield last - 1, stop
        yield last, stop
        start_of_run = None


def cut_ranges(ranges: Sequence[SegmentRange], stop: int) -> Iterator[int]:
    """Yields the indexes (below `stop`) of the ranges that end before their segment ends."""
    for number in range(stop):
        span = ranges[number]
        if span.stop < span.segment.stop_offset:
            yield number


def check_end(
    partition: PartitionLog,
    aborted: AbortedIntervals,
    ends: EndStates,
    number: int,
    below: int,
    side_files: SideFiles,
    lost: frozenset[tuple[int, int]] = frozenset(),
) -> None:
    """Compares the outcomes of some transactions with the log: transactions that began below offset
    `below` and are open at the end of range `number`.

    Args:
        partition: The log.
        aborted: The intervals that tasks skip.
        ends: The transactions that are open at the end of each range.
        number: Index of the range in `partition.ranges`.
        below: Only transactions that began below this offset are compared.
        side_files: Reads the logs.
        lost: Producer id of each transaction whose marker may be in a gap, and start of the gap.

    Raises:
        CorruptSegmentError: The log shows an outcome that contradicts `aborted`.
        UnknownStartError: Earlier ranges are needed to find the open transactions.
    """
    waiting = {txn.producer_id: txn.first_offset for txn in ends.undecided(number, below=below)}
    last_read = number
    while waiting and number + 1 < len(partition.ranges):
        number += 1
        before, span = partition.ranges[number - 1 : number + 1]
        if not ends.follows(number):
            waiting = {p: first for p, first in waiting.items() if (p, before.stop) not in lost}
        # A lower first offset belongs to the same transaction, which began below the log start: a
        # replay finds the log start instead. A later transaction has a higher first offset.
        opened = (
            ends.open_after(number)
            if ends.is_known(number)
            else side_files.replay(span, waiting).open_after  # after a gap, without a snapshot
        )
        ended = {
            producer: first
            for producer, first in waiting.items()
            if producer not in opened or opened[producer] > first
        }
        aborts = {txn.producer_id: txn for txn in side_files.first_ends(span, ended)}
        for producer, first in ended.items():
            last = aborts[producer].last_offset if producer in aborts else None
            end = aborted.end_of(producer, first)
            if end != last and (
                end is not None
                or _has_records(partition, producer, (first, below), last_read, side_files)
            ):
                text = (
                    f"the log {'commits' if last is None else 'aborts'} the transaction that began"
                    f" at offset {first}, the index does not"
                )
                raise side_files.contradicted(
                    span.segment, CorruptIndexError(transaction_message(producer, text))
                )
            del waiting[producer]


def _has_records(
    partition: PartitionLog,
    producer_id: int,
    offsets: tuple[int, int],
    last: int,
    side_files: SideFiles,
) -> bool:
    """Returns whether a producer has transactional records in `offsets` [start, stop) of the log.
    Searches the ranges up to index `last`.

    If it has none, a missing index entry is no error: compaction removes the records of an aborted
    transaction first, then its index entry, then its marker.
    """
    start, stop = offsets
    return any(
        side_files.has_records(span, producer_id, start, stop)
        for span in partition.ranges[: last + 1]
        if span.start < stop and start < span.stop
    )


def _refuse_overlaps(
    partition: PartitionLog, aborted: Sequence[AbortedTxn], side_files: SideFiles
) -> None:
    """Raises `CorruptSegmentError` if two transactions of one producer overlap, because a producer
    has only one transaction at a time.
    """
    entries = sorted({(txn.producer_id, txn.first_offset, txn.last_offset) for txn in aborted})
    for (producer, first, last), (other, begun, end) in pairwise(entries):
        # Two entries with the same end are one transaction: after an unusable snapshot, a replay
        # may have found a first offset that is too high.
        if producer == other and begun <= last and end != last:
            span = next(span for span in partition.ranges if span.start <= last < span.stop)
            text = f"aborted transactions [{first}, {last}] and [{begun}, {end}] overlap"
            raise side_files.contradicted(
                span.segment, CorruptIndexError(transaction_message(producer, text), offset=last)
            )


class UnknownStartError(Exception):
    """Raised if only segments before the first range record which transactions are open at its
    start.
    """


class EndStates:
    """Finds the open and aborted transactions of each range of a log, from valid side files or else
    from batch headers. Caches the results: no log is read twice, even if many side files are
    invalid.

    Attributes:
        unknown_after: A gap of the log after which batch headers were replayed, although the
            transactions that were open at its end are unknown; `None` if there is none.
    """

    def __init__(self, partition: PartitionLog, side_files: SideFiles) -> None:
        self._partition = partition
        self._ranges = partition.ranges
        self._gaps = {gap.stop: gap for gap in partition.missing}
        self._side_files = side_files
        self._open: dict[int, Mapping[int, int]] = {}
        self._guesses: set[int] = set()  # replayed after a gap as if nothing was open there
        self._replays: dict[int, Replay] = {}
        self.unknown_after: Hole | None = None

    def continues_elsewhere(self, number: int) -> bool:
        """Returns whether range `number` ends inside its segment, and the next range begins there.
        Then callers use the snapshot of the next segment, because the snapshot of this segment
        belongs to a later offset.
        """
        span = self._ranges[number]
        return span.stop < span.segment.stop_offset and self.follows(number + 1)

    def undecided(self, number: int, *, below: int) -> tuple[OpenTransaction, ...]:
        """Returns the transactions that began below offset `below` and are still open at the end of
        range `number`, oldest first.
        """
        begun = (
            (first, producer)
            for producer, first in self.open_after(number).items()
            if first < below
        )
        return tuple(OpenTransaction(producer, first) for first, producer in sorted(begun))

    def open_after(self, number: int) -> Mapping[int, int]:
        """Returns the first offset of each transaction that is open at the end of range `number`,
        by producer id.

        If the snapshot of the range is not usable, replays the log from the nearest earlier usable
        snapshot, from the last gap, or from the log start.
        """
        first = number
        while first not in self._open and not self._has_snapshot(first) and self.follows(first):
            first -= 1
        is_guess = first in self._guesses or (
            first not in self._open and self._ranges[first].start in self._gaps
        )
        for each in range(first, number + 1):
            if each not in self._open:
                self._open[each] = self._replay(each).open_after
                if is_guess:
                    self._guesses.add(each)
        return self._open[number]

    def aborted(self, number: int, *, is_first: bool) -> tuple[AbortedTxn, ...]:
        """Returns the transactions whose abort marker is in range `number`.

        A transaction index has no checksum. If a transaction began in the range, tasks compare its
        entry with the log. If it began in an earlier range, this method compares its entry with the
        producer snapshot. It skips this comparison if `is_first` is True: pass True for the first
        wanted range, because earlier ranges are not read.
        """
        span = self._ranges[number]
        entries = self._side_files.aborted(span.segment)
        unproven: tuple[AbortedTxn, ...] = ()
        if entries and not is_first and self.contradicts_snapshot(number, entries):
            # If a broker lost its producer state, its snapshot may lack a transaction that was open
            # before. So keep index entries of producers that the snapshot does not contain.
            unproven = tuple(
                txn
                for txn in entries
                if txn.first_offset < span.start
                and txn.producer_id not in self.open_after(number - 1)
            )
            entries = None
        if entries is None:
            log.info("transaction index of %s is not usable: replaying batch headers", _name(span))
            if self.follows(number):
                self.open_after(number - 1)
            entries = (*self._replay(number).aborted, *unproven)
        return tuple(txn for txn in entries if span.start <= txn.last_offset < span.stop)

    def contradicts_snapshot(self, number: int, entries: Sequence[AbortedTxn]) -> bool:
        """Returns whether `entries` of the transaction index of range `number` contradict the
        transactions that are open at the start of the range.
        """
        if not (self.follows(number) and self.is_known(number - 1)):
            return False
        span, before = self._ranges[number], self.open_after(number - 1)
        doubtful = set()
        for txn in entries:
            if span.start <= txn.last_offset < span.stop:
                begun = before.get(txn.producer_id)
                if txn.first_offset < span.start and txn.first_offset != begun:
                    return True
                if begun is not None and txn.first_offset >= span.start:
                    doubtful.add(txn.producer_id)
        # The producer's open transaction may have committed before the transaction of the entry
        # began. So search the log for an abort marker of the open transaction.
        ended = {
            (txn.producer_id, txn.first_offset, txn.last_offset)
            for txn in self._side_files.first_ends(
                span, {producer: before[producer] for producer in doubtful}
            )
        }
        return not ended <= {(t.producer_id, t.first_offset, t.last_offset) for t in entries}

    def is_known(self, number: int) -> bool:
        """Returns whether snapshots and logs record which transactions are open at the end of range
        `number`.
        """
        while number not in self._open and not self._has_snapshot(number):
            if not self.follows(number):
                return self._ranges[number].start not in self._gaps
            number -= 1
        return number not in self._guesses

    def _has_snapshot(self, number: int) -> bool:
        """Reads the snapshot of range `number`, and returns whether it is usable."""
        span = self._ranges[number]
        if span.stop < span.segment.stop_offset:
            # The rest of the segment belongs to an abandoned branch, and the snapshot describes the
            # end of that branch.
            return False
        snapshot = self._side_files.snapshot(span.segment)
        if snapshot is None:
            log.info("producer snapshot of %s is not usable: replaying batch headers", _name(span))
            return False
        self._open[number] = open_first_offsets(snapshot)
        return True

    def _replay(self, number: int) -> Replay:
        """Replays the batch headers of range `number`. If the range directly follows another range,
        `_open` must contain the state at the end of that other range.
        """
        if number not in self._replays:
            before = (
                self._open[number - 1] if self.follows(number) else self._assumed_open_at(number)
            )
            self._replays[number] = self._side_files.replay(self._ranges[number], before)
        return self._replays[number]

    def follows(self, number: int) -> bool:
        """Returns whether range `number` begins at the offset where the previous range ends."""
        return number > 0 and self._ranges[number].start not in self._gaps

    def _assumed_open_at(self, number: int) -> Mapping[int, int]:
        """Returns an empty mapping: the transactions that are assumed to be open at the start of
        range `number`, which must not directly follow another range.

        At the log start this is exact, because a transaction with all its data below the log start
        affects no row. After a gap it is a guess.

        Raises:
            UnknownStartError: Ranges before range `number` were not read.
        """
        start = self._ranges[number].start
        if start in self._gaps:
            self.unknown_after = self._gaps[start]
        elif start > self._partition.log_start:
            raise UnknownStartError
        return {}


def _gaps(partition: PartitionLog, first: int, horizon: int) -> Iterator[tuple[int, int, int]]:
    """Yields the gaps that follow the ranges `first` to `horizon` - 1: number of the range
    before the gap, and offsets [low, high) of the gap.
    """
    gaps = {gap.start for gap in partition.missing}
    for number in range(first, min(horizon, len(partition.ranges) - 1)):
        low, high = partition.ranges[number].stop, partition.ranges[number + 1].start
        if low in gaps:
            yield number, low, high


def _lost_in_gaps(
    partition: PartitionLog,
    first: int,
    horizon: int,
    ends: EndStates,
    aborted: Sequence[AbortedTxn],
) -> list[AbortedTxn]:
    """Returns the transactions that are open at the start of a gap and have no known end after it,
    as if they were aborted at the start of the gap. The gap may contain their marker, so it is
    unknown whether they were committed.
    """
    lost = []
    for number, low, high in _gaps(partition, first, horizon):
        # A producer has one transaction at a time. So a transaction that began below the gap and
        # continues after it is the transaction that was open at the gap, even if a replay found a
        # higher first offset.
        decided = {
            txn.producer_id for txn in aborted if txn.first_offset < low and txn.last_offset >= high
        }
        after = number + 1
        while after < horizon and not ends.is_known(after):
            after += 1  # the state is only a guess, and a later one may be known
        decided |= {pid for pid, begun in ends.open_after(after).items() if begun < low}
        lost += [
            # As if the first offset of the gap were an abort marker. No segment has this offset,
            # and the next transaction of the producer may begin later in the gap.
            AbortedTxn(producer_id, begun, low, high)
            for producer_id, begun in ends.open_after(number).items()
            if producer_id not in decided
        ]
    return lost


def _with_first_offsets_of_snapshots(
    partition: PartitionLog,
    first: int,
    horizon: int,
    ends: EndStates,
    aborted: Sequence[AbortedTxn],
) -> list[AbortedTxn]:
    """Corrects the first offsets of aborted transactions that span a gap. Returns only the
    transactions whose index entries have too high a first offset, with the first offset of the
    producer snapshot.

    Such a transaction was open at the start of the gap, so the producer snapshot at that offset
    contains its first offset. Snapshots have a checksum, so an index entry with a higher first
    offset is damaged.
    """
    begun_earlier = []
    for number, low, high in _gaps(partition, first, horizon):
        across = [txn for txn in aborted if txn.first_offset < low and txn.last_offset >= high]
        if not across:
            continue
        opened = ends.open_after(number)
        begun_earlier += [
            replace(txn, first_offset=opened[txn.producer_id])
            for txn in across
            if opened.get(txn.producer_id, txn.first_offset) < txn.first_offset
        ]
    return begun_earlier


def _name(span: SegmentRange) -> str:
    segment = span.segment
    offsets = f"[{segment.start_offset}, {segment.stop_offset})"
    return f"{segment.topic}-{segment.partition} offsets {offsets}"


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """An offset at which a reader stops in a partition before the planned end.

    Attributes:
        start: First offset of the step.
        stop: One past the last offset of the step, below the end of the plan.
    """

    plan: PartitionPlan
    start: int
    stop: int


def check_early_stops(options: ScanOptions, stops: Sequence[EarlyStop]) -> None:
    """Compares the outcomes of the transactions that are open at each stop with the log. `stops`
    may have any order.

    Reads the producer snapshot at each stop. If transactions are open there, reads the batch
    headers after the stop up to the markers of these transactions.

    Raises:
        CorruptSegmentError: The markers in the log contradict the transaction indexes.
        ObjectNotFoundError: A segment was deleted after planning, and loss is not allowed.
    """
    if not stops or not options.read_committed:
        return
    key_ring = options.key_ring.loaded()
    with (
        closing(open_tier(options)) as tier,
        ThreadPoolExecutor(PLANNING_THREADS, "kts-stops") as pool,
    ):

        def check(stop: EarlyStop) -> None:
            source = SegmentSource(tier, key_ring)
            side_files = SideFiles(source, max_batch_bytes=options.max_batch_bytes)
            try:
                _check(stop, side_files)
            except ObjectNotFoundError as error:
                if options.fail_on_data_loss:
                    raise
                _warn_not_compared(stop, str(error))
            except TieredKafkaError as error:
                plan = stop.plan
                raise error.located(topic=plan.topic, partition=plan.partition) from error.__cause__

        for _ in pool.map(check, stops):
            pass


def _check(stop: EarlyStop, side_files: SideFiles) -> None:
    surviving = stop.plan.surviving
    logs = [surviving]
    if stop.plan.brokers is not None:
        # Check each run of adjacent segments separately. Brokers serve the offsets between two
        # runs, and report the aborted transactions there.
        logs = [
            replace(surviving, ranges=run, holes=(), unverifiable=())
            for run in runs(surviving.ranges)
        ]
    for log_of_run in logs:
        spans = [span for span in log_of_run.ranges if span.start < stop.stop <= span.stop]
        if not spans:
            continue
        start = max(stop.start, log_of_run.ranges[0].start)
        side_files.bounds = start, stop.stop
        try:
            decisions = decide(log_of_run, start, stop.stop, side_files)
        except UnknownStartError:
            _warn_not_compared(stop, "no usable producer snapshot records when they began")
            continue
        check_ends(log_of_run, decisions, [(start, stop.stop)], side_files)


def _warn_not_compared(stop: EarlyStop, reason: str) -> None:
    log.warning(
        "%s: transactions open at offset %d are not compared with the log: %s",
        stop.plan.topic_partition,
        stop.stop,
        reason,
    )
