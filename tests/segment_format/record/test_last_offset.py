"""Tests that the last offset of a log is read from the headers of its last batches."""

from __future__ import annotations

import pytest

from segment_format.errors import (
    CorruptRecordError,
    CrcMismatchError,
    TruncatedBatchError,
    UnsupportedMagicError,
)
from segment_format.record.recovery import WINDOW_BYTES, last_offset
from segment_format.testing import LogBuilder, SimpleRecord, write_batch


def tail_of(data: bytes, position: int = 0) -> int:
    def read(start: int, stop: int) -> bytes:
        assert 0 <= start < stop <= len(data)
        return data[start:stop]

    return last_offset(read, len(data), position)


def batch(base: int, size: int = 10) -> bytes:
    return write_batch([SimpleRecord(bytes(size)), SimpleRecord(b"")], base_offset=base)


@pytest.mark.parametrize("size", [10, WINDOW_BYTES - 80, WINDOW_BYTES, 3 * WINDOW_BYTES])
def test_last_offset_is_found_with_batches_of_any_size(size: int) -> None:
    data = b"".join(batch(base, size) for base in range(0, 20, 2))
    assert tail_of(data) == 19
    assert tail_of(data, 9 * len(batch(0, size))) == 19


def test_last_offset_of_legacy_message_is_found() -> None:
    builder = LogBuilder(start_offset=5)
    builder.append_message_set([SimpleRecord(None, timestamp=-1)], magic=0)
    (segment,) = builder.build().segments
    assert len(segment.log) == 26
    assert tail_of(segment.log) == 5
    builder.append_message_set([SimpleRecord(b"a"), SimpleRecord(b"b")], magic=1, codec="gzip")
    wrapped = builder.build().segments[-1]
    assert tail_of(segment.log + wrapped.log) == 7


@pytest.mark.parametrize("lost", [1, 5, 60, 61, 83])
def test_last_offset_of_truncated_log_raises(lost: int) -> None:
    data = batch(0) + batch(2)
    with pytest.raises(TruncatedBatchError):
        tail_of(data[:-lost])


def test_last_offset_of_empty_log_raises() -> None:
    with pytest.raises(TruncatedBatchError, match="no batch"):
        tail_of(b"")


def test_last_offset_raises_if_offsets_do_not_ascend() -> None:
    with pytest.raises(CorruptRecordError, match="offset 0 follows offset 1"):
        tail_of(batch(0) + batch(0))


def test_last_offset_raises_for_zeros_after_last_batch() -> None:
    with pytest.raises(CorruptRecordError, match="length 0"):
        tail_of(batch(0) + bytes(4096))


def test_last_offset_raises_for_unknown_magic() -> None:
    data = bytearray(batch(0))
    data[16] = 3
    with pytest.raises(UnsupportedMagicError):
        tail_of(bytes(data))


def end_of(data: bytes, **facts: int) -> int:
    return last_offset(lambda start, stop: data[start:stop], len(data), **facts)


def flipped(data: bytes, position: int, bits: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= bits
    return bytes(changed)


def test_last_batch_with_wrong_checksum_raises() -> None:
    data = batch(0) + batch(2)
    with pytest.raises(CrcMismatchError):
        end_of(flipped(data, len(batch(0)) + 26, 2))


@pytest.mark.parametrize("facts", [{}, {"newest": 3}])
def test_last_batch_with_flipped_offset_bit_raises(facts: dict[str, int]) -> None:
    data = flipped(batch(0) + batch(2), len(batch(0)) + 7, 16)
    with pytest.raises(CorruptRecordError, match=r"begins at offset 18|has offsets 18 to 19"):
        end_of(data, **facts)


def test_gap_in_compacted_log_is_accepted() -> None:
    assert end_of(batch(0) + batch(18), newest=19) == 19
    assert end_of(batch(0) + batch(5) + batch(23)) == 24
    assert end_of(batch(0) + batch(9)) == 10  # more than one bit away from 2


def test_last_batch_whose_offset_contradicts_the_offset_index_raises() -> None:
    data = batch(0) + batch(2) + batch(4)
    position = 2 * len(batch(0))
    assert end_of(data, position=position, indexed=5) == 5
    with pytest.raises(
        CorruptRecordError, match="at offset 12, but the previous batch ends at offset 3"
    ):
        end_of(flipped(data, position + 7, 8), position=position, indexed=5)


@pytest.mark.parametrize("newest", [41, 42, 5, 3])
def test_gap_with_batch_in_time_index_is_accepted(newest: int) -> None:
    data = batch(2) + batch(5) + batch(41)
    assert end_of(data, base_offset=2, newest=newest) == 42


@pytest.mark.parametrize(
    ("bases", "newest"),
    [
        ((2, 5, 41 + 64), 42),  # offset 41 with a flipped bit
        ((2, 5, 41 - 32), 42),  # also a flipped bit
        ((2, 5), 42),  # truncated after the batch that follows the gap
        ((2, 5, 41), 20),
    ],
)
def test_gap_without_batch_in_time_index_raises(bases: tuple[int, ...], newest: int) -> None:
    data = b"".join(map(batch, bases))
    with pytest.raises(CorruptRecordError, match=f"the time index ends with offset {newest}"):
        end_of(data, base_offset=2, newest=newest)


def test_last_batch_moved_above_next_segment_raises_in_compacted_log() -> None:
    data = batch(0) + batch(5) + batch(10)
    position = len(batch(0) + batch(5))
    assert end_of(data, next_base=12) == 11
    for bit in range(2, 63):
        moved = flipped(data, position + 7 - bit // 8, 1 << bit % 8)
        if 10 ^ (1 << bit) > 10:
            with pytest.raises(CorruptRecordError, match="next segment begins at 12"):
                end_of(moved, next_base=12)
            end_of(moved)  # no evidence without a next segment


def test_segment_that_overlaps_next_segment_is_accepted() -> None:
    assert end_of(batch(0) + batch(5) + batch(7), next_base=6) == 8
    assert end_of(batch(0) + batch(5) + batch(7) + batch(30), next_base=6) == 31
