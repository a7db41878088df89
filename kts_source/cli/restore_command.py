"""The commands `kts restore …`, which restore the topics of a lost cluster in a new cluster, with
unchanged offsets. `docs/restore.md` describes the steps.
"""

from __future__ import annotations

import json
import operator
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kts_source.cli.flags import SERVERS, Command, flag
from kts_source.cli.output import check_output, echo_printable, print_json, write_atomically
from kts_source.cli.scan_options import json_flag, scan_options
from kts_source.errors import BrokerUnavailableError, InvalidOptionError
from kts_source.libraries import require
from kts_source.restore.committing import commit_restore, status_restore, verify_restore
from kts_source.restore.journal import check_not_begun
from kts_source.restore.restore_plan import UNDECIDED_POLICIES, plan_restore
from kts_source.restore.target import target_settings
from kts_source.restore.writing import write_restore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class _Restore(click.Group):
    """Group of the steps of a restore."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of the steps, in order."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401  # the exit code
        """Runs a step. Only the new cluster is contacted, so errors name its flag."""
        try:
            return super().invoke(ctx)
        except BrokerUnavailableError as error:
            raise BrokerUnavailableError(_with_flag(error.message)) from error


def _with_flag(message: str) -> str:
    return re.sub(r"(option )?'?kafka\.bootstrap\.servers'?", "--to", message)


@click.group("restore", cls=_Restore)
def restore_command() -> None:
    """Restore topics of a lost cluster, with the same offsets."""


_TO_HELP = "Brokers of the new cluster."


def _target_options(
    *, required: bool = True, text: str = _TO_HELP
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Returns a decorator that adds the options of the new cluster."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        command = flag(
            "--to-option",
            "to_pairs",
            multiple=True,
            metavar="NAME=VALUE",
            help="Option of the new cluster, such as kafka.security.protocol=SSL.",
        )(command)
        return flag("--to", required=required, metavar="HOST:PORT,…", help=text)(command)

    return add


def _target(servers: str, pairs: tuple[str, ...]) -> dict[str, str]:
    target = {"kafka.bootstrap.servers": servers, **_pairs("--to-option", pairs)}
    require("kafka", "restore", "kts restore")
    try:
        target_settings(target)
    except InvalidOptionError as error:
        raise InvalidOptionError(_with_flag(error.message)) from None
    return target


def _pairs(flag: str, pairs: tuple[str, ...]) -> dict[str, str]:
    values = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise InvalidOptionError(f"{flag} needs NAME=VALUE, but a value has no =")
        values[name] = text
    return values


@restore_command.command(
    "plan",
    cls=Command,
    short_help="Compare the tier and the new cluster.",
    examples=(
        "kts restore plan s3://bucket orders --key-prefix tiered/ \\",
        "  --to new:9092 --output plan.json",
    ),
)
@flag("--output", required=True, type=click.Path(dir_okay=False), help="File of the plan.")
@flag(
    "--undecided",
    type=click.Choice(UNDECIDED_POLICIES),
    default=UNDECIDED_POLICIES[0],
    show_default=True,
    help="Transactions whose end is not in the tier.",
)
@flag("--rename", multiple=True, metavar="OLD=NEW", help="New topic name.")
@flag(
    "--zero-copy",
    is_flag=True,
    help="Serve the old segments in place; both clusters use the same folder or bucket.",
)
@flag(
    "--resume-at",
    metavar="JSON",
    help='Minimum offset of the next record: {"topic": {"0": 4711}}.',
)
@_target_options()
@json_flag
@scan_options("path", "topic", every_topic=True, by_option_only=(SERVERS,))
def plan_command(
    options: Mapping[str, str],
    *,
    output: str,
    undecided: str,
    rename: tuple[str, ...],
    zero_copy: bool,
    resume_at: str | None,
    to: str,
    to_pairs: tuple[str, ...],
    as_json: bool,
) -> None:
    """Compare tier and new cluster. Change nothing, and list every reason to refuse."""
    check_output(output)  # fail before the work, not after it
    check_not_begun(output)
    plan = plan_restore(
        options,
        _target(to, to_pairs),
        undecided=undecided,
        rename=_pairs("--rename", rename),
        resume_at=_offsets(resume_at),
        zero_copy=zero_copy,
    )
    write_atomically(output, plan.to_json())
    if as_json:
        click.echo(plan.to_json(), nl=False)
    else:
        echo_printable(plan.explain())
    click.get_current_context().exit(1 if plan.refusals else 0)


def _offsets(text: str | None) -> dict[str, dict[int, int]]:
    try:
        return _numbers(json.loads(text or "{}"))
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise InvalidOptionError(
            f'--resume-at {text!r} is invalid: use JSON such as {{"topic": {{"0": 4711}}}}'
        ) from None


def _numbers(topics: dict[str, dict[str, int]]) -> dict[str, dict[int, int]]:
    return {
        topic: {int(number): operator.index(offset) for number, offset in offsets.items()}
        for topic, offsets in topics.items()
    }


@restore_command.command(
    "write",
    cls=Command,
    short_help="Write the segments to a stopped broker.",
    examples=(
        "kts restore write plan.json s3://bucket orders --key-prefix tiered/ \\",
        "  --log-dir /var/kafka/logs",
    ),
)
@click.argument("plan_file", metavar="PLAN")
@flag("--log-dir", required=True, metavar="FOLDER", help="Log directory of the stopped broker.")
@_target_options(required=False, text="Other brokers of the new cluster, for --zero-copy.")
@json_flag
@scan_options("path", "topic", every_topic=True, by_option_only=(SERVERS,))
def write_command(
    options: Mapping[str, str],
    *,
    plan_file: str,
    log_dir: str,
    to: str | None,
    to_pairs: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write the planned segments into the log directory of a stopped broker. Run it again to
    continue.
    """
    on_partition = lambda name: click.echo(f"written: {name}", err=True)  # noqa: E731
    target = None if to is None else _target(to, to_pairs)
    write_restore(plan_file, options, log_dir, target=target, on_partition=on_partition)
    _print_lines(status_restore(plan_file), as_json=as_json)


@restore_command.command("verify", short_help="Compare the brokers with the restored rows.")
@click.argument("plan_file", metavar="PLAN")
@_target_options()
@json_flag
def verify_command(*, plan_file: str, to: str, to_pairs: tuple[str, ...], as_json: bool) -> None:
    """Compare every row, log start and end that the brokers serve with the restored ones."""
    differences = verify_restore(plan_file, _target(to, to_pairs))
    _print_lines(differences or status_restore(plan_file), as_json=as_json)
    click.get_current_context().exit(1 if differences else 0)


@restore_command.command(
    "commit",
    cls=Command,
    short_help="Commit offsets and set configurations.",
    examples=(
        "kts restore commit plan.json s3://bucket --key-prefix tiered/ --to new:9092 \\",
        "  --groups groups.json --config retention.ms=604800000",
    ),
)
@click.argument("plan_file", metavar="PLAN")
@flag("--config", multiple=True, metavar="NAME=VALUE", help="New configuration.")
@flag(
    "--groups",
    type=click.Path(exists=True, dir_okay=False),
    help='Committed offsets: output of kts groups --json, or {"group": {"topic": {"0": 4711}}}.',
)
@flag(
    "--metadata-log",
    type=click.Path(exists=True, file_okay=False),
    help="Log directory of an old controller: set the topics' old configurations.",
)
@_target_options()
@json_flag
@scan_options("path", every_topic=True, by_option_only=(SERVERS,))
def commit_command(
    options: Mapping[str, str],
    *,
    plan_file: str,
    config: tuple[str, ...],
    groups: str | None,
    metadata_log: str | None,
    to: str,
    to_pairs: tuple[str, ...],
    as_json: bool,
) -> None:
    """Verify again, then raise producer ids, commit offsets of groups and set configurations."""
    report = commit_restore(
        plan_file,
        _target(to, to_pairs),
        configs=_pairs("--config", config),
        groups=_groups(groups),
        metadata_log=metadata_log,
        source=options if "path" in options else None,
    )
    _print_lines([*report, *status_restore(plan_file)], as_json=as_json)


def _groups(path: str | None) -> dict[str, dict[str, dict[int, int]]]:
    if path is None:
        return {}
    try:
        parsed = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(parsed, list):
            return {group: _numbers(topics) for group, topics in parsed.items()}
        groups: dict[str, dict[str, dict[int, int]]] = {}
        for row in parsed:
            topics = groups.setdefault(row["group"], {})
            topics.setdefault(row["topic"], {})[int(row["partition"])] = int(row["offset"])
        return groups
    except (OSError, ValueError, AttributeError, TypeError, KeyError, RecursionError) as error:
        raise InvalidOptionError(
            f"--groups {path} is invalid: {error}. Use the output of kts groups --json, or"
            ' {"group": {"topic": {"0": 1}}}'
        ) from None


@restore_command.command("status", short_help="Print the finished and the next step.")
@click.argument("plan_file", metavar="PLAN")
@json_flag
def status_command(*, plan_file: str, as_json: bool) -> None:
    """Print the finished steps of a restore, and the next step."""
    _print_lines(status_restore(plan_file), as_json=as_json)


def _print_lines(lines: list[str], *, as_json: bool) -> None:
    if as_json:
        print_json(lines)
        return
    for line in lines:
        echo_printable(line)
