"""Tests the schema of the table in Spark, all topics in one scan, one or many tasks, and the
layouts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kts_source import register
from tests.golden_data import (
    LOCAL_TIER,
    SPARK_SCHEMA,
    TOPICS,
    IsolationLevel,
    assert_same_rows,
    expected_table,
    tier_options,
    topic_summary,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HEADERS = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
KAFKA_SOURCE_SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)


@pytest.fixture
def tiered(spark: SparkSession) -> SparkSession:
    """Registers the data source."""
    register(spark)
    return spark


def load(spark: SparkSession, topics: str, **options: str) -> DataFrame:
    return spark.read.format("tiered-kafka").options(**tier_options(topics, **options)).load()


def expected_of_all(level: IsolationLevel) -> pa.Table:
    return pa.concat_tables([expected_table(topic, level) for topic in TOPICS])


@pytest.mark.parametrize(
    ("level", "limits"),
    [
        pytest.param(
            "read_committed",
            {"targetPartitionBytes": "1g", "maxSegmentsPerTask": "1000"},
            id="one-task",
        ),
        pytest.param(
            "read_uncommitted",
            {"targetPartitionBytes": "200k", "maxSegmentsPerTask": "3"},
            id="many-tasks",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_scan_of_all_topics_returns_expected_rows(
    tiered: SparkSession, level: IsolationLevel, limits: dict[str, str]
) -> None:
    frame = load(tiered, ",".join(TOPICS), isolationLevel=level, includeHeaders="true", **limits)
    table = frame.toArrow()
    if limits["targetPartitionBytes"] == "1g":
        assert frame.rdd.getNumPartitions() == 1
    else:
        assert frame.rdd.getNumPartitions() > 50
    assert table.column_names == SPARK_SCHEMA.names
    for topic in TOPICS:
        topic_rows = table.filter(pc.field("topic") == topic)
        assert_same_rows(topic_rows, expected_table(topic, level))
    assert table.num_rows == expected_of_all(level).num_rows


def test_topic_id_selects_incarnation(tiered: SparkSession) -> None:
    for name, incarnation in (("recreated", 0), ("recreated-previous", 1)):
        topic_id = topic_summary("recreated", incarnation)["topicId"]
        rows = load(tiered, "recreated", topicId=topic_id, includeHeaders="true").toArrow()
        assert_same_rows(rows, expected_table(name, "read_committed"))


def test_schema_matches_spark_kafka_source(tiered: SparkSession) -> None:
    assert load(tiered, "codecs").schema == KAFKA_SOURCE_SCHEMA
    with_headers = load(tiered, "codecs", includeHeaders="true").schema
    assert with_headers == StructType(
        [*KAFKA_SOURCE_SCHEMA, StructField("headers", ArrayType(HEADERS))]
    )


@pytest.mark.parametrize(
    "columns", [("offset", "value"), ("partition", "offset", "timestamp"), ("offset", "headers")]
)
def test_scan_with_narrower_schema_returns_values_of_its_columns(
    tiered: SparkSession, columns: tuple[str, ...]
) -> None:
    expected = expected_table("codecs", "read_committed")
    by_option = load(tiered, "codecs", columns=",".join(columns))
    assert by_option.columns == list(columns)
    assert_same_rows(by_option.toArrow(), expected)
    schema = StructType(
        [field for name in columns for field in by_option.schema if field.name == name]
    )
    by_schema = (
        tiered.read.format("tiered-kafka").schema(schema).options(**tier_options("codecs")).load()
    )
    assert_same_rows(by_schema.toArrow(), expected)


def test_count_does_not_depend_on_selected_columns(tiered: SparkSession) -> None:
    frame = load(tiered, "txn", isolationLevel="read_uncommitted")
    expected = expected_table("txn", "read_uncommitted").num_rows
    assert frame.count() == expected
    assert frame.select("topic").distinct().count() == 1
    assert (
        load(tiered, "txn", columns="topic,partition", isolationLevel="read_uncommitted").count()
        == expected
    )


def test_layout_of_local_tiered_storage_returns_expected_rows(tiered: SparkSession) -> None:
    roots = [
        path
        for path in LOCAL_TIER.rglob("*")
        if path.is_dir() and path.name == "kafka-tiered-storage"
    ]
    root = roots[0] if roots else LOCAL_TIER / "tier"
    table = (
        tiered.read.format("tiered-kafka")
        .options(path=root.as_uri(), layout="local-tiered-storage", subscribe="codecs,txn")
        .option("includeHeaders", "true")
        .load()
        .toArrow()
    )
    for topic in ("codecs", "txn"):
        expected = expected_table(topic, "read_committed", folder=LOCAL_TIER / "expected")
        assert_same_rows(table.filter(pc.field("topic") == topic), expected)


def test_missing_encryption_key_raises_error_that_names_its_id(tiered: SparkSession) -> None:
    options = {
        name: value for name, value in tier_options("encrypted").items() if "encryption" not in name
    }
    with pytest.raises(PySparkException, match="key1"):
        tiered.read.format("tiered-kafka").options(**options).load().count()


def test_explain_shows_no_secrets(tiered: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    secret = "do-not-show-this-secret"
    frame = load(tiered, "txn", storageOptions=f'{{"secret": "{secret}"}}')
    frame.explain(extended=True)
    shown = capsys.readouterr().out
    assert "tiered-kafka" in shown
    assert secret not in shown
    assert "PRIVATE KEY" not in shown
