"""Tests that a streaming query reads old data from one named source and continues with a source of
another name.

Users continue with Spark's Kafka source. The test instead continues with a second stream of this
data source, which reads another tier.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kts_source import register
from kts_source.streaming import end_offsets
from tests.golden_data import assert_same_rows, expected_table, tier_options
from tests.kts_source.streaming.running import GrowingTier
from tests.spark.stream_sink import Sink

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SECONDS = 300
SETTINGS = {
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    "spark.sql.streaming.offsetLog.formatVersion": "2",
}


@pytest.fixture
def evolving(spark: SparkSession) -> Iterator[SparkSession]:
    if spark.version.startswith(("4.0.", "4.1.")):
        pytest.skip("sources have no names before Spark 4.2")
    register(spark)
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    yield spark
    for name in SETTINGS:
        spark.conf.unset(name)


def test_query_continues_with_a_source_of_another_name(
    evolving: SparkSession, tmp_path: Path
) -> None:
    old, new = GrowingTier(tmp_path / "old"), GrowingTier(tmp_path / "new")
    first, second = (old.folder("txn", number) for number in (0, 1))
    stems = old.stems(first)
    old.add(first, stems[:4])
    new.add(first, stems[:6])
    sink, checkpoint = Sink(), str(tmp_path / "checkpoint")

    def stream(name: str, tier: GrowingTier, **more: str) -> DataFrame:
        options = tier_options("txn", includeHeaders="true", minListingIntervalMs="0", **more)
        reader = evolving.readStream.format("tiered-kafka").name(name)
        return reader.options(**{**options, "path": tier.path.as_uri()}).load()

    def run(frame: DataFrame) -> None:
        writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(SECONDS)

    run(stream("tier", old))
    starting = end_offsets(checkpoint, source="tier")
    assert 0 < json.loads(starting)["txn"]["0"] <= int(stems[4][:20])
    live = stream("live", new, startingOffsets=starting)
    run(live)
    new.add(first, stems)
    new.add(second, new.stems(second))
    run(live)
    assert json.loads(end_offsets(checkpoint, source="live")).keys() == {"txn"}
    assert_same_rows(sink.rows(), expected_table("txn", "read_committed"))
