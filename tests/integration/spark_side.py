"""A script that runs many reads in one Spark session and leaves what each of them gave.

It runs in an environment of its own, with the oldest supported Spark; Spark finds our source by
itself. Its one argument is a JSON file:

    format     short name of the data source
    jars       list of paths for `spark.jars`
    options    given to every read
    reads      name to options
    streams    name to options, of queries that end where the topic ended when they began
    growing    options of a DataFrame that is read again and again while its topic gets records;
               empty for none
    out        folder: `<name>.parquet` for what was read; `outcomes.json` with `null` or an error;
               `counts.json` with how many records that DataFrame had
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
    """Runs the reads, some at a time: they wait for the broker more than they work."""
    out = Path(spec["out"])
    spark = other_spark(out, jars=spec["jars"], cores=THREADS)
    if spec["format"] == "tiered-kafka":
        # Spark passes over a source that cannot be imported, without a word.
        importlib.import_module("kts_source.spark.datasource")
    started = time.monotonic()
    reads = {**spec["reads"], **spec["streams"]}
    # Spark looks for Python data sources at the first use of one, and not for several threads.
    with contextlib.suppress(Exception):
        spark.read.format(spec["format"]).load()
    with ThreadPoolExecutor(THREADS) as pool:
        found = pool.map(lambda name: _read(spark, spec, name, out), reads)
        outcomes = dict(zip(reads, found, strict=True))
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
    except Exception as error:  # noqa: BLE001 - whatever Spark raises is the outcome
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
