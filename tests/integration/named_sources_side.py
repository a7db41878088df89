"""A script that runs streaming queries whose sources have names, one after the other, each until
all that is there is written, in the environment of a Spark that has names for sources.

Its one argument is a JSON file:

    jars     list of paths for `spark.jars`
    queries  a folder to name to the format and the options of a source. The query is the union of
             these sources; the folder gets its `checkpoint`, and its rows in `table` as Parquet
    out      folder for what Spark leaves on disk
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
    """Runs the queries."""
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
