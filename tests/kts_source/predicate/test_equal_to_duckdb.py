"""Checks that conditions on decoded fields give the same results as in DuckDB.

The rows contain nulls. Some literals are outside the range of the field's type.
"""

from __future__ import annotations

import datetime as dt
import random
from contextlib import closing
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Final

import duckdb
import pyarrow as pa
import pytest

from kts_source.predicate.evaluate import evaluate, wanted_rows
from kts_source.predicate.model import find_field
from kts_source.predicate.parse import parse_predicate

if TYPE_CHECKING:
    from collections.abc import Callable

_BIG: Final = (0, 1, -1, 5, 2**31, -(2**31) - 1, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1)
_MICROS: Final = (0, 1, -1, 5_000_000, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 10**25, -(10**25))
_DECIMALS: Final = ("0", "0.5", "-1.25", "9" * 20, "-" + "9" * 20, "0.505")
_DOUBLES: Final = ("0e0", "1.5e0", "-1e300", "1e300", "5e-324")
_DAYS: Final = ("0001-01-01", "1969-12-31", "1970-01-01", "1970-01-06", "9999-12-31")

VALUES: Final = pa.array(
    [
        None,
        dict.fromkeys(("ts", "wall", "day", "big", "small", "exact", "double", "yes")),
        *(
            {
                "ts": dt.datetime(1970, 1, 1, 0, 0, seconds, tzinfo=dt.UTC),
                "wall": dt.datetime(1970, 1, 1, 0, 0, seconds),
                "day": dt.date(1970, 1, 1 + seconds),
                "big": number,
                "small": small,
                "exact": exact,
                "double": double,
                "yes": seconds > 3,
            }
            for seconds, number, small, exact, double in (
                (0, 0, 0, Decimal("0.50"), 0.0),
                (5, 2**63 - 1, 2**31 - 1, Decimal("99999999.99"), 1e300),
                (6, -(2**63), -(2**31), Decimal("-99999999.99"), -1e300),
                (7, 5, 5, None, None),
                (8, None, None, Decimal("5.00"), 5.0),
            )
        ),
    ],
    pa.struct(
        [
            ("ts", pa.timestamp("us", "UTC")),
            ("wall", pa.timestamp("us")),
            ("day", pa.date32()),
            ("big", pa.int64()),
            ("small", pa.int32()),
            ("exact", pa.decimal128(10, 2)),
            ("double", pa.float64()),
            ("yes", pa.bool_()),
        ]
    ),
)


def _draw_literals(dice: random.Random) -> tuple[str, str, list[tuple[str, str]]]:
    """Draws a field and three literals that can be compared with it. Returns the field in the
    syntax of option `where`, the field in the syntax of DuckDB, and a list with each literal in
    both syntaxes.
    """

    def pick(choices: tuple[object, ...], ours: str, theirs: str) -> list[tuple[str, str]]:
        texts = [str(choice) for choice in dice.choices(choices, k=3)]
        return [(ours.format(text), theirs.format(text)) for text in texts]

    name = dice.choice(("ts", "ts", "wall", "day", "big", "small", "exact", "double"))
    field = f"value.{name}"
    if name == "ts":
        return (
            field,
            f"epoch_us({field})::decimal(38)",
            pick(_MICROS, "timestamp_micros({})", "({})::decimal(38)"),
        )
    if name in ("wall", "day"):
        type = "TIMESTAMP_NTZ" if name == "wall" else "DATE"
        return field, field, pick(_DAYS, f"{type} '{{}}'", f"{type.partition('_')[0]} '{{}}'")
    if name == "double":
        return field, field, pick(_DOUBLES, "{}", "({})::double")
    numbers = (*_BIG, *_DECIMALS) if name == "exact" else _BIG
    return field, field, pick(numbers, "{}", "({})")


def _draw_leaf(dice: random.Random) -> tuple[str, str]:
    field, duck_field, literals = _draw_literals(dice)
    (first, duck_first), (second, duck_second), _ = literals
    match dice.randrange(6):
        case 0:
            return f"{field} BETWEEN {first} AND {second}", (
                f"{duck_field} BETWEEN {duck_first} AND {duck_second}"
            )
        case 1:
            extra = dice.choice(("", ", NULL"))
            ours, theirs = (", ".join(texts) for texts in zip(*literals, strict=True))
            return f"{field} IN ({ours}{extra})", f"{duck_field} IN ({theirs}{extra})"
        case 2:
            return f"{field} <=> {first}", f"{duck_field} IS NOT DISTINCT FROM {duck_first}"
    op = dice.choice(("=", "<>", "<", "<=", ">", ">="))
    if dice.random() < 0.3:
        return f"{first} {op} {field}", f"{duck_first} {op} {duck_field}"
    return f"{field} {op} {first}", f"{duck_field} {op} {duck_first}"


def _draw_condition(dice: random.Random, depth: int = 2) -> tuple[str, str]:
    if depth == 0 or dice.random() < 0.3:
        return _draw_leaf(dice)
    ours, theirs = _draw_condition(dice, depth - 1)
    if dice.random() < 0.6:
        return f"NOT ({ours})", f"NOT ({theirs})"
    word = dice.choice(("AND", "OR"))
    other, duck_other = _draw_condition(dice, depth - 1)
    return f"({ours}) {word} ({other})", f"({theirs}) {word} ({duck_other})"


def _check_random_conditions(
    make: Callable[[random.Random], tuple[str, str]], seed: int, tries: int
) -> None:
    batch = pa.record_batch({"value": VALUES})
    fields = {"value": partial(find_field, VALUES.type)}
    dice = random.Random(seed)
    with closing(duckdb.connect()) as connection:
        connection.execute("set timezone = 'UTC'")
        connection.register("rows_", pa.Table.from_batches([batch]))
        for _ in range(tries):
            ours, theirs = make(dice)
            query = f"select {theirs} as answer from rows_"
            expected = connection.sql(query).to_arrow_table()["answer"].to_pylist()
            predicate = parse_predicate(ours, dt.UTC, fields=fields)
            assert evaluate(predicate, batch).to_pylist() == expected, (ours, theirs)
            mask = wanted_rows(predicate, batch)
            kept = (
                [False] * len(expected) if mask is None else [bool(row) for row in mask.to_pylist()]
            )
            assert kept == [answer is True for answer in expected], ours


def test_random_comparisons_give_the_same_results_as_duckdb() -> None:
    _check_random_conditions(_draw_leaf, 1, 300)


def test_random_nested_conditions_give_the_same_results_as_duckdb() -> None:
    _check_random_conditions(_draw_condition, 2, 300)


@pytest.mark.parametrize(
    "text", ["timestamp_seconds(10000000000000)", "timestamp_micros(-10000000000000000000)"]
)
@pytest.mark.parametrize("op", ["<", "<=", ">", ">=", "=", "<>"])
def test_comparison_of_null_timestamp_with_literal_out_of_range_is_null(op: str, text: str) -> None:
    batch = pa.record_batch({"value": VALUES})
    fields = {"value": partial(find_field, VALUES.type)}
    for condition in (f"value.ts {op} {text}", f"NOT value.ts {op} {text}"):
        answers = evaluate(parse_predicate(condition, fields=fields), batch).to_pylist()
        assert answers[:2] == [None, None]
        assert None not in answers[2:]
