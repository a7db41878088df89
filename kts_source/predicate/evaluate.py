"""Decides a predicate for the rows of a batch: three-valued, with pyarrow's compute functions."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kts_source.predicate.field_values import DECIMAL, field_values, ordered
from kts_source.predicate.like import byte_pattern, java_string, text_pattern
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
    from collections.abc import Callable, Sequence

    from kts_source.predicate.model import Value

_ORDERED: Final[dict[Op, Callable[..., Any]]] = {
    Op.EQ: pc.equal,
    Op.NE: pc.not_equal,
    Op.LT: pc.less,
    Op.LE: pc.less_equal,
    Op.GT: pc.greater,
    Op.GE: pc.greater_equal,
}
_PARTS: Final[dict[Part, Callable[..., Any]]] = {
    Part.START: pc.starts_with,
    Part.END: pc.ends_with,
    Part.ANYWHERE: pc.match_substring,
}


def wanted_rows(predicate: Predicate, batch: pa.RecordBatch) -> pa.BooleanArray | None:
    """A mask of the rows for which the predicate is true; `None` when there is none.

    The batch has at least the columns of `columns_of(predicate)`, in the types of the table.
    """
    terms = predicate.terms if isinstance(predicate, And) else (predicate,)
    mask = None
    for term in terms:
        answer = evaluate(term, batch)
        # Null counts as false here: where a term is not true, the whole is not.
        mask = answer if mask is None else pc.and_kleene(mask, answer)
        if not mask.true_count:
            return None
    return mask


def evaluate(predicate: Predicate, batch: pa.RecordBatch) -> pa.BooleanArray:
    """True, false or null for every row."""
    if isinstance(predicate, Constant):
        return pa.repeat(pa.scalar(predicate.value, pa.bool_()), batch.num_rows)
    if isinstance(predicate, Not):
        return pc.invert(evaluate(predicate.term, batch))
    if isinstance(predicate, And | Or):
        combine = pc.and_kleene if isinstance(predicate, And) else pc.or_kleene
        return reduce(combine, (evaluate(term, batch) for term in predicate.terms))
    if isinstance(predicate, Compare):
        return _compare(predicate, batch)
    values = _values(predicate.operand, batch)
    if isinstance(predicate, IsNull):
        return pc.is_null(values)
    if isinstance(predicate, In):
        return _in(predicate, values)
    if isinstance(predicate, HasText):
        return _PARTS[predicate.part](values, pattern=predicate.text)
    return _like(predicate, values)


def _compare(predicate: Compare, batch: pa.RecordBatch) -> pa.BooleanArray:
    left = _values(predicate.left, batch)
    right: pa.Array | pa.Scalar
    if isinstance(predicate.right, Operand):
        right = _values(predicate.right, batch)
    else:
        right = _literals(predicate.left, [predicate.right])[0]
    if predicate.op is not Op.SAME:
        return _ORDERED[predicate.op](left, right)
    same = pc.fill_null(pc.equal(left, right), False)
    if isinstance(right, pa.Array):
        return pc.or_(same, pc.and_(pc.is_null(left), pc.is_null(right)))
    return same


def _in(predicate: In, values: pa.Array) -> pa.BooleanArray:
    found = pc.is_in(values, value_set=_literals(predicate.operand, predicate.values))
    unknown = pc.is_null(values)
    if predicate.has_null:
        unknown = pc.invert(found)
    return pc.if_else(unknown, pa.scalar(None, pa.bool_()), found)


def _like(predicate: Like, values: pa.Array) -> pa.BooleanArray:
    match predicate.pattern:
        case ():
            return pc.equal(values, pa.scalar(b""))
        case (str(text),):
            return pc.equal(values, pa.scalar(text.encode()))
        case (Wildcard.RUN,):
            return pc.starts_with(values, pattern=b"")
        case (str(text), Wildcard.RUN):
            return pc.starts_with(values, pattern=text.encode())
        case (Wildcard.RUN, str(text)):
            return pc.ends_with(values, pattern=text.encode())
        case (Wildcard.RUN, str(text), Wildcard.RUN):
            return pc.match_substring(values, pattern=text.encode())
    if Wildcard.ONE in predicate.pattern:
        return _like_by_character(predicate.pattern, values)
    return pc.match_substring_regex(values, pattern=byte_pattern(predicate.pattern))


def _like_by_character(pattern: tuple[str | Wildcard, ...], values: pa.Array) -> pa.BooleanArray:
    """Row by row, where the literal texts are in place at least."""
    loose = tuple(Wildcard.RUN if part is Wildcard.ONE else part for part in pattern)
    candidates = pc.match_substring_regex(values, pattern=byte_pattern(loose))
    fits = text_pattern(pattern).fullmatch
    answer = np.zeros(len(values), np.bool_)
    for row in np.flatnonzero(pc.fill_null(candidates, False).to_numpy(zero_copy_only=False)):
        answer[row] = fits(java_string(values[int(row)].as_py())) is not None
    return pa.array(answer, mask=pc.is_null(values).to_numpy(zero_copy_only=False))


def _literals(operand: Operand, values: Sequence[Value]) -> pa.Array:
    """Literals as the operand's values are decided."""
    if operand.kind is Kind.DOUBLE:
        return pa.array(ordered(np.array(values, np.float64)))
    if operand.kind is Kind.BOOLEAN:
        return pa.array(map(int, values), pa.int64())
    return pa.array(values, _type(operand))


def _type(operand: Operand) -> pa.DataType:
    """The type a column is decided in."""
    return {Kind.BYTES: pa.binary(), Kind.DECIMAL: DECIMAL}.get(operand.kind, pa.int64())


def _values(operand: Operand, batch: pa.RecordBatch) -> pa.Array:
    column = batch.column(operand.source)
    if isinstance(operand, Field):
        return field_values(operand, column)
    if isinstance(operand, Header):
        return _last_header(operand.name, column)
    if operand.kind is Kind.INSTANT:
        return column.cast(pa.timestamp("us", tz="UTC")).view(pa.int64())
    wanted = _type(operand)
    return column if column.type == wanted else column.cast(wanted)


def _last_header(name: str, headers: pa.ListArray) -> pa.Array:
    """The value of each row's last header of that name, null where there is none."""
    ends = np.asarray(headers.offsets)[1:]
    pairs = headers.values
    keys, values = pairs.field("key"), pairs.field("value")
    found = np.flatnonzero(pc.equal(keys, name).to_numpy(zero_copy_only=False))
    first, stop = int(headers.offsets[0].as_py()), int(ends[-1]) if len(ends) else 0
    found = found[(found >= first) & (found < stop)]
    last = np.full(len(headers), -1, np.int64)
    # Of several at one place numpy keeps the one assigned last.
    last[np.searchsorted(ends, found, side="right")] = found
    return values.take(pa.array(last, mask=last < 0))
