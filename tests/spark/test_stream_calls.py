"""Calls a stream reader in the order in which Spark calls it, without a JVM.

Before version 4.2, Spark calls `latestOffset()` before `initialOffset()`, and after a restart it
calls `partitions(X, X)`.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSourceStreamReader

from kts_source.errors import StoreUnavailableError
from kts_source.spark import data_source_api
from kts_source.spark.data_source_api import ReadAllAvailable
from kts_source.spark.datasource import TieredKafkaDataSource
from kts_source.spark.readers import TieredKafkaStreamReader
from kts_source.streaming.tier_stream import TierStream
from tests.golden_data import SPARK_SCHEMA, assert_same_rows, expected_table, tier_options
from tests.kts_source.streaming.running import GrowingTier

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

try:
    from pyspark.sql.streaming import datasource as sparks_own
except ImportError:
    sparks_own = None  # type: ignore[assignment]

SPARKS = ["newer", "older"] if sparks_own is not None else ["older"]
"""Spark APIs to test. A newer Spark also has the API of older versions."""


class Query:
    """Simulates a Spark driver, which logs offsets as text and reads with a pickled reader."""

    def __init__(self, options: Mapping[str, str], *, is_older: bool) -> None:
        self.options = {"includeHeaders": "true", "minListingIntervalMs": "0", **options}
        self.is_older = is_older
        self.log: list[str] = []
        self.batches: list[pa.Table] = []

    def start(self, *, available_now: bool = False) -> None:
        source = TieredKafkaDataSource(self.options)
        schema = source.schema()
        reader = source.streamReader(schema)
        assert isinstance(reader, TieredKafkaStreamReader)
        self.reader = reader
        # Tasks use their own reader, which is pickled before planning.
        self.pickled = cloudpickle.dumps(source.streamReader(schema))  # type: ignore[no-untyped-call]
        self.limit: Any = None
        if not self.is_older:
            if available_now:
                self.reader.prepareForTriggerAvailableNow()
            self.limit = self.reader.getDefaultReadLimit()
        if self.log:
            start = self.log[-2] if len(self.log) > 1 else self.initial()
            if len(self.batches) < len(self.log):
                self.read(start, self.log[-1])
            elif self.is_older:
                self.reader.partitions(*map(json.loads, (self.log[-1], self.log[-1])))

    def initial(self) -> str:
        return json.dumps(self.reader.initialOffset())

    def choose(self) -> bool:
        """Logs the next end offset; returns False if it equals the last logged offset."""
        start = self.log[-1] if self.log else self.initial()
        if self.is_older:
            end = json.dumps(self.reader.latestOffset())
            assert end == json.dumps(self.reader.latestOffset()), "the second call must be the same"
        else:
            end = json.dumps(self.reader.latestOffset(json.loads(start), self.limit))
        if self.log and end == self.log[-1]:
            return False
        self.log.append(end)
        return True

    def batch(self) -> bool:
        if not self.choose():
            return False
        start = self.log[-2] if len(self.log) > 1 else self.initial()
        self.read(start, self.log[-1])
        self.reader.commit(json.loads(start))
        return True

    def read(self, start: str, end: str) -> None:
        partitions = self.reader.partitions(json.loads(start), json.loads(end))
        reader = cloudpickle.loads(self.pickled)
        # Without partitions, Spark runs one task with None.
        sent: list[Any] = [cloudpickle.dumps(partition) for partition in partitions] or [None]  # type: ignore[no-untyped-call]
        received = (None if data is None else cloudpickle.loads(data) for data in sent)
        batches = [batch for partition in received for batch in reader.read(partition)]
        self.batches.append(pa.Table.from_batches(batches, SPARK_SCHEMA))

    def all(self) -> int:
        count = 0
        while self.batch():
            count += 1
            assert count < 100
        return count

    def rows(self) -> pa.Table:
        return pa.concat_tables(self.batches)


@pytest.mark.parametrize("spark", SPARKS)
def test_restarted_query_returns_each_row_once(tmp_path: Path, spark: str) -> None:
    tier = GrowingTier(tmp_path / "tier")
    first, second = tier.folder("txn", 0), tier.folder("txn", 1)
    stems = tier.stems(first)
    tier.add(first, stems[:5])
    options = {**tier_options("txn", maxSegmentsPerTrigger="2"), "path": tier.path.as_uri()}
    query = Query(options, is_older=spark == "older")
    query.start()
    assert query.batch()
    assert query.choose()
    query.start()  # killed before the batch was read
    query.all()
    query.start()  # stopped after all rows were read
    assert query.all() == 0
    tier.add(first, stems)
    tier.add(second, tier.stems(second))
    assert query.all() > 3
    assert_same_rows(query.rows(), expected_table("txn", "read_committed"))


@pytest.mark.parametrize("spark", SPARKS)
def test_restarted_query_continues_if_committed_rows_have_expired(
    tmp_path: Path, spark: str
) -> None:
    """After a restart, Spark first plans the last committed batch again, whose rows have expired in
    this test.
    """
    tier = GrowingTier(tmp_path / "tier")
    folder = tier.folder("txn", 0)
    stems = tier.stems(folder)
    tier.add(folder, stems[:3])
    options = {**tier_options("txn"), "path": tier.path.as_uri()}
    query = Query(options, is_older=spark == "older")
    query.start()
    assert query.all() == 1
    committed = query.rows().num_rows
    tier.remove(folder, stems[:1])
    query.start()
    end = json.loads(query.log[-1])
    assert query.reader.partitions(end, end) == []
    tier.add(folder, stems[3:])
    assert query.all()
    offsets = query.rows()["offset"].to_pylist()
    assert len(set(offsets)) == len(offsets) > committed > 0


@pytest.mark.skipif(sparks_own is None, reason="this Spark has no AvailableNow for sources")
def test_query_with_available_now_applies_limits_and_ends(tmp_path: Path) -> None:
    tier = GrowingTier(tmp_path / "tier")
    folder = tier.folder("txn", 0)
    stems = tier.stems(folder)
    tier.add(folder, stems[:4])
    options = {**tier_options("txn", maxSegmentsPerTrigger="1"), "path": tier.path.as_uri()}
    query = Query(options, is_older=False)
    query.start(available_now=True)
    assert query.batch()
    tier.add(folder, stems)
    assert query.all() < 4
    assert query.rows()["offset"].to_numpy().max() < int(stems[4][:20])
    query.start()
    query.limit = ReadAllAvailable()
    assert query.all() == 1, "a single batch, regardless of the limits"


def test_each_batch_logs_a_line(caplog: pytest.LogCaptureFixture) -> None:
    query = Query(tier_options("txn", maxOffsetsPerTrigger="3000"), is_older=True)
    query.start()
    with caplog.at_level(logging.INFO, "kts_source.spark.readers"):
        assert query.all() == 3
    messages = [record.getMessage() for record in caplog.records if record.name.endswith("readers")]
    pattern = r"^scan [0-9a-f]{32}: micro-batch of (\d+) offsets .*; lag: (.*)$"
    logged = re.findall(pattern, "\n".join(messages), re.M)
    offsets = [int(count) for count, _ in logged]
    assert offsets[:2] == [3000, 3000]
    lags = [json.loads(text)["offsets"] for _, text in logged]
    assert lags == [sum(offsets[1:]), offsets[2], 0]


def test_reader_implements_interfaces_of_spark() -> None:
    reader = TieredKafkaDataSource(tier_options("txn")).streamReader(
        TieredKafkaDataSource(tier_options("txn")).schema()
    )
    assert isinstance(reader, DataSourceStreamReader)
    # Spark passes start and limit if the method has any parameter; older versions pass neither.
    parameters = inspect.signature(reader.latestOffset).parameters.values()
    assert [parameter.default for parameter in parameters] == [None, None]
    if sparks_own is not None:
        assert isinstance(reader, sparks_own.SupportsTriggerAvailableNow)
        assert data_source_api.ReadMaxRows is sparks_own.ReadMaxRows
        assert isinstance(reader.getDefaultReadLimit(), sparks_own.ReadAllAvailable)
    limited = TieredKafkaDataSource(tier_options("txn", maxBytesPerTrigger="1g"))
    limit = limited.streamReader(limited.schema()).getDefaultReadLimit()
    assert not isinstance(limit, ReadAllAvailable)
    waiting = TieredKafkaDataSource(tier_options("txn", minOffsetsPerTrigger="9"))
    limit = waiting.streamReader(waiting.schema()).getDefaultReadLimit()
    assert not isinstance(limit, ReadAllAvailable)


def test_latest_offset_without_new_rows_returns_start() -> None:
    query = Query(tier_options("txn"), is_older=False)
    query.start()
    start = {"txn": {"1": 3671, "0": 3675}}  # written by Spark's Kafka source
    assert query.reader.latestOffset(start, ReadAllAvailable()) is start


def test_query_continues_if_lag_is_unavailable(caplog: pytest.LogCaptureFixture) -> None:
    query = Query(tier_options("txn"), is_older=True)
    query.start()
    unavailable = mock.patch.object(
        TierStream, "lag", side_effect=StoreUnavailableError("no answer")
    )
    with unavailable:
        assert query.all() == 1
        assert query.reader.reportLatestOffset() is None
    assert "no answer" in caplog.text


def test_offset_log_contains_no_secret() -> None:
    secret = {"s3.access-key-id": "id", "s3.secret-access-key": "do-not-show"}
    options = tier_options("encrypted", **secret)
    query = Query(options, is_older=True)
    query.start()
    query.all()
    assert "do-not-show" not in "".join(query.log)
    assert "PRIVATE KEY" not in "".join(query.log)
