"""Chooses and plans micro-batches beside the driver and reads them in tasks: what Spark calls
during a streaming query.

One class for Spark 4.0 to 4.3. Up to 4.1 `latestOffset` has no arguments: there the next batch
begins where the last one ended whose partitions Spark asked for, and the limits of the options hold
under every trigger.

What a task does in Spark's workers, in a batch or in a stream.

Plans on the driver and reads in tasks: what Spark calls during a batch query.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from kts_source.errors import TieredKafkaError
from kts_source.spark.data_source_api import (
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    ReadAllAvailable,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    Travels,
)
from kts_source.spark.shared_process import few_batches, with_small_tasks
from kts_source.spark.worker import (
    end_task,
    explained_imports,
    forget_finders_of_sparks_archives,
    garbage_left_alone,
)
from kts_source.streaming.offsets import INITIAL, position_from_json, position_to_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from kts_source.options import ScanOptions
    from kts_source.read.task_metrics import TaskPlace
    from kts_source.streaming.tier_stream import TierStream


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
            from kts_source.read.read_task import run_task

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


_ANY_ROWS: Final = (1 << 63) - 1


class TieredKafkaStreamReader(
    DataSourceStreamReader, SupportsTriggerAvailableNow, metaclass=Travels
):
    """Reads one stream of one `load()`.

    A second one is pickled for the tasks before anything is planned, so what a batch needs travels
    in its partitions.
    """

    def __init__(self, options: ScanOptions) -> None:
        self._options = options
        self._scan = uuid.uuid4().hex
        self._opened: TierStream | None = None
        self._last_end: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """A constant: Spark does not log where the first batch begins, and asks again."""
        return position_to_json(INITIAL)

    def latestOffset(  # noqa: N802  # Spark's name
        self, start: dict[str, Any] | None = None, limit: object = None
    ) -> dict[str, Any]:
        """Where the next batch ends; `start` itself when there is nothing to read.

        Raises:
            TieredKafkaError: What cannot be mended by waiting.
        """
        let_spark_collect_log_lines()
        if start is None:
            start = self._last_end or self.initialOffset()
        position = position_from_json(start)
        end = self._stream.next(position, limited=not isinstance(limit, ReadAllAvailable))
        # Spark compares texts.
        return start if end is position else position_to_json(end)

    def getDefaultReadLimit(self) -> Any:  # noqa: N802, ANN401  # Spark's name, and its class where it has one
        """A token that says that the limits of the options hold, where there are any: Spark has no
        class for all of them together.
        """
        stream = self._options.stream
        limits = (stream.max_offsets, stream.max_bytes, stream.max_segments, stream.min_offsets)
        if all(limit is None for limit in limits):
            return ReadAllAvailable()
        return ReadMaxRows(stream.max_offsets or _ANY_ROWS)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  # Spark's name
        """How far the query is behind, for its progress events; see `metrics.stream_lag`. Spark 4.2
        began to ask.
        """
        try:
            return self._stream.lag()
        except TieredKafkaError as error:
            # Figures for people must not end a query.
            log.warning("no figures of how far the stream is behind: %s", error)
            return None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """What is tiered from now on is left to the next query."""
        self._stream.fix_end()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of the batch between two positions, the same rows at every call.

        Raises:
            TieredKafkaError: They cannot be read any more.
        """
        self._last_end = end
        plan = self._stream.plan(position_from_json(start), position_from_json(end))
        forget_finders_of_sparks_archives()
        if plan is None:
            return []
        offsets = sum(part.stop - part.start for part in plan.partitions)
        log.info(
            "micro-batch of %d offsets of %d partitions, %d tasks, %d original bytes; behind: %s",
            offsets,
            len(plan.partitions),
            len(plan.tasks),
            plan.nominal_bytes,
            json.dumps((self.reportLatestOffset() or {}).get("behind")),
        )
        return [InputPartition(task) for task in plan.tasks]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The rows of one task.

        Raises:
            TieredKafkaError: Bytes that are not what was planned.
        """
        return task_rows(partition, self._options, self._scan)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Nothing: it comes a batch late, and never for a query's last one."""

    def stop(self) -> None:
        """Lets the store go; Spark calls it after an exception only."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @property
    def _stream(self) -> TierStream:
        if self._opened is None:
            with explained_imports():
                from kts_source.streaming.tier_stream import TierStream

            self._opened = TierStream(self._options)
        return self._opened
