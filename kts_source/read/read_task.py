"""Reads one task: the slices of the tier, then the ranges of brokers."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from kts_source.errors import InvalidOptionError
from kts_source.predicate.model import split_by_fields
from kts_source.read.read_settings import FOR_ENGINES
from kts_source.read.read_slices import read_slices

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    import pyarrow as pa

    from kts_source.read.read_settings import BatchLimits, ReadSettings
    from kts_source.read.segment_source import SegmentSource
    from kts_source.read.task import ScanTask
    from kts_source.read.task_metrics import TaskMeter
    from kts_source.read.typed_rows import SetAside


def read_task(
    task: ScanTask,
    reader: SegmentSource,
    settings: ReadSettings,
    *,
    meter: TaskMeter | None = None,
    set_aside: SetAside | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a task, in the order of its parts; offsets ascend within a part.

    Close the iterator to stop what is under way.

    Args:
        task: What to read.
        reader: What reads its slices.
        settings: How.
        meter: Where to count.
        set_aside: See `TypedRows`.

    Raises:
        InvalidOptionError: The task reads from brokers, and the settings name none.
        TieredKafkaError: See `read_slices`, `read_range`, `BrokerFallback` and `TypedRows`.
    """
    if settings.formats:
        # Not at import time: most scans take bytes as they are.
        from kts_source.read.typed_rows import TypedRows

        where, of_fields = split_by_fields(settings.where)
        typed = TypedRows(settings.columns, settings.formats, of_fields, set_aside)
        # Where few rows of a batch are kept, those of a small one are not worth a call.
        limits = settings.batches if of_fields is None else FOR_ENGINES
        of_bytes = replace(
            settings, columns=typed.read_columns, where=where, formats=(), batches=limits
        )
        with closing(_read(task, reader, of_bytes, meter)) as batches:
            decoded = typed.decoded(batches, meter)
            if of_fields is None:
                yield from decoded
            else:
                yield from _cut(decoded, settings.batches)
        return
    yield from _read(task, reader, settings, meter)


def _cut(batches: Iterable[pa.RecordBatch], limits: BatchLimits) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that the limits allow, about."""
    for batch in batches:
        most = limits.rows
        if batch.nbytes > limits.size:
            most = max(1, min(most, batch.num_rows * limits.size // batch.nbytes))
        for start in range(0, batch.num_rows, most):
            yield batch.slice(start, most)


def _read(
    task: ScanTask, reader: SegmentSource, settings: ReadSettings, meter: TaskMeter | None
) -> Generator[pa.RecordBatch]:
    """The rows as they are stored."""
    if settings.brokers is not None and (task.ranges or settings.broker_fallback):
        # Not at import time: most scans are of the tier alone.
        from kts_source.read.with_brokers import rows_with_brokers

        yield from rows_with_brokers(task, reader, settings, settings.brokers, meter)
        return
    if task.ranges:
        raise InvalidOptionError(
            "the plan reads from brokers, so option kafka.bootstrap.servers must be given"
        )
    yield from read_slices(task.slices, reader, settings, meter=meter)
