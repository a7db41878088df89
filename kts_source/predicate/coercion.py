"""What Spark (ANSI mode) makes of two sides that are compared: both are read as one kind.

Whole numbers, decimals and doubles are compared as the widest of them. Everything else has to be of
one kind, but for literals: strings stand for times and dates, dates for the midnight they begin at.
What Spark would cast besides, such as strings to numbers, is refused.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, tzinfo
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from kts_source.predicate.literals import day, instant, local_time, small_decimal
from kts_source.predicate.model import MAX_INT64, MIN_INT64, Field, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kts_source.predicate.model import Operand, Value

_WIDTH: Final = {Kind.NUMBER: 0, Kind.DECIMAL: 1, Kind.DOUBLE: 2}
_EPOCH: Final = date(1970, 1, 1)


class Instant(int):
    """A literal that is a timestamp by itself, in microseconds."""


class LocalTime(int):
    """A literal that is a timestamp without a zone, in microseconds."""


Literal = str | bytes | int | bool | Decimal | float | Instant | LocalTime | date
"""As it stands in the text."""


def read_as(operand: Operand, kind: Kind) -> Operand | None:
    """The operand, as numbers of a kind at least as wide; `None` if it cannot be read so."""
    if operand.kind is kind:
        return operand
    if not isinstance(operand, Field) or operand.kind not in _WIDTH or kind not in _WIDTH:
        return None
    return replace(operand, kind=kind) if _WIDTH[operand.kind] < _WIDTH[kind] else None


def alike(left: Operand, right: Operand) -> tuple[Operand, Operand] | None:
    """Two columns or fields as they are compared; `None` if they are not."""
    for kind in (left.kind, right.kind):
        first, second = read_as(left, kind), read_as(right, kind)
        if first is not None and second is not None:
            return first, second
    return None


def with_literals(
    operand: Operand, literals: Sequence[Literal], zone: tzinfo | None
) -> tuple[Operand, tuple[Value, ...]]:
    """A column or field and literals as they are compared.

    Args:
        operand: The column or field.
        literals: As they stand in the text.
        zone: Of timestamps that name none.

    Raises:
        ValueError: A literal that is of another kind; says what is needed.
    """
    numbers = [_number_kind(literal) for literal in literals]
    kinds = [operand.kind, *(kind for kind in numbers if kind is not None)]
    if operand.kind in _WIDTH:
        widest = max(kinds, key=lambda kind: _WIDTH[kind])
        operand = read_as(operand, widest) or operand
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
            return (literal - _EPOCH).days
        case Kind.DATE, str():
            return (day(literal) - _EPOCH).days
        case Kind.NUMBER, int() if type(literal) is int:
            return literal
        case Kind.DECIMAL, int() | Decimal() if _number_kind(literal):
            return small_decimal(Decimal(literal))
        case Kind.DOUBLE, int() | Decimal() if _number_kind(literal):
            return float(small_decimal(Decimal(literal)))
        case Kind.DOUBLE, float():
            return literal
    wanted = "text or bytes" if kind is Kind.BYTES else kind.value
    raise ValueError(f"needs {wanted} as its literal")
