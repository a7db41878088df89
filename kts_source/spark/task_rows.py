"""What a task does in Spark's workers, in a batch or in a stream."""

from __future__ import annotations

import logging
import os
from contextlib import closing
from typing import TYPE_CHECKING

from kts_source.spark.worker_imports import explained_imports
from kts_source.spark.worker_tuning import end_task, garbage_left_alone

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from kts_source.options import ScanOptions
    from kts_source.read.task_metrics import TaskPlace
    from kts_source.spark.data_source_api import InputPartition


def task_rows(
    partition: InputPartition | None, options: ScanOptions, scan: str
) -> Iterator[pa.RecordBatch]:
    """The rows of one task.

    Args:
        partition: Holds the task; Spark makes one of nothing out of an empty list, 4.0 hands over
            `None` itself.
        options: What is read.
        scan: Tells the tasks of one reader from others.

    Raises:
        TieredKafkaError: Bytes that are not what was planned.
    """
    task = None if partition is None else partition.value
    if task is None:
        return
    let_spark_collect_log_lines()
    try:
        with explained_imports(), garbage_left_alone():
            from kts_source.read.run_task import run_task

            rows = run_task(task, options, _place(scan))
            first = next(rows, None)
        with closing(rows):
            if first is not None:
                yield first
                del first
                yield from rows
    finally:
        end_task()


def let_spark_collect_log_lines() -> None:
    """The line of each task is among what Spark collects of workers' logs, where it does
    (`python_worker_logs()`) and nobody has chosen a level: Python's default begins at warnings.
    """
    ours = logging.getLogger("kts_source")
    if "PYSPARK_SPARK_SESSION_UUID" in os.environ and ours.level == logging.NOTSET:
        ours.setLevel(logging.INFO)


def _place(scan: str) -> TaskPlace:
    from pyspark import TaskContext

    from kts_source.read.task_metrics import TaskPlace

    context = TaskContext.get()
    if context is None:
        return TaskPlace(scan)
    return TaskPlace(scan, context.stageId(), context.partitionId(), context.attemptNumber())
