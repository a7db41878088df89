"""What a micro-batch takes: limits hold exactly, batches tile the offsets, event time is even."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from kts_source.streaming.admission import NO_LIMITS, BatchLimits, admit
from kts_source.streaming.look import PendingSegment, dated
from kts_source.streaming.offsets import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Logs: TypeAlias = "Mapping[TopicPartition, Sequence[PendingSegment]]"


@st.composite
def logs(draw: st.DrawFn) -> Logs:
    found: dict[TopicPartition, list[PendingSegment]] = {}
    for number in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, 100))
        segments = []
        for _ in range(draw(st.integers(0, 5))):
            stop = at + draw(st.integers(1, 50))
            size, date = draw(st.integers(1, 1000)), draw(st.integers(-1, 1000))
            segments.append(PendingSegment(at, stop, size, dated(date)))
            at = stop
        found[TopicPartition("t", number)] = segments
    return found


limits = st.builds(
    BatchLimits,
    st.none() | st.integers(1, 120),
    st.none() | st.integers(1, 3000),
    st.none() | st.integers(1, 6),
)


def left(segments: Sequence[PendingSegment], start: int) -> Iterator[PendingSegment]:
    """What is pending from an offset on."""
    for one in segments:
        if one.stop > start:
            first = max(one.start, start)
            size = one.size * (one.stop - first) // (one.stop - one.start)
            yield PendingSegment(first, one.stop, size, one.order)


@given(logs(), limits)
def test_admitted_batches_tile_offsets_within_limits(found: Logs, limit: BatchLimits) -> None:
    at = {place: one[0].start for place, one in found.items() if one}
    end = {place: one[-1].stop for place, one in found.items() if one}
    while at != end:
        pending = {place: list(left(found[place], start)) for place, start in at.items()}
        ends = admit({place: iter(one) for place, one in pending.items()}, limit)
        assert ends, "every batch moves"
        taken = []
        for place, stop in ends.items():
            assert at[place] < stop <= end[place]
            taken += [one for one in pending[place] if one.start < stop]
        offsets = sum(stop - at[place] for place, stop in ends.items())
        assert limit.offsets is None or offsets <= limit.offsets
        assert limit.segments is None or len(taken) <= limit.segments
        cut = limit.offsets is not None and offsets == limit.offsets
        if limit.size is not None and not cut:
            assert len(taken) == 1 or sum(one.size for one in taken) <= limit.size
        if not cut:
            assert all(stop in {one.stop for one in pending[place]} for place, stop in ends.items())
        rest = sum(end[place] - start for place, start in at.items()) - offsets
        if limit.size is None and limit.segments is None and limit.offsets is not None:
            assert rest == 0 or offsets == limit.offsets, "as much as is allowed"
        at = {**at, **ends}


@given(logs())
def test_admit_without_limits_takes_everything(found: Logs) -> None:
    ends = admit({place: iter(one) for place, one in found.items()}, NO_LIMITS)
    assert ends == {place: one[-1].stop for place, one in found.items() if one}


@given(logs(), st.integers(1, 10))
def test_admit_takes_oldest_segment_first(found: Logs, count: int) -> None:
    rest = {place: list(one) for place, one in found.items()}
    wanted: dict[TopicPartition, int] = {}
    for _ in range(count):
        heads = {place: one[0] for place, one in rest.items() if one}
        if heads:
            oldest = min(heads, key=lambda place: (heads[place].order, place))
            wanted[oldest] = rest[oldest].pop(0).stop
    pending = {place: iter(one) for place, one in found.items()}
    assert admit(pending, BatchLimits(segments=count)) == wanted


def test_admit_reads_no_unneeded_segments() -> None:
    asked: list[int] = []

    def endless(number: int) -> Iterator[PendingSegment]:
        for at in range(1_000_000):
            asked.append(number)
            yield PendingSegment(at, at + 1, 10, dated(at))

    pending = {TopicPartition("t", number): endless(number) for number in range(3)}
    assert admit(pending, BatchLimits(segments=4)) == {
        TopicPartition("t", 0): 2,
        TopicPartition("t", 1): 1,
        TopicPartition("t", 2): 1,
    }
    assert len(asked) <= 3 + 4
