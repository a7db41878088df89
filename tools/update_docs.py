"""Updates the tables of options and of public names in the docs from the code."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kts_source.broker.kafka_table import kafka_tables
from kts_source.options import options_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"


def name_tables() -> dict[str, str]:
    """Returns the table of public names: one row per name on the pages in `docs/api`."""
    rows = sorted(
        f"| [`{name}`](api/{page.name}#{name}) | {_summary(name)} |"
        for page in (DOCS / "api").glob("*.md")
        for name in re.findall(r"^::: ([\w.]+)$", page.read_text(), re.MULTILINE)
    )
    return {"names": "\n".join(["| name | summary |", "| --- | --- |", *rows])}


def _summary(name: str) -> str:
    """Returns the first sentence of the docstring of a public name."""
    module, _, attribute = name.rpartition(".")
    docstring = inspect.getdoc(getattr(importlib.import_module(module), attribute)) or ""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    return re.split(r"(?<=\.) ", paragraph)[0].replace("|", "\\|")


PAGES: Final[Mapping[Path, Callable[[], Mapping[str, str]]]] = {
    DOCS / "options.md": options_tables,
    DOCS / "brokers.md": kafka_tables,
    DOCS / "python-api.md": name_tables,
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
