"""Plans on the driver and reads in tasks: what Spark calls during a batch query."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING

from kts_source.spark.data_source_api import DataSourceReader, InputPartition, Travels
from kts_source.spark.shared_process import few_batches, with_small_tasks
from kts_source.spark.task_rows import let_spark_collect_log_lines, task_rows
from kts_source.spark.worker_imports import explained_imports
from kts_source.spark.worker_tuning import forget_finders_of_sparks_archives

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from kts_source.options import ScanOptions

log = logging.getLogger(__name__)


class TieredKafkaBatchReader(DataSourceReader, metaclass=Travels):
    """Reads one table of one `load()`.

    It is pickled before `partitions()` runs, so what planning finds travels in the partitions.
    `pushFilters` is left alone on purpose: on Spark 4 it returns wrong rows when two scans share
    one `load()`. On Sail it does not: `sail_reader`.

    Args:
        options: What is read.
        shares_process: Whether tasks run in threads of the engine's own process.
    """

    def __init__(self, options: ScanOptions, *, shares_process: bool = False) -> None:
        self._options = with_small_tasks(options) if shares_process else options
        self._shares_process = shares_process
        # Travels to all tasks: the reader is pickled before it plans.
        self._scan = uuid.uuid4().hex

    def partitions(self) -> Sequence[InputPartition]:
        """The plan's tasks: byte ranges and offsets, free of credentials and keys.

        Raises:
            TieredKafkaError: What planning refuses.
        """
        let_spark_collect_log_lines()
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
        if self._shares_process and partition is not None and partition.value is not None:
            return few_batches(partition.value, self._options)
        return task_rows(partition, self._options, self._scan)
