"""Runs exports and audits as Spark jobs, through an internal data source with a row for each task.

So they run in all modes that support Python data sources: classic mode, Spark Connect, clusters.
Rows of topics do not pass through the JVM. The job has credentials, so it is part of the pickled
class. Options would be visible in plans and the UI.
"""

from __future__ import annotations

import pickle
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
from pyspark import cloudpickle

from kts_source.spark.data_source_api import (
    DataSource,
    DataSourceReader,
    InputPartition,
    Travels,
)
from kts_source.spark.worker import (
    end_task,
    explained_imports,
    forget_finders_of_sparks_archives,
    load,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from kts_source.export.progress import Progress

SCHEMA = "task int, report string"
_POLL_SECONDS: Final = 0.5
_GROUP: Final = "spark.jobGroup.id"
_DESCRIPTION: Final = "spark.job.description"


class Report(Protocol):
    """The result of a task."""

    def to_text(self) -> str:
        """Serializes the report."""
        ...


class WorkerTask(Protocol):
    """A picklable task without credentials and keys."""

    @property
    def number(self) -> int:
        """Number within the run."""
        ...

    def run(self, job: Any) -> Report:  # noqa: ANN401  # what all tasks of a run share
        """Runs one attempt."""
        ...


def run_tasks(
    spark: SparkSession, tag: str, tasks: Sequence[WorkerTask], job: object, progress: Progress
) -> Iterator[str]:
    """Yields the reports of all tasks as texts after all have ended."""
    spark.dataSource.register(export_data_source(tag, tasks, job))
    is_tagged = _add_tag(spark, tag)
    try:
        with _counted_tasks(spark, tag, progress):
            rows = spark.read.format(tag).load().collect()
    except KeyboardInterrupt:
        if is_tagged:
            spark.interruptTag(tag)
        raise
    finally:
        if is_tagged:
            spark.removeTag(tag)
        # The session keeps the class, so replace it by one without tasks and credentials.
        spark.dataSource.register(export_data_source(tag, (), None))
    for row in rows:
        yield row["report"]


def _add_tag(spark: SparkSession, tag: str) -> bool:
    """Tags the jobs of this thread, so that they can be interrupted, if Spark supports it."""
    try:
        spark.addTag(tag)
    except (AttributeError, NotImplementedError):
        return False
    return True


@contextmanager
def _counted_tasks(spark: SparkSession, group: str, progress: Progress) -> Iterator[None]:
    """Reports to `progress` how many tasks of the jobs in the block have ended.

    The jobs get their own job group, which the UI shows. Spark Connect has no status tracker, so
    nothing is reported there.
    """
    try:
        context = spark.sparkContext
    except Exception:  # noqa: BLE001  # Spark Connect; each version raises another error
        yield
        return
    before = {name: context.getLocalProperty(name) for name in (_GROUP, _DESCRIPTION)}
    context.setLocalProperty(_GROUP, group)
    context.setLocalProperty(_DESCRIPTION, "tiered-kafka export")
    over = threading.Event()

    def poll() -> None:
        while not over.wait(_POLL_SECONDS):
            progress.ahead(_completed_tasks(context, group))

    watcher = threading.Thread(target=poll, name="kts-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        for name, text in before.items():
            context.setLocalProperty(name, text)  # type: ignore[arg-type]  # None clears it


def _completed_tasks(context: SparkContext, group: str) -> int:
    """Returns the number of completed tasks of the group's newest job."""
    tracker = context.statusTracker()
    newest = max(tracker.getJobIdsForGroup(group), default=None)
    job = None if newest is None else tracker.getJobInfo(newest)
    stages = map(tracker.getStageInfo, () if job is None else job.stageIds)
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)


class ExportReader(DataSourceReader, metaclass=Travels):
    """Returns tasks as partitions and runs them.

    It is pickled for every task, so its pickle has only the job, not the tasks.
    """

    def __init__(self, tasks: Sequence[WorkerTask], job: object | None) -> None:
        self._tasks = tuple(tasks)
        self._job = job

    def __reduce__(self) -> tuple[object, ...]:
        return ExportReader, ((), self._job)

    def partitions(self) -> Sequence[InputPartition]:
        """Returns one partition per task, without credentials and keys."""
        forget_finders_of_sparks_archives()
        return [InputPartition(task) for task in self._tasks]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Runs one task and yields its report.

        Raises:
            TieredKafkaError: Raised by the task.
        """
        # For an empty list Spark creates one partition without a value; 4.0 passes None.
        task = None if partition is None else partition.value
        if task is None or self._job is None:
            return
        try:
            with explained_imports():
                report = task.run(self._job)
        finally:
            end_task()
        yield pa.RecordBatch.from_arrays(
            [pa.array([task.number], pa.int32()), pa.array([report.to_text()], pa.string())],
            names=["task", "report"],
        )


def export_data_source(
    name: str, tasks: Sequence[WorkerTask], job: object | None
) -> type[DataSource]:
    """Returns a data source class that carries its tasks.

    Args:
        name: The format's name, unique to the run.
        tasks: Tasks to run; an empty list releases the tasks of an earlier class of that name.
        job: Shared by all tasks.
    """
    format_name = name
    # As bytes, so that `load` finds the package before anything of it is unpickled.
    content: bytes = cloudpickle.dumps((tasks, job))  # type: ignore[no-untyped-call]

    class TieredKafkaExport(DataSource):
        @classmethod
        def name(cls) -> str:
            return format_name

        def schema(self) -> str:
            # Spark imports pyarrow next; a worker without the packages must fail clearly here.
            schema: str = load(__name__, "SCHEMA")
            return schema

        def reader(self, schema: StructType) -> DataSourceReader:
            reader: DataSourceReader = load(__name__, "ExportReader")(*pickle.loads(content))
            return reader

    return TieredKafkaExport
