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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from segment_format.index.transaction_index import AbortedTxn
from segment_format.isolation import NO_ABORTED, AbortedIntervals, OpenTransaction

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.planning.lineage import PartitionLog, SegmentRange
    from segment_format.index.producer_snapshot import ProducerStateEntry

log = logging.getLogger(__name__)


class TransactionState(Protocol):
    """Where the transactional side files of a segment come from."""

    def snapshot(self, segment: RemoteSegment) -> tuple[ProducerStateEntry, ...] | None:
        """Producer state at the segment's end; `None` when the file is missing or not valid."""

    def aborted(self, segment: RemoteSegment) -> tuple[AbortedTxn, ...] | None:
        """Transactions whose abort marker is in the segment; `None` when the file is not valid."""

    def replay(self, span: SegmentRange, open_before: Mapping[int, int]) -> Replay:
        """The same from the batch headers of a range, given what was open where it begins."""


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
        lost: Transactions whose marker may lie in a hole; their records are left out with the
            aborted.
    """

    aborted: AbortedIntervals
    stop: int
    undecided: tuple[OpenTransaction, ...]
    lost: tuple[OpenTransaction, ...] = ()


def decide(partition: PartitionLog, start: int, stop: int, state: TransactionState) -> Decisions:
    """Decides every transaction that has data in offsets [start, stop).

    Reads one snapshot in the usual case, and the transaction indexes of the segments that have one.
    """
    read = [n for n, span in enumerate(partition.ranges) if span.start < stop and span.stop > start]
    if not read:  # all of it lies in a hole
        return Decisions(NO_ABORTED, stop, ())
    first, last = read[0], read[-1]
    ends = _EndStates(partition, state)
    horizon = last
    while True:
        if ends.goes_on_elsewhere(horizon):
            horizon += 1
            continue
        undecided = ends.undecided(horizon, below=stop)
        if not undecided or horizon + 1 == len(partition.ranges):
            break
        horizon += 1
    aborted = [txn for n in range(first, horizon + 1) for txn in ends.aborted(n)]
    lost = [
        (txn, hole_stop)
        for txn, hole_stop in _lost_in_holes(partition, first, horizon, ends, aborted)
        if txn.first_offset < stop
    ]
    aborted.extend(
        AbortedTxn(txn.producer_id, txn.first_offset, hole_stop, hole_stop)
        for txn, hole_stop in lost
    )
    clamped = min([stop, *(txn.first_offset for txn in undecided)])
    return Decisions(
        aborted=AbortedIntervals.from_txns(aborted, start_offset=start, stop_offset=stop),
        stop=max(clamped, start),
        undecided=undecided,
        lost=tuple(txn for txn, _ in lost),
    )


class _EndStates:
    """The transactional facts of each range, from side files where they are sound, else from the
    headers.
    """

    def __init__(self, partition: PartitionLog, state: TransactionState) -> None:
        self._ranges = partition.ranges
        self._hole_stops = {hole.stop for hole in partition.holes}
        self._state = state
        self._open: dict[int, Mapping[int, int]] = {}
        self._snapshots: dict[int, tuple[ProducerStateEntry, ...] | None] = {}

    def goes_on_elsewhere(self, number: int) -> bool:
        """Whether range `number` ends inside its segment and the next one begins right there: that
        one's snapshot tells, its own is of another place.
        """
        span = self._ranges[number]
        following = self._ranges[number + 1] if number + 1 < len(self._ranges) else None
        cut = span.stop < span.segment.stop_offset
        return cut and following is not None and following.start == span.stop

    def undecided(self, number: int, *, below: int) -> tuple[OpenTransaction, ...]:
        """Transactions begun below an offset and still open at the end of range `number`, oldest
        first.
        """
        begun = (OpenTransaction(*pair) for pair in self.open_after(number).items())
        return tuple(
            sorted(
                (txn for txn in begun if txn.first_offset < below),
                key=lambda txn: (txn.first_offset, txn.producer_id),
            )
        )

    def open_after(self, number: int) -> Mapping[int, int]:
        """Producer id to first offset of the transactions open at the end of range `number`."""
        if number not in self._open:
            snapshot = self._snapshot(number)
            if snapshot is None:
                self._open[number] = self._replay(number).open_after
            else:
                self._open[number] = {
                    entry.producer_id: entry.current_txn_first_offset
                    for entry in snapshot
                    if entry.current_txn_first_offset >= 0
                }
        return self._open[number]

    def aborted(self, number: int) -> tuple[AbortedTxn, ...]:
        """Transactions whose abort marker lies in range `number`."""
        span = self._ranges[number]
        entries = self._state.aborted(span.segment)
        if entries is None:
            log.warning(
                "transaction index of %s is not usable: replaying batch headers", _name(span)
            )
            entries = self._replay(number).aborted
        return tuple(txn for txn in entries if span.start <= txn.last_offset < span.stop)

    def _snapshot(self, number: int) -> tuple[ProducerStateEntry, ...] | None:
        span = self._ranges[number]
        if span.stop < span.segment.stop_offset:
            # A dead branch begins inside the segment, and its snapshot is of that branch's end.
            return None
        if number not in self._snapshots:
            self._snapshots[number] = self._state.snapshot(span.segment)
            if self._snapshots[number] is None:
                log.warning(
                    "producer snapshot of %s is not usable: replaying batch headers", _name(span)
                )
        return self._snapshots[number]

    def _replay(self, number: int) -> Replay:
        contiguous = number > 0 and self._ranges[number].start not in self._hole_stops
        before = self.open_after(number - 1) if contiguous else {}
        return self._state.replay(self._ranges[number], before)


def _lost_in_holes(
    partition: PartitionLog,
    first: int,
    horizon: int,
    ends: _EndStates,
    aborted: Sequence[AbortedTxn],
) -> list[tuple[OpenTransaction, int]]:
    """Transactions open where a hole begins and not known to end behind it, with the hole's end.

    Their marker may be one of the missing records, so nothing tells a commit from an abort.
    """
    known = {(txn.producer_id, txn.first_offset) for txn in aborted}
    hole_starts = {hole.start for hole in partition.holes}
    lost = []
    for number in range(first, min(horizon, len(partition.ranges) - 1)):
        here, following = partition.ranges[number], partition.ranges[number + 1]
        if here.stop not in hole_starts:
            continue
        still_open = ends.open_after(number + 1)
        for producer_id, first_offset in ends.open_after(number).items():
            decided_later = (producer_id, first_offset) in known
            if not decided_later and still_open.get(producer_id) != first_offset:
                lost.append((OpenTransaction(producer_id, first_offset), following.start))
    return lost


def _name(span: SegmentRange) -> str:
    segment = span.segment
    offsets = f"[{segment.start_offset}, {segment.stop_offset})"
    return f"{segment.topic}-{segment.partition} offsets {offsets}"
