"""A streaming query that a test kills:
`python -m tests.spark.stream_child CHECKPOINT SINK OPTIONS parquet|delta once|on`.

The sink gets the rows: Parquet files by Spark's own sink, which remembers batches, or a Delta table
by `foreachBatch`, where each commit says which batch it is of.
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


def into_delta(table: str) -> Callable[[DataFrame, int], None]:
    """What writes a batch, unless the table has it."""

    def write(batch: DataFrame, number: int) -> None:
        from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

        if DeltaTable.is_deltatable(table):
            done = DeltaTable(table).transaction_version(APPLICATION)
            if done is not None and done >= number:
                return
        written = CommitProperties(app_transactions=[Transaction(APPLICATION, number)])
        write_deltalake(table, batch.toArrow(), mode="append", commit_properties=written)

    return write


def main(checkpoint: str, sink: str, options: str, kind: str, how_long: str) -> None:
    """Runs until all that is there is written, and says so on standard output; or on and on."""
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

    def writer(frame: DataFrame) -> Any:  # noqa: ANN401 - Spark Connect has another class for it
        stream = frame.writeStream.option("checkpointLocation", checkpoint)
        if kind == "delta":
            return stream.foreachBatch(into_delta(sink))
        return stream.format("parquet").option("path", sink)

    if how_long == "on":
        reader = spark.readStream.format("tiered-kafka").options(**json.loads(options))
        writer(reader.load()).trigger(processingTime="1 second").start().awaitTermination()
    run_available_now(spark, json.loads(options), writer)
    sys.stdout.write("done\n")
    sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
