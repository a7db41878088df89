"""What notebooks show instead of text: small tables of one look."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Final

from kts_source.texts import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MAX_ROWS: Final = 50
_LEFT: Final = ' style="text-align:left"'


def facts_table(title: str, facts: Mapping[str, str]) -> str:
    """Names and what is to be said of each, as HTML."""
    rows = "".join(
        f"<tr><th{_LEFT}>{_text(name)}</th><td{_LEFT}>{_text(text)}</td></tr>"
        for name, text in facts.items()
    )
    return f"<table><caption{_LEFT}><b>{_text(title)}</b></caption>{rows}</table>"


def rows_table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows as HTML, at most `MAX_ROWS`; integers to the right, with thousands marked."""
    found = list(rows)
    head = "".join(f"<th{_LEFT}>{_text(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in found[:MAX_ROWS])
    if len(found) > MAX_ROWS:
        more = f"and {len(found) - MAX_ROWS:,} more"
        body += f'<tr><td{_LEFT} colspan="{len(header)}">{more}</td></tr>'
    return (
        f"<table><caption{_LEFT}><b>{_text(title)}</b></caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f'<td style="text-align:right">{value:,}</td>'
    return f"<td{_LEFT}>{_text(str(value))}</td>"


def _text(text: str) -> str:
    return html.escape(printable(text))
