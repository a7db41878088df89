"""A Spark SQL predicate, as text, to the tree of `model`.

sqlglot reads the grammar; every node of its tree is either understood in full here or refused by
name, so that what it knows and we do not can never change an answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlglot import exp

from kts_source.columns import HEADERS
from kts_source.errors import InvalidOptionError
from kts_source.predicate.like import parse_pattern
from kts_source.predicate.literals import instant, midnight, string_literal
from kts_source.predicate.model import (
    KINDS,
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
    from collections.abc import Callable, Iterable
    from datetime import tzinfo

_MIN_INT64, _MAX_INT64 = -(1 << 63), (1 << 63) - 1

_OPS: Final[dict[type[exp.Expr], Op]] = {
    exp.EQ: Op.EQ,
    exp.NEQ: Op.NE,
    exp.LT: Op.LT,
    exp.LTE: Op.LE,
    exp.GT: Op.GT,
    exp.GTE: Op.GE,
    exp.NullSafeEQ: Op.SAME,
}
_PARTS: Final[dict[type[exp.Expr], Part]] = {
    exp.StartsWith: Part.START,
    exp.EndsWith: Part.END,
    exp.Contains: Part.ANYWHERE,
}
_TIMESTAMP_FUNCTIONS: Final = {
    "timestamp_seconds": 1_000_000,
    "timestamp_millis": 1000,
    "timestamp_micros": 1,
}
_INSTANT_TYPES: Final = (exp.DataType.Type.TIMESTAMPTZ, exp.DataType.Type.TIMESTAMPLTZ)
_TEXT_TYPES: Final = (exp.DataType.Type.TEXT,)
_DATE_TYPES: Final = (exp.DataType.Type.DATE,)


class _Instant(int):
    """A literal that is a timestamp by itself, in microseconds."""


class _Null:
    """The literal NULL."""


_NULL: Final = _Null()
_Literal = str | bytes | int | _Instant | _Null


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
        return self._condition(self._text.tree())

    def _refused(self, node: exp.Expr, why: str = "is not supported in a predicate") -> ValueError:
        return ValueError(f"{self._text.of(node)} {why}")

    def _only(self, node: exp.Expr, *names: str) -> None:
        """Refuses a node that says more than the arguments named here."""
        for name, value in node.args.items():
            if name not in names and not name.startswith("_") and value not in (None, False, []):
                raise self._refused(node)

    # --- Conditions ------------------------------------------------------------------------------

    def _condition(self, node: exp.Expr) -> Predicate:
        for kind, read in self._conditions().items():
            if type(node) is kind:
                return read(node)
        raise self._refused(node)

    def _conditions(self) -> dict[type[exp.Expr], Callable[[Any], Predicate]]:
        return {
            exp.And: lambda node: And(tuple(self._terms(node, exp.And))),
            exp.Or: lambda node: Or(tuple(self._terms(node, exp.Or))),
            exp.Not: self._not,
            exp.Paren: self._paren,
            exp.Boolean: lambda node: Constant(bool(node.this)),
            exp.Null: lambda _: Constant(None),
            exp.Is: self._is,
            exp.NullSafeNEQ: self._is_distinct,
            exp.Between: self._between,
            exp.In: self._in,
            exp.Like: self._like,
            exp.Escape: self._escape,
            exp.Anonymous: self._function,
            **dict.fromkeys(_OPS, self._comparison),
            **dict.fromkeys(_PARTS, self._has_text),
        }

    def _terms(self, node: exp.Expr, kind: type[exp.Expr]) -> Iterable[Predicate]:
        """The terms of a chain, which may be thousands of nodes deep, from left to right."""
        nodes: list[exp.Expr] = []
        while type(node) is kind:
            self._only(node, "this", "expression")
            nodes.append(node.args["expression"])
            node = node.args["this"]
        return [self._condition(term) for term in (node, *reversed(nodes))]

    def _not(self, node: exp.Not) -> Predicate:
        self._only(node, "this")
        return Not(self._condition(node.this))

    def _paren(self, node: exp.Paren) -> Predicate:
        self._only(node, "this")
        return self._condition(node.this)

    def _is(self, node: exp.Is) -> Predicate:
        self._only(node, "this", "expression")
        if type(node.expression) is not exp.Null:
            raise self._refused(node)
        return IsNull(self._operand(node.this))

    def _is_distinct(self, node: exp.NullSafeNEQ) -> Predicate:
        self._only(node, "this", "expression")
        return Not(self._compared(node, Op.SAME, node.this, node.expression))

    def _comparison(self, node: exp.Binary) -> Predicate:
        self._only(node, "this", "expression")
        return self._compared(node, _OPS[type(node)], node.this, node.expression)

    def _between(self, node: exp.Between) -> Predicate:
        self._only(node, "this", "low", "high")
        return And(
            (
                self._compared(node, Op.GE, node.this, node.args["low"]),
                self._compared(node, Op.LE, node.this, node.args["high"]),
            )
        )

    def _compared(self, node: exp.Expr, op: Op, left: exp.Expr, right: exp.Expr) -> Predicate:
        found = self._operand_or_literal(left), self._operand_or_literal(right)
        if not isinstance(found[0], Operand):
            found, op = (found[1], found[0]), op.flipped
        first, second = found
        if not isinstance(first, Operand):
            raise self._refused(node, "compares no column")
        if isinstance(second, Operand):
            if first.kind is not second.kind:
                raise self._refused(node, f"compares {first.kind.value} with {second.kind.value}")
            return Compare(op, first, second)
        if isinstance(second, _Null):
            return IsNull(first) if op is Op.SAME else Constant(None)
        value = self._value(node, first, second)
        if isinstance(value, int) and not _MIN_INT64 <= value <= _MAX_INT64:
            return _beyond(op, first, above=value > 0)
        return Compare(op, first, value)

    def _in(self, node: exp.In) -> Predicate:
        self._only(node, "this", "expressions")
        operand = self._operand(node.this)
        literals = [self._literal(value) for value in node.expressions]
        values = [
            self._value(node, operand, value) for value in literals if not isinstance(value, _Null)
        ]
        fitting = dict.fromkeys(
            value
            for value in values
            if isinstance(value, bytes) or _MIN_INT64 <= value <= _MAX_INT64
        )
        if not literals:
            raise self._refused(node)
        return In(operand, tuple(fitting), any(isinstance(value, _Null) for value in literals))

    def _like(self, node: exp.Like, escape: str = "\\") -> Predicate:
        self._only(node, "this", "expression", "negate")
        operand = self._bytes_operand(node, node.this)
        pattern = self._literal(node.expression)
        if isinstance(pattern, _Null):
            return Constant(None)
        if not isinstance(pattern, str):
            raise self._refused(node, "needs a string as its pattern")
        like = Like(operand, parse_pattern(pattern, escape))
        return Not(like) if node.args.get("negate") else like

    def _escape(self, node: exp.Escape) -> Predicate:
        self._only(node, "this", "expression")
        escape = self._literal(node.expression)
        if type(node.this) is not exp.Like or not isinstance(escape, str) or len(escape) != 1:
            raise self._refused(node)
        return self._like(node.this, escape)

    def _has_text(self, node: exp.Expr) -> Predicate:
        self._only(node, "this", "expression")
        return self._text_of(node, _PARTS[type(node)], node.args["this"], node.args["expression"])

    def _text_of(self, node: exp.Expr, part: Part, left: exp.Expr, right: exp.Expr) -> Predicate:
        operand = self._bytes_operand(node, left)
        text = self._literal(right)
        if isinstance(text, _Null):
            return Constant(None)
        value = self._value(node, operand, text)
        assert isinstance(value, bytes)
        return HasText(part, operand, value)

    def _function(self, node: exp.Anonymous) -> Predicate:
        self._only(node, "this", "expressions")
        name = str(node.this).lower()
        arguments = node.expressions
        if name in ("isnull", "isnotnull") and len(arguments) == 1:
            is_null = IsNull(self._operand(arguments[0]))
            return is_null if name == "isnull" else Not(is_null)
        for part in Part:
            if name == part.value and len(arguments) == 2:
                return self._text_of(node, part, *arguments)
        raise self._refused(node)

    # --- Columns and literals --------------------------------------------------------------------

    def _operand(self, node: exp.Expr) -> Operand:
        found = self._operand_or_none(node)
        if found is None:
            raise self._refused(node, "stands where a column is expected")
        return found

    def _bytes_operand(self, node: exp.Expr, column: exp.Expr) -> Operand:
        operand = self._operand(column)
        if operand.kind is not Kind.BYTES:
            raise self._refused(node, f"looks for text in {operand.kind.value}")
        return operand

    def _operand_or_literal(self, node: exp.Expr) -> Operand | _Literal:
        found = self._operand_or_none(node)
        return self._literal(node) if found is None else found

    def _operand_or_none(self, node: exp.Expr) -> Operand | None:
        if type(node) is exp.Paren:
            self._only(node, "this")
            return self._operand_or_none(node.this)
        if isinstance(node, exp.Cast) and _is_type(node, _TEXT_TYPES):
            self._only(node, "this", "to")
            operand = self._operand_or_none(node.this)
            # Spark takes the bytes as they are, valid or not, so comparisons stay what they were.
            return operand if operand is not None and operand.kind is Kind.BYTES else None
        if type(node) is exp.Column:
            return self._column(node)
        if type(node) is exp.Anonymous and str(node.this).lower() == "header":
            self._only(node, "this", "expressions")
            names = [self._literal(name) for name in node.expressions if type(name) is exp.Literal]
            if len(node.expressions) != 1 or not names or not isinstance(names[0], str):
                raise self._refused(node, "is not header('name')")
            return Header(names[0])
        return None

    def _column(self, node: exp.Column) -> Column:
        self._only(node, "this")
        by_lower = {name.lower(): name for name in KINDS}
        name = by_lower.get(node.name.lower()) if type(node.this) is exp.Identifier else None
        if name is None:
            hint = "; ask for header('name')" if node.name.lower() == HEADERS else ""
            raise self._refused(
                node, f"is not a column that a predicate may name ({', '.join(KINDS)}){hint}"
            )
        return Column(name)

    def _literal(self, node: exp.Expr) -> _Literal:
        if type(node) is exp.Null:
            return _NULL
        if type(node) is exp.Literal:
            if node.is_string:
                return string_literal(self._text.string(node))
            return self._number(node, str(node.this))
        if type(node) is exp.Paren:
            self._only(node, "this")
            return self._literal(node.this)
        if type(node) is exp.Neg:
            self._only(node, "this")
            value = self._literal(node.this)
            if type(value) is int:
                return -value
        if isinstance(node, exp.Cast):
            return self._typed(node)
        if type(node) is exp.Anonymous:
            return self._timestamp_function(node)
        raise self._refused(node)

    def _number(self, node: exp.Expr, digits: str) -> int:
        if not (digits.isascii() and digits.isdigit()):
            raise self._refused(node, "is not a whole number")
        return int(digits)

    def _typed(self, node: exp.Cast) -> _Literal:
        """`TIMESTAMP '…'`, `DATE '…'`, the same as casts, and `5L`."""
        self._only(node, "this", "to")
        value = self._literal(node.this)
        if isinstance(value, str) and _is_type(node, _INSTANT_TYPES):
            return _Instant(instant(value, self._zone))
        if isinstance(value, str) and _is_type(node, _DATE_TYPES):
            return _Instant(midnight(value, self._zone))
        if type(value) is int and _is_type(node, (exp.DataType.Type.BIGINT,)):
            return value
        raise self._refused(node)

    def _timestamp_function(self, node: exp.Anonymous) -> _Literal:
        self._only(node, "this", "expressions")
        scale = _TIMESTAMP_FUNCTIONS.get(str(node.this).lower())
        arguments = [self._literal(argument) for argument in node.expressions]
        if scale is None or len(arguments) != 1 or type(arguments[0]) is not int:
            raise self._refused(node)
        return _Instant(scale * arguments[0])

    def _value(self, node: exp.Expr, operand: Operand, literal: _Literal) -> Value:
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


def _is_type(node: exp.Cast, types: tuple[object, ...]) -> bool:
    to = node.to
    plain = all(not value for name, value in to.args.items() if name != "this")
    return type(to) is exp.DataType and plain and to.this in types


def _beyond(op: Op, operand: Operand, *, above: bool) -> Predicate:
    """A comparison with a number that no 64-bit column reaches; those columns are never null."""
    smaller = op in (Op.NE, Op.LT, Op.LE) if above else op in (Op.NE, Op.GT, Op.GE)
    return Constant(smaller) if operand.kind is not Kind.BYTES else Constant(None)
