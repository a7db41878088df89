"""A Spark SQL predicate, as text, to the tree of `model`.

sqlglot reads the grammar; every node of its tree is either understood in full here or refused by
name, so that what it knows and we do not can never change an answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlglot import exp

from kts_source.columns import HEADERS
from kts_source.errors import InvalidOptionError
from kts_source.predicate.like import parse_pattern
from kts_source.predicate.literals import instant, midnight, string_literal
from kts_source.predicate.model import (
    KINDS,
    MAX_INT64,
    MIN_INT64,
    And,
    Column,
    Compare,
    Constant,
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
)
from kts_source.predicate.sql_text import SqlText

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
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
    exp.Column,
    exp.DataType,
    exp.Boolean,
    exp.Null,
)
_ARGUMENTS: Final[Mapping[type[exp.Expr], tuple[str, ...]]] = {
    **dict.fromkeys(_BINARY, ("this", "expression")),
    **dict.fromkeys(_UNARY, ("this",)),
    **dict.fromkeys((exp.Cast, exp.TryCast), ("this", "to")),
    **dict.fromkeys((exp.In, exp.Anonymous), ("this", "expressions")),
    exp.Between: ("this", "low", "high"),
    exp.Like: ("this", "expression", "negate"),
    exp.Literal: ("this", "is_string"),
    exp.Identifier: ("this", "quoted"),
}
"""Every kind of node that is understood, and all that it may say."""

_TIMESTAMP_FUNCTIONS: Final = {
    "timestamp_seconds": 1_000_000,
    "timestamp_millis": 1000,
    "timestamp_micros": 1,
}
_INSTANT_TYPES: Final = (exp.DataType.Type.TIMESTAMPTZ, exp.DataType.Type.TIMESTAMPLTZ)


class _Instant(int):
    """A literal that is a timestamp by itself, in microseconds."""


_Literal = str | bytes | int | _Instant | None


def parse_predicate(text: str, zone: tzinfo | None = None, *, option: str = "where") -> Predicate:
    """The predicate that `text` states.

    Args:
        text: A Spark SQL condition (ANSI mode) over `key`, `value`, `topic`, `partition`, `offset`,
            `timestamp`, `timestampType` and `header('name')`.
        zone: Of timestamp literals that name none.
        option: Named in errors.

    Raises:
        InvalidOptionError: Not a condition, or one with a part that is not supported; names the
            part.
    """
    try:
        return _Parser(text, zone).predicate()
    except ValueError as error:
        raise InvalidOptionError(f"option {option!r}: {error}") from error
    except RecursionError:
        raise InvalidOptionError(f"option {option!r}: the predicate is nested too deep") from None


class _Parser:
    """Reads one text; raises `ValueError` whose text names the part."""

    def __init__(self, text: str, zone: tzinfo | None) -> None:
        self._text = SqlText(text)
        self._zone = zone

    def predicate(self) -> Predicate:
        tree = self._text.tree()
        for node in tree.walk():
            understood = _ARGUMENTS.get(type(node), ())
            said = {name for name, value in node.args.items() if value not in (None, False, [])}
            if not understood or any(
                not name.startswith("_") for name in said.difference(understood)
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
        if op := _OPS.get(type(node)):
            return self._compared(node, op, node.this, node.expression)
        if part := _PARTS.get(type(node)):
            return self._has_text(node, part, node.this, node.expression)
        raise self._refused(node)

    def _compared(self, node: exp.Expr, op: Op, left: exp.Expr, right: exp.Expr) -> Predicate:
        first, second = self._read(left), self._read(right)
        if not isinstance(first, Operand):
            first, second, op = second, first, op.flipped
        if not isinstance(first, Operand):
            raise self._refused(node, "compares no column")
        if isinstance(second, Operand):
            if first.kind is not second.kind:
                raise self._refused(node, f"compares {first.kind.value} with {second.kind.value}")
            return Compare(op, first, second)
        if second is None:
            return IsNull(first) if op is Op.SAME else Constant(None)
        value = self._value(node, first, second)
        if isinstance(value, int) and not _fits(value):
            # No row has such a number, and columns of numbers are never null.
            smaller = (Op.NE, Op.LT, Op.LE), (Op.NE, Op.GT, Op.GE)
            return Constant(op in smaller[value < 0])
        return Compare(op, first, value)

    def _in(self, node: exp.In) -> Predicate:
        operand = self._operand(node.this)
        literals = [self._literal(value) for value in node.expressions]
        if not literals:
            raise self._refused(node)
        given = [literal for literal in literals if literal is not None]
        values = dict.fromkeys(self._value(node, operand, literal) for literal in given)
        return In(operand, tuple(filter(_fits, values)), has_null=len(given) < len(literals))

    def _like(self, node: exp.Like, escape: str = "\\") -> Predicate:
        operand = self._bytes_operand(node, node.this)
        pattern = self._literal(node.expression)
        if pattern is None:
            return Constant(None)
        if not isinstance(pattern, str):
            raise self._refused(node, "needs a string as its pattern")
        like = Like(operand, parse_pattern(pattern, escape))
        return Not(like) if node.args.get("negate") else like

    def _has_text(self, node: exp.Expr, part: Part, left: exp.Expr, right: exp.Expr) -> Predicate:
        operand = self._bytes_operand(node, left)
        text = self._literal(right)
        if text is None:
            return Constant(None)
        value = self._value(node, operand, text)
        assert isinstance(value, bytes)
        return HasText(part, operand, value)

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
        found = self._read(node)
        if not isinstance(found, Operand):
            raise self._refused(node, "stands where a column is expected")
        return found

    def _bytes_operand(self, node: exp.Expr, column: exp.Expr) -> Operand:
        operand = self._operand(column)
        if operand.kind is not Kind.BYTES:
            raise self._refused(node, f"looks for text in {operand.kind.value}")
        return operand

    def _literal(self, node: exp.Expr) -> _Literal:
        found = self._read(node)
        if isinstance(found, Operand):
            raise self._refused(node, "stands where a literal is expected")
        return found

    def _read(self, node: exp.Expr) -> Operand | _Literal:
        """A column, a header or a literal; NULL is `None`."""
        match node:
            case exp.Paren():
                return self._read(node.this)
            case exp.Column(this=exp.Identifier()):
                return self._column(node)
            case exp.Null():
                return None
            case exp.Literal(is_string=True):
                return string_literal(self._text.string(node))
            case exp.Literal():
                digits = str(node.this)
                if not (digits.isascii() and digits.isdigit()):
                    raise self._refused(node, "is not a whole number")
                return int(digits)
            case exp.Neg():
                value = self._read(node.this)
                if type(value) is int:
                    return -value
            case exp.Cast():
                return self._cast(node)
            case exp.Anonymous():
                return self._called(node)
        raise self._refused(node)

    def _column(self, node: exp.Column) -> Column:
        by_lower = {name.lower(): name for name in KINDS}
        name = by_lower.get(node.name.lower())
        if name is None:
            hint = "; ask for header('name')" if node.name.lower() == HEADERS else ""
            raise self._refused(
                node, f"is not a column that a predicate may name ({', '.join(KINDS)}){hint}"
            )
        return Column(name)

    def _cast(self, node: exp.Cast) -> Operand | _Literal:
        """`CAST(key AS STRING)`, `TIMESTAMP '…'`, `DATE '…'`, the same as casts, and `5L`."""
        value, to = self._read(node.this), node.to.this
        if isinstance(value, Operand):
            # Spark takes the bytes as they are, valid or not, so comparisons stay what they were.
            if value.kind is Kind.BYTES and to is exp.DataType.Type.TEXT:
                return value
        elif isinstance(value, str) and to in _INSTANT_TYPES:
            return _Instant(instant(value, self._zone))
        elif isinstance(value, str) and to is exp.DataType.Type.DATE:
            return _Instant(midnight(value, self._zone))
        elif type(value) is int and to is exp.DataType.Type.BIGINT:
            return value
        raise self._refused(node)

    def _called(self, node: exp.Anonymous) -> Header | _Instant:
        match str(node.this).lower(), [self._read(argument) for argument in node.expressions]:
            case "header", [str(name)]:
                return Header(name)
            case "header", _:
                raise self._refused(node, "is not header('name')")
            case name, [value] if name in _TIMESTAMP_FUNCTIONS and type(value) is int:
                return _Instant(_TIMESTAMP_FUNCTIONS[name] * value)
        raise self._refused(node)

    def _value(self, node: exp.Expr, operand: Operand, literal: str | bytes | int) -> Value:
        """The literal as a value of the operand's kind."""
        if operand.kind is Kind.BYTES and isinstance(literal, str | bytes):
            return literal.encode() if isinstance(literal, str) else literal
        if operand.kind is Kind.NUMBER and type(literal) is int:
            return literal
        if operand.kind is Kind.INSTANT and isinstance(literal, _Instant):
            return int(literal)
        if operand.kind is Kind.INSTANT and isinstance(literal, str):
            return instant(literal, self._zone)
        wanted = "text or bytes" if operand.kind is Kind.BYTES else operand.kind.value
        raise self._refused(node, f"needs {wanted} as its literal")


def _chain(node: exp.Expr) -> Iterator[exp.Expr]:
    """The terms of a chain, which may be thousands of nodes deep, from left to right."""
    terms: list[exp.Expr] = []
    rest = node
    while type(rest) is type(node):
        terms.append(rest.expression)
        rest = rest.this
    return reversed([*terms, rest])


def _fits(value: Value) -> bool:
    """Whether a column can hold the value."""
    return isinstance(value, bytes) or MIN_INT64 <= value <= MAX_INT64
