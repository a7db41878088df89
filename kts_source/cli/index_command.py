"""`kts index`: filters of keys, for `kts find --key-index`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kts_source.cli.scan_options import scan_options
from kts_source.errors import InvalidOptionError
from kts_source.finding.build_index import index_keys
from kts_source.texts import format_bytes, printable

if TYPE_CHECKING:
    from collections.abc import Mapping


@click.command("index")
@click.option("--to", "folder", required=True, metavar="FOLDER", help="Where; not in the tier.")
@click.option(
    "--secret-file",
    type=click.Path(dir_okay=False),
    help="A file of 16 to 64 bytes that keys are hashed with; encrypted topics need one.",
)
@scan_options("path", "topic", every_topic=True)
def index_command(options: Mapping[str, str], *, folder: str, secret_file: str | None) -> None:
    """Writes filters of the keys of each segment, so that searches read few segments."""
    report = index_keys(options, folder, secret=read_secret(secret_file))
    for key, reason in report.left_out:
        click.echo(printable(f"no filter: {key}: {reason}"), err=True)
    click.echo(
        f"{report.segments:,} segments have filters, {report.read:,} of them were read;"
        f" {format_bytes(report.bytes)}"
    )
    click.get_current_context().exit(1 if report.left_out else 0)


def read_secret(path: str | None) -> bytes | None:
    """The secret in a file, as it is.

    Raises:
        InvalidOptionError: The file cannot be read.
    """
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidOptionError(f"{path} cannot be read: {error.strerror}") from None
