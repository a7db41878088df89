"""A stream of tier and brokers: what becomes of the tier of a topic that was created again, and how
often the tier is listed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

import pytest

from kts_source.errors import DataLossError, InvalidOptionError
from kts_source.streaming.cluster_look import TierListing
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import fake_log
from tests.kts_source.streaming.test_cluster_look import following, offsets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from segment_format.testing import SegmentFiles
    from tests.kts_source.streaming.running import Checkpointed

SEGMENTS = 4
"""Of three records each."""


@pytest.fixture
def brokers() -> Iterator[FakeCluster]:
    with FakeCluster() as made:
        yield made


def created(brokers: FakeCluster, tier: Path, tiered: int) -> tuple[FakePartition, str]:
    """A topic of one partition, some segments of which are in the tier, too."""
    log = LogBuilder()
    for _ in range(SEGMENTS):
        log.append([SimpleRecord(b"value")] * 3)
        log.roll()
    built = log.build()
    part = FakePartition(fake_log(built))
    topic_id = brokers.create("t", [part])
    writer = AivenTierWriter(tier, topic="t", topic_id=topic_id)
    for segment in list(built.segments)[:tiered]:
        writer.write_segment(segment)
    return part, topic_id


def both(brokers: FakeCluster, tier: Path, **options: str) -> Checkpointed:
    """A stream over the two."""
    return following(brokers, path=str(tier), minListingIntervalMs="0", **options)


def test_what_is_tiered_of_the_old_topic_comes_first(brokers: FakeCluster, tmp_path: Path) -> None:
    _, before = created(brokers, tmp_path, 3)
    strict, lenient = (
        both(brokers, tmp_path, maxSegmentsPerTrigger="1", failOnDataLoss=text)
        for text in ("true", "false")
    )
    for stream in (strict, lenient):
        assert stream.batch()
    _, now = created(brokers, tmp_path, 0)
    with pytest.raises(DataLossError, match=f"created again.*{before}.*{now}"):
        strict.all()
    assert offsets(strict) == list(range(9)), "what only brokers had has gone with the topic"
    lenient.all()
    assert offsets(lenient) == [*range(9), *range(12)]
    strict.close()
    lenient.close()


@pytest.mark.parametrize("is_tiered", [True, False])
def test_a_batch_of_the_old_topic_is_read_again(
    brokers: FakeCluster, tmp_path: Path, is_tiered: bool
) -> None:
    """Never with rows of the new one."""
    created(brokers, tmp_path, SEGMENTS * is_tiered)
    strict, lenient = (both(brokers, tmp_path, failOnDataLoss=text) for text in ("true", "false"))
    for stream in (strict, lenient):
        assert stream.choose()
    created(brokers, tmp_path, 0)
    if is_tiered:
        strict.start()
        assert offsets(strict) == list(range(12))
    else:
        with pytest.raises(DataLossError, match=r"\[0, 12\) .* no longer in the tier"):
            strict.start()
    lenient.start()
    assert offsets(lenient) == list(range(12 * is_tiered))
    strict.close()
    lenient.close()


def test_a_batch_of_the_old_topic_is_read_again_by_its_id(
    brokers: FakeCluster, tmp_path: Path
) -> None:
    """The id is an option, and not that of the cluster any more."""
    _, before = created(brokers, tmp_path, SEGMENTS)
    stream = both(brokers, tmp_path, topicId=before)
    assert stream.choose()
    created(brokers, tmp_path, 0)
    stream.start()
    assert offsets(stream) == list(range(12))
    with pytest.raises(InvalidOptionError, match=f"not {before}"):
        stream.batch()
    stream.close()


@pytest.mark.parametrize("suffix", ["log", "indexes"])
def test_without_the_tail_a_damaged_last_segment_comes_from_brokers(
    brokers: FakeCluster, tmp_path: Path, suffix: str
) -> None:
    created(brokers, tmp_path, 3)
    (path,) = tmp_path.rglob(f"*/00000000000000000006-*.{suffix}")
    path.unlink()
    stream = both(brokers, tmp_path, tail="false")
    stream.all()
    assert offsets(stream) == list(range(9))
    stream.close()


def test_without_the_tail_a_start_by_time_in_the_tail_waits(
    brokers: FakeCluster, tmp_path: Path
) -> None:
    """The first record that is dated so is known, and not tiered yet."""
    part, topic_id = created(brokers, tmp_path, 2)
    part.log.dates = {at: 1000 + at for at in range(12)}
    stream = both(brokers, tmp_path, tail="false", startingTimestamp="1010")
    assert stream.batch(), "a new stream has a first batch in any case"
    assert offsets(stream) == []
    writer = AivenTierWriter(tmp_path, topic="t", topic_id=topic_id)
    for segment in _segments()[2:]:
        writer.write_segment(segment)
    stream.all()
    assert offsets(stream) == [10, 11]
    stream.close()


def test_without_the_tail_brokers_fill_holes(brokers: FakeCluster, tmp_path: Path) -> None:
    created(brokers, tmp_path, 3)
    gone = list(tmp_path.rglob("*/00000000000000000003-*"))
    assert gone
    for path in gone:
        path.unlink()
    stream = both(brokers, tmp_path, tail="false")
    stream.all()
    assert offsets(stream) == list(range(9)), "three records a segment; one is lost"
    assert stream.served["brokers"]
    stream.close()


def test_the_tier_is_listed_once_in_an_interval(brokers: FakeCluster, tmp_path: Path) -> None:
    part, _ = created(brokers, tmp_path, 2)
    part.log.local_start = 12  # more was tiered than the listing shows
    listed = mock.patch.object(TierListing, "_list", autospec=True, side_effect=TierListing._list)
    with listed as asked:
        stream = following(
            brokers, path=str(tmp_path), minListingIntervalMs="1h", maxOffsetsPerTrigger="1"
        )
        assert stream.all() == 12
    assert offsets(stream) == list(range(12))
    assert asked.call_count == 1
    assert stream.served["tier"] > 0, "it is listed when a stream begins"
    stream.close()


@pytest.mark.parametrize("strict", ["true", "false"])
def test_topic_created_again_within_hole_grace_is_noticed(
    brokers: FakeCluster, tmp_path: Path, strict: str
) -> None:
    created(brokers, tmp_path, 3)
    for path in list(tmp_path.rglob("*/00000000000000000003-*")):
        path.unlink()
    stream = both(
        brokers,
        tmp_path,
        maxSegmentsPerTrigger="1",
        failOnDataLoss=strict,
        holeGraceMs=str(3 * 10**12),
    )
    assert stream.batch()
    created(brokers, tmp_path, 0)
    assert not stream.batch(), "the hole may be a copy under way"
    stream.clock.seconds += 10**10
    if strict == "true":
        with pytest.raises(DataLossError, match=r"\[3, 6\)"):
            stream.all()
    else:
        stream.all()
        assert offsets(stream) == [0, 1, 2, 6, 7, 8, *range(12)]
    stream.close()


def test_hole_of_the_old_topic_that_heals_is_read(brokers: FakeCluster, tmp_path: Path) -> None:
    created(brokers, tmp_path, 3)
    gone = {path: path.read_bytes() for path in tmp_path.rglob("*/00000000000000000003-*")}
    for path in gone:
        path.unlink()
    stream = both(brokers, tmp_path, maxSegmentsPerTrigger="1", holeGraceMs=str(3 * 10**12))
    assert stream.batch()
    created(brokers, tmp_path, 0)
    assert not stream.batch()
    for path, data in gone.items():
        path.write_bytes(data)
    with pytest.raises(DataLossError, match="created again"):
        stream.all()
    assert offsets(stream) == list(range(9))
    stream.close()


def test_without_the_tail_a_running_stream_sees_what_is_tiered_later(
    brokers: FakeCluster, tmp_path: Path
) -> None:
    part, topic_id = created(brokers, tmp_path, 2)
    stream = both(brokers, tmp_path, tail="false")
    stream.all()
    assert offsets(stream) == list(range(6))
    writer = AivenTierWriter(tmp_path, topic="t", topic_id=topic_id)
    writer.write_segment(_segments()[2])
    part.log.local_start = 9
    stream.all()
    assert offsets(stream) == list(range(9))
    stream.close()


def test_without_the_tail_a_stream_that_had_it_waits_for_the_tier(
    brokers: FakeCluster, tmp_path: Path
) -> None:
    _, topic_id = created(brokers, tmp_path, 2)
    stream = both(brokers, tmp_path)
    stream.all()
    assert offsets(stream) == list(range(12))
    stream.start(tail="false")
    assert not stream.batch(), "nothing was lost: the tier is not that far"
    writer = AivenTierWriter(tmp_path, topic="t", topic_id=topic_id)
    for segment in _segments()[2:]:
        writer.write_segment(segment)
    stream.all()
    assert offsets(stream) == list(range(12))
    stream.close()


def test_stale_listing_is_renewed_before_an_old_broker_is_blamed(tmp_path: Path) -> None:
    with FakeCluster(versions={"ListOffsets": 9}) as brokers:
        part, topic_id = created(brokers, tmp_path, 2)
        part.log.local_start = 6
        stream = following(
            brokers,
            path=str(tmp_path),
            minListingIntervalMs="1h",
            maxOffsetsPerTrigger="6",
        )
        assert stream.batch()
        writer = AivenTierWriter(tmp_path, topic="t", topic_id=topic_id)
        for segment in _segments()[2:]:
            writer.write_segment(segment)
        part.log.local_start = 12
        stream.all()
        assert offsets(stream) == list(range(12))
        stream.close()


def _segments() -> list[SegmentFiles]:
    log = LogBuilder()
    for _ in range(SEGMENTS):
        log.append([SimpleRecord(b"value")] * 3)
        log.roll()
    return list(log.build().segments)
