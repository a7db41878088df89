"""`kts export`: exports topics on this machine, or with Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kts_source.cli.output import print_json
from kts_source.cli.scan_options import add_location, json_flag, scan_options
from kts_source.libraries import require
from kts_source.store.open_store import local_file

if TYPE_CHECKING:
    from kts_source.export.settings import ExportSettings


@click.command()
@click.argument("locations", nargs=-1, required=True, metavar="[PATH [TOPIC]] TARGET")
@click.option("--table-format", help="parquet, delta or iceberg.")
@click.option("--partition-by", multiple=True, help="Column, field or date(column). Repeatable.")
@click.option("--sort-within-files", multiple=True, help="Column or field. Repeatable.")
@click.option("--target-file-bytes", type=int, help="Close a file at this size.")
@click.option("--row-group-rows", type=int, help="Maximum rows of a row group.")
@click.option("--compression", help="Codec of the Parquet pages.")
@click.option("--commit-bytes", type=int, help="Minimum original bytes per commit.")
@click.option("--compact", is_flag=True, help="Keep only the latest record of every key.")
@click.option("--tombstones", help="With --compact: keep, remove or remove-old.")
@click.option("--delete-retention-ms", type=int, help="Minimum age of tombstones for remove-old.")
@click.option("--export-id", help="Distinguishes exports into the same table.")
@click.option("--schema-evolution", help="add: add new fields of values to the table.")
@click.option(
    "--text-partitions",
    help="as-is: allow partition texts that readers may parse as numbers, dates or booleans.",
)
@click.option("--no-resume", is_flag=True, help="Refuse a target that holds some of the offsets.")
@click.option("--verify", is_flag=True, help="First compare the table with its records.")
@click.option("--follow", is_flag=True, help="Continue with new records until SIGTERM or Ctrl-C.")
@click.option("--interval", help="With --follow: time between rounds, such as 60s, 15m, 1h.")
@click.option("--round-bytes", type=int, help="With --follow: original bytes per round, about.")
@click.option(
    "--end-offsets", is_flag=True, help="Only print where TARGET ends, as startingOffsets."
)
@click.option("--catalog", multiple=True, metavar="NAME=VALUE", help="Properties of PyIceberg.")
@click.option("--workers", type=click.IntRange(min=1), help="Processes. Default: number of cores.")
@click.option("--spark", "with_spark", is_flag=True, help="Run the tasks in a Spark session.")
@click.option("--clean", is_flag=True, help="Only remove files of failed attempts in the target.")
@click.option(
    "--older-than-hours",
    type=float,
    help="Minimum age of files for --clean, by default a week. Younger ones may be in use.",
)
@click.option("--dry-run", is_flag=True, help="With --clean: only list the files.")
@click.option(
    "--dead-letters",
    metavar="FOLDER",
    help="Write rows that cannot be decoded here. --clean also cleans it.",
)
@click.option("--png", metavar="FILE", help="Save the report as a picture. Needs matplotlib.")
@json_flag
@scan_options(by_option_only=("catalog",))
def export(
    options: dict[str, str],
    *,
    locations: tuple[str, ...],
    no_resume: bool,
    catalog: tuple[str, ...],
    clean: bool,
    end_offsets: bool,
    older_than_hours: float | None,
    dry_run: bool,
    workers: int | None,
    with_spark: bool,
    png: str | None,
    as_json: bool,
    **settings: Any,  # noqa: ANN401  # `ExportArguments`
) -> None:
    """Write the selected topics to TARGET, each offset once. Run it again to continue."""
    from kts_source.export.settings import export_settings  # other commands do not need it

    *tier, target = locations
    if len(tier) > 2:
        raise click.UsageError(f"at most PATH, TOPIC and TARGET, not {len(locations)} arguments")
    add_location(options, *tier)
    if png is not None:
        require("matplotlib", "plot", "--png")  # fail before the work, not after it
        local_file(png)
    named = {name: value for name, value in settings.items() if value not in (None, ())}
    if catalog:
        named["catalog"] = dict(pair.partition("=")[::2] for pair in catalog)
    named["resume"] = not no_resume
    checked = export_settings(target, source=options, **named)
    if clean:
        _clean(checked, older_than_hours, dry_run=dry_run)
    elif end_offsets:
        from kts_source.export.end_offsets import end_offsets as offsets_of_table

        click.echo(offsets_of_table(source=options, target=target, **named))
    else:
        _run(options, checked, workers, with_spark=with_spark, png=png, as_json=as_json)


def _clean(settings: ExportSettings, older_than_hours: float | None, *, dry_run: bool) -> None:
    from kts_source.export.run import DEFAULT_CLEAN_HOURS, clean

    hours = DEFAULT_CLEAN_HOURS if older_than_hours is None else older_than_hours
    orphans = clean(settings, older_than_hours=hours, remove=not dry_run)
    print_json(sorted(orphan.key for orphan in orphans))


def _run(
    options: dict[str, str],
    settings: ExportSettings,
    workers: int | None,
    *,
    with_spark: bool,
    png: str | None,
    as_json: bool,
) -> None:
    from kts_source.export.follow import follow
    from kts_source.export.progress import NO_PROGRESS, default_progress
    from kts_source.export.run import export as run_export
    from kts_source.export.task_writer import ExportExecutor, LocalExecutor

    follows = settings.following is not None
    progress = NO_PROGRESS if follows else default_progress()
    executor: ExportExecutor = LocalExecutor(workers)
    if with_spark:
        require("pyspark", "spark", "--spark")
        from kts_source.spark.backfill import SparkExecutor
        from kts_source.spark.datasource import session_builder

        executor = SparkExecutor(session_builder().getOrCreate(), progress)
    if follows:
        report = follow(options, settings, executor, on_round=lambda m: click.echo(m.to_json()))
    else:
        report = run_export(options, settings, executor, progress=progress)
    if png is not None:
        report.save_png(png)
    if follows:  # standard output has only a line of JSON per round
        click.echo(str(report), err=True)
    elif as_json:
        print_json(report.to_dict())
    else:
        click.echo(str(report))
