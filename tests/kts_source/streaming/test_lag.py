"""Tests the lag that a stream reports: unread offsets, bytes, and the age of unread records."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from kts_source import metrics
from kts_source.streaming.offsets import TopicPartition
from tests.golden_data import TIER, expected_table
from tests.kts_source.streaming.running import GrowingTier, Running
from tests.kts_source.streaming.test_triggers import Listings

if TYPE_CHECKING:
    from pathlib import Path

ENDS = {"0": 3963, "1": 3671}
"""End offsets of the golden topic `txn`, including undecided transactions."""


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> Listings:
    return Listings(monkeypatch)


def test_lag_before_the_first_batch_is_none() -> None:
    assert Running(TIER, "txn").stream.lag() is None


def test_lag_decreases_to_zero_while_batches_are_read() -> None:
    stream = Running(TIER, "txn", maxOffsetsPerTrigger="1000", isolationLevel="read_uncommitted")
    lags = []
    while stream.batch():
        lag = stream.stream.lag()
        assert lag is not None
        assert json.loads(json.dumps(lag)) == lag
        lags.append(lag)
    unread = [lag["behind"]["offsets"] for lag in lags]
    assert unread == [sum(ENDS.values()) - 1000 * (n + 1) for n in range(7)] + [0]
    sizes = [lag["behind"]["bytes"] for lag in lags]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 0
    stored = sum(path.stat().st_size for path in TIER.rglob("txn-*/*/*.log"))
    assert 0.7 * stored < sizes[0] < stored
    dates = [lag["behind"]["oldestMs"] for lag in lags]
    assert dates[-1] is None
    assert dates[:-1] == sorted(dates[:-1])
    for lag in lags:
        for number, (end, offsets, size, oldest, start) in lag["topics"]["txn"].items():
            assert (start, end) == (0, ENDS[number])
            assert (offsets == 0) == (size == 0) == (oldest is None)


def test_oldest_unread_time_of_lag_is_a_record_timestamp() -> None:
    times = expected_table("codecs", "read_committed")["timestamp"].cast(pa.int64()).to_pylist()
    stream = Running(TIER, "codecs", maxSegmentsPerTrigger="1")
    dates = []
    while stream.batch():
        lag = stream.stream.lag()
        assert lag is not None
        dates.append(lag["behind"]["oldestMs"])
    assert len(dates) > 2
    assert dates.pop() is None
    assert all(min(times) // 1000 <= date <= max(times) // 1000 for date in dates)
    assert dates == sorted(dates)


def test_headroom_of_lag_is_distance_to_log_start(tmp_path: Path) -> None:
    tier = GrowingTier(tmp_path / "tier")
    folder = tier.folder("codecs")
    stems = tier.stems(folder)
    tier.add(folder, stems)
    stream = Running(tier.path, "codecs", maxSegmentsPerTrigger="1")
    starts = [int(stem[:20]) for stem in stems]
    headrooms = []
    for number in range(3):
        assert stream.batch()
        progress = {"sources": [{"latestOffset": stream.stream.lag()}]}
        (lag,) = metrics.stream_lag(progress)
        headrooms.append(lag.partitions[TopicPartition("codecs", 0)].headroom)
        tier.remove(folder, stems[: number + 1])
    assert headrooms == [
        position - log_start for position, log_start in zip(starts[1:4], starts, strict=False)
    ]


def test_lag_sends_no_store_requests(listings: Listings) -> None:
    stream = Running(TIER, "txn", maxSegmentsPerTrigger="1", minListingIntervalMs="10000")
    assert stream.batch()
    assert stream.stream.lag()
    requests = listings.count, listings.read
    for _ in range(100):
        assert stream.stream.lag()
    assert (listings.count, listings.read) == requests


def test_stream_lag_is_read_from_query_progress() -> None:
    stream = Running(TIER, ["txn", "codecs"], maxSegmentsPerTrigger="1")
    assert stream.batch()
    expected = stream.stream.lag()
    assert expected is not None
    progress = {
        "batchId": 3,
        "timestamp": "2026-11-22T10:00:00.000Z",
        "sources": [
            {"description": "other", "latestOffset": json.dumps({"orders": {"0": 1}})},
            {"description": "TieredKafka", "latestOffset": json.dumps(expected)},
        ],
    }
    for query_progress in (progress, json.dumps(progress)):
        (lag,) = metrics.stream_lag(query_progress)
        assert lag.offsets == expected["behind"]["offsets"] > 0
        assert lag.size == expected["behind"]["bytes"]
        assert lag.oldest_ms == expected["behind"]["oldestMs"]
        assert lag.partitions[TopicPartition("txn", 0)].end == expected["topics"]["txn"]["0"][0]


def test_stream_lag_of_progress_without_lag_is_empty() -> None:
    offsets = (None, "{}", "None", "{'orders': {'0': 1}}")  # PySpark 4.1 writes the last two
    assert metrics.stream_lag({"sources": [{"latestOffset": offset} for offset in offsets]}) == ()
