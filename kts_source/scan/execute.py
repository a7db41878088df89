"""Runs one task: byte ranges in, Arrow batches out, exactly the columns asked for."""

from __future__ import annotations

import logging
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from kts_source.errors import CorruptSegmentError, TieredKafkaError
from kts_source.remote.segment_reader import ReadAhead, SegmentReader, SegmentSpan
from kts_source.scan.borders import Border, BorderCheck, borders, peek_stop
from kts_source.scan.filtering import FilteringDecoder
from kts_source.scan.predicate.bounds import TRUE, specialised
from kts_source.table import PARTITION, PLACE_COLUMNS, SEGMENT_ID, TOPIC
from segment_format.arrow import RecordDecoder
from segment_format.errors import SegmentFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kts_source.options import ScanOptions
    from kts_source.scan.predicate.model import Predicate
    from kts_source.scan.task import ScanTask, SegmentSlice

log = logging.getLogger(__name__)

MAX_ROWS = 4096
"""Rows of a batch: what Spark's Arrow reader takes fastest."""


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How tasks of one scan decode.

    Attributes:
        columns: Columns of the table, in order.
        max_batch_bytes: Bound on one record batch, stored or decompressed.
        where: Rows for which it is not true are left out.
    """

    columns: tuple[str, ...]
    check_crcs: bool
    max_batch_bytes: int
    read_ahead: ReadAhead
    where: Predicate | None = None

    @classmethod
    def of(cls, options: ScanOptions) -> ReadSettings:
        """The settings that the options of a `load()` ask for."""
        ahead = ReadAhead(options.max_concurrent_requests, options.prefetch_bytes, slow_start=True)
        return cls(
            options.columns, options.check_crcs, options.max_batch_bytes, ahead, options.where
        )


def read_task(
    task: ScanTask, reader: SegmentReader, settings: ReadSettings
) -> Iterator[pa.RecordBatch]:
    """The rows of a task, in the order of its slices; offsets ascend within a slice.

    Close the iterator to stop what is under way.

    Raises:
        TieredKafkaError: Bytes that are not what was planned; names topic, partition, offset,
            object and position.
    """
    decoding: _SliceDecoder | None = None
    windows = reader.windows(_spans(task, reader), read_ahead=settings.read_ahead)
    with closing(windows):
        for span, window in windows:
            if decoding is None or decoding.span is not span:
                if decoding is not None:
                    yield from decoding.finish()
                decoding = _SliceDecoder(span, reader, settings)
            yield from decoding.feed(window)
            if decoding.done and span.part is task.slices[-1]:
                break
        if decoding is not None:
            yield from decoding.finish()


@dataclass(frozen=True, slots=True)
class _SliceSpan(SegmentSpan):
    """The bytes of one slice, and a few more where its end is to be checked."""

    part: SegmentSlice
    first: Border
    last: Border


def _spans(task: ScanTask, reader: SegmentReader) -> Iterator[_SliceSpan]:
    for part in task.slices:
        with _located(part, reader):
            first, last = borders(part, reader)
        if first.position < last.position:
            stop = peek_stop(last, part.objects.size_in_bytes)
            yield _SliceSpan(
                part.topic,
                part.partition,
                part.start_offset,
                part.objects,
                first.position,
                stop,
                part,
                first,
                last,
            )


class _SliceDecoder:
    """Decodes the bytes of one slice as they come in."""

    def __init__(self, span: _SliceSpan, reader: SegmentReader, settings: ReadSettings) -> None:
        part = span.part
        names = tuple(name for name in settings.columns if name not in PLACE_COLUMNS)
        self.span = span
        self._reader = reader
        self._check = BorderCheck(span.first, span.last)
        self._place = _PlaceColumns(part, settings.columns)
        # A batch of no column would have no length.
        self._decoder = _decoder(span, settings, names or ("offset",))

    @property
    def done(self) -> bool:
        """Whether the slice's last offset has passed."""
        return self._decoder.done

    def feed(self, window: memoryview) -> Iterator[pa.RecordBatch]:
        """The rows of the next bytes."""
        if self.done:
            return
        with _located(self.span.part, self._reader):
            for batch in self._decoder.feed(self._check.inside(window)):
                yield self._place.added_to(batch)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """The rows still held back, once all bytes have been fed."""
        with _located(self.span.part, self._reader):
            if not self.done:
                self._check.finish()
            for batch in self._decoder.finish():
                yield self._place.added_to(batch)
        log.debug("segment %s: %s", self.span.part.segment_id, self._decoder.counters)


def _decoder(
    span: _SliceSpan, settings: ReadSettings, columns: tuple[str, ...]
) -> RecordDecoder | FilteringDecoder:
    part = span.part
    position = span.first.position
    make = partial(
        RecordDecoder,
        start_offset=part.start_offset,
        stop_offset=part.stop_offset,
        aborted=part.aborted,
        check_crcs=settings.check_crcs,
        max_rows=MAX_ROWS,
        max_batch_bytes=settings.max_batch_bytes,
        lineage=part.lineage or None,
    )
    where = settings.where
    rest = TRUE if where is None else specialised(where, part.topic, part.partition)
    if rest == TRUE:
        return make(columns=columns, position=position)
    return FilteringDecoder(rest, make, columns=columns, position=position, max_rows=MAX_ROWS)


@contextmanager
def _located(part: SegmentSlice, reader: SegmentReader) -> Iterator[None]:
    """Adds the place to errors of the layers below, which know bytes but not whose."""
    uri = reader.store.uri(part.objects.log.key)
    try:
        yield
    except TieredKafkaError as error:
        error.located(topic=part.topic, partition=part.partition, offset=part.start_offset, uri=uri)
        raise
    except SegmentFormatError as error:
        raise CorruptSegmentError(
            error.message,
            topic=part.topic,
            partition=part.partition,
            offset=part.start_offset if error.offset is None else error.offset,
            uri=uri,
            position=error.position,
        ) from error


class _PlaceColumns:
    """Adds what is the same for every row of a slice, built once."""

    def __init__(self, part: SegmentSlice, columns: Sequence[str]) -> None:
        self._columns = columns
        self._values = {
            TOPIC: pa.scalar(part.topic),
            PARTITION: pa.scalar(part.partition, pa.int32()),
            SEGMENT_ID: pa.scalar(part.segment_id),
        }
        self._constants: dict[str, pa.Array] = {}

    def added_to(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """`batch` with its columns in the table's order."""
        arrays = [
            self._constant(name, batch.num_rows) if name in self._values else batch.column(name)
            for name in self._columns
        ]
        return pa.RecordBatch.from_arrays(arrays, names=list(self._columns))

    def _constant(self, name: str, rows: int) -> pa.Array:
        known = self._constants.get(name)
        if known is None or len(known) < rows:
            known = self._constants[name] = pa.repeat(self._values[name], max(rows, MAX_ROWS))
        return known.slice(0, rows)
