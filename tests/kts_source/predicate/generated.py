"""Provides Hypothesis strategies for predicates of every type and for rows that can satisfy
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import strategies as st

from kts_source.predicate.evaluate import parse_pattern
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
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.kts_source.predicate.oracle import Row

# The strategies draw from few distinct values, so that conditions are often true.
TEXTS = st.sampled_from(["", "a", "b", "ab", "ba", "aba", "é", "aé", "😀", "a\nb", "%", "_"])
BYTES = TEXTS.map(str.encode)
NAMES = st.sampled_from(["h", "i"])
NUMBERS = st.integers(-2, 4)
INSTANTS = st.integers(-2, 4).map(lambda ms: ms * 1000)
PATTERNS = st.text("ab_%é", max_size=5).map(parse_pattern)

_BYTES_COLUMNS = st.sampled_from(["key", "value", "topic"]).map(Column)
_NUMBER_COLUMNS = st.sampled_from(["partition", "offset", "timestampType"]).map(Column)
_TIMESTAMP = st.just(Column("timestamp"))
BYTES_OPERANDS: st.SearchStrategy[Operand] = _BYTES_COLUMNS | NAMES.map(Header)

LEAVES: st.SearchStrategy[Predicate] = st.one_of(
    st.builds(Constant, st.sampled_from([True, False, None])),
    st.builds(Compare, st.sampled_from(Op), BYTES_OPERANDS, BYTES | BYTES_OPERANDS),
    st.builds(Compare, st.sampled_from(Op), _NUMBER_COLUMNS, NUMBERS | _NUMBER_COLUMNS),
    st.builds(Compare, st.sampled_from(Op), _TIMESTAMP, st.integers(-2500, 4500) | INSTANTS),
    st.builds(In, BYTES_OPERANDS, st.lists(BYTES, max_size=3).map(tuple), st.booleans()),
    st.builds(In, _NUMBER_COLUMNS, st.lists(NUMBERS, max_size=3).map(tuple), st.booleans()),
    st.builds(In, _TIMESTAMP, st.lists(INSTANTS, max_size=3).map(tuple), st.booleans()),
    st.builds(IsNull, BYTES_OPERANDS | _NUMBER_COLUMNS | _TIMESTAMP),
    st.builds(HasText, st.sampled_from(Part), BYTES_OPERANDS, BYTES),
    st.builds(Like, BYTES_OPERANDS, PATTERNS),
)
PREDICATES: st.SearchStrategy[Predicate] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(And, st.lists(inner, min_size=1, max_size=3).map(tuple)),
        st.builds(Or, st.lists(inner, min_size=1, max_size=3).map(tuple)),
    ),
    max_leaves=8,
)

ROWS: st.SearchStrategy[Row] = st.fixed_dictionaries(
    {
        "key": st.none() | BYTES,
        "value": st.none() | BYTES,
        "topic": TEXTS.map(str.encode),
        "partition": NUMBERS,
        "offset": NUMBERS,
        "timestamp": INSTANTS,
        "timestampType": st.integers(-1, 1),
        "headers": st.lists(st.tuples(NAMES, st.none() | BYTES), max_size=3),
    }
)

_TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.binary(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}


def make_batch(rows: Sequence[Row]) -> pa.RecordBatch:
    """Converts rows to a record batch with the column types of the source table."""

    def cell(name: str, value: Any) -> Any:  # noqa: ANN401 - a value of any column
        if name == "headers":
            return [{"key": key, "value": content} for key, content in value]
        return value

    columns = {
        name: pa.array([cell(name, row[name]) for row in rows], kind)
        for name, kind in _TYPES.items()
    }
    return pa.record_batch(columns)
