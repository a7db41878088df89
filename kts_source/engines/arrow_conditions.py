"""What of a `pyarrow.compute.Expression` is a condition of ours: read from its text, since pyarrow
has no other way to look into one.

Only what is certain is taken: comparisons of offset, partition and timestamp with a literal,
topic = 'name', and what `field_comparison` takes, joined by `and`. Whoever asked applies the whole
expression again.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from kts_source.columns import PARTITION, TOPIC
from kts_source.engines.field_conditions import field_comparison
from kts_source.planning.narrowing import conjunction
from kts_source.predicate.model import MAX_INT64, MIN_INT64, Column, Compare, Op

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    import pyarrow.compute as pc

    from kts_source.predicate.model import Predicate

_OPS: Final = {
    "==": Op.EQ,
    "<": Op.LT,
    "<=": Op.LE,
    ">": Op.GT,
    ">=": Op.GE,
}
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\(|\)|[^\s()"]+|\s+')
_COMPARISON: Final = re.compile(r"(\w+) (==|<=|>=|<|>) (.+)", re.DOTALL)
_FIELD: Final = re.compile(
    r"FieldRef\.Nested\((FieldRef\.Name\(\w+\)(?: FieldRef\.Name\(\w+\))+)\) (==|<=|>=|<|>) (.+)",
    re.DOTALL,
)
_NAME: Final = re.compile(r"\((\w+)\)")
_INT: Final = re.compile(r"-?[0-9]{1,19}")
_INSTANT: Final = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8})(\.[0-9]{6})?Z")
_PLAIN_TEXT: Final = re.compile(r'"([A-Za-z0-9._-]+)"')


def certain_part(expression: pc.Expression, schema: pa.Schema) -> Predicate | None:
    """A condition that is true for every row for which the expression is; `None` for none.

    Args:
        expression: A condition.
        schema: Of the rows.
    """
    text = str(expression)
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != text:
        return None
    return conjunction(*(_comparison(term, schema) for term in _terms(tokens)))


def columns_in(expression: pc.Expression, columns: Iterable[str]) -> tuple[str, ...]:
    """Those of a table's columns that an expression looks at, and maybe more."""
    words = set(re.findall(r"\w+", str(expression)))
    return tuple(name for name in columns if name in words)


def _terms(tokens: list[str]) -> Iterator[list[str]]:
    """What stands between the `and`s, without the parentheses around; in any depth."""
    tokens = _unwrapped(tokens)
    depth = begin = 0
    found = []
    for number, token in enumerate(tokens):
        depth += (token == "(") - (token == ")")
        if depth == 0 and token in ("and", "or"):
            if token == "or":
                return
            found.append(tokens[begin:number])
            begin = number + 1
    if not found:
        yield tokens
        return
    for term in (*found, tokens[begin:]):
        yield from _terms(term)


def _unwrapped(tokens: list[str]) -> list[str]:
    """Without blanks and one pair of parentheses around all."""
    while tokens and tokens[0].isspace():
        tokens = tokens[1:]
    while tokens and tokens[-1].isspace():
        tokens = tokens[:-1]
    if not tokens or tokens[0] != "(":
        return tokens
    depth = 0
    for number, token in enumerate(tokens):
        depth += (token == "(") - (token == ")")
        if depth == 0:
            return _unwrapped(tokens[1:-1]) if number == len(tokens) - 1 else tokens
    return tokens


def _comparison(tokens: list[str], schema: pa.Schema) -> Predicate | None:
    """A comparison that is certain; `None` for everything else."""
    text = "".join(tokens)
    if (nested := _FIELD.fullmatch(text)) is not None:
        return _of_field(_NAME.findall(nested[1]), _OPS[nested[2]], nested[3], schema)
    match = _COMPARISON.fullmatch(text)
    if match is None:
        return None
    name, op, literal = match[1], _OPS[match[2]], match[3]
    if name in ("offset", PARTITION) and _INT.fullmatch(literal):
        number = int(literal)
        return Compare(op, Column(name), number) if MIN_INT64 <= number <= MAX_INT64 else None
    if name == "timestamp" and (instant := _INSTANT.fullmatch(literal)):
        seconds = datetime.fromisoformat(instant[1]).replace(tzinfo=UTC)
        micros = int(seconds.timestamp()) * 1_000_000 + int((instant[2] or ".0")[1:])
        return Compare(op, Column(name), micros)
    if name == TOPIC and op is Op.EQ and (plain := _PLAIN_TEXT.fullmatch(literal)):
        return Compare(op, Column(name), plain[1].encode())
    return None


def _of_field(names: list[str], op: Op, literal: str, schema: pa.Schema) -> Predicate | None:
    if _INT.fullmatch(literal):
        return field_comparison(schema, names, op, int(literal))
    if plain := _PLAIN_TEXT.fullmatch(literal):
        return field_comparison(schema, names, op, plain[1])
    return None
