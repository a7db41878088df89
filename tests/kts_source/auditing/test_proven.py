"""When the proof of a segment's bytes still holds."""

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
    ("span", "counted_from", "is_first", "known", "holds"),
    [
        ((100, 200), 95, False, {7: 40, 9: 60}, True),
        ((100, 200), 95, False, {7: 40}, True),  # it was proven knowing more
        ((100, 200), 0, False, {}, True),  # retention took what was before
        ((100, 200), 95, False, {7: 30}, False),
        ((100, 200), 95, False, {8: 40}, False),
        ((100, 200), 105, False, {}, False),  # the first batch was counted already
        ((101, 200), 95, False, {}, False),  # the log start moved into it
        ((100, 150), 95, False, {}, False),  # the rest died
        ((100, 200), 95, True, {}, False),
    ],
)
def test_a_proof_holds_where_reading_would_tell_nothing_else(
    span: tuple[int, int], counted_from: int, is_first: bool, known: dict[int, int], holds: bool
) -> None:
    assert PROOF.holds_for(span, counted_from, is_first, known) is holds


@pytest.mark.parametrize(
    ("known", "opened"),
    [
        ({7: 40, 9: 60}, {7: 40, 8: 150}),
        ({9: 60}, {7: 110, 8: 150}),
        ({}, {7: 110, 8: 150}),
    ],
)
def test_what_is_open_for_one_who_knows_less(known: dict[int, int], opened: dict[int, int]) -> None:
    assert PROOF.open_knowing(known) == opened


def test_a_segment_that_began_with_a_counted_batch() -> None:
    shared = replace(PROOF, counted_from=105)
    assert shared.holds_for((100, 200), 105, False, {})
    assert not shared.holds_for((100, 200), 0, False, {})


def test_json_and_back() -> None:
    assert LogProof.from_json(json.loads(json.dumps(PROOF.to_json()))) == PROOF
