"""What the tier does not give, brokers do: the same offsets from the first one not yet returned
(KIP-1254: a failure to read remotely ends in an ordinary fetch).

Brokers are asked for everything, and the transactions to leave out are the plan's, so a broker that
reads the tier itself needs no transaction index of it.
"""

from __future__ import annotations

import logging
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kts_source.broker.broker_range import BrokerRange
from kts_source.broker.cluster import Cluster
from kts_source.broker.fetch_range import RangeFetcher
from kts_source.errors import (
    BrokerError,
    CorruptSegmentError,
    DataLossError,
    StoreError,
    TieredKafkaError,
)
from kts_source.read.read_ranges import counted, leaves_out, rows_of
from kts_source.read.slice_boundaries import slice_boundaries
from segment_format.record.batch_header import MAGIC_2
from segment_format.record.framing import iter_entries, read_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from kts_source.broker.fetched_batches import FetchedBatches
    from kts_source.read.read_settings import ReadSettings
    from kts_source.read.segment_source import SegmentSource
    from kts_source.read.task import SegmentSlice
    from kts_source.read.task_metrics import TaskMeter

log = logging.getLogger(__name__)

_MOST_ALIKE: Final = 3
"""So many slices in a row may fail alike: a wrong key or layout must not move a whole scan onto the
brokers.
"""
_alike: dict[tuple[str, str], int] = {}
"""Scan and kind of failure to slices in a row, of this process."""


class BrokerFallback:
    """Finishes slices from brokers.

    Args:
        cluster: From whom; nobody else may use its connections meanwhile.
        settings: How to decode; the columns hold `offset`.
        meter: Where to count.
    """

    def __init__(
        self, cluster: Cluster, settings: ReadSettings, meter: TaskMeter | None = None
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._meter = meter
        # Tasks of one scan share the count; without an engine's name for it, those of one plan.
        self._scan = (meter.scan if meter is not None else "") or str(id(cluster.settings))

    def covers(self, part: SegmentSlice, error: TieredKafkaError, *, counts: bool) -> bool:
        """Whether brokers may serve what is left of a slice.

        Args:
            part: The slice.
            error: Why the tier does not.
            counts: Whether it is this slice that failed.
        """
        if not isinstance(error, StoreError | CorruptSegmentError) or not part.lineage:
            return False
        if not counts:
            return True
        kind = self._scan, type(error).__name__
        if any(scan != self._scan for scan, _ in _alike):
            _alike.clear()
        count = _alike[kind] = _alike.get(kind, 0) + 1
        if count > _MOST_ALIKE:
            error.message += (
                f"; {_MOST_ALIKE} slices before it failed alike and were read from brokers, so the"
                " store, its credentials or the keys look wrong. brokerFallback=false reads nothing"
                " from brokers that the tier holds"
            )
            return False
        return True

    def went_well(self) -> None:
        """A slice was read from the tier."""
        _alike.clear()

    def rest(
        self, part: SegmentSlice, next_offset: int, reader: SegmentSource, error: TieredKafkaError
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a slice from an offset on.

        Args:
            part: The slice.
            next_offset: Rows below it were returned.
            reader: Where boundaries inside of the segment are looked up.
            error: Why the tier does not give them.

        Raises:
            DataLossError: Brokers do not have them either.
            BrokerError: Brokers refuse, or do not answer.
        """
        first, last = slice_boundaries(part, reader)
        if first.position >= last.position:
            return
        start = max(part.start_offset, next_offset)
        if start >= part.stop_offset:
            return
        # An inner boundary is a position, and no offset of the index tells which batch begins
        # there: an append may have many batches. So batches are counted from the segment's start.
        is_counted = first.last_offset is not None or last.last_offset is not None
        fetch_from = part.segment_start if is_counted else start
        log.warning(
            "%s-%s: offsets from %d to %d are read from brokers: %s",
            part.topic,
            part.partition,
            start,
            part.stop_offset,
            error,
        )
        if self._meter is not None:
            self._meter.brokers.fallbacks += 1
        wanted = BrokerRange(
            topic=part.topic,
            topic_id=part.topic_id,
            partition=part.partition,
            leader_epoch=part.lineage[-1].epoch,
            start_offset=fetch_from,
            stop_offset=part.stop_offset,
            read_committed=False,
            nominal_bytes=part.nominal_bytes,
        )
        shown = wanted.between(start, part.stop_offset)
        gone: list[int] = []
        leave_out = leaves_out(shown, self._settings, self._meter, gone)
        jumps: list[_Jump] = []
        fetcher = RangeFetcher(
            self._cluster,
            wanted,
            max_batch_bytes=self._settings.max_batch_bytes,
            on_loss=(lambda *jump: jumps.append(_Jump(*jump))) if is_counted else leave_out,
        )

        def lose(jump: _Jump) -> None:
            if jump.behind <= start:
                return
            if leave_out is None:
                raise jump.error
            leave_out(max(jump.at, start), jump.behind, jump.error)

        with (
            _explained(fetcher),
            counted(fetcher, self._meter),
            closing(fetcher.batches()) as fetched,
        ):
            batches: Iterable[FetchedBatches] = fetched
            if is_counted:
                batches = self._counted(fetched, part, (first.position, last.position), jumps, lose)
            yield from rows_of(
                batches,
                shown,
                self._settings,
                aborted=part.aborted,
                meter=self._meter,
                gone=gone,
            )

    def _counted(
        self,
        fetched: Iterable[FetchedBatches],
        part: SegmentSlice,
        positions: tuple[int, int],
        jumps: Sequence[_Jump],
        lose: Callable[[_Jump], None],
    ) -> Iterator[FetchedBatches]:
        """The batches that stand at positions [start, stop) of a slice's segment.

        Args:
            fetched: Its batches from the first one on: what brokers send is byte for byte what was
                uploaded.
            part: The slice.
            positions: Where batches begin; the stop may be the segment's end.
            jumps: Where the log start passed what was to be fetched next; it grows meanwhile.
            lose: Called with a jump over batches of the slice.
        """
        start, stop = positions
        at = known = 0
        for found in fetched:
            if len(jumps) > known:
                known = len(jumps)
                at = part.objects.size_in_bytes - self._bytes_behind(found.start_offset, part)
                entry = read_prefix(found.data)
                is_cut = entry.magic != MAGIC_2 or entry.offset < found.start_offset
                if at > start or (at == start and is_cut):
                    lose(jumps[-1])
            low, high = max(start - at, 0), min(stop - at, len(found.data))
            at += len(found.data)
            if low < high:
                yield replace(found, data=found.data[low:high])
            if at >= stop:
                return
        if len(jumps) > known:
            lose(jumps[-1])

    def _bytes_behind(self, offset: int, part: SegmentSlice) -> int:
        """Bytes of a segment from the batch that holds an offset on.

        Where the log start has passed its first batches, those that are left are counted back from
        its end.
        """
        rest = BrokerRange(
            topic=part.topic,
            topic_id=part.topic_id,
            partition=part.partition,
            leader_epoch=part.lineage[-1].epoch,
            start_offset=offset,
            stop_offset=part.segment_stop,
            read_committed=False,
            nominal_bytes=part.nominal_bytes,
        )
        # Connections serve one fetch at a time, and one goes on meanwhile.
        with closing(Cluster(self._cluster.settings)) as cluster:
            fetcher = RangeFetcher(cluster, rest, max_batch_bytes=self._settings.max_batch_bytes)
            try:
                with counted(fetcher, self._meter), closing(fetcher.batches()) as fetched:
                    return sum(_bytes_below(one, part.segment_stop) for one in fetched)
            except DataLossError as error:
                raise BrokerError(
                    "the log start of the brokers moved while a part of a segment was read from"
                    f" them; run the scan again: {error.message}",
                    topic=part.topic,
                    partition=part.partition,
                    offset=offset,
                ) from error


@dataclass(frozen=True, slots=True)
class _Jump:
    """Offsets that are gone: [at, behind)."""

    at: int
    behind: int
    error: DataLossError


@contextmanager
def _explained(fetcher: RangeFetcher) -> Iterator[None]:
    """Counts a failure no more where brokers do not have the offsets either: what retention deleted
    says nothing about the store.
    """
    try:
        yield
    finally:
        if fetcher.lost_offsets:
            _alike.clear()


def _bytes_below(found: FetchedBatches, stop_offset: int) -> int:
    """Bytes of the batches below an offset where one begins: those of the answer's segment."""
    if found.next_offset <= stop_offset:
        return len(found.data)
    entries = iter_entries(found.data)
    return next((one.position for one in entries if one.offset >= stop_offset), len(found.data))
