"""A driver that a test kills: `python -m tests.kts_source.export.spark_child FOLDER FORMAT`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from kts_source.spark.backfill import SparkExecutor
from tests.kts_source.export.exporting import Lake, source


def start_spark(name: str) -> SparkSession:
    """Local mode that tries a failed task again, as a cluster does."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2,4]").appName(name)
    for option, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }.items():
        builder = builder.config(option, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def main(folder: str, table_format: str) -> None:
    """Begins an export of several commits and says so on standard output."""
    lake = Lake(Path(folder), table_format)
    spark = start_spark("to be killed")
    # The Python workers are there and have what they import, so the export takes its usual time.
    spark.range(2, numPartitions=2).rdd.map(lambda number: number).collect()
    sys.stdout.write("begins\n")
    sys.stdout.flush()
    lake.export(source(), executor=SparkExecutor(spark))
    sys.stdout.write("done\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
