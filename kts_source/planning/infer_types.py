"""Types for JSON keys and values without a schema: from a sample, before a scan is planned."""

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
from segment_format.values.confluent_header import read_header

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    import pyarrow as pa

    from kts_source.broker.broker_range import BrokerRange
    from kts_source.options import ScanOptions
    from kts_source.options.value_formats import ColumnFormat
    from kts_source.planning.scan_plan import ScanPlan

    Part = SegmentSlice | BrokerRange

log = logging.getLogger(__name__)

_MOST_PARTITIONS: Final = 8
_RECORDS: Final = 500
"""Of each end of a partition."""
_MOST_BYTES: Final = 1 << 20
"""The same: after so many bytes of keys and values there are enough."""
_MOST_PARTS: Final = 64
"""So few records may lie in many parts of a plan."""


def with_types(options: ScanOptions) -> ScanOptions:
    """Options in which the type of each decoded column is known.

    Where one is not, up to 500 of the oldest and of the newest records of up to 8 partitions are
    read: of the partitions and offsets that the options select.

    Args:
        options: As they are parsed.

    Raises:
        InvalidOptionError: The sample tells no type.
        TieredKafkaError: What planning and reading refuse.
    """
    unknown = [one for one in options.formats if one.needs_type]
    if not unknown:
        return options
    columns = (*(one.column for one in unknown), *needed_columns(unknown))
    batches = list(_sample(options, columns))
    found = {
        one.column: _with_type(one, [framed(batch, one) for batch in batches]) for one in unknown
    }
    return replace(options, formats=tuple(found.get(one.column, one) for one in options.formats))


def _with_type(form: ColumnFormat, samples: Sequence[pa.Array]) -> ColumnFormat:
    from segment_format.values.json.ddl import infer, print_ddl

    values = (value for array in samples for value in array.to_pylist())
    records = sum(map(len, samples))
    try:
        if not records:
            raise ValueError("there is no record that could show what they hold")
        ddl = print_ddl(infer(_texts(values, form)))
        known = replace(form, schema=ddl)
        _ = known.type
    except ValueError as error:
        raise InvalidOptionError(
            f"option '{form.column}.format' = {form.format} needs option '{form.column}.schema':"
            f" {error}"
        ) from None
    shown = " ".join(ddl.split())  # names may have line feeds
    log.info("'%s.schema', as %d records show it: %s", form.column, records, shown)
    return known


def _texts(values: Iterable[bytes | None], form: ColumnFormat) -> Iterator[bytes | None]:
    """The JSON of values; what has no header where there should be one tells nothing."""
    for value in values:
        if form.format != JSON_CONFLUENT or value is None:
            yield value
            continue
        with contextlib.suppress(ValueError):
            _, size = read_header(value)
            yield value[size:]


def _sample(options: ScanOptions, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Columns of some records, as bytes."""
    at_end = mentions(options.starting, "latest")  # of a stream, which may begin there
    asked = replace(
        options,
        columns=columns,
        formats=(),
        max_plan_bytes=None,
        max_plan_requests=None,
        where=split_by_fields(options.where)[0],  # of columns that are decoded
        starting=EarliestBound() if at_end else options.starting,
    )
    with contextlib.closing(open_tier(asked)) as tier:
        plan = plan_scan(asked, tier)
        reader = SegmentSource(tier, asked.key_ring)
        settings = ReadSettings.of(asked)
        for parts in _chosen(plan):
            for task, newest in _ends(parts):
                with contextlib.closing(_rows(task, reader, settings)) as batches:
                    yield from _last(batches) if newest else _first(batches)


def _rows(
    task: ScanTask, reader: SegmentSource, settings: ReadSettings
) -> Generator[pa.RecordBatch]:
    yield from read_task(task, reader, settings)


def _chosen(plan: ScanPlan) -> list[list[Part]]:
    """What is read of some partitions, in order of offsets."""
    parts: dict[tuple[str, int], list[Part]] = {}
    for task in plan.tasks:
        for part in task.parts:
            parts.setdefault((part.topic, part.partition), []).append(part)
    every = [sorted(parts[place], key=lambda one: one.start_offset) for place in sorted(parts)]
    step = max(-(-len(every) // _MOST_PARTITIONS), 1)
    return every[::step]


def _ends(parts: Sequence[Part]) -> Iterator[tuple[ScanTask, bool]]:
    """Tasks that read a partition's oldest and its newest records, and which of the two."""
    start, stop = parts[0].start_offset, parts[-1].stop_offset
    middle = min(start + _RECORDS, stop)
    yield _task([one for one in parts if one.start_offset < middle][:_MOST_PARTS]), False
    middle = max(stop - _RECORDS, middle)
    newest = [_from(one, middle) for one in parts if one.stop_offset > middle]
    yield _task(newest[-_MOST_PARTS:]), True


def _task(parts: Sequence[Part]) -> ScanTask:
    slices = tuple(part for part in parts if isinstance(part, SegmentSlice))
    ranges = tuple(part for part in parts if not isinstance(part, SegmentSlice))
    return ScanTask(slices, ranges)


def _from(part: Part, offset: int) -> Part:
    return replace(part, start_offset=max(part.start_offset, offset))


def _first(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first rows, and no more."""
    rows = size = 0
    for batch in batches:
        yield batch.slice(0, _RECORDS - rows)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _RECORDS or size >= _MOST_BYTES:
            return


def _last(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """The last batches of what are few rows."""
    kept: deque[pa.RecordBatch] = deque()
    for batch in batches:
        kept.append(batch)
        while len(kept) > 1 and sum(one.nbytes for one in kept) > _MOST_BYTES:
            kept.popleft()
    return kept
