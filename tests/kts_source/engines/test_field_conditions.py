"""Conditions of Polars and DuckDB on fields of typed values: the same rows, whoever decides."""

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
    found: list[dict[str, Any] | None] = [
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
    found[7] = None
    return found


@pytest.fixture
def scan(tmp_path: Path) -> kts_source.Scan:
    values: list[bytes | None] = [
        None if one is None else json.dumps(one).encode() for one in rows()
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
    """Conditions that were handed over."""
    found: list[Predicate] = []
    real = kts_source.Scan.where_predicate

    def noted(self: kts_source.Scan, condition: Predicate) -> kts_source.Scan:
        found.append(condition)
        return real(self, condition)

    monkeypatch.setattr(kts_source.Scan, "where_predicate", noted)
    return found


def terms(condition: Predicate) -> frozenset[Predicate]:
    """Returns the terms of an AND: engines hand them over in any order."""
    return frozenset(condition.terms if isinstance(condition, And) else (condition,))


def field(*names: str) -> pl.Expr:
    found = pl.col("value")
    for name in names:
        found = found.struct.field(name)
    return found


def of(value: Any, *names: str) -> Any:  # noqa: ANN401
    for name in names:
        value = None if value is None else value[name]
    return value


CASES: list[tuple[str, pl.Expr, Callable[[Any], bool | None], Predicate | None]] = [
    (
        "value.n > 3",
        field("n") > 3,
        lambda one: of(one, "n") is not None and of(one, "n") > 3,
        Compare(Op.GT, N, 3),
    ),
    (
        "value.t = 'CH' and 5 >= value.n",
        (field("t") == "CH") & (pl.lit(5) >= field("n")),
        lambda one: of(one, "t") == "CH" and of(one, "n") is not None and of(one, "n") <= 5,
        And((Compare(Op.EQ, T, b"CH"), Compare(Op.LE, N, 5))),
    ),
    (
        "value.s.id <= 11",
        field("s", "id") <= 11,
        lambda one: of(one, "s", "id") is not None and of(one, "s", "id") <= 11,
        Compare(Op.LE, ID, 11),
    ),
    (
        "value.n = 4 or value.n is null",
        (field("n") == 4) | field("n").is_null(),
        lambda one: of(one, "n") in (4, None),
        None,
    ),
    ("value.x > 20.5", field("x") > 20.5, lambda one: (of(one, "x") or 0) > 20.5, None),
]


@pytest.mark.parametrize(("sql", "expression", "keeps", "due"), CASES)
def test_field_conditions_are_pushed_down(
    sql: str,
    expression: pl.Expr,
    keeps: Callable[[Any], bool | None],
    due: Predicate | None,
    scan: kts_source.Scan,
    pushed: list[Predicate],
) -> None:
    every = rows()
    every.insert(30, None)
    expected = [number for number, one in enumerate(every) if keeps(one)]
    assert 0 < len(expected) < len(every)
    with closing(duckdb.connect()) as connection:
        connection.register("tier", scan.to_dataset())
        found = connection.sql(f'select "offset" from tier where {sql} order by 1').fetchall()
    assert [number for (number,) in found] == expected
    due_terms = [] if due is None else [terms(due)]
    assert [terms(condition) for condition in pushed] == due_terms
    pushed.clear()
    frame = scan.to_lazy().filter(expression).select("offset").collect()
    assert frame["offset"].to_list() == expected
    assert [terms(condition) for condition in pushed] == due_terms


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
        (("value", "N"), Op.EQ, 1),  # engines tell names by their case
        (("value", "m"), Op.EQ, 1),
        (("value", "n"), Op.EQ, 1 << 31),  # an engine may cut it
        (("value", "n"), Op.EQ, "1"),
        (("value", "t"), Op.GT, "a"),
        (("value", "t"), Op.EQ, 1),
        (("value", "x"), Op.EQ, 1),
        (("headers", "n"), Op.EQ, 1),
        (("key", "n"), Op.EQ, 1),
    ],
)
def test_uncertain_field_conditions_are_not_pushed_down(
    names: tuple[str, ...], op: Op, literal: int | str
) -> None:
    assert field_comparison(SCHEMA, names, op, literal) is None
    assert field_comparison(SCHEMA, ("value", "n"), Op.LT, -5) is not None
