"""Tests changes of a tier between two batches, or before a batch is read again."""

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
    TIER,
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


def rows_between(table: pa.Table, start: int, stop: int, partition: int = 0) -> pa.Table:
    """Returns the rows of offsets [start, stop) of a partition."""
    offset = table["offset"]
    is_in_range = pc.and_(pc.greater_equal(offset, start), pc.less(offset, stop))
    return table.filter(pc.and_(is_in_range, pc.equal(table["partition"], partition)))


def base_offset(stem: str) -> int:
    """Returns the first offset of a segment."""
    return int(stem[:20])


# -- the tier grows


@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
def test_restarted_stream_over_growing_tier_reads_each_row_once(
    tier: GrowingTier, isolation_level: IsolationLevel
) -> None:
    folders = [tier.folder("txn", number) for number in (0, 1)]
    stems = [tier.stems(folder) for folder in folders]
    tier.add(folders[0], stems[0][:1])
    stream = Running(tier.path, "txn", isolationLevel=isolation_level, maxOffsetsPerTrigger="500")
    for step in range(max(map(len, stems))):
        for folder, names in zip(folders, stems, strict=True):
            tier.add(folder, names[: step + 1])
        stream.batch()
        stream.choose()
        stream.start()  # killed before the batch was read: the same batch again
    stream.all()
    assert_same_rows(stream.rows(), expected_table("txn", isolation_level))


def test_new_partition_is_read_from_its_start(tier: GrowingTier) -> None:
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


def test_new_partition_without_first_offsets_raises_offset_out_of_range_error(
    tier: GrowingTier,
) -> None:
    first, second = tier.folder("wide", 0), tier.folder("wide", 1)
    tier.add(first, tier.stems(first))
    stream = Running(tier.path, "wide")
    stream.all()
    tier.add(second, tier.stems(second)[1:])
    start = base_offset(tier.stems(second)[1])
    with pytest.raises(OffsetOutOfRangeError, match=rf"new to the stream.*\[0, {start}\)"):
        stream.batch()
    stream.start(failOnDataLoss="false")
    assert stream.all() == 1
    expected = expected_table("wide", "read_committed")
    assert_same_rows(stream.batches[1], rows_between(expected, start, 1 << 60, 1))


def test_stream_with_subscribe_pattern_reads_new_topics(tier: GrowingTier) -> None:
    wide, txn = tier.folder("wide"), tier.folder("txn")
    tier.add(wide, tier.stems(wide))
    stream = Running(tier.path, "", subscribePattern="^(txn|codecs)$")
    assert stream.all() == 1, "the first batch of a pattern that matches nothing yet is empty"
    assert stream.last == {"v": 1, "topics": {}}
    tier.add(txn, tier.stems(txn))
    assert stream.all() == 1
    expected = expected_table("txn", "read_committed")
    assert_same_rows(stream.rows(), rows_between(expected, 0, 1 << 60))


def test_subscribed_topic_missing_at_start_raises_topic_not_found_error(tier: GrowingTier) -> None:
    wide = tier.folder("wide")
    tier.add(wide, tier.stems(wide))
    with pytest.raises(TopicNotFoundError, match="no topic 'txn'"):
        Running(tier.path, "txn").batch()


def test_topic_selected_again_continues_at_its_offset(
    tier: GrowingTier, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch that was logged before the selection changed must still contain the topics selected
    at that time.
    """
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
    partitions = ", ".join(f"{number} (at offset {offset})" for number, offset in read["p"].items())
    assert caplog.text.count("no longer select") == 1
    assert f"topic txn: the options no longer select partitions {partitions}, which" in caplog.text
    for folder in folders:
        tier.add(folder, tier.stems(folder))
    stream.all()
    assert stream.last["topics"]["txn"] == read
    assert stream.last_offset("codecs") == 23962
    caplog.clear()
    stream.start(subscribe="codecs,txn")
    stream.all()
    assert "no longer select" not in caplog.text
    expected = [expected_table(name, "read_committed") for name in ("codecs", "txn")]
    assert_same_rows(stream.rows(), pa.concat_tables(expected))


def test_partition_removed_from_selection_is_logged(
    tier: GrowingTier, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (0, 1):
        folder = tier.folder("txn", number)
        tier.add(folder, tier.stems(folder))
    stream = Running(tier.path, "", assign='{"txn":[0,1]}')
    stream.all()
    offset = stream.last_offset("txn", 1)
    assert "no longer select" not in caplog.text
    stream.start(assign='{"txn":[0]}')
    stream.all()
    message = f"topic txn: the options no longer select partitions 1 (at offset {offset}), which"
    assert message in caplog.text


# -- the tier shrinks


def test_retention_that_deletes_unread_offsets_raises_offset_out_of_range_error(
    tier: GrowingTier,
) -> None:
    folder = tier.folder("codecs")
    stems = tier.stems(folder)
    tier.add(folder, stems[:1])
    stream = Running(tier.path, "codecs")
    stream.all()
    tier.add(folder, stems)
    tier.remove(folder, stems[:2])
    lost, start = base_offset(stems[1]), base_offset(stems[2])
    for _ in range(2):  # the error is raised after each restart
        with pytest.raises(OffsetOutOfRangeError, match=rf"\[{lost}, {start}\).*DeleteRecords"):
            stream.batch()
        stream.start()
    stream.start(failOnDataLoss="false")
    assert stream.all() == 1
    assert stream.last["from"]["codecs"]["p"] == {"0": start}
    expected = expected_table("codecs", "read_committed")
    assert_same_rows(stream.batches[1], rows_between(expected, start, 1 << 60))


@pytest.mark.parametrize("deleted", ["segments", "partition", "topic"])
def test_deletion_of_all_unread_segments_raises_offset_out_of_range_error(
    tier: GrowingTier, deleted: str
) -> None:
    """If the deleted segments were the last ones, only a process that listed them before the
    deletion can detect the loss.
    """
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
    if deleted != "segments":
        shutil.rmtree(
            tier.local_folder(folder)
            if deleted == "partition"
            else tier.local_folder(folder).parent
        )
    read, end = strict.last_offset("txn"), 3675
    with pytest.raises(
        OffsetOutOfRangeError, match=rf"txn-0: .*\[{read}, {end}\).*were lost before"
    ):
        strict.batch()
    lenient.all()
    assert lenient.last_offset("codecs") == 23962
    assert lenient.last_offset("txn") == read
    strict.start()
    strict.all()
    assert strict.last_offset("codecs") == 23962, "a new process never listed the segments"


def test_stream_continues_if_segments_are_deleted_after_they_were_read(
    tier: GrowingTier, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tier.folder("codecs")
    stems = tier.stems(folder)
    tier.add(folder, stems[:2])
    stream = Running(tier.path, "codecs")
    stream.all()
    tier.remove(folder, stems[:2])
    stream.start()
    assert stream.all() == 0, "an idle partition may have no segment in the tier"
    shutil.rmtree(tier.path / KEY_PREFIX)
    for _ in range(3):
        assert stream.all() == 0, "an idle topic may have no folder in the tier"
    assert caplog.text.count("the tier has nothing of it any more") == 1
    moved = tier.path.rename(tier.path.with_name("moved"))
    assert stream.all() == 0
    moved.rename(tier.path)
    tier.add(folder, stems[2:])
    assert stream.all() == 1
    assert_same_rows(stream.rows(), expected_table("codecs", "read_committed"))


def test_unread_segments_without_manifest_raise_data_loss_error(tier: GrowingTier) -> None:
    folder = tier.folder("codecs")
    stems = tier.stems(folder)
    tier.add(folder, stems[:2])
    stream = Running(tier.path, "codecs")
    stream.all()
    tier.remove(folder, stems[:2])
    tier.add(folder, stems[2:])
    for manifest in tier.local_folder(folder).glob("*.rsm-manifest"):
        manifest.unlink()
    with pytest.raises(
        DataLossError, match=rf"only incomplete .* after offset {base_offset(stems[2])}"
    ):
        stream.batch()
    stream.start(failOnDataLoss="false")
    assert not stream.batch()


def test_single_segment_without_manifest_counts_as_copy_in_progress(
    tier: GrowingTier,
) -> None:
    folders = [tier.folder("txn", number) for number in (0, 1)]
    stems = [tier.stems(folder) for folder in folders]
    assert stems[0][1][:20] != stems[1][1][:20]
    for folder, names in zip(folders, stems, strict=True):
        tier.add(folder, names[:1])
    stream = Running(tier.path, "txn")
    stream.all()
    for folder, names in zip(folders, stems, strict=True):
        tier.remove(folder, names[:1])
        tier.add(folder, names[1:2])
        for manifest in tier.local_folder(folder).glob("*.rsm-manifest"):
            manifest.unlink()
    assert not stream.batch()
    for folder, names in zip(folders, stems, strict=True):
        tier.add(folder, names)
    stream.all()
    assert_same_rows(stream.rows(), expected_table("txn", "read_committed"))


def test_tier_end_below_read_offset_raises_data_loss_error(tier: GrowingTier) -> None:
    folder = tier.folder("codecs")
    stems = tier.stems(folder)
    tier.add(folder, stems)
    stream = Running(tier.path, "codecs")
    stream.all()
    tier.remove(folder, stems[2:])
    read = stream.last["topics"]["codecs"]["p"]["0"]
    with pytest.raises(DataLossError, match=rf"ends at offset {base_offset(stems[2])} now.*{read}"):
        stream.batch()
    stream.start(failOnDataLoss="false")
    assert stream.all() == 0
    tier.add(folder, stems)
    assert stream.all() == 0, "rows must not be returned twice"


def test_replayed_batch_has_the_same_rows_after_the_log_start_moved(tier: GrowingTier) -> None:
    folder = tier.folder("trimmed")
    stems = tier.stems(folder)
    tier.add(folder, stems[:1])
    stream = Running(tier.path, "trimmed")
    assert stream.choose()
    stream.read_last()
    before = stream.batches[0]
    assert before["offset"][0].as_py() == base_offset(stems[0])
    tier.add(folder, stems)  # later segments record a log start inside the first segment
    stream.start()
    assert_same_rows(stream.batches[0], before)
    stream.all()
    below = rows_between(before, 0, 676)
    assert below.num_rows
    expected = expected_table("trimmed", "read_committed")
    assert stream.rows().num_rows == expected.num_rows + below.num_rows


def test_replayed_batch_with_a_deleted_segment_raises_data_loss_error(tier: GrowingTier) -> None:
    folder = tier.folder("trimmed")
    stems = tier.stems(folder)
    tier.add(folder, stems[:2])
    stream = Running(tier.path, "trimmed")
    assert stream.choose()
    tier.add(folder, stems)
    tier.remove(folder, stems[:1])
    first, start = base_offset(stems[0]), base_offset(stems[1])
    with pytest.raises(DataLossError, match=rf"\[{first}, {start}\).*no longer in the tier"):
        stream.start()
    stream.start(failOnDataLoss="false")
    assert in_order(stream.batches[0])["offset"][0].as_py() == start
    stream.all()
    expected = expected_table("trimmed", "read_committed")
    assert_same_rows(stream.rows(), rows_between(expected, start, 1 << 60))


def test_replay_raises_data_loss_error_if_the_batch_ends_above_the_tier(
    tier: GrowingTier,
) -> None:
    folder = tier.folder("codecs")
    stems = tier.stems(folder)
    tier.add(folder, stems)
    stream = Running(tier.path, "codecs")
    assert stream.choose()
    tier.remove(folder, stems[2:])
    tier_end = base_offset(stems[2])
    with pytest.raises(
        DataLossError, match=rf"\[{tier_end}, 23962\) of the batch.*ends at {tier_end}"
    ):
        stream.start()
    stream.start(failOnDataLoss="false")
    expected = expected_table("codecs", "read_committed")
    assert_same_rows(stream.batches[0], rows_between(expected, 0, tier_end))


def test_replayed_batch_without_any_remaining_segment_raises_data_loss_error(
    tier: GrowingTier,
) -> None:
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


def test_offset_log_of_sparks_kafka_source_is_continued(
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
    assert "has no topic id" in caplog.text
    expected = expected_table("txn", "read_committed")
    expected_parts = [
        rows_between(expected, 1145, 1 << 60, 0),
        rows_between(expected, 2269, 1 << 60, 1),
    ]
    assert stream.rows().num_rows == sum(table.num_rows for table in expected_parts)
    assert stream.last["topics"]["txn"]["id"] == "akx9EReDQFmDFpLHkZF0WA"


def test_read_committed_replay_of_read_uncommitted_batch_raises_data_loss_error(
    tier: GrowingTier,
) -> None:
    folder = tier.folder("txn")
    tier.add(folder, tier.stems(folder))
    stream = Running(tier.path, "txn", isolationLevel=UNCOMMITTED)
    assert stream.choose()
    with pytest.raises(DataLossError, match=r"not decided.*read_uncommitted"):
        stream.start(isolationLevel="read_committed")


@pytest.mark.parametrize(("limit", "is_small"), [("5", True), ("10", True), ("1000", False)])
def test_offset_limit_that_makes_tiny_batches_is_reported_once(
    caplog: pytest.LogCaptureFixture, limit: str, *, is_small: bool
) -> None:
    stream = Running(TIER, "txn", maxOffsetsPerTrigger=limit)
    for _ in range(3):
        assert stream.batch()
    warnings = [text for text in caplog.messages if "maxOffsetsPerTrigger" in text]
    assert len(warnings) == is_small
    if is_small:
        assert f"maxOffsetsPerTrigger={limit} splits" in warnings[0]
        assert "of txn-0, txn-1 into" in warnings[0]
        advised = warnings[0].split()[-1]
        advice = Running(TIER, "txn", maxOffsetsPerTrigger=advised)
        caplog.clear()
        assert advice.batch()
        assert not caplog.messages
