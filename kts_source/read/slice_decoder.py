"""The decoder of a slice. Importing it takes long: `read_task` does so while it waits for bytes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kts_source.columns import PARTITION, SEGMENT_ID, TOPIC
from kts_source.predicate.implied_ranges import (
    TRUE,
    first_millisecond,
    last_millisecond,
    region,
    specialised,
)
from segment_format.arrow import RecordDecoder

if TYPE_CHECKING:
    from kts_source.read.read_settings import ReadSettings
    from kts_source.read.row_filter import FilteringDecoder
    from kts_source.read.slice_boundaries import Boundary
    from kts_source.read.task import SegmentSlice


def open_decoder(
    part: SegmentSlice, first: Boundary, last: Boundary | None, settings: ReadSettings
) -> RecordDecoder | FilteringDecoder:
    """Decodes the bytes of a slice from `first` to `last`, which is `None` where it is not known
    yet.
    """
    where = settings.where
    rest = TRUE if where is None else specialised(where, part.topic, part.partition)
    box = region(rest)
    make = partial(
        RecordDecoder,
        start_offset=part.start_offset,
        stop_offset=part.stop_offset,
        aborted=part.aborted,
        check_crcs=settings.check_crcs,
        max_batch_bytes=settings.max_batch_bytes,
        lineage=part.lineage or None,
        offset_bounds=(
            first.after_offset + 1,
            # Where the slice's end is not known yet, what follows it is checked when it is.
            part.segment_stop if last is None or last.last_offset is None else last.last_offset,
        ),
        first_timestamp=first_millisecond(box),
        last_timestamp=last_millisecond(box),
        constants={TOPIC: part.topic, PARTITION: part.partition, SEGMENT_ID: part.segment_id},
    )
    if rest == TRUE:
        return make(
            columns=settings.columns,
            position=first.position,
            max_rows=settings.batches.rows,
            max_bytes=settings.batches.size,
        )
    from kts_source.read.row_filter import FilteringDecoder  # brings in Arrow's functions

    return FilteringDecoder(
        rest,
        make,
        columns=settings.columns,
        position=first.position,
        batches=settings.batches,
    )
