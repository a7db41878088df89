"""Which transactions of the tier's part were aborted, where brokers serve the rest.

Every run of segments that follow each other is decided by itself: abort markers in it stand in the
transaction indexes of its segments; transactions that are open at its end began below the last
stable offset, so they are decided by now, and the leader says which of them were aborted. Asking at
the end of the tier alone would be wrong where brokers fill a hole.

Source: `LocalLog.collectAbortedTransactions`, `TransactionIndex`, KIP-98.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kts_source.broker.cluster import LEAK
from kts_source.errors import DataLossError, OldBrokerError
from kts_source.planning.union_log import runs
from segment_format.index.transaction_index import AbortedTxn
from segment_format.isolation import AbortedIntervals

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from kts_source.planning.bounds import Place
    from kts_source.planning.cluster_view import BrokerLog, ClusterView
    from kts_source.planning.lineage import PartitionLog, SegmentRange
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
        txns += _decided(run[first:], last - first, side_files, brokers, view, place)
    return AbortedIntervals.from_txns(txns, start_offset=start, stop_offset=stop)


def _decided(
    run: Sequence[SegmentRange],
    last: int,
    side_files: SideFiles,
    brokers: BrokerLog,
    view: ClusterView,
    place: Place,
) -> Iterator[AbortedTxn]:
    """What was aborted in the segments of a run up to `last`, and what is open behind them."""
    began: set[tuple[int, int]] | None = None
    for number, span in enumerate(run):
        entries = side_files.aborted(span.segment)
        if entries is None:
            raise NotUsableError(span.segment.segment_id)
        end = span.segment.stop_offset if number == len(run) - 1 else span.stop
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
