"""Checks scans of random histories.

A scan must return the surviving log or raise an error about lost offsets. The tests fail if a
planner has one of these bugs, for example:

* It chooses the newest segment by offset instead of by leader epoch.
* It reads a segment beyond the offset at which the segment diverges from the log.
* If it reads a part of a segment, it uses only the transaction index of this segment.
* It ignores holes.
* It returns records below the log start.
* It reads the first topic id instead of the newest.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kts_source.planning.history import (
    WEIGHTS,
    History,
    Shape,
    Step,
    World,
    random_history,
    shortened,
)
from tests.kts_source.planning.reading import check_history, without_threads
from tests.kts_source.planning.truth import truth_of

SIXTEEN = st.integers(0, 15)
OFTEN = [kind for kind, weight in WEIGHTS.items() for _ in range(math.ceil(weight))]
STEPS = st.builds(
    Step, st.sampled_from(OFTEN), a=SIXTEEN, b=SIXTEEN, c=SIXTEEN, partition=st.integers(0, 1)
)
SHAPES = st.builds(
    Shape,
    partitions=st.integers(1, 2),
    chunk_size=st.sampled_from([1 << 20, 200, 40]),
    interval=st.sampled_from([4096, 100, 0]),
    compression=st.booleans(),
    codec=st.sampled_from(["none", "lz4", "zstd"]),
    only_stable=st.booleans(),
)
HISTORIES = st.builds(History, SHAPES, st.lists(STEPS, min_size=20, max_size=70).map(tuple))


@given(HISTORIES, st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_scan_of_history_drawn_by_hypothesis_returns_expected_rows(
    history: History, seed: int
) -> None:
    check_history(history, seed)


@pytest.mark.slow
def test_random_histories_include_every_kind_of_outcome() -> None:
    # `random_history` chooses steps by weight, so its histories vary more than those of hypothesis.
    outcomes: Counter[str] = Counter()
    with without_threads():
        for seed in range(200):
            check_history(random_history(random.Random(seed)), seed, outcomes)
    for outcome in ("read_committed", "read_uncommitted", "DataLossError"):
        assert outcomes[outcome] > 50, outcomes
    assert outcomes["rows"] > 1000, outcomes


@pytest.mark.fuzz
def test_scans_of_histories_with_new_seed_return_expected_rows() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    stop = time.monotonic() + 40
    number = 0
    with without_threads():
        while time.monotonic() < stop:
            history = random_history(random.Random(f"{seed}-{number}"))
            try:
                check_history(history, number)
            except Exception as error:
                raise AssertionError(f"seed {seed}, history {number}: {history}") from error
            number += 1
    assert number > 100


def test_range_inside_hole_returns_no_rows_with_fail_on_data_loss_false() -> None:
    # A range inside a hole has no segment. An empty range inside a hole is not data loss.
    steps = (
        *(Step("append", b=2), Step("roll", a=7), Step("upload", a=15)) * 3,
        Step("lose", a=1, b=0),
    )
    history = History(Shape(), steps)
    (truth,) = truth_of(World(history)).values()
    assert truth.missing == ((3, 6),)
    outcomes: Counter[str] = Counter()
    for seed in range(60):
        check_history(history, seed, outcomes)
    assert outcomes["read_committed, loss allowed"] > 60
    assert outcomes["read_committed"] > 5


def test_transaction_whose_marker_is_lost_after_the_range_raises_data_loss_error() -> None:
    # The scan must not skip the records of such a transaction with only a warning.
    steps = (
        *(Step("send", a=1, b=2), Step("roll", a=7), Step("append"), Step("roll", a=7)),
        *(Step("commit", a=1), Step("roll", a=7), Step("append"), Step("roll", a=7)),
        *(Step("upload", a=15),) * 4,
        Step("lose", a=2, b=0),
    )
    history = History(Shape(), steps)
    (truth,) = truth_of(World(history)).values()
    assert truth.missing == ((4, 5),)
    assert truth.lost_outcomes(0, 3) == (True, True)
    outcomes: Counter[str] = Counter()
    for seed in range(15):
        check_history(history, seed, outcomes)
    # Scans of the full log fail at both isolation levels, and scans of ranges before the hole fail.
    assert outcomes["DataLossError"] > 30


def test_damaged_snapshot_after_hole_is_not_compared_with_log() -> None:
    # The records after the hole do not show which transactions are open at its end. A comparison
    # with these records would reject valid transaction indexes.
    steps = (
        *(Step("send", 14, 10, 10), Step("roll", 12), Step("send", 5, 3, 8), Step("roll", 7)),
        *(Step("send", 7, 0, 13), Step("abort", 8), Step("upload", 7, 4, 2)),
        *(Step("upload", 10, 9, 12), Step("send", 12, 8, 15), Step("append", 10, 6, 11)),
        *(Step("settle", 15, 10), Step("roll", 7), Step("upload", 12, 3, 9)),
        *(Step("upload", 8, 2, 4), Step("upload", 13, 9, 10), Step("upload", 15, 7, 3)),
        *(Step("lose", 15, 8), Step("spoil", 13, 0, 2)),
    )
    history = History(Shape(chunk_size=40, interval=0, epochs="true starts"), steps)
    (truth,) = truth_of(World(history)).values()
    assert truth.missing == ((4, 8),)
    outcomes: Counter[str] = Counter()
    for seed in range(12):
        check_history(history, seed, outcomes)
    assert outcomes["read_committed"] > 1, outcomes


def test_transaction_that_ends_in_hole_is_not_compared_with_next_transaction() -> None:
    # The planner covers the lost marker with a range of offsets. This range overlaps the next
    # transaction of the same producer.
    steps = (
        *(Step("send", 1, 3, 11), Step("settle", 6, 11, 7), Step("roll", 4, 0, 12)),
        *(Step("upload", 12, 6, 7), Step("upload", 0, 0, 9), Step("settle", 15, 3, 10)),
        *(Step("roll", 15, 14, 8), Step("upload", 6, 11, 14), Step("upload", 3, 0, 3)),
        *(Step("upload", 4, 1, 10), Step("upload", 5, 14, 14), Step("send", 9, 15, 14)),
        *(Step("append", 4, 4, 1), Step("roll", 6, 3, 4), Step("upload", 3, 6, 3)),
        *(Step("upload", 4, 15, 12), Step("append", 15, 6, 12), Step("abort", 6, 8, 1)),
        *(Step("send", 12, 4, 1), Step("roll", 6, 9, 3), Step("send", 8, 0, 12)),
        *(Step("upload", 10, 12, 12), Step("elect_unclean", 4, 6, 8), Step("settle", 12, 11, 4)),
        *(Step("roll", 13, 13, 10), Step("upload", 0, 8, 2), Step("upload", 6, 14, 3)),
        *(Step("append", 3, 9, 12), Step("elect_unclean", 9, 12, 12), Step("settle", 7, 1, 14)),
        *(Step("upload", 12, 2, 4), Step("upload", 1, 5, 2), Step("roll", 3, 6, 12)),
        *(Step("upload", 8, 13, 2), Step("upload", 12, 11, 12), Step("lose", 11, 8, 9)),
    )
    shape = Shape(chunk_size=40, interval=100, only_stable=False, local=True, epochs="true starts")
    history = History(shape, steps)
    (truth,) = truth_of(World(history)).values()
    assert truth.missing == ((11, 14),)
    outcomes: Counter[str] = Counter()
    for seed in range(12):
        check_history(history, seed, outcomes)
    assert outcomes["read_committed"] > 1, outcomes


def test_open_transaction_that_began_below_log_start_is_matched_across_segments() -> None:
    # The transaction began below the log start. A replay finds the log start as its first offset,
    # but the producer snapshot of a later segment has its true first offset.
    steps = (
        *(Step("elect", 4, 12, 0), Step("send", 5, 9, 10), Step("roll", 11, 4, 14)),
        *(Step("send", 14, 7, 15), Step("abort", 6, 3, 15), Step("roll", 3, 13, 14)),
        *(Step("upload", 14, 11, 11), Step("abort", 8, 13, 1), Step("retain", 14, 12, 2)),
        *(Step("append", 11, 14, 14), Step("send", 8, 5, 1), Step("send", 6, 1, 12)),
        *(Step("send", 4, 7, 10), Step("settle", 11, 13, 0), Step("upload", 7, 1, 4)),
        *(Step("upload", 3, 5, 5), Step("elect_unclean", 0, 5, 10), Step("upload", 14, 6, 0)),
        Step("upload", 9, 1, 10),
    )
    shape = Shape(chunk_size=40, interval=100, only_stable=False, epochs="true starts")
    history = History(shape, steps)
    outcomes: Counter[str] = Counter()
    for seed in range(12):
        check_history(history, seed, outcomes)
    assert outcomes["read_committed"] > 1, outcomes


COPIED = (Step("roll", a=7), Step("upload", a=15))
DEAD_BRANCH = (
    *(Step("append", b=1), *COPIED, Step("append", b=2), *COPIED),  # [0, 2) and [2, 5)
    *(Step("elect_unclean", a=1, b=2), Step("append", b=2)),
)
ENDS_AT_SAME_OFFSET = (*DEAD_BRANCH, Step("append", b=1), *COPIED)  # [0, 5)
HIGHER_LOG_START = (
    *(Step("append", b=2), Step("append", b=2), *COPIED[:1], Step("append"), Step("lag", a=1)),
    *(Step("delete_records", a=11), *COPIED[1:]),
)


@pytest.mark.parametrize(
    ("steps", "is_unsure"),
    [
        ((*ENDS_AT_SAME_OFFSET, Step("append"), *COPIED, Step("lose", a=2)), True),
        ((*ENDS_AT_SAME_OFFSET, Step("append"), *COPIED), False),
        # Here, the dead branch ends at offset 3, which is not the start of the log.
        ((*DEAD_BRANCH, *COPIED, Step("append", b=2), *COPIED, Step("lose", a=2)), False),
        ((*HIGHER_LOG_START, Step("elect", a=1), Step("append"), *COPIED, *COPIED[1:]), True),
        ((*HIGHER_LOG_START, Step("append"), *COPIED), False),
    ],
)
def test_scan_reports_ambiguous_log_start_only_if_a_checkpoint_may_be_damaged(
    steps: tuple[Step, ...], is_unsure: bool
) -> None:
    history = History(Shape(), steps)
    (truth,) = truth_of(World(history)).values()
    assert not truth.missing
    assert truth.is_start_unsure == is_unsure
    outcomes: Counter[str] = Counter()
    for seed in range(5):
        check_history(history, seed, outcomes)
    assert (outcomes["ambiguous"] > 0) == is_unsure


def test_shortened_history_has_no_unneeded_steps() -> None:
    def fails(candidate: History) -> bool:
        kinds = [step.kind for step in candidate.steps]
        return "upload" in kinds and "roll" in kinds[: kinds.index("upload")]

    # If `random_history` changes, a seed gives another history. So the test searches for failing
    # histories.
    drawn = (random_history(random.Random(seed)) for seed in range(40))
    failing = [history for history in drawn if fails(history)]
    assert len(failing) > 10
    for history in failing:
        assert [step.kind for step in shortened(history, fails).steps] == ["roll", "upload"]


def test_two_runs_of_a_history_build_equal_tiers() -> None:
    history = random_history(random.Random(2))
    first, second = World(history), World(history)
    assert first.store
    assert first.store == second.store
