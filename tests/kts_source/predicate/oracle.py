"""SQL's three values, row by row, in plain Python: what the columnar evaluation is held to."""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Any, Final

from kts_source.predicate.model import (
    And,
    Column,
    Compare,
    Constant,
    HasText,
    Header,
    In,
    IsNull,
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
"""Column name to value: bytes, int (timestamps in microseconds), headers as (name, value) pairs."""

_ORDER: Final[Mapping[Op, Callable[[Any, Any], bool]]] = {
    Op.EQ: operator.eq,
    Op.NE: operator.ne,
    Op.LT: operator.lt,
    Op.LE: operator.le,
    Op.GT: operator.gt,
    Op.GE: operator.ge,
}
_TEXT: Final[Mapping[Part, Callable[[bytes, bytes], bool]]] = {
    Part.START: bytes.startswith,
    Part.END: bytes.endswith,
    Part.ANYWHERE: lambda value, text: text in value,
}


def value_of(operand: Operand, row: Row) -> Any:  # noqa: ANN401 - a value of any column
    if isinstance(operand, Header):
        found = [value for name, value in row["headers"] if name == operand.name]
        return found[-1] if found else None
    return row[operand.name]


def truth(predicate: Predicate, row: Row) -> bool | None:
    if isinstance(predicate, Constant):
        return predicate.value
    if isinstance(predicate, Not):
        inner = truth(predicate.term, row)
        return None if inner is None else not inner
    if isinstance(predicate, And | Or):
        answers = [truth(term, row) for term in predicate.terms]
        strong = isinstance(predicate, Or)
        if strong in answers:
            return strong
        return None if None in answers else not strong
    if isinstance(predicate, Compare):
        return _compare(predicate, row)
    value = value_of(predicate.operand, row)
    if isinstance(predicate, IsNull):
        return value is None
    if value is None:
        return None
    if isinstance(predicate, In):
        found = any(value == one for one in predicate.values)
        return None if predicate.has_null and not found else found
    if isinstance(predicate, HasText):
        return _TEXT[predicate.part](value, predicate.text)
    return _like(predicate, value)


def _compare(predicate: Compare, row: Row) -> bool | None:
    left, right = value_of(predicate.left, row), predicate.right
    if isinstance(right, Column | Header):
        right = value_of(right, row)
    if predicate.op is Op.SAME:
        return bool(left == right)
    if left is None or right is None:
        return None
    return _ORDER[predicate.op](left, right)


def _like(predicate: Like, value: bytes) -> bool:
    # Valid UTF-8 only; what malformed bytes mean is tested against Spark.
    pattern = "".join(
        re.escape(part) if isinstance(part, str) else {Wildcard.ONE: ".", Wildcard.RUN: ".*"}[part]
        for part in predicate.pattern
    )
    return re.fullmatch(pattern, value.decode(), re.DOTALL) is not None
