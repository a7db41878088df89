"""The command `kts export`, which writes topics to tables."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from kts_source.cli.flags import ByteSize, Command, Integer, flag
from kts_source.cli.output import (
    check_output,
    echo_printable,
    json_text,
    print_json,
    write_atomically,
)
from kts_source.cli.scan_options import (
    RECORDS,
    json_flag,
    parse_topic_options,
    require_topic,
    scan_options,
    topic_option_flag,
)
from kts_source.errors import InvalidOptionError, TopicsFailedError
from kts_source.libraries import require
from kts_source.texts import json_fields

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kts_source.export.by_topic import TableExport
    from kts_source.export.follow import RoundMetrics
    from kts_source.export.report import BackfillReport
    from kts_source.export.settings import ExportSettings


_WRITING: Final = "Files and tables"
_ROUNDS: Final = "Rounds (--follow)"
_MAINTENANCE: Final = "Maintenance"


@click.command(
    cls=Command,
    examples=(
        "kts export s3://bucket orders ./lake/orders --key-prefix tiered/",
        "kts export ./tier orders ./lake/orders --table-format delta --follow",
        "kts export ./tier a,b './lake/{topic}' --topic-option a:value.format=json",
    ),
)
@flag(
    "--table-format",
    type=click.Choice(["parquet", "delta", "iceberg"]),
    help="Format of the table.  [default: parquet]",
)
@flag(
    "--partition-by",
    multiple=True,
    metavar="NAME",
    help="Column, field, or date, day, month or hour of one, such as month(timestamp). Repeatable.",
)
@flag("--compact", is_flag=True, help="Keep only the latest record of every key.")
@flag("--dead-letters", metavar="FOLDER", help="Folder for rows that cannot be decoded.")
@flag(
    "--max-rejected",
    metavar="PERCENT",
    help="Maximum share of rejected rows in a commit. 100% accepts all.  [default: 1%]",
)
@topic_option_flag(help="Option of one topic, such as orders:value.format=json. Repeatable.")
@flag("--follow", is_flag=True, help="Continue with new records until SIGTERM or Ctrl-C.")
@flag("--workers", type=Integer(min=1), help="Processes. Default: number of cores.")
@flag("--spark", "with_spark", is_flag=True, help="Run the tasks in a Spark session.")
@json_flag
@flag("--sort-within-files", multiple=True, group=_WRITING, help="Column or field. Repeatable.")
@flag("--target-file-bytes", type=ByteSize(), group=_WRITING, help="Close a file at this size.")
@flag("--row-group-rows", type=int, group=_WRITING, help="Maximum rows of a row group.")
@flag("--compression", group=_WRITING, help="Codec of the Parquet pages.")
@flag(
    "--commit-bytes",
    type=ByteSize(),
    group=_WRITING,
    help="Minimum original bytes per commit, such as 8g.",
)
@flag(
    "--tombstones",
    type=click.Choice(["keep", "remove", "remove-old"]),
    group=_WRITING,
    help="With --compact: handling of deleted keys.",
)
@flag(
    "--delete-retention-ms",
    type=int,
    group=_WRITING,
    help="Minimum age of tombstones for --tombstones remove-old.",
)
@flag("--export-id", group=_WRITING, help="Distinguishes exports into the same table.")
@flag(
    "--second-copy",
    is_flag=True,
    group=_WRITING,
    help="Write topics again that another export wrote to TARGET.",
)
@flag(
    "--schema-evolution",
    type=click.Choice(["add"]),
    group=_WRITING,
    help="add: add new fields of values to the table.",
)
@flag(
    "--on-new-fields",
    type=click.Choice(["warn", "fail", "add"]),
    group=_WRITING,
    help="Fields that the schema lacks; add: add them to the table.  [default: warn]",
)
@flag(
    "--text-partitions",
    type=click.Choice(["as-is"]),
    group=_WRITING,
    help="as-is: allow partition texts that readers may parse as numbers, dates or booleans.",
)
@flag(
    "--catalog",
    multiple=True,
    metavar="NAME=VALUE",
    group=_WRITING,
    help="Property of PyIceberg's catalog. Repeatable. The option catalog of the source is"
    " -o catalog=… here.",
)
@flag(
    "--prometheus",
    type=click.Path(dir_okay=False),
    group=_WRITING,
    help="Write metrics of the run. A dry run writes none.",
)
@flag("--png", metavar="FILE", group=_WRITING, help="Save the report as a picture.")
@flag("--interval", group=_ROUNDS, help="Time between rounds: 60s, 15m, 1h.  [default: 60s]")
@flag("--round-bytes", type=ByteSize(), group=_ROUNDS, help="Approximate original bytes per round.")
@flag(
    "--no-resume",
    is_flag=True,
    group=_MAINTENANCE,
    help="Fail if the target has some of the offsets.",
)
@flag(
    "--verify",
    is_flag=True,
    group=_MAINTENANCE,
    help="First compare the table with its commits.",
)
@flag(
    "--replay-dead-letters",
    "replay",
    is_flag=True,
    group=_MAINTENANCE,
    help="Only write rows in --dead-letters that are valid now, each once.",
)
@flag(
    "--end-offsets",
    is_flag=True,
    group=_MAINTENANCE,
    help="Only print the end of TARGET as JSON, for --starting-offsets.",
)
@flag(
    "--clean",
    is_flag=True,
    group=_MAINTENANCE,
    help="Only remove files of failed attempts in TARGET and in the folder of --dead-letters.",
)
@flag(
    "--older-than-hours",
    type=float,
    group=_MAINTENANCE,
    help="With --clean: minimum age of files. Younger ones may be in use.  [default: 168]",
)
@flag(
    "--dry-run",
    is_flag=True,
    group=_MAINTENANCE,
    help="Only report what a run would write; with --clean, only list the files.",
)
@scan_options("path", "topic", "target", essential=RECORDS, by_option_only=("catalog",))
def export(
    options: dict[str, str],
    *,
    target: str,
    topic_options: tuple[str, ...],
    no_resume: bool,
    catalog: tuple[str, ...],
    clean: bool,
    end_offsets: bool,
    older_than_hours: float | None,
    dry_run: bool,
    workers: int | None,
    with_spark: bool,
    prometheus: str | None,
    png: str | None,
    as_json: bool,
    **settings: Any,  # noqa: ANN401  # `ExportArguments`
) -> None:
    """Write the selected topics to TARGET, each offset once. Run the command again to continue."""
    # Other commands do not need this module.
    from kts_source.export.settings import export_settings

    if dry_run:
        prometheus = None  # a dry run must not clear the alert about a failed or missing run
    if prometheus is not None:
        check_output(prometheus)
    if settings["table_format"] == "iceberg" and not catalog:
        raise InvalidOptionError(
            "--table-format iceberg needs --catalog NAME=VALUE, such as --catalog type=glue"
        )
    named = {name: value for name, value in settings.items() if value not in (None, ())}
    if catalog:
        named["catalog"] = dict(pair.partition("=")[::2] for pair in catalog)
    named["resume"] = not no_resume
    named["dry_run"] = dry_run and not clean
    if clean:
        checked = export_settings(target, source=options, **named)
        _clean(checked, older_than_hours, dry_run=dry_run, as_json=as_json)
        return
    if end_offsets:
        from kts_source.export.end_offsets import end_offsets as offsets_of_table

        require_topic(options, target)
        click.echo(offsets_of_table(source=options, target=target, **named))
        return
    with _failure_metrics(prometheus, target), _termination_line():
        require_topic(options, target)
        if png is not None:
            require("matplotlib", "plot", "--png")  # fail before the work, not after it
            check_output(png)
        exports = _exports(options, target, topic_options, named)
        report = _run(
            target, exports, workers, with_spark=with_spark, as_json=as_json, prometheus=prometheus
        )
    if prometheus is not None:
        _write_metrics(prometheus, report.to_prometheus())
    if png is not None:
        report.save_png(png)


@contextmanager
def _failure_metrics(prometheus: str | None, target: str) -> Iterator[None]:
    """Writes the metrics of a failed run to the file `prometheus` if the block raises an error."""
    from kts_source.export.report import failure_to_prometheus

    try:
        yield
    except Exception as error:
        if prometheus is not None:
            _try_write(prometheus, failure_to_prometheus(target, error))
        raise


@contextmanager
def _termination_line() -> Iterator[None]:
    """Prints a line before SIGTERM ends this process. `follow` handles the signal itself."""
    command = os.getpid()

    def end(number: int, _frame: object) -> None:
        if os.getpid() == command:
            message = "terminated: commits are kept, and the same command continues after them"
            os.write(2, f"kts: {message}\n".encode())  # `print` may hold its lock
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _write_metrics(prometheus: str, text: str) -> None:
    """Writes the metrics of a run that succeeded."""
    try:
        write_atomically(prometheus, text)
    except InvalidOptionError as error:
        raise InvalidOptionError(
            f"the export succeeded, so the table is up to date, but not its metrics: {error}, or"
            " correct this and run again to write the metrics"
        ) from None


def _try_write(prometheus: str, text: str) -> None:
    """Writes metrics. Prints an error instead of raising it: the export is more important."""
    try:
        write_atomically(prometheus, text)
    except InvalidOptionError as error:
        click.echo(f"kts: {error}", err=True)


def _exports(
    options: dict[str, str], target: str, topic_options: tuple[str, ...], named: dict[str, Any]
) -> list[TableExport]:
    """Returns the exports of the command. `topic_options` have the form `TOPIC:NAME=VALUE`."""
    from kts_source.export.by_topic import exports_of

    return exports_of(options, target, parse_topic_options(topic_options), **named)


def _clean(
    settings: ExportSettings, older_than_hours: float | None, *, dry_run: bool, as_json: bool
) -> None:
    from kts_source.export.run import DEFAULT_CLEAN_HOURS, clean

    hours = DEFAULT_CLEAN_HOURS if older_than_hours is None else older_than_hours
    orphans = clean(settings, older_than_hours=hours, remove=not dry_run)
    keys = sorted(orphan.key for orphan in orphans)
    if as_json:
        print_json(keys)
        return
    for key in keys:
        echo_printable(key)
    click.echo(f"{len(keys)} files {'would be ' if dry_run else ''}removed")


def _run(
    target: str,
    exports: list[TableExport],
    workers: int | None,
    *,
    with_spark: bool,
    as_json: bool,
    prometheus: str | None,
) -> BackfillReport:
    from kts_source.export.by_topic import run_exports
    from kts_source.export.follow import DONE, IDLE, follow
    from kts_source.export.progress import NO_PROGRESS, default_progress
    from kts_source.export.rejections import check_sample
    from kts_source.export.report import BackfillReport
    from kts_source.export.run import export as run_export
    from kts_source.export.task_writer import ExportExecutor, LocalExecutor

    first = exports[0]
    follows = first.settings.following is not None
    progress = NO_PROGRESS if follows else default_progress()
    executor: ExportExecutor = LocalExecutor(workers)
    if with_spark:
        require("pyspark", "spark", "--spark")
        from kts_source.spark.backfill import SparkExecutor
        from kts_source.spark.datasource import session_builder

        executor = SparkExecutor(session_builder().getOrCreate(), progress)

    def run(each: TableExport) -> BackfillReport:
        return run_export(each.source, each.settings, executor, progress=progress)

    def on_round(metrics: RoundMetrics, total: BackfillReport) -> None:
        if prometheus is not None and metrics.outcome in (DONE, IDLE):
            _try_write(prometheus, total.to_prometheus())
        ended = datetime.now(UTC).isoformat(timespec="milliseconds")
        click.echo(json_text({"ended": ended, **json_fields(metrics)}))

    if follows:
        report = follow(first.source, first.settings, executor, on_round=on_round)
        click.echo(str(report), err=True)  # standard output has only a line of JSON per round
        return report
    limit = None if first.settings.dead_letters is None else first.settings.max_rejected

    def check(each: BackfillReport) -> None:
        if each.dry_run:
            check_sample(each.rejected, each.rows_read, limit, each.target)

    try:
        report = run_exports(target, exports, run, check)
    except TopicsFailedError as error:
        if isinstance(error.report, BackfillReport) and error.report.tables:
            _print_report(error.report, as_json=as_json)
        raise
    _print_report(report, as_json=as_json)
    if not report.tables:
        check(report)
    return report


def _print_report(report: BackfillReport, *, as_json: bool) -> None:
    if as_json:
        tables = [{**json_fields(table), "ratio": table.ratio} for table in report.tables]
        print_json({**json_fields(report), "ratio": report.ratio, "tables": tables})
    else:
        click.echo(str(report))
