"""Checks that columnar evaluation gives the same results as row-by-row evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kts_source.predicate.evaluate import evaluate, java_string, wanted_rows
from kts_source.predicate.parse import parse_predicate
from tests.kts_source.predicate.generated import PREDICATES, ROWS, make_batch
from tests.kts_source.predicate.oracle import truth
from tests.quick import examples

if TYPE_CHECKING:
    from kts_source.predicate.model import Predicate
    from tests.kts_source.predicate.oracle import Row


@settings(deadline=None, max_examples=examples(400))
@given(PREDICATES, st.lists(ROWS, max_size=6), st.integers(0, 2))
def test_columnar_evaluation_equals_row_by_row_evaluation(
    predicate: Predicate, rows: list[Row], skipped: int
) -> None:
    # The columns of a sliced batch do not start at the beginning of their buffers.
    batch, rows = make_batch(rows).slice(skipped), rows[skipped:]
    expected = [truth(predicate, row) for row in rows]
    assert evaluate(predicate, batch).to_pylist() == expected
    mask = wanted_rows(predicate, batch)
    kept = [False] * len(rows) if mask is None else mask.to_pylist()
    assert [bool(is_kept) for is_kept in kept] == [answer is True for answer in expected]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xed\xa0\x80", "\ufffd"),
        (b"\xed\xa0", "\ufffd"),
        (b"\xed\xa0a", "\ufffda"),
        (b"\xed\x9f\xbf", "\ud7ff"),
        (b"\xe1\x80\xed\xa0\x80", "\ufffd\ufffd"),
        (b"\xf0\x90\x80", "\ufffd"),
        (b"\xf5\x80", "\ufffd\ufffd"),
        (b"\xc0\x80", "\ufffd\ufffd"),
        ("😀é".encode(), "😀é"),
    ],
)
def test_java_string_decodes_malformed_utf8_like_java(data: bytes, text: str) -> None:
    assert java_string(data) == text


@pytest.mark.parametrize(
    ("pattern", "data", "matches"),
    [
        ("_", b"\xff", True),
        ("_", b"\xed\xa0\x80", True),
        ("_", b"\xff\xff", False),
        ("a_b", b"a\xffb", True),
        ("a_b", b"a\xc3\xa9b", True),
        ("%b%a%", b"\xe2b\xffa", True),
        ("%é%", b"\xe2\xc3\xa9", True),
        ("a%a", b"a", False),
        ("_%", b"", False),
        ("a%", b"a\n\xff", True),
    ],
)
def test_like_matches_malformed_utf8(pattern: str, data: bytes, matches: bool) -> None:
    batch = make_batch([{**_ROW, "value": data}])
    assert evaluate(parse_predicate(f"value LIKE '{pattern}'"), batch).to_pylist() == [matches]


_ROW: Row = {
    "key": None,
    "value": None,
    "topic": b"t",
    "partition": 0,
    "offset": 0,
    "timestamp": 0,
    "timestampType": 0,
    "headers": [],
}
