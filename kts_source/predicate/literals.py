"""Literals as Spark SQL reads them: strings with their escapes, hexadecimal bytes, timestamps."""

from __future__ import annotations

import math
import re
import zoneinfo
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Final

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
    """The value of a string or binary literal as it stands in SQL, quotes included.

    Raises:
        ValueError: It is neither, or it has no UTF-8.
    """
    if match := _HEX.fullmatch(text):
        digits = match[1] or match[2] or ""
        return bytes.fromhex(digits if len(digits) % 2 == 0 else "0" + digits)
    if _RAW.fullmatch(text):
        return _utf8(text[2:-1])
    if _QUOTED.fullmatch(text):
        return _utf8(_ESCAPE.sub(_unescaped, text[1:-1]))
    raise ValueError(f"{text} is not a literal that is understood here")


def _utf8(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{text!r} has no UTF-8") from None
    return text


def _unescaped(match: re.Match[str]) -> str:
    four, eight, octal, other = match.groups()
    if four or eight:
        number = int(four or eight, 16)
        if number > 0x10FFFF:
            raise ValueError(f"{match[0]} is no character")
        return chr(number)
    if octal:
        return chr(int(octal, 8))
    return match[0] if other in _KEPT else _NAMED.get(other, other)


def time_zone(text: str) -> tzinfo:
    """A zone by its name (`Europe/Zurich`, `UTC`, `Z`) or offset (`+02:00`), else `ValueError`."""
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
    raise ValueError(f"there is no time zone {text!r}")


def instant(text: str, zone: tzinfo | None) -> int:
    """Microseconds since the epoch of `2024-01-31`, `2024-01-31 12:00[:00[.000000]]`, with `T` for
    the blank and a zone behind it or not.

    A local time that a change of clocks skips is read with the offset before the change, one that
    comes twice means the first, as in Spark.

    Raises:
        ValueError: Not a timestamp, or one without a zone where `zone` is `None` too.
    """
    match = _TIMESTAMP.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is not a timestamp such as '2024-01-31 12:00:00Z' or '2024-01-31T12:00:00'"
        )
    *_, fraction, named = match.groups()
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    if named:
        zone = time_zone(named)
    if zone is None:
        raise ValueError(f"{text!r} has no time zone; add one, or give option 'timeZone'")
    micros = int((fraction or "").ljust(6, "0"))
    try:
        local = datetime(year, month, day, hour, minute, second, micros, tzinfo=zone)
        return (local - _EPOCH) // _MICROSECOND
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is not a timestamp: {error}") from None


def local_time(text: str) -> int:
    """The same of a timestamp without a zone, as if it were UTC.

    Raises:
        ValueError: Not a timestamp, or one with a zone.
    """
    match = _TIMESTAMP.fullmatch(text.strip())
    if match is not None and match[8]:
        raise ValueError(f"{text!r} names a time zone, and what it is compared with has none")
    return instant(text, UTC)


def day(text: str) -> date:
    """A day (`2024-01-31`), else `ValueError`."""
    try:
        if _DAY.fullmatch(text.strip()):
            return date.fromisoformat(text.strip())
    except ValueError:
        pass
    raise ValueError(f"{text!r} is not a date such as '2024-01-31'")


def number_literal(text: str) -> int | Decimal | float:
    """A number as Spark reads it: a whole number, a decimal, or with an exponent a double.

    Raises:
        ValueError: No number, or one that Spark has no type for.
    """
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"{text} is not a number that is understood here")
    if match[1]:
        double = float(text)
        if math.isinf(double):
            raise ValueError(f"{text} is too large for a double")
        return double
    if text.isdigit():
        return int(text)
    return small_decimal(Decimal(text))


def small_decimal(number: Decimal) -> Decimal:
    """The decimal, or `ValueError` if no decimal of Spark holds it."""
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    if len(digits) > MAX_DIGITS or -exponent > MAX_DIGITS:
        raise ValueError(f"{number} has more than {MAX_DIGITS} digits")
    return number
