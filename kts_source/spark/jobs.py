"""Runs exports and audits as Spark jobs. An internal data source creates a partition for each task,
and returns a row with the report of each task.

So exports and audits run wherever Spark supports Python data sources: in classic mode, with Spark
Connect, and on clusters. The rows of topics do not pass through the JVM. The settings of the job
include credentials, so they are passed in the pickled data source class. Options of the data source
would be visible in query plans and the Spark UI.

Spark returns only the text of a Python exception. So a task adds a note to its error: the class and
the attributes as one line of JSON, without credentials, like the text of the error itself. Python
prints notes after the message, so Spark transfers it with the traceback. The driver raises the
error of the task with its own class.
"""

from __future__ import annotations

import json
import logging
import pickle
import re
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
from pyspark import cloudpickle

from kts_source import errors
from kts_source.errors import TieredKafkaError
from kts_source.spark.data_source_api import (
    DataSource,
    DataSourceReader,
    InputPartition,
    UnpickledByLoad,
    without_replacement_warning,
)
from kts_source.spark.worker import (
    call,
    end_task,
    explained_imports,
    explained_memory,
    forget_archive_finders,
    load,
    log_to_stderr,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from kts_source.export.progress import Progress


_NOTE: Final = "tiered-kafka error: "
_PATTERN: Final = re.compile(rf"^\s*{_NOTE}(\{{.*\}})\s*$", re.MULTILINE)


@contextmanager
def noted_errors() -> Iterator[None]:
    """Adds the note for the driver to a `TieredKafkaError` that the block raises in a task."""
    try:
        yield
    except TieredKafkaError as error:
        kind = next(cls for cls in type(error).__mro__ if cls.__module__ == errors.__name__)
        attributes = {
            name: value
            for name, value in vars(error).items()
            if isinstance(value, str | int | tuple)
        }
        error.add_note(f"{_NOTE}{json.dumps({'class': kind.__name__, **attributes}, default=str)}")
        raise


@contextmanager
def original_errors() -> Iterator[None]:
    """Replaces an exception of Spark that the block raises by the error of the task.

    Raises:
        TieredKafkaError: A task raised this error. The exception of Spark is its cause.
    """
    try:
        yield
    except Exception as error:
        original = _original(str(error))
        if original is None:
            raise
        raise original from error


def _original(text: str) -> TieredKafkaError | None:
    notes = _PATTERN.findall(text)
    if not notes:
        return None
    # The message may contain texts of a tier, but without line breaks, so they are no note.
    attributes = json.loads(notes[-1])
    kind = getattr(errors, attributes.pop("class"), TieredKafkaError)
    original: TieredKafkaError = kind(attributes["message"])
    vars(original).update(
        {name: tuple(v) if isinstance(v, list) else v for name, v in attributes.items()}
    )
    return original


SCHEMA = "task int, report string"
_POLL_SECONDS: Final = 0.5
_GROUP: Final = "spark.jobGroup.id"
_DESCRIPTION: Final = "spark.job.description"


class Report(Protocol):
    """The result of one task."""

    def to_text(self) -> str:
        """Returns the report as text."""
        ...


class WorkerTask(Protocol):
    """A task that can be pickled. It contains no credentials and no keys."""

    @property
    def number(self) -> int:
        """Number of the task; each task of a run has another number."""
        ...

    def run(self, job: Any) -> Report:  # noqa: ANN401  # what all tasks of a run share
        """Runs one attempt of the task. `job` has the settings that all tasks of a run share."""
        ...


def run_tasks(
    spark: SparkSession, tag: str, tasks: Sequence[WorkerTask], job: object, progress: Progress
) -> Iterator[str]:
    """Runs the tasks in one Spark job, and yields the report of each task as text. Yields the first
    report only after all tasks have ended.

    Args:
        spark: The session.
        tag: Name of the run, which must be unique.
        tasks: The tasks.
        job: Settings that all tasks share, with credentials.
        progress: Receives the number of ended tasks.

    Raises:
        TieredKafkaError: A task failed with this error.
    """
    with tasks_in_spark(spark, tag, export_data_source(tag, tasks, job), progress):
        rows = spark.read.format(tag).load().collect()
    for row in rows:
        yield row["report"]


@contextmanager
def tasks_in_spark(
    spark: SparkSession, tag: str, source: type[DataSource], progress: Progress
) -> Iterator[None]:
    """Registers a data source while the block runs. The format has the name `tag`.

    Raises:
        TieredKafkaError: A task failed with this error.
    """
    with without_replacement_warning(spark):
        spark.dataSource.register(source)
    is_tagged = _add_tag(spark, tag)
    try:
        with _counted_tasks(spark, tag, progress), original_errors():
            yield
    except KeyboardInterrupt:
        if is_tagged:
            spark.interruptTag(tag)
        raise
    finally:
        if is_tagged:
            spark.removeTag(tag)
        # The session keeps the registered class, so replace it by a class without tasks and
        # credentials.
        with without_replacement_warning(spark):
            spark.dataSource.register(export_data_source(tag, (), None))


def _add_tag(spark: SparkSession, tag: str) -> bool:
    """Adds a tag to the jobs of this thread, so that they can be interrupted. Returns False if this
    Spark does not support tags.
    """
    try:
        spark.addTag(tag)
    except (AttributeError, NotImplementedError):
        return False
    return True


@contextmanager
def _counted_tasks(spark: SparkSession, group: str, progress: Progress) -> Iterator[None]:
    """While the `with` block runs, reports to `progress` how many tasks of the newest Spark job in
    the block have ended.

    The jobs get their own job group, which the Spark UI shows. Spark Connect cannot report the
    status of jobs, so `progress` then receives nothing.
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
    """Returns the number of completed tasks in the newest job of a job group."""
    tracker = context.statusTracker()
    newest = max(tracker.getJobIdsForGroup(group), default=None)
    job = None if newest is None else tracker.getJobInfo(newest)
    stages = map(tracker.getStageInfo, () if job is None else job.stageIds)
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)


def restored_reader(module: str, name: str, job: bytes) -> ExportReader:
    """Returns a reader of the class `name` in `module`, with a pickled job and without tasks.

    Raises:
        ModuleNotFoundError: See `load`.
        WorkerMemoryError: See `explained_memory`.
    """
    with noted_errors(), explained_memory(), explained_imports():
        reader: ExportReader = load(module, name)((), pickle.loads(job))
        return reader


class ExportReader(DataSourceReader, metaclass=UnpickledByLoad):
    """A reader whose partitions are tasks. Reading a partition runs its task.

    Spark pickles the reader for every task, so the pickle contains only `job`, not the list of
    tasks.
    """

    def __init__(self, tasks: Sequence[WorkerTask], job: object | None) -> None:
        self._tasks = tuple(tasks)
        self._job = job

    def __reduce__(self) -> tuple[object, ...]:
        # Bytes, so that errors while the worker imports the classes of the job are explained.
        content: bytes = cloudpickle.dumps(self._job)  # type: ignore[no-untyped-call]
        kind = type(self)
        return call, (
            *(__name__, restored_reader.__name__, kind.__module__, kind.__qualname__),
            content,
        )

    def partitions(self) -> Sequence[InputPartition]:
        """Returns one partition for each task. Partitions contain no credentials and no keys."""
        forget_archive_finders()
        return [InputPartition(task) for task in self._tasks]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Runs the task of a partition, and yields one row with its report.

        Raises:
            TieredKafkaError: The task failed.
        """
        # If there are no partitions, Spark creates one without a value; Spark 4.0 passes None.
        task = None if partition is None else partition.value
        if task is None or self._job is None:
            return
        log_to_stderr(logging.WARNING)
        try:
            with noted_errors(), explained_memory(), explained_imports():
                report = task.run(self._job)
        finally:
            end_task()
        yield pa.RecordBatch.from_arrays(
            [pa.array([task.number], pa.int32()), pa.array([report.to_text()], pa.string())],
            names=["task", "report"],
        )


def export_data_source(
    name: str,
    tasks: Sequence[WorkerTask],
    job: object | None,
    reader: type[ExportReader] = ExportReader,
    schema: str | StructType = SCHEMA,
) -> type[DataSource]:
    """Returns a data source class that contains the tasks of a run.

    Args:
        name: Name of the format, unique to the run.
        tasks: Tasks to run. If a class without tasks replaces an earlier class of the same name,
            the session releases the tasks of the earlier class.
        job: Settings that all tasks share; `None` in a class without tasks.
        reader: Class of the reader.
        schema: Columns that the reader returns.
    """
    format_name, columns = name, schema
    module, kind = reader.__module__, reader.__qualname__
    # Pickle tasks and job to bytes, so that a worker first calls `load`, which explains a missing
    # package, before it unpickles objects of the package.
    content: bytes = cloudpickle.dumps((tasks, job))  # type: ignore[no-untyped-call]

    class TieredKafkaExport(DataSource):
        @classmethod
        def name(cls) -> str:
            return format_name

        def schema(self) -> str | StructType:
            # Call `load` here, because Spark then imports pyarrow. On a worker without the
            # packages, `load` explains the error.
            load(module, kind)
            return columns

        def reader(self, schema: StructType) -> DataSourceReader:
            reader: DataSourceReader = load(module, kind)(*pickle.loads(content))
            return reader

    return TieredKafkaExport
