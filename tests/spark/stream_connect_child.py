"""Runs a stream in Spark Connect: `python -m tests.spark.stream_connect_child FOLDER OPTIONS`."""

from __future__ import annotations

import json
import os
import sys

from kts_source import register


def main(folder: str, options: str) -> None:
    """Runs the stream twice on a local server. Prints the number of rows in the sink after each
    run.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    try:
        register(spark)
        for _ in range(2):
            frame = spark.readStream.format("tiered-kafka").options(**json.loads(options)).load()
            query = (
                frame.writeStream.format("parquet")
                .option("path", f"{folder}/sink")
                .option("checkpointLocation", f"{folder}/checkpoint")
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            rows = spark.read.parquet(f"{folder}/sink").count()
            sys.stdout.write(f"{type(spark).__module__} {rows}\n")
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
