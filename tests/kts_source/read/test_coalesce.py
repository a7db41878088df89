from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kts_source.read.coalesce import ByteRange, Request, coalesce

CASES: dict[str, tuple[list[tuple[int, int]], int, int, list[tuple[int, int]]]] = {
    "nothing": ([], 0, 10, []),
    "empty ranges": ([(3, 3), (0, 0)], 5, 10, []),
    "one": ([(5, 9)], 0, 10, [(5, 9)]),
    "touching": ([(0, 4), (4, 8)], 0, 10, [(0, 8)]),
    "apart": ([(0, 4), (5, 8)], 0, 10, [(0, 4), (5, 8)]),
    "gap allowed": ([(0, 4), (5, 8)], 1, 10, [(0, 8)]),
    "gap too large": ([(0, 4), (6, 8)], 1, 10, [(0, 4), (6, 8)]),
    "out of order, twice": ([(4, 8), (0, 4), (4, 8)], 0, 10, [(0, 8)]),
    "overlapping": ([(0, 6), (4, 8)], 0, 10, [(0, 8)]),
    "one within another": ([(0, 9), (2, 3)], 0, 10, [(0, 9)]),
    "equal parts at borders": (
        [(n, n + 4) for n in range(0, 24, 4)],
        0,
        10,
        [(0, 8), (8, 16), (16, 24)],
    ),
    "exactly full": ([(0, 5), (5, 10)], 0, 10, [(0, 10)]),
    "one longer than a request": ([(0, 25)], 0, 10, [(0, 9), (9, 17), (17, 25)]),
    "a long one between short ones": (
        [(0, 2), (2, 27), (27, 29)],
        0,
        10,
        [(0, 2), (2, 11), (11, 19), (19, 29)],
    ),
    "cut in a gap": ([(0, 6), (7, 13)], 1, 10, [(0, 6), (7, 13)]),
    "single bytes": ([(0, 3)], 0, 1, [(0, 1), (1, 2), (2, 3)]),
}


def spans(requests: tuple[Request, ...]) -> list[tuple[int, int]]:
    return [(one.byte_range.start, one.byte_range.stop) for one in requests]


@pytest.mark.parametrize("name", CASES)
def test_table(name: str) -> None:
    ranges, max_gap, max_request_bytes, expected = CASES[name]
    wanted = [ByteRange(*one) for one in ranges]
    assert spans(coalesce(wanted, max_gap=max_gap, max_request_bytes=max_request_bytes)) == expected


def test_what_is_wanted_of_a_request_leaves_the_gaps_out() -> None:
    requests = coalesce(
        [ByteRange(0, 4), ByteRange(6, 8), ByteRange(8, 30)], max_gap=2, max_request_bytes=16
    )
    assert spans(requests) == [(0, 8), (8, 19), (19, 30)]
    assert requests[0].wanted == (ByteRange(0, 4), ByteRange(6, 8))
    assert requests[1].wanted == (requests[1].byte_range,)


def test_slow_start_asks_for_the_first_range_alone() -> None:
    chunks = [ByteRange(n, n + 4) for n in range(0, 40, 4)]
    requests = coalesce(chunks, max_gap=0, max_request_bytes=16, first_request_bytes=100)
    assert spans(requests) == [(0, 4), (4, 16), (16, 28), (28, 40)]
    requests = coalesce(chunks, max_gap=0, max_request_bytes=16, first_request_bytes=3)
    assert spans(requests)[:2] == [(0, 3), (3, 16)]


@pytest.mark.parametrize(
    ("max_gap", "max_request_bytes", "first"), [(-1, 1, None), (0, 0, None), (0, 1, 0)]
)
def test_bounds_out_of_range_are_refused(
    max_gap: int, max_request_bytes: int, first: int | None
) -> None:
    with pytest.raises(ValueError, match="out of range"):
        coalesce(
            [],
            max_gap=max_gap,
            max_request_bytes=max_request_bytes,
            first_request_bytes=first,
        )


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (4, 3)])
def test_a_range_is_not_negative_nor_backwards(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="not a byte range"):
        ByteRange(start, stop)


ranges_of_bytes = st.lists(
    st.builds(
        lambda start, size: ByteRange(start, start + size), st.integers(0, 120), st.integers(0, 30)
    ),
    max_size=12,
)


@given(
    ranges=ranges_of_bytes,
    max_gap=st.integers(0, 8),
    max_request_bytes=st.integers(1, 40),
    first=st.none() | st.integers(1, 40),
)
def test_every_plan_fetches_what_is_wanted_and_little_else(
    ranges: list[ByteRange], max_gap: int, max_request_bytes: int, first: int | None
) -> None:
    requests = coalesce(
        ranges, max_gap=max_gap, max_request_bytes=max_request_bytes, first_request_bytes=first
    )
    wanted = {byte for one in ranges for byte in range(one.start, one.stop)}
    # Ascending, apart, none too large, none empty.
    for one in requests:
        assert 0 < one.byte_range.size <= max_request_bytes
    for one, following in itertools.pairwise(requests):
        assert one.byte_range.stop <= following.byte_range.start
    # What is named as wanted is exactly that, each byte once.
    named = [b for one in requests for part in one.wanted for b in range(part.start, part.stop)]
    assert named == sorted(wanted)
    for one in requests:
        # It begins and ends with wanted bytes, lies inside, and no gap is wider than allowed.
        assert one.wanted[0].start == one.byte_range.start
        assert one.wanted[-1].stop == one.byte_range.stop
        for part, following_part in zip(one.wanted, one.wanted[1:], strict=False):
            assert 0 < following_part.start - part.stop <= max_gap
    if first is not None and requests:
        assert requests[0].byte_range.size <= first


@given(chunk=st.integers(1, 20), count=st.integers(1, 40), max_request_bytes=st.integers(20, 100))
def test_equal_chunks_are_never_split_and_requests_are_well_filled(
    chunk: int, count: int, max_request_bytes: int
) -> None:
    chunks = [ByteRange(n * chunk, (n + 1) * chunk) for n in range(count)]
    requests = coalesce(chunks, max_gap=0, max_request_bytes=max_request_bytes)
    per_request = max_request_bytes // chunk
    assert all(one.byte_range.start % chunk == 0 for one in requests)
    sizes = [one.byte_range.size // chunk for one in requests]
    assert sum(sizes) == count
    # Never less than half full on average, were there enough to fill.
    assert len(sizes) <= max(1, 2 * -(-count // per_request))
    assert max(sizes) - min(sizes) <= max(1, per_request // 2)


def test_many_ranges_take_no_quadratic_time() -> None:
    chunks = [ByteRange(n, n + 1) for n in range(200_000)]
    requests = coalesce(chunks, max_gap=0, max_request_bytes=1000)
    assert len(requests) == 200
