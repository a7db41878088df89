"""Reads rows from brokers: planned ranges of offsets, and the rest of a slice if the tier fails to
serve it.

If the tier fails, brokers serve the slice from the first offset whose rows were not yet returned
(KIP-1254: a failed remote read becomes an ordinary fetch). These fetches use `read_uncommitted`,
and the plan contains the aborted transactions. So a broker that reads the offsets from its own tier
needs no transaction index.

While this module uses a `Cluster`, no other thread may use its connections.
"""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from kts_source.broker.broker_range import BrokerRange
from kts_source.broker.fetch_range import RangeFetcher
from kts_source.errors import CorruptSegmentError, DataLossError, StoreError
from kts_source.read.slice_boundaries import slice_boundaries
from kts_source.read.task_metrics import LostRange
from segment_format.errors import SegmentFormatError
from segment_format.isolation import NO_ABORTED
from segment_format.record.batch_header import MAGIC_2
from segment_format.record.framing import iter_entries, read_prefix
from segment_format.transaction_check import ContradictedIntervalsError, TransactionCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    import pyarrow as pa

    from kts_source.broker.cluster import Cluster
    from kts_source.broker.fetch_range import FetchedBatches
    from kts_source.errors import TieredKafkaError
    from kts_source.read.read_settings import ReadSettings
    from kts_source.read.row_filter import FilteringDecoder
    from kts_source.read.segment_source import SegmentSource
    from kts_source.read.task import SegmentSlice
    from kts_source.read.task_metrics import TaskMeter
    from segment_format.arrow import RecordDecoder
    from segment_format.isolation import AbortedIntervals

log = logging.getLogger(__name__)

_MAX_SAME_FAILURES: Final = 3
"""Maximum failures of the same kind. A wrong key or layout must not make the brokers serve a whole
scan.
"""
_MAX_RUNS: Final = 64


def read_range(
    broker_range: BrokerRange,
    cluster: Cluster,
    settings: ReadSettings,
    *,
    meter: TaskMeter | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a range, ascending by offset.

    Raises:
        DataLossError: Brokers no longer have the offsets that were planned.
        BrokerError: Brokers refuse a request, or do not respond.
        CorruptSegmentError: Brokers sent invalid bytes.
    """
    losses = Losses(broker_range, settings, meter)
    fetcher = RangeFetcher(
        cluster,
        broker_range,
        max_batch_bytes=settings.max_batch_bytes,
        on_loss=None if settings.fail_on_data_loss else losses.skip,
    )
    with closing(_fetch(fetcher, meter)) as fetched:
        yield from rows_of(fetched, broker_range, settings, meter=meter, losses=losses)


@dataclass(slots=True)
class Losses:
    """Logs, counts and collects the offsets of a range that are skipped because brokers have lost
    them.

    Attributes:
        stops: End of each lost range, in the order in which the ranges were detected.
    """

    broker_range: BrokerRange
    settings: ReadSettings
    meter: TaskMeter | None
    stops: list[int] = field(default_factory=list)

    def skip(self, start: int, stop: int, error: DataLossError) -> None:
        """Logs and counts the lost offsets [start, stop), and adds `stop` to `stops`. If the next
        batch begins below `stop`, its records below `stop` are lost, too.
        """
        topic, partition = self.broker_range.topic, self.broker_range.partition
        text = f"offsets [{start}, {stop}) are skipped: {error.message}"
        log.warning("%s-%s: %s", topic, partition, text)
        if self.meter is not None:
            lost = LostRange(topic, partition, start, stop, in_part=False)
            self.meter.add_lost(lost, f"{topic}-{partition} {text}")
        self.stops.append(stop)


def rows_of(
    fetched: Iterable[FetchedBatches],
    broker_range: BrokerRange,
    settings: ReadSettings,
    *,
    aborted: AbortedIntervals = NO_ABORTED,
    transactions: TransactionCheck | None = None,
    meter: TaskMeter | None = None,
    losses: Losses | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a range from batches that brokers sent.

    Args:
        fetched: Batches that `RangeFetcher` or `SliceFetch` yields.
        broker_range: The range. Rows outside of it are skipped.
        settings: Settings of the scan.
        aborted: Aborted transactions to skip if `broker_range.read_committed` is false.
        transactions: Compares `aborted` with the markers in the batches.
        meter: Counts the work.
        losses: The lost offsets that `fetched` has skipped so far.
    """
    from kts_source.read.slice_decoder import open_range_decoder
    from segment_format.kernels.decoder import MAX_OFFSET

    lost_stops = [] if losses is None else losses.stops
    if broker_range.read_committed:
        # The brokers' lists of aborted transactions have no checksum: compare with the markers.
        transactions = _transaction_check(broker_range, aborted)
    decoder: RecordDecoder | FilteringDecoder | None = None
    intervals, losses_seen, first_offset = aborted, 0, MAX_OFFSET
    try:
        for answer in fetched:
            # One decoder is used for several responses, until the transactions to skip change.
            needed = answer.aborted if broker_range.read_committed else aborted
            has_lost = len(lost_stops) > losses_seen
            if decoder is not None and (needed != intervals or has_lost):
                yield from _finish(decoder, meter)
                decoder = None
            if decoder is None:
                shown = broker_range.from_offset(lost_stops[-1]) if lost_stops else broker_range
                if transactions is not None and has_lost:  # the lost offsets may include markers
                    transactions = _transaction_check(broker_range, needed)
                elif transactions is not None:
                    transactions.use(needed)
                decoder = open_range_decoder(shown, needed, settings, transactions)
                intervals, losses_seen = needed, len(lost_stops)
            first_offset = min(first_offset, int.from_bytes(answer.data[:8] or b"\x7f" * 8, "big"))
            rows = decoder.feed(answer.data)
            yield from rows if meter is None else meter.stopwatch.decoding(rows)
        if decoder is not None:
            if transactions is not None and not (lost_stops or broker_range.read_committed):
                transactions.finish(first_offset, decoder.next_offset)
            yield from _finish(decoder, meter)
    except SegmentFormatError as error:
        raise CorruptSegmentError(
            f"a broker sent invalid data: {error.message}",
            topic=broker_range.topic,
            partition=broker_range.partition,
            offset=error.offset,
        ) from error


def _transaction_check(broker_range: BrokerRange, aborted: AbortedIntervals) -> TransactionCheck:
    return TransactionCheck(
        aborted, start_offset=broker_range.start_offset, stop_offset=broker_range.stop_offset
    )


def _finish(
    decoder: RecordDecoder | FilteringDecoder, meter: TaskMeter | None
) -> Iterator[pa.RecordBatch]:
    yield from decoder.finish()
    if meter is not None:
        meter.add_decoded(decoder.counters)


def _fetch(fetcher: RangeFetcher, meter: TaskMeter | None) -> Generator[FetchedBatches]:
    """Yields the batches of a fetcher. When the fetcher ends, adds its requests and bytes to the
    meter.
    """
    try:
        with closing(fetcher.batches()) as batches:
            yield from batches
    finally:
        if meter is not None:
            meter.brokers.requests += fetcher.requests
            meter.brokers.bytes += fetcher.bytes


class BrokerFallback:
    """Reads the rest of a slice from brokers after the tier failed.

    Counts the failures of each run of a scan in the `Cluster` object, which the tasks of a run
    share. The columns of `settings` must include `offset`.
    """

    def __init__(
        self, cluster: Cluster, settings: ReadSettings, meter: TaskMeter | None = None
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._meter = meter
        self._run = meter.run if meter is not None else ""

    def check(self, task_slice: SegmentSlice, error: TieredKafkaError) -> None:
        """Counts a failure of the tier. Raises `error` if brokers cannot or must not serve the rest
        of the slice.
        """
        if not isinstance(error, StoreError | CorruptSegmentError) or not task_slice.lineage:
            raise error
        if isinstance(error.__cause__, ContradictedIntervalsError):
            raise error  # the rows from brokers would use the same aborted transactions
        runs = self._cluster.tier_failures
        failures = runs[self._run] = runs.pop(self._run, Counter())
        if len(runs) > _MAX_RUNS:
            del runs[next(iter(runs))]
        kind = type(error).__name__
        failures[kind] += 1
        if failures[kind] > _MAX_SAME_FAILURES:
            raise error.extended(
                f"; {_MAX_SAME_FAILURES} earlier slices failed in the same way and were read from"
                " brokers. Check the store, its credentials and the keys. Set brokerFallback=false"
                " to read no offsets of the tier from brokers"
            ) from error.__cause__

    def forget_failures(self) -> None:
        """Resets the number of failures of the tier in this run of the scan to 0."""
        self._cluster.tier_failures.pop(self._run, None)

    def read_rest(
        self,
        task_slice: SegmentSlice,
        next_offset: int,
        source: SegmentSource,
        error: TieredKafkaError,
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a slice from `next_offset` on, read from brokers. Rows below
        `next_offset` were already returned.

        Raises:
            DataLossError: Brokers lack the rows, too.
            BrokerError: Brokers refuse a request, or do not respond.
        """
        first, last = slice_boundaries(task_slice, source)
        start = max(task_slice.start_offset, next_offset)
        if first.position >= last.position or start >= task_slice.stop_offset:
            return
        offsets = task_slice.topic, task_slice.partition, start, task_slice.stop_offset
        log.warning("%s-%s: offsets from %d to %d are read from brokers: %s", *offsets, error)
        if self._meter is not None:
            self._meter.brokers.fallbacks += 1
        wanted = _range_of(task_slice, start, task_slice.stop_offset)
        losses = Losses(wanted, self._settings, self._meter)
        fetch = SliceFetch(self._cluster, task_slice, start, losses)
        if first.last_offset is None and last.last_offset is None:
            batches = fetch.offsets(wanted)
        else:
            # A boundary inside the segment is a byte position. The first offset of the batch there
            # may be unknown, because an index entry may describe several batches.
            batches = fetch.positions(first.position, last.position)
        transactions = None
        if self._settings.read_committed:
            transactions = _transaction_check(wanted, task_slice.aborted)
        try:
            with closing(batches):
                yield from rows_of(
                    batches,
                    wanted,
                    self._settings,
                    aborted=task_slice.aborted,
                    transactions=transactions,
                    meter=self._meter,
                    losses=losses,
                )
        finally:
            if fetch.has_lost:
                # Retention has deleted the offsets, so the failed read was no fault of the store.
                self.forget_failures()


@dataclass(slots=True)
class _Loss:
    """Offsets [start, stop) that brokers have lost, and the error to raise for them."""

    start: int
    stop: int
    error: DataLossError


class SliceFetch:
    """Fetches the batches of a slice from brokers. Not thread-safe.

    Attributes:
        has_lost: True if brokers have lost offsets of the segment.
    """

    def __init__(
        self, cluster: Cluster, task_slice: SegmentSlice, start_offset: int, losses: Losses
    ) -> None:
        self._cluster = cluster
        self._slice = task_slice
        self._start_offset = start_offset
        self._losses = losses
        self._loss: _Loss | None = None
        self.has_lost = False

    def offsets(self, wanted: BrokerRange) -> Generator[FetchedBatches]:
        """Yields the batches that brokers have in the offset range `wanted`."""
        fails = self._losses.settings.fail_on_data_loss
        fetcher = self._fetcher(wanted, None if fails else self._losses.skip)
        try:
            yield from _fetch(fetcher, self._losses.meter)
        finally:
            self.has_lost = fetcher.lost_offsets

    def positions(self, start: int, stop: int) -> Generator[FetchedBatches]:
        """Yields the batches at byte positions [start, stop) of the segment, up to the slice's last
        offset.

        A batch must begin at `start`. A batch must begin at `stop`, too, unless `stop` is the end
        of the segment.

        Brokers serve offsets, not positions, but they send exactly the bytes that were uploaded. So
        this method finds positions by counting bytes from the first batch of the segment. If that
        batch was deleted, it counts the bytes from the first remaining batch to the segment's end,
        and subtracts them from the segment's size.

        Raises:
            BrokerError: Brokers refuse a request, or do not respond.
        """
        offset, position = self._slice.segment_start, 0
        while offset < self._slice.stop_offset:
            if self._loss is not None:
                size = self._bytes_from(offset)
                position = self._slice.objects.size_in_bytes - size
                if self._loss.stop > offset:  # more was lost in the meantime
                    offset = self._loss.stop
                    continue
            with closing(self._fetch_until_loss(offset, self._slice.stop_offset)) as fetched:
                for answer in fetched:
                    if self._loss is not None:
                        # The lost offsets may end inside this batch.
                        entry = read_prefix(answer.data)
                        is_cut = entry.magic != MAGIC_2 or entry.offset < offset
                        is_inside = position > start or (position == start and is_cut)
                        self._report_loss(is_in_slice=is_inside)
                    low, high = max(start - position, 0), min(stop - position, len(answer.data))
                    position += len(answer.data)
                    offset = answer.next_offset
                    if low < high:
                        yield replace(answer, data=answer.data[low:high])
                    if position >= stop:
                        return
            if self._loss is not None:
                offset = self._loss.stop
        self._report_loss(is_in_slice=True)

    def _report_loss(self, *, is_in_slice: bool) -> None:
        """Handles the loss in `_loss`. Ignores a loss before the wanted offsets of the slice.
        Otherwise skips the lost offsets if `failOnDataLoss` is false.

        Raises:
            DataLossError: Brokers have lost wanted offsets, and `failOnDataLoss` is true.
        """
        loss, self._loss = self._loss, None
        if loss is None or not is_in_slice or loss.stop <= self._start_offset:
            return
        if self._losses.settings.fail_on_data_loss:
            raise loss.error
        self._losses.skip(max(loss.start, self._start_offset), loss.stop, loss.error)

    def _fetch_until_loss(self, start: int, stop: int) -> Generator[FetchedBatches]:
        """Yields the batches of an offset range up to the first lost offset. Stores the loss in
        `_loss`.
        """
        fetcher = self._fetcher(_range_of(self._slice, start, stop), self._note_loss)
        return _fetch(fetcher, self._losses.meter)

    def _note_loss(self, start: int, stop: int, error: DataLossError) -> bool:
        """Stores a loss in `_loss`. Returns True, so that the fetcher stops."""
        self.has_lost = True
        # Include the lost offsets that an earlier fetch found.
        self._loss = _Loss(start if self._loss is None else self._loss.start, stop, error)
        return True

    def _bytes_from(self, offset: int) -> int:
        """Returns the number of bytes from the batch that begins at `offset` to the end of the
        segment.
        """
        stop = self._slice.segment_stop
        with closing(self._fetch_until_loss(offset, stop)) as fetched:
            return sum(_bytes_below(answer, stop) for answer in fetched)

    def _fetcher(
        self, wanted: BrokerRange, on_loss: Callable[[int, int, DataLossError], bool | None] | None
    ) -> RangeFetcher:
        limit = self._losses.settings.max_batch_bytes
        return RangeFetcher(self._cluster, wanted, max_batch_bytes=limit, on_loss=on_loss)


def _range_of(task_slice: SegmentSlice, start: int, stop: int) -> BrokerRange:
    return BrokerRange(
        topic=task_slice.topic,
        topic_id=task_slice.topic_id,
        partition=task_slice.partition,
        leader_epoch=task_slice.lineage[-1].epoch,
        start_offset=start,
        stop_offset=stop,
        read_committed=False,
        nominal_bytes=task_slice.nominal_bytes,
    )


def _bytes_below(fetched: FetchedBatches, stop_offset: int) -> int:
    """Returns the size in bytes of the fetched batches that begin below offset `stop_offset`."""
    if fetched.next_offset <= stop_offset:
        return len(fetched.data)
    entries = iter_entries(fetched.data)
    ends = (entry.position for entry in entries if entry.offset >= stop_offset)
    return next(ends, len(fetched.data))
