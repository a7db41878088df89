"""`kts`: inspect, plan, read, audit, search and export a tier, without Spark.

PATH and TOPIC are short for `--path` and `--subscribe`. Options of the data source keep their names
(`--keyPrefix`, `--subscribe`, …). Options in families (`s3.…`, `kafka.…`) are given as
`-o name=value`. `--json` prints one JSON document instead of a table.

Exit codes: 0 done; 1 the tier, its data or the target failed (corrupt, missing, unreachable); 2 an
invalid command or option; 3 offsets that the tier should hold are missing; 130 interrupted.
"""

from __future__ import annotations

import click

from kts_source.cli.commands import (
    audit_command,
    cat,
    plan,
    report_command,
    schema,
    segments,
    topics,
    verify_command,
)
from kts_source.cli.demo import demo
from kts_source.cli.export_command import export
from kts_source.cli.find_command import find_command, index_command
from kts_source.errors import DataLossError, InvalidOptionError, TieredKafkaError


@click.group(help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tiered-kafka", prog_name="kts")
def kts() -> None:
    """The group of all commands."""


for command in (
    *(topics, segments, plan, cat, schema, audit_command, verify_command),
    *(find_command, index_command, report_command, export, demo),
):
    kts.add_command(command)


def main(arguments: list[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    try:
        code = kts.main(args=arguments, prog_name="kts", standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        return 130
    except click.ClickException as error:
        error.show()
        return 2
    except TieredKafkaError as error:
        click.echo(f"kts: {error}", err=True)
        if isinstance(error, InvalidOptionError):
            return 2
        return 3 if isinstance(error, DataLossError) else 1
    return code if isinstance(code, int) else 0
