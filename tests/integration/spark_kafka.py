"""Runs scripts with Spark in a separate process and Python environment; returns their results.

The default Spark version is 4.0, the oldest supported one.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tests.golden_data import SPARK_SCHEMA
from tests.integration.kafka_jars import spark_kafka_jars
from tests.servers import build_lock

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("spark_side.py")
RUN_SECONDS = 600


@dataclass(frozen=True)
class Outcome:
    """Result of a read: a table or an error message."""

    table: pa.Table | None
    error: str | None


class Counts(NamedTuple):
    """Numbers of rows that three actions on the same DataFrame returned, one after the other.

    After each action, the script writes another record to the topic of the DataFrame.

    Attributes:
        collected: Number of rows of the first `collect`.
        again: Number of rows of the second `collect`.
        counted: Result of `count`, which Spark plans as a new query.
    """

    collected: int
    again: int
    counted: int


def spark_python(spark: str = "4.0") -> Path:
    """Returns the Python interpreter of the environment with this Spark version. Creates the
    environment if it does not exist.
    """
    release = spark.replace(".", "")
    python = ROOT / f".venv-spark{release}" / "bin" / "python"
    with build_lock(f"spark{release}"):
        if not python.exists():
            subprocess.run([ROOT / ".ci" / "spark_env", release], check=True, timeout=280)
    return python


def run_script(script: Path, spec: Mapping[str, Any], folder: Path, spark: str = "4.0") -> None:
    """Runs a script in the environment with this Spark version.

    `spec` is written to a JSON file in `folder`. The path of this file is the script's only
    argument. `folder` is also the script's current folder and gets its log.

    Raises:
        RuntimeError: The script failed. The message contains the end of its log.
    """
    (folder / "spec.json").write_text(json.dumps(spec))
    python = spark_python(spark)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "PYTHONPATH": str(ROOT),
    }
    environment.pop("SPARK_HOME", None)
    log = folder / "spark.log"
    with log.open("wb") as output:
        run = subprocess.run(
            [python, script, folder / "spec.json"],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=folder,
            timeout=RUN_SECONDS,
            check=False,
        )
    if run.returncode != 0:
        tail = log.read_text(errors="replace")[-4000:]
        raise RuntimeError(f"Spark ended with code {run.returncode}:\n{tail}")


def run_reads(
    source: str,
    reads: Mapping[str, Mapping[str, str]],
    folder: Path,
    options: Mapping[str, str],
    growing: Mapping[str, str] = MappingProxyType({}),
    streams: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> dict[str, Outcome]:
    """Runs batch reads and streams in one Spark session and returns their outcomes by name.

    Args:
        source: `kafka` for Spark's Kafka source, `tiered-kafka` for this product.
        reads: Options of each batch read, by name.
        folder: Folder for the results, empty or missing.
        options: Additional options of every read and stream.
        growing: Options of a DataFrame whose rows are counted while its topic grows; empty for
            none. `read_counts` returns the counts.
        streams: Options of each streaming query, by name. Queries use `Trigger.AvailableNow`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    jars = [str(path) for path in spark_kafka_jars()] if source == "kafka" else []
    spec = {
        "format": source,
        "jars": jars,
        "options": dict(options),
        "reads": {name: dict(read_options) for name, read_options in reads.items()},
        "growing": dict(growing),
        "streams": {name: dict(read_options) for name, read_options in streams.items()},
        "out": str(folder),
    }
    run_script(SCRIPT, spec, folder)
    outcomes = json.loads((folder / "outcomes.json").read_text())
    return {
        name: Outcome(_table(folder / f"{name}.parquet") if error is None else None, error)
        for name, error in outcomes.items()
    }


def read_counts(folder: Path) -> Counts:
    """Returns the counts for `growing` that an earlier `run_reads` wrote to `folder`."""
    return Counts(*json.loads((folder / "counts.json").read_text()))


def _table(folder: Path) -> pa.Table:
    """Reads Parquet files that Spark wrote; casts columns to the types of `SPARK_SCHEMA`."""
    table = pq.read_table(folder)
    fields = [SPARK_SCHEMA.field(name) for name in table.column_names]
    return table.cast(pa.schema(fields))
