"""A real broker's disk after a crash is read as a broker serves it that starts on it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from kts_source import describe
from kts_source.errors import DataLossError
from tests.kts_source.planning.scanning import scan

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "kafka-logs"
GIVEN = {
    "path": str(GOLDEN / "disk"),
    "layout": "kafka-logs",
    "subscribe": "orders,latest",
    "endOfLog": "true",
}
SERVED = json.loads((GOLDEN / "served.json").read_text())


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("target", ["1g", "9000"])
def test_rows_are_those_that_the_broker_serves(level: str, target: str) -> None:
    options = {"isolationLevel": level, "targetPartitionBytes": target, "failOnDataLoss": "false"}
    names = ("topic", "partition", "offset", "timestamp", "key", "value")
    rows = [
        [
            *(row["topic"], row["partition"], row["offset"]),
            int(row["timestamp"].timestamp() * 1000 + 0.5),
            None if row["key"] is None else row["key"].decode(),
            None if row["value"] is None else hashlib.sha256(row["value"]).hexdigest()[:16],
        ]
        for row in scan({**GIVEN, **options, "columns": ",".join(names)}).to_pylist()
    ]
    assert sorted(rows, key=lambda row: row[:3]) == SERVED[level]


def test_log_starts_and_ends_are_those_of_the_broker() -> None:
    told = describe({**GIVEN, "isolationLevel": "read_committed"}).partitions
    found = []
    for one in told:
        end = min([one.tier_end, *(start for start, _ in one.holes)])
        stable = min(one.last_stable_offset, end)
        found.append([one.topic, one.partition, one.log_start, stable, end])
    assert sorted(found) == sorted(SERVED["partitions"])


def test_what_the_high_watermark_promised_is_missed() -> None:
    with pytest.raises(DataLossError, match=r"orders-\d.*position \d+"):
        scan(GIVEN)
