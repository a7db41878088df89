"""Tests that Spark turns the record batches of a Python data source into rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from kts_source import register
from tests.golden_data import tier_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType
ROOT = Path(__file__).resolve().parents[2]


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


_REGISTER_TWICE = """
from kts_source import register
from kts_source.spark.datasource import session_builder
spark = session_builder().master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
for _ in range(2):
    register(spark)
print(spark.read.format("tiered-kafka").options(**{options!r}).load().columns[0])
spark.stop()
"""


@pytest.mark.slow
def test_register_logs_no_warning_about_the_data_source() -> None:
    program = _REGISTER_TWICE.format(options=tier_options("epochs"))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["key"], done.stderr
    assert "WARN" in done.stderr  # warnings of Spark are visible
    assert "DataSourceManager" not in done.stderr
