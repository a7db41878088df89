"""Checks that Polars and DuckDB return all rows that match conditions on fields of typed values,
and push down the supported conditions.
"""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

import kts_source
from kts_source.engines.conditions import field_comparison
from kts_source.predicate.model import And, Compare, Field, Kind, Op
from tests.kts_source.read.typed_tier import write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kts_source.predicate.model import Predicate

DDL = "n bigint, small int, t string, x double, s struct<id: int>, `A` bigint, a bigint"
N = Field("value", ("n",), Kind.NUMBER)
T = Field("value", ("t",), Kind.BYTES)
ID = Field("value", ("s", "id"), Kind.NUMBER)


def rows() -> list[dict[str, Any] | None]:
    values: list[dict[str, Any] | None] = [
        {
            "n": None if number % 5 == 0 else number - 20,
            "small": number % 7,
            "t": [None, "CH", "DE", "", "C H"][number % 5],
            "x": number / 2,
            "s": None if number % 4 == 0 else {"id": None if number % 3 == 0 else number},
            "A": 1,
            "a": number,
        }
        for number in range(60)
    ]
    values[7] = None
    return values


@pytest.fixture
def scan(tmp_path: Path) -> kts_source.Scan:
    values: list[bytes | None] = [
        None if row is None else json.dumps(row).encode() for row in rows()
    ]
    values.insert(30, b'{"n": "text"}')
    options = write(tmp_path / "tier", [values]) | {
        "value.format": "json",
        "value.schema": DDL,
        "value.mode": "PERMISSIVE",
        "columns": "offset,value,valueError",
    }
    return kts_source.scan(options)


@pytest.fixture
def pushed(monkeypatch: pytest.MonkeyPatch) -> list[Predicate]:
    """Returns a list to which each condition that an engine pushes down is appended."""
    conditions: list[Predicate] = []
    real = kts_source.Scan.where_predicate

    def noted(self: kts_source.Scan, condition: Predicate) -> kts_source.Scan:
        conditions.append(condition)
        return real(self, condition)

    monkeypatch.setattr(kts_source.Scan, "where_predicate", noted)
    return conditions


def terms(condition: Predicate) -> frozenset[Predicate]:
    """Returns the terms of an AND, or `condition` itself, as a set. Engines may push terms down in
    any order.
    """
    return frozenset(condition.terms if isinstance(condition, And) else (condition,))


def field(*names: str) -> pl.Expr:
    expression = pl.col("value")
    for name in names:
        expression = expression.struct.field(name)
    return expression


def member(value: Any, *names: str) -> Any:  # noqa: ANN401
    for name in names:
        value = None if value is None else value[name]
    return value


CASES: list[tuple[str, pl.Expr, Callable[[Any], bool | None], Predicate | None]] = [
    (
        "value.n > 3",
        field("n") > 3,
        lambda row: member(row, "n") is not None and member(row, "n") > 3,
        Compare(Op.GT, N, 3),
    ),
    (
        "value.t = 'CH' and 5 >= value.n",
        (field("t") == "CH") & (pl.lit(5) >= field("n")),
        lambda row: (
            member(row, "t") == "CH" and member(row, "n") is not None and member(row, "n") <= 5
        ),
        And((Compare(Op.EQ, T, b"CH"), Compare(Op.LE, N, 5))),
    ),
    (
        "value.s.id <= 11",
        field("s", "id") <= 11,
        lambda row: member(row, "s", "id") is not None and member(row, "s", "id") <= 11,
        Compare(Op.LE, ID, 11),
    ),
    (
        "value.n = 4 or value.n is null",
        (field("n") == 4) | field("n").is_null(),
        lambda row: member(row, "n") in (4, None),
        None,
    ),
    ("value.x > 20.5", field("x") > 20.5, lambda row: (member(row, "x") or 0) > 20.5, None),
]


@pytest.mark.parametrize(("sql", "expression", "matches", "predicate"), CASES)
def test_field_conditions_are_pushed_down(
    sql: str,
    expression: pl.Expr,
    matches: Callable[[Any], bool | None],
    predicate: Predicate | None,
    scan: kts_source.Scan,
    pushed: list[Predicate],
) -> None:
    all_rows = rows()
    all_rows.insert(30, None)
    expected = [number for number, row in enumerate(all_rows) if matches(row)]
    assert 0 < len(expected) < len(all_rows)
    with closing(duckdb.connect()) as connection:
        connection.register("tier", scan.to_dataset())
        offsets = connection.sql(f'select "offset" from tier where {sql} order by 1').fetchall()
    assert [number for (number,) in offsets] == expected
    expected_terms = [] if predicate is None else [terms(predicate)]
    assert [terms(condition) for condition in pushed] == expected_terms
    pushed.clear()
    frame = scan.to_lazy().filter(expression).select("offset").collect()
    assert frame["offset"].to_list() == expected
    assert [terms(condition) for condition in pushed] == expected_terms


SCHEMA = pa.schema(
    [
        ("value", pa.struct([("n", pa.int32()), ("t", pa.string()), ("x", pa.float64())])),
        ("headers", pa.struct([("n", pa.int32())])),
    ]
)


@pytest.mark.parametrize(
    ("names", "op", "literal"),
    [
        (("value",), Op.EQ, 1),
        (("value", "N"), Op.EQ, 1),  # engines compare names case-sensitively
        (("value", "m"), Op.EQ, 1),
        (("value", "n"), Op.EQ, 1 << 31),  # an engine may truncate the literal
        (("value", "n"), Op.EQ, "1"),
        (("value", "t"), Op.GT, "a"),
        (("value", "t"), Op.EQ, 1),
        (("value", "x"), Op.EQ, 1),
        (("headers", "n"), Op.EQ, 1),
        (("key", "n"), Op.EQ, 1),
    ],
)
def test_unsupported_field_comparisons_are_not_pushed_down(
    names: tuple[str, ...], op: Op, literal: int | str
) -> None:
    assert field_comparison(SCHEMA, names, op, literal) is None
    assert field_comparison(SCHEMA, ("value", "n"), Op.LT, -5) is not None
