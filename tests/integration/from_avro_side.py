"""A script that asks Spark's `from_avro`. It runs in an environment of its own, with the oldest
supported Spark, and imports nothing of ours. Its one argument is a JSON file:

    jars       list of paths for `spark.jars`
    calls      name to `{"schema", "value" (hex), "options"}`
    out        folder

It leaves `found.json`: name to `{"type", "value"}`, where a struct is a list, or to `{"error"}`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import Row, SparkSession

from tests.integration.other_spark import other_spark


def main(spec: dict[str, Any]) -> None:
    """Makes each call."""
    out = Path(spec["out"])
    spark = other_spark(out, jars=spec["jars"], cores=1)
    found = {name: _called(spark, call) for name, call in spec["calls"].items()}
    (out / "found.json").write_text(json.dumps(found))
    spark.stop()


def _called(spark: SparkSession, call: dict[str, Any]) -> dict[str, Any]:
    options = "".join(f", '{name}', '{text}'" for name, text in call["options"].items())
    given = f"map({options.removeprefix(', ')})"
    query = f"SELECT from_avro(X'{call['value']}', '{call['schema']}', {given}) AS v"
    try:
        # Of a table, as constants are folded while a query is optimized.
        frame = spark.sql(f"{query} FROM range(1)")
        (row,) = frame.collect()
    except Exception as error:  # noqa: BLE001  # it is what the test looks at
        return {"error": f"{type(error).__name__}: {error}"}
    return {"type": frame.schema["v"].dataType.simpleString(), "value": _plain(row["v"])}


def _plain(value: Any) -> Any:  # noqa: ANN401  # of any type
    if isinstance(value, Row):
        return [_plain(one) for one in value]
    return value


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
