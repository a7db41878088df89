"""Adds an address for each option to the built site, and an entry in the search index.

The search ranks titles above text. Without an entry, an option is one word in the text of a long
table, and a search for its name finds other pages first. The module also marks the long tables of
names, which `docs/stylesheets/tables.css` shows as a list.
"""

from __future__ import annotations

import html
import json
import re
import sys
from pathlib import Path
from typing import Any, Final

SITE: Final = Path(__file__).resolve().parents[1] / "build" / "site"
PAGES: Final = ("options", "brokers", "python-api")

_TABLE: Final = re.compile(r"<table>(?=\s*<thead>\s*<tr>\s*<th>(?:option|name)</th>)")
_ROW: Final = re.compile(
    r"<tr>\s*<td>(?P<name><code>.*?</code>)</td>\s*<td>(?P<default>.*?)</td>\s*"
    r"<td>(?P<meaning>.*?)</td>\s*</tr>",
    re.DOTALL,
)


def anchor(name: str) -> str:
    """Returns the fragment of the address of an option, such as `startingoffsets`."""
    return re.sub(r"\W+", "-", name).strip("-").lower()


def with_addresses(page: str, address: str) -> tuple[str, list[dict[str, Any]]]:
    """Marks the tables of names on a page and adds an id to each row that describes an option.

    Args:
        page: The HTML of the page.
        address: The address of the page in the site, such as `options/`.

    Returns:
        The new HTML, and the entries of the search index: one per option, in the order of the page.
    """
    entries: list[dict[str, Any]] = []

    def row(match: re.Match[str]) -> str:
        name = html.unescape(re.sub(r"<.*?>", "", match["name"]))
        default = f" Default: {match['default']}." if match["default"] else ""
        entries.append(
            {
                "location": f"{address}#{anchor(name)}",
                "level": 3,
                "title": html.escape(name),
                "text": f"<p><code>{html.escape(name)}</code>: {match['meaning']}{default}</p>",
                "path": ["Options", html.escape(name)],
                "tags": [],
            }
        )
        return match[0].replace("<tr>", f'<tr id="{anchor(name)}">', 1)

    parts = _TABLE.split(page)
    tables = []
    for part in parts[1:]:
        table, end, rest = part.partition("</table>")
        tables.append(f'<table class="names">{_ROW.sub(row, table)}{end}{rest}')
    return "".join([parts[0], *tables]), entries


def finish(site: Path) -> int:
    """Finishes the site in a folder and returns the number of options in the search index."""
    index = json.loads((site / "search.json").read_text())
    options: list[dict[str, Any]] = []
    for name in PAGES:
        path = site / name / "index.html"
        page, entries = with_addresses(path.read_text(), f"{name}/")
        path.write_text(page)
        options.extend(entries)
    # Of equal matches the search shows the first in the index. A name also matches longer names.
    options.sort(key=lambda entry: len(entry["title"]))
    index["items"][:0] = options
    (site / "search.json").write_text(json.dumps(index, ensure_ascii=False))
    return len(options)


if __name__ == "__main__":
    if not finish(SITE):
        sys.exit(f"{SITE} has no table of options: build the site with `make docs`")
