"""Stores a set of samples with the present code: `python -m tests.stored.make_samples`.

A set is never written again with later code: it is there to show that later code reads it. A new
set gets a new folder. See README.md for which code wrote which.
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
from tests.stored.stable_store import path_of, register_stable_store, scanned
from tests.stored.topics import write_tier
from tests.stored.typed_samples import (
    KEPT,
    TYPED_TABLE_SAMPLES,
    V2,
    answers,
    write_typed_tier,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.stored.samples import TableSample


class Killed(BaseException):
    """The end of a process."""


def main() -> None:
    """Writes each set that is not there.

    Raises:
        SystemExit: All are there already.
    """
    missing = [(place, make) for place, make in SETS if not place.exists()]
    if not missing:
        raise SystemExit("all sets are there: stored samples are not written again")
    register_stable_store()
    for place, make in missing:
        with tempfile.TemporaryDirectory() as name:
            # Delta notes where a table was made: not in this checkout.
            folder = Path(name)
            make(folder / place.name, folder)
            shutil.copytree(folder / place.name, place)


def make_v1(made: Path, folder: Path) -> None:
    """Caches and metrics."""
    make_scans(made, folder)


def make_v2(made: Path, folder: Path) -> None:
    """The same of typed columns."""
    tier = folder / "tier"
    write_typed_tier(tier, first=True)
    with answers():
        scanned({**KEPT, "path": tier.as_uri(), "cacheDir": str(made / "schemas")})
    shutil.rmtree(made / "schemas" / "v1" / "index")  # of a tier that nobody else has


def make_v3(made: Path, folder: Path) -> None:
    """Tables."""
    make_tables(made / "tables", folder)
    tier = folder / "typed-tier"
    write_typed_tier(tier, first=True)
    make_each(TYPED_TABLE_SAMPLES, made / "tables", tier)


def make_each(samples: Sequence[tuple[str, TableSample]], made: Path, tier: Path) -> None:
    """The tables, each in the folder of its format."""
    for table_format, sample in samples:
        target = made / table_format
        target.mkdir(parents=True, exist_ok=True)
        with contextlib.chdir(target):
            make_table(sample, table_format, tier)


def make_tables(made: Path, folder: Path) -> None:
    """The tables of all formats, after a first export of a part of the tier."""
    tier = folder / "tier"
    write_tier(tier, first=True)
    make_each(TABLE_SAMPLES, made, tier)
    half = made / "half-published"
    half.mkdir()
    with contextlib.chdir(half):
        make_half_published(tier)


def make_table(sample: TableSample, table_format: str, tier: Path) -> None:
    """The first export of one table."""
    # One worker: this process, which needs no start.
    with mock.patch.object(os, "cpu_count", return_value=1):
        arguments = sample.backfill_arguments(table_format)
        report = backfill(None, source=sample.source(tier), **arguments)
    print(f"{table_format} {sample.name}: {report.rows} rows, {report.commits} commits")  # noqa: T201


def make_half_published(tier: Path) -> None:
    """A folder of Parquet files whose run died behind a commit, before a file had its name."""
    link = os.link

    def dying(source: os.PathLike[str], destination: os.PathLike[str]) -> None:
        if Path(destination).suffix == ".parquet":
            raise Killed
        link(source, destination)

    with mock.patch.object(os, "link", dying), contextlib.suppress(Killed):
        make_table(TABLES[0], "parquet", tier)


def make_scans(made: Path, folder: Path) -> None:
    """Caches and metrics."""
    for sample in CACHES:
        options = {**sample.source(path_of(sample, folder)), **CACHE_FOREVER}
        for metrics in ("first", "second"):
            lines = folder / f"{sample.name}-{metrics}"
            cache = str(made / "caches" / sample.name)
            scanned({**options, "cacheDir": cache, "metricsPath": str(lines)})
            total = summary(str(lines)).total
            print(f"{sample.name}, {metrics} read: {total['cache_hits']} found")  # noqa: T201
    options = METRICS.source(path_of(METRICS, folder))
    scanned({**options, "cache": "false", "metricsPath": str(made / "metrics")})


SETS = ((V1, make_v1), (V2, make_v2), (V3, make_v3))


if __name__ == "__main__":
    main()
