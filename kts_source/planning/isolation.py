"""Finds the aborted transactions of a range, and the end of a read_committed read, from the tier
alone.

A transaction-index entry is in the segment with the abort marker, which may follow the segment with
the data. A producer snapshot records which transactions are open at a segment's end. So `decide`
walks forward from the range's last segment until every transaction that began below the end is
decided, and collects the entries up to there. A transaction that is open at the tier's end limits
the read: its first offset is the tier's last stable offset. Source: KIP-98, KIP-405;
`CompletedFetch`, `RemoteLogManager.collectAbortedTransactions`, `TransactionIndex`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING

from segment_format.errors import CorruptIndexError
from segment_format.index.producer_snapshot import open_first_offsets
from segment_format.index.transaction_index import AbortedTxn
from segment_format.isolation import NO_ABORTED, AbortedIntervals, OpenTransaction
from segment_format.transaction_check import transaction_message

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kts_source.planning.lineage import Hole, PartitionLog, SegmentRange
    from kts_source.planning.side_files import Replay, SideFiles

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Decisions:
    """The outcome of the transactions of a range.

    Attributes:
        aborted: Intervals of skipped batches.
        stop: The range's end, clamped to the first undecided transaction.
        undecided: Transactions that began below the wanted end and have no outcome in the tier.
        lost: Transactions that may have their marker in a gap; their records are skipped, too.
        unknown_after: A gap after which the open transactions are unknown, because the producer
            snapshots there are not usable; `None` = no such gap matters.
        ends: Transactions open at the end of each range; for `check_ends`.
    """

    aborted: AbortedIntervals
    stop: int
    undecided: tuple[OpenTransaction, ...]
    lost: tuple[AbortedTxn, ...] = ()
    unknown_after: Hole | None = None
    ends: EndStates | None = field(default=None, repr=False, compare=False)


def decide(partition: PartitionLog, start: int, stop: int, side_files: SideFiles) -> Decisions:
    """Decides every transaction that has data in offsets [start, stop).

    Usually reads one snapshot, and the existing transaction indexes. If the snapshot is not usable,
    reads the nearest earlier usable snapshot and the logs after it, each at most once.

    Raises:
        UnknownStartError: Ranges below the ranges of the log are needed.
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
        ends.open_after(last - 1)  # for `check_ends`; raises here if it needs ranges below
    for number in cut_ranges(partition.ranges, last):
        if number >= first and ends.is_known(number):
            ends.open_after(number)  # likewise
    undecided = ends.undecided(horizon, below=stop)
    aborted = [
        txn for n in range(first, horizon + 1) for txn in ends.aborted(n, is_first=n == first)
    ]
    _refuse_overlaps(partition, aborted, side_files)
    aborted += _begun_earlier(partition, first, horizon, ends, aborted)
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
    """Compares transactions with the log if they end after the offsets that were read.

    Tasks compare their records with the markers in the same segment. The marker of a transaction
    that is open at the end of a segment is in a later segment, which tasks may not read, or only in
    part. So this reads later segments up to that marker. `read` are offsets [start, stop) in order.

    Raises:
        CorruptSegmentError: The transaction indexes do not fit the log.
    """
    if decisions.ends is None:
        return
    lost = frozenset((txn.producer_id, txn.first_offset) for txn in decisions.lost)
    for number, below in ends_of_reads(partition.ranges, read):
        try:
            check_end(partition, decisions.aborted, decisions.ends, number, below, side_files, lost)
        except UnknownStartError:
            log.warning("transactions open at offset %d are not compared with the log", below)


def ends_of_reads(
    ranges: Sequence[SegmentRange], read: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Yields the ends of reads, as arguments `number` and `below` of `check_end`.

    Args:
        ranges: Ranges of the log that contain all offsets in `read`.
        read: Offsets [start, stop) that are read, in order.
    """
    cuts = [*cut_ranges(ranges, len(ranges))]
    start_of_run: int | None = None
    for (start, stop), following in zip_longest(read, read[1:]):
        if start_of_run is None:
            start_of_run = start
        if following is not None and following[0] == stop:
            continue
        last = next(n for n, span in enumerate(ranges) if span.start < stop <= span.stop)
        for number in cuts:
            if number < last and start_of_run < ranges[number].stop:
                # Its snapshot is of another offset, so tasks cannot look for open transactions.
                yield number, ranges[number].stop
        if ranges[last].start > start_of_run and stop < ranges[last].stop:
            # In the rest of this segment, tasks only compare markers of this segment's data.
            yield last - 1, stop
        yield last, stop
        start_of_run = None


def cut_ranges(ranges: Sequence[SegmentRange], stop: int) -> Iterator[int]:
    """Yields the numbers below `stop` of ranges that end inside their segment."""
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
    """Compares transactions that began below an offset and are open at the end of range `number`.

    Args:
        partition: The log.
        aborted: The intervals to skip.
        ends: Open transactions at the end of each range.
        number: Number of the range.
        below: The offset.
        side_files: Reads the logs.
        lost: Producer id and first offset of transactions whose marker may be in a gap.

    Raises:
        CorruptSegmentError: The log shows another outcome than the intervals.
        UnknownStartError: Earlier ranges are needed to find the open transactions.
    """
    if not ends.is_known(number):
        return  # after a gap, and without a usable snapshot
    waiting = {txn.producer_id: txn.first_offset for txn in ends.undecided(number, below=below)}
    last_read = number
    while waiting and number + 1 < len(partition.ranges):
        number += 1
        span = partition.ranges[number]
        if not ends.is_known(number):
            return
        if not ends.follows(number):
            waiting = {key: first for key, first in waiting.items() if (key, first) not in lost}
        ended = {
            producer: first
            for producer, first in waiting.items()
            if ends.open_after(number).get(producer) != first
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
    """Returns whether a producer has transactional records at offsets in the ranges up to `last`.

    Compaction removes first the records of an aborted transaction, then its index entry, then its
    marker.
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
    """Raises `CorruptSegmentError` if transactions of one producer overlap, which is impossible."""
    entries = sorted({(txn.producer_id, txn.first_offset, txn.last_offset) for txn in aborted})
    for (producer, first, last), (other, begun, end) in pairwise(entries):
        # After an unusable snapshot, a replay may find a first offset that is too high, but the
        # same end.
        if producer == other and begun <= last and end != last:
            span = next(span for span in partition.ranges if span.start <= last < span.stop)
            text = f"aborted transactions [{first}, {last}] and [{begun}, {end}] overlap"
            raise side_files.contradicted(
                span.segment, CorruptIndexError(transaction_message(producer, text), offset=last)
            )


class UnknownStartError(Exception):
    """The transactions open at the start of the first range are recorded in earlier segments."""


class EndStates:
    """The transactions of each range, from valid side files, else from batch headers. Results are
    cached, so no log is read twice, even with many invalid side files.

    Attributes:
        unknown_after: A gap after which headers were replayed although the open transactions were
            unknown.
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
        """Returns whether range `number` ends inside its segment and the next range follows. Then
        the next segment's snapshot is used, because this segment's snapshot is for another offset.
        """
        span = self._ranges[number]
        return span.stop < span.segment.stop_offset and self.follows(number + 1)

    def undecided(self, number: int, *, below: int) -> tuple[OpenTransaction, ...]:
        """Returns transactions that began below an offset and are still open at the end of range
        `number`, oldest first.
        """
        begun = (
            (first, producer)
            for producer, first in self.open_after(number).items()
            if first < below
        )
        return tuple(OpenTransaction(producer, first) for first, producer in sorted(begun))

    def open_after(self, number: int) -> Mapping[int, int]:
        """Returns producer id to first offset of transactions open at the end of range `number`.

        If its snapshot is not usable, replays the log from the last valid snapshot, or from the log
        start.
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
        """Returns transactions with their abort marker in range `number`.

        A transaction index has no checksum. Tasks compare it with the log inside a range. This
        method compares entries about earlier ranges with the snapshot, unless this range
        `is_first`, so that earlier ranges are not read.
        """
        span = self._ranges[number]
        entries = self._side_files.aborted(span.segment)
        unproven: tuple[AbortedTxn, ...] = ()
        if entries and not is_first and self.contradicts_snapshot(number, entries):
            # Such a snapshot may lack a transaction that was open before a broker lost its state.
            unproven = tuple(
                txn
                for txn in entries
                if txn.first_offset < span.start
                and txn.producer_id not in self.open_after(number - 1)
            )
            entries = None
        if entries is None:
            log.warning(
                "transaction index of %s is not usable: replaying batch headers", _name(span)
            )
            if self.follows(number):
                self.open_after(number - 1)
            entries = (*self._replay(number).aborted, *unproven)
        return tuple(txn for txn in entries if span.start <= txn.last_offset < span.stop)

    def contradicts_snapshot(self, number: int, entries: Sequence[AbortedTxn]) -> bool:
        """Returns whether entries of range `number` contradict the transactions at its start."""
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
        # A transaction that was open there may have committed before the entry's transaction began.
        ended = {
            (txn.producer_id, txn.first_offset, txn.last_offset)
            for txn in self._side_files.first_ends(
                span, {producer: before[producer] for producer in doubtful}
            )
        }
        return not ended <= {(t.producer_id, t.first_offset, t.last_offset) for t in entries}

    def is_known(self, number: int) -> bool:
        """Returns whether the open transactions at the end of a range are known from snapshots and
        logs.
        """
        while number not in self._open and not self._has_snapshot(number):
            if not self.follows(number):
                return self._ranges[number].start not in self._gaps
            number -= 1
        return number not in self._guesses

    def _has_snapshot(self, number: int) -> bool:
        """Returns whether the snapshot of range `number` is usable, and reads it."""
        span = self._ranges[number]
        if span.stop < span.segment.stop_offset:
            # A dead branch begins inside the segment, and the snapshot is of the dead branch's end.
            return False
        snapshot = self._side_files.snapshot(span.segment)
        if snapshot is None:
            log.warning(
                "producer snapshot of %s is not usable: replaying batch headers", _name(span)
            )
            return False
        self._open[number] = open_first_offsets(snapshot)
        return True

    def _replay(self, number: int) -> Replay:
        """Replays the headers of range `number`. The transactions open before it must be known."""
        if number not in self._replays:
            before = self._open[number - 1] if self.follows(number) else self._open_at(number)
            self._replays[number] = self._side_files.replay(self._ranges[number], before)
        return self._replays[number]

    def follows(self, number: int) -> bool:
        """Returns whether range `number` begins where the previous one ends."""
        return number > 0 and self._ranges[number].start not in self._gaps

    def _open_at(self, number: int) -> Mapping[int, int]:
        """Returns an empty mapping for range `number`, which follows no other range.

        This is exact at the log start: a transaction with all data below it affects no row. After a
        gap it is a guess.
        """
        start = self._ranges[number].start
        if start in self._gaps:
            self.unknown_after = self._gaps[start]
        elif start > self._partition.log_start:
            raise UnknownStartError
        return {}


def _lost_in_gaps(
    partition: PartitionLog,
    first: int,
    horizon: int,
    ends: EndStates,
    aborted: Sequence[AbortedTxn],
) -> list[AbortedTxn]:
    """Returns transactions that are open at the start of a gap and have no known end after it, up
    to the gap's end. Their marker may be in the gap, so commits and aborts cannot be distinguished.
    """
    gaps = {gap.start for gap in partition.missing}
    if not gaps:
        return []
    lost = []
    for number in range(first, min(horizon, len(partition.ranges) - 1)):
        low, high = partition.ranges[number].stop, partition.ranges[number + 1].start
        if low not in gaps:
            continue
        # A producer has one transaction at a time: a transaction that began below the gap and
        # continues after it was open, even if a replay found a later start.
        decided = {
            txn.producer_id for txn in aborted if txn.first_offset < low and txn.last_offset >= high
        }
        decided |= {pid for pid, begun in ends.open_after(number + 1).items() if begun < low}
        lost += [
            # The interval ends at the gap's end, which is no offset in a segment, like an abort
            # marker there.
            AbortedTxn(producer_id, begun, high - 1, high)
            for producer_id, begun in ends.open_after(number).items()
            if producer_id not in decided
        ]
    return lost


def _begun_earlier(
    partition: PartitionLog,
    first: int,
    horizon: int,
    ends: EndStates,
    aborted: Sequence[AbortedTxn],
) -> list[AbortedTxn]:
    """Returns aborted transactions across a gap that began before the first offset in the index.

    A transaction across a gap was open at the start of the gap. Snapshots have a checksum, so an
    index entry with a higher first offset than in the snapshot is damaged.
    """
    gaps = {gap.start for gap in partition.missing}
    if not gaps:
        return []
    begun_earlier = []
    for number in range(first, min(horizon, len(partition.ranges) - 1)):
        low, high = partition.ranges[number].stop, partition.ranges[number + 1].start
        if low not in gaps:
            continue
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
