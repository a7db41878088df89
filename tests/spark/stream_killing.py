"""Kills and restarts streaming queries, and runs them to their end."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tests.golden_data import ISOLATION_LEVELS, SPARK_SCHEMA
from tests.integration.kafka_jars import SPARK_DELTA, spark_delta_jars
from tests.integration.spark_kafka import spark_python
from tests.spark.stream_child import JARS

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator, Mapping

    from tests.golden_data import IsolationLevel

ROOT: Final = Path(__file__).resolve().parents[2]
HAS_PROC: Final = Path("/proc/self/task").exists()
SINKS: Final = ("parquet", "delta")
SPARKS_DELTA: Final = "delta-spark"
"""Name of the sink for which Spark itself writes a Delta table. It exists only if Delta has a
release for this Spark version.
"""
VICTIMS: Final = ("all", "driver", "java", "runner", "worker")
"""Kinds of processes to kill: all processes; the driver's Python; its JVM; the process that plans;
a process that reads.
"""
START_TIMEOUT_SECONDS: Final = 240
"""Timeout until a query has started, also on a busy machine."""
OLDEST: Final = "4.0"
NEWEST: Final = ".".join(version("pyspark").split(".")[:2])
_RUNNER: Final = "python_streaming_source_runner"


class Case(NamedTuple):
    """Describes a query that the tests kill.

    Attributes:
        spark: Spark version.
        isolation_level: Isolation level of the stream.
        sink: `parquet`, `delta` (written with `deltalake`), or `SPARKS_DELTA` (written with Spark).
    """

    spark: str
    isolation_level: IsolationLevel
    sink: str

    @property
    def has_slow_batches(self) -> bool:
        """Returns whether small batches take over a second (Spark < 4.2, or Delta in Spark)."""
        return self.spark in ("4.0", "4.1") or self.sink == SPARKS_DELTA

    def __str__(self) -> str:
        return f"Spark {self.spark}, {self.isolation_level}, {self.sink}"


def interpreters() -> dict[str, Path]:
    """Returns a Python interpreter for each installed Spark version, by Spark version."""
    pythons = {NEWEST: Path(sys.executable), OLDEST: spark_python()}
    for release in ("4.1", "4.2"):
        python = ROOT / f".venv-spark{release.replace('.', '')}" / "bin" / "python"
        if python.exists():
            pythons.setdefault(release, python)
    return dict(sorted(pythons.items()))


def cases() -> list[Case]:
    """Returns all cases that can run on this machine."""
    return [
        Case(spark, level, sink)
        for spark, level in itertools.product(interpreters(), ISOLATION_LEVELS)
        for sink in (*SINKS, SPARKS_DELTA)
        if sink != SPARKS_DELTA or (spark in SPARK_DELTA and shutil.which("mvn"))
    ]


class Query:
    """Runs a streaming query over all tiered rows in separate processes.

    Args:
        case: Spark version, isolation level and sink.
        folder: Folder for checkpoint and sink.
        options: Additional options of the stream.
    """

    def __init__(self, case: Case, folder: Path, options: Mapping[str, str]) -> None:
        all_options = json.dumps({**options, "isolationLevel": case.isolation_level})
        self._command = [
            *(str(interpreters()[case.spark]), "-m", "tests.spark.stream_child"),
            *(str(folder / "checkpoint"), str(folder / "sink"), all_options, case.sink),
        ]
        self.folder = folder
        self._sink = case.sink
        self._jars: tuple[Path, ...] = ()
        if case.sink == SPARKS_DELTA:
            self._jars = spark_delta_jars(case.spark)
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def log(self) -> Path:
        """Returns the path of the file that contains the standard error of all drivers."""
        return self.folder / "driver.log"

    @property
    def batches(self) -> int:
        """Returns the number of the last batch that was started, or -1 if no batch was started."""
        names = (path.name for path in (self.folder / "checkpoint" / "offsets").glob("*"))
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def start(self, *, is_endless: bool = False) -> subprocess.Popen[str]:
        """Starts the query and returns its driver process. If `is_endless` is true, the query runs
        until it is killed; if false, it ends when all rows are written.
        """
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*self._command, "on" if is_endless else "once"],
                cwd=ROOT,
                env={**os.environ, JARS: ",".join(map(str, self._jars))},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def kill_after_file(self, name: str) -> None:
        """Runs the query and kills it when the file `name` appears in its folder."""
        driver = self.start()
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not (self.folder / name).exists():
            assert time.monotonic() < deadline
            assert driver.poll() is None, name
            time.sleep(0.005)
        kill(driver)

    def kill_at_random_time(self, source: random.Random) -> str:
        """Runs the query and kills it at a random time after the start of its first batch. Returns
        the result of `kill` and the number of the last started batch, as text.
        """
        driver = self.start()
        before = self.batches
        wait = source.random() * 4
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while self.batches == before and driver.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.wait(wait)
        return f"{self.kill(driver, source)} after batch {self.batches}"

    def kill(self, driver: subprocess.Popen[str], source: random.Random) -> str:
        """Kills a random process of the query, and then its other processes. Returns the kind of
        the first killed process, or "it had ended" if the query was not running.
        """
        victim = source.choice(VICTIMS)
        if driver.poll() is not None:
            driver.communicate()
            return "it had ended"
        pids = list(processes(driver.pid))
        if victim != "all":
            chosen = [pid for pid in pids if _kind(pid, driver) == victim]
            if not chosen:  # workers end when they are idle
                victim, chosen = "driver", [driver.pid]
            _kill(source.choice(chosen))
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline and any(map(_is_query_process, pids)):
                driver.poll()
                time.sleep(0.05)
        kill(driver, pids)
        return victim

    def run_to_end(self) -> None:
        """Runs the query until all rows are written."""
        driver = self.start()
        output = driver.communicate(timeout=240)[0]
        assert output == "done\n", self.log.read_text(errors="replace")[-4000:]

    def written(self) -> pa.Table:
        """Returns the rows that the sink has committed."""
        if self._sink != "parquet":
            tables = [DeltaTable(self.folder / "sink").to_pyarrow_table()]
        else:
            tables = [pq.read_table(file) for file in sorted(self._files())]
        return pa.concat_tables(
            [table.select(SPARK_SCHEMA.names).cast(SPARK_SCHEMA) for table in tables]
        )

    def _files(self) -> set[str]:
        files = set()
        for log in (self.folder / "sink" / "_spark_metadata").iterdir():
            if not log.name.startswith("."):
                lines = log.read_text().splitlines()[1:]
                files |= {json.loads(line)["path"].removeprefix("file://") for line in lines}
        return files


def processes(parent: int) -> Iterator[int]:
    """Yields `parent` and the process ids of all its descendants (the JVM and Python workers)."""
    yield parent
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in task.read_text().split():
                yield from processes(int(child))


def kill(driver: subprocess.Popen[str], others: Iterable[int] = ()) -> None:
    """Kills a driver and all its descendants. `others` are ids of processes that were descendants
    earlier.
    """
    for process in {*processes(driver.pid), *filter(_is_query_process, others)}:
        _kill(process)
    driver.communicate(timeout=30)


def _kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended with its parent
        os.kill(process, signal.SIGKILL)


def _is_query_process(process: int) -> bool:
    """Returns whether the process id still belongs to a query. The system may have assigned the id
    to a new process.
    """
    text = _read(process, "cmdline")
    return "python" in text or "java" in text


def _kind(process: int, driver: subprocess.Popen[str]) -> str:
    if process == driver.pid:
        return "driver"
    if _read(process, "comm").startswith("java"):
        return "java"
    return "runner" if _RUNNER in _read(process, "cmdline") else "worker"


def _read(process: int, name: str) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/{name}").read_text(errors="replace")
    return ""
