"""Counts of rows over the commits of a table."""

from __future__ import annotations

from kts_source.export.ranges import PartitionKey, RangeAdvance
from kts_source.export.tables.row_counts import (
    UNKNOWN,
    Owner,
    RowCount,
    counted,
    from_json,
    to_json,
)


def advance(expected: int | None, stop: int, topic_id: str = "a") -> RangeAdvance:
    return RangeAdvance("t", PartitionKey(topic_id, 0), expected, expected or 0, stop)


def step(
    counts: dict[Owner, RowCount],
    move: RangeAdvance,
    *,
    is_counted: bool = True,
    replaces: bool = False,
) -> None:
    counts |= counted(
        [move],
        [],
        lambda topic, partition: counts.get((topic, partition)),
        is_counted=is_counted,
        replaces=replaces,
    )


def test_counts_of_topic_ids_by_turns_become_unknown() -> None:
    counts: dict[Owner, RowCount] = {}
    step(counts, advance(None, 10))
    step(counts, advance(None, 4, "b"))
    assert counts["t", 0] == RowCount(0, 4, 1)
    step(counts, advance(10, 20))
    assert counts["t", 0].stop == UNKNOWN
    step(counts, advance(4, 5, "b"))
    step(counts, advance(None, 5, "c"))
    assert counts["t", 0].stop == UNKNOWN
    step(counts, advance(5, 6, "c"), replaces=True)
    assert counts["t", 0].stop == 6


def test_counts_of_uncounted_table_stay_unknown() -> None:
    counts: dict[Owner, RowCount] = {}
    step(counts, advance(None, 10), is_counted=False)
    step(counts, advance(10, 20), is_counted=True)
    assert counts == {}


def test_counts_survive_json() -> None:
    counts = {("t", 0): RowCount(7, 9), ("t", 11): RowCount(1, 2, 3), ("u", 0): RowCount(0, 5)}
    assert from_json(to_json(counts)) == counts
