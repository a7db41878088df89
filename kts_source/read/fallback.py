"""What the tier does not give, brokers do: the same offsets from the first one not yet returned
(KIP-1254: a failure to read remotely ends in an ordinary fetch).

Brokers are asked for everything, and the transactions to leave out are the plan's, so a broker that
reads the tier itself needs no transaction index of it.
"""

from __future__ import annotations

import logging
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final

from kts_source.broker.broker_range import BrokerRange
from kts_source.broker.fetch_range import FetchedBatches, RangeFetcher
from kts_source.errors import CorruptSegmentError, StoreError, TieredKafkaError
from kts_source.read.read_ranges import counted, leaves_out, rows_of
from kts_source.read.slice_boundaries import slice_boundaries
from segment_format.record.batch_header import MAGIC_2, RecordBatchHeader
from segment_format.record.framing import iter_entries

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from kts_source.broker.cluster import Cluster
    from kts_source.read.read_settings import ReadSettings
    from kts_source.read.segment_source import SegmentSource
    from kts_source.read.task import SegmentSlice
    from kts_source.read.task_metrics import TaskMeter

log = logging.getLogger(__name__)

_MOST_ALIKE: Final = 3
"""So many slices in a row may fail alike: a wrong key or layout must not move a whole scan onto the
brokers.
"""
_alike: dict[str, int] = {}
"""Kind of failure to slices in a row, of this process."""


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
        kind = type(error).__name__
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
        # An inner boundary is where the batch begins whose last offset the index tells.
        fetch_from = start if first.last_offset is None else max(start, first.last_offset)
        stop = part.stop_offset if last.last_offset is None else last.last_offset
        if fetch_from >= stop:
            return
        log.warning(
            "%s-%s: offsets from %d to %d are read from brokers: %s",
            part.topic,
            part.partition,
            start,
            stop,
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
            stop_offset=min(stop, part.stop_offset),
            read_committed=False,
            nominal_bytes=part.nominal_bytes,
        )
        fetcher = RangeFetcher(
            self._cluster,
            wanted,
            max_batch_bytes=self._settings.max_batch_bytes,
            on_loss=leaves_out(wanted, self._settings, self._meter),
        )
        shown = wanted.between(start, part.stop_offset)
        with (
            _explained(fetcher),
            counted(fetcher, self._meter),
            closing(fetcher.batches()) as fetched,
        ):
            batches = fetched if last.last_offset is None else before_batch_of(stop, fetched)
            yield from rows_of(
                batches, shown, self._settings, aborted=part.aborted, meter=self._meter
            )


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


def before_batch_of(offset: int, fetched: Iterator[FetchedBatches]) -> Iterator[FetchedBatches]:
    """The batches without the one that holds an offset, and all behind it."""
    for found in fetched:
        if found.next_offset <= offset:
            yield found
            continue
        for entry in iter_entries(found.data):
            last = entry.offset
            if entry.magic == MAGIC_2:
                last = RecordBatchHeader.from_bytes(found.data, entry.position).last_offset
            if last >= offset:
                yield found.up_to(entry.position, entry.offset)
                return
