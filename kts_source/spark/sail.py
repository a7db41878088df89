"""Defines readers for Sail, an engine that runs all tasks in threads of its own process, and passes
filters to the readers.

Sail receives the batches of a task through a channel for 16 batches, and holds the GIL while the
channel is full. The consumer of the channel may need the GIL to continue, for example to run a
Python function. So a full channel can cause a deadlock. To avoid this, tasks are small and return
at most `MAX_BATCHES` batches, so a task never fills its channel. The semaphore `_turns` limits how
many tasks decode concurrently. Waiting for the semaphore cannot cause a deadlock, because its
holder never waits for Sail.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from contextlib import closing
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final

from kts_source.columns import PARTITION
from kts_source.errors import InvalidOptionError
from kts_source.planning.slicing import conjunction
from kts_source.predicate.model import (
    MAX_INT64,
    MIN_INT64,
    Column,
    Compare,
    In,
    IsNull,
    Not,
    Op,
    Predicate,
)
from kts_source.read.read_settings import BatchLimits
from kts_source.spark.readers import TieredKafkaBatchReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from kts_source.options import ScanOptions
    from kts_source.read.task import ScanTask
    from kts_source.spark.data_source_api import InputPartition

TESTED_VERSIONS: Final = frozenset({"0.7.2"})
"""Versions of pysail whose filters on the supported columns are correct. Filters of other versions
are ignored, because even 0.7.2 passes wrong filters on text columns.
"""
MAX_BATCHES: Final = 15
"""Maximum batches of a task. Sail's channel has room for one more item, which signals the task's
end.
"""
TASK_BYTES: Final = 16 << 20
"""Default of `targetPartitionBytes`. Tasks are small, because all rows of a task may be in memory.
"""

_LIMITS: Final = BatchLimits(1 << 17, 4 << 20)
_MAX_COLUMN_BYTES: Final = (1 << 31) - 1
"""Maximum bytes of a column in one batch. Arrow counts them in 32 bits, and splits longer columns
into several batches.
"""
_turns: Final = threading.BoundedSemaphore(os.cpu_count() or 1)
"""Limits how many tasks decode at a time. More tasks would need more memory without being
faster.
"""
_COLUMNS: Final = ("offset", PARTITION, "timestamp")
_OPS: Final = {
    "EqualTo": Op.EQ,
    "LessThan": Op.LT,
    "LessThanOrEqual": Op.LE,
    "GreaterThan": Op.GT,
    "GreaterThanOrEqual": Op.GE,
}


class SailReader(TieredKafkaBatchReader):
    """Reads tasks with Sail. Tasks are small, and each returns at most `MAX_BATCHES` batches."""

    def __init__(self, options: ScanOptions) -> None:
        if "targetPartitionBytes" not in options.given:
            options = replace(options, target_partition_bytes=TASK_BYTES)
        super().__init__(options)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yields the rows of the task that Spark's `InputPartition` contains."""
        if partition is None or partition.value is None:
            return iter(())
        return read_few_batches(partition.value, self._options)


class FilteringSailReader(SailReader):
    """Skips rows that do not match the filters that Sail pushes down. Ignores filters that
    `condition_of` does not support.

    Sail creates a reader for each scan, and applies the filters again. So the reader may return
    rows that do not match, but must not skip rows that match.
    """

    def pushFilters(self, filters: Iterable[Any]) -> Iterable[Any]:  # noqa: N802  # Spark's name
        """Adds every filter that `condition_of` supports to the condition of the scan. Returns all
        filters, so that Sail applies them again.
        """
        filters = list(filters)
        where = conjunction(self._options.where, *map(condition_of, filters))
        self._options = replace(self._options, where=where)
        return filters


def sail_reader(options: ScanOptions) -> SailReader:
    """Returns a reader that supports filters if the installed version of Sail was tested; otherwise
    a reader that ignores filters.
    """
    try:
        is_tested = version("pysail") in TESTED_VERSIONS
    except PackageNotFoundError:
        is_tested = False
    return FilteringSailReader(options) if is_tested else SailReader(options)


def condition_of(spark_filter: Any) -> Predicate | None:  # noqa: ANN401  # PySpark 4.0 has no such classes
    """Translates a filter to a condition that is true for every row that matches the filter.
    Returns `None` if the filter is not supported.

    Supports comparisons with a value, IN, and tests for null, on the columns offset, partition and
    timestamp. Timestamps are integers, in microseconds since 1970.
    """
    name = type(spark_filter).__name__
    path: tuple[str, ...] = getattr(spark_filter, "attribute", ())
    if len(path) != 1 or path[0] not in _COLUMNS:
        return None
    column = Column(path[0])
    if name == "IsNull":
        return IsNull(column)
    if name == "IsNotNull":
        return Not(IsNull(column))
    if name == "In":
        values = tuple(value for value in spark_filter.value if value is not None)
        return In(column, values, has_null=False) if all(map(_is_int64, values)) else None
    op = _OPS.get(name)
    if op is None or not _is_int64(spark_filter.value):
        return None
    return Compare(op, column, spark_filter.value)


def _is_int64(value: object) -> bool:
    return type(value) is int and MIN_INT64 <= value <= MAX_INT64  # a bool is no number


def read_few_batches(task: ScanTask, options: ScanOptions) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a task in at most `MAX_BATCHES` batches."""
    from kts_source.read.read_task import run_task

    # Sail reads all tasks concurrently and completely, even if the query has a limit.
    with _turns, closing(run_task(task, options, batches=_LIMITS, whole=True)) as rows:
        yield from join_last(rows)


def join_last(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the first `MAX_BATCHES` − 1 batches unchanged, and then the rows of all other batches
    as one batch.

    Raises:
        InvalidOptionError: The remaining rows do not fit into one batch. More batches might fill
            the channel, and the query would never end.
    """
    import pyarrow as pa

    rest: list[pa.RecordBatch] = []
    sizes: Counter[int] = Counter()
    for number, batch in enumerate(batches, 1):
        if number < MAX_BATCHES:
            yield batch
            continue
        rest.append(batch)
        sizes.update({index: column.nbytes for index, column in enumerate(batch.columns)})
        if max(sizes.values(), default=0) > _MAX_COLUMN_BYTES:
            raise InvalidOptionError(
                "a task has more rows than fit into the batches that Sail can receive; set option"
                f" targetPartitionBytes to a smaller value than now (default: {TASK_BYTES})"
            )
    if rest:
        yield from pa.Table.from_batches(rest).combine_chunks().to_batches()
