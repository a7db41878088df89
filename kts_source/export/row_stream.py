"""Streams the rows of export tasks to a writer that is not a task, such as Spark's own writer.

A stream has the same rows as the files of the task would have, and the partition columns as
additional columns. It ends with the report of the task.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from kts_source.export.task import WrittenFile
from kts_source.export.task_writer import Owner, TaskWriter
from kts_source.read.read_settings import FOR_SPARK

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from kts_source.export.task import ExportJob, TaskReport
    from kts_source.export.task_writer import ExportTask


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


def stream_rows(task: ExportTask, job: ExportJob) -> Iterator[pa.RecordBatch | TaskReport]:
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
