"""Plans on the driver and reads in tasks: what Spark calls during a batch query."""

from __future__ import annotations

import gc
import logging
import time
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from kts_source.options import ScanOptions
    from kts_source.scan.task import ScanTask

log = logging.getLogger(__name__)

_collected_garbage = False


class TieredKafkaInputPartition(InputPartition):
    """One task: byte ranges and offsets, free of credentials and keys.

    Args:
        task: What to read; `None` stands for Spark's own empty partition.
    """

    def __init__(self, task: ScanTask) -> None:
        super().__init__(task)


class TieredKafkaBatchReader(DataSourceReader):
    """Reads one table of one `load()`.

    It is pickled before `partitions()` runs, so what planning finds travels in the partitions.
    `pushFilters` is left alone on purpose: on Spark 4 it returns wrong rows when two scans share
    one `load()`.
    """

    def __init__(self, options: ScanOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """The plan's tasks.

        Raises:
            TieredKafkaError: What planning refuses.
        """
        from kts_source.scan.planner import plan_scan

        plan = plan_scan(self._options)
        log.info(
            "planned %d tasks over %d partitions, %d bytes of segments",
            len(plan.tasks),
            len(plan.partitions),
            plan.nominal_bytes,
        )
        return [TieredKafkaInputPartition(task) for task in plan.tasks]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The rows of one task.

        Raises:
            TieredKafkaError: Bytes that are not what was planned.
        """
        # Spark makes one partition of nothing out of an empty list; 4.0 hands over None itself.
        task = None if partition is None else partition.value
        if task is None:
            return
        from kts_source.remote.segment_reader import SegmentReader
        from kts_source.remote.tier import open_tier
        from kts_source.scan.execute import ReadSettings, read_task

        _keep_garbage_collector_short()
        options = self._options
        started = time.monotonic()
        store = open_tier(options)
        rows = 0
        try:
            reader = SegmentReader(store, options.key_ring)
            settings = ReadSettings.of(options)
            for batch in read_task(task, reader, settings):
                rows += batch.num_rows
                yield batch
        finally:
            work = store.counters
            store.close()
            log.info(
                "task done: %d rows, %d requests, %d bytes, %d retries, %.3f s",
                rows,
                work.requests,
                work.bytes,
                work.retries,
                time.monotonic() - started,
            )


def _keep_garbage_collector_short() -> None:
    """Once a worker: Spark collects garbage after every task and passes frozen objects over."""
    global _collected_garbage
    if not _collected_garbage:
        gc.collect()
        gc.freeze()
        _collected_garbage = True
