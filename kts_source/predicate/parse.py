"""Parses a Spark SQL predicate, and returns it as a tree of the classes in `model`.

sqlglot parses the SQL grammar. An unsupported type of node, or an unsupported argument of a node,
raises an error that names the node. So unsupported syntax never changes a result silently.
"""

from __future__ import annotations

import difflib
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeGuard

from sqlglot import exp

from kts_source.columns import HEADERS
from kts_source.errors import InvalidOptionError
from kts_source.predicate.evaluate import parse_pattern
from kts_source.predicate.literals import (
    Instant,
    Literal,
    LocalTime,
    SqlText,
    converted_to,
    day,
    instant,
    local_time,
    names_of,
    number_literal,
    string_literal,
    with_common_kind,
    with_literals,
)
from kts_source.predicate.model import (
    KINDS,
    MAX_INT64,
    MIN_INT64,
    And,
    Column,
    Compare,
    Constant,
    Field,
    FindField,
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
    Value,
    kind_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import tzinfo

_OPS: Final[Mapping[type[exp.Expr], Op]] = {
    exp.EQ: Op.EQ,
    exp.NEQ: Op.NE,
    exp.LT: Op.LT,
    exp.LTE: Op.LE,
    exp.GT: Op.GT,
    exp.GTE: Op.GE,
    exp.NullSafeEQ: Op.SAME,
}
_PARTS: Final[Mapping[type[exp.Expr], Part]] = {
    exp.StartsWith: Part.START,
    exp.EndsWith: Part.END,
    exp.Contains: Part.ANYWHERE,
}
_BINARY: Final[tuple[type[exp.Expr], ...]] = (
    exp.And,
    exp.Or,
    exp.Is,
    exp.NullSafeNEQ,
    exp.Escape,
    *_OPS,
    *_PARTS,
)
_UNARY: Final[tuple[type[exp.Expr], ...]] = (
    exp.Not,
    exp.Neg,
    exp.Paren,
    exp.DataType,
    exp.Boolean,
    exp.Null,
)
_ARGUMENTS: Final[Mapping[type[exp.Expr], tuple[str, ...]]] = {
    **dict.fromkeys(_BINARY, ("this", "expression")),
    **dict.fromkeys(_UNARY, ("this",)),
    **dict.fromkeys((exp.Cast, exp.TryCast), ("this", "to")),
    **dict.fromkeys((exp.In, exp.Anonymous), ("this", "expressions")),
    exp.Column: ("this", "table", "db", "catalog"),
    exp.Dot: ("this", "expression"),
    exp.Between: ("this", "low", "high"),
    exp.Like: ("this", "expression", "negate"),
    exp.Literal: ("this", "is_string"),
    exp.Identifier: ("this", "quoted"),
}
"""Maps supported types of nodes to their supported arguments."""

_TIMESTAMP_FUNCTIONS: Final = {
    "timestamp_seconds": 1_000_000,
    "timestamp_millis": 1000,
    "timestamp_micros": 1,
}
_SAME_AS: Final = {exp.DataType.Type.TEXT: Kind.BYTES, exp.DataType.Type.BIGINT: Kind.NUMBER}
"""Casts without effect. Spark does not validate the bytes when it casts binary to string."""
_NOT_COMPARED: Final = (Kind.STRUCT, Kind.DURATION)
_INSTANT_TYPES: Final = (exp.DataType.Type.TIMESTAMPTZ, exp.DataType.Type.TIMESTAMPLTZ)


_Literal = Literal | None


def parse_predicate(
    text: str,
    zone: tzinfo | None = None,
    *,
    fields: Mapping[str, FindField] = MappingProxyType({}),
) -> Predicate:
    """Parses a condition.

    Args:
        text: A Spark SQL condition (ANSI mode) over `key`, `value`, `topic`, `partition`, `offset`,
            `timestamp`, `timestampType`, `header('name')` and the fields of decoded columns.
        zone: Time zone for timestamp literals that have no time zone.
        fields: For each decoded column, by name, a function that finds a field of the column.

    Raises:
        InvalidOptionError: The text is not a condition, or contains unsupported syntax. The error
            names the unsupported part.
    """
    try:
        return _Parser(text, zone, fields).predicate()
    except ValueError as error:
        raise InvalidOptionError(f"option 'where': {error}") from error
    except RecursionError:
        raise InvalidOptionError("option 'where': the predicate is nested too deeply") from None


class _Parser:
    """Parses the text of one condition. Methods raise ValueError with a message that names the
    unsupported part.
    """

    def __init__(self, text: str, zone: tzinfo | None, fields: Mapping[str, FindField]) -> None:
        self._text = SqlText(text)
        self._zone = zone
        self._fields = fields

    def predicate(self) -> Predicate:
        tree = self._text.tree()
        for node in tree.walk():
            supported = _ARGUMENTS.get(type(node), ())
            used = {name for name, value in node.args.items() if value not in (None, False, [])}
            if not supported or any(
                not name.startswith("_") for name in used.difference(supported)
            ):
                raise self._refused(node)
        return self._condition(tree)

    def _refused(self, node: exp.Expr, why: str = "is not supported in a predicate") -> ValueError:
        return ValueError(f"{self._text.of(node)} {why}")

    # --- Conditions ------------------------------------------------------------------------------

    def _condition(self, node: exp.Expr) -> Predicate:
        match node:
            case exp.And():
                return And(tuple(map(self._condition, _chain(node))))
            case exp.Or():
                return Or(tuple(map(self._condition, _chain(node))))
            case exp.Not():
                return Not(self._condition(node.this))
            case exp.Paren():
                return self._condition(node.this)
            case exp.Boolean():
                return Constant(bool(node.this))
            case exp.Null():
                return Constant(None)
            case exp.Is(expression=exp.Null()):
                return IsNull(self._operand(node.this))
            case exp.Is(this=exp.Column() | exp.Dot(), expression=exp.Boolean()):
                return self._compared(node, Op.SAME, node.this, node.expression)
            case exp.NullSafeNEQ():
                return Not(self._compared(node, Op.SAME, node.this, node.expression))
            case exp.Between():
                low = self._compared(node, Op.GE, node.this, node.args["low"])
                return And((low, self._compared(node, Op.LE, node.this, node.args["high"])))
            case exp.In():
                return self._in(node)
            case exp.Like():
                return self._like(node)
            case exp.Escape(this=exp.Like()):
                escape = self._literal(node.expression)
                if isinstance(escape, str) and len(escape) == 1:
                    return self._like(node.this, escape)
            case exp.Anonymous():
                return self._function(node)
            case exp.Column() | exp.Dot():
                return Compare(Op.EQ, self._of_kind(node, node, Kind.BOOLEAN), True)
        if op := _OPS.get(type(node)):
            return self._compared(node, op, node.this, node.expression)
        if position := _PARTS.get(type(node)):
            return self._has_text(node, position, node.this, node.expression)
        raise self._refused(node)

    def _compared(self, node: exp.Expr, op: Op, left: exp.Expr, right: exp.Expr) -> Predicate:
        first, second = self._read(left), self._read(right)
        if not isinstance(first, Operand):
            first, second, op = second, first, op.flipped
        if not isinstance(first, Operand):
            raise self._refused(node, "compares no column")
        if isinstance(second, Operand):
            both = with_common_kind(first, second)
            if both is None or first.kind in _NOT_COMPARED:
                raise self._refused(node, f"compares {first.kind.value} with {second.kind.value}")
            return Compare(op, *both)
        if second is None:
            return IsNull(first) if op is Op.SAME else Constant(None)
        first, (value,) = self._with_literals(node, first, [second])
        if isinstance(value, int) and not _fits(value):
            # The number does not fit into 64 bits, so the result is the same for all rows.
            true_ops = (Op.NE, Op.LT, Op.LE), (Op.NE, Op.GT, Op.GE)
            return _unless_null(first, op, op in true_ops[value < 0])
        return Compare(op, first, value)

    def _in(self, node: exp.In) -> Predicate:
        operand = self._operand(node.this)
        literals = [self._literal(value) for value in node.expressions]
        if not literals:
            raise self._refused(node)
        values_without_null = [literal for literal in literals if literal is not None]
        operand, values = self._with_literals(node, operand, values_without_null)
        different = tuple(filter(_fits, dict.fromkeys(values)))
        return In(operand, different, has_null=len(values_without_null) < len(literals))

    def _like(self, node: exp.Like, escape: str = "\\") -> Predicate:
        operand = self._of_kind(node, node.this, Kind.BYTES)
        pattern = self._literal(node.expression)
        if pattern is None:
            return Constant(None)
        if not isinstance(pattern, str):
            raise self._refused(node, "must have a string as its pattern")
        like = Like(operand, parse_pattern(pattern, escape))
        return Not(like) if node.args.get("negate") else like

    def _has_text(
        self, node: exp.Expr, position: Part, left: exp.Expr, right: exp.Expr
    ) -> Predicate:
        operand = self._of_kind(node, left, Kind.BYTES)
        text = self._literal(right)
        if text is None:
            return Constant(None)
        _, (value,) = self._with_literals(node, operand, [text])
        assert isinstance(value, bytes)
        return HasText(position, operand, value)

    def _function(self, node: exp.Anonymous) -> Predicate:
        match str(node.this).lower(), node.expressions:
            case "isnull", [column]:
                return IsNull(self._operand(column))
            case "isnotnull", [column]:
                return Not(IsNull(self._operand(column)))
            case ("startswith" | "endswith" | "contains") as name, [column, text]:
                return self._has_text(node, Part(name), column, text)
        raise self._refused(node)

    # --- Columns and literals --------------------------------------------------------------------

    def _operand(self, node: exp.Expr) -> Operand:
        operand = self._read(node)
        if not isinstance(operand, Operand):
            raise self._refused(node, "appears where a column is expected")
        return operand

    def _of_kind(self, node: exp.Expr, column: exp.Expr, kind: Kind) -> Operand:
        operand = self._operand(column)
        if operand.kind is not kind:
            what = "looks for text in" if kind is Kind.BYTES else "is not a condition, but"
            raise self._refused(node, f"{what} {operand.kind.value}")
        return operand

    def _literal(self, node: exp.Expr) -> _Literal:
        literal = self._read(node)
        if isinstance(literal, Operand):
            raise self._refused(node, "appears where a literal is expected")
        return literal

    def _read(self, node: exp.Expr) -> Operand | _Literal:
        """Reads a column, a header, a field or a literal. Returns `None` for the literal NULL."""
        match node:
            case exp.Paren():
                return self._read(node.this)
            case exp.Column(this=exp.Identifier()) | exp.Dot():
                return self._column(node)
            case exp.Null():
                return None
            case exp.Boolean():
                return bool(node.this)
            case exp.Literal(is_string=True):
                return string_literal(self._text.string(node))
            case exp.Literal():
                return number_literal(str(node.this))
            case exp.Neg():
                value = self._read(node.this)
                if _is_number(value):
                    return -value
            case exp.Cast():
                return self._cast(node)
            case exp.Anonymous():
                return self._called(node)
        raise self._refused(node)

    def _column(self, node: exp.Column | exp.Dot) -> Column | Field:
        names = names_of(node)
        by_lower = {name.lower(): name for name in KINDS}
        name = by_lower.get(names[0].lower()) if names else None
        if name is not None and name in self._fields:
            try:
                path, type = self._fields[name](names[1:])
                return Field(name, path, kind_of(type))
            except ValueError as error:
                raise self._refused(node, str(error)) from None
        if name is None or len(names) > 1:
            hint = _hint(names[0].lower() if names else "")
            raise self._refused(
                node, f"is not a column for predicates (columns: {', '.join(KINDS)}){hint}"
            )
        return Column(name)

    def _cast(self, node: exp.Cast) -> Operand | _Literal:
        """Reads a cast such as `CAST(key AS STRING)`, and literals that sqlglot represents as
        casts: `TIMESTAMP '…'`, `DATE '…'` and `5L`.
        """
        value, to = self._read(node.this), node.to.this
        if isinstance(value, Operand):
            if value.kind is _SAME_AS.get(to):
                return value
            if to is exp.DataType.Type.DOUBLE and (double := converted_to(value, Kind.DOUBLE)):
                return double
        elif isinstance(value, str) and to in _INSTANT_TYPES:
            return Instant(instant(value, self._zone))
        elif isinstance(value, str) and to is exp.DataType.Type.TIMESTAMPNTZ:
            return LocalTime(local_time(value))
        elif isinstance(value, str) and to is exp.DataType.Type.DATE:
            return day(value)
        elif type(value) is int and to is exp.DataType.Type.BIGINT:
            return value
        elif _is_number(value) and to is exp.DataType.Type.DOUBLE:
            return float(value)
        raise self._refused(node)

    def _called(self, node: exp.Anonymous) -> Header | Instant:
        match str(node.this).lower(), [self._read(argument) for argument in node.expressions]:
            case "header", [str(name)]:
                return Header(name)
            case "header", _:
                raise self._refused(node, "is not valid; write header('name')")
            case name, [value] if name in _TIMESTAMP_FUNCTIONS and type(value) is int:
                return Instant(_TIMESTAMP_FUNCTIONS[name] * value)
        raise self._refused(node)

    def _with_literals(
        self, node: exp.Expr, operand: Operand, literals: Sequence[Literal]
    ) -> tuple[Operand, tuple[Value, ...]]:
        if operand.kind in _NOT_COMPARED:
            raise self._refused(node, f"compares {operand.kind.value}; compare its fields instead")
        try:
            return with_literals(operand, literals, self._zone)
        except ValueError as error:
            raise ValueError(f"{self._text.of(node)}: {error}") from None


def _hint(name: str) -> str:
    """Returns advice about a name in lower case that is not a column for predicates."""
    if name == HEADERS:
        return "; use header('name')"
    if name in ("key", "value"):
        return f"; option '{name}.format' decodes fields"
    by_lower = {column.lower(): column for column in KINDS}
    if name in by_lower:  # a field follows the name of a column
        return ""
    if close := difflib.get_close_matches(name, by_lower, n=1):
        return f"; did you mean {by_lower[close[0]]!r}?"
    return "; for a field of values, set option 'value.format' and write value.<field>"


def _chain(node: exp.Expr) -> Iterator[exp.Expr]:
    """Returns the terms of nested ANDs, or of nested ORs, from left to right, without recursion,
    because the nesting may be very deep.
    """
    terms: list[exp.Expr] = []
    rest = node
    while type(rest) is type(node):
        terms.append(rest.expression)
        rest = rest.this
    return reversed([*terms, rest])


def _unless_null(operand: Operand, op: Op, answer: bool) -> Predicate:
    """Returns a condition that is null if the operand is null, and `answer` otherwise."""
    if op is Op.SAME or not isinstance(operand, Field):  # numeric columns are never null
        return Constant(answer)
    is_null = IsNull(operand)
    if answer:
        return Or((Not(is_null), Constant(None)))
    return And((is_null, Constant(None)))


def _is_number(value: object) -> TypeGuard[int | float | Decimal]:
    return type(value) in (int, float, Decimal)


def _fits(value: Value) -> bool:
    return type(value) is not int or MIN_INT64 <= value <= MAX_INT64
