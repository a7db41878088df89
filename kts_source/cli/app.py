"""`kts`: inspect, plan, read, audit, search and export a tier, without Spark."""

from __future__ import annotations

import difflib
import io
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import click

from kts_source.cli.flags import with_flags, write_exit_codes
from kts_source.errors import (
    DataLossError,
    InvalidOptionError,
    InvalidValueError,
    MissingExtraError,
    OffsetOutOfRangeError,
    RangeGapError,
    RejectedRowsError,
    TieredKafkaError,
    TopicsFailedError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_STDOUT: Final = "standard output"
_HELP: Final = """Read Kafka topics from tiered storage.

PATH is the root of the tier, such as s3://bucket or a folder. TOPIC is a topic, or several
separated by commas. Both may come from the environment (KTS_PATH) or from a profile in
~/.config/tiered-kafka/config.toml, like all other options.
"""


_COMMANDS: Final[Mapping[str, str]] = {
    "topics": "inspect_commands:topics",
    "describe": "inspect_commands:describe",
    "segments": "inspect_commands:segments",
    "plan": "inspect_commands:plan",
    "cat": "cat_command:cat",
    "schema": "inspect_commands:schema",
    "find": "find_command:find_command",
    "index": "find_command:index_command",
    "groups": "inspect_commands:groups",
    "audit": "audit_command:audit_command",
    "verify": "audit_command:verify_command",
    "report": "audit_command:report_command",
    "export": "export_command:export",
    "restore": "restore_command:restore_command",
    "demo": "demo:demo",
}
"""Module and name of each command. Modules are imported on demand, because the libraries of some
commands take long to import.
"""


class _Stdout(io.BufferedWriter):
    """Standard output. Its errors have `_STDOUT` as file name. Errors of sockets have none.

    Only calls of the buffer are wrapped, because Ctrl-C in Python code below the buffer would make
    it write the same bytes again.
    """

    def write(self, data: Any, /) -> int:  # noqa: ANN401  # any buffer of bytes
        """Writes bytes."""
        try:
            return super().write(data)
        except OSError as error:
            error.filename = _STDOUT
            raise

    def flush(self) -> None:
        """Writes the bytes in the buffer."""
        try:
            super().flush()
        except OSError as error:
            error.filename = _STDOUT
            raise


class _Kts(click.Group):
    """Group of all commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of all commands."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports a command and returns it; `None` if it does not exist."""
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(import_module(f"kts_source.cli.{module}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Returns the command named by the first argument. If no command has this name, raises a
        `UsageError` that suggests a similar name.
        """
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], _COMMANDS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"{error.message}{hint}", ctx) from None

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the exit codes."""
        write_exit_codes(formatter)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401  # the exit code
        """Runs a command. The command ends without an error if the reader of its output closes the
        pipe, as `head` does.
        """
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError as error:
            if error.filename != _STDOUT:  # click would exit without a message
                raise ConnectionError(error.strerror or str(error)) from error
            _discard_output()
            return 0
        return code


@click.group(cls=_Kts, help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tiered-kafka", prog_name="kts")
def kts() -> None:
    """Contains all commands."""


def all_commands() -> dict[str, click.Command]:
    """Imports all commands and returns them by name. A command of a group has the name of the
    group, a space and its own name.
    """
    context = click.Context(kts)
    found: dict[str, click.Command] = {}
    for name in _COMMANDS:
        command = kts.get_command(context, name)
        if isinstance(command, click.Group):
            found |= {f"{name} {each}": member for each, member in command.commands.items()}
        elif command is not None:
            found[name] = command
    return found


def _name_errors_of_output() -> None:
    """Replaces standard output by a stream to `_Stdout`. Keeps a stream that a caller has set."""
    old = sys.stdout
    if old is not sys.__stdout__ or not isinstance(old, io.TextIOWrapper):
        return
    old.flush()
    buffer = _Stdout(io.FileIO(old.fileno(), "w", closefd=False))
    line_buffering = old.line_buffering
    sys.stdout = io.TextIOWrapper(buffer, old.encoding, old.errors, line_buffering=line_buffering)


def _discard_output() -> None:
    """Redirects standard output to `os.devnull`, because Python flushes it again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(arguments: list[str] | None = None) -> int:
    """Runs the command in `arguments` and returns its exit code. By default, uses the arguments of
    this process.
    """
    _name_errors_of_output()
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
        return _exit_code(error)
    except OSError as error:
        if error.filename == _STDOUT:
            _discard_output()
        # Errors of sockets have no file name.
        name = type(error).__name__ if error.filename is None else error.filename
        click.echo(f"kts: {name}: {error.strerror or error}", err=True)
        return 1
    return code if isinstance(code, int) else 0


def _exit_code(error: Exception) -> int:
    if isinstance(error, TopicsFailedError):
        codes = {_exit_code(each) for each in error.errors.values()}
        return codes.pop() if len(codes) == 1 else 1
    if isinstance(error, InvalidOptionError | MissingExtraError):
        return 2
    if isinstance(error, OffsetOutOfRangeError) and error.is_start_time:
        return 2
    if isinstance(error, RejectedRowsError | InvalidValueError):
        return 4
    is_gap = isinstance(error, RangeGapError) and error.is_deleted
    return 3 if is_gap or isinstance(error, DataLossError) else 1
