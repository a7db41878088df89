"""Tests Spark queries whose store fails or whose Python worker is killed during a task."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kts_source import TieredKafkaDataSource, metrics, register
from tests.faults.faulty_http import HTTP_KINDS, Chooser
from tests.faults.trials import Injector, seed
from tests.faulty_proxy import faulty_proxy
from tests.golden_data import TIER, TOPICS, assert_same_rows, expected_table, tier_options

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from tests.s3 import S3Server

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

QUERIES = 20


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Starts Spark in local mode and lets it retry failed tasks, as a cluster does."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2,4]").appName("faults")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    register(session)
    yield session
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        session.stop()
        gc.collect()


@pytest.mark.s3
def test_spark_queries_of_failing_store_return_rows_of_consumer_or_raise(
    spark: SparkSession, s3_server: S3Server, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = s3_server.upload(TIER)
    first_seed = seed()
    outcomes: list[str] = []
    texts: list[str] = []
    with faulty_proxy(s3_server.endpoint) as proxy:
        proxy.remembered = {}
        proxy.silence_seconds = 3
        chooser = Chooser(bucket)
        proxy.choose = chooser.choose
        for number in range(QUERIES):
            source = random.Random(first_seed + number)
            kinds = tuple(source.sample(HTTP_KINDS, 2))
            chooser.injector = Injector(kinds, source.choice((0.02, 0.1, 0.4)), source)
            topic = source.choice(TOPICS)
            options = {
                **tier_options(topic, includeHeaders="true"),
                **s3_server.options,
                "path": f"s3://{bucket}",
                "s3.endpoint": proxy.endpoint,
                "fetchReadTimeoutMs": "500",
                "fetchDeadlineMs": "2000",
                "maxAttempts": "3",
            }
            try:
                frame = spark.read.format("tiered-kafka").options(**options).load()
                table = frame.toArrow()
            except PySparkException as error:
                outcomes.append("error")
                texts.append(str(error))
            else:
                outcomes.append("right rows")
                assert_same_rows(table, expected_table(topic, "read_committed"))
    with capsys.disabled():
        print(  # noqa: T201
            f"\nSpark: KTS_FAULT_SEED={first_seed} {outcomes.count('right rows')} of"
            f" {QUERIES} queries gave the right rows, the others an error"
        )
    assert len(outcomes) == QUERIES
    assert not [text for text in texts if s3_server.secret_key in text]


class DyingReader:
    """Reader that kills its worker process once, after the second batch of a task."""

    def __init__(self, reader: Any, marker: str) -> None:  # noqa: ANN401
        self._reader = reader
        self._marker = marker

    def partitions(self) -> Any:  # noqa: ANN401
        return self._reader.partitions()

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:  # noqa: ANN401
        for number, batch in enumerate(self._reader.read(partition)):
            yield batch
            if number == 1:
                try:
                    os.close(os.open(self._marker, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
                os.kill(os.getpid(), signal.SIGKILL)


def test_task_of_killed_worker_returns_rows_of_consumer(
    spark: SparkSession, tmp_path: Path
) -> None:
    from pyspark.sql.datasource import DataSourceReader

    marker = tmp_path / "died"
    folder = tmp_path / "metrics"
    dying = DyingReader

    class Dying(dying, DataSourceReader):  # type: ignore[misc, valid-type]
        """A local class, because cloudpickle sends local classes to workers by value."""

    class DyingSource(TieredKafkaDataSource):
        @classmethod
        def name(cls) -> str:
            return "tiered-kafka-dying"

        def reader(self, schema: Any) -> Any:  # noqa: ANN401
            return Dying(super().reader(schema), str(marker))

    spark.dataSource.register(DyingSource)
    options = tier_options(
        "codecs", includeHeaders="true", targetPartitionBytes="4m", metricsPath=str(folder)
    )
    table = spark.read.format("tiered-kafka-dying").options(**options).load().toArrow()
    assert_same_rows(table, expected_table("codecs", "read_committed"))
    assert marker.exists(), "no worker died"
    attempts = {task.attempt for task in metrics.summary(str(folder)).tasks}
    assert attempts >= {1}
