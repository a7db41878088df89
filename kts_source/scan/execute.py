"""Runs one task: byte ranges in, Arrow batches out, exactly the columns asked for."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from segment_format.arrow import RecordDecoder

from kts_source.errors import CorruptSegmentError, TieredKafkaError
from kts_source.scan.borders import borders, checked_windows
from kts_source.table import PARTITION, PLACE_COLUMNS, TOPIC
from segment_format.errors import SegmentFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kts_source.remote.segment_reader import SegmentReader
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
    """

    columns: tuple[str, ...]
    check_crcs: bool
    max_batch_bytes: int


def read_task(
    task: ScanTask, reader: SegmentReader, settings: ReadSettings
) -> Iterator[pa.RecordBatch]:
    """The rows of a task, in the order of its slices; offsets ascend within a slice.

    Raises:
        TieredKafkaError: Bytes that are not what was planned; names topic, partition, offset,
            object and position.
    """
    for part in task.slices:
        try:
            yield from _read_slice(part, reader, settings)
        except TieredKafkaError as error:
            raise error.located(
                topic=part.topic,
                partition=part.partition,
                offset=part.start_offset,
                uri=reader.store.uri(part.objects.log.key),
            ) from error.__cause__
        except SegmentFormatError as error:
            raise CorruptSegmentError(
                error.message,
                topic=part.topic,
                partition=part.partition,
                offset=part.start_offset if error.offset is None else error.offset,
                uri=reader.store.uri(part.objects.log.key),
                position=error.position,
            ) from error


def _read_slice(
    part: SegmentSlice, reader: SegmentReader, settings: ReadSettings
) -> Iterator[pa.RecordBatch]:
    start, stop = borders(part, reader)
    if start.position >= stop.position:
        return
    record_columns = tuple(name for name in settings.columns if name not in PLACE_COLUMNS)
    decoder = RecordDecoder(
        # A batch of no column would have no length.
        columns=record_columns or ("offset",),
        start_offset=part.start_offset,
        stop_offset=part.stop_offset,
        aborted=part.aborted,
        check_crcs=settings.check_crcs,
        max_rows=MAX_ROWS,
        max_batch_bytes=settings.max_batch_bytes,
        lineage=part.lineage or None,
        position=start.position,
    )
    place = _PlaceColumns(part.topic, part.partition, settings.columns)
    for window in checked_windows(part, reader, start, stop):
        for batch in decoder.feed(window):
            yield place.added_to(batch)
        if decoder.done:
            break
    for batch in decoder.finish():
        yield place.added_to(batch)
    log.debug("%s-%d segment %s: %s", part.topic, part.partition, part.segment_id, decoder.counters)


class _PlaceColumns:
    """Adds topic and partition, the same for every row, built once."""

    def __init__(self, topic: str, partition: int, columns: Sequence[str]) -> None:
        self._columns = columns
        self._values = {TOPIC: pa.scalar(topic), PARTITION: pa.scalar(partition, pa.int32())}
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
