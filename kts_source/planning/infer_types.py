"""Infers the types of decoded JSON keys and values that have no schema, from a sample of the
records.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kts_source.errors import InvalidOptionError
from kts_source.options.selection import EarliestBound, mentions
from kts_source.options.value_formats import JSON_CONFLUENT
from kts_source.planning.planner import plan_scan
from kts_source.predicate.model import split_by_fields
from kts_source.read.read_settings import ReadSettings
from kts_source.read.read_task import read_task
from kts_source.read.segment_source import SegmentSource
from kts_source.read.task import ScanTask, SegmentSlice
from kts_source.read.value_decoders import framed, needed_columns
from kts_source.tier import open_tier
from segment_format.values.registry_framing import read_confluent_header

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    import pyarrow as pa

    from kts_source.broker.broker_range import BrokerRange
    from kts_source.options import ScanOptions
    from kts_source.options.value_formats import ColumnFormat
    from kts_source.planning.scan_plan import ScanPlan

    _Piece = SegmentSlice | BrokerRange

log = logging.getLogger(__name__)

_MAX_PARTITIONS: Final = 8
_MAX_RECORDS: Final = 500
"""Maximum number of sample records at each end of a partition."""
_MAX_BYTES: Final = 1 << 20
"""Maximum bytes of sample keys and values at each end of a partition."""
_MAX_PIECES: Final = 64
"""Maximum number of slices and broker ranges to read at each end of a partition."""


def with_types(options: ScanOptions) -> ScanOptions:
    """Returns the options with a type for each decoded column (key or value).

    If the options do not state a type, infers it from a sample. The sample has up to 8 partitions,
    and from each partition about 500 of the oldest and 500 of the newest selected records.

    Raises:
        InvalidOptionError: The sample has no record, or its values have no common type.
        TieredKafkaError: The sample cannot be planned or read.
    """
    unknown = [form for form in options.formats if form.needs_type]
    if not unknown:
        return options
    columns = (*(form.column for form in unknown), *needed_columns(unknown))
    batches = list(_sample(options, columns))
    typed = {
        form.column: _with_type(form, [framed(batch, form) for batch in batches])
        for form in unknown
    }
    formats = tuple(typed.get(form.column, form) for form in options.formats)
    return replace(options, formats=formats)


def _with_type(form: ColumnFormat, samples: Sequence[pa.Array]) -> ColumnFormat:
    from segment_format.values.json.ddl import infer, print_ddl

    values = (value for array in samples for value in array.to_pylist())
    records = sum(map(len, samples))
    try:
        if not records:
            raise ValueError("the sample has no record from which a schema could be inferred")
        ddl = print_ddl(infer(_json_texts(values, form)))
        typed = replace(form, schema=ddl)
        _ = typed.type
    except ValueError as error:
        raise InvalidOptionError(
            f"option '{form.column}.format' = {form.format} needs option '{form.column}.schema':"
            f" {error}"
        ) from None
    shown = " ".join(ddl.split())  # names may have line feeds
    log.info("'%s.schema', as %d records show it: %s", form.column, records, shown)
    return typed


def _json_texts(values: Iterable[bytes | None], form: ColumnFormat) -> Iterator[bytes | None]:
    """Yields the JSON text of each value: removes the header with the schema id from values in
    Confluent's format, and skips values without this header.
    """
    for value in values:
        if form.format != JSON_CONFLUENT or value is None:
            yield value
            continue
        with contextlib.suppress(ValueError):
            _, size = read_confluent_header(value)
            yield value[size:]


def _sample(options: ScanOptions, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    at_end = mentions(options.starting, "latest")  # only a stream may begin there
    asked = replace(
        options,
        columns=columns,
        formats=(),
        max_plan_bytes=None,
        max_plan_requests=None,
        where=split_by_fields(options.where)[0],  # without conditions on decoded fields
        starting=EarliestBound() if at_end else options.starting,
    )
    with contextlib.closing(open_tier(asked)) as tier:
        plan = plan_scan(asked, tier)
        reader = SegmentSource(tier, asked.key_ring)
        settings = ReadSettings.of(asked)
        for pieces in _sampled_partitions(plan):
            for task, is_newest in _oldest_and_newest(pieces):
                with contextlib.closing(_rows(task, reader, settings)) as batches:
                    yield from _last(batches) if is_newest else _first(batches)


def _rows(
    task: ScanTask, reader: SegmentSource, settings: ReadSettings
) -> Generator[pa.RecordBatch]:
    yield from read_task(task, reader, settings)


def _sampled_partitions(plan: ScanPlan) -> list[list[_Piece]]:
    """Returns the slices and broker ranges of at most `_MAX_PARTITIONS` partitions, as one list per
    partition, sorted by offset.
    """
    pieces: dict[tuple[str, int], list[_Piece]] = {}
    for task in plan.tasks:
        for piece in task.parts:
            pieces.setdefault((piece.topic, piece.partition), []).append(piece)
    every = [sorted(pieces[key], key=lambda piece: piece.start_offset) for key in sorted(pieces)]
    return every[:: max(-(-len(every) // _MAX_PARTITIONS), 1)]


def _oldest_and_newest(pieces: Sequence[_Piece]) -> Iterator[tuple[ScanTask, bool]]:
    """Yields two pairs of a task and a flag: (task for the oldest records of a partition, False)
    and (task for the newest records, True).
    """
    start, stop = pieces[0].start_offset, pieces[-1].stop_offset
    middle = min(start + _MAX_RECORDS, stop)
    yield (
        ScanTask.of([piece for piece in pieces if piece.start_offset < middle][:_MAX_PIECES]),
        False,
    )
    middle = max(stop - _MAX_RECORDS, middle)
    newest = [
        replace(piece, start_offset=max(piece.start_offset, middle))
        for piece in pieces
        if piece.stop_offset > middle
    ]
    yield ScanTask.of(newest[-_MAX_PIECES:]), True


def _first(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = size = 0
    for batch in batches:
        yield batch.slice(0, _MAX_RECORDS - rows)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _MAX_RECORDS or size >= _MAX_BYTES:
            return


def _last(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    kept: deque[pa.RecordBatch] = deque()
    for batch in batches:
        kept.append(batch)
        while len(kept) > 1 and sum(each.nbytes for each in kept) > _MAX_BYTES:
            kept.popleft()
    return kept
