"""Tests that all batches of a stream in Spark together equal a batch scan."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from kts_source import metrics, register, run_available_now
from kts_source.streaming import end_offsets
from tests.golden_data import (
    IsolationLevel,
    assert_same_rows,
    expected_table,
    tier_options,
)
from tests.kts_source.streaming.running import GrowingTier
from tests.spark.stream_sink import Sink

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

pytestmark = pytest.mark.timeout(600)

SECONDS = 300
OLD = ("4.0.", "4.1.")
"""Prefixes of Spark versions that have no limits per trigger."""


@pytest.fixture(scope="module")
def registered(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


def writer(
    spark: SparkSession, options: Mapping[str, str], checkpoint: Path, sink: Sink
) -> DataStreamWriter:
    all_options = {"includeHeaders": "true", "minListingIntervalMs": "0", **options}
    frame = spark.readStream.format("tiered-kafka").options(**all_options).load()
    return frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))


@contextmanager
def started(writer: DataStreamWriter) -> Iterator[StreamingQuery]:
    query = writer.start()
    try:
        yield query
    finally:
        query.stop()


def run_once(writer: DataStreamWriter) -> None:
    with started(writer.trigger(once=True)) as query:
        assert query.awaitTermination(SECONDS)


@pytest.mark.parametrize(
    "isolation_level",
    ["read_committed", pytest.param("read_uncommitted", marks=pytest.mark.slow)],
)
def test_stream_writes_rows_of_batch_scan(
    registered: SparkSession, checkpoint: Path, isolation_level: IsolationLevel
) -> None:
    options = tier_options(
        "txn", isolationLevel=isolation_level, includeHeaders="true", maxSegmentsPerTrigger="6"
    )
    sink = Sink()

    def sink_writer(frame: DataFrame) -> DataStreamWriter:
        return frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))

    run_available_now(registered, options, sink_writer)
    assert len(sink.batches) == 4, "21 segments"
    assert_same_rows(sink.rows(), expected_table("txn", isolation_level))
    run_available_now(registered, options, sink_writer)
    assert len(sink.batches) == 4, "no new rows"
    ends = json.loads(end_offsets(str(checkpoint)))
    if isolation_level == "read_uncommitted":
        assert ends == {"txn": {"0": 3963, "1": 3671}}
    last = json.loads((checkpoint / "offsets" / "3").read_text().splitlines()[2])
    assert ends["txn"] == last["topics"]["txn"]["p"]


@pytest.mark.slow
def test_batch_scan_continues_at_end_offsets_of_stream(
    registered: SparkSession, tmp_path: Path, checkpoint: Path
) -> None:
    tier, sink = GrowingTier(tmp_path / "tier"), Sink()
    options = {**tier_options("txn", includeHeaders="true"), "path": tier.path.as_uri()}
    folders = [tier.folder("txn", number) for number in (0, 1)]
    tier.add(folders[0], tier.stems(folders[0])[:4])
    with started(writer(registered, options, checkpoint, sink)) as query:
        query.processAllAvailable()
    for folder in folders:
        tier.add(folder, tier.stems(folder))
    starting = end_offsets(str(checkpoint), partitions={"txn": 2})
    assert json.loads(starting)["txn"]["1"] == -2
    batch = registered.read.format("tiered-kafka").options(**options, startingOffsets=starting)
    together = pa.concat_tables([sink.rows(), batch.load().toArrow()])
    assert_same_rows(together, expected_table("txn", "read_committed"))


@pytest.mark.slow
def test_restarted_stream_continues_while_tier_grows(
    registered: SparkSession, tmp_path: Path, checkpoint: Path
) -> None:
    tier = GrowingTier(tmp_path / "tier")
    options = {**tier_options("txn", maxOffsetsPerTrigger="1500"), "path": tier.path.as_uri()}
    sink = Sink()
    first, second = tier.folder("txn", 0), tier.folder("txn", 1)
    tier.add(first, tier.stems(first)[:4])
    with started(writer(registered, options, checkpoint, sink)) as query:
        query.processAllAvailable()
        tier.add(first, tier.stems(first)[:6])
        query.processAllAvailable()
    tier.add(first, tier.stems(first))
    tier.add(second, tier.stems(second))
    last = max(sink.batches)
    (checkpoint / "commits" / str(last)).unlink()  # killed before the batch was committed
    (checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)
    before = sink.batches.pop(last)
    with started(writer(registered, options, checkpoint, sink)) as query:
        query.processAllAvailable()
    assert_same_rows(sink.batches[last], before)
    assert_same_rows(sink.rows(), expected_table("txn", "read_committed"))


@pytest.mark.slow
def test_trigger_once_reads_all_rows(registered: SparkSession, checkpoint: Path) -> None:
    options = tier_options("txn", maxSegmentsPerTrigger="6")
    sink = Sink()
    run_once(writer(registered, options, checkpoint, sink))
    assert len(sink.batches) == 1
    if registered.version.startswith(OLD):
        options = tier_options("txn")
        run_once(writer(registered, options, checkpoint, sink))
    assert_same_rows(sink.rows(), expected_table("txn", "read_committed"))


@pytest.mark.slow
def test_stream_with_interval_and_user_schema_counts_rows(
    registered: SparkSession, checkpoint: Path
) -> None:
    frame = (
        registered.readStream.format("tiered-kafka")
        .options(**tier_options("codecs"))
        .schema("offset bigint, partition int")
        .load()
    )
    counts: dict[int, int] = {}
    sink = frame.writeStream.foreachBatch(lambda rows, batch: counts.update({batch: rows.count()}))
    with started(
        sink.option("checkpointLocation", str(checkpoint)).trigger(processingTime="1 second")
    ) as query:
        query.processAllAvailable()
        progress = query.lastProgress
    assert counts == {0: 23962}
    assert progress is not None
    assert json.loads(end_offsets(str(checkpoint))) == {"codecs": {"0": 23962}}
    lags = [lag.offsets for lag in metrics.stream_lag(progress)]
    assert lags == ([] if registered.version.startswith(OLD) else [0])


@pytest.mark.slow
def test_checkpoint_of_later_version_raises_error(
    registered: SparkSession, checkpoint: Path
) -> None:
    options = tier_options("wide")
    sink = Sink()
    run_once(writer(registered, options, checkpoint, sink))
    log = checkpoint / "offsets" / "0"
    log.write_text(log.read_text().replace('{"v":1,', '{"v":2,').replace('{"v": 1,', '{"v": 2,'))
    (checkpoint / "offsets" / ".0.crc").unlink(missing_ok=True)
    with (
        pytest.raises(
            Exception, match="version 2, and this release of tiered-kafka reads version 1"
        ),
        started(writer(registered, options, checkpoint, sink)) as query,
    ):
        query.processAllAvailable()


def test_invalid_option_raises_at_load(registered: SparkSession) -> None:
    invalid_options = tier_options("txn", maxOffsetsPerTrigger="-1")
    with pytest.raises(Exception, match="must be positive"):
        registered.readStream.format("tiered-kafka").options(**invalid_options).load()


@pytest.mark.slow
def test_batch_only_option_raises_at_start_of_stream(
    registered: SparkSession, tmp_path: Path
) -> None:
    invalid_options = tier_options("txn", endingOffsets="latest")
    stream_writer = writer(registered, invalid_options, tmp_path, Sink())
    with (
        pytest.raises(Exception, match="not valid in a stream") as caught,
        started(stream_writer) as query,
    ):
        query.processAllAvailable()
    assert "UnboundLocalError" not in str(caught.value)
