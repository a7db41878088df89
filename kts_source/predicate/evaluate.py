"""Evaluates a predicate for the rows of a batch, with pyarrow's compute functions. The result for
each row is true, false or null.

LIKE behaves as in Spark, which first decodes the bytes to a Java string. In this string, each
malformed sequence is one U+FFFD, and `_` matches one character. For patterns without `_` the bytes
are searched without decoding: a match of valid UTF-8 always begins and ends at characters of the
decoded string.
"""

from __future__ import annotations

import re
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kts_source.predicate.model import (
    MAX_INT64,
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

    from numpy.typing import NDArray

    from kts_source.predicate.model import Value


_REPLACEMENT: Final = "\ufffd"


def parse_pattern(text: str, escape: str = "\\") -> tuple[str | Wildcard, ...]:
    """Splits a LIKE pattern into texts and wildcards.

    Raises:
        ValueError: The escape character is not followed by a wildcard or by itself, or the pattern
            contains U+FFFD, which would also match malformed bytes.
    """
    if _REPLACEMENT in text:
        raise ValueError(
            "a LIKE pattern must not contain U+FFFD, because malformed bytes would match it, too"
        )
    pattern: list[str | Wildcard] = []
    characters = iter(text)
    for character in characters:
        token: str | Wildcard = character
        if character == escape:
            token = next(characters, "")
            if token not in ("_", "%", escape) or not token:
                raise ValueError(
                    f"LIKE {text!r}: the escape character {escape!r} is followed by {token!r},"
                    " but must be followed by '_', '%' or itself"
                )
        elif character in ("_", "%"):
            token = Wildcard(character)
        last = pattern[-1] if pattern else None
        if isinstance(token, str) and isinstance(last, str):
            pattern[-1] = last + token
        elif token is not Wildcard.RUN or last is not Wildcard.RUN:
            pattern.append(token)
    return tuple(pattern)


def text_pattern(pattern: tuple[str | Wildcard, ...]) -> re.Pattern[str]:
    """Returns a regular expression for decoded strings. A string matches if the expression matches
    all of it.
    """
    return re.compile(
        "".join(
            re.escape(token) if isinstance(token, str) else "." if token is Wildcard.ONE else ".*"
            for token in pattern
        ),
        re.DOTALL,
    )


def byte_pattern(pattern: tuple[str | Wildcard, ...]) -> bytes:
    """Returns a regular expression for bytes, in RE2 syntax with Latin-1 encoding. Does not support
    patterns with `_`.
    """
    expressions = (
        b"".join(b"\\x%02x" % byte for byte in token.encode()) if isinstance(token, str) else b".*"
        for token in pattern
    )
    return rb"(?s)\A" + b"".join(expressions) + rb"\z"


def java_string(data: bytes) -> str:
    """Decodes bytes as Java's `new String(bytes, UTF_8)` does.

    Differs from Python with `errors="replace"` only for encoded surrogates (ED A0 80 … ED BF BF,
    also truncated): each becomes one U+FFFD.
    """
    return _SURROGATE.sub(b"\xff", data).decode("utf-8", "replace")


# ED is never a continuation byte, so a replacement never splits another sequence.
_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?", re.DOTALL)


DECIMAL: Final = pa.decimal256(76, 38)
"""Can represent every decimal of Spark exactly, with any scale."""


def field_values(field: Field, column: pa.Array) -> pa.Array:
    """Returns the values of a field of a decoded column, converted to the type for comparisons:
    binary, int64 or `DECIMAL`. Doubles are mapped to integers by `ordered`. Structs and durations
    are unchanged, because they are only compared with null.
    """
    values = column
    for name in field.path:
        values = pc.struct_field(values, [values.type.get_field_index(name)])
    match field.kind:
        case Kind.BYTES:
            return values.cast(pa.binary())
        case Kind.NUMBER | Kind.BOOLEAN:
            return values.cast(pa.int64())
        case Kind.DATE:
            return values.view(pa.int32()).cast(pa.int64())
        case Kind.INSTANT | Kind.LOCAL:
            return values.view(pa.int64())
        case Kind.DECIMAL:
            return values.cast(DECIMAL)
        case Kind.DOUBLE:
            floats = _doubles(values).to_numpy(zero_copy_only=False)
            empty = pc.is_null(values).to_numpy(zero_copy_only=False)
            return pa.array(ordered(floats), mask=empty)
    return values


def ordered(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Maps doubles to integers that are ordered as Spark orders the doubles: NaN equals itself and
    is the largest value, and -0 equals 0.
    """
    bits = (values + 0.0).view(np.int64)
    return np.where(np.isnan(values), MAX_INT64, np.where(bits < 0, bits ^ MAX_INT64, bits))


def _doubles(values: pa.Array) -> pa.Array:
    if pa.types.is_decimal(values.type):
        # Arrow's own cast does not always return the nearest double.
        nearest = [None if value is None else float(value) for value in values.to_pylist()]
        return pa.array(nearest, pa.float64())
    return values.cast(pa.float64(), safe=False)


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
    """Returns a mask of the rows for which the predicate is true; `None` if there are no such rows.

    The batch must have the columns of `columns_of(predicate)`, with the types that scans return.
    """
    terms = predicate.terms if isinstance(predicate, And) else (predicate,)
    mask = None
    for term in terms:
        answer = evaluate(term, batch)
        # A row is dropped if the mask is false or null, so it does not matter which of them it is.
        mask = answer if mask is None else pc.and_kleene(mask, answer)
        if not mask.true_count:
            return None
    return mask


def evaluate(predicate: Predicate, batch: pa.RecordBatch) -> pa.BooleanArray:
    """Returns the value of the predicate for every row: true, false or null."""
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
    matches = pc.is_in(values, value_set=_literals(predicate.operand, predicate.values))
    unknown = pc.is_null(values)
    if predicate.has_null:
        unknown = pc.invert(matches)
    return pc.if_else(unknown, pa.scalar(None, pa.bool_()), matches)


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
    """Matches a LIKE pattern with `_`. First selects candidate rows by a search in their bytes,
    then decodes and matches each candidate.
    """
    loose = tuple(Wildcard.RUN if token is Wildcard.ONE else token for token in pattern)
    candidates = pc.match_substring_regex(values, pattern=byte_pattern(loose))
    fits = text_pattern(pattern).fullmatch
    answer = np.zeros(len(values), np.bool_)
    for row in np.flatnonzero(pc.fill_null(candidates, False).to_numpy(zero_copy_only=False)):
        answer[row] = fits(java_string(values[int(row)].as_py())) is not None
    return pa.array(answer, mask=pc.is_null(values).to_numpy(zero_copy_only=False))


def _literals(operand: Operand, values: Sequence[Value]) -> pa.Array:
    """Returns literals as an array of the type that values of `operand` have in comparisons."""
    if operand.kind is Kind.DOUBLE:
        return pa.array(ordered(np.array(values, np.float64)))
    if operand.kind is Kind.BOOLEAN:
        return pa.array(map(int, values), pa.int64())
    return pa.array(values, _type(operand))


def _type(operand: Operand) -> pa.DataType:
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
    """Returns the value of the last header with this name for each row; null if the row has no such
    header.
    """
    ends = np.asarray(headers.offsets)[1:]
    pairs = headers.values
    keys, values = pairs.field("key"), pairs.field("value")
    indexes = np.flatnonzero(pc.equal(keys, name).to_numpy(zero_copy_only=False))
    first, stop = int(headers.offsets[0].as_py()), int(ends[-1]) if len(ends) else 0
    indexes = indexes[(indexes >= first) & (indexes < stop)]
    last = np.full(len(headers), -1, np.int64)
    # If a row has several headers of the name, numpy keeps the last assignment.
    last[np.searchsorted(ends, indexes, side="right")] = indexes
    return values.take(pa.array(last, mask=last < 0))
