"""Tests that errors of Spark tasks have their own class on the driver, and that registering a data
source again logs no warning.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kts_source import backfill
from kts_source.errors import (
    CorruptSegmentError,
    StoreUnavailableError,
    TieredKafkaError,
    TransformError,
)
from kts_source.spark.jobs import noted_errors, original_errors
from tests.golden_data import tier_options

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession


def through_spark(error: Exception) -> None:
    """Raises the error that Spark's driver raises if a task failed with `error`."""
    script = (
        "import pickle, sys, traceback\n"
        "from kts_source.spark.jobs import noted_errors\n"
        "try:\n"
        "    with noted_errors():\n"
        "        raise pickle.load(sys.stdin.buffer)\n"
        "except Exception:\n"
        "    print('Job aborted: Traceback'); traceback.print_exc(file=sys.stdout)\n"
        "    print('\\tat org.apache.spark.Worker')\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], input=pickle.dumps(error), capture_output=True, check=True
    )
    with original_errors():
        raise RuntimeError(run.stdout.decode())


@pytest.mark.parametrize(
    "error",
    [
        StoreUnavailableError("no answer", uri="s3://b/k", attempts=("HTTP 503", "HTTP 503")),
        CorruptSegmentError("bad\nbytes: {}", topic="t", partition=3, offset=7, position=9),
    ],
)
def test_task_error_keeps_class_and_attributes_on_the_driver(error: TieredKafkaError) -> None:
    with pytest.raises(type(error)) as caught:
        through_spark(error)
    assert str(caught.value) == str(error)
    assert vars(caught.value) == vars(error)
    assert caught.value.retriable == error.retriable
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_subclass_of_another_package_becomes_its_base_class() -> None:
    class OwnError(TransformError):
        """An error class that the driver does not know."""

    def run() -> None:
        with original_errors():
            try:
                with noted_errors():
                    raise OwnError("failed")
            except OwnError as error:
                raise RuntimeError("\n".join(error.__notes__)) from None

    with pytest.raises(TransformError, match="failed") as caught:
        run()
    assert type(caught.value) is TransformError


def test_error_of_foreign_class_stays_a_runtime_error() -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        through_spark(ZeroDivisionError())


def test_failed_task_raises_its_error_on_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError(f"{batch.num_rows} rows")

    with pytest.raises(TransformError, match="the transform failed on offsets") as caught:
        backfill(
            spark,
            source=tier_options("codecs"),
            target=str(tmp_path / "table"),
            progress=False,
            transform=fail,
        )
    assert (caught.value.topic, caught.value.partition) == ("codecs", 0)


@pytest.mark.slow
def test_repeated_register_and_backfill_log_no_warning_about_replaced_sources(
    tmp_path: Path,
) -> None:
    script = (
        "import sys\n"
        "from kts_source import backfill, register\n"
        "from kts_source.spark.datasource import session_builder\n"
        "from tests.golden_data import tier_options\n"
        "spark = session_builder().master('local[1]').config('spark.ui.enabled', 'false')"
        ".config('spark.driver.host', '127.0.0.1').getOrCreate()\n"
        "spark.sparkContext.setLogLevel('WARN')\n"
        "register(spark); register(spark)\n"
        "backfill(spark, source=tier_options('codecs'), target=sys.argv[1], progress=False)\n"
        "spark._jvm.org.apache.logging.log4j.LogManager.getLogger("
        "'org.apache.spark.sql.execution.datasources.DataSourceManager').warn('still logs')\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "table")],
        capture_output=True,
        check=True,
        text=True,
        timeout=300,
    )
    assert "replaced" not in run.stderr
    assert "still logs" in run.stderr
