"""What a predicate is once parsed: a small tree of conditions over columns, free of SQL.

Tables keep its `repr` as the rule they were begun with: classes and fields keep their names.

Three-valued as in SQL: a condition on a null is null (but for `IsNull` and `Op.SAME`), and a row is
wanted only where the whole is true. Columns, fields and literals are of kinds that never mix, but
that a field of whole numbers may be read as decimals, and both as doubles:

| kind | columns | values |
|---|---|---|
| `BYTES` | key, value, header('name'), topic | `bytes`, ordered unsigned; text is its UTF-8 |
| `NUMBER` | partition, offset, timestampType | `int` that fits 64 bits |
| `INSTANT` | timestamp | `int`, microseconds since the epoch |
| `LOCAL` | | `int`, microseconds since 1970 on the clock on the wall |
| `DATE` | | `int`, days since 1970 |
| `BOOLEAN` | | `bool` |
| `DECIMAL` | | `Decimal` of up to 38 digits before the point, and behind it |
| `DOUBLE` | | `float`; NaN equals itself and is the largest, -0 is 0 |
| `STRUCT`, `DURATION` | | none: they are null or not |

Fields of decoded keys and values are of every kind.

Fields of decoded columns, found by name as Spark finds them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Final

import pyarrow as pa

from kts_source.columns import HEADERS, PARTITION, TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


MIN_INT64: Final = -(1 << 63)
MAX_INT64: Final = (1 << 63) - 1


class Kind(Enum):
    """What may be compared with what."""

    BYTES = "bytes"
    NUMBER = "a whole number"
    INSTANT = "a timestamp"
    LOCAL = "a timestamp without a zone"
    DATE = "a date"
    BOOLEAN = "a boolean"
    DECIMAL = "a decimal"
    DOUBLE = "a double"
    STRUCT = "a struct"
    DURATION = "a duration"


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

Value = bytes | int | Decimal | float


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


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a decoded key or value; null where something above it is.

    Attributes:
        source: `key` or `value`.
        path: Names from the top down; empty for all of the decoded column.
        kind: What it is read as.
    """

    source: str
    path: tuple[str, ...]
    kind: Kind


Operand = Column | Header | Field


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
        return (leaf.left, right) if isinstance(right, Operand) else (leaf.left,)
    return (leaf.operand,)


def operands_of(predicate: Predicate) -> frozenset[Operand]:
    """The columns, headers and fields that decide a predicate."""
    if isinstance(predicate, And | Or):
        return frozenset().union(*map(operands_of, predicate.terms))
    if isinstance(predicate, Not):
        return operands_of(predicate.term)
    return frozenset(() if isinstance(predicate, Constant) else operands(predicate))


def columns_of(predicate: Predicate) -> frozenset[str]:
    """The table's columns, `headers` included, that decide a predicate."""
    return frozenset(operand.source for operand in operands_of(predicate))


def fields_of(predicate: Predicate) -> frozenset[Field]:
    """The fields that decide a predicate."""
    return frozenset(one for one in operands_of(predicate) if isinstance(one, Field))


def split_by_fields(predicate: Predicate | None) -> tuple[Predicate | None, Predicate | None]:
    """Two predicates, both of which must be true: the first looks at no field, the second may look
    at columns, too. `None` for one that is always true.
    """
    terms = () if predicate is None else tuple(_terms(predicate))
    plain = tuple(term for term in terms if not fields_of(term))
    others = tuple(term for term in terms if fields_of(term))
    return _all_of(plain), _all_of(others)


def _terms(predicate: Predicate) -> Iterator[Predicate]:
    if isinstance(predicate, And):
        for term in predicate.terms:
            yield from _terms(term)
    else:
        yield predicate


def _all_of(terms: tuple[Predicate, ...]) -> Predicate | None:
    if len(terms) < 2:
        return terms[0] if terms else None
    return And(terms)


FindField = Callable[[tuple[str, ...]], tuple[tuple[str, ...], pa.DataType]]
"""Names from the top down, in any case, to the names as they are and the field's type. Raises
`ValueError` where there is no such field.
"""


def find_field(kind: pa.DataType, path: Sequence[str]) -> tuple[tuple[str, ...], pa.DataType]:
    """A field's names as the type spells them, and its type.

    Args:
        kind: Of the decoded column.
        path: Names in any case, from the top down.

    Raises:
        ValueError: There is no such field, or there are two that differ by case alone.
    """
    exact: tuple[str, ...] = ()
    for name in path:
        above = f"field {'.'.join(exact)!r}" if exact else "the column"
        if not pa.types.is_struct(kind):
            raise ValueError(f"is not there: {above} is a {_short(kind)}")
        names = [field.name for field in kind]
        found = [one for one in names if one.lower() == name.lower()]
        if not found:
            raise ValueError(f"is not there: {above} has no field {name!r}, but {', '.join(names)}")
        if len(found) > 1:
            raise ValueError(f"may be any of {', '.join(found)}, which differ by case alone")
        exact += (found[0],)
        kind = kind.field(kind.get_field_index(found[0])).type
    return exact, kind


def kind_of(type: pa.DataType) -> Kind:
    """What a field of a type may be compared with.

    Raises:
        ValueError: Arrays and maps, which no predicate looks at.
    """
    for fits, kind in _KINDS:
        if fits(type):
            return kind
    raise ValueError(f"is a {_short(type)}, which a predicate cannot look at")


def _is_instant(type: pa.DataType) -> bool:
    return pa.types.is_timestamp(type) and type.tz is not None


_KINDS: Final = (
    (pa.types.is_string, Kind.BYTES),
    (pa.types.is_binary, Kind.BYTES),
    (pa.types.is_boolean, Kind.BOOLEAN),
    (pa.types.is_signed_integer, Kind.NUMBER),
    (pa.types.is_floating, Kind.DOUBLE),
    (pa.types.is_decimal, Kind.DECIMAL),
    (pa.types.is_date32, Kind.DATE),
    (_is_instant, Kind.INSTANT),
    (pa.types.is_timestamp, Kind.LOCAL),
    (pa.types.is_duration, Kind.DURATION),
    (pa.types.is_struct, Kind.STRUCT),
)


def _short(type: pa.DataType) -> str:
    names = ((pa.types.is_map, "map"), (pa.types.is_list, "array"), (pa.types.is_struct, "struct"))
    return next((name for fits, name in names if fits(type)), str(type))
