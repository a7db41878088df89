"""Renews the tables of options in docs/options.md from the options themselves."""

from __future__ import annotations

from pathlib import Path

from kts_source.options import options_tables

PAGE = Path(__file__).resolve().parents[1] / "docs" / "options.md"


def renewed(text: str) -> str:
    """The page with its tables as the options are now.

    Raises:
        SystemExit: The page has lost the marks of a table.
    """
    for name, table in options_tables().items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise SystemExit(f"{PAGE} has lost its {name}:begin and {name}:end marks")
        head, tail = text.split(begin)[0], text.split(end)[1]
        text = f"{head}{begin}\n{table}\n\n{end}{tail}"
    return text


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
