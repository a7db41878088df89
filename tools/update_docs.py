"""Updates the tables of options in the docs from the options in the code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from kts_source.broker.kafka_table import kafka_tables
from kts_source.options import options_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
PAGES: Final[Mapping[Path, Callable[[], Mapping[str, str]]]] = {
    DOCS / "options.md": options_tables,
    DOCS / "brokers.md": kafka_tables,
}


def renewed(page: Path) -> str:
    """Returns the text of one of `PAGES` with its tables generated from the current options.

    Raises:
        SystemExit: The page lacks the markers of a table.
    """
    text = page.read_text()
    for name, table in PAGES[page]().items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise SystemExit(f"{page} has lost its {name}:begin and {name}:end marks")
        head, tail = text.split(begin)[0], text.split(end)[1]
        text = f"{head}{begin}\n{table}\n\n{end}{tail}"
    return text


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(renewed(page))
