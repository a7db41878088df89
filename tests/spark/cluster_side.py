"""Reads topics on a cluster that loses and gains executors, and writes the rows as Parquet.

Arguments: the cluster's URL, an output folder, and a JSON object that maps topics to data source
options. Runs in a separate process, because a process can have only one Spark session.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql import SparkSession

from kts_source import register

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "1",
    "spark.dynamicAllocation.maxExecutors": "3",
    "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
    "spark.dynamicAllocation.executorIdleTimeout": "2s",
    "spark.dynamicAllocation.shuffleTracking.timeout": "2s",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "500ms",
}
# Numbers of tasks. The killed one starts when its executor has shuffle files of other tasks.
SLOW, KILLED = 5, 40
PATIENCE_SECONDS = 100.0


def disturb(folder: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a function that passes batches through and disturbs two tasks, each once.

    One waits until its speculative copy has finished, the other kills its executor. Every task
    creates a file named `<task>-<process id of the executor>` below `folder`.
    """

    def parent(process: int) -> int:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])

    def is_first(event: str) -> bool:
        try:
            (folder / event).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        task = context.partitionId()
        executor = parent(os.getppid())  # The parent of this process is Spark's Python daemon.
        (folder / f"{task}-{executor}").touch()
        slow = False
        for batch in batches:
            if task == KILLED and is_first("killed"):
                (folder / "killed").write_text(str(executor))
                os.kill(executor, signal.SIGKILL)
                time.sleep(PATIENCE_SECONDS)
            if task == SLOW and is_first("slow"):
                slow = True
                deadline = time.monotonic() + PATIENCE_SECONDS
                while not (folder / "copied").exists():
                    if time.monotonic() > deadline:
                        (folder / "no copy").touch()
                        break
                    time.sleep(0.1)
            yield batch
        if task == SLOW and not slow:
            (folder / "copied").touch()

    return run


def wait_for_idle_cluster(spark: SparkSession) -> None:
    """Waits until dynamic allocation has removed all executors but one."""
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    deadline = time.monotonic() + PATIENCE_SECONDS
    # The list includes the driver.
    while (executors := len(tracker.getExecutorInfos()) - 1) > 1:
        assert time.monotonic() < deadline, f"{executors} executors remain"
        time.sleep(0.2)


def main(master: str, output: str, reads: dict[str, dict[str, str]]) -> None:
    """Reads every topic into a folder of its name below `output`; disturbs the first read."""
    builder = SparkSession.builder.master(master).appName("tiered-kafka on a cluster")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    folder = Path(output)
    tasks = folder / "tasks"
    tasks.mkdir()
    for number, (topic, options) in enumerate(reads.items()):
        frame = spark.read.format("tiered-kafka").options(**options).load()
        if number == 0:
            frame = frame.mapInArrow(disturb(tasks), frame.schema).repartition(3, "offset")
        frame.write.parquet(str(folder / topic))
        if number == 0:
            wait_for_idle_cluster(spark)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
