"""Which transactions of a range were aborted, and where a read_committed read must end, from the
tier alone.

A transaction-index entry stands in the segment that holds the abort marker, which may come after
the data's; a producer snapshot tells which transactions are still open at a segment's end. So:
walk forward from the range's last segment until every transaction begun below the end is decided,
then collect the entries up to there. What is still open at the tier's end bounds the read: it is
the tier's last stable offset. Source: KIP-98, KIP-405; `CompletedFetch`,
`RemoteLogManager.collectAbortedTransactions`, `TransactionIndex`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING

from kts_source.texts import some
from segment_format.errors import CorruptIndexError
from segment_format.index.producer_snapshot import open_first_offsets
from segment_format.index.transaction_index import AbortedTxn
from segment_format.isolation import NO_ABORTED, AbortedIntervals, OpenTransaction
from segment_format.transaction_check import transaction_message

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kts_source.planning.lineage import Hole, PartitionLog, SegmentRange
    from kts_source.planning.scan_plan import PartitionPlan
    from kts_source.planning.side_files import SideFiles

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Replay:
    """What batch headers tell.

    Attributes:
        aborted: Transactions whose abort marker was met.
        open_after: Producer id to the first offset of its transaction still open.
    """

    aborted: tuple[AbortedTxn, ...]
    open_after: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Decisions:
    """What is decided about the transactions of a range.

    Attributes:
        aborted: Intervals whose batches are left out.
        stop: The range's end, clamped to the first undecided transaction.
        undecided: Transactions begun below the wanted end whose outcome the tier does not hold.
        lost: Transactions whose marker may lie in a gap; their records are left out with the
            aborted.
        unknown_behind: A gap behind which nothing tells which transactions were open, as the
            producer snapshots there are not usable; `None` = no such gap matters.
        ends: What is open at the end of each range; for `check_ends`.
    """

    aborted: AbortedIntervals
    stop: int
    undecided: tuple[OpenTransaction, ...]
    lost: tuple[AbortedTxn, ...] = ()
    unknown_behind: Hole | None = None
    ends: EndStates | None = field(default=None, repr=False, compare=False)


def decide(partition: PartitionLog, start: int, stop: int, side_files: SideFiles) -> Decisions:
    """Decides every transaction that has data in offsets [start, stop).

    Reads one snapshot in the usual case, and the transaction indexes of the segments that have one.
    Where a snapshot is not usable it reads those before it until one is, and the logs from there:
    at most each log once.

    Raises:
        UnknownStartError: It takes ranges below those at hand.
    """
    read = [n for n, span in enumerate(partition.ranges) if span.start < stop and span.stop > start]
    if not read:  # all of it lies in a hole
        return Decisions(NO_ABORTED, stop, ())
    first, last = read[0], read[-1]
    ends = EndStates(partition, side_files)
    horizon = last
    while horizon + 1 < len(partition.ranges) and (
        ends.goes_on_elsewhere(horizon) or ends.undecided(horizon, below=stop)
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
        unknown_behind=ends.unknown_behind,
        ends=ends,
    )


def check_ends(
    partition: PartitionLog,
    decisions: Decisions,
    read: Sequence[tuple[int, int]],
    side_files: SideFiles,
) -> None:
    """Compares the transactions that end after what is read with the log.

    Tasks compare what they read with the markers in the same segment. A transaction that is open at
    the end of a segment has its marker in a later one, which tasks may not read, or only in part.
    So the later segments are read up to that marker here.

    Args:
        partition: The log with the ranges up to the last marker.
        decisions: What the transaction indexes and snapshots say.
        read: Offsets [start, stop) that are read, in order.
        side_files: Reads the logs.

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
    """Yields where reads end, as arguments `number` and `below` of `check_end`.

    Args:
        ranges: Ranges of the log that hold everything that is read.
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
            # Tasks see only markers in the rest of this segment for its own data.
            yield last - 1, stop
        yield last, stop
        start_of_run = None


def cut_ranges(ranges: Sequence[SegmentRange], stop: int) -> Iterator[int]:
    """Yield the numbers below `stop` of ranges that end inside their segment."""
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
    """Compares transactions begun below an offset, and open at the end of range `number`.

    Args:
        partition: The log.
        aborted: The intervals that are left out.
        ends: What is open at the end of each range.
        number: Number of the range.
        below: Offset.
        side_files: Reads the logs.
        lost: Producer id and first offset of transactions whose marker may be in a gap.

    Raises:
        CorruptSegmentError: The log shows another outcome than the intervals.
        UnknownStartError: What is open there is recorded in ranges below those at hand.
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

    Compaction removes the records of an aborted transaction, then its entry in the index, and its
    marker last.
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
    """Raises `CorruptSegmentError` if transactions of one producer overlap, as none ever do."""
    entries = sorted({(txn.producer_id, txn.first_offset, txn.last_offset) for txn in aborted})
    for (producer, first, last), (other, begun, end) in pairwise(entries):
        # After an unusable snapshot a replay may see a transaction begin late; its end is the same.
        if producer == other and begun <= last and end != last:
            span = next(span for span in partition.ranges if span.start <= last < span.stop)
            text = f"aborted transactions [{first}, {last}] and [{begun}, {end}] overlap"
            raise side_files.contradicted(
                span.segment, CorruptIndexError(transaction_message(producer, text), offset=last)
            )


class UnknownStartError(Exception):
    """What is open where the first range begins is written in segments that are not at hand."""


class EndStates:
    """The transactional facts of each range, from side files where they are sound, else from the
    headers. Each is worked out once: no log is read twice, however many side files are bad.

    Attributes:
        unknown_behind: A gap behind which headers were replayed without knowing what was open.
    """

    def __init__(self, partition: PartitionLog, side_files: SideFiles) -> None:
        self._partition = partition
        self._ranges = partition.ranges
        self._gaps = {gap.stop: gap for gap in partition.missing}
        self._side_files = side_files
        self._open: dict[int, Mapping[int, int]] = {}
        self._guesses: set[int] = set()  # replayed after a gap as if nothing was open there
        self._replays: dict[int, Replay] = {}
        self.unknown_behind: Hole | None = None

    def goes_on_elsewhere(self, number: int) -> bool:
        """Whether range `number`, not the last, ends inside its segment and the next one begins
        right there: that one's snapshot tells, its own is of another place.
        """
        span = self._ranges[number]
        return span.stop < span.segment.stop_offset and self.follows(number + 1)

    def undecided(self, number: int, *, below: int) -> tuple[OpenTransaction, ...]:
        """Transactions begun below an offset and still open at the end of range `number`, oldest
        first.
        """
        begun = ((at, producer) for producer, at in self.open_after(number).items() if at < below)
        return tuple(OpenTransaction(producer, at) for at, producer in sorted(begun))

    def open_after(self, number: int) -> Mapping[int, int]:
        """Producer id to first offset of the transactions open at the end of range `number`.

        Where its snapshot is not usable: from the last sound one on, or the log start.
        """
        first = number
        while first not in self._open and not self._has_snapshot(first) and self.follows(first):
            first -= 1
        is_guess = first in self._guesses or (
            first not in self._open and self._ranges[first].start in self._gaps
        )
        for at in range(first, number + 1):
            if at not in self._open:
                self._open[at] = self._replay(at).open_after
                if is_guess:
                    self._guesses.add(at)
        return self._open[number]

    def aborted(self, number: int, *, is_first: bool) -> tuple[AbortedTxn, ...]:
        """Transactions whose abort marker lies in range `number`.

        A transaction index has no checksum. Tasks compare it with the log inside of a range; what
        it says of data in earlier ranges is compared with the snapshot here, unless this one
        `is_first` and those are not read.
        """
        span = self._ranges[number]
        entries = self._side_files.aborted(span.segment)
        unproven: tuple[AbortedTxn, ...] = ()
        if entries and not is_first and self.contradicts_snapshot(number, entries):
            # Such a snapshot may not know a transaction that was open before a broker lost state.
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
        """Whether entries of range `number` do not fit what was open where it begins."""
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
        # A transaction that was open there may have committed before the one of the entry began.
        ended = {
            (txn.producer_id, txn.first_offset, txn.last_offset)
            for txn in self._side_files.first_ends(
                span, {producer: before[producer] for producer in doubtful}
            )
        }
        return not ended <= {(t.producer_id, t.first_offset, t.last_offset) for t in entries}

    def is_known(self, number: int) -> bool:
        """Whether a snapshot, or one before it and the logs after that, tells what is open."""
        while number not in self._open and not self._has_snapshot(number):
            if not self.follows(number):
                return self._ranges[number].start not in self._gaps
            number -= 1
        return number not in self._guesses

    def _has_snapshot(self, number: int) -> bool:
        """Whether the snapshot of range `number` tells what is open at its end."""
        span = self._ranges[number]
        if span.stop < span.segment.stop_offset:
            # A dead branch begins inside the segment, and its snapshot is of that branch's end.
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
        """What the headers of range `number` tell; what was open before it must be known."""
        if number not in self._replays:
            before = self._open[number - 1] if self.follows(number) else self._open_at(number)
            self._replays[number] = self._side_files.replay(self._ranges[number], before)
        return self._replays[number]

    def follows(self, number: int) -> bool:
        """Whether range `number` begins where the one before it ends."""
        return number > 0 and self._ranges[number].start not in self._gaps

    def _open_at(self, number: int) -> Mapping[int, int]:
        """What counts as open where range `number` begins, which follows no other: nothing.

        At the log start that is exact, as far as rows go: a transaction whose data all lies below
        decides none of them. Behind a gap it is not.
        """
        start = self._ranges[number].start
        if start in self._gaps:
            self.unknown_behind = self._gaps[start]
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
    """Transactions open where a gap begins and not known to end behind it, up to the gap's end.

    Their marker may be one of the missing records, so nothing tells a commit from an abort.
    """
    gaps = {gap.start for gap in partition.missing}
    if not gaps:
        return []
    lost = []
    for number in range(first, min(horizon, len(partition.ranges) - 1)):
        low, high = partition.ranges[number].stop, partition.ranges[number + 1].start
        if low not in gaps:
            continue
        # A producer has one transaction at a time: what began below the gap and goes on behind it
        # is the one that was open, wherever a replay saw it begin.
        decided = {
            txn.producer_id for txn in aborted if txn.first_offset < low and txn.last_offset >= high
        }
        decided |= {pid for pid, begun in ends.open_after(number + 1).items() if begun < low}
        lost += [
            # The end is no offset of a segment: where one is, the log has an abort marker.
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

    A transaction across a gap is the one that was open where the gap begins. Where that is known
    from a snapshot, which has a checksum, an entry with a higher first offset is damaged.
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


def report_isolation(partitions: Sequence[tuple[PartitionPlan, int]]) -> None:
    """Logs what is left out, if anything is: a warning where rows may still be committed. With each
    plan comes how many aborted transactions have data in its range.
    """
    parts = []
    aborted = [f"{part.topic_partition}: {count}" for part, count in partitions if count]
    if aborted:
        total = sum(count for _, count in partitions)
        parts.append(f"{total} aborted transactions are left out ({some(aborted)})")
    undecided = [
        f"{part.topic_partition} ends at offset {part.stop}: {part.end_reason}"
        for part, _ in partitions
        if part.stop < part.wanted_stop
    ]
    if undecided:
        parts.append(f"what is not decided is left out ({some(undecided)})")
    if parts:
        level = logging.WARNING if undecided else logging.INFO
        log.log(level, "read_committed: %s", "; ".join(parts))


def _name(span: SegmentRange) -> str:
    segment = span.segment
    offsets = f"[{segment.start_offset}, {segment.stop_offset})"
    return f"{segment.topic}-{segment.partition} offsets {offsets}"
