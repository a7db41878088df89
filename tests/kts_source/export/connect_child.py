"""Runs a backfill through Spark Connect. Its command line arguments are FOLDER and FORMAT."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.kts_source.export.exporting import Lake, source


def main(folder: str, table_format: str) -> None:
    """Runs the same backfill twice, with a Spark Connect server in local mode. Prints the number of
    written rows after each run.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from kts_source import backfill

    lake = Lake(Path(folder), table_format)
    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    try:
        for _ in range(2):
            report = backfill(
                spark,
                source=source(),
                target=lake.target,
                table_format=table_format,
                progress=False,
                commit_bytes=250_000,
            )
            sys.stdout.write(f"{type(spark).__module__} {report.rows}\n")
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
