"""Runs streaming queries with named sources, one after the other, until all rows are written.

This script runs in a separate environment with a Spark version that supports named sources. Its
only argument is a JSON file:

    jars     list of paths for `spark.jars`
    queries  maps the folder of each query to its sources. The sources of a query are a map from
             name to a pair of format and options
    out      folder for Spark's own files

A query reads the union of its sources. It writes the rows as Parquet files to the subfolder `table`
of its folder; its checkpoint is the subfolder `checkpoint`.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from tests.integration.other_spark import other_spark

if TYPE_CHECKING:
    from collections.abc import Mapping

SETTINGS = {
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    "spark.sql.streaming.offsetLog.formatVersion": "2",
}


def main(spec: Mapping[str, Any]) -> None:
    spark = other_spark(Path(spec["out"]), jars=spec["jars"], cores=2, settings=SETTINGS)
    for folder, sources in spec["queries"].items():
        frames = [
            spark.readStream.format(source).name(name).options(**options).load()
            for name, (source, options) in sources.items()
        ]
        writer = functools.reduce(DataFrame.union, frames).writeStream.format("parquet")
        writer.option("path", f"{folder}/table")
        writer.option("checkpointLocation", f"{folder}/checkpoint")
        writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
