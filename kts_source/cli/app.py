"""`kts`: look at a tier, plan, read and export it, without Spark.

PATH and TOPIC stand for `--path` and `--subscribe`. Options of the data source keep their names
(`--keyPrefix`, `--subscribe`, …); those with a dot in their name are given as `-o name=value`.
`--json` prints one JSON document instead of a table.

Exit codes: 0 done; 1 the tier or its data (corrupt, missing, unreachable), or the target; 2 a
mistake in the command or an option; 3 offsets that the tier should hold and does not; 130
interrupted.
"""

from __future__ import annotations

from typing import Final

import click

from kts_source.cli.commands import cat, plan, segments, topics, verify
from kts_source.cli.demo import demo
from kts_source.cli.export_command import export
from kts_source.errors import DataLossError, InvalidOptionError, TieredKafkaError

EXIT_TIER: Final = 1
EXIT_USAGE: Final = 2
EXIT_LOSS: Final = 3
EXIT_INTERRUPTED: Final = 130


@click.group(help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tiered-kafka", prog_name="kts")
def kts() -> None:
    """The group that holds the commands."""


for command in (topics, segments, plan, cat, verify, export, demo):
    kts.add_command(command)


def main(arguments: list[str] | None = None) -> int:
    """Runs one command and gives its exit code."""
    try:
        code = kts.main(args=arguments, prog_name="kts", standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE
    except TieredKafkaError as error:
        click.echo(f"kts: {error}", err=True)
        if isinstance(error, InvalidOptionError):
            return EXIT_USAGE
        return EXIT_LOSS if isinstance(error, DataLossError) else EXIT_TIER
    return code if isinstance(code, int) else 0
