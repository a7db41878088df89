"""Tests that errors about changed settings of an export contain the option names that the user
set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kts_source.errors import FingerprintError
from kts_source.export.fingerprint import describe_change, where_sql
from kts_source.predicate.parse import parse_predicate
from tests.kts_source.export.exporting import FORMATS, Lake
from tests.kts_source.export.small_tier import SmallTier, table_offsets

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa


@pytest.mark.parametrize(
    "sql",
    [
        "offset >= 10",
        r"key = 'it\'s \\ '",
        "key = X'ff00'",
        "partition IN (1, 2, NULL)",
        "header('trace') IS NULL",
        "NOT (key IS NULL)",
        "startswith(key, 'a') AND (offset < 5 OR endswith(value, 'b'))",
        "key LIKE 'a_b%'",
        "topic <=> 'orders'",
        "timestamp < timestamp '2024-05-01T10:00:00.250000+00:00'",
    ],
)
def test_stored_condition_is_shown_as_its_sql(sql: str) -> None:
    shown = where_sql(repr(parse_predicate(sql, None)))
    assert shown == sql
    assert parse_predicate(shown, None) == parse_predicate(sql, None)


def test_condition_with_unknown_operator_is_shown_unchanged() -> None:
    assert where_sql("Compare(op=<Op.XX: 'x'>)") == "Compare(op=<Op.XX: 'x'>)"


def keep(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


CHANGES: list[tuple[dict[str, str], dict[str, Any], str]] = [
    ({"where": "offset >= 10"}, {}, "where: offset < 100 → offset >= 10;|\\. Use"),
    ({"where": ""}, {}, "where: offset < 100 → none"),
    (
        {"isolationLevel": "read_uncommitted"},
        {},
        "isolationLevel: read_committed → read_uncommitted",
    ),
    ({"columns": "offset,key"}, {}, "columns: topic: bytes → no column"),
    ({"value.format": "utf8"}, {}, "columns: value: bytes → utf8"),
    ({}, {"partition_by": ["topic"]}, "partition_by: none → topic"),
    ({}, {"transform": keep}, "transform: none → .*keep"),
]


@pytest.mark.parametrize("table_format", FORMATS)
def test_error_shows_each_changed_setting_before_and_after(
    table_format: str, tmp_path: Path
) -> None:
    lake, tier = Lake(tmp_path, table_format), SmallTier(tmp_path / "tier").grow(1)
    first = {"where": "offset < 100"}
    lake.export(tier.options(**first))
    tier.grow(1)
    for options, arguments, text in CHANGES:
        changed = {k: v for k, v in {**first, **options}.items() if v}
        with pytest.raises(FingerprintError, match=text) as raised:
            lake.export(tier.options(**changed), **arguments)
        assert "Compare(" not in str(raised.value)
        assert "export_id" not in str(raised.value)
    # As the error advises, use the settings of the first run.
    lake.export(tier.options(**first))
    assert table_offsets(lake) == [*range(20)]


def test_changed_code_of_a_transform_is_described() -> None:
    text = describe_change("transform", "m.f#00ff~11", "m.f#00fe~12")
    assert text == "transform: the code of m.f, or an object that it uses, has changed"


def test_setting_without_stored_text_is_described() -> None:
    assert describe_change("where", None, "") == "where: another value → none"
