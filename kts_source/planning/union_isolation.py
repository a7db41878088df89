"""Which transactions of the tier's part were aborted, where brokers serve the rest.

Every run of segments that follow each other is decided by itself: abort markers in it stand in the
transaction indexes of its segments; transactions that are open at its end began below the last
stable offset, so they are decided by now, and the leader says which of them were aborted. Asking at
the end of the tier alone would be wrong where brokers fill a hole.

Source: `LocalLog.collectAbortedTransactions`, `TransactionIndex`, KIP-98.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kts_source.broker.old_brokers import LEAK
from kts_source.errors import CorruptSegmentError, DataLossError, OldBrokerError
from kts_source.planning.isolation import EndStates, UnknownStartError, check_end, ends_of_reads
from kts_source.planning.union_log import runs
from segment_format.index.producer_snapshot import open_first_offsets
from segment_format.index.transaction_index import AbortedTxn
from segment_format.isolation import AbortedIntervals

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from kts_source.layout.remote_segment import RemoteSegment
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


@dataclass(frozen=True, slots=True)
class TierRun:
    """Segments of the tier that follow each other, up to the last one that decides transactions.

    Attributes:
        log: The log with only these ranges.
        ends: Which transactions are open at the end of each range.
    """

    log: PartitionLog
    ends: EndStates


def aborted_in_tier(
    partition: PartitionLog,
    start: int,
    stop: int,
    side_files: SideFiles,
    brokers: BrokerLog,
    view: ClusterView,
    place: Place,
) -> tuple[AbortedIntervals, tuple[TierRun, ...]]:
    """Returns the aborted transactions with data in the tier's part of offsets [start, stop), and
    the runs of segments that name them, for `check_ends_in_tier`.

    Raises:
        DataLossError: Brokers lost the records that say how a transaction ended, and loss is not
            allowed.
        NotUsableError: A segment's transaction index or producer snapshot cannot be used.
        BrokerError: The leader does not answer, or is too old to be asked.
    """
    txns: list[AbortedTxn] = []
    tier_runs = []
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
        ends = EndStates(log_of_run, side_files)
        decided, horizon = _decided(
            log_of_run, last - first, ends, side_files, brokers, view, place
        )
        txns += decided
        tier_runs.append(
            TierRun(replace(log_of_run, ranges=run[first : first + horizon + 1]), ends)
        )
    aborted = AbortedIntervals.from_txns(txns, start_offset=start, stop_offset=stop)
    return aborted, tuple(tier_runs)


def check_ends_in_tier(
    tier_runs: Iterable[TierRun],
    aborted: AbortedIntervals,
    read: Sequence[tuple[int, int]],
    side_files: SideFiles,
) -> None:
    """Compares transactions whose marker is in the tier, but not in what is read, with the log.

    Args:
        tier_runs: The runs of segments that decide the transactions.
        aborted: The transactions that they abort.
        read: Offsets [start, stop) that are read from the tier, in order.
        side_files: Reads the logs.

    Raises:
        NotUsableError: They do not fit, or the log cannot be read.
    """
    for run in tier_runs:
        ranges = run.log.ranges
        inside = [span for span in read if ranges[0].start <= span[0] < ranges[-1].stop]
        for number, below in ends_of_reads(ranges, inside):
            try:
                check_end(run.log, aborted, run.ends, number, below, side_files)
            except (CorruptSegmentError, UnknownStartError) as error:
                log.warning("%s", error)
                raise NotUsableError(_segment_of(error, ranges).segment_id) from error


def _segment_of(
    error: CorruptSegmentError | UnknownStartError, ranges: Sequence[SegmentRange]
) -> RemoteSegment:
    """Returns the segment that an error is about, or the last one."""
    if isinstance(error, CorruptSegmentError) and error.offset is not None:
        for span in ranges:
            if span.segment.start_offset <= error.offset < span.segment.stop_offset:
                return span.segment
    return ranges[-1].segment


def _fits_the_range_before(ends: EndStates, number: int, entries: Sequence[AbortedTxn]) -> bool:
    """Returns whether entries of range `number` fit what is open where it begins."""
    try:
        return not ends.contradicts_snapshot(number, entries)
    except UnknownStartError:
        return False


def _decided(
    run: PartitionLog,
    last: int,
    ends: EndStates,
    side_files: SideFiles,
    brokers: BrokerLog,
    view: ClusterView,
    place: Place,
) -> tuple[list[AbortedTxn], int]:
    """Returns the transactions that were aborted in the segments of a run up to `last`, or are
    open there and aborted later, and the number of the last segment that was needed.
    """
    aborted: list[AbortedTxn] = []
    began: set[tuple[int, int]] | None = None
    for number, span in enumerate(run.ranges):
        entries = side_files.aborted(span.segment)
        if entries is None or (entries and not _fits_the_range_before(ends, number, entries)):
            raise NotUsableError(span.segment.segment_id)
        end = span.segment.stop_offset if number == len(run.ranges) - 1 else span.stop
        aborted += (txn for txn in entries if span.start <= txn.last_offset < end)
        if number < last:
            continue
        opened = _open_at_end(
            run, number, ends, side_files, is_replayed=span.start < view.decided_from(brokers)
        )
        end = span.segment.stop_offset
        still_open = {
            (producer, first) for producer, first in opened.items() if first < brokers.end
        }
        began = still_open if began is None else still_open & began
        if not began:
            return aborted, number
        if min(end, brokers.end - 1) >= view.decided_from(brokers):
            later = began & _aborted_at(end, began, brokers, view, place)
            aborted += (AbortedTxn(producer, first, end, end) for producer, first in later)
            return aborted, number
        # Old brokers do not tell it all: the tier's own next segment does.
    oldest = min(first for _, first in began or ())
    raise OldBrokerError(
        f"the tier does not hold the end of a transaction that began at offset {oldest}; brokers"
        f" would look for it in their tier, and {LEAK}: plan again later, or read with"
        " isolationLevel=read_uncommitted"
    )


def _open_at_end(
    run: PartitionLog, number: int, ends: EndStates, side_files: SideFiles, *, is_replayed: bool
) -> Mapping[int, int]:
    """Returns producers with a transaction that is open at a segment's end, and its first offset.

    Args:
        run: The log with the range of the segment.
        number: The range's number.
        ends: Replays the log where the producer snapshot cannot be used.
        side_files: Reads the snapshot.
        is_replayed: Whether the log may be replayed, because old brokers do not serve the segment.

    Raises:
        NotUsableError: Neither tells.
    """
    span = run.ranges[number]
    segment = span.segment
    snapshot = side_files.snapshot(segment)
    if snapshot is not None:
        return open_first_offsets(snapshot)
    if not is_replayed or span.stop < segment.stop_offset:
        raise NotUsableError(segment.segment_id)
    try:
        opened = ends.open_after(number)
    except (CorruptSegmentError, UnknownStartError) as error:
        raise NotUsableError(segment.segment_id) from error
    if opened and run.log_start > 0:
        # A transaction around the log start seems to begin there: brokers name another offset.
        raise NotUsableError(segment.segment_id)
    return opened


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
