"""A scan as a Polars `LazyFrame`."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from polars.io.plugins import register_io_source

from kts_source.columns import PARTITION
from kts_source.planning.narrowing import conjunction
from kts_source.predicate.model import MAX_INT64, MIN_INT64, Column, Compare, Op

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kts_source.engines.scan import Scan
    from kts_source.predicate.model import Predicate

_OPS: Final = {"Eq": Op.EQ, "Lt": Op.LT, "LtEq": Op.LE, "Gt": Op.GT, "GtEq": Op.GE}


def lazy_frame(scan: Scan) -> pl.LazyFrame:
    """The rows of a scan; each query reads the columns, offsets and rows that it needs."""
    schema = pl.DataFrame(scan.schema.empty_table()).schema

    def rows(
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        _batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        part = scan
        if n_rows is not None:
            # Polars means the first rows of all, of which it wants those that match.
            part = part.limit(n_rows)
        elif predicate is not None and not scan.is_limited:
            certain = certain_part(predicate)
            part = part if certain is None else part.where_predicate(certain)
        if with_columns is not None:
            part = part.select(with_columns or scan.columns[:1])
        with closing(part.batches()) as batches:
            for batch in batches:
                frame = pl.DataFrame(batch)
                if predicate is not None:
                    frame = frame.filter(predicate)
                yield frame if with_columns is None else frame.select(with_columns)

    return register_io_source(rows, schema=schema, validate_schema=True, is_pure=True)


def certain_part(predicate: pl.Expr) -> Predicate | None:
    """A condition that is true for every row for which the predicate is; `None` for none.

    Read from Polars' own JSON, which no version promises: what is not known by name is left to
    Polars, which gets the whole predicate in any case.
    """
    try:
        tree = json.loads(predicate.meta.serialize(format="json"))
    except Exception:  # noqa: BLE001  # such as a function of the user's, which has no JSON
        return None
    return _certain(tree)


def _certain(node: Any) -> Predicate | None:  # noqa: ANN401  # JSON
    match node:
        case {"BinaryExpr": {"left": left, "op": "And", "right": right}}:
            return conjunction(_certain(left), _certain(right))
        case {"BinaryExpr": {"left": {"Column": str(name)}, "op": str(op), "right": right}}:
            return _comparison(name, _OPS.get(op), right)
        case {"BinaryExpr": {"left": left, "op": str(op), "right": {"Column": str(name)}}}:
            known = _OPS.get(op)
            return _comparison(name, known.flipped if known else None, left)
    return None


def _comparison(name: str, op: Op | None, literal: Mapping[str, Any]) -> Predicate | None:
    if op is None or name not in ("offset", PARTITION):
        return None
    number = _whole_number(literal)
    if number is None or not MIN_INT64 <= number <= MAX_INT64:
        return None
    return Compare(op, Column(name), number)


def _whole_number(literal: Any) -> int | None:  # noqa: ANN401  # JSON
    """The number of a literal; `None` where it is no whole one."""
    match literal:
        case {"Literal": {"Dyn": {"Int": int(number)}}}:
            return number
        case {"Literal": {"Scalar": {"Int64": int(number)} | {"Int32": int(number)}}}:
            return number
    return None
