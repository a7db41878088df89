"""`kts export`: an export on this machine, or through Spark."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import click

from kts_source.cli.commands import print_json
from kts_source.export.executor import LocalExecutor
from kts_source.export.progress import default_progress
from kts_source.export.run import export as run_export
from kts_source.export.settings import export_settings
from kts_source.export.table import open_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.export.settings import ExportSettings

_DAY_SECONDS: Final = 86_400


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
) -> None:
    """Runs an export on this machine, or through Spark, and prints its report."""
    named = {name: value for name, value in settings.items() if value not in (None, ())}
    named["resume"] = not named.pop("no_resume")
    if "catalog" in named:
        named["catalog"] = dict(pair.partition("=")[::2] for pair in named["catalog"])
    if with_spark:
        from pyspark.sql import SparkSession

        from kts_source.spark.backfill import backfill

        session = SparkSession.builder.getOrCreate()
        report = backfill(session, source=options, target=target, **named)
    else:
        checked = export_settings(target, source=options, **named)
        if clean:
            _clean(checked)
            return
        report = run_export(options, checked, LocalExecutor(workers), progress=default_progress())
    if png is not None:
        report.save_png(png)
    if as_json:
        print_json(report.to_dict())
    else:
        click.echo(str(report))


def _clean(settings: ExportSettings) -> None:
    """Removes and lists what attempts that died at least a day ago left behind."""
    with closing(open_table(settings)) as table:
        orphans = list(table.orphans(int((time.time() - _DAY_SECONDS) * 1000)))
        table.remove(orphans)
    print_json(sorted(orphan.key for orphan in orphans))
