"""Checks that a scan of a crashed broker's disk returns the same rows as the restarted broker."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from kts_source import describe
from kts_source.errors import DataLossError
from tests.kts_source.planning.scanning import scan

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "kafka-logs"
OPTIONS = {
    "path": str(GOLDEN / "disk"),
    "layout": "kafka-logs",
    "subscribe": "orders,latest",
    "endOfLog": "true",
}
SERVED = json.loads((GOLDEN / "served.json").read_text())


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("target", ["1g", "9000"])
def test_scan_returns_rows_that_broker_served_after_restart(level: str, target: str) -> None:
    options = {"isolationLevel": level, "targetPartitionBytes": target, "failOnDataLoss": "false"}
    names = ("topic", "partition", "offset", "timestamp", "key", "value")
    rows = [
        [
            *(row["topic"], row["partition"], row["offset"]),
            int(row["timestamp"].timestamp() * 1000 + 0.5),
            None if row["key"] is None else row["key"].decode(),
            None if row["value"] is None else hashlib.sha256(row["value"]).hexdigest()[:16],
        ]
        for row in scan({**OPTIONS, **options, "columns": ",".join(names)}).to_pylist()
    ]
    assert sorted(rows, key=lambda row: row[:3]) == SERVED[level]


def test_describe_reports_log_start_and_end_offsets_of_broker() -> None:
    partitions = describe({**OPTIONS, "isolationLevel": "read_committed"}).partitions
    bounds = []
    for partition in partitions:
        end = min([partition.tier_end, *(start for start, _ in partition.holes)])
        stable = min(partition.last_stable_offset, end)
        bounds.append([partition.topic, partition.partition, partition.log_start, stable, end])
    assert sorted(bounds) == sorted(SERVED["partitions"])


def test_log_shorter_than_high_watermark_raises_data_loss_error() -> None:
    with pytest.raises(DataLossError, match=r"orders-\d.*position \d+"):
        scan(OPTIONS)
