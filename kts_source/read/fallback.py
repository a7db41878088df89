"""What the tier does not give, brokers do: the same offsets from the first one not yet returned
(KIP-1254: a failure to read remotely ends in an ordinary fetch).

Brokers are asked for everything, and the transactions to leave out are the plan's, so a broker that
reads the tier itself needs no transaction index of it.
"""

from __future__ import annotations

import logging
import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final

from kts_source.broker.broker_range import BrokerRange
from kts_source.broker.fetch_range import RangeFetcher
from kts_source.errors import (
    CorruptSegmentError,
    DataLossError,
    StoreError,
    TieredKafkaError,
)
from kts_source.read.counted_fetch import CountedFetch
from kts_source.read.read_ranges import counted, leaves_out, rows_of
from kts_source.read.slice_boundaries import slice_boundaries
from segment_format.transaction_check import ContradictedIntervalsError, TransactionCheck

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    import pyarrow as pa

    from kts_source.broker.cluster import Cluster
    from kts_source.broker.fetch_range import FetchedBatches
    from kts_source.read.read_settings import ReadSettings
    from kts_source.read.segment_source import SegmentSource
    from kts_source.read.task import SegmentSlice
    from kts_source.read.task_metrics import TaskMeter

log = logging.getLogger(__name__)

_MOST_ALIKE: Final = 3
"""So many slices in a row may fail alike: a wrong key or layout must not move a whole scan onto the
brokers.
"""
_MOST_RUNS: Final = 64


class _Alike:
    """How many slices in a row failed alike, of each run of a scan: tasks of several take turns in
    a process. Of this process, and of the runs that failed last. From any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, dict[str, int]] = {}

    def failed(self, run: str, kind: str) -> int:
        """One more; how many they are."""
        with self._lock:
            kinds = self._runs.pop(run, {})
            kinds[kind] = kinds.get(kind, 0) + 1
            self._runs[run] = kinds
            if len(self._runs) > _MOST_RUNS:
                del self._runs[next(iter(self._runs))]
            return kinds[kind]

    def forget(self, run: str) -> None:
        """The next failure of a run is the first."""
        with self._lock:
            self._runs.pop(run, None)


_alike = _Alike()


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
        # Tasks of one run share the count; without an engine's name for it, those of one cluster.
        self._run = (meter.run if meter is not None else "") or repr(cluster.settings)

    def covers(self, part: SegmentSlice, error: TieredKafkaError, *, counts: bool) -> bool:
        """Whether brokers may serve what is left of a slice.

        Args:
            part: The slice.
            error: Why the tier does not.
            counts: Whether it is this slice that failed.
        """
        if not isinstance(error, StoreError | CorruptSegmentError) or not part.lineage:
            return False
        if isinstance(error.__cause__, ContradictedIntervalsError):
            return False  # the transactions to leave out are the same with brokers
        if not counts:
            return True
        if _alike.failed(self._run, type(error).__name__) > _MOST_ALIKE:
            error.message += (
                f"; {_MOST_ALIKE} slices before it failed alike and were read from brokers, so the"
                " store, its credentials or the keys look wrong. brokerFallback=false reads nothing"
                " from brokers that the tier holds"
            )
            return False
        return True

    def went_well(self) -> None:
        """A slice was read from the tier."""
        _alike.forget(self._run)

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
            start_offset=start,
            stop_offset=part.stop_offset,
            read_committed=False,
            nominal_bytes=part.nominal_bytes,
        )
        gone: list[int] = []
        leave_out = leaves_out(wanted, self._settings, self._meter, gone)

        def lose(at: int, behind: int, lost: DataLossError) -> None:
            if behind <= start:
                return
            if leave_out is None:
                raise lost
            leave_out(max(at, start), behind, lost)

        fetcher: RangeFetcher | CountedFetch
        if first.last_offset is None and last.last_offset is None:
            fetcher = RangeFetcher(
                self._cluster,
                wanted,
                max_batch_bytes=self._settings.max_batch_bytes,
                on_loss=leave_out,
            )
            batches = _metered(fetcher, self._meter)
        else:
            # An inner boundary is a position, and no offset of the index tells which batch begins
            # there: an append may have many batches.
            fetcher = CountedFetch(
                self._cluster,
                part,
                max_batch_bytes=self._settings.max_batch_bytes,
                meter=self._meter,
                on_loss=lose,
            )
            batches = fetcher.batches(first.position, last.position)
        transactions = None
        if self._settings.read_committed:
            transactions = TransactionCheck(
                part.aborted,
                start_offset=start,
                stop_offset=part.stop_offset,
            )
        with self._explained(fetcher), closing(batches) as fetched:
            yield from rows_of(
                fetched,
                wanted,
                self._settings,
                aborted=part.aborted,
                transactions=transactions,
                meter=self._meter,
                gone=gone,
            )

    @contextmanager
    def _explained(self, fetcher: RangeFetcher | CountedFetch) -> Iterator[None]:
        """Counts a failure no more where brokers do not have the offsets either: what retention
        deleted says nothing about the store.
        """
        try:
            yield
        finally:
            if fetcher.lost_offsets:
                _alike.forget(self._run)


def _metered(fetcher: RangeFetcher, meter: TaskMeter | None) -> Generator[FetchedBatches]:
    with counted(fetcher, meter), closing(fetcher.batches()) as fetched:
        yield from fetched
