"""Reads golden topics on a cluster of two workers and writes the rows as Parquet.

Arguments: an output folder, and a JSON object of topic to data source options. Runs in a separate
process, because a process can have only one Spark.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from kts_source import register

MASTER = "local-cluster[2,1,1024]"


def main(folder: str, reads: dict[str, dict[str, str]]) -> None:
    """Reads every topic into `folder`. Also writes the number of executors to `folder`."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    }
    builder = SparkSession.builder.master(MASTER).appName("tiered-kafka on a cluster")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    for topic, options in reads.items():
        frame = spark.read.format("tiered-kafka").options(**options).load()
        frame.write.parquet(str(Path(folder) / topic))
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    # The list includes the driver.
    executors = len(tracker.getExecutorInfos()) - 1
    (Path(folder) / "executors.json").write_text(json.dumps(executors))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
