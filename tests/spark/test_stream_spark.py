"""Streams through Spark: all batches together are the batch scan, each row once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from kts_source import register
from tests.golden_data import (
    ISOLATION_LEVELS,
    SPARK_SCHEMA,
    IsolationLevel,
    assert_same_rows,
    expected_table,
    tier_options,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

TOPIC = "txn"


@pytest.fixture(scope="module")
def registered(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


class Sink:
    """Keeps the rows of each batch by its number: what comes again replaces what was there."""

    def __init__(self) -> None:
        self.batches: dict[int, pa.Table] = {}

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.batches[batch] = frame.toArrow().cast(SPARK_SCHEMA)

    def rows(self) -> pa.Table:
        return pa.concat_tables(self.batches.values())


def run(
    spark: SparkSession, options: Mapping[str, str], checkpoint: Path, sink: Sink, **trigger: object
) -> None:
    frame = spark.readStream.format("tiered-kafka").options(**options).load()
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(**trigger or {"availableNow": True}).start()
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()


@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
def test_all_batches_together_are_the_batch_scan(
    registered: SparkSession, tmp_path: Path, isolation_level: IsolationLevel
) -> None:
    options = tier_options(
        TOPIC, isolationLevel=isolation_level, includeHeaders="true", maxSegmentsPerTrigger="4"
    )
    sink = Sink()
    run(registered, options, tmp_path / "checkpoint", sink)
    assert len(sink.batches) > 3
    assert_same_rows(sink.rows(), expected_table(TOPIC, isolation_level))
