"""Compares both writers of `backfill` for each table format: a path against a catalog name.

    .venv-spark40/bin/python -m benchmarks.named_tables [MIB]

Spark needs releases of Delta and Iceberg for its version, so this part is not in
`python -m benchmarks`. It exports `MIB` MiB of records (default 128) with all contestants in turns,
and prints the median times and ratios of the turns after the first.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.sparks import start_spark
from benchmarks.tiers import TierShape, make_tier
from kts_source import backfill
from tests.integration.kafka_jars import spark_lake_jars

TURNS: Final = 4
_LAKE: Final = "spark.sql.catalog.lake"


def main(mib: int) -> None:
    """Runs all contestants in turns and prints their times."""
    folder = Path(tempfile.mkdtemp(prefix="kts-named-"))
    jars = ",".join(str(path) for path in spark_lake_jars())
    settings = {
        "spark.jars": jars,
        "spark.sql.warehouse.dir": str(folder),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        _LAKE: "org.apache.iceberg.spark.SparkCatalog",
        f"{_LAKE}.type": "hadoop",
        f"{_LAKE}.warehouse": str(folder / "lake"),
    }
    spark = start_spark(settings=settings)
    spark.sql("create database shop")
    spark.sql("create database lake.shop")
    sql: dict[str, Any] = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}
    sql["warehouse"] = folder.as_uri()
    delta, iceberg = {"table_format": "delta"}, {"table_format": "iceberg"}
    contestants: dict[str, tuple[str, dict[str, Any]]] = {
        "Delta by path": (f"{folder}/t{{}}", delta),
        "Delta by name": ("shop.t{}", {**delta, "writer": "spark"}),
        "Iceberg by path": ("shop.t{}", {**iceberg, "catalog": sql}),
        "Iceberg by name": ("lake.shop.t{}", {**iceberg, "writer": "spark"}),
    }
    tier = make_tier(TierShape(1000, mib << 20, payload="json", codec="zstd"))
    options = {**tier.options, "targetPartitionBytes": "32m"}
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(TURNS):
        for name, (target, arguments) in contestants.items():
            started = time.perf_counter()
            target = target.format(turn)
            backfill(spark, source=options, target=target, progress=False, **arguments)
            seconds[name].append(time.perf_counter() - started)
    for kind in ("Delta", "Iceberg"):
        path, named = (seconds[f"{kind} by {way}"][1:] for way in ("path", "name"))
        ratio = statistics.median(b / a for a, b in zip(path, named, strict=True))
        times = f"{statistics.median(path):.1f} s by path, {statistics.median(named):.1f} s by name"
        print(f"{kind}: {times}, ratio {ratio:.2g}")
    spark.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 128)
