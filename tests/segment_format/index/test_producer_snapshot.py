from __future__ import annotations

import struct

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segment_format.errors import CorruptIndexError, SegmentFormatError
from segment_format.index.producer_snapshot import (
    ProducerStateEntry,
    parse_producer_snapshot,
    write_producer_snapshot,
)
from tests.segment_format.outcomes import value_or_error
from tests.segment_format.record.vectors import kafka_vectors

I16, I32, I64 = (st.integers(-(2**bits), 2**bits - 1) for bits in (15, 31, 63))
ENTRIES = st.lists(
    st.builds(ProducerStateEntry, I64, I16, I32, I64, I32, I64, I32, I64), max_size=5
)
SNAPSHOT = bytes.fromhex(kafka_vectors()["files"]["snapshot"])


def snapshot(count: int, entries: bytes, *, version: int = 1) -> bytes:
    body = struct.pack(">i", count) + entries
    return struct.pack(">hI", version, google_crc32c.value(body)) + body


@pytest.mark.parametrize(
    ("data", "position"),
    [
        (b"", 0),
        (SNAPSHOT[:9], 9),
        (snapshot(0, b"", version=0), 0),
        (snapshot(0, b"", version=2), 0),
        (snapshot(1, bytes(45)), 6),
        (snapshot(1, bytes(47)), 6),
        (snapshot(2, bytes(46)), 6),
        (snapshot(0, bytes(46)), 6),
        (snapshot(-1, b""), 6),
        (snapshot(2**31 - 1, b""), 6),
    ],
)
def test_invalid_snapshot_raises(data: bytes, position: int) -> None:
    with pytest.raises(CorruptIndexError) as caught:
        parse_producer_snapshot(data)
    assert caught.value.position == position


def test_snapshot_with_changed_byte_raises() -> None:
    for position in range(len(SNAPSHOT)):
        for change in range(1, 256):
            changed = bytearray(SNAPSHOT)
            changed[position] ^= change
            with pytest.raises(CorruptIndexError):
                parse_producer_snapshot(changed)


def test_truncated_snapshot_raises() -> None:
    for size in range(len(SNAPSHOT)):
        with pytest.raises(CorruptIndexError):
            parse_producer_snapshot(SNAPSHOT[:size])


@given(ENTRIES)
def test_snapshot_round_trips(entries: list[ProducerStateEntry]) -> None:
    assert parse_producer_snapshot(write_producer_snapshot(entries)) == tuple(entries)


@given(st.binary(max_size=120) | st.builds(snapshot, I32, st.binary(max_size=120)))
def test_any_bytes_parse_or_raise_with_position(data: bytes) -> None:
    outcome = value_or_error(lambda: parse_producer_snapshot(data))

    if isinstance(outcome, SegmentFormatError):
        assert outcome.position is not None
        assert 0 <= outcome.position <= len(data)
    else:
        assert write_producer_snapshot(outcome) == data
