"""Tests streams of tier and brokers: segments of a recreated topic, and how often the tier is
listed.
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
from tests.kts_source.streaming.test_cluster_polls import offsets, start_stream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from segment_format.testing import SegmentFiles
    from tests.kts_source.streaming.running import Checkpointed

SEGMENTS = 4
"""Number of segments, with three records each."""


@pytest.fixture
def brokers() -> Iterator[FakeCluster]:
    with FakeCluster() as cluster:
        yield cluster


def create_topic(brokers: FakeCluster, tier: Path, tiered: int) -> tuple[FakePartition, str]:
    """Creates a topic of one partition, and writes its first `tiered` segments to the tier. Returns
    the partition and the topic id.
    """
    log = LogBuilder()
    for _ in range(SEGMENTS):
        log.append([SimpleRecord(b"value")] * 3)
        log.roll()
    built = log.build()
    partition = FakePartition(fake_log(built))
    topic_id = brokers.create("t", [partition])
    writer = AivenTierWriter(tier, topic="t", topic_id=topic_id)
    for segment in list(built.segments)[:tiered]:
        writer.write_segment(segment)
    return partition, topic_id


def start_hybrid_stream(brokers: FakeCluster, tier: Path, **options: str) -> Checkpointed:
    """Starts a stream over the tier and the brokers."""
    return start_stream(brokers, path=str(tier), minListingIntervalMs="0", **options)


def test_tiered_segments_of_deleted_topic_are_read_before_recreated_topic(
    brokers: FakeCluster, tmp_path: Path
) -> None:
    _, previous_id = create_topic(brokers, tmp_path, 3)
    strict, lenient = (
        start_hybrid_stream(brokers, tmp_path, maxSegmentsPerTrigger="1", failOnDataLoss=text)
        for text in ("true", "false")
    )
    for stream in (strict, lenient):
        assert stream.batch()
    _, current_id = create_topic(brokers, tmp_path, 0)
    with pytest.raises(DataLossError, match=f"created again.*{previous_id}.*{current_id}"):
        strict.all()
    assert offsets(strict) == list(range(9)), "records that were only on brokers are lost"
    lenient.all()
    assert offsets(lenient) == [*range(9), *range(12)]
    strict.close()
    lenient.close()


@pytest.mark.parametrize("is_tiered", [True, False])
def test_replayed_batch_of_deleted_topic_has_no_rows_of_recreated_topic(
    brokers: FakeCluster, tmp_path: Path, is_tiered: bool
) -> None:
    """The batch must not contain rows of the recreated topic."""
    create_topic(brokers, tmp_path, SEGMENTS * is_tiered)
    strict, lenient = (
        start_hybrid_stream(brokers, tmp_path, failOnDataLoss=text) for text in ("true", "false")
    )
    for stream in (strict, lenient):
        assert stream.choose()
    create_topic(brokers, tmp_path, 0)
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


def test_batch_is_replayed_if_option_topic_id_is_that_of_the_deleted_topic(
    brokers: FakeCluster, tmp_path: Path
) -> None:
    """The option `topicId` has the id of the deleted topic, and the cluster has the id of the
    recreated topic.
    """
    _, previous_id = create_topic(brokers, tmp_path, SEGMENTS)
    stream = start_hybrid_stream(brokers, tmp_path, topicId=previous_id)
    assert stream.choose()
    create_topic(brokers, tmp_path, 0)
    stream.start()
    assert offsets(stream) == list(range(12))
    with pytest.raises(InvalidOptionError, match=f"not {previous_id}"):
        stream.batch()
    stream.close()


@pytest.mark.parametrize("suffix", ["log", "indexes"])
def test_damaged_last_segment_is_read_from_brokers_with_tail_false(
    brokers: FakeCluster, tmp_path: Path, suffix: str
) -> None:
    create_topic(brokers, tmp_path, 3)
    (path,) = tmp_path.rglob(f"*/00000000000000000006-*.{suffix}")
    path.unlink()
    stream = start_hybrid_stream(brokers, tmp_path, tail="false")
    stream.all()
    assert offsets(stream) == list(range(9))
    stream.close()


def test_stream_with_tail_false_waits_until_tier_has_its_starting_timestamp(
    brokers: FakeCluster, tmp_path: Path
) -> None:
    """Brokers know the first record at the starting timestamp, but the tier does not have the
    record yet.
    """
    partition, topic_id = create_topic(brokers, tmp_path, 2)
    partition.log.dates = {offset: 1000 + offset for offset in range(12)}
    stream = start_hybrid_stream(brokers, tmp_path, tail="false", startingTimestamp="1010")
    assert stream.batch(), "a new stream always has a first batch"
    assert offsets(stream) == []
    writer = AivenTierWriter(tmp_path, topic="t", topic_id=topic_id)
    for segment in _segments()[2:]:
        writer.write_segment(segment)
    stream.all()
    assert offsets(stream) == [10, 11]
    stream.close()


def test_holes_are_read_from_brokers_with_tail_false(brokers: FakeCluster, tmp_path: Path) -> None:
    create_topic(brokers, tmp_path, 3)
    deleted = list(tmp_path.rglob("*/00000000000000000003-*"))
    assert deleted
    for path in deleted:
        path.unlink()
    stream = start_hybrid_stream(brokers, tmp_path, tail="false")
    stream.all()
    assert offsets(stream) == list(range(9)), "offsets of three segments, the second from brokers"
    assert stream.served["brokers"]
    stream.close()


def test_tier_is_listed_only_once_per_interval(brokers: FakeCluster, tmp_path: Path) -> None:
    partition, _ = create_topic(brokers, tmp_path, 2)
    partition.log.local_start = 12  # more segments were tiered than the listing has
    count_listings = mock.patch.object(
        TierListing, "_list", autospec=True, side_effect=TierListing._list
    )
    with count_listings as list_calls:
        stream = start_stream(
            brokers, path=str(tmp_path), minListingIntervalMs="1h", maxOffsetsPerTrigger="1"
        )
        assert stream.all() == 12
    assert offsets(stream) == list(range(12))
    assert list_calls.call_count == 1
    assert stream.served["tier"] > 0, "the tier is listed when a stream starts"
    stream.close()


@pytest.mark.parametrize("strict", ["true", "false"])
def test_topic_recreated_while_stream_waits_for_a_hole_is_detected(
    brokers: FakeCluster, tmp_path: Path, strict: str
) -> None:
    create_topic(brokers, tmp_path, 3)
    for path in list(tmp_path.rglob("*/00000000000000000003-*")):
        path.unlink()
    stream = start_hybrid_stream(
        brokers,
        tmp_path,
        maxSegmentsPerTrigger="1",
        failOnDataLoss=strict,
        holeGraceMs=str(3 * 10**12),
    )
    assert stream.batch()
    create_topic(brokers, tmp_path, 0)
    assert not stream.batch(), "the hole may be a copy in progress"
    stream.clock.seconds += 10**10
    if strict == "true":
        with pytest.raises(DataLossError, match=r"\[3, 6\)"):
            stream.all()
    else:
        stream.all()
        assert offsets(stream) == [0, 1, 2, 6, 7, 8, *range(12)]
    stream.close()


def test_hole_in_deleted_topic_is_read_after_it_is_filled(
    brokers: FakeCluster, tmp_path: Path
) -> None:
    create_topic(brokers, tmp_path, 3)
    deleted = {path: path.read_bytes() for path in tmp_path.rglob("*/00000000000000000003-*")}
    for path in deleted:
        path.unlink()
    stream = start_hybrid_stream(
        brokers, tmp_path, maxSegmentsPerTrigger="1", holeGraceMs=str(3 * 10**12)
    )
    assert stream.batch()
    create_topic(brokers, tmp_path, 0)
    assert not stream.batch()
    for path, data in deleted.items():
        path.write_bytes(data)
    with pytest.raises(DataLossError, match="created again"):
        stream.all()
    assert offsets(stream) == list(range(9))
    stream.close()


def test_running_stream_with_tail_false_reads_new_segments(
    brokers: FakeCluster, tmp_path: Path
) -> None:
    partition, topic_id = create_topic(brokers, tmp_path, 2)
    stream = start_hybrid_stream(brokers, tmp_path, tail="false")
    stream.all()
    assert offsets(stream) == list(range(6))
    writer = AivenTierWriter(tmp_path, topic="t", topic_id=topic_id)
    writer.write_segment(_segments()[2])
    partition.log.local_start = 9
    stream.all()
    assert offsets(stream) == list(range(9))
    stream.close()


def test_stream_waits_for_the_tier_after_tail_was_turned_off(
    brokers: FakeCluster, tmp_path: Path
) -> None:
    _, topic_id = create_topic(brokers, tmp_path, 2)
    stream = start_hybrid_stream(brokers, tmp_path)
    stream.all()
    assert offsets(stream) == list(range(12))
    stream.start(tail="false")
    assert not stream.batch(), "the tier ends before the stream's offset; no record is lost"
    writer = AivenTierWriter(tmp_path, topic="t", topic_id=topic_id)
    for segment in _segments()[2:]:
        writer.write_segment(segment)
    stream.all()
    assert offsets(stream) == list(range(12))
    stream.close()


def test_tier_is_listed_again_after_kafka_3_9_brokers_moved_the_local_log_start(
    tmp_path: Path,
) -> None:
    with FakeCluster(versions={"ListOffsets": 9}) as brokers:
        partition, topic_id = create_topic(brokers, tmp_path, 2)
        partition.log.local_start = 6
        stream = start_stream(
            brokers,
            path=str(tmp_path),
            minListingIntervalMs="1h",
            maxOffsetsPerTrigger="6",
        )
        assert stream.batch()
        writer = AivenTierWriter(tmp_path, topic="t", topic_id=topic_id)
        for segment in _segments()[2:]:
            writer.write_segment(segment)
        partition.log.local_start = 12
        stream.all()
        assert offsets(stream) == list(range(12))
        stream.close()


def _segments() -> list[SegmentFiles]:
    log = LogBuilder()
    for _ in range(SEGMENTS):
        log.append([SimpleRecord(b"value")] * 3)
        log.roll()
    return list(log.build().segments)
