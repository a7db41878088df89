"""The commands `kts restore`: give a new cluster the topics of a lost cluster, with the same
offsets. `docs/restore.md` describes the steps.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kts_source.cli.output import echo_printable, print_json, write_atomically
from kts_source.cli.scan_options import scan_options
from kts_source.errors import InvalidOptionError
from kts_source.restore.committing import commit_restore
from kts_source.restore.planning import plan_restore
from kts_source.restore.restore_plan import UNDECIDED_POLICIES
from kts_source.restore.verification import status_restore, verify_restore
from kts_source.restore.writing import write_restore
from kts_source.store.open_store import local_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@click.group("restore")
def restore_command() -> None:
    """Give a new cluster the topics of a lost cluster, with the same offsets."""


def _target_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of the new cluster."""
    command = click.option(
        "--target",
        "target_pairs",
        multiple=True,
        metavar="NAME=VALUE",
        help="Option kafka.… of the new cluster, such as kafka.security.protocol=SSL. Repeatable.",
    )(command)
    return click.option(
        "--bootstrap-server", required=True, metavar="HOST:PORT", help="Address of the new cluster."
    )(command)


def _target(bootstrap_server: str, pairs: tuple[str, ...]) -> dict[str, str]:
    return {"kafka.bootstrap.servers": bootstrap_server, **_pairs("--target", pairs)}


def _pairs(flag: str, pairs: tuple[str, ...]) -> dict[str, str]:
    values = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise InvalidOptionError(f"{flag} needs NAME=VALUE, but one has no =")
        values[name] = text
    return values


@restore_command.command("plan")
@click.option("--output", help="File of the plan. -o FILE is the same if the name has no =.")
@click.option(
    "--undecided",
    type=click.Choice(UNDECIDED_POLICIES),
    default=UNDECIDED_POLICIES[0],
    show_default=True,
    help="What happens to transactions whose end is not in the tier.",
)
@click.option("--rename", multiple=True, metavar="OLD=NEW", help="New topic name. Repeatable.")
@click.option(
    "--resume-at",
    metavar="JSON",
    help='Minimum offset of the next record: {"topic": {"0": 4711}}.',
)
@_target_options
@scan_options("path", "topic", every_topic=True, bare="output")
def plan_command(
    options: Mapping[str, str],
    *,
    output: str | None,
    undecided: str,
    rename: tuple[str, ...],
    resume_at: str | None,
    bootstrap_server: str,
    target_pairs: tuple[str, ...],
) -> None:
    """Compare tier and new cluster. Change nothing, and list every reason to refuse."""
    if output is None:
        raise InvalidOptionError("option --output is missing: set it, such as -o plan.json")
    local_file(output)  # fail before the work, not after it
    plan = plan_restore(
        options,
        _target(bootstrap_server, target_pairs),
        undecided=undecided,
        rename=_pairs("--rename", rename),
        resume_at=_offsets(resume_at),
    )
    write_atomically(output, plan.to_json())
    echo_printable(plan.explain())
    click.get_current_context().exit(1 if plan.refusals else 0)


def _offsets(text: str | None) -> dict[str, dict[int, int]]:
    try:
        return _numbers(json.loads(text or "{}"))
    except (ValueError, AttributeError, TypeError):
        raise InvalidOptionError(
            f'--resume-at {text!r} is invalid: use JSON such as {{"topic": {{"0": 4711}}}}'
        ) from None


def _numbers(topics: dict[str, dict[str, int]]) -> dict[str, dict[int, int]]:
    return {
        topic: {int(number): int(offset) for number, offset in offsets.items()}
        for topic, offsets in topics.items()
    }


@restore_command.command("write")
@click.argument("plan_file", metavar="PLAN")
@click.option("--log-dir", required=True, help="Log directory of the stopped broker.")
@scan_options("path", "topic", every_topic=True)
def write_command(options: Mapping[str, str], *, plan_file: str, log_dir: str) -> None:
    """Write the planned segments into the log directory of a stopped broker. Run it again to
    continue.
    """
    on_partition = lambda name: click.echo(f"written: {name}", err=True)  # noqa: E731
    write_restore(plan_file, options, log_dir, on_partition=on_partition)
    _print_status(plan_file)


@restore_command.command("verify")
@click.argument("plan_file", metavar="PLAN")
@_target_options
def verify_command(*, plan_file: str, bootstrap_server: str, target_pairs: tuple[str, ...]) -> None:
    """Compare every row, log start and end that the brokers serve with the restored ones."""
    differences = verify_restore(plan_file, _target(bootstrap_server, target_pairs))
    for text in differences:
        echo_printable(text)
    if not differences:
        _print_status(plan_file)
    click.get_current_context().exit(1 if differences else 0)


@restore_command.command("commit")
@click.argument("plan_file", metavar="PLAN")
@click.option(
    "--config", multiple=True, metavar="NAME=VALUE", help="New configuration. Repeatable."
)
@click.option(
    "--groups",
    type=click.Path(exists=True, dir_okay=False),
    help='JSON file of committed offsets: {"group": {"topic": {"0": 4711}}}.',
)
@_target_options
def commit_command(
    *,
    plan_file: str,
    config: tuple[str, ...],
    groups: str | None,
    bootstrap_server: str,
    target_pairs: tuple[str, ...],
) -> None:
    """Verify again, then raise producer ids, commit offsets of groups and set configurations."""
    report = commit_restore(
        plan_file,
        _target(bootstrap_server, target_pairs),
        configs=_pairs("--config", config),
        groups=_groups(groups),
    )
    for line in report:
        echo_printable(line)
    _print_status(plan_file)


def _groups(path: str | None) -> dict[str, dict[str, dict[int, int]]]:
    if path is None:
        return {}
    try:
        parsed = json.loads(Path(path).read_text(encoding="utf-8"))
        return {group: _numbers(topics) for group, topics in parsed.items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise InvalidOptionError(
            f'--groups {path} is invalid: {error}. Use JSON: {{"group": {{"topic": {{"0": 1}}}}}}'
        ) from None


@restore_command.command("status")
@click.argument("plan_file", metavar="PLAN")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def status_command(*, plan_file: str, as_json: bool) -> None:
    """Print the finished steps of a restore, and the next step."""
    if as_json:
        print_json(status_restore(plan_file))
    else:
        _print_status(plan_file)


def _print_status(plan_file: str) -> None:
    for line in status_restore(plan_file):
        echo_printable(line)
