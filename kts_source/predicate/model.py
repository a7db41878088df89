"""Defines a parsed predicate: a tree of conditions over columns, independent of SQL syntax.

Exports store the `repr` of a predicate in a table to detect changed settings. So do not rename
classes and fields.

Logic is three-valued as in SQL: a condition on null is null (except `IsNull` and `Op.SAME`), and a
row matches only if the whole predicate is true. Columns, fields and literals have kinds, and only
operands of one kind can be compared. A field of integers can be converted to decimals, and a field
of integers or decimals to doubles:

| kind | columns | values |
|---|---|---|
| `BYTES` | key, value, header('name'), topic | `bytes`, compared as unsigned; text as UTF-8 |
| `NUMBER` | partition, offset, timestampType | `int` that fits into 64 bits |
| `INSTANT` | timestamp | `int`, microseconds since the epoch |
| `LOCAL` | | `int`, microseconds since 1970 in local time |
| `DATE` | | `int`, days since 1970 |
| `BOOLEAN` | | `bool` |
| `DECIMAL` | | `Decimal` of up to 38 digits before and after the point |
| `DOUBLE` | | `float`; NaN equals itself and is the largest, -0 is 0 |
| `STRUCT`, `DURATION` | | only compared with null |

Fields of decoded keys and values may have any kind. They are found by name as in Spark, ignoring
case.
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
    """Kind of an operand or literal. Only values of equal kinds can be compared."""

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
"""Maps each column that a predicate may name to its kind. Headers are accessed only through
`Header`.
"""

Value = bytes | int | Decimal | float


class Op(Enum):
    """A comparison operator. `SAME` is `<=>`: it is true for two nulls, and never null."""

    EQ = "="
    NE = "<>"
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="
    SAME = "<=>"

    @property
    def flipped(self) -> Op:
        """The operator that gives the same result after the two sides are exchanged."""
        return _FLIPPED.get(self, self)


_FLIPPED: Final = {Op.LT: Op.GT, Op.LE: Op.GE, Op.GT: Op.LT, Op.GE: Op.LE}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of records. The name is a key of `KINDS`."""

    name: str

    @property
    def kind(self) -> Kind:
        """Kind of the column's values."""
        return KINDS[self.name]

    @property
    def source(self) -> str:
        """Name of the column of a batch that contains the values."""
        return self.name


@dataclass(frozen=True, slots=True)
class Header:
    """The value of the last header of a record that has this name; null if there is no such
    header.
    """

    name: str

    kind: ClassVar = Kind.BYTES
    source: ClassVar = HEADERS


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a decoded key or value. It is null if the struct that contains it is null.

    Attributes:
        source: `key` or `value`.
        path: Names of the nested fields, outermost first; empty for the whole column.
        kind: The kind to which its values are converted.
    """

    source: str
    path: tuple[str, ...]
    kind: Kind


Operand = Column | Header | Field


@dataclass(frozen=True, slots=True)
class Constant:
    """A condition with the same value for every row: true, false or null (`None`)."""

    value: bool | None


@dataclass(frozen=True, slots=True)
class Compare:
    """The condition `left op right`. Both sides have the same kind."""

    op: Op
    left: Operand
    right: Operand | Value


@dataclass(frozen=True, slots=True)
class In:
    """The condition `operand IN (values)`.

    Attributes:
        has_null: True if the list also contains NULL. Then the result is null, not false, if no
            value matches.
    """

    operand: Operand
    values: tuple[Value, ...]
    has_null: bool


@dataclass(frozen=True, slots=True)
class IsNull:
    """The condition `operand IS NULL`. Its result is never null."""

    operand: Operand


class Part(Enum):
    """The part of a text that `HasText` searches: the start, the end, or the whole text."""

    START = "startswith"
    END = "endswith"
    ANYWHERE = "contains"


@dataclass(frozen=True, slots=True)
class HasText:
    """One of the conditions `startswith`, `endswith` and `contains`. Compares bytes."""

    part: Part
    operand: Operand
    text: bytes


class Wildcard(Enum):
    """Wildcards of LIKE patterns."""

    ONE = "_"
    RUN = "%"


@dataclass(frozen=True, slots=True)
class Like:
    """The condition `operand LIKE pattern`.

    Attributes:
        pattern: Literal texts and wildcards. Two texts, or two `%`, are never adjacent.
    """

    operand: Operand
    pattern: tuple[str | Wildcard, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """Negation of a condition. The negation of null is null."""

    term: Predicate


@dataclass(frozen=True, slots=True)
class And:
    """Conjunction of conditions: false if a term is false, else null if a term is null, else
    true.
    """

    terms: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Disjunction of conditions: true if a term is true, else null if a term is null, else
    false.
    """

    terms: tuple[Predicate, ...]


Leaf = Compare | In | IsNull | HasText | Like
Predicate = Constant | Leaf | Not | And | Or


def operands(leaf: Leaf) -> tuple[Operand, ...]:
    """Returns the columns, headers and fields in a condition, from left to right."""
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
    """Returns the columns that a predicate reads. It reads column `headers` if it contains
    `header('name')`.
    """
    return frozenset(operand.source for operand in operands_of(predicate))


def fields_of(predicate: Predicate) -> frozenset[Field]:
    """Returns the fields that a predicate reads."""
    return frozenset(item for item in operands_of(predicate) if isinstance(item, Field))


def split_by_fields(predicate: Predicate | None) -> tuple[Predicate | None, Predicate | None]:
    """Splits a predicate into two predicates that must both be true. The first predicate reads no
    fields of decoded columns; every term of the second reads at least one field. `None` means that
    the predicate is always true.
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
"""Finds a field by the names on the path to it, ignoring case. Returns the exact spelling of these
names and the field's type. Raises `ValueError` if the field does not exist.
"""


def find_field(kind: pa.DataType, path: Sequence[str]) -> tuple[tuple[str, ...], pa.DataType]:
    """Returns two values: the exact names of a nested field and its parents, outermost first, and
    the type of the field.

    Args:
        kind: Type of the decoded column.
        path: Names of the nested fields, outermost first. Upper and lower case are not
            distinguished.

    Raises:
        ValueError: There is no such field, or several fields differ only in case.
    """
    exact: tuple[str, ...] = ()
    for name in path:
        above = f"field {'.'.join(exact)!r}" if exact else "the column"
        if not pa.types.is_struct(kind):
            raise ValueError(f"does not exist: {above} is a {_short(kind)}, which has no fields")
        names = [field.name for field in kind]
        matches = [other for other in names if other.lower() == name.lower()]
        if not matches:
            raise ValueError(
                f"does not exist: {above} has no field {name!r} (fields: {', '.join(names)})"
            )
        if len(matches) > 1:
            raise ValueError(f"may be any of {', '.join(matches)}, which differ only in case")
        exact += (matches[0],)
        kind = kind.field(kind.get_field_index(matches[0])).type
    return exact, kind


def kind_of(type: pa.DataType) -> Kind:
    """Returns the kind of an Arrow type. Raises ValueError for a type that a predicate cannot
    compare, such as arrays and maps.
    """
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
