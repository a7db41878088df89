"""Streaming queries that are killed, begun again, and run to their end."""

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
"""A Delta table by Spark itself, where there is a release for it."""
VICTIMS: Final = ("all", "driver", "java", "runner", "worker")
"""All of its processes; the driver's Python; its JVM; the process that plans; one that reads."""
BEGINS_SECONDS: Final = 240
"""A query begins within, also where others have the machine."""
OLDEST: Final = "4.0"
NEWEST: Final = ".".join(version("pyspark").split(".")[:2])
_RUNNER: Final = "python_streaming_source_runner"


class Case(NamedTuple):
    """A kind of query.

    Attributes:
        spark: Its release.
        sink: `parquet`, `delta` by `deltalake`, or `SPARKS_DELTA`.
    """

    spark: str
    isolation_level: IsolationLevel
    sink: str

    @property
    def has_slow_batches(self) -> bool:
        """Whether a batch of few rows takes a second and more, as before Spark 4.2 and in Delta."""
        return self.spark in ("4.0", "4.1") or self.sink == SPARKS_DELTA

    def __str__(self) -> str:
        return f"Spark {self.spark}, {self.isolation_level}, {self.sink}"


def interpreters() -> dict[str, Path]:
    """Interpreters by their Spark: the oldest and the newest, and those between that are there."""
    found = {NEWEST: Path(sys.executable), OLDEST: spark_python()}
    for release in ("4.1", "4.2"):
        python = ROOT / f".venv-spark{release.replace('.', '')}" / "bin" / "python"
        if python.exists():
            found.setdefault(release, python)
    return dict(sorted(found.items()))


def cases() -> list[Case]:
    """Every kind of query that can be run here."""
    return [
        Case(spark, level, sink)
        for spark, level in itertools.product(interpreters(), ISOLATION_LEVELS)
        for sink in (*SINKS, SPARKS_DELTA)
        if sink != SPARKS_DELTA or (spark in SPARK_DELTA and shutil.which("mvn"))
    ]


class Query:
    """A query in processes of its own, over all that is tiered.

    Args:
        case: Its Spark, isolation level and sink.
        folder: Gets its checkpoint and its sink.
        options: Of the stream, besides.
    """

    def __init__(self, case: Case, folder: Path, options: Mapping[str, str]) -> None:
        given = json.dumps({**options, "isolationLevel": case.isolation_level})
        self._command = [
            *(str(interpreters()[case.spark]), "-m", "tests.spark.stream_child"),
            *(str(folder / "checkpoint"), str(folder / "sink"), given, case.sink),
        ]
        self.folder = folder
        self._sink = case.sink
        self._jars: tuple[Path, ...] = ()
        if case.sink == SPARKS_DELTA:
            self._jars = spark_delta_jars(case.spark)
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def log(self) -> Path:
        """What its drivers wrote to standard error."""
        return self.folder / "driver.log"

    @property
    def batches(self) -> int:
        """Number of the batch that was begun last."""
        found = (one.name for one in (self.folder / "checkpoint" / "offsets").glob("*"))
        return max((int(name) for name in found if name.isdigit()), default=-1)

    def begin(self, *, goes_on: bool = False) -> subprocess.Popen[str]:
        """Starts it, to run until all is written, or until it is killed."""
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*self._command, "on" if goes_on else "once"],
                cwd=ROOT,
                env={**os.environ, JARS: ",".join(map(str, self._jars))},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def killed_behind(self, name: str) -> None:
        """Runs until a file appears in the folder, and is killed."""
        driver = self.begin()
        deadline = time.monotonic() + BEGINS_SECONDS
        while not (self.folder / name).exists():
            assert time.monotonic() < deadline
            assert driver.poll() is None, name
            time.sleep(0.005)
        kill(driver)

    def killed_somewhere(self, source: random.Random) -> str:
        """Runs, and is killed at any time from its first batch on; says what was killed and when,
        or that it ended before.
        """
        driver = self.begin()
        before = self.batches
        wait = source.random() * 4
        deadline = time.monotonic() + BEGINS_SECONDS
        while self.batches == before and driver.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.wait(wait)
        return f"{self.kill(driver, source)} after batch {self.batches}"

    def kill(self, driver: subprocess.Popen[str], source: random.Random) -> str:
        """Kills one of its processes, and then what has not followed; says which, or that it ended
        before.
        """
        victim = source.choice(VICTIMS)
        if driver.poll() is not None:
            driver.communicate()
            return "it had ended"
        everyone = list(processes(driver.pid))
        if victim != "all":
            chosen = [one for one in everyone if _kind(one, driver) == victim]
            if not chosen:  # workers end when they have nothing to do
                victim, chosen = "driver", [driver.pid]
            _kill(source.choice(chosen))
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline and any(map(_lives, everyone)):
                driver.poll()
                time.sleep(0.05)
        kill(driver, everyone)
        return victim

    def end(self) -> None:
        """Runs to its end."""
        driver = self.begin()
        said = driver.communicate(timeout=240)[0]
        assert said == "done\n", self.log.read_text(errors="replace")[-4000:]

    def written(self) -> pa.Table:
        """The rows that the sink has committed."""
        if self._sink != "parquet":
            tables = [DeltaTable(self.folder / "sink").to_pyarrow_table()]
        else:
            tables = [pq.read_table(file) for file in sorted(self._files())]
        return pa.concat_tables(
            [one.select(SPARK_SCHEMA.names).cast(SPARK_SCHEMA) for one in tables]
        )

    def _files(self) -> set[str]:
        files = set()
        for log in (self.folder / "sink" / "_spark_metadata").iterdir():
            if not log.name.startswith("."):
                lines = log.read_text().splitlines()[1:]
                files |= {json.loads(line)["path"].removeprefix("file://") for line in lines}
        return files


def processes(parent: int) -> Iterator[int]:
    """A process and all below it: the driver, its JVM, and the Python processes of both."""
    yield parent
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in task.read_text().split():
                yield from processes(int(child))


def kill(driver: subprocess.Popen[str], others: Iterable[int] = ()) -> None:
    """Kills a driver and all below it.

    Args:
        driver: The process.
        others: Those that were below it before.
    """
    for process in {*processes(driver.pid), *filter(_lives, others)}:
        _kill(process)
    driver.communicate(timeout=30)


def _kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it followed its parent
        os.kill(process, signal.SIGKILL)


def _lives(process: int) -> bool:
    """Whether a process is one of a query still: what has ended may have given its number away."""
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
