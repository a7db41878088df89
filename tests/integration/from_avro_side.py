"""Calls Spark's `from_avro` in a separate environment with the oldest supported Spark.

This script imports nothing of the product. Its only argument is a JSON file:

    jars       list of paths for `spark.jars`
    calls      maps names to `{"schema", "value" (hex), "options"}`
    out        folder for the result

It writes `found.json`, which maps names to `{"type", "value"}` or `{"error"}`. A struct is written
as the list of its values.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import Row, SparkSession

from tests.integration.other_spark import other_spark


def main(spec: dict[str, Any]) -> None:
    out = Path(spec["out"])
    spark = other_spark(out, jars=spec["jars"], cores=1)
    results = {name: _called(spark, call) for name, call in spec["calls"].items()}
    (out / "found.json").write_text(json.dumps(results))
    spark.stop()


def _called(spark: SparkSession, call: dict[str, Any]) -> dict[str, Any]:
    options = "".join(f", '{name}', '{text}'" for name, text in call["options"].items())
    options_map = f"map({options.removeprefix(', ')})"
    query = f"SELECT from_avro(X'{call['value']}', '{call['schema']}', {options_map}) AS v"
    try:
        # Read from `range`, because Spark evaluates constant expressions in the query optimizer.
        frame = spark.sql(f"{query} FROM range(1)")
        (row,) = frame.collect()
    except Exception as error:  # noqa: BLE001  # the test checks the error
        return {"error": f"{type(error).__name__}: {error}"}
    return {"type": frame.schema["v"].dataType.simpleString(), "value": _plain(row["v"])}


def _plain(value: Any) -> Any:  # noqa: ANN401  # of any type
    if isinstance(value, Row):
        return [_plain(field) for field in value]
    return value


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
