"""Tests the error of workers whose limit of address space is too low."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kts_source.errors import StoreUnavailableError, WorkerMemoryError
from kts_source.spark import worker
from kts_source.spark.worker import explained_memory

ROOT = Path(__file__).resolve().parents[2]
SCAN = """
import sys
from kts_source.options import parse_options
from kts_source.spark.readers import TieredKafkaBatchReader
from tests.golden_data import tier_options

reader = TieredKafkaBatchReader(parse_options(tier_options("codecs")))
partitions = reader.partitions()
import resource
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]) << 20,) * 2)
print("rows:", sum(batch.num_rows for each in partitions for batch in reader.read(each)))
"""
SESSION = """
import sys
from pyspark.sql import SparkSession
from kts_source import backfill
from tests.golden_data import tier_options

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.executor.pyspark.memory", "300m")
spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
try:
    backfill(spark, source=tier_options("epochs"), target=sys.argv[1], progress=False)
except Exception as error:
    print(type(error).__name__, error)
spark.stop()
"""


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the worker see a limit of 512 MiB, although the test process has no limit."""
    monkeypatch.setattr(worker, "_address_space_mib", lambda: 512)
    for name in ("PYSPARK_EXECUTOR_MEMORY_MB", "PYSPARK_PLANNER_MEMORY_MB"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "error",
    [
        ImportError("libssl.so.3: failed to map segment from shared object"),
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("can't start new thread"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize(
    ("variable", "setting"),
    [
        ("PYSPARK_EXECUTOR_MEMORY_MB", "spark.executor.pyspark.memory"),
        ("PYSPARK_PLANNER_MEMORY_MB", "spark.sql.planner.pythonExecution.memory"),
        ("OTHER", "ulimit -v"),
    ],
)
@pytest.mark.usefixtures("limited")
def test_memory_error_names_the_setting_and_a_sufficient_value(
    monkeypatch: pytest.MonkeyPatch, error: Exception, variable: str, setting: str
) -> None:
    monkeypatch.setenv(variable, "512")
    with pytest.raises(WorkerMemoryError) as caught, explained_memory():
        raise error
    assert setting in str(caught.value)
    assert "to 512 MiB" in str(caught.value)
    assert "3072" in str(caught.value)
    assert caught.value.__cause__ is error


@pytest.mark.usefixtures("limited")
def test_store_error_caused_by_a_memory_error_is_explained() -> None:
    with pytest.raises(WorkerMemoryError, match="no answer"), explained_memory():
        raise StoreUnavailableError("no answer") from RuntimeError("can't start new thread")


@pytest.mark.usefixtures("limited")
def test_other_errors_of_a_limited_worker_are_raised_unchanged() -> None:
    with pytest.raises(StoreUnavailableError), explained_memory():
        raise StoreUnavailableError("no answer")


def test_memory_error_without_a_limit_is_raised_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_address_space_mib", lambda: None)
    with pytest.raises(MemoryError) as caught, explained_memory():
        raise MemoryError
    assert not isinstance(caught.value, WorkerMemoryError)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux applies the limit")
def test_task_with_too_little_address_space_reports_the_limit() -> None:
    run = subprocess.run(
        [sys.executable, "-c", SCAN, "300"],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_EXECUTOR_MEMORY_MB": "300"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith("kts_source.errors.WorkerMemoryError: a Python worker of Spark cannot")
    assert "spark.executor.pyspark.memory limits its address space to 300 MiB" in last


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux applies the limit")
def test_spark_reports_a_worker_with_too_little_memory(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", SESSION, str(tmp_path / "lake")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert "WorkerMemoryError" in run.stdout
    assert "spark.executor.pyspark.memory limits its address space to 300 MiB" in run.stdout
    assert "at least 3072m per core" in run.stdout
    assert not list((tmp_path / "lake").glob("**/*.parquet"))
