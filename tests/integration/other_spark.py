"""Starts Spark for scripts that run in separate environments. Imports only pyspark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def other_spark(
    out: Path, *, jars: Sequence[str], cores: int, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Starts a local Spark session without log output, with `cores` concurrent tasks. It stores
    timestamps in Parquet files in microseconds. `out` gets Spark's own files.
    """
    all_settings = {
        "spark.jars": ",".join(jars),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(out / "local"),
        "spark.sql.warehouse.dir": str(out / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        **(settings or {}),
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName("what others read")
    for key, value in all_settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session
