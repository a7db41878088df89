"""Compares the transactions that begin or end outside of a slice with the log around it.

Inside of a slice the kernel compares the aborted intervals with the markers. Here are the rest:

* A transaction is open at the end of a slice, and the plan does not read the segment to its end.
  The segment is read on until the transaction's marker, or to its end. Planning has compared the
  transactions that end in later segments.
* The first marker of a producer in a slice is an ABORT that no index has. If the plan also reads
  the offsets before the slice, they are looked into for data of the producer: it was returned, and
  should not have been.
"""

from __future__ import annotations

from contextlib import closing, suppress
from itertools import pairwise
from typing import TYPE_CHECKING

from kts_source.errors import CorruptSegmentError, ObjectNotFoundError
from kts_source.layout.remote_segment import IndexType
from kts_source.read.segment_source import SegmentSpan
from segment_format.errors import SegmentFormatError, TruncatedBatchError
from segment_format.index.producer_snapshot import open_first_offsets, parse_producer_snapshot
from segment_format.index.transaction_replay import marker_of
from segment_format.record.batch_header import MAGIC_2, RecordBatchHeader
from segment_format.record.framing import iter_entries
from segment_format.record.records import iter_batches
from segment_format.transaction_check import (
    check_markers_found,
    check_next_marker,
    unindexed_abort,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from kts_source.layout.remote_segment import SegmentObjects
    from kts_source.read.segment_source import SegmentSource
    from kts_source.read.task import SegmentSlice, SliceSurroundings
    from segment_format.record.control_record import ControlRecordType
    from segment_format.transaction_check import TransactionCheck

    _Batch = tuple[RecordBatchHeader, ControlRecordType | None]


def check_around(
    part: SegmentSlice,
    transactions: TransactionCheck,
    reader: SegmentSource,
    *,
    position: int,
    next_offset: int,
) -> None:
    """Compares the intervals of a slice with markers after it and data before it.

    Args:
        part: The slice.
        transactions: The check that followed all batches of the slice.
        reader: Reads the segment.
        position: Position after the last batch that was walked.
        next_offset: First offset after the slice.

    Raises:
        ContradictedIntervalsError: The log shows another outcome of a transaction.
    """
    around = part.surroundings
    only_doubtful = around is None or around.read_to >= around.range_stop
    range_stop = part.stop_offset if around is None else around.range_stop
    expected = transactions.next_markers(next_offset, only_doubtful=only_doubtful)
    if expected and next_offset < range_stop:
        _look_ahead(part, reader, position, range_stop, expected)
        if not only_doubtful:
            check_markers_found(expected, range_stop)
    if around is not None:
        _look_back(part, around, reader, transactions.stray_aborts())


def _look_ahead(
    part: SegmentSlice,
    reader: SegmentSource,
    position: int,
    range_stop: int,
    expected: dict[int, int | None],
) -> None:
    """Reads on until each expected marker was compared, or to the end of the segment's range."""
    batches = _transactional_batches(part, part.objects, reader, position)
    with closing(batches):
        for header, marker in batches:
            if header.base_offset >= range_stop:
                return
            if marker is not None and header.base_offset >= part.start_offset:
                check_next_marker(header.producer_id, marker, header.base_offset, expected)
                if not expected:
                    return


def _look_back(
    part: SegmentSlice,
    around: SliceSurroundings,
    reader: SegmentSource,
    aborts: dict[int, int],
) -> None:
    """Looks before a slice for data of the producers whose ABORT marker no index has."""
    unseen = dict(aborts)
    if unseen and (part.cut_start > 0 or around.read_from < part.start_offset):
        batches = _transactional_batches(part, part.objects, reader, 0)
        _refuse_data(batches, unseen, around.read_from, max(unseen.values()))
    if not unseen or around.before is None:
        return
    open_since = None
    if not around.before_is_cut:
        open_since = _open_transactions(around.before, reader)
    if open_since is not None:
        unseen = {producer: offset for producer, offset in unseen.items() if producer in open_since}
    if not unseen:
        return
    # Compaction removes the records of an aborted transaction, then its entry in the index, and
    # its marker last. So the snapshot alone does not prove that records were returned.
    batches = _transactional_batches(part, around.before, reader, 0)
    _refuse_data(batches, unseen, 0, around.before_stop)
    for producer_id, offset in unseen.items():
        if open_since is not None and open_since[producer_id] < around.before_start:
            raise unindexed_abort(producer_id, offset)


def _refuse_data(
    batches: Generator[_Batch], aborts: dict[int, int], start_offset: int, stop_offset: int
) -> None:
    """Raises if the last batch of a producer before its ABORT marker is data, not a marker.

    Removes the producers that have a batch in the offsets [start_offset, stop_offset).
    """
    has_data: dict[int, bool] = {}
    with closing(batches):
        for header, marker in batches:
            if header.base_offset >= stop_offset:
                break
            offset = aborts.get(header.producer_id, -1)
            if start_offset <= header.last_offset and header.base_offset < offset:
                has_data[header.producer_id] = marker is None
    for producer_id, is_open in has_data.items():
        offset = aborts.pop(producer_id)
        if is_open:
            raise unindexed_abort(producer_id, offset)


def _open_transactions(objects: SegmentObjects, reader: SegmentSource) -> dict[int, int] | None:
    """Returns the first offset of each transaction that is open at a segment's end, by producer.

    Returns `None` if the producer snapshot is missing or cannot be read.
    """
    try:
        data = reader.index(objects, IndexType.PRODUCER_SNAPSHOT)
        entries = parse_producer_snapshot(data) if data else None
    except (CorruptSegmentError, ObjectNotFoundError, SegmentFormatError):
        return None
    return None if entries is None else open_first_offsets(entries)


def _transactional_batches(
    part: SegmentSlice, objects: SegmentObjects, reader: SegmentSource, position: int
) -> Generator[_Batch]:
    """Yields the transactional batches and markers of a segment from a batch on."""
    size = objects.size_in_bytes
    chunk = objects.chunk_index.original_chunk_size
    borders = [position, *range(position // chunk * chunk + chunk, size, chunk), size]
    place = part.topic, part.partition, part.start_offset, objects
    spans = (SegmentSpan(*place, low, high) for low, high in pairwise(borders) if low < high)
    pending = b""
    with closing(reader.windows(spans)) as windows:
        for _, window in windows:
            pending += window
            whole = 0
            with suppress(TruncatedBatchError):
                for entry in iter_entries(pending):
                    whole = entry.stop
                    if entry.magic != MAGIC_2:
                        continue
                    header = RecordBatchHeader.from_bytes(pending, entry.position)
                    if header.is_control_batch:
                        (batch,) = iter_batches(pending[entry.position : entry.stop])
                        marker = marker_of(batch)
                        if marker is not None:
                            yield header, marker
                    elif header.is_transactional and header.record_count:
                        yield header, None
            pending = pending[whole:]
