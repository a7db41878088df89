"""What may happen to a tier between two batches, or before one is read again."""

from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kts_source.errors import (
    DataLossError,
    OffsetOutOfRangeError,
    TopicNotFoundError,
)
from tests.golden_data import (
    ISOLATION_LEVELS,
    KEY_PREFIX,
    IsolationLevel,
    assert_same_rows,
    expected_table,
    in_order,
)
from tests.kts_source.streaming.running import GrowingTier, Running

if TYPE_CHECKING:
    from pathlib import Path

UNCOMMITTED: IsolationLevel = "read_uncommitted"


@pytest.fixture
def tier(tmp_path: Path) -> GrowingTier:
    return GrowingTier(tmp_path / "tier")


def between(table: pa.Table, start: int, stop: int, partition: int = 0) -> pa.Table:
    """The rows of offsets [start, stop) of one partition."""
    offset = table["offset"]
    wanted = pc.and_(pc.greater_equal(offset, start), pc.less(offset, stop))
    return table.filter(pc.and_(wanted, pc.equal(table["partition"], partition)))


def begin(stem: str) -> int:
    """The first offset of a segment."""
    return int(stem[:20])


# -- the tier grows


@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
def test_a_tier_that_grows_and_a_stream_that_crashes(
    tier: GrowingTier, isolation_level: IsolationLevel
) -> None:
    folders = [tier.folder("txn", number) for number in (0, 1)]
    stems = [tier.stems(folder) for folder in folders]
    tier.add(folders[0], stems[0][:1])
    stream = Running(tier.path, "txn", isolationLevel=isolation_level, maxOffsetsPerTrigger="500")
    for at in range(max(map(len, stems))):
        for folder, names in zip(folders, stems, strict=True):
            tier.add(folder, names[: at + 1])
        stream.batch()
        stream.choose()
        stream.start()  # killed before the batch was read: the same batch again
    stream.all()
    assert_same_rows(stream.rows(), expected_table("txn", isolation_level))


def test_a_new_partition_begins_at_its_start(tier: GrowingTier) -> None:
    for number in (0, 5, 1, 4):
        folder = tier.folder("wide", number)
        tier.add(folder, tier.stems(folder))
        if number == 0:
            stream = Running(tier.path, "wide", startingOffsets="latest")
            assert stream.all() == 1
        else:
            assert stream.all() == 1
            assert stream.last["from"]["wide"]["p"] == {str(number): 0}
    expected = expected_table("wide", "read_committed")
    assert_same_rows(stream.rows(), expected.filter(pc.not_equal(expected["partition"], 0)))


def test_a_new_partition_whose_first_offsets_have_gone(tier: GrowingTier) -> None:
    first, second = tier.folder("wide", 0), tier.folder("wide", 1)
    tier.add(first, tier.stems(first))
    stream = Running(tier.path, "wide")
    stream.all()
    tier.add(second, tier.stems(second)[1:])
    start = begin(tier.stems(second)[1])
    with pytest.raises(OffsetOutOfRangeError, match=rf"new to the stream.*\[0, {start}\)"):
        stream.batch()
    stream.start(failOnDataLoss="false")
    assert stream.all() == 1
    expected = expected_table("wide", "read_committed")
    assert_same_rows(stream.batches[1], between(expected, start, 1 << 60, 1))


def test_new_topics_of_a_pattern(tier: GrowingTier) -> None:
    wide, txn = tier.folder("wide"), tier.folder("txn")
    tier.add(wide, tier.stems(wide))
    stream = Running(tier.path, "", subscribePattern="^(txn|codecs)$")
    assert stream.all() == 1, "the first batch of a pattern that matches nothing yet is empty"
    assert stream.last == {"v": 1, "topics": {}}
    tier.add(txn, tier.stems(txn))
    assert stream.all() == 1
    expected = expected_table("txn", "read_committed")
    assert_same_rows(stream.rows(), between(expected, 0, 1 << 60))


def test_a_topic_that_is_named_must_be_there_at_the_start(tier: GrowingTier) -> None:
    wide = tier.folder("wide")
    tier.add(wide, tier.stems(wide))
    with pytest.raises(TopicNotFoundError, match="no topic 'txn'"):
        Running(tier.path, "txn").batch()


def test_a_topic_that_is_not_read_for_a_while(
    tier: GrowingTier, caplog: pytest.LogCaptureFixture
) -> None:
    """It goes on where it was, and a batch that was begun with it is finished with it."""
    folders = [tier.folder("codecs"), tier.folder("txn", 0), tier.folder("txn", 1)]
    for folder in folders:
        tier.add(folder, tier.stems(folder)[:2])
    stream = Running(tier.path, "codecs,txn", maxOffsetsPerTrigger="900")
    assert stream.batch()
    assert stream.choose()
    assert "no longer select" not in caplog.text
    stream.start(subscribe="codecs", maxOffsetsPerTrigger="100000")
    stream.all()
    read = stream.last["topics"]["txn"]
    places = ", ".join(f"{number} (at offset {at})" for number, at in read["p"].items())
    assert caplog.text.count("no longer select") == 1
    assert f"topic txn: the options no longer select partitions {places}, which" in caplog.text
    for folder in folders:
        tier.add(folder, tier.stems(folder))
    stream.all()
    assert stream.last["topics"]["txn"] == read
    assert stream.last_offset("codecs") == 23962
    caplog.clear()
    stream.start(subscribe="codecs,txn")
    stream.all()
    assert "no longer select" not in caplog.text
    whole = [expected_table(name, "read_committed") for name in ("codecs", "txn")]
    assert_same_rows(stream.rows(), pa.concat_tables(whole))


def test_a_partition_that_is_not_read_any_more(
    tier: GrowingTier, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (0, 1):
        folder = tier.folder("txn", number)
        tier.add(folder, tier.stems(folder))
    stream = Running(tier.path, "", assign='{"txn":[0,1]}')
    stream.all()
    at = stream.last_offset("txn", 1)
    assert "no longer select" not in caplog.text
    stream.start(assign='{"txn":[0]}')
    stream.all()
    said = f"topic txn: the options no longer select partitions 1 (at offset {at}), which"
    assert said in caplog.text


# -- the tier shrinks


def test_retention_overtakes_the_stream(tier: GrowingTier) -> None:
    folder = tier.folder("codecs")
    stems = tier.stems(folder)
    tier.add(folder, stems[:1])
    stream = Running(tier.path, "codecs")
    stream.all()
    tier.add(folder, stems)
    tier.remove(folder, stems[:2])
    lost, start = begin(stems[1]), begin(stems[2])
    for _ in range(2):  # and at every restart
        with pytest.raises(OffsetOutOfRangeError, match=rf"\[{lost}, {start}\).*overtaken"):
            stream.batch()
        stream.start()
    stream.start(failOnDataLoss="false")
    assert stream.all() == 1
    assert stream.last["from"]["codecs"]["p"] == {"0": start}
    expected = expected_table("codecs", "read_committed")
    assert_same_rows(stream.batches[1], between(expected, start, 1 << 60))


@pytest.mark.parametrize("what", ["segments", "partition", "topic"])
def test_all_that_is_left_goes_unread(tier: GrowingTier, what: str) -> None:
    """No later segment tells a process that has seen it."""
    folder, other = tier.folder("txn"), tier.folder("codecs")
    stems = tier.stems(folder)
    tier.add(folder, stems)
    tier.add(other, tier.stems(other))
    strict, lenient = (
        Running(tier.path, "codecs,txn", maxOffsetsPerTrigger="300", failOnDataLoss=text)
        for text in ("true", "false")
    )
    for stream in (strict, lenient):
        while stream.last_offset("txn") == 0:
            assert stream.batch()
    tier.remove(folder, stems)
    if what != "segments":
        shutil.rmtree(tier.here(folder) if what == "partition" else tier.here(folder).parent)
    at, end = strict.last_offset("txn"), 3675
    with pytest.raises(OffsetOutOfRangeError, match=rf"txn-0: .*\[{at}, {end}\).*gone unread"):
        strict.batch()
    lenient.all()
    assert lenient.last_offset("codecs") == 23962
    assert lenient.last_offset("txn") == at
    strict.start()
    strict.all()
    assert strict.last_offset("codecs") == 23962, "another process has not seen it"


def test_what_was_read_may_go(tier: GrowingTier, caplog: pytest.LogCaptureFixture) -> None:
    folder = tier.folder("codecs")
    stems = tier.stems(folder)
    tier.add(folder, stems[:2])
    stream = Running(tier.path, "codecs")
    stream.all()
    tier.remove(folder, stems[:2])
    stream.start()
    assert stream.all() == 0, "a quiet partition may have nothing in the tier"
    shutil.rmtree(tier.path / KEY_PREFIX)
    for _ in range(3):
        assert stream.all() == 0, "nor a topic"
    assert caplog.text.count("the tier has nothing of it any more") == 1
    away = tier.path.rename(tier.path.with_name("away"))
    assert stream.all() == 0
    away.rename(tier.path)
    tier.add(folder, stems[2:])
    assert stream.all() == 1
    assert_same_rows(stream.rows(), expected_table("codecs", "read_committed"))


def test_only_parts_of_what_is_unread_are_left(tier: GrowingTier) -> None:
    folder = tier.folder("codecs")
    stems = tier.stems(folder)
    tier.add(folder, stems[:2])
    stream = Running(tier.path, "codecs")
    stream.all()
    tier.remove(folder, stems[:2])
    tier.add(folder, stems[2:])
    for manifest in tier.here(folder).glob("*.rsm-manifest"):
        manifest.unlink()
    with pytest.raises(DataLossError, match=rf"only incomplete .* after offset {begin(stems[2])}"):
        stream.batch()
    stream.start(failOnDataLoss="false")
    assert not stream.batch()


def test_the_tier_ends_below_what_was_read(tier: GrowingTier) -> None:
    folder = tier.folder("codecs")
    stems = tier.stems(folder)
    tier.add(folder, stems)
    stream = Running(tier.path, "codecs")
    stream.all()
    tier.remove(folder, stems[2:])
    read = stream.last["topics"]["codecs"]["p"]["0"]
    with pytest.raises(DataLossError, match=rf"ends at offset {begin(stems[2])} now.*{read}"):
        stream.batch()
    stream.start(failOnDataLoss="false")
    assert stream.all() == 0
    tier.add(folder, stems)
    assert stream.all() == 0, "what was read does not come again"


def test_a_log_start_that_moved_before_a_batch_is_read_again(tier: GrowingTier) -> None:
    folder = tier.folder("trimmed")
    stems = tier.stems(folder)
    tier.add(folder, stems[:1])
    stream = Running(tier.path, "trimmed")
    assert stream.choose()
    stream.read_last()
    before = stream.batches[0]
    assert before["offset"][0].as_py() == begin(stems[0])
    tier.add(folder, stems)  # later segments tell a log start in the middle of the first
    stream.start()
    assert_same_rows(stream.batches[0], before)
    stream.all()
    below = between(before, 0, 676)
    assert below.num_rows
    expected = expected_table("trimmed", "read_committed")
    assert stream.rows().num_rows == expected.num_rows + below.num_rows


def test_objects_that_have_gone_before_a_batch_is_read_again(tier: GrowingTier) -> None:
    folder = tier.folder("trimmed")
    stems = tier.stems(folder)
    tier.add(folder, stems[:2])
    stream = Running(tier.path, "trimmed")
    assert stream.choose()
    tier.add(folder, stems)
    tier.remove(folder, stems[:1])
    first, start = begin(stems[0]), begin(stems[1])
    with pytest.raises(DataLossError, match=rf"\[{first}, {start}\).*no longer in the tier"):
        stream.start()
    stream.start(failOnDataLoss="false")
    assert in_order(stream.batches[0])["offset"][0].as_py() == start
    stream.all()
    expected = expected_table("trimmed", "read_committed")
    assert_same_rows(stream.rows(), between(expected, start, 1 << 60))


def test_the_tier_ends_below_a_batch_that_is_read_again(tier: GrowingTier) -> None:
    folder = tier.folder("codecs")
    stems = tier.stems(folder)
    tier.add(folder, stems)
    stream = Running(tier.path, "codecs")
    assert stream.choose()
    tier.remove(folder, stems[2:])
    left = begin(stems[2])
    with pytest.raises(DataLossError, match=rf"\[{left}, 23962\) of the batch.*ends at {left}"):
        stream.start()
    stream.start(failOnDataLoss="false")
    expected = expected_table("codecs", "read_committed")
    assert_same_rows(stream.batches[0], between(expected, 0, left))


def test_all_objects_of_a_batch_have_gone(tier: GrowingTier) -> None:
    folder, other = tier.folder("codecs"), tier.folder("txn")
    stems = tier.stems(folder)
    tier.add(folder, stems)
    tier.add(other, tier.stems(other))
    stream = Running(tier.path, "codecs,txn")
    assert stream.choose()
    tier.remove(folder, stems)
    with pytest.raises(DataLossError, match="no segment of the partition"):
        stream.start()
    stream.start(failOnDataLoss="false")
    assert set(stream.batches[0]["topic"].to_pylist()) == {"txn"}


# -- other readers


def test_the_text_of_sparks_kafka_source_is_a_start(
    tier: GrowingTier, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (0, 1):
        folder = tier.folder("txn", number)
        tier.add(folder, tier.stems(folder))
    stream = Running(tier.path, "txn")
    stream.offset_log = ['{"txn":{"0":1145,"1":2269}}']
    stream.committed = 1
    with caplog.at_level(logging.WARNING):
        assert stream.all() == 1
    assert "knows no topic id" in caplog.text
    expected = expected_table("txn", "read_committed")
    wanted = [between(expected, 1145, 1 << 60, 0), between(expected, 2269, 1 << 60, 1)]
    assert stream.rows().num_rows == sum(part.num_rows for part in wanted)
    assert stream.last["topics"]["txn"]["id"] == "akx9EReDQFmDFpLHkZF0WA"


def test_a_batch_of_undecided_rows_is_not_read_as_committed(tier: GrowingTier) -> None:
    folder = tier.folder("txn")
    tier.add(folder, tier.stems(folder))
    stream = Running(tier.path, "txn", isolationLevel=UNCOMMITTED)
    assert stream.choose()
    with pytest.raises(DataLossError, match=r"not decided.*read_uncommitted"):
        stream.start(isolationLevel="read_committed")
