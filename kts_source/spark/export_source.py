"""An internal data source whose tasks do their work in the workers and yield one row each.

So an export, or an audit, runs wherever Python data sources do: classic mode, Spark Connect,
clusters. Rows do not pass through the JVM. The job holds credentials: it travels inside the pickled
class, never in an option, which plans and the UI show.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any, Protocol

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

    from pyspark.sql.types import StructType


SCHEMA = "task int, report string"


class Report(Protocol):
    """What a task gives."""

    def to_text(self) -> str:
        """As a text."""
        ...


class WorkerTask(Protocol):
    """Anything that workers run: picklable, and free of credentials and keys."""

    @property
    def number(self) -> int:
        """Within the run."""
        ...

    def run(self, job: Any) -> Report:  # noqa: ANN401  # what all tasks of a run share
        """One attempt."""
        ...


class ExportReader(DataSourceReader, metaclass=Travels):
    """Hands out tasks and runs them.

    It travels with every task, so a pickled one carries the job only.
    """

    def __init__(self, tasks: Sequence[WorkerTask], job: object | None) -> None:
        self._tasks = tuple(tasks)
        self._job = job

    def __reduce__(self) -> tuple[object, ...]:
        return ExportReader, ((), self._job)

    def partitions(self) -> Sequence[InputPartition]:
        """One partition per task, free of credentials and keys."""
        forget_finders_of_sparks_archives()
        return [InputPartition(task) for task in self._tasks]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Runs one task, then yields its report.

        Raises:
            TieredKafkaError: What the task raises.
        """
        # Spark makes one partition of nothing out of an empty list; 4.0 hands over None itself.
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
    """A data source class that carries its tasks.

    Args:
        name: The format's name, unique to the run.
        tasks: What it runs; none releases what an earlier class of that name carried.
        job: What all tasks share.
    """
    format_name = name
    # As bytes, so that nothing of this package is unpickled before `load` has found it.
    content: bytes = cloudpickle.dumps((tasks, job))  # type: ignore[no-untyped-call]

    class TieredKafkaExport(DataSource):
        @classmethod
        def name(cls) -> str:
            return format_name

        def schema(self) -> str:
            # Spark imports pyarrow next: a worker that lacks packages must say so here.
            schema: str = load(__name__, "SCHEMA")
            return schema

        def reader(self, schema: StructType) -> DataSourceReader:
            reader: DataSourceReader = load(__name__, "ExportReader")(*pickle.loads(content))
            return reader

    return TieredKafkaExport
