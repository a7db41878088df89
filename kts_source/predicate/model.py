"""A parsed predicate: a tree of conditions over columns, without SQL.

Tables store its `repr` to detect changed settings, so classes and fields must keep their names.

Logic is three-valued as in SQL: a condition on null is null (except `IsNull` and `Op.SAME`), and a
row matches only if the whole predicate is true. Columns, fields and literals have kinds that never
mix, except that a field of whole numbers may be read as decimals, and both as doubles:

| kind | columns | values |
|---|---|---|
| `BYTES` | key, value, header('name'), topic | `bytes`, ordered unsigned; text is its UTF-8 |
| `NUMBER` | partition, offset, timestampType | `int` that fits 64 bits |
| `INSTANT` | timestamp | `int`, microseconds since the epoch |
| `LOCAL` | | `int`, microseconds since 1970 in local time |
| `DATE` | | `int`, days since 1970 |
| `BOOLEAN` | | `bool` |
| `DECIMAL` | | `Decimal` of up to 38 digits before and after the point |
| `DOUBLE` | | `float`; NaN equals itself and is the largest, -0 is 0 |
| `STRUCT`, `DURATION` | | none: only compared with null |

Fields of decoded keys and values may have any kind and are found by name as in Spark.
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
    """Operands and literals of one kind can be compared."""

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
        """The same comparison with its sides exchanged."""
        return _FLIPPED.get(self, self)


_FLIPPED: Final = {Op.LT: Op.GT, Op.LE: Op.GE, Op.GT: Op.LT, Op.GE: Op.LE}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table, by its name in `KINDS`."""

    name: str

    @property
    def kind(self) -> Kind:
        """Kind of its values."""
        return KINDS[self.name]

    @property
    def source(self) -> str:
        """The column to decode."""
        return self.name


@dataclass(frozen=True, slots=True)
class Header:
    """The value of a record's last header of this name, or null."""

    name: str

    kind: ClassVar = Kind.BYTES
    source: ClassVar = HEADERS


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a decoded key or value; null if a field above it is.

    Attributes:
        source: `key` or `value`.
        path: Names from the top down; empty for the whole column.
        kind: The kind it is read as.
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
        has_null: True if NULL is among the values: the result is null if no other value matches.
    """

    operand: Operand
    values: tuple[Value, ...]
    has_null: bool


@dataclass(frozen=True, slots=True)
class IsNull:
    """`operand IS NULL`; never null itself."""

    operand: Operand


class Part(Enum):
    """Position of a text."""

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
    """Wildcards of LIKE patterns."""

    ONE = "_"
    RUN = "%"


@dataclass(frozen=True, slots=True)
class Like:
    """`operand LIKE pattern`.

    Attributes:
        pattern: Literal texts and wildcards; never two adjacent texts or two adjacent `%`.
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
    """Returns the operands of a condition."""
    if isinstance(leaf, Compare):
        right = leaf.right
        return (leaf.left, right) if isinstance(right, Operand) else (leaf.left,)
    return (leaf.operand,)


def operands_of(predicate: Predicate) -> frozenset[Operand]:
    """Returns the columns, headers and fields that a predicate reads."""
    if isinstance(predicate, And | Or):
        return frozenset().union(*map(operands_of, predicate.terms))
    if isinstance(predicate, Not):
        return operands_of(predicate.term)
    return frozenset(() if isinstance(predicate, Constant) else operands(predicate))


def columns_of(predicate: Predicate) -> frozenset[str]:
    """Returns the columns of the table, including `headers`, that a predicate reads."""
    return frozenset(operand.source for operand in operands_of(predicate))


def fields_of(predicate: Predicate) -> frozenset[Field]:
    """Returns the fields that a predicate reads."""
    return frozenset(item for item in operands_of(predicate) if isinstance(item, Field))


def split_by_fields(predicate: Predicate | None) -> tuple[Predicate | None, Predicate | None]:
    """Splits a predicate into two predicates that must both be true. The first reads no fields; the
    second reads fields and columns. `None` means always true.
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
"""Maps names from the top down, in any case, to exact names and the field's type. Raises
`ValueError` if there is no such field.
"""


def find_field(kind: pa.DataType, path: Sequence[str]) -> tuple[tuple[str, ...], pa.DataType]:
    """Returns the exact names and the type of a field.

    Args:
        kind: Type of the decoded column.
        path: Names in any case, from the top down.

    Raises:
        ValueError: There is no such field, or two differ by case alone.
    """
    exact: tuple[str, ...] = ()
    for name in path:
        above = f"field {'.'.join(exact)!r}" if exact else "the column"
        if not pa.types.is_struct(kind):
            raise ValueError(f"does not exist: {above} is a {_short(kind)}")
        names = [field.name for field in kind]
        matches = [other for other in names if other.lower() == name.lower()]
        if not matches:
            raise ValueError(
                f"does not exist: {above} has no field {name!r}, but {', '.join(names)}"
            )
        if len(matches) > 1:
            raise ValueError(f"may be any of {', '.join(matches)}, which differ only in case")
        exact += (matches[0],)
        kind = kind.field(kind.get_field_index(matches[0])).type
    return exact, kind


def kind_of(type: pa.DataType) -> Kind:
    """Returns the kind of a type; raises ValueError for arrays and maps."""
    for fits, kind in _KINDS:
        if fits(type):
            return kind
    raise ValueError(f"is a {_short(type)}, which a predicate cannot compare")


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
