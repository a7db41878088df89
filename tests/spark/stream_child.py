"""A streaming query that a test kills: `python -m tests.spark.stream_child FOLDER SINK OPTIONS`.

FOLDER gets its checkpoint, SINK its rows: Parquet, by Spark's own sink, which remembers batches.
"""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import SparkSession

from kts_source import register, run_available_now


def main(checkpoint: str, sink: str, options: str) -> None:
    """Runs until all that is tiered is written, and says so on standard output."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("to be killed")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    run_available_now(
        spark,
        json.loads(options),
        lambda frame: (
            frame.writeStream.format("parquet")
            .option("path", sink)
            .option("checkpointLocation", checkpoint)
        ),
    )
    sys.stdout.write("done\n")
    sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
