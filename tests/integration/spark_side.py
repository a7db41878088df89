"""Runs many reads in one Spark session and writes their results.

Runs in a separate environment, with the oldest supported Spark, which finds the product's data
source automatically. The only argument is a JSON file:

    format     short name of the data source
    jars       list of paths for `spark.jars`
    options    options of every read
    reads      name to options
    streams    name to options, of streaming queries that end at the topic's end at their start
    growing    options of a DataFrame that is read repeatedly while its topic gets records; may be
               empty
    out        folder: `<name>.parquet` with the rows; `outcomes.json` with `null` or an error;
               `counts.json` with the record counts of that DataFrame
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
    """Runs the reads concurrently, because they mostly wait for the broker."""
    out = Path(spec["out"])
    spark = other_spark(out, jars=spec["jars"], cores=THREADS)
    if spec["format"] == "tiered-kafka":
        # Spark silently ignores a source that cannot be imported, so import it here.
        importlib.import_module("kts_source.spark.datasource")
    started = time.monotonic()
    reads = {**spec["reads"], **spec["streams"]}
    # Spark discovers Python data sources at the first use, which is not thread-safe.
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
            raise TimeoutError("the broker did not take the record")
    return counts


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
