"""`kts`: inspect, plan, read, audit, search and export a tier, without Spark."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from kts_source.cli.audit_command import audit_command, report_command, verify_command
from kts_source.cli.cat_command import cat
from kts_source.cli.demo import demo
from kts_source.cli.describe_command import describe, groups
from kts_source.cli.export_command import export
from kts_source.cli.find_command import find_command, index_command
from kts_source.cli.flags import with_flags, write_exit_codes
from kts_source.cli.inspect_commands import plan, schema, segments, topics
from kts_source.errors import DataLossError, InvalidOptionError, TieredKafkaError

_HELP = """Read Kafka topics from tiered storage.

PATH is the root of the tier, such as s3://bucket or a folder. TOPIC is a topic, or several
separated by commas. Both may come from the environment (KTS_PATH) or from a profile in
~/.config/tiered-kafka/config.toml, like all other options.
"""


class _Kts(click.Group):
    """Group of all commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of commands in the order in which they were added."""
        return list(self.commands)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the exit codes."""
        write_exit_codes(formatter)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401  # the exit code
        """Runs a command. If the reader of its output has closed the pipe, as `head` does, the
        command ends without an error.
        """
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # Python flushes standard output again when it exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        return code


@click.group(cls=_Kts, help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tiered-kafka", prog_name="kts")
def kts() -> None:
    """Contains all commands."""


for command in (
    *(topics, describe, segments, plan, cat, schema, find_command, index_command),
    *(groups, audit_command, verify_command, report_command, export, demo),
):
    kts.add_command(command)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command in `arguments` and returns its exit code. By default, uses the arguments of
    this process.
    """
    try:
        code = kts.main(args=arguments, prog_name="kts", standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        return 130
    except click.ClickException as error:
        error.show()
        return 2
    except TieredKafkaError as error:
        click.echo(f"kts: {with_flags(str(error))}", err=True)
        if isinstance(error, InvalidOptionError):
            return 2
        return 3 if isinstance(error, DataLossError) else 1
    return code if isinstance(code, int) else 0
