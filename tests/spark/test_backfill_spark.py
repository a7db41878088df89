"""Runs `backfill` in Spark for every format and reads the tables with Spark and other readers."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from kts_source import backfill
from tests.golden_data import TOPICS, assert_same_rows, expected_table, tier_options
from tests.kts_source.export.exporting import FORMATS, Lake, assert_holds
from tests.kts_source.read.typed_tier import as_avro, avro, write

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from kts_source.export.report import BackfillReport

pytestmark = pytest.mark.usefixtures("spark")


def run(
    spark: SparkSession,
    lake: Lake,
    source: dict[str, str],
    **arguments: Any,  # noqa: ANN401
) -> BackfillReport:
    if lake.table_format == "iceberg":
        arguments["catalog"] = {**lake.catalog, "name": "lake"}
    return backfill(
        spark,
        source=source,
        target=lake.target,
        table_format=lake.table_format,
        progress=False,
        **arguments,
    )


@pytest.mark.slow
@pytest.mark.parametrize("table_format", FORMATS)
def test_backfill_exports_every_topic(
    spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    lake = Lake(tmp_path, table_format)
    source = tier_options(TOPICS, includeHeaders="true", targetPartitionBytes="1m")
    report = run(spark, lake, source, partition_by=["topic"])
    assert_holds(lake.read(), TOPICS)
    assert report.rows == sum(expected_table(name, "read_committed").num_rows for name in TOPICS)
    assert run(spark, lake, source, partition_by=["topic"]).rows == 0


@pytest.mark.slow
def test_spark_reads_exported_parquet(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path, "parquet")
    topics = ("txn", "timeline")
    source = tier_options(topics, includeHeaders="true")
    run(spark, lake, source, partition_by=["topic", "date(timestamp)"])
    frame = spark.read.parquet(lake.target)
    assert dict(frame.dtypes)["timestamp_date"] == "date"
    for topic in topics:
        expected = expected_table(topic, "read_committed")
        rows = frame.where(frame.topic == topic).select(*expected.column_names).toArrow()
        assert_same_rows(rows, expected)


def test_each_topic_is_exported_into_its_own_table(spark: SparkSession, tmp_path: Path) -> None:
    topics = ("epochs", "txn")
    report = backfill(
        spark, source=tier_options(topics), target=tmp_path / "{topic}", progress=False
    )
    for topic, table in zip(topics, report.tables, strict=True):
        expected = expected_table(topic, "read_committed").num_rows
        assert table.rows == spark.read.parquet(str(tmp_path / topic)).count() == expected


def test_topics_of_different_formats_are_exported_into_one_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    values: dict[str, list[bytes | None]] = {"clicks": [b'{"id": 7}'], "orders": [avro(3)]}
    for number, (topic, of_topic) in enumerate(values.items(), 1):
        source = write(tmp_path / "tier", [of_topic], topic, uuid.UUID(int=number))
    source["subscribe"] = "clicks,orders"
    own = {"clicks": {"value.format": "json", "value.schema": "id bigint"}, "orders": as_avro()}
    lake = Lake(tmp_path, "parquet")
    assert run(spark, lake, source, topic_options=own).rows == 2
    rows = spark.read.parquet(lake.target).select("topic", "value.id", "value.amount")
    assert sorted(rows.collect()) == [("clicks", 7, None), ("orders", None, 3)]


def test_transform_can_be_a_local_function(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    max_rows = 3

    def first_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.slice(0, max_rows)

    report = run(spark, lake, tier_options("txn"), transform=first_rows)
    assert 0 < report.rows < report.rows_read


def test_backfill_leaves_no_job_in_session(spark: SparkSession, tmp_path: Path) -> None:
    from kts_source.spark.backfill import SparkExecutor

    executor = SparkExecutor(spark)
    lake = Lake(tmp_path, "parquet")
    lake.export(tier_options("txn"), executor=executor)
    assert spark.read.format(executor._tag).load().collect() == []


def test_failing_transform_raises_and_commits_nothing(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path, "parquet")

    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("no such thing")

    with pytest.raises(Exception, match="the transform failed on offsets"):
        run(spark, lake, tier_options("txn"), transform=fail)
    assert not list((tmp_path / "table").rglob("*.parquet"))
    assert not list((tmp_path / "table" / "_kts" / "commits").glob("*.json"))


@pytest.mark.slow
def test_backfill_exports_decoded_values(spark: SparkSession, tmp_path: Path) -> None:
    values: list[bytes | None] = [avro(number) for number in range(30)]
    values[4] = None
    source = write(tmp_path / "tier", [values]) | as_avro()
    lake = Lake(tmp_path, "parquet")
    report = run(spark, lake, source, partition_by=["value.country"])
    assert report.rows == 30
    frame = spark.read.parquet(lake.target)
    assert dict(frame.dtypes)["value_country"] == "string"
    rows = frame.where("value.amount > 20 and value_country = 'DE'").select("offset", "value.note")
    assert sorted(rows.collect()) == [(21, None), (24, "n24"), (27, None)]
    assert frame.where("value is null").select("offset").collect() == [(4,)]
