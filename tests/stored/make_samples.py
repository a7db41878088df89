"""Writes the missing sets of samples with the current code: `python -m tests.stored.make_samples`.

An existing set is never overwritten: it proves that later code reads what earlier code wrote. A new
set gets a new folder. README.md lists the code that wrote each set.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from kts_source import backfill
from kts_source.metrics import summary
from tests.stored.samples import (
    CACHE_FOREVER,
    CACHES,
    METRICS,
    TABLE_SAMPLES,
    TABLES,
    V1,
    V3,
)
from tests.stored.stable_store import register_stable_store, scan_rows, store_path
from tests.stored.topics import write_tier
from tests.stored.typed_samples import (
    CACHED_SOURCE,
    TYPED_TABLE_SAMPLES,
    V2,
    mock_registry,
    write_typed_tier,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.stored.samples import TableSample


class Killed(BaseException):
    """Raised to end an export as if its process was killed."""


def main() -> None:
    """Writes each missing set.

    Raises:
        SystemExit: All sets exist.
    """
    missing = [(target, make) for target, make in SETS if not target.exists()]
    if not missing:
        raise SystemExit("all sets exist: stored samples are never overwritten")
    register_stable_store()
    for target, make in missing:
        with tempfile.TemporaryDirectory() as name:
            # Delta records the path of the table. It must not contain the path of this checkout.
            folder = Path(name)
            make(folder / target.name, folder)
            shutil.copytree(folder / target.name, target)


def make_v1(target: Path, folder: Path) -> None:
    """Writes set v1: the caches and metrics of scans."""
    make_scans(target, folder)


def make_v2(target: Path, folder: Path) -> None:
    """Writes set v2: a cache of registry schemas."""
    tier = folder / "tier"
    write_typed_tier(tier, first=True)
    with mock_registry():
        scan_rows({**CACHED_SOURCE, "path": tier.as_uri(), "cacheDir": str(target / "schemas")})
    # No test can use the cached indexes: their tier is in a temporary folder.
    shutil.rmtree(target / "schemas" / "v1" / "index")


def make_v3(target: Path, folder: Path) -> None:
    """Writes set v3: tables."""
    make_tables(target / "tables", folder)
    tier = folder / "typed-tier"
    write_typed_tier(tier, first=True)
    make_each(TYPED_TABLE_SAMPLES, target / "tables", tier)


def make_each(samples: Sequence[tuple[str, TableSample]], tables: Path, tier: Path) -> None:
    """Writes each table into the folder of its format."""
    for table_format, sample in samples:
        format_folder = tables / table_format
        format_folder.mkdir(parents=True, exist_ok=True)
        with contextlib.chdir(format_folder):
            make_table(sample, table_format, tier)


def make_tables(tables: Path, folder: Path) -> None:
    """Exports the first segments of the tier to tables of all formats."""
    tier = folder / "tier"
    write_tier(tier, first=True)
    make_each(TABLE_SAMPLES, tables, tier)
    half_published = tables / "half-published"
    half_published.mkdir()
    with contextlib.chdir(half_published):
        make_half_published(tier)


def make_table(sample: TableSample, table_format: str, tier: Path) -> None:
    """Runs the first export of a table."""
    # With one CPU, `backfill` starts no worker processes.
    with mock.patch.object(os, "cpu_count", return_value=1):
        arguments = sample.backfill_arguments(table_format)
        report = backfill(None, source=sample.source(tier), **arguments)
    print(f"{table_format} {sample.name}: {report.rows} rows, {report.commits} commits")  # noqa: T201


def make_half_published(tier: Path) -> None:
    """Writes a part of a Parquet table, and ends like a killed export after the first commit is
    logged. At this point, no file of the commit has its final name.
    """
    link = os.link

    def die_at_first_file(source: os.PathLike[str], destination: os.PathLike[str]) -> None:
        if Path(destination).suffix == ".parquet":
            raise Killed
        link(source, destination)

    with mock.patch.object(os, "link", die_at_first_file), contextlib.suppress(Killed):
        make_table(TABLES[0], "parquet", tier)


def make_scans(target: Path, folder: Path) -> None:
    """Runs the scans of the samples. They fill the caches and write the metrics in `target`."""
    for sample in CACHES:
        options = {**sample.source(store_path(sample, folder)), **CACHE_FOREVER}
        for metrics in ("first", "second"):
            lines = folder / f"{sample.name}-{metrics}"
            cache = str(target / "caches" / sample.name)
            scan_rows({**options, "cacheDir": cache, "metricsPath": str(lines)})
            total = summary(str(lines)).total
            print(f"{sample.name}, {metrics} read: {total['cache_hits']} cache hits")  # noqa: T201
    options = METRICS.source(store_path(METRICS, folder))
    scan_rows({**options, "cache": "false", "metricsPath": str(target / "metrics")})


SETS = ((V1, make_v1), (V2, make_v2), (V3, make_v3))


if __name__ == "__main__":
    main()
