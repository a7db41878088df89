"""`kts export`: an export on this machine, or through Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kts_source.cli.commands import print_json
from kts_source.export.executor import LocalExecutor
from kts_source.export.extras import require
from kts_source.export.progress import default_progress
from kts_source.export.run import DEFAULT_CLEAN_HOURS
from kts_source.export.run import clean as run_clean
from kts_source.export.run import export as run_export
from kts_source.export.settings import export_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.export.settings import ExportSettings


def export(
    options: Mapping[str, str],
    target: str,
    settings: Mapping[str, Any],
    *,
    workers: int | None,
    with_spark: bool,
    clean: bool,
    as_json: bool,
    png: str | None,
    older_than_hours: float | None,
    dry_run: bool,
) -> None:
    """Runs an export on this machine, or through Spark, and prints its report.

    Raises:
        InvalidOptionError: Options that do not fit, or a library for them that is not installed.
    """
    if png is not None:
        require("matplotlib", "plot", "--png")  # now, not once the work is done
    named = {name: value for name, value in settings.items() if value not in (None, ())}
    named["resume"] = not named.pop("no_resume")
    if "catalog" in named:
        named["catalog"] = dict(pair.partition("=")[::2] for pair in named["catalog"])
    if with_spark and not clean:
        require("pyspark", "spark", "--spark")
        from kts_source.spark.backfill import backfill
        from kts_source.spark.session import session_builder

        session = session_builder().getOrCreate()
        report = backfill(session, source=options, target=target, **named)
    else:
        checked = export_settings(target, source=options, **named)
        if clean:
            _clean(
                checked,
                DEFAULT_CLEAN_HOURS if older_than_hours is None else older_than_hours,
                remove=not dry_run,
            )
            return
        report = run_export(options, checked, LocalExecutor(workers), progress=default_progress())
    if png is not None:
        report.save_png(png)
    if as_json:
        print_json(report.to_dict())
    else:
        click.echo(str(report))


def _clean(settings: ExportSettings, hours: float, *, remove: bool) -> None:
    """Lists what attempts that died so long ago left behind, and removes it unless told not to."""
    found = run_clean(settings, older_than_hours=hours, remove=remove)
    print_json(sorted(orphan.key for orphan in found))
