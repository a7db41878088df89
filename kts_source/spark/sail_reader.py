"""The batch reader on Sail, which hands the conditions of a query over to it."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final

from kts_source.columns import PARTITION
from kts_source.planning.slicing import conjunction
from kts_source.predicate.model import (
    MAX_INT64,
    MIN_INT64,
    Column,
    Compare,
    In,
    IsNull,
    Not,
    Op,
    Predicate,
)
from kts_source.spark.readers import TieredKafkaBatchReader

if TYPE_CHECKING:
    from collections.abc import Iterable

TESTED_VERSIONS: Final = frozenset({"0.7.2"})
"""Of pysail. 0.7.2 hands over text conditions that are wrong, so no other version is trusted."""

_COLUMNS: Final = ("offset", PARTITION, "timestamp")
_OPS: Final = {
    "EqualTo": Op.EQ,
    "LessThan": Op.LT,
    "LessThanOrEqual": Op.LE,
    "GreaterThan": Op.GT,
    "GreaterThanOrEqual": Op.GE,
}


class SailBatchReader(TieredKafkaBatchReader):
    """Leaves out what the conditions of one scan rule out.

    Sail makes a reader for each scan and filters again, so rows may be left in but never out.
    """

    def pushFilters(self, filters: Iterable[Any]) -> Iterable[Any]:  # noqa: N802  # Sail's name
        """Takes what is certain of them, and gives all of them back.

        Args:
            filters: Of `pyspark.sql.datasource`; a row must meet all of them.
        """
        given = list(filters)
        certain = conjunction(self._options.where, *map(condition_of, given))
        self._options = replace(self._options, where=certain)
        return given


def takes_filters() -> bool:
    """Whether the Sail of this process is a version whose conditions were tested."""
    try:
        return version("pysail") in TESTED_VERSIONS
    except PackageNotFoundError:
        return False


def condition_of(one: Any) -> Predicate | None:  # noqa: ANN401  # PySpark 4.0 has no such classes
    """A condition that is true for every row that a filter takes; `None` where that is not certain.

    Comparisons with a value, IN and tests for null, on offset, partition and timestamp. Timestamps
    are whole microseconds since the epoch.
    """
    name = type(one).__name__
    path: tuple[str, ...] = getattr(one, "attribute", ())
    if len(path) != 1 or path[0] not in _COLUMNS:
        return None
    column = Column(path[0])
    if name == "IsNull":
        return IsNull(column)
    if name == "IsNotNull":
        return Not(IsNull(column))
    if name == "In":
        values = tuple(value for value in one.value if value is not None)
        return In(column, values, has_null=False) if all(map(_is_number, values)) else None
    op = _OPS.get(name)
    return None if op is None or not _is_number(one.value) else Compare(op, column, one.value)


def _is_number(value: object) -> bool:
    """Whether it is a whole number of 64 bits; a truth value is none."""
    return type(value) is int and MIN_INT64 <= value <= MAX_INT64
