"""Tests the checks of transaction markers. These tests need no log."""

from __future__ import annotations

import pytest

from segment_format.index.transaction_index import AbortedTxn
from segment_format.isolation import AbortedIntervals
from segment_format.record.control_record import ControlRecordType
from segment_format.transaction_check import (
    ContradictedIntervalsError,
    check_markers_found,
    check_next_marker,
)

TXNS = (AbortedTxn(1, 0, 5, 6), AbortedTxn(1, 20, 25, 26), AbortedTxn(2, 30, 35, 36))


def intervals() -> AbortedIntervals:
    return AbortedIntervals.from_txns(TXNS, start_offset=0, stop_offset=100)


@pytest.mark.parametrize(
    ("next_until", "expected"), [(None, [5]), (20, [5]), (21, [5, 25]), (31, [5, 25, 35])]
)
def test_overlapping_adds_next_interval_of_a_producer_if_it_begins_below_next_until(
    next_until: int | None, expected: list[int]
) -> None:
    kept = intervals().overlapping(2, 8, next_until=next_until)
    assert kept.last_offsets.tolist() == expected


@pytest.mark.parametrize(
    ("producer_id", "offset", "end"),
    [(1, 0, 5), (1, 4, 5), (1, 5, None), (1, 24, 25), (3, 0, None)],
)
def test_end_of_aborted_batch_is_the_offset_of_its_marker(
    producer_id: int, offset: int, end: int | None
) -> None:
    assert intervals().end_of(producer_id, offset) == end


@pytest.mark.parametrize(
    ("marker", "offset", "end"),
    [
        (ControlRecordType.ABORT, 5, None),
        (ControlRecordType.ABORT, 5, 6),
        (ControlRecordType.COMMIT, 5, 5),
    ],
)
def test_marker_that_contradicts_the_expected_outcome_raises(
    marker: ControlRecordType, offset: int, end: int | None
) -> None:
    with pytest.raises(ContradictedIntervalsError, match="producer 1"):
        check_next_marker(1, marker, offset, {1: end})


def test_marker_with_expected_outcome_is_removed_from_expected_markers() -> None:
    expected = {1: None, 2: 5}
    check_next_marker(1, ControlRecordType.COMMIT, 4, expected)
    check_next_marker(2, ControlRecordType.ABORT, 5, expected)
    check_next_marker(3, ControlRecordType.ABORT, 6, expected)
    assert expected == {}


def test_missing_abort_marker_raises() -> None:
    check_markers_found({1: 9, 2: None}, stop_offset=9)
    with pytest.raises(ContradictedIntervalsError, match="offset 9"):
        check_markers_found({1: 9}, stop_offset=10)
