"""Tests that Spark reads partition values from folder names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from kts_source.export.partitioning import inferred_type
from tests.kts_source.export.tables.test_folder_readers import (
    NUMBERS,
    OTHER_TYPES,
    SPARK_NUMBERS,
    TEXTS,
    export,
)
from tests.quick import only

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("spark")

INFERENCE: Final = "spark.sql.sources.partitionColumnTypeInference.enabled"


def countries(spark: SparkSession, folder: str) -> list[Any]:
    rows = spark.read.parquet(folder).orderBy("offset").select("country").collect()
    return [country for (country,) in rows]


@pytest.mark.slow
def test_spark_reads_text_partition_values_as_strings(spark: SparkSession, tmp_path: Path) -> None:
    for number, text in enumerate(TEXTS[:6]):
        lake = export(tmp_path / str(number), [text])
        assert countries(spark, lake.target) == [text]
    lake = export(tmp_path / "all", [*TEXTS, None])
    assert countries(spark, lake.target) == [*TEXTS, None]


@pytest.mark.parametrize("text", only(1, SPARK_NUMBERS))
def test_partition_text_that_only_spark_infers_as_number_is_refused(
    spark: SparkSession, tmp_path: Path, text: str
) -> None:
    lake = export(tmp_path, [text], text_partitions="as-is")
    assert countries(spark, lake.target) != [text]
    assert inferred_type(text) == "a number"


def test_unescaped_partitions_are_read_if_inference_is_off(
    spark: SparkSession, tmp_path: Path
) -> None:
    texts = [*NUMBERS, *OTHER_TYPES, *TEXTS, None]
    lake = export(tmp_path, texts, text_partitions="as-is")
    spark.conf.set(INFERENCE, "false")
    try:
        assert countries(spark, lake.target) == texts
    finally:
        spark.conf.unset(INFERENCE)


def test_date_partitions_are_read_as_dates(spark: SparkSession, tmp_path: Path) -> None:
    lake = export(tmp_path, ["a"], partition_by=["date(timestamp)"], transform=None)
    assert dict(spark.read.parquet(lake.target).dtypes)["timestamp_date"] == "date"
