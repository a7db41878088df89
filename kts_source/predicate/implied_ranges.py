"""Finds out which offsets and timestamps of a partition can match a predicate, before rows are
read.

`specialised` replaces topic and partition in the predicate by the values of one partition. `region`
returns bounds of the offsets and timestamps that can match. The bounds may include rows that do not
match, but never exclude a matching row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

import pyarrow as pa

from kts_source.columns import LOCATION_COLUMNS, PARTITION, TOPIC
from kts_source.predicate.model import (
    MAX_INT64,
    MIN_INT64,
    And,
    Column,
    Compare,
    Constant,
    In,
    Leaf,
    Not,
    Op,
    Or,
    Predicate,
    operands,
)

TRUE: Final = Constant(True)
FALSE: Final = Constant(False)

_NEGATED: Final = {
    Op.EQ: Op.NE,
    Op.NE: Op.EQ,
    Op.LT: Op.GE,
    Op.LE: Op.GT,
    Op.GT: Op.LE,
    Op.GE: Op.LT,
    Op.SAME: Op.NE,  # for columns that are never null
}


@dataclass(frozen=True, slots=True)
class Region:
    """Bounds of offsets, and of timestamps in microseconds since 1970. All bounds are inclusive."""

    first_offset: int = MIN_INT64
    last_offset: int = MAX_INT64
    first_timestamp: int = MIN_INT64
    last_timestamp: int = MAX_INT64

    @property
    def is_empty(self) -> bool:
        """True if no row is within the bounds."""
        return self.first_offset > self.last_offset or self.first_timestamp > self.last_timestamp

    def within(self, other: Region) -> Region:
        """Returns the intersection of the two regions."""
        return Region(
            max(self.first_offset, other.first_offset),
            min(self.last_offset, other.last_offset),
            max(self.first_timestamp, other.first_timestamp),
            min(self.last_timestamp, other.last_timestamp),
        )

    def around(self, other: Region) -> Region:
        """Returns the smallest region that contains both regions."""
        if self.is_empty or other.is_empty:
            return other if self.is_empty else self
        return Region(
            min(self.first_offset, other.first_offset),
            max(self.last_offset, other.last_offset),
            min(self.first_timestamp, other.first_timestamp),
            max(self.last_timestamp, other.last_timestamp),
        )


EVERYWHERE: Final = Region()
NOWHERE: Final = Region(first_offset=1, last_offset=0)


def region(predicate: Predicate, wanted: bool = True) -> Region:
    """Returns a region that contains every row for which the predicate has the value `wanted` (True
    or False, not null).
    """
    if isinstance(predicate, Constant):
        return EVERYWHERE if predicate.value is wanted else NOWHERE
    if isinstance(predicate, Not):
        return region(predicate.term, not wanted)
    if isinstance(predicate, And | Or):
        boxes = [region(term, wanted) for term in predicate.terms]
        # If an AND is true, all its terms are true. If an OR is false, all its terms are false.
        needs_all = isinstance(predicate, And) is wanted
        return reduce(Region.within if needs_all else Region.around, boxes)
    return _leaf_region(predicate, wanted)


def _leaf_region(leaf: Leaf, wanted: bool) -> Region:
    (column, *others) = operands(leaf)
    if others or not isinstance(column, Column) or column.name not in ("offset", "timestamp"):
        return EVERYWHERE
    if isinstance(leaf, Compare):
        op = leaf.op if wanted else _NEGATED[leaf.op]
        assert isinstance(leaf.right, int)
        first, last = _interval(op, leaf.right)
    elif isinstance(leaf, In) and wanted:
        numbers = [value for value in leaf.values if isinstance(value, int)]
        first, last = (min(numbers), max(numbers)) if numbers else (1, 0)
    else:
        return EVERYWHERE
    if column.name == "offset":
        return Region(first_offset=first, last_offset=last)
    return Region(first_timestamp=first, last_timestamp=last)


def _interval(op: Op, number: int) -> tuple[int, int]:
    first = {Op.GT: number + 1, Op.GE: number, Op.EQ: number, Op.SAME: number}
    last = {Op.LT: number - 1, Op.LE: number, Op.EQ: number, Op.SAME: number}
    return first.get(op, MIN_INT64), last.get(op, MAX_INT64)


def specialised(predicate: Predicate, topic: str, partition: int) -> Predicate:
    """Returns the predicate for the rows of one partition. Replaces topic and partition by their
    values, and evaluates the conditions that then contain no other column.
    """
    row = pa.record_batch(
        {
            TOPIC: pa.array([topic.encode()], pa.binary()),
            PARTITION: pa.array([partition], pa.int64()),
        }
    )
    return _simplified(predicate, row)


def _simplified(predicate: Predicate, row: pa.RecordBatch) -> Predicate:
    if isinstance(predicate, Constant):
        return predicate
    if isinstance(predicate, Not):
        term = _simplified(predicate.term, row)
        if isinstance(term, Constant):
            return term if term.value is None else Constant(not term.value)
        return Not(term)
    if isinstance(predicate, And | Or):
        # A `strong` term decides the result alone; a `weak` term has no effect on it.
        strong, weak = (FALSE, TRUE) if isinstance(predicate, And) else (TRUE, FALSE)
        terms = tuple(
            term for term in (_simplified(term, row) for term in predicate.terms) if term != weak
        )
        if strong in terms:
            return strong
        if not terms:
            return weak
        return terms[0] if len(terms) == 1 else replace(predicate, terms=terms)
    return _leaf_simplified(predicate, row)


def _leaf_simplified(leaf: Leaf, row: pa.RecordBatch) -> Predicate:
    is_location = [operand.source in LOCATION_COLUMNS for operand in operands(leaf)]
    if all(is_location):
        from kts_source.predicate.evaluate import evaluate  # imports pyarrow.compute

        return Constant(evaluate(leaf, row)[0].as_py())
    if isinstance(leaf, Compare) and any(is_location):
        op, (unknown, location) = leaf.op, operands(leaf)
        if is_location[0]:
            op, unknown, location = op.flipped, location, unknown
        return Compare(op, unknown, row.column(location.source)[0].as_py())
    return leaf


def first_millisecond(box: Region) -> int:
    """Returns the lowest timestamp in the region, in milliseconds since 1970, rounded up;
    `MIN_INT64` if the region has no lower bound.
    """
    first = box.first_timestamp
    return first if first == MIN_INT64 else -(-first // 1000)


def last_millisecond(box: Region) -> int:
    """Returns the highest timestamp in the region, in milliseconds since 1970, rounded down;
    `MAX_INT64` if the region has no upper bound.
    """
    last = box.last_timestamp
    return last if last == MAX_INT64 else last // 1000
