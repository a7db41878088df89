"""Reads literals as Spark SQL does in ANSI mode, and parses SQL text with sqlglot.

Whole numbers, decimals and doubles are compared in the widest of their types. All other operands
must have the same kind, with two exceptions: string literals are converted to timestamps and dates,
and a date is converted to the timestamp of its midnight. Other casts that Spark supports, such as
strings to numbers, are errors.

sqlglot does not support the escapes in Spark's string literals. So `SqlText` replaces string
literals by placeholders before sqlglot parses the text.
"""

from __future__ import annotations

import math
import re
import zoneinfo
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import sqlglot
from sqlglot import TokenType, exp
from sqlglot.errors import SqlglotError

from kts_source.predicate.model import MAX_INT64, MIN_INT64, Field, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kts_source.predicate.model import Operand, Value


_QUOTED: Final = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)
_RAW: Final = re.compile(r"""[rR](?:'[^']*'|"[^"]*")""")
_HEX: Final = re.compile(r"""[xX](?:'([0-9A-Fa-f]*)'|"([0-9A-Fa-f]*)")""")
_ESCAPE: Final = re.compile(
    r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([01][0-7]{2})|(.))", re.DOTALL
)
_NAMED: Final = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}
_KEPT: Final = "%_"  # stay escaped, for LIKE

_TIMESTAMP: Final = re.compile(
    r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})"
    r"(?:[ T]([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]{1,6}))?)?\s*(.*?))?",
    re.DOTALL,
)
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_NUMBER: Final = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
MAX_DIGITS: Final = 38
_OFFSET: Final = re.compile(r"(?:UTC|GMT)?([+-])([0-9]{1,2})(?::?([0-9]{2}))?")
_MAX_OFFSET: Final = timedelta(hours=18)
_MICROSECOND: Final = timedelta(microseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def string_literal(text: str) -> str | bytes:
    """Returns the value of a string or binary literal. `text` includes the quotes.

    Raises:
        ValueError: The text is not a string or binary literal, or contains a lone surrogate.
    """
    if match := _HEX.fullmatch(text):
        digits = match[1] or match[2] or ""
        return bytes.fromhex(digits if len(digits) % 2 == 0 else "0" + digits)
    if _RAW.fullmatch(text):
        return _utf8(text[2:-1])
    if _QUOTED.fullmatch(text):
        return _utf8(_ESCAPE.sub(_unescaped, text[1:-1]))
    raise ValueError(f"{text} is not a supported literal")


def _utf8(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{text!r} cannot be encoded in UTF-8") from None
    return text


def _unescaped(match: re.Match[str]) -> str:
    four, eight, octal, other = match.groups()
    if four or eight:
        number = int(four or eight, 16)
        if number > 0x10FFFF:
            raise ValueError(f"{match[0]} is not a character")
        return chr(number)
    if octal:
        return chr(int(octal, 8))
    return match[0] if other in _KEPT else _NAMED.get(other, other)


def time_zone(text: str) -> tzinfo:
    """Parses a time zone: a name (`Europe/Zurich`, `UTC`, `Z`) or an offset (`+02:00`)."""
    name = text.strip()
    if name in ("Z", "UTC", "GMT"):
        return UTC
    if match := _OFFSET.fullmatch(name):
        offset = timedelta(hours=int(match[2]), minutes=int(match[3] or 0))
        if offset <= _MAX_OFFSET and int(match[3] or 0) < 60:
            return timezone(-offset if match[1] == "-" else offset)
    else:
        try:
            return zoneinfo.ZoneInfo(name)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            pass
    raise ValueError(f"unknown time zone {text!r}")


def instant(text: str, zone: tzinfo | None) -> int:
    """Returns the microseconds since 1970 (UTC) of a timestamp such as `2024-01-31`, `2024-01-31
    12:00` or `2024-01-31T12:00:00.000000 +02:00`. The time zone in the text is optional; the
    default is `zone`.

    If a clock change skips or repeats the local time, the UTC offset before the change is used, as
    in Spark.

    Raises:
        ValueError: The text is not a timestamp, or it has no time zone and `zone` is `None`.
    """
    match = _TIMESTAMP.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is not a timestamp such as '2024-01-31 12:00:00Z' or '2024-01-31T12:00:00'"
        )
    *_, fraction, named = match.groups()
    year, month, day, hour, minute, second = (int(field or 0) for field in match.groups()[:6])
    if named:
        zone = time_zone(named)
    if zone is None:
        raise ValueError(f"{text!r} has no time zone; add a time zone, or set option 'timeZone'")
    micros = int((fraction or "").ljust(6, "0"))
    try:
        local = datetime(year, month, day, hour, minute, second, micros, tzinfo=zone)
        return (local - _EPOCH) // _MICROSECOND
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is not a timestamp: {error}") from None


def local_time(text: str) -> int:
    """Returns the microseconds from 1970 to a timestamp without a time zone, as if it were UTC.

    Raises:
        ValueError: The text is not a timestamp, or has a time zone.
    """
    match = _TIMESTAMP.fullmatch(text.strip())
    if match is not None and match[8]:
        raise ValueError(
            f"{text!r} has a time zone, but is compared with a timestamp without a time zone"
        )
    return instant(text, UTC)


def day(text: str) -> date:
    """Parses a date such as `2024-01-31`."""
    try:
        if _DAY.fullmatch(text.strip()):
            return date.fromisoformat(text.strip())
    except ValueError:
        pass
    raise ValueError(f"{text!r} is not a date such as '2024-01-31'")


def number_literal(text: str) -> int | Decimal | float:
    """Parses a number as Spark does. A number with an exponent is a double. Without an exponent, a
    number with a decimal point is a decimal, and any other number is an integer.

    Raises:
        ValueError: The text is not a number, or exceeds the range of Spark's types.
    """
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"{text} is not a supported number")
    if match[1]:
        double = float(text)
        if math.isinf(double):
            raise ValueError(f"{text} is too large for a double")
        return double
    if text.isdigit():
        return int(text)
    return small_decimal(Decimal(text))


def small_decimal(number: Decimal) -> Decimal:
    """Returns the decimal unchanged. Raises ValueError if it has more digits than Spark's decimals
    can have.
    """
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    if len(digits) > MAX_DIGITS or -exponent > MAX_DIGITS:
        raise ValueError(
            f"{number} has more than {MAX_DIGITS} digits, which Spark's decimals do not support"
        )
    return number


_WIDTH: Final = {Kind.NUMBER: 0, Kind.DECIMAL: 1, Kind.DOUBLE: 2}
_EPOCH_DAY: Final = date(1970, 1, 1)


class Instant(int):
    """Value of a timestamp literal, in microseconds since 1970 (UTC)."""


class LocalTime(int):
    """Value of a timestamp literal without a time zone: microseconds since 1970 in local time."""


Literal = str | bytes | int | bool | Decimal | float | Instant | LocalTime | date


def converted_to(operand: Operand, kind: Kind) -> Operand | None:
    """Returns the operand converted to `kind`; `None` if `kind` is neither the operand's kind nor a
    wider kind.
    """
    if operand.kind is kind:
        return operand
    if not isinstance(operand, Field) or operand.kind not in _WIDTH or kind not in _WIDTH:
        return None
    return replace(operand, kind=kind) if _WIDTH[operand.kind] < _WIDTH[kind] else None


def with_common_kind(left: Operand, right: Operand) -> tuple[Operand, Operand] | None:
    """Returns two operands converted to a common kind; `None` if they have no common kind."""
    for kind in (left.kind, right.kind):
        first, second = converted_to(left, kind), converted_to(right, kind)
        if first is not None and second is not None:
            return first, second
    return None


def with_literals(
    operand: Operand, literals: Sequence[Literal], zone: tzinfo | None
) -> tuple[Operand, tuple[Value, ...]]:
    """Converts the operand and the values of the literals to a common kind, so that they can be
    compared. Returns both.

    Args:
        operand: The column or field.
        literals: Literals with which the operand is compared.
        zone: Time zone for timestamp literals that have no time zone.

    Raises:
        ValueError: A literal cannot be compared with the operand.
    """
    numbers = [_number_kind(literal) for literal in literals]
    kinds = [operand.kind, *(kind for kind in numbers if kind is not None)]
    if operand.kind in _WIDTH:
        widest = max(kinds, key=lambda kind: _WIDTH[kind])
        operand = converted_to(operand, widest) or operand
    return operand, tuple(_value(operand.kind, literal, zone) for literal in literals)


def _number_kind(literal: Literal) -> Kind | None:
    if type(literal) is int:
        return Kind.NUMBER if MIN_INT64 <= literal <= MAX_INT64 else Kind.DECIMAL
    if isinstance(literal, Decimal):
        return Kind.DECIMAL
    return Kind.DOUBLE if isinstance(literal, float) else None


def _value(kind: Kind, literal: Literal, zone: tzinfo | None) -> Value:
    match kind, literal:
        case Kind.BYTES, str():
            return literal.encode()
        case Kind.BYTES, bytes():
            return literal
        case Kind.BOOLEAN, bool():
            return literal
        case Kind.INSTANT, Instant():
            return int(literal)
        case Kind.INSTANT, str():
            return instant(literal, zone)
        case Kind.INSTANT, date():
            return instant(literal.isoformat(), zone)
        case Kind.LOCAL, LocalTime():
            return int(literal)
        case Kind.LOCAL, str():
            return local_time(literal)
        case Kind.LOCAL, date():
            return instant(literal.isoformat(), UTC)
        case Kind.DATE, date():
            return (literal - _EPOCH_DAY).days
        case Kind.DATE, str():
            return (day(literal) - _EPOCH_DAY).days
        case Kind.NUMBER, int() if type(literal) is int:
            return literal
        case Kind.DECIMAL, int() | Decimal() if _number_kind(literal):
            return small_decimal(Decimal(literal))
        case Kind.DOUBLE, int() | Decimal() if _number_kind(literal):
            return float(small_decimal(Decimal(literal)))
        case Kind.DOUBLE, float():
            return literal
    wanted = "text or bytes" if kind is Kind.BYTES else kind.value
    raise ValueError(f"the literal must be {wanted}")


_DIALECT: Final = "spark"
_MAX_TEXT: Final = 1 << 20
_EXAMPLE: Final = "write a condition such as offset >= 10 AND key = 'a'"
_STRINGS: Final = (TokenType.STRING, TokenType.RAW_STRING, TokenType.HEX_STRING)


class SqlText:
    """Text of a condition, and its syntax tree. The constructor raises ValueError if the text is
    too long.
    """

    def __init__(self, text: str) -> None:
        if len(text) > _MAX_TEXT:
            raise ValueError(
                f"the predicate has {len(text)} characters, but may have at most {_MAX_TEXT}"
            )
        self._text = text
        self._strings: dict[str, str] = {}  # placeholder to literal, quotes included

    def tree(self) -> exp.Expr:
        """Parses the text; raises ValueError if it is not exactly one expression."""
        try:
            trees = sqlglot.parse(self._without_strings(), read=_DIALECT)
        except SqlglotError as error:
            raise ValueError(self._syntax_error(error)) from None
        if len(trees) != 1 or trees[0] is None:
            raise ValueError(f"{self._text!r} is not exactly one condition")
        return trees[0]

    def string(self, node: exp.Literal) -> str:
        """Returns the original string literal, with quotes, in place of a placeholder."""
        return self._strings.get(node.this, f"'{node.this}'")

    def of(self, node: exp.Expr) -> str:
        """Returns the SQL text of a node of the tree, with string literals in place of
        placeholders.
        """
        copy = node.copy()
        for literal in list(copy.find_all(exp.Literal)):
            if literal.this in self._strings:
                raw = exp.Var(this=self._strings[literal.this])
                if literal is copy:
                    copy = raw
                else:
                    literal.replace(raw)
        return copy.sql(dialect=_DIALECT)

    def _without_strings(self) -> str:
        pieces: list[str] = []
        position = 0
        for token in sqlglot.tokenize(self._text, read=_DIALECT):
            if token.token_type in _STRINGS:
                mark = f"$string{len(self._strings)}"
                pieces += self._text[position : token.start], f"'{mark}'"
                position = token.end + 1
                self._strings[mark] = self._text[token.start : position]
        return "".join([*pieces, self._text[position:]])

    def _syntax_error(self, error: SqlglotError) -> str:
        errors: list[dict[str, Any]] = getattr(error, "errors", [])
        if not errors:
            return f"not understood: {self._text!r}; {_EXAMPLE}"
        description = str(errors[0].get("description") or "not understood").strip().rstrip(".")
        if "<class" in description:  # sqlglot names its own classes
            description = "an operand is missing"
        elif description.startswith("Invalid expression"):
            description = "unexpected text"
        place = str(errors[0].get("highlight"))
        for mark, literal in self._strings.items():
            place = place.replace(f"'{mark}'", literal)
        return f"{description} near {place!r} in {self._text!r}; {_EXAMPLE}"


def names_of(node: exp.Column | exp.Dot) -> tuple[str, ...]:
    """Returns the identifiers of a dotted name from left to right; an empty tuple if a part is not
    an identifier.
    """
    nodes = node.parts
    names = tuple(name_node.name for name_node in nodes if isinstance(name_node, exp.Identifier))
    return names if len(names) == len(nodes) else ()
