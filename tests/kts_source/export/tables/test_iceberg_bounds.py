"""Checks that text bounds in Iceberg tables never hide a file with a matching row."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import EqualTo, GreaterThanOrEqual, Reference
from pyiceberg.expressions.literals import literal

from kts_source.export.tables.iceberg_library import upper_bound
from tests.kts_source.export.exporting import Lake
from tests.kts_source.export.tables.rows import tier_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyiceberg.table import Table

LAST = chr(sys.maxunicode)
CUT = 16
"""Maximum length of a text bound in PyIceberg, in characters."""


def table_of(
    folder: Path, texts: Sequence[str], row_group_rows: int = 1 << 20
) -> tuple[Lake, Table]:
    source = tier_of(folder / "tier", [json.dumps({"c": text}) for text in texts])
    lake = Lake(folder, "iceberg")
    typed = {"value.format": "json", "value.schema": "c string"}
    lake.export({**source, **typed}, row_group_rows=row_group_rows)
    catalog = load_catalog("lake", **lake.catalog)
    table = catalog.load_table(lake.target)
    catalog.close()
    return lake, table


@pytest.mark.parametrize(
    "texts",
    [
        ["a" * 15 + "\ud7ffzz"],
        ["\ud7ff" * 20, "a"],
        ["a" * 14 + "\ud7ff" + LAST + "x"],
        [LAST * 17],
        ["a" * 15 + LAST + "b"],
        ["\ud7ff" + LAST * 16],
        ["a" * 15 + "\U0001f600b", "b"],
        ["a" * 16],
        ["a" * 17],
    ],
    ids=ascii,
)
def test_file_that_contains_the_searched_text_is_not_skipped(
    tmp_path: Path, texts: list[str]
) -> None:
    _, table = table_of(tmp_path, texts)
    for offset, text in enumerate(texts):
        column, value = Reference("value.c"), literal(text)
        equal = table.scan(EqualTo(term=column, value=value)).to_arrow()
        assert equal["offset"].to_pylist() == [offset]
        above = table.scan(GreaterThanOrEqual(term=column, value=value)).to_arrow()
        assert offset in above["offset"].to_pylist()


def test_rows_are_found_if_one_row_group_has_no_text_bounds(tmp_path: Path) -> None:
    # Arrow writes no bounds for a text above 4 KiB. The previous row group has bounds.
    texts = ["m", "z" * 5000, "b"]
    _, table = table_of(tmp_path, texts, row_group_rows=1)
    for offset, text in enumerate(texts):
        matching = EqualTo(term=Reference("value.c"), value=literal(text))
        assert table.scan(matching).to_arrow()["offset"].to_pylist() == [offset]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), st.integers(1, CUT))
@example("\ud7ff" * 3, 2)
@example(LAST * 3, 2)
@example("a" + LAST * 3, 2)
def test_upper_bound_of_text_is_short_and_not_below_the_text(text: str, length: int) -> None:
    bound = upper_bound(text, length)
    if bound is None:
        assert set(text[:length]) == {LAST}
        return
    assert len(bound) <= length
    assert bound.encode() >= text.encode()
    if len(text) <= length:
        assert bound == text
