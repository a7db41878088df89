"""Tests that Spark turns the record batches of a Python data source into rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from kts_source import register
from tests.golden_data import tier_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class _TenRowsReader(DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(start) for start in (0, 5)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        start: int = partition.value
        yield pa.record_batch([pa.array(range(start, start + 5), pa.int64())], names=["offset"])


class _TenRows(DataSource):
    @classmethod
    def name(cls) -> str:
        return "ten-rows"

    def schema(self) -> str:
        return "offset bigint"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _TenRowsReader()


def test_python_data_source_returns_its_rows(spark: SparkSession) -> None:
    spark.dataSource.register(_TenRows)
    offsets = [row["offset"] for row in spark.read.format("ten-rows").load().collect()]
    assert sorted(offsets) == list(range(10))


def test_register_can_be_called_twice(spark: SparkSession) -> None:
    for _ in range(2):
        register(spark)
    frame = spark.read.format("tiered-kafka").options(**tier_options("epochs")).load()
    assert frame.columns[0] == "key"
