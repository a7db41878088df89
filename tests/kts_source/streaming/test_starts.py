"""Tests the start offsets of a new stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pytest

import kts_source
from kts_source.errors import InvalidOptionError
from kts_source.options import scan_options
from kts_source.options.times import Clock
from tests.golden_data import (
    TIER,
    IsolationLevel,
    assert_same_rows,
    expected_table,
    tier_options,
)
from tests.kts_source.streaming.running import GrowingTier, Running

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tier(tmp_path: Path) -> GrowingTier:
    return GrowingTier(tmp_path / "tier")


def test_latest_starting_offsets_are_fixed_when_first_batch_is_chosen(tier: GrowingTier) -> None:
    folder = tier.folder("txn")
    stems = tier.stems(folder)
    tier.add(folder, stems[:5])
    stream = Running(tier.path, "txn", startingOffsets="latest", isolationLevel="read_uncommitted")
    assert stream.choose()
    tier.add(folder, stems)
    stream.start()  # restarted before the first batch was read
    assert stream.rows().num_rows == 0
    stream.all()
    assert stream.rows()["offset"].to_numpy().min() >= int(stems[5][:20])
    assert stream.last["topics"]["txn"]["p"]["0"] == 3963


@pytest.mark.parametrize(
    ("starting", "first"),
    [('{"txn":{"0":500,"1":-2}}', 500), ('{"txn":{"0":-2,"1":-1}}', 0)],
)
def test_starting_offsets_in_json_are_used_for_each_partition(starting: str, first: int) -> None:
    stream = Running(TIER, "txn", startingOffsets=starting, isolationLevel="read_uncommitted")
    stream.all()
    begins = stream.position(0)["from"]["txn"]["p"]
    assert begins == {"0": first, "1": 3671 if "-1" in starting else 0}


def test_partition_that_starting_offsets_omit_begins_at_earliest() -> None:
    stream = Running(TIER, "txn", startingOffsets='{"txn":{"0":5}}')
    stream.all()
    assert stream.position(0)["from"]["txn"]["p"] == {"0": 5, "1": 0}


def test_starting_offsets_of_unknown_partition_raise_invalid_option_error() -> None:
    stream = Running(TIER, "txn", startingOffsets='{"txn":{"0":5,"2":5}}')
    with pytest.raises(InvalidOptionError, match="not read: txn-2"):
        stream.batch()


def test_duration_is_resolved_when_first_batch_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    level: IsolationLevel = "read_uncommitted"
    middle = sorted(expected_table("txn", level)["timestamp"].to_pylist())[2000]
    middle_ms = int(middle.timestamp() * 1000)

    def set_now(now_ms: int) -> None:
        monkeypatch.setattr(scan_options, "Clock", lambda _now, zone: Clock(now_ms, zone))

    set_now(middle_ms + 3_600_000)
    stream = Running(TIER, "txn", startingTimestamp="-1h", isolationLevel=level)
    assert stream.choose()
    set_now(middle_ms + 10**12)  # no record is as late as an hour before
    stream.start()
    stream.all()
    options = tier_options("txn", isolationLevel=level, startingTimestamp=str(middle_ms))
    starts = {str(each.partition): each.start for each in kts_source.plan(options).partitions}
    assert stream.position(0)["from"]["txn"]["p"] == starts
    assert 0 < stream.rows().num_rows < expected_table("txn", level).num_rows


def test_stream_that_starts_after_the_tier_waits_for_it(tier: GrowingTier) -> None:
    folder = tier.folder("codecs")
    stems = tier.stems(folder)
    tier.add(folder, stems[:1])
    start = int(stems[2][:20]) + 10
    stream = Running(tier.path, "codecs", startingOffsets=f'{{"codecs":{{"0":{start}}}}}')
    assert stream.all() == 1
    assert stream.rows().num_rows == 0
    tier.add(folder, stems)
    assert stream.all() == 1
    assert stream.rows()["offset"].to_numpy().min() == start
    assert stream.rows().num_rows == 23962 - start


def test_stream_of_partition_without_segments_waits_for_the_tier(tier: GrowingTier) -> None:
    first, second = (tier.folder("txn", number) for number in (0, 1))
    tier.add(first, tier.stems(first)[:1])
    stream = Running(
        tier.path,
        "txn",
        startingOffsets='{"txn":{"0":-2,"1":3000}}',
        isolationLevel="read_uncommitted",
        minOffsetsPerTrigger="3000",
    )
    assert stream.all() == 1
    tier.add(first, tier.stems(first))
    tier.add(second, tier.stems(second)[:1])
    assert stream.batch(), "a partition that waits for its start must not block others"
    tier.add(second, tier.stems(second))
    stream.clock.seconds += 3600
    assert stream.all() == 1
    expected = expected_table("txn", "read_uncommitted")
    is_second = pc.equal(expected["partition"], 1)
    expected_rows = expected.filter(pc.and_(is_second, pc.greater_equal(expected["offset"], 3000)))
    assert_same_rows(stream.batches[2], expected_rows)


def test_stream_with_starting_timestamp_reads_later_records() -> None:
    stream = Running(TIER, "timeline", startingTimestamp="1")
    stream.all()
    assert_same_rows(stream.rows(), expected_table("timeline", "read_committed"))
