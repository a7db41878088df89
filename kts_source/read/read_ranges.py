"""Rows that brokers serve: ranges of offsets to Arrow batches."""

from __future__ import annotations

import logging
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from kts_source.broker.fetch_range import RangeFetcher
from kts_source.errors import CorruptSegmentError
from kts_source.read.task_metrics import LostRange
from segment_format.errors import SegmentFormatError
from segment_format.isolation import NO_ABORTED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from kts_source.broker.broker_range import BrokerRange
    from kts_source.broker.cluster import Cluster
    from kts_source.broker.fetch_range import FetchedBatches
    from kts_source.errors import DataLossError
    from kts_source.read.read_settings import ReadSettings
    from kts_source.read.row_filter import FilteringDecoder
    from kts_source.read.task_metrics import TaskMeter
    from segment_format.arrow import RecordDecoder
    from segment_format.isolation import AbortedIntervals
    from segment_format.transaction_check import TransactionCheck

log = logging.getLogger(__name__)


def read_range(
    part: BrokerRange,
    cluster: Cluster,
    settings: ReadSettings,
    *,
    meter: TaskMeter | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a range, offsets ascending.

    Args:
        part: What to read.
        cluster: From whom; nobody else may use its connections meanwhile.
        settings: How.
        meter: Where to count.

    Raises:
        DataLossError: Brokers no longer have the offsets that were planned.
        BrokerError: Brokers refuse, or do not answer.
        CorruptSegmentError: What they sent is not what was written.
    """
    gone: list[int] = []
    fetcher = RangeFetcher(
        cluster,
        part,
        max_batch_bytes=settings.max_batch_bytes,
        on_loss=leaves_out(part, settings, meter, gone),
    )
    with counted(fetcher, meter), closing(fetcher.batches()) as fetched:
        yield from rows_of(fetched, part, settings, meter=meter, gone=gone)


def leaves_out(
    part: BrokerRange, settings: ReadSettings, meter: TaskMeter | None, gone: list[int]
) -> Callable[[int, int, DataLossError], None] | None:
    """What to do about offsets that are gone: `None` where they are an error. `gone` gets where
    they end.
    """
    if settings.fail_on_data_loss:
        return None

    def leave_out(start: int, stop: int, error: DataLossError) -> None:
        text = f"offsets [{start}, {stop}) are left out: {error.message}"
        log.warning("%s-%s: %s", part.topic, part.partition, text)
        if meter is not None:
            lost = LostRange(part.topic, part.partition, start, stop, in_part=False)
            meter.add_lost(lost, f"{part.topic}-{part.partition} {text}")
        gone.append(stop)

    return leave_out


def rows_of(
    fetched: Iterable[FetchedBatches],
    part: BrokerRange,
    settings: ReadSettings,
    *,
    aborted: AbortedIntervals = NO_ABORTED,
    transactions: TransactionCheck | None = None,
    meter: TaskMeter | None = None,
    gone: Sequence[int] = (),
) -> Iterator[pa.RecordBatch]:
    """The rows of a range in batches that brokers sent.

    Args:
        fetched: The batches, as `RangeFetcher` gives them.
        part: The range; rows outside of it are left out.
        settings: How to decode.
        aborted: Transactions to leave out, where the range is fetched without them.
        transactions: Compares the markers with `aborted`.
        meter: Where to count.
        gone: Log starts that passed what was to be fetched next; it grows meanwhile. A batch may
            begin below one, with rows that are gone.
    """
    from kts_source.read.slice_decoder import open_range_decoder
    from segment_format.kernels.decoder import MAX_OFFSET
    from segment_format.transaction_check import TransactionCheck

    decoder = None
    bounds = {"start_offset": part.start_offset, "stop_offset": part.stop_offset}
    if part.read_committed:
        # A broker's list of aborted transactions has no checksum either.
        transactions = TransactionCheck(aborted, **bounds)
    first_offset = MAX_OFFSET
    left_out = aborted
    passed = 0
    try:
        for found in fetched:
            # Rows gather across answers, unless one brings other transactions to leave out.
            mine = found.aborted if part.read_committed else aborted
            if decoder is not None and (mine != left_out or len(gone) > passed):
                yield from _finished(decoder, meter)
                decoder = None
            if decoder is None:
                # What an earlier decoder had, it had in whole batches.
                shown = part.from_offset(gone[-1]) if gone else part
                if transactions is not None and len(gone) > passed:  # markers are gone, too
                    transactions = TransactionCheck(mine, **bounds)
                elif transactions is not None:
                    transactions.use(mine)
                decoder = open_range_decoder(shown, mine, settings, transactions)
                left_out, passed = mine, len(gone)
            first_offset = min(first_offset, int.from_bytes(found.data[:8] or b"\x7f" * 8, "big"))
            decoded = decoder.feed(found.data)
            yield from decoded if meter is None else meter.stopwatch.decoding(decoded)
        if decoder is not None:
            if transactions is not None and not (gone or part.read_committed):
                transactions.finish(first_offset, decoder.next_offset)
            yield from _finished(decoder, meter)
    except SegmentFormatError as error:
        raise CorruptSegmentError(
            f"a broker sent what is not valid: {error.message}",
            topic=part.topic,
            partition=part.partition,
            offset=error.offset,
        ) from error


@contextmanager
def counted(fetcher: RangeFetcher, meter: TaskMeter | None) -> Iterator[None]:
    """Counts what was fetched, however it ends."""
    try:
        yield
    finally:
        if meter is not None:
            meter.brokers.requests += fetcher.requests
            meter.brokers.bytes += fetcher.bytes


def _finished(
    decoder: RecordDecoder | FilteringDecoder, meter: TaskMeter | None
) -> Iterator[pa.RecordBatch]:
    yield from decoder.finish()
    if meter is not None:
        meter.add_decoded(decoder.counters)
