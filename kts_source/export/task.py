"""Runs one export task: decodes its slices, transforms, writes files, and says what it wrote.

Every attempt writes under names of its own, so retries and speculative copies never touch each
other; what counts is only what the driver hears of and commits.
"""

from __future__ import annotations

import dataclasses
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kts_source.columns import PARTITION, TOPIC
from kts_source.export.files import TaskReport, encode_schema
from kts_source.export.job import OFFSET
from kts_source.export.tables.open_target import open_target
from kts_source.export.task_writer import TaskWriter
from kts_source.export.transforms.dead_letters import DeadLetters
from kts_source.read.read_settings import BatchLimits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.export.job import ExportJob
    from kts_source.options import ScanOptions
    from kts_source.read.task import ScanTask

NEEDED: Final = (TOPIC, PARTITION, OFFSET)
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
        """See `run_export_task`."""
        return run_export_task(self, job)


def run_export_task(task: ExportTask, job: ExportJob) -> TaskReport:
    """Writes the files of one task.

    Raises:
        TieredKafkaError: Bytes that are not what was planned, a transform that fails, a store that
            does not take the files. Files of the failed attempt are removed where that is possible.
    """
    from kts_source.read.run_task import run_task
    from kts_source.read.task_metrics import TaskMetrics, TaskPlace

    started = time.monotonic()
    options = job.options
    read_columns = (*options.columns, *(name for name in NEEDED if name not in options.columns))
    place = TaskPlace(job.settings.export_id, partition=task.number)
    work = TaskMetrics()

    def note(metrics: TaskMetrics) -> None:
        nonlocal work
        work = metrics

    target = open_target(job.place.path, job.place.storage)
    letters = DeadLetters(job)
    writer = TaskWriter(task, job, target, letters)
    reading = _with_columns(options, read_columns)
    try:
        rows = run_task(task.scan, reading, place, batches=_BATCHES, on_end=note)
        with closing(rows) as batches:
            for batch in batches:
                writer.write(batch)
        files = writer.close()
        rejected = letters.close()
    except BaseException:
        writer.abandon()
        letters.abandon()
        raise
    finally:
        target.close()
    return TaskReport(
        number=task.number,
        files=files,
        schema=None if writer.schema is None else encode_schema(writer.schema),
        rows_read=work.rows,
        rejected=letters.rows,
        dead_letters=rejected,
        segment_bytes=task.scan.nominal_bytes,
        requests=work.requests,
        bytes_read=work.bytes,
        retries=work.retries,
        lost=work.lost_ranges,
        seconds=time.monotonic() - started,
        seconds_writing=writer.seconds,
    )


def _with_columns(options: ScanOptions, columns: tuple[str, ...]) -> ScanOptions:
    return dataclasses.replace(options, columns=columns)
