from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segment_format.errors import (
    CorruptRecordError,
    SegmentFormatError,
    TruncatedBatchError,
    UnsupportedMagicError,
)
from segment_format.record.framing import Entry, iter_entries
from tests.segment_format.outcomes import value_or_error
from tests.segment_format.record.vectors import kafka_vectors, record_set

LOG = b"".join(bytes.fromhex(vector["hex"]) for vector in kafka_vectors()["batches"])


def test_entries_cover_the_log_without_gaps() -> None:
    expected = [batch for vector in kafka_vectors()["batches"] for batch in vector["batches"]]

    entries = list(iter_entries(LOG))

    assert [entry.magic for entry in entries] == [batch["magic"] for batch in expected]
    assert [entry.offset for entry in entries] == [
        batch["base"] if batch["magic"] == 2 else batch["last"] for batch in expected
    ]
    assert [entry.position for entry in entries] == [0, *(entry.stop for entry in entries[:-1])]
    assert entries[-1].stop == len(LOG)


def test_iteration_can_start_at_any_entry() -> None:
    entries = list(iter_entries(LOG))

    assert list(iter_entries(LOG, position=entries[5].position)) == entries[5:]
    assert list(iter_entries(LOG, position=len(LOG))) == []
    assert list(iter_entries(b"")) == []


def test_log_truncated_inside_entry_raises() -> None:
    log = record_set("v2-none-createtime") + record_set("v0-none")
    borders = {entry.position for entry in iter_entries(log)}

    for size in range(len(log)):
        if size in borders:
            assert all(entry.stop <= size for entry in iter_entries(log[:size]))
            continue
        with pytest.raises(TruncatedBatchError) as caught:
            list(iter_entries(log[:size]))
        assert caught.value.position == max(border for border in borders if border < size)


def entry(length: int, magic: int, size: int = 200) -> bytes:
    return struct.pack(">qiib", 7, length, 0, magic).ljust(size, b"\0")


@pytest.mark.parametrize("magic", [-128, -1, 3, 127])
def test_unknown_magic_byte_raises_unsupported_format_error(magic: int) -> None:
    with pytest.raises(UnsupportedMagicError) as caught:
        list(iter_entries(entry(188, magic)))
    assert (caught.value.position, caught.value.offset) == (0, 7)


@pytest.mark.parametrize(
    ("length", "magic"), [(13, 0), (21, 1), (48, 2), (0, 0), (-1, 2), (-(2**31), 1)]
)
def test_entry_length_below_minimum_raises(length: int, magic: int) -> None:
    with pytest.raises(CorruptRecordError) as caught:
        list(iter_entries(entry(length, magic)))
    assert not isinstance(caught.value, TruncatedBatchError)
    assert caught.value.position == 0


def test_zero_filled_tail_raises() -> None:
    log = record_set("v2-min")

    with pytest.raises(CorruptRecordError) as caught:
        list(iter_entries(log + bytes(64)))
    assert caught.value.position == len(log)


@given(st.binary(max_size=300))
def test_any_bytes_are_split_into_entries_or_raise_with_position(data: bytes) -> None:
    entries: list[Entry] = []
    outcome = value_or_error(lambda: entries.extend(iter_entries(data)))

    assert [entry.position for entry in entries] == [0, *(entry.stop for entry in entries[:-1])][
        : len(entries)
    ]
    end = entries[-1].stop if entries else 0
    if isinstance(outcome, SegmentFormatError):
        assert outcome.position == end
    else:
        assert end == len(data)
