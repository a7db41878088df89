"""A Spark for benchmarks, and the transport ceiling: prebuilt batches handed to it as fast as it
goes.
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
    """Rows of a batch as our own source makes it of such records."""
    return min(FOR_SPARK.rows, FOR_SPARK.size // (_KEY_BYTES + value_bytes))


def start_spark(
    *, cores: int = 2, unix_sockets: bool = False, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A quiet session in local mode.

    Args:
        cores: How many tasks run at a time.
        unix_sockets: Whether workers talk to the JVM through Unix domain sockets (Spark 4.1+).
        settings: More Spark settings.
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
    """How many rows one task yields, and the logs whose bytes become their values, if any do."""

    def __init__(self, rows: int, logs: Sequence[str]) -> None:
        super().__init__((rows, logs))


class CeilingReader(DataSourceReader):
    """Yields prebuilt batches over and over: what the way into the JVM gives at best. One batch
    stays in the processor's cache, which rows that were ever read do not.

    With a pattern of logs, libraries go through them meanwhile and copy them into the values: see
    `LibraryWork`.
    """

    def __init__(self, schema: StructType, options: dict[str, str]) -> None:
        self._columns = columns_of(schema)
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """As many tasks of as many rows as the options say."""
        tasks = int(self._options["tasks"])
        pattern = self._options["logs"].removeprefix("/")
        logs = sorted(map(str, Path("/").glob(pattern))) if pattern else []
        rows = int(self._options["rows"]) // tasks
        return [CeilingPartition(rows, logs[number::tasks]) for number in range(tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Batches that are there already, repeated."""
        rows, logs = partition.value
        value_bytes = int(self._options["valuebytes"])
        values, batch = _values(value_bytes), _prebuilt(tuple(self._columns), value_bytes)
        most = batch.num_rows
        libraries = None
        if logs:
            libraries = LibraryWork(logs, self._options["codec"], self._options["key"])
        done = 0
        while done < rows:
            count = min(rows - done, most)
            done += count
            if libraries is not None:
                libraries.go_on(done / rows, values)
            yield batch if count == most else batch.slice(0, count)
        if libraries is not None:
            end_task()  # what Spark repeats between tasks is not theirs either


@functools.cache
def _values(value_bytes: int) -> memoryview:
    return memoryview(bytearray(os.urandom(batch_rows(value_bytes) * value_bytes)))


@functools.cache
def _prebuilt(columns: tuple[str, ...], value_bytes: int) -> pa.RecordBatch:
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
    """A data source that does no work of its own."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "transport-ceiling"

    def schema(self) -> StructType:
        """The columns asked for."""
        return spark_schema(self.options["columns"].split(","))

    def reader(self, schema: StructType) -> CeilingReader:
        """A reader of prebuilt batches."""
        return CeilingReader(schema, {name.lower(): text for name, text in self.options.items()})


class EmptyReader(DataSourceReader):
    """As many tasks as asked for, none of which does anything."""

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks."""
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Nothing."""
        return iter(())


class EmptySource(DataSource):
    """What a Python task costs that has nothing to do."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "empty-tasks"

    def schema(self) -> StructType:
        """One column."""
        return spark_schema(("offset",))

    def reader(self, schema: StructType) -> EmptyReader:
        """A reader of nothing."""
        return EmptyReader(int(self.options["tasks"]))


class EndlessReader(DataSourceReader):
    """One task after the other that never runs out of rows."""

    def partitions(self) -> Sequence[InputPartition]:
        """As many tasks as a topic of 100 GiB has."""
        return [InputPartition(number) for number in range(800)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Zeros, made without what brings in pandas."""
        zeros = pa.py_buffer(bytes(8 * _ENDLESS_ROWS))
        offsets = pa.Array.from_buffers(pa.int64(), _ENDLESS_ROWS, [None, zeros])
        batch = pa.RecordBatch.from_arrays([offsets], names=["offset"])
        while True:
            yield batch


class EndlessSource(DataSource):
    """What a LIMIT over a Python data source costs that has its rows at hand."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "endless"

    def schema(self) -> StructType:
        """One column."""
        return spark_schema(("offset",))

    def reader(self, schema: StructType) -> EndlessReader:
        """A reader of zeros."""
        return EndlessReader()
