"""Plain text for people: aligned columns, sizes, byte strings."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECONDS_OF_400_YEARS: Final = 146_097 * 86_400_000_000
_LAST_YEAR: Final = 9999


def format_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns aligned with two blanks between them; numbers to the right, with thousands marked."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(text) for text in column) for column in zip(header, *cells, strict=True)]
    right = [
        bool(rows) and all(isinstance(row[number], int) for row in rows)
        for number in range(len(header))
    ]

    def line(texts: Sequence[str]) -> str:
        aligned = (
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(texts, widths, right, strict=True)
        )
        return "  ".join(aligned).rstrip()

    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, cells)])


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def preview_bytes(value: bytes | None, width: int) -> str:
    """A byte string cut to `width` characters: text where it is printable, else hexadecimal."""
    if value is None:
        return "null"
    try:
        text = bytes(value).decode()
    except UnicodeDecodeError:
        text = ""
    shown = (
        text if text.isprintable() and (text or not value) else f"0x{bytes(value[:width]).hex()}"
    )
    return shown if len(shown) <= width else shown[: width - 1] + "…"


def time_text(microseconds: int) -> str:
    """A time since the epoch as ISO 8601 in UTC with milliseconds, of any year: one beyond 9999 has
    its sign and more digits, one before the year 1 is 0 or negative.
    """
    # The calendar repeats every 400 years; Python has the years from 1 to 9999.
    cycles, rest = divmod(microseconds, _MICROSECONDS_OF_400_YEARS)
    time = _EPOCH + datetime.timedelta(microseconds=rest)
    year = time.year + 400 * cycles
    years = f"{year:04d}" if 0 <= year <= _LAST_YEAR else f"{year:+05d}"
    return f"{years}{time.isoformat(timespec='milliseconds')[4:]}"


def format_time(timestamp: datetime.datetime | None) -> str:
    """A time in UTC with milliseconds."""
    if timestamp is None:
        return "null"
    return timestamp.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
