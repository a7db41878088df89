"""Tests that offset bounds accept dates, timestamps and durations in addition to milliseconds since
1970.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest

from kts_source.errors import InvalidOptionError
from kts_source.options import check_for_stream, parse_any_options, parse_options
from kts_source.options.selection import TimestampBound, TimestampsBound
from kts_source.options.times import Ago, Clock, Time, parse_time
from kts_source.predicate.model import And, Column, Compare, Op
from tests.golden_data import tier_options

if TYPE_CHECKING:
    from pathlib import Path

    from kts_source.options import OptionValue
    from kts_source.options.selection import Bound

BASE: dict[str, OptionValue] = {"path": "/tier", "subscribe": "orders"}
MIDNIGHT = 1_771_977_600_000
"""2026-02-25 00:00 UTC; `date -ud 2026-02-25 +%s` prints the seconds."""
HOUR = 3_600_000


def start(value: OptionValue, **more: OptionValue) -> Bound:
    return parse_options({**BASE, "startingTimestamp": value, **more}).starting


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1771977600000", MIDNIGHT),
        (" 2026-02-25 ", MIDNIGHT),
        ("2026-02-25T10:00Z", MIDNIGHT + 10 * HOUR),
        ("2026-02-25 10:00", MIDNIGHT + 10 * HOUR),
        ("2026-02-25T10:00:00.5+02:00", MIDNIGHT + 8 * HOUR + 500),
        ("2026-02-25T10:00:00.000001Z", MIDNIGHT + 10 * HOUR + 1),
        ("1970-01-01", 0),
    ],
)
def test_bound_accepts_dates_and_timestamps(text: str, expected: int) -> None:
    assert start(text) == TimestampBound(expected)


def test_timestamp_without_zone_is_in_the_zone_of_the_options() -> None:
    assert start("2026-02-25", timeZone="+02:00") == TimestampBound(MIDNIGHT - 2 * HOUR)
    assert start("2026-02-25T00:00Z", timeZone="+02:00") == TimestampBound(MIDNIGHT)
    naive = datetime(2026, 2, 25)  # the zone is an option
    assert start(naive, timeZone="Asia/Tokyo") == TimestampBound(MIDNIGHT - 9 * HOUR)


@pytest.mark.parametrize(
    ("text", "utc"),
    [("2026-03-29T02:30", "2026-03-29T01:30Z"), ("2026-10-25T02:30", "2026-10-25T00:30Z")],
)
def test_ambiguous_or_skipped_local_time_uses_utc_offset_before_clock_change(
    text: str, utc: str
) -> None:
    assert start(text, timeZone="Europe/Zurich") == start(utc)


@pytest.mark.parametrize(
    ("text", "ago"),
    [("-1h", HOUR), ("-7d", 7 * 24 * HOUR), ("-90s", 90_000), ("-15 min", 900_000), ("-5ms", 5)],
)
def test_duration_counts_back_from_now(text: str, ago: int) -> None:
    before = time.time_ns() // 1_000_000
    bound = start(text)
    after = time.time_ns() // 1_000_000
    assert isinstance(bound, TimestampBound)
    assert before - ago <= bound.timestamp_ms <= after - ago
    assert parse_time("t", text) == Ago(ago)


@pytest.mark.parametrize(
    "text",
    ["1h", "+1h", "now", "2026-2-25", "2026-02-30", "25.02.2026", "2026-02-25T25:00Z",
     "2026-W09-3", "2026-02-25Z", "2026-02-25T10:00 Europe/Zurich", "-1y", "-", "", "1e12"],
)  # fmt: skip
def test_text_that_is_not_a_time_raises_invalid_option_error(text: str) -> None:
    with pytest.raises(InvalidOptionError, match=r"'startingTimestamp'.*such as 2026-02-25"):
        start(text)


@pytest.mark.parametrize("text", ["1969-12-31", "-1", "-40000d"])
def test_bound_before_1970_raises_invalid_option_error(text: str) -> None:
    with pytest.raises(InvalidOptionError, match=r"'startingTimestamp'.*negative"):
        start(text)


def test_times_by_partition_are_resolved_to_milliseconds() -> None:
    clock = Clock(MIDNIGHT, ZoneInfo("Asia/Tokyo"))
    times: dict[str, dict[int, Time]] = {"orders": {0: 5, 1: datetime(2026, 2, 25), 2: Ago(1000)}}
    resolved = {"orders": {0: 5, 1: MIDNIGHT - 9 * HOUR, 2: MIDNIGHT - 1000}}
    assert clock.bound("x", times) == TimestampsBound(resolved)
    parsed = parse_options(
        {**BASE, "endingOffsetsByTimestamp": '{"orders":{"0":5,"1":"2026-02-25","2":"-1h"}}'}
    )
    assert isinstance(parsed.ending, TimestampsBound)
    assert parsed.ending.timestamps_ms["orders"][1] == MIDNIGHT
    assert parsed.durations == {"endingOffsetsByTimestamp"}


@pytest.mark.parametrize("value", ["true", "1.5", "null", "[1]", '"soon"'])
def test_partition_value_that_is_not_a_time_raises_invalid_option_error(value: str) -> None:
    with pytest.raises(InvalidOptionError, match="'startingOffsetsByTimestamp'"):
        parse_options({**BASE, "startingOffsetsByTimestamp": f'{{"orders":{{"0":{value}}}}}'})


def test_timestamp_range_accepts_dates_and_durations() -> None:
    column = Column("timestamp")
    low = Compare(Op.GE, column, MIDNIGHT * 1000)
    high = Compare(Op.LT, column, (MIDNIGHT + 10 * HOUR) * 1000)
    text = "2026-02-25, 2026-02-25T10:00Z"
    assert parse_options({**BASE, "timestampRange": text}).where == And((low, high))
    assert parse_options({**BASE, "timestampRange": "2026-02-25,"}).where == low
    hour = parse_options({**BASE, "timestampRange": "-2h,-1h"})
    assert isinstance(hour.where, And)
    low, high = (term for term in hour.where.terms if isinstance(term, Compare))
    assert int(str(high.right)) - int(str(low.right)) == HOUR * 1000
    assert hour.durations == {"timestampRange"}
    with pytest.raises(InvalidOptionError, match="'timestampRange' has a stop before its start"):
        parse_options({**BASE, "timestampRange": "-1h,-2h"})


def test_stream_accepts_duration_as_start_and_refuses_it_as_filter() -> None:
    check_for_stream(parse_any_options({**BASE, "startingTimestamp": "-1h"}))
    options = parse_any_options({**BASE, "timestampRange": "-1h,"})
    with pytest.raises(InvalidOptionError, match="'timestampRange' has a duration before now"):
        check_for_stream(options)


def test_scan_resolves_a_duration_only_when_the_scan_is_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import kts_source

    scan = kts_source.scan(tier_options("txn", endingTimestamp="-1h"))
    text = repr(scan.task_reader)
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert repr(scan.task_reader) == text
    assert scan.plan.partitions


def test_duration_that_would_change_the_rows_of_an_export_is_refused(tmp_path: Path) -> None:
    import kts_source

    target = str(tmp_path / "table")
    source = tier_options("txn", timestampRange="-1h,")
    with pytest.raises(InvalidOptionError, match=r"'timestampRange'.*the same filter"):
        kts_source.backfill(None, source=source, target=target, progress=False)
    source = tier_options("txn", startingTimestamp="-1h")
    with pytest.raises(InvalidOptionError, match=r"'startingTimestamp'.*after a restart"):
        kts_source.backfill(None, source=source, target=target, follow=True)
    assert not (tmp_path / "table").exists()
