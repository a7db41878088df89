"""Reads the slices of one task, and writes their rows.

Every attempt writes under names of its own, so retries and speculative copies never touch each
other; only what the driver hears of and commits counts.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kts_source.columns import PARTITION, TOPIC
from kts_source.export.files import TaskReport
from kts_source.export.job import OFFSET
from kts_source.export.task_writer import TaskWriter
from kts_source.read.read_settings import FOR_SPARK, BatchLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pyarrow as pa

    from kts_source.export.job import ExportJob
    from kts_source.read.task import ScanTask
    from kts_source.read.task_metrics import TaskMetrics
    from kts_source.read.typed_rows import SetAside

_NEEDED: Final = (TOPIC, PARTITION, OFFSET)
_BATCHES: Final = BatchLimits(16384, 8 << 20)
"""More than Spark is handed at a time: each batch costs the writer as much, however small."""


@dataclass(frozen=True, slots=True)
class ExportTask:
    """What one task writes.

    Attributes:
        number: Within the run.
        topic_ids: Topic and partition to topic id, of all slices.
    """

    number: int
    scan: ScanTask
    topic_ids: Mapping[tuple[str, int], str]

    def run(self, job: ExportJob) -> TaskReport:
        """Writes the files.

        Raises:
            TieredKafkaError: Bytes that are not what was planned, a transform that fails, a store
                that does not take the files.
        """
        with TaskWriter(self.number, self.topic_ids, job) as writer:
            set_aside = None if job.settings.dead_letters is None else writer.set_aside
            read = read_rows(
                self.number, self.scan, job, writer.write, _NEEDED, _BATCHES, set_aside
            )
            return writer.completed(read)


def read_rows(
    number: int,
    scan: ScanTask,
    job: ExportJob,
    take: Callable[[pa.RecordBatch], None],
    needed: Iterable[str],
    batches: BatchLimits = FOR_SPARK,
    set_aside: SetAside | None = None,
) -> TaskReport:
    """Reads the slices of a task; `take` gets every batch, with the columns that it needs,
    and `set_aside` the rows that cannot be decoded.

    Returns:
        A report of the reading alone, without its time.
    """
    from kts_source.read.run_task import run_task
    from kts_source.read.task_metrics import TaskPlace

    columns = tuple(dict.fromkeys((*job.options.columns, *needed)))
    options = replace(job.options, columns=columns)
    place = TaskPlace(job.settings.export_id, partition=number)
    ended: list[TaskMetrics] = []
    rows = run_task(scan, options, place, batches=batches, on_end=ended.append, set_aside=set_aside)
    with closing(rows):
        for batch in rows:
            take(batch)
    (metrics,) = ended
    return TaskReport(
        number=number,
        rows_read=metrics.rows,
        segment_bytes=scan.nominal_bytes,
        requests=metrics.requests,
        bytes_read=metrics.bytes,
        retries=metrics.retries,
        lost=metrics.lost_ranges,
    )
