"""Topics that are created again while a stream of the tier reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kts_source.errors import DataLossError, StreamOffsetError
from tests.golden_data import assert_same_rows, expected_table
from tests.kts_source.streaming.running import GrowingTier, Running

if TYPE_CHECKING:
    from pathlib import Path

RECREATED = ("Y0eIqb0wSCGvx1A44Duolw", "635qa4GBRgeRNLq3CIS0RA")
"""Topic ids of the golden topic of that name, the earlier one first."""


@pytest.fixture
def tier(tmp_path: Path) -> GrowingTier:
    return GrowingTier(tmp_path / "tier")


@pytest.mark.parametrize("old_objects_stay", [True, False])
def test_a_topic_that_was_created_again(tier: GrowingTier, old_objects_stay: bool) -> None:
    before, now = RECREATED
    old, new = (tier.folder("recreated", topic_id=one) for one in (before, now))
    tier.add(old, tier.stems(old))
    stream = Running(tier.path, "recreated", maxSegmentsPerTrigger="1")
    assert stream.batch()
    if not old_objects_stay:
        stream.all()
        tier.remove(old, tier.stems(old))
        for folder in (tier.here(old), tier.here(old).parent):
            folder.rmdir()
    tier.add(new, tier.stems(new))
    if old_objects_stay:
        assert stream.batch(), "what is tiered of the old one is read first"
    with pytest.raises(DataLossError, match=f"created again.*{before}.*{now}"):
        stream.batch()
    previous = expected_table("recreated-previous", "read_uncommitted")
    assert_same_rows(stream.rows(), previous)
    count = len(stream.batches)
    stream.start(failOnDataLoss="false")
    assert stream.all() == 2
    end = stream.last
    assert end["topics"]["recreated"]["id"] == now
    fresh = Running(tier.path, "recreated", topicId=now)
    fresh.all()
    assert sum(stream.batches[at].num_rows for at in (count, count + 1)) == fresh.rows().num_rows
    assert stream.rows().num_rows == previous.num_rows + fresh.rows().num_rows


@pytest.mark.parametrize("old_objects_stay", [True, False])
def test_batches_of_a_topic_that_was_created_again_within_one_look(
    tier: GrowingTier, old_objects_stay: bool
) -> None:
    """The look that showed both incarnations serves the batches that follow, too, with those of
    another topic among them.
    """
    before, now = RECREATED
    old, new = (tier.folder("recreated", topic_id=one) for one in (before, now))
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
        for folder in (tier.here(old), tier.here(old).parent):
            folder.rmdir()
    tier.add(new, tier.stems(new))
    tier.add(other, tier.stems(other))
    stream.clock.seconds += 10
    behind = []
    while stream.batch():
        lag = stream.stream.lag()
        assert lag is not None
        behind.append(lag["behind"]["offsets"])
    assert behind[-1] == 0
    assert len(stream.offset_log) == sum(len(tier.stems(one)) for one in (old, new, other))
    assert stream.rows().num_rows == sum(
        expected_table(name, "read_committed").num_rows
        for name in ("recreated-previous", "recreated", "codecs")
    )


def test_a_checkpoint_of_another_topic_id_than_asked_for(tier: GrowingTier) -> None:
    before, now = RECREATED
    for one in (before, now):
        folder = tier.folder("recreated", topic_id=one)
        tier.add(folder, tier.stems(folder))
    stream = Running(tier.path, "recreated", topicId=before)
    stream.all()
    assert stream.all() == 0, "who asks for an id gets that one"
    stream.start(topicId=now)
    with pytest.raises(StreamOffsetError, match=f"{before}.*'topicId' is {now}"):
        stream.batch()


def test_an_older_one_is_left_when_nothing_else_is(tier: GrowingTier) -> None:
    """All segments of the stream's own incarnation may expire; objects of the one before may stay
    for ever.
    """
    old, new = (tier.folder("recreated", topic_id=one) for one in RECREATED)
    for folder in (old, new):
        tier.add(folder, tier.stems(folder))
    stream = Running(tier.path, "recreated")
    stream.all()
    lenient = Running(tier.path, "recreated", topicId=RECREATED[0], failOnDataLoss="false")
    lenient.all()
    assert not lenient.batch(), "who asks for an id stays in it"
    del lenient.options["topicId"]
    lenient.start()
    lenient.all()
    tier.remove(new, tier.stems(new))
    for folder in (tier.here(new), tier.here(new).parent):
        folder.rmdir()
    for one in (stream, lenient):
        assert not one.batch()
        assert one.last["topics"]["recreated"]["id"] == RECREATED[1]
    tier.add(new, tier.stems(new))
    for one in (stream, lenient):
        assert not one.batch()


def test_a_process_that_begins_when_an_older_one_is_left(tier: GrowingTier) -> None:
    """Nothing tells it which one is older."""
    before, now = RECREATED
    old, new = (tier.folder("recreated", topic_id=one) for one in RECREATED)
    tier.add(new, tier.stems(new))
    strict, lenient = (
        Running(tier.path, "recreated", failOnDataLoss=text) for text in ("true", "false")
    )
    for one in (strict, lenient):
        one.all()
    tier.add(old, tier.stems(old))
    tier.remove(new, tier.stems(new))
    for one in (strict, lenient):
        one.start()
    with pytest.raises(DataLossError, match=f"created again.*{now}.*{before}"):
        strict.batch()
    strict.start(topicId=now)
    assert not strict.batch()
    assert lenient.batch()
    assert lenient.last["topics"]["recreated"]["id"] == before


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_a_first_copy_that_takes_its_time(tier: GrowingTier, fail_on_data_loss: str) -> None:
    before, now = RECREATED
    old, new = (tier.folder("recreated", topic_id=one) for one in (before, now))
    tier.add(old, tier.stems(old))
    stream = Running(tier.path, "recreated", failOnDataLoss=fail_on_data_loss)
    stream.all()
    stem = tier.stems(new)[0]
    tier.add(new, [stem])
    manifest = tier.here(new) / f"{stem}.rsm-manifest"
    manifest.rename(tier.path / manifest.name)
    assert not stream.batch()
    assert not stream.batch()
    (tier.path / manifest.name).rename(manifest)
    if fail_on_data_loss == "true":
        with pytest.raises(DataLossError, match=f"created again.*{before}.*{now}"):
            stream.batch()
    else:
        assert stream.batch()
        assert stream.last["topics"]["recreated"]["id"] == now
