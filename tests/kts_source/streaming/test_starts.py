"""Where a new stream begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pytest

from kts_source.errors import InvalidOptionError
from tests.golden_data import TIER, assert_same_rows, expected_table
from tests.kts_source.streaming.running import GrowingTier, Running

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tier(tmp_path: Path) -> GrowingTier:
    return GrowingTier(tmp_path / "tier")


def test_latest_is_fixed_by_the_first_batch(tier: GrowingTier) -> None:
    folder = tier.folder("txn")
    stems = tier.stems(folder)
    tier.add(folder, stems[:5])
    stream = Running(tier.path, "txn", startingOffsets="latest", isolationLevel="read_uncommitted")
    assert stream.choose()
    tier.add(folder, stems)
    stream.start()  # killed before the first batch was read
    assert stream.rows().num_rows == 0
    stream.all()
    assert stream.rows()["offset"].to_numpy().min() >= int(stems[5][:20])
    assert stream.last["topics"]["txn"]["p"]["0"] == 3963


@pytest.mark.parametrize(
    ("starting", "first"),
    [('{"txn":{"0":500,"1":-2}}', 500), ('{"txn":{"0":-2,"1":-1}}', 0)],
)
def test_a_start_in_json(starting: str, first: int) -> None:
    stream = Running(TIER, "txn", startingOffsets=starting, isolationLevel="read_uncommitted")
    stream.all()
    begins = stream.position(0)["from"]["txn"]["p"]
    assert begins == {"0": first, "1": 3671 if "-1" in starting else 0}


def test_a_start_in_json_names_all_partitions() -> None:
    stream = Running(TIER, "txn", startingOffsets='{"txn":{"0":5}}')
    with pytest.raises(InvalidOptionError, match="does not name txn-1"):
        stream.batch()


def test_a_start_behind_the_end_of_the_tier_waits_for_it(tier: GrowingTier) -> None:
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


def test_a_start_in_a_partition_of_which_nothing_is_tiered_yet(tier: GrowingTier) -> None:
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
    assert stream.batch(), "one that waits for its start keeps no other back"
    tier.add(second, tier.stems(second))
    stream.clock.seconds += 3600
    assert stream.all() == 1
    expected = expected_table("txn", "read_uncommitted")
    of_second = pc.equal(expected["partition"], 1)
    wanted = expected.filter(pc.and_(of_second, pc.greater_equal(expected["offset"], 3000)))
    assert_same_rows(stream.batches[2], wanted)


def test_a_start_at_a_time() -> None:
    stream = Running(TIER, "timeline", startingTimestamp="1")
    stream.all()
    assert_same_rows(stream.rows(), expected_table("timeline", "read_committed"))
