"""Runs many reads in one Spark session and writes their results.

This script runs in a separate environment with the oldest supported Spark, which discovers the
product's data source automatically. Its only argument is a JSON file:

    format     short name of the data source
    jars       list of paths for `spark.jars`
    options    additional options of every read and stream
    reads      maps names to the options of batch reads
    streams    maps names to the options of streaming queries with `Trigger.AvailableNow`
    growing    options of a DataFrame that is read three times while its topic grows; may be empty
    out        folder for the results

It writes `<name>.parquet` with the rows of each read. `outcomes.json` maps names to `null` or an
error message. `counts.json` contains the three row counts of the DataFrame `growing`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from tests.integration.other_spark import other_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession

THREADS = 4


def main(spec: dict[str, Any]) -> None:
    """Runs all reads and streams of `spec` and writes their results. They run concurrently, because
    they spend most of their time waiting for brokers.
    """
    out = Path(spec["out"])
    spark = other_spark(out, jars=spec["jars"], cores=THREADS)
    if spec["format"] == "tiered-kafka":
        # Import the data source here, because Spark silently ignores import errors.
        importlib.import_module("kts_source.spark.datasource")
    started = time.monotonic()
    reads = {**spec["reads"], **spec["streams"]}
    # At first use, Spark discovers Python data sources; this is not thread-safe.
    with contextlib.suppress(Exception):
        spark.read.format(spec["format"]).load()
    with ThreadPoolExecutor(THREADS) as pool:
        errors = pool.map(lambda name: _read(spark, spec, name, out), reads)
        outcomes = dict(zip(reads, errors, strict=True))
    (out / "outcomes.json").write_text(json.dumps(outcomes))
    if spec["growing"]:
        growing = spark.read.format(spec["format"]).options(**spec["growing"])
        (out / "counts.json").write_text(json.dumps(_counts(growing, spec["growing"])))
    seconds = time.monotonic() - started
    sys.stdout.write(f"{len(outcomes)} reads of {spec['format']} in {seconds:.0f} s\n")
    spark.stop()


def _read(spark: SparkSession, spec: dict[str, Any], name: str, out: Path) -> str | None:
    table = str(out / f"{name}.parquet")
    is_stream = name in spec["streams"]
    options = {**spec["options"], **spec["streams" if is_stream else "reads"][name]}
    try:
        if is_stream:
            writer = spark.readStream.format(spec["format"]).options(**options).load().writeStream
            writer.option("checkpointLocation", str(out / f"{name}.checkpoint"))
            writer.trigger(availableNow=True).start(table, format="parquet").awaitTermination()
        else:
            spark.read.format(spec["format"]).options(**options).load().write.parquet(table)
    except Exception as error:  # noqa: BLE001 - any error of Spark is a result
        return f"{type(error).__name__}: {error}"
    return None


def _counts(reader: DataFrameReader, options: dict[str, str]) -> list[int]:
    frame = reader.load()
    counts = []
    producer = Producer({"bootstrap.servers": options["kafka.bootstrap.servers"]})
    for is_collected in (True, True, False):
        counts.append(len(frame.collect()) if is_collected else frame.count())
        producer.produce(options["subscribe"], b"more")
        if producer.flush(30):
            raise TimeoutError("the broker did not acknowledge the record in 30 s")
    return counts


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
