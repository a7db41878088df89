"""A scan as a Polars `LazyFrame`."""

from __future__ import annotations

import inspect
import json
from contextlib import closing
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from polars.io.plugins import register_io_source

from kts_source.columns import PARTITION
from kts_source.engines.conditions import field_comparison
from kts_source.planning.slicing import conjunction
from kts_source.predicate.model import MAX_INT64, MIN_INT64, Column, Compare, Op
from kts_source.read.handover import in_threads

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    import pyarrow as pa

    from kts_source.engines.base_scan import BaseScan
    from kts_source.predicate.model import Predicate

_DYNAMIC: Final = "dynamic_pred"
"""Polars' name for conditions that it adds, such as the bound of a top-k; a source may skip
them.
"""
_OPS: Final = {"Eq": Op.EQ, "Lt": Op.LT, "LtEq": Op.LE, "Gt": Op.GT, "GtEq": Op.GE}


def lazy_frame(scan: BaseScan, threads: int) -> pl.LazyFrame:
    """Returns the scan as a Polars `LazyFrame`. A query on it reads only the columns, offsets and
    rows that it needs. `threads` is the number of threads that read.
    """
    schema = pl.DataFrame(scan.schema.empty_table()).schema

    def rows(
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        _batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        narrowed = scan
        if predicate is not None:
            predicate = applicable_terms(predicate)
        if n_rows is not None:
            # Polars limits the rows before it applies the predicate.
            narrowed = narrowed.limit(n_rows)
        elif predicate is not None and not scan.is_limited:
            certain = implied_condition(predicate, scan.schema)
            narrowed = narrowed if certain is None else narrowed.where_predicate(certain)
        if with_columns is not None:
            # Polars 1.30 takes columns by position in the order of the schema. Later versions take
            # them by name.
            with_columns = [name for name in scan.columns if name in with_columns]
            narrowed = narrowed.select(with_columns or scan.columns[:1])
        with closing(_read_in_threads(narrowed, threads)) as batches:
            for batch in batches:
                frame = pl.DataFrame(batch)
                if predicate is not None:
                    frame = frame.filter(predicate)
                yield frame if with_columns is None else frame.select(with_columns)

    # Polars 1.30 has no argument `is_pure`.
    parameters = inspect.signature(register_io_source).parameters
    pure: dict[str, Any] = {"is_pure": True} if "is_pure" in parameters else {}
    return register_io_source(rows, schema=schema, validate_schema=True, **pure)


def _read_in_threads(scan: BaseScan, threads: int) -> Generator[pa.RecordBatch]:
    """Reads the rows in other threads and yields them in the calling thread.

    The calling thread does not read, because it converts each batch to Polars' layout.
    """
    if min(threads, len(scan.tasks)) > 1:
        return scan.batches(threads=threads)
    return in_threads([scan.batches], 1, ordered=True)


def applicable_terms(predicate: pl.Expr) -> pl.Expr | None:
    """Returns the terms of the outermost AND that `DataFrame.filter` can evaluate, combined by AND;
    `None` if there are none.

    As an optimization, Polars 1.3x and 1.4x add terms that they derive from the rows that a top-k
    operator has already received. A source gets these terms as expressions that contain only a
    display text, and `DataFrame.filter` panics on them. They can be dropped, because Polars applies
    them to the result again.
    """
    terms = list(_terms(predicate))
    kept = [term for term in terms if not _is_dynamic(term)]
    if len(kept) == len(terms):
        return predicate
    return reduce(and_, kept) if kept else None


def _terms(predicate: pl.Expr) -> Iterator[pl.Expr]:
    """Yields the terms of the outermost AND, from left to right. Only an AND that contains terms
    added by Polars is split.
    """
    pending = [predicate]
    while pending:
        term = pending.pop()
        inputs = term.meta.pop() if _DYNAMIC in str(term) else []
        for left, right in (inputs, inputs[::-1]) if len(inputs) == 2 else ():
            if (left & right).meta.eq(term):
                pending += [right, left]
                break
        else:
            yield term


def _is_dynamic(term: pl.Expr) -> bool:
    try:
        tree = json.loads(term.meta.serialize(format="json"))
    except Exception:  # noqa: BLE001  # such as a function of the user's, which has no JSON
        return False
    match tree:
        case {"Display": {"fmt_str": str(text)}}:
            return text.startswith(f"{_DYNAMIC}:")
    return False


def implied_condition(predicate: pl.Expr, schema: pa.Schema) -> Predicate | None:
    """Translates the supported terms of a predicate to one condition. If the predicate is true for
    a row, the condition is also true for this row. Returns `None` if no term is supported.

    Parses the JSON form of Polars expressions, whose format may change. Unknown terms are ignored,
    because the whole predicate is applied to the returned rows.
    """
    try:
        tree = json.loads(predicate.meta.serialize(format="json"))
    except Exception:  # noqa: BLE001  # such as a function of the user's, which has no JSON
        return None
    return _implied(tree, schema)


def _implied(node: Any, schema: pa.Schema) -> Predicate | None:  # noqa: ANN401  # JSON
    match node:
        case {"BinaryExpr": {"left": left, "op": "And", "right": right}}:
            return conjunction(_implied(left, schema), _implied(right, schema))
        case {"BinaryExpr": {"left": left, "op": str(op), "right": right}}:
            operator = _OPS.get(op)
            if operator is None:
                return None
            if names := _names(left):
                return _comparison(names, operator, right, schema)
            if names := _names(right):
                return _comparison(names, operator.flipped, left, schema)
    return None


def _names(node: Any) -> tuple[str, ...]:  # noqa: ANN401  # JSON
    """If `node` is a column or a nested field of a column, returns the name of the column and then
    the names of the nested fields. Otherwise returns an empty tuple.
    """
    match node:
        case {"Column": str(name)}:
            return (name,)
        case {
            "Function": {"input": [parent], "function": {"StructExpr": {"FieldByName": str(name)}}}
        }:
            names = _names(parent)
            return (*names, name) if names else ()
    return ()


def _comparison(
    names: tuple[str, ...], op: Op, literal: Mapping[str, Any], schema: pa.Schema
) -> Predicate | None:
    number = _whole_number(literal)
    if names in (("offset",), (PARTITION,)):
        if number is None or not MIN_INT64 <= number <= MAX_INT64:
            return None
        return Compare(op, Column(names[0]), number)
    match _scalar(literal):
        case {"String": str(text)} | {"StringOwned": str(text)}:  # Polars 1.30 has `StringOwned`
            return field_comparison(schema, names, op, text)
    return None if number is None else field_comparison(schema, names, op, number)


def _whole_number(literal: Any) -> int | None:  # noqa: ANN401  # JSON
    """Returns the value of an integer literal; `None` for other nodes."""
    match literal:
        case {"Literal": {"Dyn": {"Int": int(number)}}}:
            return number
    match _scalar(literal):
        case {"Int64": int(number)} | {"Int32": int(number)}:
            return number
    return None


def _scalar(literal: Any) -> Any:  # noqa: ANN401  # JSON
    match literal:
        case {"Literal": {"Scalar": {"dtype": _, "value": value}}}:  # Polars 1.30
            return value
        case {"Literal": {"Scalar": value}}:
            return value
    return None
