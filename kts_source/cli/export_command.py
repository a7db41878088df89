"""`kts export`: an export on this machine, or through Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kts_source.cli.output import print_json
from kts_source.cli.scan_options import add_places, json_flag, scan_options
from kts_source.store.open_store import local_file

if TYPE_CHECKING:
    from kts_source.export.task_writer import ExportExecutor


@click.command()
@click.argument("given", nargs=-1, required=True, metavar="[PATH [TOPIC]] TARGET")
@click.option("--table-format", help="parquet, delta or iceberg.")
@click.option("--partition-by", multiple=True, help="Column, field or date(column). Repeatable.")
@click.option("--sort-within-files", multiple=True, help="Column or field. Repeatable.")
@click.option("--target-file-bytes", type=int, help="Close a file once it has as many bytes.")
@click.option("--row-group-rows", type=int, help="Rows of a row group, at most.")
@click.option("--compression", help="Codec of the Parquet pages.")
@click.option("--commit-bytes", type=int, help="Original bytes per commit, at least.")
@click.option("--compact", is_flag=True, help="Keep the latest record of every key only.")
@click.option("--tombstones", help="With --compact: keep, remove or remove-old.")
@click.option("--delete-retention-ms", type=int, help="What remove-old takes for old.")
@click.option("--export-id", help="Tells exports into the same table apart.")
@click.option("--schema-evolution", help="add: the table gets the fields that values have gained.")
@click.option(
    "--text-partitions",
    help="as-is: folders of texts that readers may take for numbers, dates or booleans.",
)
@click.option("--no-resume", is_flag=True, help="Refuse a target that holds some of the offsets.")
@click.option("--verify", is_flag=True, help="First compare the table with its records.")
@click.option("--follow", is_flag=True, help="Go on with what is new until SIGTERM or Ctrl-C.")
@click.option("--interval", help="With --follow: between two rounds; 60s, 15m, 1h.")
@click.option("--round-bytes", type=int, help="With --follow: original bytes of a round, about.")
@click.option(
    "--end-offsets", is_flag=True, help="Only print where TARGET ends, as startingOffsets."
)
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
@click.option(
    "--dead-letters",
    metavar="FOLDER",
    help="Takes rows that cannot be decoded; --clean looks there.",
)
@click.option("--png", metavar="FILE", help="The report as a picture; needs matplotlib.")
@json_flag
@scan_options(by_option_only=("catalog",))
def export(
    options: dict[str, str],
    *,
    given: tuple[str, ...],
    no_resume: bool,
    catalog: tuple[str, ...],
    workers: int | None,
    with_spark: bool,
    clean: bool,
    end_offsets: bool,
    older_than_hours: float | None,
    dry_run: bool,
    png: str | None,
    as_json: bool,
    **settings: Any,  # noqa: ANN401  # `ExportArguments`
) -> None:
    """Writes the selected topics to TARGET, each offset once; run again to go on."""
    # Here, because other commands need none of it.
    from kts_source.export.end_offsets import end_offsets as ends_of_table
    from kts_source.export.follow import follow as run_follow
    from kts_source.export.progress import NO_PROGRESS, default_progress
    from kts_source.export.run import DEFAULT_CLEAN_HOURS
    from kts_source.export.run import clean as clean_target
    from kts_source.export.run import export as run_export
    from kts_source.export.settings import export_settings
    from kts_source.export.task_writer import LocalExecutor
    from kts_source.libraries import require

    *tier, target = given
    if len(tier) > 2:
        raise click.UsageError(f"at most PATH, TOPIC and TARGET, not {len(given)} arguments")
    add_places(options, *tier)
    if png is not None:
        require("matplotlib", "plot", "--png")  # now, not once the work is done
        local_file(png)
    named = {name: value for name, value in settings.items() if value not in (None, ())}
    if catalog:
        named["catalog"] = dict(pair.partition("=")[::2] for pair in catalog)
    named["resume"] = not no_resume
    checked = export_settings(target, source=options, **named)
    if clean:
        hours = DEFAULT_CLEAN_HOURS if older_than_hours is None else older_than_hours
        found = clean_target(checked, older_than_hours=hours, remove=not dry_run)
        print_json(sorted(orphan.key for orphan in found))
        return
    if end_offsets:
        click.echo(ends_of_table(source=options, target=target, **named))
        return
    follows = checked.following is not None
    shown = NO_PROGRESS if follows else default_progress()
    executor: ExportExecutor = LocalExecutor(workers)
    if with_spark:
        require("pyspark", "spark", "--spark")
        from kts_source.spark.backfill import SparkExecutor
        from kts_source.spark.datasource import session_builder

        executor = SparkExecutor(session_builder().getOrCreate(), shown)
    if follows:
        report = run_follow(
            options, checked, executor, on_round=lambda metrics: click.echo(metrics.to_json())
        )
    else:
        report = run_export(options, checked, executor, progress=shown)
    if png is not None:
        report.save_png(png)
    if follows:  # standard output has a line of JSON a round, and nothing else
        click.echo(str(report), err=True)
    elif as_json:
        print_json(report.to_dict())
    else:
        click.echo(str(report))
