"""Tests when an audit may use the stored proof of a segment instead of reading the segment again.

The proof contains the results of an earlier audit that read the segment.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kts_source.auditing.proof import DigestPart, LogProof

PROOF = LogProof(
    start=100,
    stop=200,
    counted_from=95,
    first_base=100,
    is_first=False,
    open_before={7: 40, 9: 60},
    open_after={7: 40, 8: 150},
    own_after={7: 110, 8: 150},
    next_offset=200,
    batches=10,
    records=90,
    digest=DigestPart(b"first", b"last", 1 << 255),
)


@pytest.mark.parametrize(
    ("span", "counted_from", "is_first", "open_transactions", "is_valid"),
    [
        ((100, 200), 95, False, {7: 40, 9: 60}, True),
        ((100, 200), 95, False, {7: 40}, True),  # the proof has another open transaction
        ((100, 200), 0, False, {}, True),  # retention deleted the previous segments
        ((100, 200), 95, False, {7: 30}, False),
        ((100, 200), 95, False, {8: 40}, False),
        ((100, 200), 105, False, {}, False),  # the first batch was counted in the previous segment
        ((101, 200), 95, False, {}, False),  # the log start moved into the segment
        ((100, 150), 95, False, {}, False),  # the remaining offsets were replaced
        ((100, 200), 95, True, {}, False),
    ],
)
def test_proof_is_valid_only_if_reading_again_gives_the_same_result(
    span: tuple[int, int],
    counted_from: int,
    is_first: bool,
    open_transactions: dict[int, int],
    is_valid: bool,
) -> None:
    assert PROOF.holds_for(span, counted_from, is_first, open_transactions) is is_valid


@pytest.mark.parametrize(
    ("open_transactions", "expected"),
    [
        ({7: 40, 9: 60}, {7: 40, 8: 150}),
        ({9: 60}, {7: 110, 8: 150}),
        ({}, {7: 110, 8: 150}),
    ],
)
def test_transactions_open_after_a_proven_segment_keep_their_start_offsets(
    open_transactions: dict[int, int], expected: dict[int, int]
) -> None:
    assert PROOF.open_after_given(open_transactions) == expected


def test_proof_is_invalid_if_batch_count_starts_at_another_offset() -> None:
    shared = replace(PROOF, counted_from=105)
    assert shared.holds_for((100, 200), 105, False, {})
    assert not shared.holds_for((100, 200), 0, False, {})


def test_proof_round_trips_through_json() -> None:
    assert LogProof.from_json(json.loads(json.dumps(PROOF.to_json()))) == PROOF
