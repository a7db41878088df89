"""Updates the tables of options, flags and public names, and the API pages, from the code."""

from __future__ import annotations

import importlib
import inspect
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from kts_source.broker.kafka_table import kafka_tables
from kts_source.cli.app import all_commands
from kts_source.cli.flags import EXIT_CODES, Flag
from kts_source.options import options_tables
from tools.api_pages import names_of, reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
COMMON: Final = "servers", "pairs", "profile", "verbose"
"""Names of parameters that all commands have."""


def cli_tables() -> dict[str, str]:
    """Returns the Markdown tables of flags and exit codes, by name.

    The table `kts-<command>` contains the flags that only this command has, `kts-common` the flags
    that all commands share, and `kts-exit-codes` the exit codes.
    """
    tables = {
        f"kts-{name.replace(' ', '-')}": _flags_table(own_flags(command))
        for name, command in all_commands().items()
    }
    common = [each for each in all_commands()["cat"].params if each.name in COMMON]
    tables["kts-common"] = _flags_table(common)
    tables["kts-exit-codes"] = _table(("Code", "Meaning"), EXIT_CODES)
    return tables


def own_flags(command: click.Command) -> list[click.Parameter]:
    """Returns the flags that only this command has and that are not options of the data source."""
    return [
        parameter
        for parameter in command.params
        if isinstance(parameter, click.Option)
        and not (isinstance(parameter, Flag) and (parameter.is_source or parameter.name in COMMON))
        and parameter.opts != ["--help-all"]
    ]


def _flags_table(parameters: Sequence[click.Parameter]) -> str:
    rows = []
    for parameter in parameters:
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        rows.append((names, " ".join((getattr(parameter, "help", "") or "").split())))
    return _table(("Flag", "Meaning"), rows)


def _table(header: tuple[str, str], rows: Iterable[tuple[str, str]]) -> str:
    lines = [header, ("---", "---"), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines
    )


def name_tables() -> dict[str, str]:
    """Returns the table of public names: one row per name on the pages in `docs/api`."""
    rows = sorted(
        f"| [`{name}`](api/{page.name}#{name}) | {_summary(name)} |"
        for page in (DOCS / "api").glob("*.md")
        for name in names_of(page)
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
    DOCS / "cli.md": cli_tables,
    DOCS / "python-api.md": name_tables,
    **{page: partial(reference, page) for page in sorted((DOCS / "api").glob("*.md"))},
}


def renewed(page: Path) -> str:
    """Returns the text of one of `PAGES`, in which the tables are generated from the current
    options.

    Raises:
        SystemExit: The page lacks the markers of a table.
    """
    text = page.read_text()
    for name, table in PAGES[page]().items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise SystemExit(f"{page} lacks the markers {name}:begin and {name}:end. Restore them.")
        head, tail = text.split(begin)[0], text.split(end)[1]
        text = f"{head}{begin}\n{table}\n\n{end}{tail}"
    return text


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(renewed(page))
