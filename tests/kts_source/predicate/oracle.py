"""Evaluates predicates row by row in plain Python, with SQL's three-valued logic.

The tests compare the columnar evaluation with this module.
"""

from __future__ import annotations

import datetime as dt
import math
import operator
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from kts_source.predicate.model import (
    And,
    Compare,
    Constant,
    Field,
    HasText,
    Header,
    In,
    IsNull,
    Kind,
    Like,
    Not,
    Op,
    Operand,
    Or,
    Part,
    Predicate,
    Wildcard,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Row = dict[str, Any]
"""Values by column name: bytes, int (timestamps in microseconds) or headers as (name, value) pairs.

Decoded columns have the values that Arrow's `as_py` returns.
"""

_ORDER: Final[Mapping[Op, Callable[[Any, Any], bool]]] = {
    Op.EQ: operator.eq,
    Op.NE: operator.ne,
    Op.LT: operator.lt,
    Op.LE: operator.le,
    Op.GT: operator.gt,
    Op.GE: operator.ge,
}
_EPOCH: Final = dt.datetime(1970, 1, 1)
_TEXT: Final[Mapping[Part, Callable[[bytes, bytes], bool]]] = {
    Part.START: bytes.startswith,
    Part.END: bytes.endswith,
    Part.ANYWHERE: lambda value, text: text in value,
}


def find_value(operand: Operand, row: Row) -> Any:  # noqa: ANN401 - a value of any column
    if isinstance(operand, Header):
        values = [value for name, value in row["headers"] if name == operand.name]
        return values[-1] if values else None
    if isinstance(operand, Field):
        value = row[operand.source]
        for name in operand.path:
            value = None if value is None else value[name]
        return None if value is None else to_comparable(operand.kind, value)
    return row[operand.name]


def to_comparable(kind: Kind, value: Any) -> Any:  # noqa: ANN401 - a value of any field
    """Converts a value so that Python compares the result as SQL compares values of type `kind`."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dt.datetime):
        return (value.replace(tzinfo=None) - dt.datetime(1970, 1, 1)) // dt.timedelta(
            microseconds=1
        )
    if isinstance(value, dt.date):
        return (value - dt.date(1970, 1, 1)).days
    if kind is Kind.DECIMAL:
        return Decimal(value)
    if kind is Kind.DOUBLE:
        # In SQL, NaN equals NaN and is greater than infinity.
        return (1, 0.0) if math.isnan(value) else (0, float(value))
    return value


def truth(predicate: Predicate, row: Row) -> bool | None:
    if isinstance(predicate, Constant):
        return predicate.value
    if isinstance(predicate, Not):
        inner = truth(predicate.term, row)
        return None if inner is None else not inner
    if isinstance(predicate, And | Or):
        results = [truth(term, row) for term in predicate.terms]
        deciding = isinstance(predicate, Or)
        if deciding in results:
            return deciding
        return None if None in results else not deciding
    if isinstance(predicate, Compare):
        return _compare(predicate, row)
    value = find_value(predicate.operand, row)
    if isinstance(predicate, IsNull):
        return value is None
    if value is None:
        return None
    if isinstance(predicate, In):
        kind = predicate.operand.kind
        has_match = any(value == to_comparable(kind, literal) for literal in predicate.values)
        return None if predicate.has_null and not has_match else has_match
    if isinstance(predicate, HasText):
        return _TEXT[predicate.part](value, predicate.text)
    return _like(predicate, value)


def _compare(predicate: Compare, row: Row) -> bool | None:
    left, right = find_value(predicate.left, row), predicate.right
    if isinstance(right, Operand):
        right = find_value(right, row)
    else:
        right = to_comparable(predicate.left.kind, right)
    if predicate.op is Op.SAME:
        return bool(left == right)
    if left is None or right is None:
        return None
    return _ORDER[predicate.op](left, right)


def _like(predicate: Like, value: bytes) -> bool:
    # Supports only valid UTF-8. Other tests compare LIKE on malformed bytes with Spark.
    pattern = "".join(
        re.escape(element)
        if isinstance(element, str)
        else {Wildcard.ONE: ".", Wildcard.RUN: ".*"}[element]
        for element in predicate.pattern
    )
    return re.fullmatch(pattern, value.decode(), re.DOTALL) is not None
