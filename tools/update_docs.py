"""Updates the tables of options, flags and public names, and the API pages, from the code."""

from __future__ import annotations

import importlib
import inspect
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from kts_source.broker.kafka_table import (
    PLAIN_OPTIONS,
    PREFIX,
    REFUSED,
    SECURITY_OPTIONS,
    WITHOUT_EFFECT,
)
from kts_source.cli.app import all_commands
from kts_source.cli.flags import EXIT_CODES, Flag
from kts_source.options.option_table import ESSENTIAL_OPTIONS, MORE_OPTIONS
from kts_source.options.stream_options import STREAM_OPTIONS
from kts_source.options.value_formats import VALUE_OPTIONS
from kts_source.store.storage_options import S3_OPTIONS
from tools.api_pages import names_of, reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kts_source.options import Option

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
COMMON: Final = "servers", "pairs", "profile", "verbose"
"""Names of parameters that all commands have."""

_KEY: Final = "encryption.key.pairs.<id>.private.key"
ENCRYPTION_OPTIONS: Final = (
    (
        f"{_KEY}.file",
        "PEM file with the private key (PKCS#8) of that key id; read on the driver, or on the"
        " worker if the driver has no such file.",
    ),
    (f"{_KEY}.env", "Environment variable with the PEM text, on the driver or on the worker."),
    (
        f"{_KEY}.callback",
        "`module:function` that the driver calls with the key id; returns the PEM text, such as"
        " from a secret scope.",
    ),
)
_OPTION_HEADER: Final = ("option", "default", "meaning")


def options_tables() -> dict[str, str]:
    """Returns the Markdown tables of the options of the data source, by name."""
    groups = {
        "essential": ESSENTIAL_OPTIONS,
        "more": MORE_OPTIONS,
        "values": VALUE_OPTIONS,
        "stream": STREAM_OPTIONS,
    }
    tables = {name: _table(_OPTION_HEADER, map(_row, group)) for name, group in groups.items()}
    store = [(f"`{name}`", "", text) for name, text in (*ENCRYPTION_OPTIONS, *S3_OPTIONS)]
    return {**tables, "store": _table(_OPTION_HEADER, store)}


def _row(option: Option) -> tuple[str, str, str]:
    default = "" if option.default is None else f"`{option.default}`" if option.default else '`""`'
    return f"`{option.name}`", default, option.doc


def kafka_tables() -> dict[str, str]:
    """Returns Markdown texts about the `kafka.*` options, by name: the tables of supported and of
    rejected options, and the list of ignored options.
    """
    supported = {
        name: _table(
            _OPTION_HEADER,
            (
                (f"`{PREFIX}{option}`", f"`{default}`" if default else "", text)
                for option, default, text in group
            ),
        )
        for name, group in (("kafka-options", PLAIN_OPTIONS), ("kafka-security", SECURITY_OPTIONS))
    }
    refused = [(f"`{PREFIX}{name}`", reason) for name, reason in REFUSED.items()]
    return {
        **supported,
        "kafka-refused": _table(("option", "why, and what to do"), refused),
        "kafka-ignored": ", ".join(f"`{PREFIX}{name}`" for name in WITHOUT_EFFECT),
    }


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


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
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
