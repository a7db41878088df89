from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segment_format.errors import CorruptIndexError, SegmentFormatError
from segment_format.index.transaction_index import (
    ENTRY_SIZE,
    AbortedTxn,
    parse_transaction_index,
    write_transaction_index,
)
from segment_format.testing import AbortedTransaction
from segment_format.testing import write_transaction_index as write_independently
from tests.segment_format.outcomes import value_or_error

I64 = st.integers(0, 2**63 - 1)


def raw(version: int, producer_id: int, first: int, last: int, stable: int = 0) -> bytes:
    return struct.pack(">hqqqq", version, producer_id, first, last, stable)


@pytest.mark.parametrize(
    ("data", "position"),
    [
        (raw(1, 7, 0, 5), 0),
        (raw(-1, 7, 0, 5), 0),
        (raw(0, -1, 0, 5), 0),
        (raw(0, 7, -1, 5), 0),
        (raw(0, 7, 6, 5), 0),
        (raw(0, 7, 0, 5) + raw(0, 8, 0, 5), ENTRY_SIZE),
        (raw(0, 7, 0, 5) + raw(0, 8, 0, 4), ENTRY_SIZE),
        (raw(0, 7, 0, 5)[:-1], 0),
        (raw(0, 7, 0, 5) + b"\0", ENTRY_SIZE),
        (raw(0, 7, 0, 5) + bytes(ENTRY_SIZE), ENTRY_SIZE),
    ],
)
def test_invalid_transaction_index_raises(data: bytes, position: int) -> None:
    with pytest.raises(CorruptIndexError) as caught:
        parse_transaction_index(data)
    assert caught.value.position == position


@given(st.lists(st.tuples(I64, I64, I64, I64), max_size=10, unique_by=lambda entry: entry[2]))
def test_transaction_index_round_trips(entries: list[tuple[int, int, int, int]]) -> None:
    txns = tuple(
        AbortedTxn(producer_id, min(first, last), last, stable)
        for producer_id, first, last, stable in sorted(entries, key=lambda entry: entry[2])
    )
    written = write_transaction_index(txns)

    assert parse_transaction_index(written) == txns
    assert written == write_independently(
        AbortedTransaction(
            producer_id=txn.producer_id,
            first_offset=txn.first_offset,
            last_offset=txn.last_offset,
            last_stable_offset=txn.last_stable_offset,
        )
        for txn in txns
    )


@given(
    st.binary(max_size=120)
    | st.lists(st.builds(raw, st.integers(0, 1), I64, I64, I64, I64), max_size=3).map(b"".join)
)
def test_any_bytes_parse_or_raise_with_position(data: bytes) -> None:
    outcome = value_or_error(lambda: parse_transaction_index(data))

    if isinstance(outcome, SegmentFormatError):
        assert outcome.position is not None
        assert 0 <= outcome.position <= len(data)
    else:
        assert write_transaction_index(outcome) == data
