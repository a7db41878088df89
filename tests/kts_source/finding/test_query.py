"""Checks which arguments search conditions accept, and which record values match the pattern of
`value_matches`.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import kts_source
from kts_source.errors import InvalidOptionError
from kts_source.finding.query import query_of
from tests.golden_data import tier_options


@pytest.mark.parametrize(
    ("pattern", "matching"),
    [
        ("(?i)müller", [0, 1]),
        ("M.ller", [1, 2]),
        ("M[uü]ller", [1]),
        (r"M\x{fc}ller", [1, 2]),
        ("ü", [1]),
        ("^.$", [3]),
        ("(?i)mü", [0, 1]),
    ],
)
def test_value_matches_condition_finds_valid_and_invalid_utf8(
    pattern: str, matching: list[int]
) -> None:
    values = ["MÜLLER".encode(), "Müller".encode(), b"M\xfcller", b"x", None]
    batch = pa.record_batch({"value": pa.array([b"before", *values], pa.binary())}).slice(1)
    mask = query_of(value_matches=pattern).mask(batch)
    assert mask is not None
    assert [number for number, hit in enumerate(mask.to_pylist()) if hit] == matching


@pytest.mark.parametrize(
    ("conditions", "text"),
    [
        ({"keys": "user-1"}, "give a list"),
        ({"keys": b"user-1"}, "give a list"),
        ({"keys": [1]}, "give text, bytes, or None"),
        ({"keys": [bytearray(b"x")]}, "give text, bytes, or None"),
        ({"keys": pa.array([b"x", None])}, "give text, bytes, or None"),
        ({"headers": "trace"}, "give a list"),
        ({"producer_ids": [-1]}, "a producer id is negative"),
    ],
)
def test_invalid_condition_values_are_refused(conditions: Any, text: str) -> None:  # noqa: ANN401
    with pytest.raises(InvalidOptionError, match=text):
        kts_source.find(tier_options("codecs"), **conditions)
