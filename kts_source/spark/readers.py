"""Defines the readers that Spark calls. They plan on the driver, and read rows in the tasks.

The stream reader supports Spark 4.0 to 4.3. Up to Spark 4.1, `latestOffset` has no arguments. Then
the reader assumes that the next batch begins at the end of the batch that it planned last, and it
applies the limits of the options under every trigger.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, NoReturn

from kts_source.errors import TieredKafkaError
from kts_source.spark.data_source_api import (
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    ReadAllAvailable,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    UnpickledByLoad,
)
from kts_source.spark.worker import (
    end_task,
    explained_imports,
    explained_memory,
    forget_archive_finders,
    garbage_collection_paused,
    log_to_stderr,
)
from kts_source.streaming.offsets import INITIAL, position_from_json, position_to_json
from kts_source.texts import some

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from kts_source.options import ScanOptions
    from kts_source.planning.scan_plan import ScanPlan
    from kts_source.read.task_metrics import TaskPlace
    from kts_source.streaming.tier_stream import TierStream


log = logging.getLogger(__name__)

_ANY_ROWS: Final = (1 << 63) - 1


def task_rows(
    partition: InputPartition | None, options: ScanOptions, scan: str
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of the task that `partition` contains. Metrics of the task contain the scan
    id `scan`.
    """
    task = None if partition is None else partition.value
    if task is None:
        return
    let_spark_collect_log_lines()
    log_to_stderr(logging.WARNING)
    try:
        with explained_memory():
            with explained_imports(), garbage_collection_paused():
                from kts_source.read.read_task import run_task

                rows = run_task(task, options, _task_place(scan))
                first = next(rows, None)
            with closing(rows):
                if first is not None:
                    yield first
                    del first
                    yield from rows
    finally:
        end_task()


def let_spark_collect_log_lines() -> None:
    """Sets the log level to INFO if Spark collects the logs of its workers
    (`python_worker_logs()`), so that the metrics of tasks are logged.

    By default, Python logs only warnings and errors.
    """
    ours = logging.getLogger("kts_source")
    if "PYSPARK_SPARK_SESSION_UUID" in os.environ and ours.level == logging.NOTSET:
        ours.setLevel(logging.INFO)


def _task_place(scan: str) -> TaskPlace:
    from pyspark import TaskContext

    from kts_source.read.task_metrics import TaskPlace

    context = TaskContext.get()
    if context is None:
        return TaskPlace(scan)
    return TaskPlace(scan, context.stageId(), context.partitionId(), context.attemptNumber())


def _offsets(plan: ScanPlan) -> str:
    """Returns the offsets that a plan reads, for a log line."""
    return some(
        f"{partition.topic_partition} [{partition.start}, {partition.stop})"
        for partition in plan.partitions
        if partition.start < partition.stop
    )


class TieredKafkaBatchReader(DataSourceReader, metaclass=UnpickledByLoad):
    """Reads the table that one `load()` returned.

    Spark pickles the reader before it calls `partitions()`, so the partitions contain all results
    of planning. The reader does not implement `pushFilters`, because Spark 4 would then return
    wrong rows for a query that scans one `load()` twice.
    """

    def __init__(self, options: ScanOptions) -> None:
        self._options = options
        self._scan = uuid.uuid4().hex

    def partitions(self) -> Sequence[InputPartition]:
        """Plans the scan, and returns one partition for each task. Partitions contain no
        credentials and no keys.

        Raises:
            TieredKafkaError: The scan cannot be planned.
        """
        let_spark_collect_log_lines()
        log_to_stderr(logging.INFO)
        with explained_memory():
            with explained_imports():
                from kts_source.planning.planner import plan_scan

            plan = plan_scan(self._options)
        log.info(
            "scan %s: planned %d tasks over %d partitions, %d bytes of segments: %s",
            self._scan,
            len(plan.tasks),
            len(plan.partitions),
            plan.nominal_bytes,
            _offsets(plan),
        )
        forget_archive_finders()
        return [InputPartition(task) for task in plan.tasks]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yields the rows of the task in a partition."""
        return task_rows(partition, self._options, self._scan)


class RefusedStreamReader(DataSourceStreamReader, metaclass=UnpickledByLoad):
    """Stream reader of a stream that cannot start. Every method that Spark may call first raises
    `error`.
    """

    def __init__(self, error: TieredKafkaError) -> None:
        self._error = error

    def initialOffset(self) -> NoReturn:  # noqa: N802  # Spark's name
        """Raises the error: a new stream starts here."""
        raise self._error

    def latestOffset(self, start: object = None, limit: object = None) -> NoReturn:  # noqa: N802  # Spark's name
        """Raises the error: a restarted stream continues here."""
        raise self._error

    def partitions(self, start: object, end: object) -> NoReturn:
        """Raises the error: a restarted stream first repeats an uncommitted batch."""
        raise self._error

    def read(self, partition: InputPartition | None) -> NoReturn:
        """Raises the error. Spark requires this method."""
        raise self._error


class TieredKafkaStreamReader(
    DataSourceStreamReader, SupportsTriggerAvailableNow, metaclass=UnpickledByLoad
):
    """Reads the stream that one `load()` returned.

    Spark pickles the reader for the tasks before it plans a batch, so the partitions of a batch
    contain all information that its tasks need.
    """

    def __init__(self, options: ScanOptions) -> None:
        self._options = options
        self._scan = uuid.uuid4().hex
        self._opened: TierStream | None = None
        self._last_end: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Returns a constant that means "the start of the stream".

        Spark does not log the start of the first batch, and calls this method again after a
        restart. So a real position could differ between the two calls.
        """
        return position_to_json(INITIAL)

    def latestOffset(  # noqa: N802  # Spark's name
        self, start: dict[str, Any] | None = None, limit: object = None
    ) -> dict[str, Any]:
        """Returns the end position of the next batch. Returns `start` if there is nothing to read.

        Raises:
            TieredKafkaError: The stream cannot continue, and a retry would not help.
        """
        let_spark_collect_log_lines()
        log_to_stderr(logging.INFO)
        if start is None:
            start = self._last_end or self.initialOffset()
        position = position_from_json(start)
        end = self._stream.next(position, limited=not isinstance(limit, ReadAllAvailable))
        # Return the same object, because Spark compares positions as JSON texts.
        return start if end is position else position_to_json(end)

    def getDefaultReadLimit(self) -> Any:  # noqa: N802, ANN401  # Spark's name, and its class where it has one
        """Returns a limit for `latestOffset`: a `ReadMaxRows` if the options limit a batch,
        otherwise `ReadAllAvailable`.

        Only the class of the limit is used, not its number of rows, because the options may contain
        several limits and Spark has no class for a combination.
        """
        stream = self._options.stream
        limits = (stream.max_offsets, stream.max_bytes, stream.max_segments, stream.min_offsets)
        if all(limit is None for limit in limits):
            return ReadAllAvailable()
        return ReadMaxRows(stream.max_offsets or _ANY_ROWS)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  # Spark's name
        """Returns the lag of the stream for progress events, which Spark 4.2 and later request. See
        `metrics.stream_lag`.
        """
        try:
            return self._stream.lag()
        except TieredKafkaError as error:
            # An unknown lag must not end a query.
            log.warning("the lag of the stream cannot be computed: %s", error)
            return None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Fixes the end of the stream at the current end of the tier. The next query reads later
        segments.
        """
        self._stream.fix_end()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Returns the tasks that read the batch between two positions. The tasks for two given
        positions always read the same rows.

        Raises:
            TieredKafkaError: Some of the rows can no longer be read.
        """
        # After a restart, Spark calls this method first, to repeat the last batch.
        let_spark_collect_log_lines()
        log_to_stderr(logging.INFO)
        self._last_end = end
        plan = self._stream.plan(position_from_json(start), position_from_json(end))
        forget_archive_finders()
        if plan is None:
            return []
        offsets = sum(partition.stop - partition.start for partition in plan.partitions)
        log.info(
            "scan %s: micro-batch of %d offsets of %d partitions, %d tasks, %d original bytes: %s;"
            " lag: %s",
            self._scan,
            offsets,
            len(plan.partitions),
            len(plan.tasks),
            plan.nominal_bytes,
            _offsets(plan),
            self._lag_text(),
        )
        return [InputPartition(task) for task in plan.tasks]

    def _lag_text(self) -> str:
        """Returns the lag for a log line. It is unknown while Spark repeats the batch of an earlier
        run, because the ends of the logs are requested only for the next batch.
        """
        lag = (self.reportLatestOffset() or {}).get("behind")
        return "unknown until the next batch" if lag is None else json.dumps(lag)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yields the rows of the task in a partition."""
        return task_rows(partition, self._options, self._scan)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Does nothing, because Spark calls it one batch late, and not at all for the last batch of
        a query.
        """

    def stop(self) -> None:
        """Closes the store. Spark calls this method only after an error."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @property
    def _stream(self) -> TierStream:
        if self._opened is None:
            with explained_memory(), explained_imports():
                from kts_source.streaming.tier_stream import TierStream

            self._opened = TierStream(self._options)
        return self._opened
