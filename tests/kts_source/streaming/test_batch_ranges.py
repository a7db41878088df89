"""Tests the offset ranges of a batch between two positions, and the position after a batch.

A position contains the end offset of its batch in each partition. For new partitions, it also
contains the begin offset of the batch.
"""

from __future__ import annotations

import pytest

from kts_source.errors import StreamOffsetError
from kts_source.streaming.offsets import (
    INITIAL,
    BatchRange,
    StreamPosition,
    TopicBegin,
    TopicPartition,
    TopicPosition,
    batch_ranges,
    position_from_json,
    position_to_json,
)
from kts_source.streaming.tier_stream import PendingPartition, next_position


def position_at(topic_id: str | None = "A", **offsets: int) -> StreamPosition:
    """Returns a position of topic `t`; `p0=5` is offset 5 of partition 0."""
    numbers = {int(name[1:]): offset for name, offset in offsets.items()}
    return StreamPosition({"t": TopicPosition(topic_id, numbers)})


def with_begins(end: StreamPosition, **offsets: int) -> StreamPosition:
    """Returns a copy of the position `end` that also contains begin offsets; `p0=5` is begin offset
    5 of partition 0.
    """
    numbers = {int(name[1:]): offset for name, offset in offsets.items()}
    topic_id = end.topics["t"].topic_id
    assert topic_id is not None
    return StreamPosition(end.topics, {"t": TopicBegin(topic_id, numbers)})


def test_stored_begin_offset_overrides_the_previous_end_of_a_partition() -> None:
    end = with_begins(position_at(p0=9, p1=7, p2=5, p3=3), p1=2, p3=3)
    assert batch_ranges(position_at(p0=5, p1=0, p2=5), end) == [
        BatchRange(TopicPartition("t", 0), "A", 5, 9),
        BatchRange(TopicPartition("t", 1), "A", 2, 7),
    ]


def test_first_batch_of_a_topic_id_does_not_depend_on_previous_topic_id() -> None:
    end = with_begins(position_at("B", p0=9), p0=4)
    assert batch_ranges(INITIAL, end) == batch_ranges(position_at("A", p0=20), end)


@pytest.mark.parametrize(
    "end",
    [
        INITIAL,
        position_at(p0=9),
        with_begins(position_at(p0=9), p0=4),
        with_begins(position_at("B", p0=9, p1=3), p1=0),
        position_at(None),
    ],
)
def test_batch_between_equal_positions_is_empty(end: StreamPosition) -> None:
    """Spark 4.0 and 4.1 plan a batch between equal positions after a restart."""
    same_end = position_from_json(position_to_json(end))
    assert batch_ranges(end, same_end) == []


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (INITIAL, position_at(p0=9)),
        (position_at("B", p0=5), position_at(p0=9)),
        (position_at(p1=5), position_at(p0=9)),
        (position_at(p0=10), position_at(p0=9)),
        (position_at(p0=0), with_begins(position_at(p0=9), p0=10)),
        (position_at(None, p0=5), position_at(None, p0=9)),
    ],
)
def test_positions_of_different_streams_raise_stream_offset_error(
    start: StreamPosition, end: StreamPosition
) -> None:
    with pytest.raises(StreamOffsetError, match=r"topic t, partition 0"):
        batch_ranges(start, end)


def pending_partition(
    number: int, start: int, stop: int, *, is_in_position: bool, topic_id: str = "A"
) -> PendingPartition:
    return PendingPartition(
        TopicPartition("t", number), topic_id, start, stop, is_in_position, None
    )


def test_next_position_without_new_offsets_is_unchanged() -> None:
    position = position_at(p0=5)
    assert (
        next_position(position, [pending_partition(0, 5, 9, is_in_position=True)], {}) is position
    )
    assert (
        next_position(position, [pending_partition(1, 0, 9, is_in_position=False)], {}) is position
    )
    ends = {TopicPartition("t", 0): 5}
    assert (
        next_position(position, [pending_partition(0, 5, 9, is_in_position=True)], ends) is position
    )


def test_next_position_contains_begin_of_new_partitions() -> None:
    pending = [
        pending_partition(0, 5, 9, is_in_position=True),
        pending_partition(1, 3, 9, is_in_position=False),
    ]
    end = next_position(position_at(p0=5, p7=1), pending, {TopicPartition("t", 0): 8})
    assert end == with_begins(position_at(p0=8, p1=3, p7=1), p1=3)


def test_next_position_drops_offsets_of_previous_topic_id() -> None:
    pending = [pending_partition(1, 0, 9, is_in_position=False, topic_id="B")]
    end = next_position(position_at(p0=5, p1=8), pending, {TopicPartition("t", 1): 9})
    assert end == with_begins(position_at("B", p1=9), p1=0)


def test_next_position_drops_leader_epoch_after_lost_offsets() -> None:
    position = StreamPosition({"t": TopicPosition("A", {0: 5, 1: 5}, {0: 3, 1: 3})})
    pending = [
        pending_partition(0, 20, 20, is_in_position=False),
        pending_partition(1, 5, 9, is_in_position=True),
    ]
    end = next_position(position, pending, {TopicPartition("t", 1): 9})
    # The record before offset 20 was not read, so its leader epoch is unknown.
    assert end.topics["t"] == TopicPosition("A", {0: 20, 1: 9}, {})


def test_next_position_of_new_stream_without_offsets_has_no_topics() -> None:
    assert next_position(INITIAL, [], {}) == StreamPosition({})
