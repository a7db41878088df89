"""Runs a Spark driver that a test kills: `python -m tests.kts_source.export.spark_child FOLDER
FORMAT`.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from kts_source.spark.backfill import SparkExecutor
from tests.kts_source.export.exporting import Lake, source

if TYPE_CHECKING:
    import pyarrow as pa


def start_spark(name: str) -> SparkSession:
    """Starts a Spark session in local mode that retries failed tasks, as a cluster does."""
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


@dataclass(frozen=True)
class SleepsOneSecond:
    """A transform that sleeps for a second and returns its rows unchanged. The export then takes
    longer than five seconds, and the test can kill it before its end.

    Attributes:
        fingerprint: Empty, as without a transform.
    """

    fingerprint: str = ""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        time.sleep(1)
        return batch


def main(folder: str, table_format: str) -> None:
    """Runs an export with several commits. Prints `begins` before the export and `done` after
    it.
    """
    lake = Lake(Path(folder), table_format)
    spark = start_spark("to be killed")
    # Starts the Python workers and their imports, so that the export does not wait for them.
    spark.range(2, numPartitions=2).rdd.map(lambda number: number).collect()
    sys.stdout.write("begins\n")
    sys.stdout.flush()
    lake.export(source(), executor=SparkExecutor(spark), transform=SleepsOneSecond())
    sys.stdout.write("done\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
