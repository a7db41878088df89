"""What a predicate is once parsed: a small tree of conditions over columns, free of SQL.

Tables keep its `repr` as the rule they were begun with: classes and fields keep their names.

Three-valued as in SQL: a condition on a null is null (but for `IsNull` and `Op.SAME`), and a row is
wanted only where the whole is true. Columns and literals are of three kinds that never mix:

| kind | columns | values |
|---|---|---|
| `BYTES` | key, value, header('name'), topic | `bytes`, ordered unsigned; text is its UTF-8 |
| `NUMBER` | partition, offset, timestampType | `int` that fits 64 bits |
| `INSTANT` | timestamp | `int`, microseconds since the epoch |
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Final

from kts_source.columns import HEADERS, PARTITION, TOPIC

if TYPE_CHECKING:
    from collections.abc import Mapping


MIN_INT64: Final = -(1 << 63)
MAX_INT64: Final = (1 << 63) - 1


class Kind(Enum):
    """What may be compared with what."""

    BYTES = "bytes"
    NUMBER = "a whole number"
    INSTANT = "a timestamp"


KINDS: Final[Mapping[str, Kind]] = {
    "key": Kind.BYTES,
    "value": Kind.BYTES,
    TOPIC: Kind.BYTES,
    PARTITION: Kind.NUMBER,
    "offset": Kind.NUMBER,
    "timestamp": Kind.INSTANT,
    "timestampType": Kind.NUMBER,
}
"""The columns a predicate may name, by their kind; headers only through `Header`."""

Value = bytes | int


class Op(Enum):
    """A comparison; `SAME` is `<=>`, true for two nulls and never null."""

    EQ = "="
    NE = "<>"
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="
    SAME = "<=>"

    @property
    def flipped(self) -> Op:
        """The comparison with its sides exchanged."""
        return _FLIPPED.get(self, self)


_FLIPPED: Final = {Op.LT: Op.GT, Op.LE: Op.GE, Op.GT: Op.LT, Op.GE: Op.LE}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table, by its name in `KINDS`."""

    name: str

    @property
    def kind(self) -> Kind:
        """What it may be compared with."""
        return KINDS[self.name]

    @property
    def source(self) -> str:
        """The column to decode."""
        return self.name


@dataclass(frozen=True, slots=True)
class Header:
    """The value of a record's last header of this name; null when it has none."""

    name: str

    kind: ClassVar = Kind.BYTES
    source: ClassVar = HEADERS


Operand = Column | Header


@dataclass(frozen=True, slots=True)
class Constant:
    """True, false or null for every row."""

    value: bool | None


@dataclass(frozen=True, slots=True)
class Compare:
    """`left op right`, both of one kind."""

    op: Op
    left: Operand
    right: Operand | Value


@dataclass(frozen=True, slots=True)
class In:
    """`operand IN (values)`.

    Attributes:
        has_null: Whether NULL is among the values: where none of the others matches, the answer is
            null.
    """

    operand: Operand
    values: tuple[Value, ...]
    has_null: bool


@dataclass(frozen=True, slots=True)
class IsNull:
    """`operand IS NULL`; never null itself."""

    operand: Operand


class Part(Enum):
    """Where a text stands."""

    START = "startswith"
    END = "endswith"
    ANYWHERE = "contains"


@dataclass(frozen=True, slots=True)
class HasText:
    """`startswith`, `endswith` and `contains`, byte by byte."""

    part: Part
    operand: Operand
    text: bytes


class Wildcard(Enum):
    """What a LIKE pattern holds besides literal text."""

    ONE = "_"
    RUN = "%"


@dataclass(frozen=True, slots=True)
class Like:
    """`operand LIKE pattern`.

    Attributes:
        pattern: Literal texts and wildcards; no two texts and no two runs side by side.
    """

    operand: Operand
    pattern: tuple[str | Wildcard, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """Negation; null stays null."""

    term: Predicate


@dataclass(frozen=True, slots=True)
class And:
    """Conjunction: false wins over null, null over true."""

    terms: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Disjunction: true wins over null, null over false."""

    terms: tuple[Predicate, ...]


Leaf = Compare | In | IsNull | HasText | Like
Predicate = Constant | Leaf | Not | And | Or


def operands(leaf: Leaf) -> tuple[Operand, ...]:
    """The columns and headers that a condition looks at."""
    if isinstance(leaf, Compare):
        right = leaf.right
        return (leaf.left, right) if isinstance(right, Column | Header) else (leaf.left,)
    return (leaf.operand,)


def columns_of(predicate: Predicate) -> frozenset[str]:
    """The table's columns, `headers` included, that decide a predicate."""
    if isinstance(predicate, And | Or):
        return frozenset().union(*map(columns_of, predicate.terms))
    if isinstance(predicate, Not):
        return columns_of(predicate.term)
    known = () if isinstance(predicate, Constant) else operands(predicate)
    return frozenset(operand.source for operand in known)
