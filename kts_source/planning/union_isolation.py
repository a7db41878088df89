"""Which transactions of the tier's part were aborted, where brokers serve the rest.

Every run of segments that follow each other is decided by itself: abort markers in it stand in the
transaction indexes of its segments; transactions that are open at its end began below the last
stable offset, so they are decided by now, and the leader says which of them were aborted. Asking at
the end of the tier alone would be wrong where brokers fill a hole.

Source: `LocalLog.collectAbortedTransactions`, `TransactionIndex`, KIP-98.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from kts_source.broker.cluster import LEAK
from kts_source.errors import CorruptSegmentError, DataLossError, OldBrokerError
from kts_source.planning.isolation import EndStates, UnknownStartError, check_end
from kts_source.planning.union_log import runs
from segment_format.index.transaction_index import AbortedTxn
from segment_format.isolation import AbortedIntervals

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from kts_source.planning.bounds import Place
    from kts_source.planning.cluster_view import BrokerLog, ClusterView
    from kts_source.planning.lineage import PartitionLog
    from kts_source.planning.side_files import SideFiles

log = logging.getLogger(__name__)


class NotUsableError(Exception):
    """A segment whose side files do not tell its transactions.

    Attributes:
        segment_id: Which.
    """

    def __init__(self, segment_id: str) -> None:
        super().__init__(segment_id)
        self.segment_id = segment_id


def aborted_in_tier(
    partition: PartitionLog,
    start: int,
    stop: int,
    side_files: SideFiles,
    brokers: BrokerLog,
    view: ClusterView,
    place: Place,
) -> AbortedIntervals:
    """The aborted transactions with data in the tier's part of offsets [start, stop).

    Raises:
        DataLossError: Brokers lost the records that say how a transaction ended, and loss is not
            allowed.
        NotUsableError: A segment's transaction index or producer snapshot cannot be used.
        BrokerError: The leader does not answer, or is too old to be asked.
    """
    txns: list[AbortedTxn] = []
    for run in runs(partition.ranges):
        read = [span for span in run if span.start < stop and span.stop > start]
        if not read:
            continue
        last = run.index(read[-1])
        # A range that ends inside its segment goes on in the next one, whose snapshot is of its
        # own end; the last of the run ends inside of it only where the log's end does.
        while last + 1 < len(run) and run[last].stop < run[last].segment.stop_offset:
            last += 1
        first = run.index(read[0])
        log_of_run = replace(partition, ranges=run[first:], holes=(), unverifiable=())
        decided = [*_decided(log_of_run, last - first, side_files, brokers, view, place)]
        _check_inside(log_of_run, last - first, stop, decided, side_files)
        txns += decided
    return AbortedIntervals.from_txns(txns, start_offset=start, stop_offset=stop)


def _check_inside(
    run: PartitionLog,
    last: int,
    stop: int,
    txns: Sequence[AbortedTxn],
    side_files: SideFiles,
) -> None:
    """Compares transactions with data below range `last` and a marker in it with the log.

    Tasks may not read as far as that marker.

    Raises:
        NotUsableError: They do not fit, or the log cannot be read.
    """
    span = run.ranges[last]
    if last == 0 or stop >= span.stop:
        return
    whole = replace(run, ranges=run.ranges[: last + 1])
    intervals = AbortedIntervals.from_txns(txns, start_offset=0, stop_offset=span.stop)
    try:
        ends = EndStates(whole, side_files)
        check_end(whole, intervals, ends, last - 1, stop, side_files)
    except (CorruptSegmentError, UnknownStartError) as error:
        log.warning("%s", error)
        raise NotUsableError(span.segment.segment_id) from error


def _fits_the_range_before(ends: EndStates, number: int, entries: Sequence[AbortedTxn]) -> bool:
    """Returns whether entries of range `number` fit what is open where it begins."""
    try:
        return not ends.contradicts_snapshot(number, entries)
    except UnknownStartError:
        return False


def _decided(
    run: PartitionLog,
    last: int,
    side_files: SideFiles,
    brokers: BrokerLog,
    view: ClusterView,
    place: Place,
) -> Iterator[AbortedTxn]:
    """What was aborted in the segments of a run up to `last`, and what is open behind them."""
    began: set[tuple[int, int]] | None = None
    ends = EndStates(run, side_files)
    for number, span in enumerate(run.ranges):
        entries = side_files.aborted(span.segment)
        if entries is None or (entries and not _fits_the_range_before(ends, number, entries)):
            raise NotUsableError(span.segment.segment_id)
        end = span.segment.stop_offset if number == len(run.ranges) - 1 else span.stop
        yield from (txn for txn in entries if span.start <= txn.last_offset < end)
        if number < last:
            continue
        snapshot = side_files.snapshot(span.segment)
        if snapshot is None:
            raise NotUsableError(span.segment.segment_id)
        end = span.segment.stop_offset
        still_open = {
            (entry.producer_id, entry.current_txn_first_offset)
            for entry in snapshot
            if 0 <= entry.current_txn_first_offset < brokers.end
        }
        began = still_open if began is None else still_open & began
        if not began:
            return
        if min(end, brokers.end - 1) >= view.decided_from(brokers):
            for producer, first in began & _aborted_at(end, began, brokers, view, place):
                yield AbortedTxn(producer, first, end, end)
            return
        # Old brokers do not tell it all: the tier's own next segment does.
    oldest = min(first for _, first in began or ())
    raise OldBrokerError(
        f"the tier does not hold the end of a transaction that began at offset {oldest}; brokers"
        f" would look for it in their tier, and {LEAK}: plan again later, or read with"
        " isolationLevel=read_uncommitted"
    )


def _aborted_at(
    offset: int,
    began: set[tuple[int, int]],
    brokers: BrokerLog,
    view: ClusterView,
    place: Place,
) -> AbstractSet[tuple[int, int]]:
    """Which transactions that are open at an offset the leader lists as aborted; all of them where
    its own tier lost the records there, and loss is allowed.
    """
    try:
        return view.aborted_behind(brokers, offset)
    except DataLossError as error:
        oldest = min(first for _, first in began)
        place.raise_or_warn(
            f"transactions that began at offset {oldest} or later are open at offset {offset},"
            f" and nothing tells how they ended: {error.message}. Their records are then left out"
        )
        return began
