"""Reads a Delta table and an Iceberg table with Spark and the Java readers of these formats.

This script runs in a separate environment with the oldest supported Spark and imports nothing of
the product. Its only argument is a JSON file:

    jars       list of paths for `spark.jars`
    settings   additional Spark settings
    tables     maps "delta" and "iceberg" to the name of the table in Spark SQL
    conditions list of SQL conditions on the Delta table
    queries    optional; maps names to SQL queries
    out        folder for the results

It writes these files to `out`:

    <name>.parquet  rows of a table or a query. The rows of a table have an additional column
                    `_file` with the name of their data file
    pruned.json     a list for each condition: the files of the Delta table that Spark reads for it
    bounds.json     row count and column bounds of each file, from Iceberg's manifests
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.integration.other_spark import other_spark

BOUNDS = """
select file_path as file, record_count as rows,
  readable_metrics.`offset`.lower_bound as first_offset,
  readable_metrics.`offset`.upper_bound as last_offset,
  unix_micros(readable_metrics.timestamp.lower_bound) as first_us,
  unix_micros(readable_metrics.timestamp.upper_bound) as last_us
from {}.files
"""


def main(spec: dict[str, Any]) -> None:
    """Runs all reads that `spec` describes and writes the result files."""
    out = Path(spec["out"])
    spark = other_spark(out, jars=spec["jars"], cores=2, settings=spec["settings"])
    for name, table in spec["tables"].items():
        frame = spark.table(table).selectExpr("*", "input_file_name() as _file")
        frame.write.parquet(str(out / f"{name}.parquet"))
    for name, query in spec.get("queries", {}).items():
        spark.sql(query).write.parquet(str(out / f"{name}.parquet"))
    delta = spark.table(spec["tables"]["delta"])
    pruned = [delta.where(condition).inputFiles() for condition in spec["conditions"]]
    (out / "pruned.json").write_text(json.dumps(pruned))
    bounds = spark.sql(BOUNDS.format(spec["tables"]["iceberg"])).toJSON().collect()
    (out / "bounds.json").write_text(json.dumps([json.loads(str(text)) for text in bounds]))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
