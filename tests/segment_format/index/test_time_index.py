from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segment_format.errors import CorruptIndexError, SegmentFormatError
from segment_format.index.sparse_indexes import TimeIndex
from segment_format.testing import write_time_index
from tests.segment_format.outcomes import value_or_error


def raw(*entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">qi", *entry) for entry in entries)


ENTRIES = st.lists(
    st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**31 - 1)), max_size=30
).map(
    lambda pairs: list(
        zip(sorted({a for a, _ in pairs}), sorted(b for _, b in pairs), strict=False)
    )
)


def test_lookup_in_empty_index_returns_base_offset() -> None:
    index = TimeIndex.from_bytes(b"", base_offset=500)

    assert len(index) == 0
    assert index.lookup(10**15) == (-1, 500)
    assert index.to_bytes() == b""


def test_several_timestamps_may_have_the_same_offset() -> None:
    index = TimeIndex.from_bytes(raw((5, 3), (6, 3)), base_offset=10)

    assert index.lookup(6) == (6, 13)


@pytest.mark.parametrize(
    ("data", "position"),
    [
        (raw((1, 1))[:-1], 0),
        (raw((1, 1)) + bytes(8), 12),
        (raw((1, -1)), 0),
        (raw((1, 1), (1, 2)), 12),
        (raw((1, 2), (2, 1)), 12),
        (raw((1, 1), (2, 1), (0, 0)), 24),
        (raw((2**63 - 1, 1), (-(2**63), 2)), 12),
    ],
)
def test_invalid_time_index_raises(data: bytes, position: int) -> None:
    with pytest.raises(CorruptIndexError) as caught:
        TimeIndex.from_bytes(data, base_offset=10)
    assert caught.value.position == position


@pytest.mark.parametrize("base_offset", [-1, 2**63 - 1])
def test_impossible_base_offset_raises(base_offset: int) -> None:
    with pytest.raises(CorruptIndexError):
        TimeIndex.from_bytes(raw((1, 1)), base_offset=base_offset)


@given(ENTRIES, st.integers(0, 2**62))
def test_time_index_round_trips(entries: list[tuple[int, int]], base: int) -> None:
    written = write_time_index(
        [(timestamp, base + offset) for timestamp, offset in entries], base_offset=base
    )

    index = TimeIndex.from_bytes(written, base_offset=base)

    assert index.timestamps.tolist() == [timestamp for timestamp, _ in entries]
    assert index.offsets.tolist() == [base + offset for _, offset in entries]
    assert index.to_bytes() == written
    assert index == TimeIndex.from_bytes(written, base_offset=base)


@given(ENTRIES, st.integers(-(2**63), 2**63 - 1))
def test_lookup_matches_linear_search(entries: list[tuple[int, int]], timestamp: int) -> None:
    index = TimeIndex.from_bytes(raw(*entries), base_offset=0)

    assert index.lookup(timestamp) == max(
        (entry for entry in entries if entry[0] <= timestamp), default=(-1, 0)
    )


@given(st.binary(max_size=100), st.integers(-(2**63), 2**63 - 1))
def test_any_bytes_parse_or_raise_with_position(data: bytes, base: int) -> None:
    outcome = value_or_error(lambda: TimeIndex.from_bytes(data, base_offset=base))

    if isinstance(outcome, SegmentFormatError):
        assert outcome.position is not None
        assert 0 <= outcome.position <= len(data)
    else:
        assert outcome.to_bytes() == data


def test_indexes_with_different_base_offsets_are_unequal() -> None:
    assert TimeIndex.from_bytes(b"", base_offset=1) != TimeIndex.from_bytes(b"", base_offset=2)
    assert TimeIndex.from_bytes(b"", base_offset=1) != b""
