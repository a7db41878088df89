"""Runs a Spark driver with speculative execution: `python -m … MASTER FOLDER`.

In each export, the first attempt of one task is very slow, so that Spark starts a second attempt.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from kts_source.spark.backfill import SparkExecutor
from tests.kts_source.export.exporting import FORMATS, Lake, source

if TYPE_CHECKING:
    import pyarrow as pa

SLOW_SECONDS = 60.0
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "1g",
    "spark.executor.cores": "2",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.1",
}


@dataclass(frozen=True)
class SleepsInOneProcess:
    """A transform that returns its rows unchanged, but sleeps for a minute in one process: the
    first process that reads an offset of at least 900 in partition 0.

    Attributes:
        folder: Folder in which each process that reads such an offset creates a file. The name of
            the file is the process id.
        fingerprint: Empty, as without a transform.
    """

    folder: Path
    fingerprint: str = ""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        first = (batch["partition"][0].as_py(), batch["offset"][0].as_py())
        if first[0] == 0 and first[1] >= 900 and not (self.folder / str(os.getpid())).exists():
            try:
                (self.folder / "first").mkdir()
                slow = True
            except FileExistsError:
                slow = False
            (self.folder / str(os.getpid())).touch()
            if slow:
                time.sleep(SLOW_SECONDS)
                (self.folder / "slept").touch()
        return batch


def main(master: str, folder: str) -> None:
    """Runs one export for each table format. Each export has a single commit."""
    builder = SparkSession.builder.master(master).appName("two attempts")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    for table_format in FORMATS:
        lake = Lake(Path(folder) / table_format, table_format)
        met = Path(folder) / f"{table_format}-met"
        lake.folder.mkdir()
        met.mkdir()
        lake.export(
            source(),
            executor=SparkExecutor(spark),
            transform=SleepsInOneProcess(met),
            commit_bytes=1 << 40,
        )
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
