"""Tests that the batches of a stream together return the same rows as a scan."""

from __future__ import annotations

import pytest

from tests.golden_data import (
    ISOLATION_LEVELS,
    TIER,
    IsolationLevel,
    assert_same_rows,
    expected_table,
)
from tests.kts_source.streaming.running import Running


@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
@pytest.mark.parametrize(
    "limit",
    [
        {},
        {"maxOffsetsPerTrigger": "777"},
        {"maxSegmentsPerTrigger": "1"},
        {"maxBytesPerTrigger": "40k"},
    ],
)
@pytest.mark.parametrize("topic", ["txn", "compacted", "encrypted", "crashed", "trimmed", "epochs"])
def test_stream_returns_the_rows_of_a_scan(
    topic: str, limit: dict[str, str], isolation_level: IsolationLevel
) -> None:
    stream = Running(TIER, topic, isolationLevel=isolation_level, **limit)
    count = stream.all()
    assert count > 1 if limit else count == 1
    assert_same_rows(stream.rows(), expected_table(topic, isolation_level))
