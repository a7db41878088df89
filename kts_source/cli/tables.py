"""Output for people and machines: tables, JSON, sizes, byte strings, times."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from kts_source.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

_WIDEST: Final = 10_000
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECONDS_OF_400_YEARS: Final = 146_097 * 86_400_000_000
_LAST_YEAR: Final = 9999


def print_json(value: object) -> None:
    """One JSON document on standard output."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=1))


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Aligned columns on standard output; numbers to the right, with thousands marked."""
    table = Table(box=None, header_style="bold")
    for number, name in enumerate(header):
        numeric = any(isinstance(row[number], int) for row in rows)
        table.add_column(name, no_wrap=True, justify="right" if numeric else "left")
    for row in rows:
        # As `Text`, so that nothing in a value is markup.
        table.add_row(*(Text(f"{cell:,}" if isinstance(cell, int) else str(cell)) for cell in row))
    console = Console()
    # Ids must stay whole: a table wider than the terminal is the terminal's to wrap.
    needed = Measurement.get(console, console.options.update(max_width=_WIDEST), table).maximum
    Console(width=max(needed, console.width)).print(table)


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


def time_text(microseconds: int, precision: str = "milliseconds") -> str:
    """A time since the epoch as ISO 8601 in UTC with milliseconds, or microseconds, of any year:
    one beyond 9999 has its sign and more digits, one before the year 1 is 0 or negative.
    """
    # The calendar repeats every 400 years; Python has the years from 1 to 9999.
    cycles, rest = divmod(microseconds, _MICROSECONDS_OF_400_YEARS)
    time = _EPOCH + datetime.timedelta(microseconds=rest)
    year = time.year + 400 * cycles
    years = f"{year:04d}" if 0 <= year <= _LAST_YEAR else f"{year:+05d}"
    return f"{years}{time.isoformat(timespec=precision)[4:]}"


def write_whole(path: str, text: str) -> None:
    """Writes a file as a whole: who reads it meanwhile sees the one before."""
    target = Path(path)
    fresh = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(target)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise InvalidOptionError(f"{path} cannot be written: {error.strerror}") from None


def plain(text: str) -> str:
    """The text without what a terminal obeys: names in a store come from strangers."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
