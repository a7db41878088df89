"""Tests streams of tiers with missing offsets between two segments. The missing segments are lost,
or their copies are in progress.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import DataLossError
from segment_format.testing import LocalTierWriter, LogBuilder, SimpleRecord
from tests.golden_data import assert_same_rows, expected_table
from tests.kts_source.streaming.running import GrowingTier, Running
from tests.kts_source.streaming.test_changes import UNCOMMITTED, base_offset, rows_between

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tier(tmp_path: Path) -> GrowingTier:
    return GrowingTier(tmp_path / "tier")


def event_seconds(tier: GrowingTier, folder: Path, stem: str) -> float:
    """Returns the time at which the copy of a segment began, in seconds since 1970."""
    manifest = json.loads((folder / f"{stem}.rsm-manifest").read_text())
    return int(manifest["remoteLogSegmentMetadata"]["eventTimestampMs"]) / 1000


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_offsets_of_hole_are_read_after_the_copy_of_their_segment_completes(
    tier: GrowingTier, fail_on_data_loss: str
) -> None:
    folder = tier.folder("txn")
    stems = tier.stems(folder)
    tier.add(folder, [*stems[:4], *stems[5:]])
    stream = Running(tier.path, "txn", failOnDataLoss=fail_on_data_loss)
    stream.clock.seconds = event_seconds(tier, folder, stems[5]) + 1
    assert stream.all() == 1
    assert stream.rows()["offset"].to_numpy().max() < base_offset(stems[4])
    tier.add(folder, stems)
    assert stream.all() == 1
    assert_same_rows(
        stream.rows(), rows_between(expected_table("txn", "read_committed"), 0, 1 << 60)
    )


def test_hole_older_than_grace_period_raises_data_loss_error(tier: GrowingTier) -> None:
    folder = tier.folder("txn")
    stems = tier.stems(folder)
    tier.add(folder, [*stems[:4], *stems[5:]])
    stream = Running(tier.path, "txn", isolationLevel=UNCOMMITTED, holeGraceMs="60s")
    stream.clock.seconds = event_seconds(tier, folder, stems[5]) + 59
    assert stream.all() == 1, "offsets before the hole are read"
    hole, end = base_offset(stems[4]), base_offset(stems[5])
    assert stream.last["topics"]["txn"]["p"]["0"] == hole
    stream.clock.seconds += 2
    with pytest.raises(DataLossError, match=rf"\[{hole}, {end}\) between"):
        stream.batch()
    stream.start(failOnDataLoss="false")
    assert stream.all() == 1
    expected = rows_between(expected_table("txn", UNCOMMITTED), 0, 1 << 60)
    missing = rows_between(expected, hole, end)
    assert stream.rows().num_rows == expected.num_rows - missing.num_rows
    assert stream.batches[1]["offset"].to_numpy().min() >= end


def test_offsets_before_an_old_hole_are_read_before_the_error(tier: GrowingTier) -> None:
    folder = tier.folder("codecs")
    stems = tier.stems(folder)
    tier.add(folder, [stems[0], *stems[2:]])
    stream = Running(tier.path, "codecs")
    assert stream.batch()
    assert stream.rows().num_rows == base_offset(stems[1])
    with pytest.raises(DataLossError, match="no segment in the tier holds"):
        stream.batch()


def test_hole_raises_data_loss_error_if_other_partitions_have_new_data(
    tier: GrowingTier,
) -> None:
    folder, other = tier.folder("wide", 0), tier.folder("wide", 5)
    stems, others = tier.stems(folder), tier.stems(other)
    tier.add(folder, [stems[0], *stems[2:]])
    tier.add(other, others[:1])
    stream = Running(tier.path, "wide")
    assert stream.batch()
    tier.add(other, others)
    with pytest.raises(DataLossError, match="no segment in the tier holds"):
        stream.batch()
    assert stream.committed == 1


def test_stream_waits_for_transactions_that_are_open_before_a_new_hole(tier: GrowingTier) -> None:
    folder = tier.folder("txn")
    stems = tier.stems(folder)
    for missing in range(1, len(stems) - 1):
        remaining = [stem for number, stem in enumerate(stems) if number != missing]
        tier.remove(folder, stems)
        tier.add(folder, remaining)
        stream = Running(tier.path, "txn", maxSegmentsPerTrigger="1")
        stream.clock.seconds = event_seconds(tier, folder, stems[missing + 1]) + 1
        stream.all()
        before = stream.rows().num_rows
        assert stream.last["topics"]["txn"]["p"]["0"] <= base_offset(stems[missing])
        tier.add(folder, stems)
        stream.all()
        assert before < stream.rows().num_rows
        expected = rows_between(expected_table("txn", "read_committed"), 0, 1 << 60)
        assert_same_rows(stream.rows(), expected)


def test_age_of_hole_without_copy_time_counts_from_first_listing(
    tmp_path: Path,
) -> None:
    log = LogBuilder()
    for _ in range(3):
        log.append([SimpleRecord(b"value")] * 3)
        log.roll()
    writer = LocalTierWriter(tmp_path, topic="t")
    for number, segment in enumerate(log.build().segments):
        if number != 1:
            writer.write_segment(segment)
    options = {"keyPrefix": "", "layout": "local-tiered-storage", "holeGraceMs": "60s"}
    stream = Running(tmp_path, "t", **options)
    assert stream.all() == 1
    stream.clock.seconds += 59
    assert not stream.batch()
    stream.clock.seconds += 2
    with pytest.raises(DataLossError, match=r"\[3, 6\) between"):
        stream.batch()
