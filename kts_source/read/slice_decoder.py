"""The decoder of a slice. Importing it takes long: `read_task` does so while it waits for bytes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kts_source.columns import PARTITION, SEGMENT_ID, TOPIC
from kts_source.predicate.implied_ranges import (
    TRUE,
    first_millisecond,
    last_millisecond,
    region,
    specialised,
)
from segment_format.arrow import RecordDecoder
from segment_format.kernels.decoder import MAX_OFFSET

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.broker.broker_range import BrokerRange
    from kts_source.read.read_settings import ReadSettings
    from kts_source.read.row_filter import FilteringDecoder
    from kts_source.read.slice_boundaries import Boundary
    from kts_source.read.task import SegmentSlice
    from segment_format.isolation import AbortedIntervals
    from segment_format.transaction_check import TransactionCheck


def open_decoder(
    part: SegmentSlice,
    first: Boundary,
    last: Boundary | None,
    settings: ReadSettings,
    transactions: TransactionCheck | None = None,
) -> RecordDecoder | FilteringDecoder:
    """Decodes the bytes of a slice from `first` to `last`, which is `None` where it is not known
    yet. `transactions` compares the markers in the slice with its aborted intervals.
    """
    return _decoder(
        settings,
        place={TOPIC: part.topic, PARTITION: part.partition, SEGMENT_ID: part.segment_id},
        position=first.position,
        start_offset=part.start_offset,
        stop_offset=part.stop_offset,
        aborted=part.aborted,
        lineage=part.lineage or None,
        offset_bounds=(
            first.after_offset + 1,
            # Where the slice's end is not known yet, what follows it is checked when it is.
            part.segment_stop if last is None or last.last_offset is None else last.last_offset,
        ),
        transactions=transactions,
    )


def open_range_decoder(
    part: BrokerRange,
    aborted: AbortedIntervals,
    settings: ReadSettings,
    transactions: TransactionCheck | None = None,
) -> RecordDecoder | FilteringDecoder:
    """Decodes batches of a range that brokers sent; they are of no segment that has an id."""
    return _decoder(
        settings,
        place={TOPIC: part.topic, PARTITION: part.partition, SEGMENT_ID: None},
        position=0,
        start_offset=part.start_offset,
        stop_offset=part.stop_offset,
        aborted=aborted,
        offset_bounds=(0, MAX_OFFSET),
        transactions=transactions,
    )


def _decoder(
    settings: ReadSettings,
    *,
    place: Mapping[str, Any],
    position: int,
    **wanted: Any,  # noqa: ANN401  # arguments of `RecordDecoder`
) -> RecordDecoder | FilteringDecoder:
    where = settings.where
    rest = TRUE if where is None else specialised(where, place[TOPIC], place[PARTITION])
    box = region(rest)
    make = partial(
        RecordDecoder,
        check_crcs=settings.check_crcs,
        max_batch_bytes=settings.max_batch_bytes,
        first_timestamp=first_millisecond(box),
        last_timestamp=last_millisecond(box),
        constants=place,
        keys=settings.keys,
        **wanted,
    )
    if rest == TRUE:
        return make(
            columns=settings.columns,
            position=position,
            max_rows=settings.batches.rows,
            max_bytes=settings.batches.size,
        )
    from kts_source.read.row_filter import FilteringDecoder  # brings in Arrow's functions

    return FilteringDecoder(
        rest, make, columns=settings.columns, position=position, batches=settings.batches
    )
