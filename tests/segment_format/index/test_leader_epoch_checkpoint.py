from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segment_format.errors import CorruptIndexError, SegmentFormatError
from segment_format.index.checkpoints import EpochEntry, LeaderEpochCheckpoint
from segment_format.testing import write_leader_epoch_checkpoint
from tests.segment_format.outcomes import value_or_error

LINEAGES = st.lists(
    st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)), max_size=10
).map(
    lambda pairs: tuple(
        EpochEntry(*pair)
        for pair in zip(sorted({a for a, _ in pairs}), sorted({b for _, b in pairs}), strict=False)
    )
)


def test_checkpoint_with_windows_line_ends_or_without_last_line_end_parses() -> None:
    checkpoint = LeaderEpochCheckpoint.from_bytes(b"0\r\n2\r\n0 \t0\r\n5  80\r\n")

    assert checkpoint.entries == (EpochEntry(0, 0), EpochEntry(5, 80))
    assert LeaderEpochCheckpoint.from_bytes(b"0\n1\n3 7").entries == (EpochEntry(3, 7),)


def test_empty_checkpoint_parses() -> None:
    checkpoint = LeaderEpochCheckpoint.from_bytes(b"0\n0\n")

    assert checkpoint.entries == ()
    assert checkpoint.epoch_for_offset(0) is None


@pytest.mark.parametrize(
    ("data", "position"),
    [
        (b"", 0),
        (b"0\n", 0),
        (b"1\n0\n", 0),
        (b"x\n0\n", 0),
        (b"0 0\n0\n", 0),
        (b"\n0\n", 0),
        (b"0\nx\n", 2),
        (b"0\n1\n", 2),
        (b"0\n0\n0 0\n", 2),
        (b"0\n2\n0 0\n", 2),
        (b"0\n1\n0\n", 4),
        (b"0\n1\n0 0 0\n", 4),
        (b"0\n1\n0 x\n", 4),
        (b"0\n1\n-1 0\n", 4),
        (b"0\n1\n0 -1\n", 4),
        (b"0\n1\n0 1.0\n", 4),
        (b"0\n1\n2147483648 0\n", 4),
        (b"0\n1\n0 9223372036854775808\n", 4),
        (b"0\n1\n0 00000000000000000000\n", 4),
        (b"0\n2\n0 0\n0 5\n", 8),
        (b"0\n2\n1 5\n2 5\n", 8),
        (b"0\n2\n1 5\n2 4\n", 8),
        (b"0\n2\n0 0\n\xd9\xa1 5\n", 8),
        (b"0\n1\n0 0\n\n", 2),
        (b"0\n" + b"9" * 5000 + b"\n", 2),
    ],
)
def test_invalid_checkpoint_raises(data: bytes, position: int) -> None:
    with pytest.raises(CorruptIndexError) as caught:
        LeaderEpochCheckpoint.from_bytes(data)
    assert caught.value.position == position
    assert len(str(caught.value)) < 200


@given(LINEAGES)
def test_checkpoint_round_trips(entries: tuple[EpochEntry, ...]) -> None:
    checkpoint = LeaderEpochCheckpoint(entries)

    assert LeaderEpochCheckpoint.from_bytes(checkpoint.to_bytes()) == checkpoint
    assert checkpoint.to_bytes() == write_leader_epoch_checkpoint(
        (entry.epoch, entry.start_offset) for entry in entries
    )


@given(LINEAGES, st.integers(0, 2**63 - 1))
def test_epoch_for_offset_is_highest_epoch_that_starts_at_or_below_it(
    entries: tuple[EpochEntry, ...], offset: int
) -> None:
    checkpoint = LeaderEpochCheckpoint(entries)

    for probe in (offset, *(entry.start_offset for entry in entries)):
        assert checkpoint.epoch_for_offset(probe) == max(
            (entry.epoch for entry in entries if entry.start_offset <= probe), default=None
        )


@given(
    st.binary(max_size=60)
    | st.text("0123456789 \n-", max_size=40).map(lambda text: b"0\n" + text.encode())
)
def test_any_bytes_parse_or_raise_with_position(data: bytes) -> None:
    outcome = value_or_error(lambda: LeaderEpochCheckpoint.from_bytes(data))

    if isinstance(outcome, SegmentFormatError):
        assert outcome.position is not None
        assert 0 <= outcome.position <= len(data)
    else:
        assert LeaderEpochCheckpoint.from_bytes(outcome.to_bytes()) == outcome
