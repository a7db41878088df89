"""Ends that contradict the start, or that the tier cannot decide yet."""

from __future__ import annotations

import json
import logging

import pytest

from kts_source.errors import InvalidOptionError, OffsetOutOfRangeError
from kts_source.options import parse_options
from kts_source.scan.planner import plan_scan
from tests.golden_data import partition_summaries, tier_options

TXN = partition_summaries("txn")


def ends(topic: str, **by_partition: int) -> str:
    return json.dumps({topic: {name[1:]: at for name, at in by_partition.items()}})


@pytest.mark.parametrize(
    "options",
    [
        {"startingTimestamp": "1772600000000", "endingTimestamp": "0"},
        {"startingTimestamp": "1772600000000", "endingOffsets": ends("timeline", p0=1)},
        {"startingOffsets": ends("timeline", p0=2), "endingOffsets": ends("timeline", p0=1)},
        {"startingOffsets": ends("timeline", p0=2), "endingTimestamp": "0"},
    ],
)
def test_a_range_that_ends_before_it_begins_is_a_mistake(options: dict[str, str]) -> None:
    given = tier_options("timeline", startingOffsetsByTimestampStrategy="latest", **options)
    with pytest.raises(InvalidOptionError, match="lies above the ending offset"):
        plan_scan(parse_options(given))


def test_an_explicit_end_above_an_open_transaction_names_it() -> None:
    asked = TXN[0]["tier_end_offset"]
    options = tier_options("txn", endingOffsets=ends("txn", p0=asked, p1=-1))
    with pytest.raises(
        OffsetOutOfRangeError,
        match=f"txn-0: endingOffsets asks for offset {asked}.*producer 6 since offset 3675",
    ):
        plan_scan(parse_options(options))
    uncommitted = plan_scan(parse_options({**options, "isolationLevel": "read_uncommitted"}))
    assert uncommitted.partitions[0].stop == asked


@pytest.mark.parametrize(
    "options",
    [
        {"endingOffsets": ends("txn", p0=TXN[0]["tier_end_offset"], p1=-1)}
        | {"failOnDataLoss": "false"},
        {"endingOffsets": ends("txn", p0=-1, p1=-1)},
        {"endingOffsets": "latest"},
        {"endingTimestamp": "4000000000000"},
    ],
)
def test_an_end_that_is_where_it_can_be_is_reported(
    options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "kts_source")
    plan = plan_scan(parse_options(tier_options("txn", **options)))
    assert plan.partitions[0].stop == TXN[0]["tier_last_stable_offset"]
    assert "txn-0: read_committed ends at offset 3675: open transaction" in caplog.text
