"""`kts`: look at a tier, plan, read and export it, without Spark.

PATH and TOPIC stand for `--path` and `--subscribe`. Options of the data source keep their names
(`--keyPrefix`, `--subscribe`, …); those with a dot in their name are given as `-o name=value`.
`--json` prints one JSON document instead of a table.

Exit codes: 0 done; 1 the tier or its data (corrupt, missing, unreachable), or the target; 2 a
mistake in the command or an option; 3 offsets that the tier should hold and does not; 130
interrupted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from kts_source.cli import commands
from kts_source.errors import DataLossError, InvalidOptionError, TieredKafkaError
from kts_source.options import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable

EXIT_TIER: Final = 1
EXIT_USAGE: Final = 2
EXIT_LOSS: Final = 3
EXIT_INTERRUPTED: Final = 130

_SELECTIONS: Final = ("subscribe", "subscribePattern", "assign")


def places(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds the arguments PATH and TOPIC, or those of them that are named."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for name in reversed(names):
            command = click.argument(f"given_{name}", metavar=f"[{name.upper()}]", required=False)(
                command
            )
        return command

    return add


def scan_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds every option of the data source to a command, and `-o` for those with a dot."""
    for option in reversed(OPTIONS):
        command = click.option(
            f"--{option.name}", option.name, metavar="TEXT", help=option.doc.replace("`", "")
        )(command)
    return click.option(
        "-o",
        "--option",
        "dotted",
        multiple=True,
        metavar="NAME=VALUE",
        help="Any option of the data source, such as s3.endpoint=… or encryption.key.pairs.….",
    )(command)


def given_options(
    dotted: tuple[str, ...],
    *,
    given_path: str | None = None,
    given_topic: str | None = None,
    **named: str | None,
) -> dict[str, str]:
    """The options of the data source that were given, as arguments or by name.

    Raises:
        InvalidOptionError: A `-o` without `=`, or the same twice.
    """
    options = {name: text for name, text in named.items() if text is not None}
    for option, text in (("path", given_path), ("subscribe", given_topic)):
        if text is None:
            continue
        if option in options:
            raise InvalidOptionError(f"{text!r} and --{option} are the same: give one")
        options[option] = text
    for pair in dotted:
        name, equals, text = pair.partition("=")
        if not equals:
            raise InvalidOptionError(f"-o takes NAME=VALUE, not {pair!r}")
        options[name] = text
    return options


def every_topic(options: dict[str, str]) -> dict[str, str]:
    """The same options, with all topics selected where none is named."""
    if any(name in options for name in _SELECTIONS):
        return options
    return {**options, "subscribePattern": ".*"}


@click.group(help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tiered-kafka", prog_name="kts")
def kts() -> None:
    """The group that holds the commands."""


@kts.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@places("path")
@scan_options
def topics(as_json: bool, dotted: tuple[str, ...], **named: str | None) -> None:
    """Topics and partitions of the tier with their watermarks."""
    commands.topics(every_topic(given_options(dotted, **named)), as_json=as_json)


@kts.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@places("path", "topic")
@scan_options
def segments(as_json: bool, dotted: tuple[str, ...], **named: str | None) -> None:
    """Segments of the selected topics: which offsets each serves, and which are not read."""
    commands.segments(every_topic(given_options(dotted, **named)), as_json=as_json)


@kts.command()
@click.option("--json", "as_json", is_flag=True, help="The plan for option planFile.")
@places("path", "topic")
@scan_options
def plan(as_json: bool, dotted: tuple[str, ...], **named: str | None) -> None:
    """What a read would fetch, leave out and cost, before it runs."""
    commands.plan(given_options(dotted, **named), as_json=as_json)


@kts.command()
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "raw"]),
    default="json",
    help="json: one object a record; raw: values only, each with a line feed.",
)
@click.option("--json", "form", flag_value="json", help="As --format json.")
@click.option("--limit", type=click.IntRange(min=0), help="At most so many records.")
@places("path", "topic")
@scan_options
def cat(form: str, limit: int | None, dotted: tuple[str, ...], **named: str | None) -> None:
    """Prints records."""
    commands.cat(given_options(dotted, **named), form=form, limit=limit)


@kts.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@places("path", "topic")
@scan_options
def verify(as_json: bool, dotted: tuple[str, ...], **named: str | None) -> None:
    """Reads every byte of the selected topics and checks every checksum."""
    commands.verify(every_topic(given_options(dotted, **named)), as_json=as_json)


@kts.command()
@click.argument("given", nargs=-1, required=True, metavar="[PATH [TOPIC]] TARGET")
@click.option("--table-format", help="parquet, delta or iceberg.")
@click.option("--partition-by", multiple=True, help="A column, or date(timestamp). Repeatable.")
@click.option("--sort-within-files", multiple=True, help="A column. Repeatable.")
@click.option("--target-file-bytes", type=int, help="Close a file once it has as many bytes.")
@click.option("--row-group-rows", type=int, help="Rows of a row group, at most.")
@click.option("--compression", help="Codec of the Parquet pages.")
@click.option("--commit-bytes", type=int, help="Original bytes per commit, at least.")
@click.option("--compact", is_flag=True, help="Keep the latest record of every key only.")
@click.option("--tombstones", help="With --compact: keep, remove or remove-old.")
@click.option("--delete-retention-ms", type=int, help="What remove-old takes for old.")
@click.option("--export-id", help="Tells exports into the same table apart.")
@click.option("--no-resume", is_flag=True, help="Refuse a target that holds some of the offsets.")
@click.option("--catalog", multiple=True, metavar="NAME=VALUE", help="PyIceberg's properties.")
@click.option("--workers", type=click.IntRange(min=1), help="Processes; default: one a core.")
@click.option("--spark", "with_spark", is_flag=True, help="Run the tasks in a Spark session.")
@click.option("--clean", is_flag=True, help="Only remove what dead attempts left in the target.")
@click.option(
    "--older-than-hours",
    type=float,
    help="What --clean takes for dead, a week by default; younger files may belong to a run.",
)
@click.option("--dry-run", is_flag=True, help="--clean only lists.")
@click.option("--dead-letters", metavar="FOLDER", help="Whose leftovers --clean removes too.")
@click.option("--png", metavar="FILE", help="The report as a picture; needs matplotlib.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@scan_options
def export(
    given: tuple[str, ...],
    with_spark: bool,
    clean: bool,
    as_json: bool,
    png: str | None,
    workers: int | None,
    dotted: tuple[str, ...],
    **named: Any,  # noqa: ANN401 - texts, flags and numbers
) -> None:
    """Writes the selected topics to TARGET, each offset once; run again to go on."""
    if len(given) > 3:
        raise click.UsageError(f"at most PATH, TOPIC and TARGET, not {len(given)} arguments")
    *tier, target = given
    given_path, given_topic = (*tier, None, None)[:2]
    from kts_source.cli.export_command import export as run_export
    from kts_source.export.settings import ExportArguments

    settings = {
        name: named.pop(name)
        for name in ("no_resume", *ExportArguments.__annotations__)
        if name in named
    }
    cleaning = {name: named.pop(name) for name in ("older_than_hours", "dry_run")}
    run_export(
        given_options(dotted, given_path=given_path, given_topic=given_topic, **named),
        target,
        settings,
        workers=workers,
        with_spark=with_spark,
        clean=clean,
        as_json=as_json,
        png=png,
        **cleaning,
    )


@kts.command()
@places("path")
@click.option("--path", help="Another tier than the sample of the checkout.")
@click.option("--keyPrefix", "key_prefix", default="", help="Its key.prefix.")
def demo(given_path: str | None, path: str | None, key_prefix: str) -> None:
    """Reads the sample tier of a checkout, or PATH; with Spark where it is installed."""
    from kts_source.cli.demo import main as run_demo

    other = given_path or path
    code = run_demo(["--path", other, "--key-prefix", key_prefix] if other else [])
    if code:
        raise click.exceptions.Exit(code)


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
    except InvalidOptionError as error:
        click.echo(f"kts: {error}", err=True)
        return EXIT_USAGE
    except DataLossError as error:
        click.echo(f"kts: {error}", err=True)
        return EXIT_LOSS
    except TieredKafkaError as error:
        click.echo(f"kts: {error}", err=True)
        return EXIT_TIER
    return code if isinstance(code, int) else 0
