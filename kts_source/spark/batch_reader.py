"""Plans on the driver and reads in tasks: what Spark calls during a batch query."""

from __future__ import annotations

import logging
import os
import uuid
from contextlib import closing
from typing import TYPE_CHECKING

from kts_source.spark.data_source_api import DataSourceReader, InputPartition, Travels
from kts_source.spark.worker_imports import explained_imports
from kts_source.spark.worker_tuning import (
    end_task,
    forget_finders_of_sparks_archives,
    garbage_left_alone,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from kts_source.options import ScanOptions
    from kts_source.read.task_metrics import TaskPlace

log = logging.getLogger(__name__)


class TieredKafkaBatchReader(DataSourceReader, metaclass=Travels):
    """Reads one table of one `load()`.

    It is pickled before `partitions()` runs, so what planning finds travels in the partitions.
    `pushFilters` is left alone on purpose: on Spark 4 it returns wrong rows when two scans share
    one `load()`.
    """

    def __init__(self, options: ScanOptions) -> None:
        self._options = options
        # Travels to all tasks: the reader is pickled before it plans.
        self._scan = uuid.uuid4().hex

    def partitions(self) -> Sequence[InputPartition]:
        """The plan's tasks: byte ranges and offsets, free of credentials and keys.

        Raises:
            TieredKafkaError: What planning refuses.
        """
        _let_spark_collect_log_lines()
        with explained_imports():
            from kts_source.planning.planner import plan_scan

        plan = plan_scan(self._options)
        log.info(
            "planned %d tasks over %d partitions, %d bytes of segments",
            len(plan.tasks),
            len(plan.partitions),
            plan.nominal_bytes,
        )
        forget_finders_of_sparks_archives()
        return [InputPartition(task) for task in plan.tasks]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The rows of one task.

        Raises:
            TieredKafkaError: Bytes that are not what was planned.
        """
        # Spark makes one partition of nothing out of an empty list; 4.0 hands over None itself.
        task = None if partition is None else partition.value
        if task is None:
            return
        _let_spark_collect_log_lines()
        try:
            with explained_imports(), garbage_left_alone():
                from kts_source.read.run_task import run_task

                rows = run_task(task, self._options, _place(self._scan))
                first = next(rows, None)
            with closing(rows):
                if first is not None:
                    yield first
                    del first
                    yield from rows
        finally:
            end_task()


def _let_spark_collect_log_lines() -> None:
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
