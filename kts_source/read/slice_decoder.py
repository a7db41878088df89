"""Decodes the batches of a slice, and compares its transactions with the log before and after it.

Importing this module is slow, so `read_task` imports it while it waits for the first bytes.

Within a slice, the kernel compares the aborted intervals with the markers. `check_around` handles
the other cases:

* A transaction is open at the end of a slice, and the plan does not read the rest of the segment.
  Then `check_around` reads the segment up to the transaction's marker, or to the end of the
  segment. Markers in later segments were already compared during planning.
* The first marker of a producer in a slice is an ABORT marker that no transaction index contains.
  If the plan also reads the offsets before the slice, `check_around` searches them for data of this
  producer. These records would have been returned by mistake.
"""

from __future__ import annotations

import logging
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from kts_source.columns import PARTITION, SEGMENT_ID, TOPIC
from kts_source.errors import CorruptSegmentError, DataLossError, ObjectNotFoundError
from kts_source.layout.remote_segment import IndexType
from kts_source.predicate.implied_ranges import (
    TRUE,
    first_millisecond,
    last_millisecond,
    region,
    specialised,
)
from kts_source.read.segment_source import SegmentSpan
from kts_source.read.slice_boundaries import BoundaryCheck, errors_in_span
from segment_format.arrow import RecordDecoder
from segment_format.errors import CorruptRecordError, SegmentFormatError, TruncatedBatchError
from segment_format.index.producer_snapshot import open_first_offsets, parse_producer_snapshot
from segment_format.kernels.decoder import MAX_OFFSET
from segment_format.record.batch_header import MAGIC_2, RecordBatchHeader
from segment_format.record.control_record import marker_of
from segment_format.record.framing import iter_entries
from segment_format.record.records import decode_legacy_entry, iter_batches
from segment_format.transaction_check import (
    TransactionCheck,
    check_markers_found,
    check_next_marker,
    unindexed_abort,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    import pyarrow as pa

    from kts_source.broker.broker_range import BrokerRange
    from kts_source.layout.remote_segment import SegmentObjects
    from kts_source.read.read_settings import ReadSettings
    from kts_source.read.row_filter import FilteringDecoder
    from kts_source.read.segment_source import SegmentSource
    from kts_source.read.slice_boundaries import SliceSpan
    from kts_source.read.task import SegmentSlice, SliceSurroundings
    from kts_source.read.task_metrics import TaskMeter
    from segment_format.isolation import AbortedIntervals
    from segment_format.record.control_record import ControlRecordType
    from segment_format.record.framing import Entry

    _Batch = tuple[RecordBatchHeader, ControlRecordType | None]

log = logging.getLogger(__name__)


class SliceDecoder:
    """Decodes one slice. Receives the bytes of the slice in pieces."""

    def __init__(self, span: SliceSpan, source: SegmentSource, settings: ReadSettings) -> None:
        self.task_slice = task_slice = span.task_slice
        self._span = span
        self._source = source
        self._fail_on_data_loss = settings.fail_on_data_loss
        self._check_crcs = settings.check_crcs
        self._max_batch_bytes = settings.max_batch_bytes
        self._check = BoundaryCheck(span.first)
        self._transactions: TransactionCheck | None = None
        if settings.read_committed:
            self._transactions = TransactionCheck(
                task_slice.aborted,
                start_offset=task_slice.start_offset,
                stop_offset=task_slice.stop_offset,
            )
        last = span.last
        self._decoder = _open_decoder(
            settings,
            constants={
                TOPIC: task_slice.topic,
                PARTITION: task_slice.partition,
                SEGMENT_ID: task_slice.segment_id,
            },
            position=span.first.position,
            start_offset=task_slice.start_offset,
            stop_offset=task_slice.stop_offset,
            aborted=task_slice.aborted,
            lineage=task_slice.lineage or None,
            offset_bounds=(
                span.first.after_offset + 1,
                # If the slice's end was not looked up yet, `finish` checks it.
                task_slice.segment_stop
                if last is None or last.last_offset is None
                else last.last_offset,
            ),
            transactions=self._transactions,
        )

    @property
    def done(self) -> bool:
        """True if all offsets of the slice were decoded."""
        return self._decoder.done

    def feed(self, span: SliceSpan, window: memoryview) -> Iterator[pa.RecordBatch]:
        """Decodes the next bytes of the slice, and yields the rows that are complete."""
        if span.last is not None:
            self._check.stop = span.last
        if self.done:
            return
        with errors_in_span(self._span, self._source):
            decoded = self._decoder.feed(self._check.slice_bytes(window))
            yield from self._source.stopwatch.decoding(decoded)

    def finish(
        self, meter: TaskMeter | None, *, rest_is_lost: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yields the remaining rows. Call it after the last bytes of the slice were fed. With
        `rest_is_lost`, the remaining bytes of the slice cannot be read, so its end and its
        transactions are not checked.
        """
        with errors_in_span(self._span, self._source):
            if not rest_is_lost:
                if not self.done:
                    following = self._check.finish(self._decoder.next_offset)
                    if following is not None:
                        self._require_after(self._decoder.next_offset, following)
                self._check_start()
                self._check_transactions()
            try:
                yield from self._decoder.finish()
            except TruncatedBatchError:
                if not rest_is_lost:
                    raise
        if meter is not None:
            meter.add_decoded(self._decoder.counters)

    def _check_start(self) -> None:
        """Checks that the first entry of the slice begins after the end of the previous entry.

        Usually, the previous slice checks this at its end. It may miss the check if both slices
        read the same interval of the offset index, so this slice reads the entries from the
        previous index entry to its own start.

        Raises:
            CorruptRecordError: The offsets do not ascend.
        """
        start, task_slice = self._span.first, self.task_slice
        if (
            start.last_offset is None
            or start.last_offset < task_slice.stop_offset
            or not self._decoder.counters.batches
        ):
            return
        previous, next_offset = start.after_position, start.after_offset + 1
        objects = task_slice.objects
        with closing(
            _entries(task_slice, objects, self._source, previous, start.position)
        ) as entries:
            for data, entry in entries:
                last = entry.offset
                if entry.magic == MAGIC_2:
                    last = RecordBatchHeader.from_bytes(data).last_offset
                next_offset = max(next_offset, last + 1)
        self._require_after(next_offset, self._check.first_entry())

    def _require_after(self, next_offset: int, entry: Entry) -> None:
        """Checks that an entry begins at or after `next_offset`. Reads an entry of magic 0 or 1,
        because its first bytes state only its last offset.

        Raises:
            CorruptRecordError: The entry begins before `next_offset`, or is invalid.
        """
        first = entry.offset
        if entry.magic != MAGIC_2:
            first = self._first_offset_of(entry)
        if first < next_offset:
            raise CorruptRecordError(
                f"the entry begins at offset {first}, but the previous entry ends with offset"
                f" {next_offset - 1}: one of these two entries has a wrong offset",
                position=entry.position,
                offset=entry.offset,
            )

    def _first_offset_of(self, entry: Entry) -> int:
        """Reads an entry of magic 0 or 1, and returns its first offset."""
        task_slice = self.task_slice
        size = task_slice.objects.size_in_bytes
        if entry.stop > size or entry.size > self._max_batch_bytes:
            raise CorruptRecordError(
                f"an entry of {entry.size} bytes extends beyond the end of the segment, or exceeds"
                " option maxBatchBytes",
                position=entry.position,
                offset=entry.offset,
            )
        location = task_slice.topic, task_slice.partition, task_slice.start_offset
        span = SegmentSpan(*location, task_slice.objects, entry.position, entry.stop)
        data = bytearray()
        with closing(self._source.windows([span])) as windows:
            for _, window in windows:
                data += window
        try:
            batch = decode_legacy_entry(
                memoryview(data),
                replace(entry, position=0),
                check_crcs=self._check_crcs,
                max_batch_bytes=self._max_batch_bytes,
            )
        except SegmentFormatError as error:
            raise error.at(entry.position, entry.offset) from error
        return batch.base_offset

    def _check_transactions(self) -> None:
        """Compares the aborted intervals of the slice with the markers in the slice and around it.
        Raises an error if they differ, or if markers cannot be read.
        """
        if self._transactions is None:
            return
        task_slice = self.task_slice
        stop = task_slice.stop_offset if self.done else self._check.stop_offset(task_slice)
        self._transactions.finish(self._check.first_offset(task_slice), stop)
        try:
            check_around(
                task_slice,
                self._transactions,
                self._source,
                position=self._span.first.position + self._decoder.counters.bytes,
                next_offset=stop,
            )
        except ObjectNotFoundError as error:
            text = (
                "transactions cannot be compared with the log around the slice, because object"
                f" {error.uri} does not exist"
            )
            if self._fail_on_data_loss:
                raise DataLossError(
                    f"{text}; restore the object, or set failOnDataLoss=false to skip the"
                    " comparison",
                    topic=task_slice.topic,
                    partition=task_slice.partition,
                    offset=task_slice.start_offset,
                    uri=error.uri,
                ) from error
            log.warning("%s-%s: %s", task_slice.topic, task_slice.partition, text)


def open_range_decoder(
    broker_range: BrokerRange,
    aborted: AbortedIntervals,
    settings: ReadSettings,
    transactions: TransactionCheck | None = None,
) -> RecordDecoder | FilteringDecoder:
    """Returns a decoder for batches that brokers sent. Column `segmentId` of its rows is null."""
    return _open_decoder(
        settings,
        constants={
            TOPIC: broker_range.topic,
            PARTITION: broker_range.partition,
            SEGMENT_ID: None,
        },
        position=0,
        start_offset=broker_range.start_offset,
        stop_offset=broker_range.stop_offset,
        aborted=aborted,
        offset_bounds=(0, MAX_OFFSET),
        transactions=transactions,
    )


def _open_decoder(
    settings: ReadSettings,
    *,
    constants: Mapping[str, Any],
    position: int,
    **arguments: Any,  # noqa: ANN401  # of `RecordDecoder`
) -> RecordDecoder | FilteringDecoder:
    where = settings.where
    rest = TRUE if where is None else specialised(where, constants[TOPIC], constants[PARTITION])
    box = region(rest)
    make = partial(
        RecordDecoder,
        check_crcs=settings.check_crcs,
        max_batch_bytes=settings.max_batch_bytes,
        first_timestamp=first_millisecond(box),
        last_timestamp=last_millisecond(box),
        constants=constants,
        keys=settings.keys,
        **arguments,
    )
    if rest == TRUE:
        return make(
            columns=settings.columns,
            position=position,
            max_rows=settings.batches.rows,
            max_bytes=settings.batches.size,
        )
    from kts_source.read.row_filter import FilteringDecoder  # imports pyarrow.compute

    return FilteringDecoder(
        rest, make, columns=settings.columns, position=position, batches=settings.batches
    )


def check_around(
    task_slice: SegmentSlice,
    transactions: TransactionCheck,
    source: SegmentSource,
    *,
    position: int,
    next_offset: int,
) -> None:
    """Compares the aborted intervals of a slice with markers after it and with data before it.

    Args:
        task_slice: The slice.
        transactions: State of the comparison at the end of the slice.
        source: Reads the segments.
        position: Byte position after the last batch of the slice.
        next_offset: First offset after the slice.

    Raises:
        ContradictedIntervalsError: According to the log, a transaction was aborted, but its records
            were returned; or it was committed, but its records were skipped.
    """
    around = task_slice.surroundings
    only_doubtful = around is None or around.read_to >= around.range_stop
    range_stop = task_slice.stop_offset if around is None else around.range_stop
    expected = transactions.next_markers(next_offset, only_doubtful=only_doubtful)
    if expected and next_offset < range_stop:
        _compare_later_markers(task_slice, source, position, range_stop, expected)
        if not only_doubtful:
            check_markers_found(expected, range_stop)
    if around is not None:
        _search_earlier_data(task_slice, around, source, transactions.stray_aborts())


def _compare_later_markers(
    task_slice: SegmentSlice,
    source: SegmentSource,
    position: int,
    range_stop: int,
    expected: dict[int, int | None],
) -> None:
    """Compares the markers in the segment from byte `position` on with `expected`, a result of
    `TransactionCheck.next_markers`, and removes the compared ones from it. Stops when `expected` is
    empty, or at offset `range_stop`. Raises `ContradictedIntervalsError` if a marker differs.
    """
    batches = _transactional_batches(task_slice, task_slice.objects, source, position)
    with closing(batches):
        for header, marker in batches:
            if header.base_offset >= range_stop:
                return
            if marker is not None and header.base_offset >= task_slice.start_offset:
                check_next_marker(header.producer_id, marker, header.base_offset, expected)
                if not expected:
                    return


def _search_earlier_data(
    task_slice: SegmentSlice,
    around: SliceSurroundings,
    source: SegmentSource,
    aborts: dict[int, int],
) -> None:
    """Searches the log before a slice for data of transactions that have an ABORT marker but no
    transaction-index entry. `aborts` maps their producer ids to the offsets of the markers. Raises
    `ContradictedIntervalsError` if it finds data.
    """
    unseen = dict(aborts)
    if unseen and (task_slice.cut_start > 0 or around.read_from < task_slice.start_offset):
        batches = _transactional_batches(task_slice, task_slice.objects, source, 0)
        _raise_if_data_before_abort(batches, unseen, around.read_from, max(unseen.values()))
    if not unseen or around.before is None:
        return
    open_since = None
    if not around.before_is_cut:
        open_since = _open_transactions(around.before, source)
    if open_since is not None:
        unseen = {producer: offset for producer, offset in unseen.items() if producer in open_since}
    if not unseen:
        return
    # An open transaction in the snapshot does not prove that records were returned, because
    # compaction may have removed them: it removes first the records of an aborted transaction, then
    # its index entry, then its marker.
    batches = _transactional_batches(task_slice, around.before, source, 0)
    _raise_if_data_before_abort(batches, unseen, 0, around.before_stop)
    for producer_id, offset in unseen.items():
        if open_since is not None and open_since[producer_id] < around.before_start:
            raise unindexed_abort(producer_id, offset)


def _raise_if_data_before_abort(
    batches: Generator[_Batch], aborts: dict[int, int], start_offset: int, stop_offset: int
) -> None:
    """Searches offsets [start_offset, stop_offset) of a segment. Raises
    `ContradictedIntervalsError` if the last batch of a producer before its ABORT marker has data.
    `aborts` maps producer ids to the offsets of the markers; producers that have a batch are
    removed from it.
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


def _open_transactions(objects: SegmentObjects, source: SegmentSource) -> dict[int, int] | None:
    """Returns the first offset of each transaction that is open at a segment's end, by producer id;
    `None` if the producer snapshot is missing or cannot be read.
    """
    try:
        data = source.index(objects, IndexType.PRODUCER_SNAPSHOT)
        entries = parse_producer_snapshot(data) if data else None
    except (CorruptSegmentError, ObjectNotFoundError, SegmentFormatError):
        return None
    return None if entries is None else open_first_offsets(entries)


def _transactional_batches(
    task_slice: SegmentSlice, objects: SegmentObjects, source: SegmentSource, position: int
) -> Generator[_Batch]:
    """Yields the header of each transactional batch of a segment from byte `position` on, with the
    type of its marker; `None` instead of the type if the batch contains data.
    """
    size = objects.size_in_bytes
    with closing(_entries(task_slice, objects, source, position, size)) as entries:
        for data, entry in entries:
            if entry.magic != MAGIC_2:
                continue
            header = RecordBatchHeader.from_bytes(data)
            if header.is_control_batch:
                (batch,) = iter_batches(data)
                marker = marker_of(batch)
                if marker is not None:
                    yield header, marker
            elif header.is_transactional and header.record_count:
                yield header, None


def _entries(
    task_slice: SegmentSlice, objects: SegmentObjects, source: SegmentSource, start: int, stop: int
) -> Generator[tuple[memoryview, Entry]]:
    """Yields the bytes and the entry of each complete entry in the bytes [start, stop) of a
    segment. `start` is the position of an entry.
    """
    chunk = objects.chunk_index.original_chunk_size
    borders = [start, *range(start // chunk * chunk + chunk, stop, chunk), stop]
    location = task_slice.topic, task_slice.partition, task_slice.start_offset, objects
    spans = (SegmentSpan(*location, low, high) for low, high in pairwise(borders) if low < high)
    pending = b""
    with closing(source.windows(spans)) as windows:
        for _, window in windows:
            pending += window
            walked = 0
            with suppress(TruncatedBatchError):
                for entry in iter_entries(pending):
                    walked = entry.stop
                    yield memoryview(pending)[entry.position : entry.stop], entry
            pending = pending[walked:]
