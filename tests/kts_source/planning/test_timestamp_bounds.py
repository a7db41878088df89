"""Checks that timestamp bounds select the first offset with an equal or later timestamp."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import kts_source
from kts_source.errors import DataLossError, InvalidOptionError, OffsetOutOfRangeError
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from tests.golden_data import expected_records, expected_table, tier_options
from tests.kts_source.planning.scanning import scan

if TYPE_CHECKING:
    from pathlib import Path

TOPICS = ("timeline", "codecs", "appendtime", "epochs", "trimmed", "evolved")


def read_expected(topic: str) -> list[tuple[int, int]]:
    """Returns offset and timestamp of every tiered record."""
    records = expected_records(topic)
    records = records.filter(records["in_tier"])
    return list(
        zip(records["offset"].to_pylist(), records["timestamp_ms"].to_pylist(), strict=True)
    )


def find_first(rows: list[tuple[int, int]], timestamp_ms: int) -> int | None:
    return next((offset for offset, stamp in rows if stamp >= timestamp_ms), None)


def sample_moments(rows: list[tuple[int, int]]) -> list[int]:
    """Returns timestamps in ms of sampled records, and the milliseconds before and after them."""
    stamps = sorted({stamp for _, stamp in rows if stamp >= 0})
    sampled = stamps[:: max(1, len(stamps) // 7)]
    return sorted(
        {max(0, stamp + delta) for stamp in [*sampled, stamps[-1]] for delta in (-1, 0, 1)}
    )


@pytest.mark.parametrize("topic", TOPICS)
def test_timestamp_bounds_select_first_offset_at_or_after_the_timestamp(topic: str) -> None:
    rows = read_expected(topic)
    end = rows[-1][0] + 1
    for moment in sample_moments(rows):
        first = find_first(rows, moment)
        options = tier_options(
            topic, endingTimestamp=str(moment), isolationLevel="read_uncommitted"
        )
        (partition,) = kts_source.plan(options).partitions
        assert partition.stop == (end if first is None else first)
        options = tier_options(
            topic,
            startingOffsetsByTimestamp=f'{{"{topic}":{{"0":{moment}}}}}',
            startingOffsetsByTimestampStrategy="latest",
            isolationLevel="read_uncommitted",
        )
        (partition,) = kts_source.plan(options).partitions
        assert partition.start == (end if first is None else first)


def test_starting_timestamp_after_last_record_raises_error_unless_strategy_is_latest() -> None:
    options = tier_options("timeline", startingTimestamp=str(1 << 42))
    with pytest.raises(OffsetOutOfRangeError, match="no record in the tier has a timestamp at"):
        kts_source.plan(options)
    options["startingOffsetsByTimestampStrategy"] = "latest"
    assert scan(options).num_rows == 0


def test_timestamp_bounds_include_late_records() -> None:
    rows = read_expected("timeline")
    stamps = sorted(stamp for _, stamp in rows)
    low, high = stamps[len(stamps) // 3], stamps[2 * len(stamps) // 3]
    # Some records are late by days, so timestamps do not ascend with offsets.
    assert any(later < earlier for (_, earlier), (_, later) in itertools.pairwise(rows))
    start, stop = find_first(rows, low), find_first(rows, high)
    assert start is not None
    assert stop is not None
    table = scan(tier_options("timeline", startingTimestamp=str(low), endingTimestamp=str(high)))
    expected = expected_table("timeline", "read_committed")
    offsets = pa.array([start <= o < stop for o in expected["offset"].to_pylist()])
    assert table["offset"].to_pylist() == expected.filter(offsets)["offset"].to_pylist()


def test_starting_timestamps_by_partition_are_applied() -> None:
    bounds = '{"txn":{"0":0,"1":99999999999999}}'
    options = tier_options(
        "txn",
        startingOffsetsByTimestamp=bounds,
        startingOffsetsByTimestampStrategy="latest",
        isolationLevel="read_uncommitted",
    )
    first, second = kts_source.plan(options).partitions
    assert (first.start, second.start) == (0, second.stop)


@pytest.mark.parametrize("side", ["both", "start", "stop"])
def test_timestamp_range_filters_rows(side: str) -> None:
    expected = expected_table("timeline", "read_committed")
    stamps = expected["timestamp"].cast(pa.int64()).to_pylist()  # microseconds
    ordered = sorted(stamp // 1000 for stamp in stamps)
    low, high = ordered[len(ordered) // 3], ordered[2 * len(ordered) // 3]
    text = {"both": f"{low},{high}", "start": f"{low},", "stop": f",{high}"}[side]
    lowest = low if side != "stop" else min(ordered)
    highest = high if side != "start" else max(ordered) + 1
    table = scan(tier_options("timeline", timestampRange=text))
    matching = expected.filter(pa.array([lowest <= stamp // 1000 < highest for stamp in stamps]))
    assert table["offset"].to_pylist() == matching["offset"].to_pylist()
    # Rows must match the timestamp range and the condition of option `where`.
    last = matching["offset"].to_pylist()[-1]
    table = scan(tier_options("timeline", timestampRange=text, where=f"offset < {last}"))
    assert table["offset"].to_pylist() == matching["offset"].to_pylist()[:-1]


@pytest.mark.parametrize("text", ["", ",", "5", "7,5", "a,b"])
def test_invalid_timestamp_range_raises_invalid_option_error(text: str) -> None:
    with pytest.raises(InvalidOptionError, match="timestampRange"):
        kts_source.plan(tier_options("timeline", timestampRange=text))


@pytest.mark.parametrize("extra", [{}, {"maxTimestampAheadMs": "60000"}])
def test_starting_timestamp_in_hole_raises_data_loss_error(
    tmp_path: Path, extra: dict[str, str]
) -> None:
    hour, zero = 3_600_000, 1_700_000_000_000
    builder = LogBuilder()
    for number in range(20):
        builder.append([SimpleRecord(b"x", timestamp=zero + number * hour)] * 10)
        builder.roll()
    writer = AivenTierWriter(tmp_path, topic="t")
    for number, segment in enumerate(builder.build().segments):
        for key in writer.write_segment(segment).keys if number != 15 else ():
            os.utime(tmp_path / key, ((zero + number * hour) / 1000 + 60,) * 2)
    options = {"path": str(tmp_path), "subscribe": "t", "startingTimestamp": str(zero + 15 * hour)}
    with pytest.raises(DataLossError, match=r"\[150, 160\)"):
        kts_source.plan({**options, **extra})
