"""Runs a streaming query that a test kills:
`python -m tests.spark.stream_child CHECKPOINT SINK OPTIONS parquet|delta|delta-spark once|on`.

`parquet` uses Spark's own sink, which records the written batches. `delta` writes a Delta table
with `deltalake` in `foreachBatch`; each commit contains the number of its batch. `delta-spark`
writes a Delta table with Spark and the jars in `JARS`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from kts_source import register, run_available_now

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

APPLICATION = "the stream"
JARS = "KTS_STREAM_JARS"
"""Environment variable with Delta's jars for this Spark, separated by commas."""


def delta_writer(table: str) -> Callable[[DataFrame, int], None]:
    """Returns a function that appends a batch to a Delta table unless the table already contains
    the batch.
    """

    def write(batch: DataFrame, number: int) -> None:
        from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

        if DeltaTable.is_deltatable(table):
            done = DeltaTable(table).transaction_version(APPLICATION)
            if done is not None and done >= number:
                return
        written = CommitProperties(app_transactions=[Transaction(APPLICATION, number)])
        write_deltalake(table, batch.toArrow(), mode="append", commit_properties=written)

    return write


def delta_writer_of_spark(table: str) -> Callable[[DataFrame, int], None]:
    """Returns a function that appends a batch with Delta's Spark writer, which skips batches that
    the table already contains.
    """

    def write(batch: DataFrame, number: int) -> None:
        transaction = {"txnAppId": APPLICATION, "txnVersion": str(number)}
        batch.write.format("delta").options(**transaction).mode("append").save(table)

    return write


def main(checkpoint: str, sink: str, options: str, kind: str, mode: str) -> None:
    """Writes all available rows and prints "done". With mode `on`, keeps waiting for new rows until
    the process is killed.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("to be killed")
    jars = os.environ.get(JARS)
    delta = {
        "spark.jars": jars,
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    for name, value in {
        **(delta if jars else {}),
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)

    def writer(frame: DataFrame) -> Any:  # noqa: ANN401 - Spark Connect has another class
        stream = frame.writeStream.option("checkpointLocation", checkpoint)
        if kind == "delta":
            return stream.foreachBatch(delta_writer(sink))
        if kind == "delta-spark":
            return stream.foreachBatch(delta_writer_of_spark(sink))
        return stream.format("parquet").option("path", sink)

    if mode == "on":
        reader = spark.readStream.format("tiered-kafka").options(**json.loads(options))
        writer(reader.load()).trigger(processingTime="1 second").start().awaitTermination()
    run_available_now(spark, json.loads(options), writer)
    sys.stdout.write("done\n")
    sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
