"""Formats lists, sizes and names for messages, and tables for terminals and notebooks."""

from __future__ import annotations

import datetime
import html
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MAX_ROWS: Final = 50
_MAX_SHOWN: Final = 5
_MAX_LINE: Final = 300
_MAX_CELL: Final = 60
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECONDS_OF_400_YEARS: Final = 146_097 * 86_400_000_000
_LAST_YEAR: Final = 9999
_LEFT: Final = ' style="text-align:left"'


def some(texts: Iterable[str]) -> str:
    """Joins the first few texts, with unprintable characters escaped, and appends how many texts
    were omitted.
    """
    texts = list(texts)
    more = f", and {len(texts) - _MAX_SHOWN} more" if len(texts) > _MAX_SHOWN else ""
    return ", ".join(map(printable, texts[:_MAX_SHOWN])) + more


def counted(count: int, noun: str) -> str:
    """Returns a number with its noun, such as `1 hole` or `2 holes`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def one_line(reason: str) -> str:
    """Returns a text as one line. Replaces the end of a long text by the number of missing
    characters.
    """
    line = " ".join(reason[: 2 * _MAX_LINE].split())  # it may have megabytes
    if len(line) <= _MAX_LINE and len(reason) <= 2 * _MAX_LINE:
        return line
    shown = line[: _MAX_LINE - 40]
    end = shown.rfind(" ")
    if end > _MAX_LINE // 2:  # otherwise the first word is too long
        shown = shown[:end]
    return f"{shown} … ({len(reason) - len(shown):,} more characters)"


def whole_line(text: str) -> str:
    """Returns a text as one line without shortening it."""
    return " ".join(text.split())


def format_bytes(size: int) -> str:
    """Returns a size in B, KiB, MiB, GiB or TiB."""
    amount, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{size} B" if unit == "B" else f"{amount:.1f} {unit}"


def time_text(microseconds: int, precision: str = "milliseconds") -> str:
    """Returns a time in microseconds since 1970 as ISO 8601 text in UTC. The year may be any
    integer.

    Years after 9999 have a sign and more than four digits. The year before year 1 is 0, and earlier
    years are negative.
    """
    # Python supports only years 1 to 9999, but the calendar repeats every 400 years.
    cycles, rest = divmod(microseconds, _MICROSECONDS_OF_400_YEARS)
    time = _EPOCH + datetime.timedelta(microseconds=rest)
    year = time.year + 400 * cycles
    years = f"{year:04d}" if 0 <= year <= _LAST_YEAR else f"{year:+05d}"
    return f"{years}{time.isoformat(timespec=precision)[4:]}"


def printable(text: str) -> str:
    """Escapes control characters, line ends and marks that change the writing direction.

    Names in a store come from other systems and must not control terminals.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def camel_case(name: str) -> str:
    """Converts an attribute's name to a JSON name, for example `first_offset` to `firstOffset`."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def json_fields(value: Any) -> Any:  # noqa: ANN401
    """Converts a dataclass to JSON types, including nested dataclasses. Field names become camel
    case.
    """
    if is_dataclass(value):
        return {
            camel_case(field.name): json_fields(getattr(value, field.name))
            for field in fields(value)
        }
    if isinstance(value, list | tuple):
        return [json_fields(item) for item in value]
    return value


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that people read. Shows at most `MAX_ROWS` rows.

    Attributes:
        title: Title above the rows; empty for none.
        header: Names of the columns; empty for none.
        rows: The cells of each row. Integers are aligned right.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[object]]

    @classmethod
    def of_facts(cls, title: str, facts: Mapping[str, str]) -> Table:
        """Returns a table with one row for each entry of `facts`."""
        return cls(title, (), tuple(facts.items()))

    @property
    def _omitted_note(self) -> str:
        return f"and {len(self.rows) - MAX_ROWS:,} more" if len(self.rows) > MAX_ROWS else ""

    def html(self) -> str:
        """Returns an HTML table."""
        head = "".join(f"<th{_LEFT}>{_escape(name)}</th>" for name in self.header)
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in self.rows[:MAX_ROWS])
        if self._omitted_note:
            body += f'<tr><td{_LEFT} colspan="{len(self.rows[0])}">{self._omitted_note}</td></tr>'
        return (
            f"<table><caption{_LEFT}><b>{_escape(self.title)}</b></caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )

    def text(self) -> str:
        """Returns lines with aligned columns. Long cells are truncated."""
        numeric = [
            any(isinstance(cell, int) for cell in column)
            for column in zip(*self.rows[:MAX_ROWS], strict=True)
        ]
        lines = [[*map(printable, self.header)]] if self.header else []
        width = _MAX_CELL if self.header else 2 * _MAX_CELL
        lines += [[_cell_text(cell, width) for cell in row] for row in self.rows[:MAX_ROWS]]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        numeric = numeric or [False] * len(widths)
        shown = [printable(self.title)] if self.title else []
        for line in lines:
            cells = zip(line, widths, numeric, strict=True)
            padded = [
                text.rjust(width) if right else text.ljust(width) for text, width, right in cells
            ]
            shown.append("  ".join(padded).rstrip())
        return "\n".join([*shown, self._omitted_note] if self._omitted_note else shown)


class Displayed:
    """Shows an object as tables: aligned text in a terminal, and HTML in a notebook."""

    __slots__ = ()

    def _tables(self) -> Sequence[Table]:
        """Returns the tables to show."""
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n\n".join(table.text() for table in self._tables())

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """Returns the tables as HTML, which notebooks display."""
        return "".join(table.html() for table in self._tables())


def preview_bytes(value: bytes | None, width: int) -> str:
    """Returns bytes as text if it is printable, otherwise as hex digits. Truncates to `width`
    characters.
    """
    if value is None:
        return "null"
    try:
        text = bytes(value).decode()
    except UnicodeDecodeError:
        text = ""
    shown = (
        text if text.isprintable() and (text or not value) else f"0x{bytes(value[:width]).hex()}"
    )
    return _cut(shown, width)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _cell_text(value: object, max_width: int) -> str:
    return f"{value:,}" if isinstance(value, int) else _cut(printable(str(value)), max_width)


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f'<td style="text-align:right">{value:,}</td>'
    return f"<td{_LEFT}>{_escape(str(value))}</td>"


def _escape(text: str) -> str:
    return html.escape(printable(text))
