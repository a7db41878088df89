"""The batches of a whole segment, from its first byte to its last: header facts and checksums."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kts_source.errors import TieredKafkaError
from kts_source.read.segment_source import SegmentSpan
from segment_format.errors import SegmentFormatError
from segment_format.kernels.batch_scanner import BatchScanner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.read.fetch import ReadAhead
    from kts_source.read.segment_source import SegmentSource
    from segment_format.kernels.batch_scanner import BatchTable


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """What is checked of one row of a table of batches; see `BatchTable`."""

    position: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    is_sound: bool
    max_timestamp: int


def rows_of(table: BatchTable) -> Iterator[BatchFacts]:
    """The batches of a table, one by one."""
    for row in range(len(table)):
        yield BatchFacts(
            int(table.positions[row]),
            int(table.base_offsets[row]),
            int(table.last_offsets[row]),
            int(table.leader_epochs[row]),
            bool(table.are_sound[row]),
            int(table.max_timestamps[row]),
        )


def segment_tables(
    segment: RemoteSegment,
    source: SegmentSource,
    read_ahead: ReadAhead,
    *,
    max_batch_bytes: int,
    start_offset: int = 0,
) -> Iterator[BatchTable]:
    """Every batch of a segment, in order. Memory is bounded by the read-ahead, one window of it and
    one batch.

    Args:
        segment: Which.
        source: What reads it.
        read_ahead: How much to have under way.
        max_batch_bytes: Bound on one batch.
        start_offset: Records before it are not counted.

    Raises:
        SegmentFormatError: Bytes that are no batch, at a position in the segment; all batches
            before were given.
        TieredKafkaError: See `SegmentSource.windows`; as well.
    """
    size = segment.objects.size_in_bytes
    scanner = BatchScanner(size, max_batch_bytes=max_batch_bytes, start_offset=start_offset)
    place = segment.topic, segment.partition, segment.start_offset
    span = SegmentSpan(*place, segment.objects, 0, size)
    try:
        with closing(source.windows([span], read_ahead=read_ahead)) as windows:
            for _, window in windows:
                yield from scanner.feed(window)
                del window  # the next one may have this memory
        scanner.finish()
    except (SegmentFormatError, TieredKafkaError):
        yield scanner.rest()
        raise
    yield scanner.rest()
