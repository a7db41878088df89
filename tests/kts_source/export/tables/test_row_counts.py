"""Tests the row counts that a table stores. The count of a partition is the sum over all commits
and topic ids.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kts_source.export.ranges import PartitionKey, RangeAdvance
from kts_source.export.tables.export_table import Commit, RowCount, add_counts
from kts_source.export.task import WrittenFile

if TYPE_CHECKING:
    from kts_source.export.tables.export_table import Owner

FILE = WrittenFile("k", "n", "t", "a", 0, 0, 9, 7, 100, 0, (), {})


def advance(expected: int | None, stop: int, topic_id: str = "a") -> RangeAdvance:
    return RangeAdvance("t", PartitionKey(topic_id, 0), expected, expected or 0, stop)


def step(
    counts: dict[Owner, RowCount], move: RangeAdvance, rows: int, *, replaces: bool = False
) -> None:
    commit = Commit((move,), (replace(FILE, rows=rows),), {}, None, "run")
    if replaces:
        commit = replace(commit, base=frozenset())
    counts |= add_counts(commit, lambda topic, partition: counts.get((topic, partition)))


def test_row_count_of_partition_is_summed_over_topic_ids() -> None:
    counts: dict[Owner, RowCount] = {}
    step(counts, advance(None, 10), 10)
    step(counts, advance(None, 4, "b"), 4)
    assert counts["t", 0] == RowCount(14, 1)
    step(counts, advance(10, 20), 9)
    step(counts, advance(4, 5, "b"), 1)
    assert counts["t", 0] == RowCount(24, 1)
    step(counts, advance(None, 5, "c"), 5)
    assert counts["t", 0] == RowCount(29, 2)


def test_compaction_replaces_row_counts() -> None:
    counts: dict[Owner, RowCount] = {}
    step(counts, advance(None, 10), 10)
    step(counts, advance(10, 20), 3, replaces=True)
    assert counts["t", 0] == RowCount(3)
