"""Tests that Spark collects the log lines of workers."""

from __future__ import annotations

import importlib.machinery
import json
import logging
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kts_source import register
from kts_source.export.task import TaskReport
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.spark.data_source_api import InputPartition
from kts_source.spark.jobs import ExportReader
from kts_source.spark.readers import TieredKafkaBatchReader, TieredKafkaStreamReader
from kts_source.spark.worker import log_to_stderr
from tests.golden_data import expected_table, tier_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

COLLECTED = "PYSPARK_SPARK_SESSION_UUID"
ROOT = Path(__file__).resolve().parents[2]
SETTING = "spark.sql.pyspark.worker.logging.enabled"


@pytest.fixture
def product_logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("kts_source")
    before = logger.level
    logger.setLevel(logging.NOTSET)
    yield logger
    logger.setLevel(before)


@pytest.mark.slow
def test_each_task_logs_a_line_in_worker_logs(spark: SparkSession) -> None:
    if not hasattr(spark.tvf, "python_worker_logs"):
        pytest.skip("Spark collects worker logs since 4.1")
    register(spark)
    spark.conf.set(SETTING, "true")
    try:
        options = tier_options("encrypted", maxSegmentsPerTask="1")
        frame = spark.read.format("tiered-kafka").options(**options).load()
        assert frame.count() == expected_table("encrypted", "read_committed").num_rows
        logs = spark.tvf.python_worker_logs()
        lines = [
            line.msg
            for line in logs.where("logger = 'kts_source.read.read_task'").select("msg").collect()
        ]
    finally:
        spark.conf.unset(SETTING)
    tasks = TieredKafkaBatchReader(parse_options(options)).partitions()
    assert len(lines) == len(tasks) > 1
    assert all(line.startswith("task done: ") for line in lines)
    assert not any("PRIVATE KEY" in line for line in lines)


@pytest.mark.parametrize(
    ("is_collected", "configured", "expected"),
    [
        (True, logging.NOTSET, logging.INFO),
        (True, logging.ERROR, logging.ERROR),
        (False, logging.NOTSET, logging.NOTSET),
    ],
)
def test_log_level_is_set_only_if_not_configured(
    product_logger: logging.Logger,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_collected: bool,
    configured: int,
    expected: int,
) -> None:
    if is_collected:
        monkeypatch.setenv(COLLECTED, "a-session")
    else:
        monkeypatch.delenv(COLLECTED, raising=False)
    product_logger.setLevel(configured)
    reader = TieredKafkaBatchReader(parse_options(tier_options("codecs")))
    partition, *_ = reader.partitions()
    list(reader.read(partition))
    assert product_logger.level == expected


@pytest.mark.slow
def test_stream_logs_a_line_per_batch_to_the_driver(tmp_path: Path) -> None:
    options = json.dumps(tier_options("codecs", startingOffsets="earliest"))
    command = [sys.executable, "-m", "tests.spark.stream_child"]
    run = subprocess.run(
        [
            *command,
            str(tmp_path / "checkpoint"),
            str(tmp_path / "sink"),
            options,
            "parquet",
            "once",
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        cwd=ROOT,
    )
    line = r"^\d{4}-\d\d-\d\d \S+ INFO kts_source\.spark\.readers: scan \w+: micro-batch of .*$"
    lines = re.findall(line, run.stderr, re.MULTILINE)
    assert len(lines) >= 1
    assert "codecs-0 [0, " in lines[0]
    assert "PRIVATE KEY" not in run.stderr


@pytest.mark.parametrize(
    ("main", "level"),
    [("pyspark.daemon", "INFO"), ("kts_source.spark.daemon", "INFO"), ("pytest", "NOTSET")],
)
def test_only_processes_of_spark_get_a_log_handler(
    product_logger: logging.Logger, monkeypatch: pytest.MonkeyPatch, main: str, level: str
) -> None:
    without_handlers(product_logger, monkeypatch, main)
    log_to_stderr(logging.INFO)
    assert logging.getLevelName(product_logger.level) == level
    assert len(product_logger.handlers) == (level == "INFO")
    log_to_stderr(logging.INFO)
    assert len(product_logger.handlers) == (level == "INFO")


def test_task_logs_warnings_with_time_and_level(
    product_logger: logging.Logger,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    without_handlers(product_logger, monkeypatch, "pyspark.daemon")
    options = tier_options("codecs", **{"value.format": "json", "value.mode": "DROPMALFORMED"})
    options["value.schema"] = "a boolean"
    reader = TieredKafkaBatchReader(parse_options(options))
    task = next(iter(plan_scan(parse_options(options)).tasks))
    list(reader.read(InputPartition(task)))
    err = capsys.readouterr().err
    line = r"^\d{4}-\d\d-\d\d \S+ WARNING kts_source\.\S+: \d+ rows cannot be decoded .*$"
    assert re.search(line, err, re.MULTILINE)
    assert " INFO " not in err


@dataclass(frozen=True)
class WarningTask:
    """A task of an export that logs a warning."""

    number: int = 0

    def run(self, _job: object) -> TaskReport:
        logging.getLogger("kts_source.read.typed_rows").warning("a row is rejected")
        return TaskReport(number=self.number)


def test_task_of_an_export_logs_warnings_with_time_and_level(
    product_logger: logging.Logger,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    without_handlers(product_logger, monkeypatch, "pyspark.daemon")
    list(ExportReader([], "job").read(InputPartition(WarningTask())))
    line = r"^\d{4}-\d\d-\d\d \S+ WARNING kts_source\.read\.typed_rows: a row is rejected$"
    assert re.search(line, capsys.readouterr().err, re.MULTILINE)


def test_repeated_batch_of_a_restarted_stream_is_logged(
    product_logger: logging.Logger,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = parse_options(tier_options("codecs"))
    first = TieredKafkaStreamReader(options)
    start = first.initialOffset()
    end = first.latestOffset(start)
    capsys.readouterr()
    without_handlers(product_logger, monkeypatch, "pyspark.daemon")
    TieredKafkaStreamReader(options).partitions(start, end)  # as Spark does first after a restart
    err = capsys.readouterr().err
    assert " INFO kts_source.spark.readers: scan " in err
    assert err.endswith("; lag: unknown until the next batch\n")


def without_handlers(
    product_logger: logging.Logger, monkeypatch: pytest.MonkeyPatch, main: str
) -> None:
    """Sets the name of the main module, and removes the log handlers."""
    spec = importlib.machinery.ModuleSpec(main, None)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
    monkeypatch.setattr(product_logger, "handlers", [])
    monkeypatch.setattr(product_logger, "propagate", False)  # pytest has handlers at the root
