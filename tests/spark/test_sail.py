"""`format("tiered-kafka")` on Sail, which speaks Spark Connect without a JVM; runs where it is
installed (`.ci/engines_env`).
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest

from tests.golden_data import (
    ISOLATION_LEVELS,
    TOPICS,
    IsolationLevel,
    assert_same_rows,
    expected_table,
    tier_options,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(importlib.util.find_spec("pysail") is None, reason="Sail is not installed"),
]


@pytest.fixture(scope="module")
def sail() -> Iterator[SparkSession]:
    from pysail.spark import SparkConnectServer
    from pyspark.sql import SparkSession

    from kts_source.spark.datasource import TieredKafkaDataSource

    server = SparkConnectServer(port=0)
    server.start(background=True)
    _, port = server.listening_address
    session = SparkSession.builder.remote(f"sc://localhost:{port}").getOrCreate()
    session.dataSource.register(TieredKafkaDataSource)
    yield session
    session.stop()
    server.stop()


@pytest.mark.parametrize("level", ISOLATION_LEVELS)
@pytest.mark.parametrize("topic", TOPICS)
def test_rows(sail: SparkSession, topic: str, level: IsolationLevel) -> None:
    options = tier_options(topic, isolationLevel=level, includeHeaders="true")
    frame = sail.read.format("tiered-kafka").options(**options).load()
    expected = expected_table(topic, level)
    assert frame.count() == expected.num_rows
    assert_same_rows(frame.toArrow().cast(expected.schema), expected)


def test_a_schema_of_ones_own_chooses_columns(sail: SparkSession) -> None:
    reader = sail.read.format("tiered-kafka").options(**tier_options("txn", where="offset < 50"))
    found = reader.schema("`offset` bigint, `key` binary").load().toArrow()
    assert found.schema.names == ["offset", "key"]
    assert max(found["offset"].to_pylist()) < 50


def test_sql_and_errors(sail: SparkSession) -> None:
    options = tier_options("txn", targetPartitionBytes="64k")
    sail.read.format("tiered-kafka").options(**options).load().createOrReplaceTempView("txn")
    expected = expected_table("txn", "read_committed")
    rows = sail.sql("select count(*), max(offset) from txn where partition = 1").collect()
    offsets = [
        row["offset"]
        for row in expected.select(["partition", "offset"]).to_pylist()
        if row["partition"] == 1
    ]
    assert [tuple(row) for row in rows] == [(len(offsets), max(offsets))]
    with pytest.raises(Exception, match="did you mean"):
        sail.read.format("tiered-kafka").options(**options, isolationLevl="x").load().count()
