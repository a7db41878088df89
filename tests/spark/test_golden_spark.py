"""Reads golden topics in Spark: both isolation levels, one or many tasks, folder and S3."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kts_source import register
from tests.golden_data import (
    ISOLATION_LEVELS,
    TIER,
    TOPICS,
    IsolationLevel,
    assert_same_rows,
    expected_table,
    tier_options,
)
from tests.quick import only

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tests.s3 import S3Server


@pytest.fixture(scope="module")
def registered(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def load(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    return spark.read.format("tiered-kafka").options(**options).load()


def rows(frame: DataFrame) -> pa.Table:
    return frame.toArrow()


@pytest.mark.parametrize("isolation_level", only(1, ISOLATION_LEVELS))
@pytest.mark.parametrize("topic", only(4, TOPICS))
def test_scan_of_topic_returns_expected_rows(
    registered: SparkSession, topic: str, isolation_level: IsolationLevel
) -> None:
    options = tier_options(topic, isolationLevel=isolation_level, includeHeaders="true")
    frame = load(registered, options)
    assert_same_rows(rows(frame), expected_table(topic, isolation_level))


@pytest.mark.parametrize(
    "topic",
    ["txn", *(pytest.param(name, marks=pytest.mark.slow) for name in ("codecs", "evolved"))],
)
def test_scan_in_many_tasks_returns_expected_rows(registered: SparkSession, topic: str) -> None:
    frame = load(registered, tier_options(topic, targetPartitionBytes="60k", includeHeaders="true"))
    assert frame.rdd.getNumPartitions() > 4
    assert_same_rows(rows(frame), expected_table(topic, "read_committed"))


@pytest.mark.slow
def test_scan_of_s3_tier_returns_expected_rows(
    registered: SparkSession, s3_server: S3Server
) -> None:
    bucket = s3_server.upload(TIER)
    options = {
        **tier_options(TOPICS, includeHeaders="true"),
        "path": f"s3://{bucket}",
        **s3_server.options,
    }
    frame = load(registered, options).cache()
    for topic in TOPICS:
        topic_rows = rows(frame.where(frame.topic == topic))
        assert_same_rows(topic_rows, expected_table(topic, "read_committed"))
    frame.unpersist()


def test_user_schema_selects_columns(registered: SparkSession) -> None:
    frame = (
        registered.read.format("tiered-kafka")
        .options(**tier_options("txn"))
        .schema("offset bigint, value binary, partition int")
        .load()
    )
    assert frame.columns == ["offset", "value", "partition"]
    assert_same_rows(rows(frame), expected_table("txn", "read_committed"))


def test_spark_schema_of_scan_with_headers_is_as_documented(registered: SparkSession) -> None:
    frame = load(registered, tier_options("codecs", includeHeaders="true"))
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )


def test_view_in_sql_returns_expected_rows(registered: SparkSession) -> None:
    options = ", ".join(f"`{name}` '{text}'" for name, text in tier_options("txn").items())
    registered.sql(f"CREATE OR REPLACE TEMPORARY VIEW txn USING `tiered-kafka` OPTIONS ({options})")
    (row,) = registered.sql(
        "SELECT count(*) AS n, max(`offset`) AS last FROM txn WHERE partition = 0"
    ).collect()
    expected = expected_table("txn", "read_committed")
    offsets = [
        offset
        for offset, partition in zip(
            expected["offset"].to_pylist(), expected["partition"].to_pylist(), strict=True
        )
        if partition == 0
    ]
    assert (row.n, row.last) == (len(offsets), max(offsets))


def test_union_of_two_scans_returns_rows_of_both(registered: SparkSession) -> None:
    frame = load(registered, tier_options("codecs"))
    high, low = frame.where("`offset` >= 20000"), frame.where("`offset` < 5")
    assert high.union(low).count() == 23962 - 20000 + 5
    assert frame.count() == 23962


def test_empty_plan_returns_no_rows(registered: SparkSession) -> None:
    options = tier_options(
        "codecs",
        startingOffsets='{"codecs":{"0":10}}',
        endingOffsets='{"codecs":{"0":10}}',
    )
    assert load(registered, options).count() == 0


def test_limit_ends_the_scan_early(registered: SparkSession) -> None:
    frame = load(registered, tier_options("codecs"))
    assert len(frame.limit(10).collect()) == 10
    assert frame.count() == 23962
