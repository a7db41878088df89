"""Kills Python workers and drivers of Spark exports at random points, and checks the resumed
export.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kts_source.export.run import clean
from kts_source.spark.backfill import SparkExecutor
from tests.kts_source.export.exporting import (
    FORMATS,
    Lake,
    assert_at_most_once,
    assert_holds,
    source,
)
from tests.kts_source.export.spark_child import start_spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.kills,
    pytest.mark.spark,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

ROOT = Path(__file__).resolve().parents[3]
SEED = 20_240_301
WORKER_KILLS = 2


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = start_spark("kills")
    yield session
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        session.stop()
        gc.collect()


@dataclass(frozen=True)
class Dies:
    """A transform that returns its rows unchanged, but kills its process at some of its calls.

    Attributes:
        calls: A file to which every call in any process appends a byte.
        at: Numbers of the fatal calls, from 1, counted over all processes.
        fingerprint: Empty, as without a transform.
    """

    calls: Path
    at: frozenset[int]
    fingerprint: str = ""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        file = os.open(self.calls, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, b".")
        count = os.lseek(file, 0, os.SEEK_CUR)
        os.close(file)
        if count in self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        return batch


def check(lake: Lake) -> None:
    """Asserts that no row is in the table twice, and that another run completes the table. `clean`
    must not remove rows.
    """
    assert_at_most_once(lake)
    lake.export(source())
    assert_holds(lake.read(), ["txn"])
    assert lake.export(source()).rows == 0
    clean(lake.settings(), older_than_hours=-1, remove=True)
    assert_holds(lake.read(), ["txn"])


@pytest.mark.parametrize("table_format", FORMATS)
def test_tasks_of_killed_workers_are_retried(
    tmp_path: Path, spark: SparkSession, table_format: str
) -> None:
    counted = Lake(tmp_path / "counted", table_format)
    counted.folder.mkdir()
    counted.export(source(), transform=Dies(tmp_path / "all", frozenset()))
    calls = (tmp_path / "all").stat().st_size
    assert calls > 10
    chosen = random.Random(SEED)
    fatal = frozenset(chosen.sample(range(1, calls), WORKER_KILLS))
    lake = Lake(tmp_path / "lake", table_format)
    lake.folder.mkdir()
    dies = Dies(tmp_path / "calls", fatal)
    report = lake.export(source(), executor=SparkExecutor(spark), transform=dies)
    assert (tmp_path / "calls").stat().st_size > calls, "no task was retried"
    assert_holds(lake.read(), ["txn"])
    assert report.rows == lake.read().num_rows
    check(lake)


@pytest.mark.parametrize("table_format", FORMATS)
def test_killed_driver_writes_each_row_once_after_resume(tmp_path: Path, table_format: str) -> None:
    lake = Lake(tmp_path / "lake", table_format)
    lake.folder.mkdir()
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.kts_source.export.spark_child", lake.folder, table_format],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == "begins\n"
        time.sleep(random.Random(f"{SEED} {table_format}").uniform(0.5, 5))
        # Kills the driver and its JVM. Workers are in their own process group and end by
        # themselves.
        os.killpg(child.pid, signal.SIGKILL)
        assert child.stdout.read() == "", "the export ended before the kill"
    assert child.wait() == -signal.SIGKILL
    check(lake)
