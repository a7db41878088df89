"""Starts Spark for benchmarks, and defines data sources that yield prebuilt batches as fast as
Spark reads them. Their speed is the upper bound (ceiling) for any source in Python.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from benchmarks.libraries import LibraryWork
from kts_source.read.read_settings import FOR_SPARK
from kts_source.spark.datasource import columns_of, spark_schema
from kts_source.spark.worker import end_task

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql.types import StructType

_KEY_BYTES = 8
_ENDLESS_ROWS = 4096


def batch_rows(value_bytes: int) -> int:
    """Returns the number of rows in a batch of this library, for records with values of
    `value_bytes` bytes.
    """
    return min(FOR_SPARK.rows, FOR_SPARK.size // (_KEY_BYTES + value_bytes))


def start_spark(
    *, cores: int = 2, unix_sockets: bool = False, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Returns a session in local mode without log output.

    Args:
        cores: Number of concurrent tasks.
        unix_sockets: True if workers use Unix domain sockets to the JVM (Spark 4.1+).
        settings: Additional Spark settings.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName("tiered-kafka benchmarks")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.python.unix.domain.socket.enabled", str(unix_sockets).lower())
    )
    for name, text in (settings or {}).items():
        builder = builder.config(name, text)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


class CeilingPartition(InputPartition):
    """Input of one task: its number of rows. If `logs` is not empty, libraries also process these
    files and copy their bytes into the values.
    """

    def __init__(self, rows: int, logs: Sequence[str]) -> None:
        super().__init__((rows, logs))


class CeilingReader(DataSourceReader):
    """Yields a prebuilt batch repeatedly. Its speed is the maximum speed of the transport into the
    JVM.

    Unlike rows that are read from a store, the batch stays in the processor's cache. If the options
    contain `logs`, libraries process these files between two batches and copy their bytes into the
    values; see `LibraryWork`.
    """

    def __init__(self, schema: StructType, options: dict[str, str]) -> None:
        self._columns = columns_of(schema)
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Returns the inputs of the requested number of tasks, each with its number of rows."""
        tasks = int(self._options["tasks"])
        pattern = self._options["logs"].removeprefix("/")
        logs = sorted(map(str, Path("/").glob(pattern))) if pattern else []
        rows = int(self._options["rows"]) // tasks
        return [CeilingPartition(rows, logs[number::tasks]) for number in range(tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the prebuilt batch until the task has returned its rows."""
        rows, logs = partition.value
        value_bytes = int(self._options["valuebytes"])
        values, batch = _values(value_bytes), _prebuilt_batch(tuple(self._columns), value_bytes)
        batch_size = batch.num_rows
        libraries = None
        if logs:
            libraries = LibraryWork(logs, self._options["codec"], self._options["key"])
        done = 0
        while done < rows:
            count = min(rows - done, batch_size)
            done += count
            if libraries is not None:
                libraries.process_until(done / rows, values)
            yield batch if count == batch_size else batch.slice(0, count)
        if libraries is not None:
            end_task()  # Spark's repeated work between tasks is not part of the bound


@functools.cache
def _values(value_bytes: int) -> memoryview:
    return memoryview(bytearray(os.urandom(batch_rows(value_bytes) * value_bytes)))


@functools.cache
def _prebuilt_batch(columns: tuple[str, ...], value_bytes: int) -> pa.RecordBatch:
    count = batch_rows(value_bytes)
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(value_bytes)
    values = [None, pa.py_buffer(ends), pa.py_buffer(_values(value_bytes))]
    offsets = pa.array(range(count), pa.int64())
    arrays = {
        "key": pa.array(
            [number.to_bytes(_KEY_BYTES, "big") for number in range(count)], pa.binary()
        ),
        "value": pa.Array.from_buffers(pa.binary(), count, values),
        "topic": pa.array(["bench"] * count, pa.string()),
        "partition": pa.array([0] * count, pa.int32()),
        "offset": offsets,
        "timestamp": offsets.cast(pa.timestamp("us", tz="UTC")),
        "timestampType": pa.array([0] * count, pa.int32()),
    }
    return pa.RecordBatch.from_arrays([arrays[name] for name in columns], names=list(columns))


class CeilingSource(DataSource):
    """A data source of prebuilt batches."""

    @classmethod
    def name(cls) -> str:
        """Returns the short name of the data source."""
        return "transport-ceiling"

    def schema(self) -> StructType:
        """Returns the requested columns."""
        return spark_schema(self.options["columns"].split(","))

    def reader(self, schema: StructType) -> CeilingReader:
        """Returns a reader of prebuilt batches."""
        return CeilingReader(schema, {name.lower(): text for name, text in self.options.items()})


class EmptyReader(DataSourceReader):
    """A reader with the requested number of tasks, each without rows."""

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks

    def partitions(self) -> Sequence[InputPartition]:
        """Returns the inputs of the tasks."""
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields nothing."""
        return iter(())


class EmptySource(DataSource):
    """A data source whose tasks do nothing, to measure the cost of a Python task."""

    @classmethod
    def name(cls) -> str:
        """Returns the short name of the data source."""
        return "empty-tasks"

    def schema(self) -> StructType:
        """Returns a schema of one column."""
        return spark_schema(("offset",))

    def reader(self, schema: StructType) -> EmptyReader:
        """Returns a reader without rows."""
        return EmptyReader(int(self.options["tasks"]))


class EndlessReader(DataSourceReader):
    """A reader whose tasks return rows until Spark stops them."""

    def partitions(self) -> Sequence[InputPartition]:
        """Returns 800 inputs, the number of tasks of a topic of 100 GiB."""
        return [InputPartition(number) for number in range(800)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields batches of zeros, which are created without functions that import pandas."""
        zeros = pa.py_buffer(bytes(8 * _ENDLESS_ROWS))
        offsets = pa.Array.from_buffers(pa.int64(), _ENDLESS_ROWS, [None, zeros])
        batch = pa.RecordBatch.from_arrays([offsets], names=["offset"])
        while True:
            yield batch


class EndlessSource(DataSource):
    """A data source of prebuilt rows, to measure the cost of a LIMIT in Spark."""

    @classmethod
    def name(cls) -> str:
        """Returns the short name of the data source."""
        return "endless"

    def schema(self) -> StructType:
        """Returns a schema of one column."""
        return spark_schema(("offset",))

    def reader(self, schema: StructType) -> EndlessReader:
        """Returns a reader of zeros."""
        return EndlessReader()
