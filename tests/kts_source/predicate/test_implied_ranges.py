"""Checks that pruning keeps every row that satisfies the predicate.

The region of a predicate consists of the offsets and timestamps that a matching row can have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings

from kts_source.predicate.implied_ranges import Region, region, specialised
from kts_source.predicate.model import MAX_INT64, MIN_INT64, columns_of
from kts_source.predicate.parse import parse_predicate
from tests.kts_source.predicate.generated import PREDICATES, ROWS
from tests.kts_source.predicate.oracle import truth
from tests.quick import examples

if TYPE_CHECKING:
    from kts_source.predicate.model import Predicate
    from tests.kts_source.predicate.oracle import Row


@settings(deadline=None, max_examples=examples(500))
@given(PREDICATES, ROWS)
def test_region_of_predicate_contains_every_matching_row(predicate: Predicate, row: Row) -> None:
    for wanted in (True, False):
        if truth(predicate, row) is wanted:
            box = region(predicate, wanted)
            assert box.first_offset <= row["offset"] <= box.last_offset
            assert box.first_timestamp <= row["timestamp"] <= box.last_timestamp


@settings(deadline=None, max_examples=examples(500))
@given(PREDICATES, ROWS)
def test_predicate_specialised_for_a_partition_matches_the_same_rows(
    predicate: Predicate, row: Row
) -> None:
    rest = specialised(predicate, row["topic"].decode(), row["partition"])
    assert not columns_of(rest) & {"topic", "partition"}
    assert truth(rest, row) is truth(predicate, row)


@pytest.mark.parametrize(
    ("text", "box"),
    [
        ("offset BETWEEN 5 AND 9", Region(5, 9)),
        ("offset IN (7, 3)", Region(3, 7)),
        ("offset > 5 OR offset = 2", Region(2, MAX_INT64)),
        ("NOT (offset < 5 OR offset >= 9)", Region(5, 8)),
        ("offset < 5 AND key = 'a'", Region(MIN_INT64, 4)),
        ("timestamp >= timestamp_millis(2)", Region(first_timestamp=2000)),
        ("(offset = 1 AND partition = 1) OR (offset = 9 AND partition = 0)", Region(1, 1)),
    ],
)
def test_region_of_predicate_is_as_small_as_possible(text: str, box: Region) -> None:
    assert region(specialised(parse_predicate(text), "t", 1)) == box


@pytest.mark.parametrize(
    "text",
    [
        "partition = 2",
        "topic <> 't'",
        "topic LIKE 'u%' AND offset > 3",
        "offset > 3 AND offset < 4",
        "offset = 5 AND offset = 6",
        "NULL",
        "partition IN (0, NULL)",
    ],
)
def test_region_of_predicate_that_matches_no_row_is_empty(text: str) -> None:
    assert region(specialised(parse_predicate(text), "t", 1)).is_empty
