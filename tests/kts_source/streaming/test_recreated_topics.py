"""Tests topics that are recreated while a stream reads them from the tier."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kts_source.errors import DataLossError, StreamOffsetError
from tests.golden_data import assert_same_rows, expected_table
from tests.kts_source.streaming.running import GrowingTier, Running

if TYPE_CHECKING:
    from pathlib import Path

RECREATED = ("Y0eIqb0wSCGvx1A44Duolw", "635qa4GBRgeRNLq3CIS0RA")
"""Topic ids of the golden topic `recreated`, oldest first."""


@pytest.fixture
def tier(tmp_path: Path) -> GrowingTier:
    return GrowingTier(tmp_path / "tier")


@pytest.mark.parametrize("old_objects_stay", [True, False])
def test_recreated_topic_raises_data_loss_error_after_tiered_segments(
    tier: GrowingTier, old_objects_stay: bool
) -> None:
    previous_id, current_id = RECREATED
    old, new = (
        tier.folder("recreated", topic_id=topic_id) for topic_id in (previous_id, current_id)
    )
    tier.add(old, tier.stems(old))
    stream = Running(tier.path, "recreated", maxSegmentsPerTrigger="1")
    assert stream.batch()
    if not old_objects_stay:
        stream.all()
        tier.remove(old, tier.stems(old))
        for folder in (tier.local_folder(old), tier.local_folder(old).parent):
            folder.rmdir()
    tier.add(new, tier.stems(new))
    if old_objects_stay:
        assert stream.batch(), "segments of the previous topic id are read first"
    with pytest.raises(DataLossError, match=f"created again.*{previous_id}.*{current_id}"):
        stream.batch()
    previous = expected_table("recreated-previous", "read_uncommitted")
    assert_same_rows(stream.rows(), previous)
    count = len(stream.batches)
    stream.start(failOnDataLoss="false")
    assert stream.all() == 2
    end = stream.last
    assert end["topics"]["recreated"]["id"] == current_id
    fresh = Running(tier.path, "recreated", topicId=current_id)
    fresh.all()
    new_batches = [stream.batches[number] for number in (count, count + 1)]
    assert sum(batch.num_rows for batch in new_batches) == fresh.rows().num_rows
    assert stream.rows().num_rows == previous.num_rows + fresh.rows().num_rows


@pytest.mark.parametrize("old_objects_stay", [True, False])
def test_recreated_topic_is_read_in_batches_without_a_new_listing(
    tier: GrowingTier, old_objects_stay: bool
) -> None:
    """One listing shows both topic ids and is reused for all batches, including batches of other
    topics.
    """
    previous_id, current_id = RECREATED
    old, new = (
        tier.folder("recreated", topic_id=topic_id) for topic_id in (previous_id, current_id)
    )
    other = tier.folder("codecs")
    tier.add(old, tier.stems(old))
    stream = Running(
        tier.path,
        ("recreated", "codecs"),
        subscribePattern="^(recreated|codecs)$",
        minListingIntervalMs="10s",
        maxSegmentsPerTrigger="1",
        failOnDataLoss="false",
    )
    stream.all()
    if not old_objects_stay:
        tier.remove(old, tier.stems(old))
        for folder in (tier.local_folder(old), tier.local_folder(old).parent):
            folder.rmdir()
    tier.add(new, tier.stems(new))
    tier.add(other, tier.stems(other))
    stream.clock.seconds += 10
    unread_offsets = []
    while stream.batch():
        lag = stream.stream.lag()
        assert lag is not None
        unread_offsets.append(lag["behind"]["offsets"])
    assert unread_offsets[-1] == 0
    assert len(stream.offset_log) == sum(len(tier.stems(folder)) for folder in (old, new, other))
    assert stream.rows().num_rows == sum(
        expected_table(name, "read_committed").num_rows
        for name in ("recreated-previous", "recreated", "codecs")
    )


def test_checkpoint_with_other_topic_id_than_option_raises_stream_offset_error(
    tier: GrowingTier,
) -> None:
    previous_id, current_id = RECREATED
    for topic_id in (previous_id, current_id):
        folder = tier.folder("recreated", topic_id=topic_id)
        tier.add(folder, tier.stems(folder))
    stream = Running(tier.path, "recreated", topicId=previous_id)
    stream.all()
    assert stream.all() == 0, "option topicId selects the previous id"
    stream.start(topicId=current_id)
    with pytest.raises(StreamOffsetError, match=f"{previous_id}.*'topicId' is {current_id}"):
        stream.batch()


def test_older_topic_id_is_not_read_after_segments_of_newer_id_expire(tier: GrowingTier) -> None:
    """All segments of the current topic id may expire while objects of the older id remain."""
    old, new = (tier.folder("recreated", topic_id=topic_id) for topic_id in RECREATED)
    for folder in (old, new):
        tier.add(folder, tier.stems(folder))
    stream = Running(tier.path, "recreated")
    stream.all()
    lenient = Running(tier.path, "recreated", topicId=RECREATED[0], failOnDataLoss="false")
    lenient.all()
    assert not lenient.batch(), "option topicId keeps the stream at this id"
    del lenient.options["topicId"]
    lenient.start()
    lenient.all()
    tier.remove(new, tier.stems(new))
    for folder in (tier.local_folder(new), tier.local_folder(new).parent):
        folder.rmdir()
    for running in (stream, lenient):
        assert not running.batch()
        assert running.last["topics"]["recreated"]["id"] == RECREATED[1]
    tier.add(new, tier.stems(new))
    for running in (stream, lenient):
        assert not running.batch()


def test_new_process_with_only_older_topic_id_raises_data_loss_error(tier: GrowingTier) -> None:
    """A new process cannot find out that the remaining topic id is the older one."""
    previous_id, current_id = RECREATED
    old, new = (tier.folder("recreated", topic_id=topic_id) for topic_id in RECREATED)
    tier.add(new, tier.stems(new))
    strict, lenient = (
        Running(tier.path, "recreated", failOnDataLoss=text) for text in ("true", "false")
    )
    for stream in (strict, lenient):
        stream.all()
    tier.add(old, tier.stems(old))
    tier.remove(new, tier.stems(new))
    for stream in (strict, lenient):
        stream.start()
    with pytest.raises(DataLossError, match=f"created again.*{current_id}.*{previous_id}"):
        strict.batch()
    strict.start(topicId=current_id)
    assert not strict.batch()
    assert lenient.batch()
    assert lenient.last["topics"]["recreated"]["id"] == previous_id


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_recreated_topic_waits_for_first_complete_segment(
    tier: GrowingTier, fail_on_data_loss: str
) -> None:
    previous_id, current_id = RECREATED
    old, new = (
        tier.folder("recreated", topic_id=topic_id) for topic_id in (previous_id, current_id)
    )
    tier.add(old, tier.stems(old))
    stream = Running(tier.path, "recreated", failOnDataLoss=fail_on_data_loss)
    stream.all()
    stem = tier.stems(new)[0]
    tier.add(new, [stem])
    manifest = tier.local_folder(new) / f"{stem}.rsm-manifest"
    manifest.rename(tier.path / manifest.name)
    assert not stream.batch()
    assert not stream.batch()
    (tier.path / manifest.name).rename(manifest)
    if fail_on_data_loss == "true":
        with pytest.raises(DataLossError, match=f"created again.*{previous_id}.*{current_id}"):
            stream.batch()
    else:
        assert stream.batch()
        assert stream.last["topics"]["recreated"]["id"] == current_id
