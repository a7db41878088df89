"""Reads tables in a Spark session with the readers of Delta and Iceberg.

Runs in a separate environment, with the oldest supported Spark, and imports nothing of the product.
The only argument is a JSON file:

    jars       list of paths for `spark.jars`
    settings   additional Spark settings
    tables     name to the table's name in Spark SQL
    conditions conditions for which Delta prunes files
    queries    name to SQL; optional
    out        folder

Writes `<name>.parquet` with the rows, for tables also with the file of each row (`_file`),
`pruned.json` with the files of the Delta table that remain for each condition, and `bounds.json`
with the column bounds of each file in Iceberg's manifests.
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
    """Reads both tables and their file metadata."""
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
