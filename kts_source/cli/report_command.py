"""`kts report`: a tier as one page for a browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kts_source.auditing.report import AuditReport
from kts_source.cli.scan_options import scan_options
from kts_source.cli.whole_file import write_whole
from kts_source.errors import InvalidOptionError
from kts_source.reporting.run import report
from kts_source.store.open_store import local_file
from kts_source.texts import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping


@click.command("report")
@click.option(
    "--output",
    type=click.Path(dir_okay=False),
    help="The file to write; -o FILE is the same, for a name without =.",
)
@click.option(
    "--audit",
    type=click.Path(exists=True, dir_okay=False),
    help="A JSON report of kts audit about the same tier, to be shown beside.",
)
@scan_options("path", "topic", every_topic=True, bare="output")
def report_command(options: Mapping[str, str], *, output: str | None, audit: str | None) -> None:
    """Draws the selected topics as one HTML file: segments, holes, growth, cost, lag."""
    if output is None:
        raise InvalidOptionError("give the file to write: --output report.html")
    local_file(output)  # before the work is done
    found = None if audit is None else _audit(audit)
    page = report(options, audit=found).to_html()
    write_whole(output, page)
    click.echo(f"{output}: {format_bytes(len(page.encode()))}", err=True)


def _audit(path: str) -> AuditReport:
    try:
        return AuditReport.from_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidOptionError(f"{path} is no report of kts audit: {error}") from None
