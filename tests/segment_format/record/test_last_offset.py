"""The last offset of a log, told from the headers of its last batches."""

from __future__ import annotations

import pytest

from segment_format.errors import CorruptRecordError, TruncatedBatchError, UnsupportedMagicError
from segment_format.record.last_offset import WINDOW_BYTES, last_offset
from segment_format.testing import LogBuilder, SimpleRecord, write_batch


def tail_of(data: bytes, position: int = 0) -> int:
    def read(start: int, stop: int) -> bytes:
        assert 0 <= start < stop <= len(data)
        return data[start:stop]

    return last_offset(read, len(data), position)


def batch(base: int, size: int = 10) -> bytes:
    return write_batch([SimpleRecord(bytes(size)), SimpleRecord(b"")], base_offset=base)


@pytest.mark.parametrize("size", [10, WINDOW_BYTES - 80, WINDOW_BYTES, 3 * WINDOW_BYTES])
def test_batches_of_any_size_are_stepped_over(size: int) -> None:
    data = b"".join(batch(base, size) for base in range(0, 20, 2))
    assert tail_of(data) == 19
    assert tail_of(data, 9 * len(batch(0, size))) == 19


def test_legacy_batches_end_at_their_own_offset() -> None:
    builder = LogBuilder(start_offset=5)
    builder.append_message_set([SimpleRecord(None, timestamp=-1)], magic=0)
    (segment,) = builder.build().segments
    assert len(segment.log) == 26
    assert tail_of(segment.log) == 5
    builder.append_message_set([SimpleRecord(b"a"), SimpleRecord(b"b")], magic=1, codec="gzip")
    wrapped = builder.build().segments[-1]
    assert tail_of(segment.log + wrapped.log) == 7


@pytest.mark.parametrize("lost", [1, 5, 60, 61, 83])
def test_a_cut_log_is_an_error(lost: int) -> None:
    data = batch(0) + batch(2)
    with pytest.raises(TruncatedBatchError):
        tail_of(data[:-lost])


def test_an_empty_log_is_an_error() -> None:
    with pytest.raises(TruncatedBatchError, match="no batch"):
        tail_of(b"")


def test_offsets_that_do_not_ascend_are_an_error() -> None:
    with pytest.raises(CorruptRecordError, match="offset 0 follows offset 1"):
        tail_of(batch(0) + batch(0))


def test_zeros_behind_the_last_batch_are_an_error() -> None:
    with pytest.raises(CorruptRecordError, match="length 0"):
        tail_of(batch(0) + bytes(4096))


def test_an_unknown_magic_is_an_error() -> None:
    data = bytearray(batch(0))
    data[16] = 3
    with pytest.raises(UnsupportedMagicError):
        tail_of(bytes(data))


@pytest.mark.parametrize("newest", [41, 42, 5, 3])
def test_time_index_that_names_a_batch_allows_gaps(newest: int) -> None:
    data = batch(2) + batch(5) + batch(41)
    assert end_of(data, newest) == 42


@pytest.mark.parametrize(
    ("bases", "newest"),
    [
        ((2, 5, 41 + 64), 42),  # 41 with a flipped bit
        ((2, 5, 41 - 32), 42),  # likewise
        ((2, 5), 42),  # cut after a batch that follows a gap
        ((2, 5, 41), 20),
    ],
)
def test_time_index_that_names_no_batch_is_refused(bases: tuple[int, ...], newest: int) -> None:
    data = b"".join(map(batch, bases))
    with pytest.raises(CorruptRecordError, match=f"the time index ends with offset {newest}"):
        end_of(data, newest)


def end_of(data: bytes, newest: int) -> int:
    return last_offset(
        lambda start, stop: data[start:stop],
        len(data),
        base_offset=2,
        newest=newest,
    )
