"""What workers log can be read back from Spark."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from kts_source import register
from kts_source.options import parse_options
from kts_source.spark.readers import TieredKafkaBatchReader
from tests.golden_data import expected_table, tier_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

COLLECTED = "PYSPARK_SPARK_SESSION_UUID"
SETTING = "spark.sql.pyspark.worker.logging.enabled"


@pytest.fixture
def ours() -> Iterator[logging.Logger]:
    logger = logging.getLogger("kts_source")
    before = logger.level
    logger.setLevel(logging.NOTSET)
    yield logger
    logger.setLevel(before)


@pytest.mark.slow
def test_every_task_is_a_line_of_sparks_worker_logs(spark: SparkSession) -> None:
    if not hasattr(spark.tvf, "python_worker_logs"):
        pytest.skip("Spark 4.1 began to collect what workers log")
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
    ("collected", "chosen", "expected"),
    [
        (True, logging.NOTSET, logging.INFO),
        (True, logging.ERROR, logging.ERROR),
        (False, logging.NOTSET, logging.NOTSET),
    ],
)
def test_a_level_is_chosen_only_where_nobody_did(
    ours: logging.Logger,
    monkeypatch: pytest.MonkeyPatch,
    *,
    collected: bool,
    chosen: int,
    expected: int,
) -> None:
    if collected:
        monkeypatch.setenv(COLLECTED, "a-session")
    else:
        monkeypatch.delenv(COLLECTED, raising=False)
    ours.setLevel(chosen)
    reader = TieredKafkaBatchReader(parse_options(tier_options("codecs")))
    partition, *_ = reader.partitions()
    list(reader.read(partition))
    assert ours.level == expected
