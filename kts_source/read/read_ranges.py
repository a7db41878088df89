"""Rows that brokers serve: ranges of offsets to Arrow batches."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING

from kts_source.broker.cluster import Cluster
from kts_source.broker.fetch_range import RangeFetcher
from kts_source.errors import CorruptSegmentError, TieredKafkaError
from segment_format.errors import SegmentFormatError
from segment_format.isolation import NO_ABORTED

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from kts_source.broker.broker_range import BrokerRange
    from kts_source.broker.settings import BrokerSettings
    from kts_source.read.read_settings import ReadSettings
    from kts_source.read.row_filter import FilteringDecoder
    from kts_source.read.task_metrics import TaskMeter
    from segment_format.arrow import RecordDecoder
    from segment_format.isolation import AbortedIntervals

_local = threading.local()


def shared_cluster(settings: BrokerSettings) -> Cluster:
    """The cluster of these settings, with the connections that earlier tasks of this thread opened:
    a login takes as long as a small read.
    """
    known: Cluster | None = getattr(_local, "cluster", None)
    if known is not None and known.settings == settings:
        return known
    if known is not None:
        known.close()
    _local.cluster = Cluster(settings)
    return _local.cluster


def _count(meter: TaskMeter | None, decoder: RecordDecoder | FilteringDecoder) -> None:
    if meter is not None:
        meter.add_decoded(decoder.counters)


def read_range(
    part: BrokerRange,
    cluster: Cluster,
    settings: ReadSettings,
    *,
    aborted: AbortedIntervals = NO_ABORTED,
    meter: TaskMeter | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a range, offsets ascending.

    Args:
        part: What to read.
        cluster: From whom; nobody else may use its connections meanwhile.
        settings: How.
        aborted: Transactions to leave out, where brokers are not asked for them.
        meter: Where to count.

    Raises:
        DataLossError: Brokers no longer have the offsets that were planned.
        BrokerError: Brokers refuse, or do not answer.
        CorruptSegmentError: What they sent is not what was written.
    """
    from kts_source.read.slice_decoder import open_range_decoder

    fetcher = RangeFetcher(cluster, part, max_batch_bytes=settings.max_batch_bytes)
    decoder = None
    left_out = aborted
    try:
        with closing(fetcher.batches()) as fetched:
            for found in fetched:
                # Rows gather across answers, unless one brings other transactions to leave out.
                mine = found.aborted if part.read_committed else aborted
                if decoder is None or mine != left_out:
                    if decoder is not None:
                        yield from decoder.finish()
                        _count(meter, decoder)
                    decoder = open_range_decoder(part, found.start_offset, mine, settings)
                    left_out = mine
                decoded = decoder.feed(found.data)
                yield from decoded if meter is None else meter.stopwatch.decoding(decoded)
        if decoder is not None:
            yield from decoder.finish()
            _count(meter, decoder)
    except SegmentFormatError as error:
        place = {"topic": part.topic, "partition": part.partition, "offset": error.offset}
        raise CorruptSegmentError(
            f"a broker sent what is not valid: {error.message}", **place
        ) from error
    except TieredKafkaError as error:
        raise error.located(topic=part.topic, partition=part.partition) from error.__cause__
    finally:
        if meter is not None:
            meter.brokers.requests += fetcher.requests
            meter.brokers.bytes += fetcher.bytes
