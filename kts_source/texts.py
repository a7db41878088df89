"""Formats lists, sizes and names for messages, and tables for notebooks."""

from __future__ import annotations

import html
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MAX_ROWS: Final = 50
_MAX_SHOWN: Final = 5
_MAX_LINE: Final = 300
_LEFT: Final = ' style="text-align:left"'


def some(texts: Iterable[str]) -> str:
    """Joins the first few texts, with unprintable characters escaped, and adds the number of the
    other texts.
    """
    texts = list(texts)
    more = f", and {len(texts) - _MAX_SHOWN} more" if len(texts) > _MAX_SHOWN else ""
    return ", ".join(map(printable, texts[:_MAX_SHOWN])) + more


def one_line(reason: str) -> str:
    """Returns the beginning of a text as one line."""
    line = " ".join(reason[:1000].split())  # it may have megabytes
    return line if len(line) <= _MAX_LINE else line[: _MAX_LINE - 1] + "…"


def format_bytes(size: int) -> str:
    """Returns a size in B, KiB, MiB, GiB or TiB."""
    amount, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{size} B" if unit == "B" else f"{amount:.1f} {unit}"


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
    """Converts a dataclass, and the dataclasses in its fields, to JSON types. Names of fields
    become camel case.
    """
    if is_dataclass(value):
        return {
            camel_case(field.name): json_fields(getattr(value, field.name))
            for field in fields(value)
        }
    if isinstance(value, list | tuple):
        return [json_fields(item) for item in value]
    return value


def facts_table(title: str, facts: Mapping[str, str]) -> str:
    """Returns an HTML table with one row for each entry of `facts`."""
    rows = "".join(
        f"<tr><th{_LEFT}>{_escape(name)}</th><td{_LEFT}>{_escape(text)}</td></tr>"
        for name, text in facts.items()
    )
    return f"<table><caption{_LEFT}><b>{_escape(title)}</b></caption>{rows}</table>"


def rows_table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns an HTML table of at most `MAX_ROWS` rows. Integers are aligned right."""
    rows = list(rows)
    head = "".join(f"<th{_LEFT}>{_escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[:MAX_ROWS])
    if len(rows) > MAX_ROWS:
        more = f"and {len(rows) - MAX_ROWS:,} more"
        body += f'<tr><td{_LEFT} colspan="{len(header)}">{more}</td></tr>'
    return (
        f"<table><caption{_LEFT}><b>{_escape(title)}</b></caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f'<td style="text-align:right">{value:,}</td>'
    return f"<td{_LEFT}>{_escape(str(value))}</td>"


def _escape(text: str) -> str:
    return html.escape(printable(text))
