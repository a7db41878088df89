"""Tests which offsets a micro-batch gets: limits are exact, batches have no gaps, and the
partitions progress evenly in event time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from kts_source.streaming.look import PendingSegment, segment_order
from kts_source.streaming.offsets import TopicPartition
from kts_source.streaming.tier_stream import NO_LIMITS, MicroBatchLimits, admit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Logs: TypeAlias = "Mapping[TopicPartition, Sequence[PendingSegment]]"


@st.composite
def random_logs(draw: st.DrawFn) -> Logs:
    drawn: dict[TopicPartition, list[PendingSegment]] = {}
    for number in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, 100))
        segments = []
        for _ in range(draw(st.integers(0, 5))):
            stop = start + draw(st.integers(1, 50))
            size, date = draw(st.integers(1, 1000)), draw(st.integers(-1, 1000))
            segments.append(PendingSegment(start, stop, size, segment_order(date)))
            start = stop
        drawn[TopicPartition("t", number)] = segments
    return drawn


limits = st.builds(
    MicroBatchLimits,
    st.none() | st.integers(1, 120),
    st.none() | st.integers(1, 3000),
    st.none() | st.integers(1, 6),
)


def pending_from(segments: Sequence[PendingSegment], start: int) -> Iterator[PendingSegment]:
    """Yields the segments from offset `start` on. If `start` is inside a segment, yields only the
    part of this segment from `start` on.
    """
    for segment in segments:
        if segment.stop > start:
            first = max(segment.start, start)
            size = segment.size * (segment.stop - first) // (segment.stop - segment.start)
            yield PendingSegment(first, segment.stop, size, segment.order)


@given(random_logs(), limits)
def test_batches_of_a_stream_cover_all_offsets_once_within_limits(
    logs: Logs, limit: MicroBatchLimits
) -> None:
    position = {partition: segments[0].start for partition, segments in logs.items() if segments}
    end = {partition: segments[-1].stop for partition, segments in logs.items() if segments}
    while position != end:
        pending = {
            partition: list(pending_from(logs[partition], start))
            for partition, start in position.items()
        }
        ends = admit({partition: iter(segments) for partition, segments in pending.items()}, limit)
        assert ends, "each batch must advance"
        taken = []
        for partition, stop in ends.items():
            assert position[partition] < stop <= end[partition]
            taken += [segment for segment in pending[partition] if segment.start < stop]
        offsets = sum(stop - position[partition] for partition, stop in ends.items())
        assert limit.offsets is None or offsets <= limit.offsets
        assert limit.segments is None or len(taken) <= limit.segments
        is_cut = limit.offsets is not None and offsets == limit.offsets
        if limit.size is not None and not is_cut:
            assert len(taken) == 1 or sum(segment.size for segment in taken) <= limit.size
        if not is_cut:
            assert all(
                stop in {segment.stop for segment in pending[partition]}
                for partition, stop in ends.items()
            )
        unread = sum(end[partition] - start for partition, start in position.items()) - offsets
        if limit.size is None and limit.segments is None and limit.offsets is not None:
            assert unread == 0 or offsets == limit.offsets, "the limit must be used fully"
        position = {**position, **ends}


@given(random_logs())
def test_admit_without_limits_returns_all_pending_offsets(logs: Logs) -> None:
    ends = admit({partition: iter(segments) for partition, segments in logs.items()}, NO_LIMITS)
    assert ends == {
        partition: segments[-1].stop for partition, segments in logs.items() if segments
    }


@given(random_logs(), st.integers(1, 10))
def test_admit_returns_offsets_of_oldest_segment_first(logs: Logs, count: int) -> None:
    remaining = {partition: list(segments) for partition, segments in logs.items()}
    expected: dict[TopicPartition, int] = {}
    for _ in range(count):
        heads = {partition: segments[0] for partition, segments in remaining.items() if segments}
        if heads:
            oldest = min(heads, key=lambda partition: (heads[partition].order, partition))
            expected[oldest] = remaining[oldest].pop(0).stop
    pending = {partition: iter(segments) for partition, segments in logs.items()}
    assert admit(pending, MicroBatchLimits(segments=count)) == expected


def test_admit_describes_only_the_segments_that_it_needs() -> None:
    requested: list[int] = []

    def endless(number: int) -> Iterator[PendingSegment]:
        for offset in range(1_000_000):
            requested.append(number)
            yield PendingSegment(offset, offset + 1, 10, segment_order(offset))

    pending = {TopicPartition("t", number): endless(number) for number in range(3)}
    assert admit(pending, MicroBatchLimits(segments=4)) == {
        TopicPartition("t", 0): 2,
        TopicPartition("t", 1): 1,
        TopicPartition("t", 2): 1,
    }
    assert len(requested) <= 3 + 4
