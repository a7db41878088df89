"""Streaming queries that are killed, begun again, and run to their end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tests.golden_data import SPARK_SCHEMA
from tests.integration.kafka_jars import spark_lake_jars
from tests.integration.spark_kafka import spark_python
from tests.spark.stream_child import JARS

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Mapping

ROOT: Final = Path(__file__).resolve().parents[2]
HAS_PROC: Final = Path("/proc/self/task").exists()
SINKS: Final = ("parquet", "delta")
SPARKS_DELTA: Final = "delta-spark"
"""A Delta table by Spark itself: for 4.0 alone there is a release, on Maven Central."""
VICTIMS: Final = ("all", "java", "python")


def sinks_of(spark: str) -> tuple[str, ...]:
    """Those that a Spark can write here."""
    return (*SINKS, SPARKS_DELTA) if spark == "40" and shutil.which("mvn") else SINKS


def interpreters() -> dict[str, Path]:
    """Interpreters by their Spark: the oldest and the newest, and those between that are there."""
    found = {"newest": Path(sys.executable), "40": spark_python()}
    for release in ("41", "42"):
        python = ROOT / f".venv-spark{release}" / "bin" / "python"
        if python.exists():
            found[release] = python
    return found


class Query:
    """A query in processes of its own, over all that is tiered.

    Args:
        python: Interpreter with the Spark.
        folder: Gets its checkpoint and its sink.
        options: Of the stream.
        sink: One of `sinks_of` this Spark.
    """

    def __init__(
        self, python: Path, folder: Path, options: Mapping[str, str], sink: str = "parquet"
    ) -> None:
        self._command = [
            *(str(python), "-m", "tests.spark.stream_child"),
            *(str(folder / "checkpoint"), str(folder / "sink"), json.dumps(dict(options)), sink),
        ]
        self.folder = folder
        self._sink = sink
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
        jars = ",".join(map(str, spark_lake_jars())) if self._sink == SPARKS_DELTA else ""
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*self._command, "on" if goes_on else "once"],
                cwd=ROOT,
                env={**os.environ, JARS: jars},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def killed_behind(self, name: str) -> None:
        """Runs until a file appears in the folder, and is killed."""
        driver = self.begin()
        deadline = time.monotonic() + 120
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
        deadline = time.monotonic() + 120
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
        if victim != "all":
            below = [one for one in processes(driver.pid) if _name(one).startswith(victim)]
            others = [one for one in below if one != driver.pid]
            if others:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(source.choice(others), signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                driver.wait(5)
        kill(driver)
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


def kill(driver: subprocess.Popen[str]) -> None:
    """Kills a driver and all below it."""
    for process in list(processes(driver.pid)):
        with contextlib.suppress(ProcessLookupError):  # it followed its parent
            os.kill(process, signal.SIGKILL)
    driver.communicate(timeout=30)


def _name(process: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/comm").read_text()
    return ""
