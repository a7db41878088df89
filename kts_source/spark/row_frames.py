"""Turns export tasks into a DataFrame of their rows, which Spark can write to any of its tables.

The tasks run once. Spark keeps their rows in its block storage (`localCheckpoint`) and forgets how
they were made. So the rows that Spark writes later are the rows that the reports of the tasks
describe. If an executor is lost before, the write fails, and the next run reads the rows again.

A task streams the rows that its files would have, with the partition columns as additional columns.
The stream ends with the report of the task.
"""

from __future__ import annotations

import logging
import time
import uuid
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from kts_source.errors import ExportError
from kts_source.export.partitioning import with_made_columns
from kts_source.export.progress import NO_PROGRESS
from kts_source.export.row_schema import check_columns, schema_without_rows
from kts_source.export.task import TaskReport, WrittenFile
from kts_source.export.task_writer import Owner, TaskWriter
from kts_source.read.read_settings import FOR_SPARK
from kts_source.spark.data_source_api import InputPartition, types
from kts_source.spark.jobs import ExportReader, export_data_source, noted_errors, tasks_in_spark
from kts_source.spark.worker import (
    end_task,
    explained_imports,
    explained_memory,
    log_to_stderr,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from kts_source.export.progress import Progress
    from kts_source.export.task import ExportJob, RunnableTask
    from kts_source.export.task_writer import ExportTask

REPORT: Final = "_kts_report"
"""Column with the report of a task. It is null in all rows except the last row of each task, and
that row has no other value.
"""


class _RowCollector(TaskWriter):
    """Keeps the rows of a task in memory until the stream takes them, instead of writing files."""

    def __init__(
        self, number: int, topic_ids: Mapping[tuple[str, int], str], job: ExportJob
    ) -> None:
        super().__init__(number, topic_ids, job)
        self._rows: list[pa.RecordBatch] = []
        self._row_counts: dict[Owner, int] = {}

    def _write_rows(self, owner: Owner, rows: pa.RecordBatch, batch: pa.RecordBatch) -> None:
        del batch
        fields = self._settings.partition_by
        computes_times = self._job.target.values_in == "file"  # the table computes units of time
        for field, values in [(field, field.values(rows)) for field in fields]:
            is_made = field.needs_own_column or not computes_times
            if is_made and field.name not in rows.schema.names:
                rows = rows.append_column(field.name, values)
        self._rows.append(rows)
        self._row_counts[owner] = self._row_counts.get(owner, 0) + rows.num_rows

    def taken(self) -> list[pa.RecordBatch]:
        """Returns the rows since the last call."""
        rows, self._rows = self._rows, []
        return rows

    def completed(self, report: TaskReport) -> TaskReport:
        """Returns `report` with an entry in `files` for each partition. An entry has the number of
        its rows, but no key, no size and no offsets.
        """
        now_ms = time.time_ns() // 1_000_000
        entries = tuple(
            WrittenFile("", "", *_place(owner), 0, 0, rows, 0, now_ms, (), {})
            for owner, rows in self._row_counts.items()
        )
        return replace(super().completed(report), files=entries)


def _place(owner: Owner) -> tuple[str, str, int]:
    return owner.topic, owner.topic_id, owner.partition


def _stream_rows(task: ExportTask, job: ExportJob) -> Iterator[pa.RecordBatch | TaskReport]:
    """Runs a task: yields its rows and then its report.

    Raises:
        TieredKafkaError: See `ExportTask.run`.
    """
    with (
        _RowCollector(task.number, task.topic_ids, job) as rows,
        closing(task.steps(job, rows, FOR_SPARK)) as steps,
    ):
        while True:
            try:
                next(steps)
            except StopIteration as end:
                yield end.value
                return
            yield from rows.taken()


@dataclass(frozen=True, slots=True)
class RowJob:
    """Values that all tasks of a DataFrame share. `columns` are the columns of the rows, including
    partition columns.
    """

    job: ExportJob
    columns: pa.Schema


class RowReader(ExportReader):
    """A reader whose partitions have the rows of export tasks."""

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Runs the task of a partition, and yields its rows and its report.

        Raises:
            TieredKafkaError: The task failed.
        """
        task, shared = None if partition is None else partition.value, self._job
        if task is None or not isinstance(shared, RowJob):
            return
        schema = shared.columns.append(pa.field(REPORT, pa.string()))
        log_to_stderr(logging.WARNING)
        try:
            with noted_errors(), explained_memory(), explained_imports():
                for item in _stream_rows(task, shared.job):
                    if isinstance(item, TaskReport):
                        arrays: list[pa.Array] = [pa.nulls(1, f.type) for f in shared.columns]
                        arrays.append(pa.array([item.to_text()], pa.string()))
                    else:
                        arrays = [*item.columns, pa.nulls(item.num_rows, pa.string())]
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        finally:
            end_task()


class RowExecutor:
    """Runs export tasks in Spark, and keeps their rows as a DataFrame for the next commit."""

    def __init__(self, spark: SparkSession, progress: Progress = NO_PROGRESS) -> None:
        self.spark = spark
        self._progress = progress
        self._tag = f"tiered-kafka-rows-{uuid.uuid4().hex}"
        self._stored: tuple[str, DataFrame] | None = None

    def run(self, tasks: Sequence[RunnableTask], job: ExportJob) -> Iterator[TaskReport]:
        """Runs the tasks in one Spark job, and yields the report of each task after all tasks have
        ended. See `ExportExecutor.run`.
        """
        self.release()
        columns = job.columns or schema_without_rows(job.options, job.settings)
        assert columns is not None  # only a transform makes them unknown
        check_columns(columns, job.settings, job.target.values_in)
        columns = with_made_columns(columns, job.settings.partition_by, job.target.values_in)
        schema = spark_schema(columns).add(REPORT, types.StringType())
        shared = RowJob(job, columns)
        source = export_data_source(self._tag, tasks, shared, RowReader, schema)
        with tasks_in_spark(self.spark, self._tag, source, self._progress):
            stored = self.spark.read.format(self._tag).load().localCheckpoint()
        key = uuid.uuid4().hex
        self._stored = key, stored
        for row in stored.where(stored[REPORT].isNotNull()).select(REPORT).collect():
            report = TaskReport.from_text(row[REPORT])
            yield replace(report, files=tuple(replace(file, key=key) for file in report.files))

    def rows(self, files: Sequence[WrittenFile]) -> DataFrame | None:
        """Returns the rows that entries of reports describe. Returns `None` for no entries.

        Raises:
            ExportError: The rows are not stored, because other tasks have run since.
        """
        if not files:
            return None
        if self._stored is None or {file.key for file in files} != {self._stored[0]}:
            raise ExportError(
                "Spark no longer has the rows of this commit, so nothing was committed. Run again"
            )
        stored = self._stored[1]
        return stored.where(stored[REPORT].isNull()).drop(REPORT)

    def release(self) -> None:
        """Frees the storage of the rows."""
        if self._stored is not None:
            # The public API has no method for this. A client of Spark Connect frees the storage
            # when the DataFrame is collected as garbage.
            java: Any = getattr(self._stored[1], "_jdf", None)
            if java is not None:
                java.queryExecution().analyzed().rdd().unpersist(False)
        self._stored = None


def spark_schema(columns: pa.Schema) -> types.StructType:
    """Converts Arrow columns to a Spark schema."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(columns, prefer_timestamp_ntz=True)
