"""Tests `format("tiered-kafka")` on Sail, which implements Spark Connect without a JVM.

Runs if Sail is installed (`.ci/engines_env`).
"""

from __future__ import annotations

import importlib.util
import logging
import shutil
import signal
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions
from pyspark.sql.types import LongType

from kts_source import backfill
from kts_source.read.read_settings import BatchLimits
from kts_source.spark import sail as sail_module
from tests.golden_data import (
    ISOLATION_LEVELS,
    KEY_PREFIX,
    TIER,
    TOPICS,
    IsolationLevel,
    assert_same_rows,
    expected_table,
    tier_options,
)
from tests.kts_source.read.typed_tier import as_avro, avro, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(importlib.util.find_spec("pysail") is None, reason="Sail is not installed"),
]


@pytest.fixture(scope="module")
def sail() -> Iterator[SparkSession]:
    from pysail.spark import SparkConnectServer
    from pyspark.sql import SparkSession

    from kts_source.spark.datasource import TieredKafkaDataSource

    server = SparkConnectServer(port=0)
    server.start(background=True)
    _, port = server.listening_address
    session = SparkSession.builder.remote(f"sc://localhost:{port}").getOrCreate()
    session.dataSource.register(TieredKafkaDataSource)
    yield session
    session.stop()
    server.stop()


@pytest.mark.parametrize("level", ISOLATION_LEVELS)
@pytest.mark.parametrize("topic", TOPICS)
def test_scan_of_topic_returns_expected_rows(
    sail: SparkSession, topic: str, level: IsolationLevel
) -> None:
    options = tier_options(topic, isolationLevel=level, includeHeaders="true")
    frame = sail.read.format("tiered-kafka").options(**options).load()
    expected = expected_table(topic, level)
    assert frame.count() == expected.num_rows
    assert_same_rows(frame.toArrow().cast(expected.schema), expected)


def test_user_schema_selects_columns(sail: SparkSession) -> None:
    reader = sail.read.format("tiered-kafka").options(**tier_options("txn", where="offset < 50"))
    table = reader.schema("`offset` bigint, `key` binary").load().toArrow()
    assert table.schema.names == ["offset", "key"]
    assert max(table["offset"].to_pylist()) < 50


@pytest.mark.parametrize(
    ("condition", "reads_less"),
    [
        ("partition = 1 and offset >= 20 and offset < 60", True),
        ("offset in (3, 5, 7, 9, 70) and timestamp is not null", True),
        ("timestamp > timestamp'2000-01-01' and 60 > offset", True),
        ("timestamp > timestamp'2100-01-01'", True),
        ("timestamp is null or offset between 3 and 8", False),
        # Sail passes these filters in a changed form.
        ("not string(key) like '%b%'", False),
        ("string(key) ilike 'K%' or offset = 4", False),
        ("topic like 't_n' and topic not like '%b%'", False),
    ],
)
def test_condition_on_sail_returns_the_matching_rows(
    sail: SparkSession, caplog: pytest.LogCaptureFixture, condition: str, reads_less: bool
) -> None:
    expected = expected_table("txn", "read_committed")
    frame = sail.read.format("tiered-kafka").options(**tier_options("txn")).load()
    frame.createOrReplaceTempView("tier")
    sail.createDataFrame(expected.to_pandas()).createOrReplaceTempView("expected")
    rows = "select `partition`, `offset` from {} where " + condition + " order by 1, 2"
    expected_rows = sail.sql(rows.format("expected")).collect()
    with caplog.at_level(logging.INFO, logger="kts_source.spark.readers"):
        caplog.clear()
        frame.count()
        all_bytes = _planned_bytes(caplog)
        caplog.clear()
        assert sail.sql(rows.format("tier")).collect() == expected_rows
        assert (_planned_bytes(caplog) < all_bytes / 4) == reads_less


def _planned_bytes(caplog: pytest.LogCaptureFixture) -> int:
    """Returns the number of segment bytes in the last plan that was logged."""
    plans = [record for record in caplog.records if record.msg.startswith("scan %s: planned")]
    assert isinstance(plans[-1].args, tuple)
    return int(str(plans[-1].args[3]))


def test_two_scans_of_a_table_keep_different_conditions(sail: SparkSession) -> None:
    frame = sail.read.format("tiered-kafka").options(**tier_options("txn")).load()
    both = (
        frame.where("offset < 20")
        .select("partition", "offset")
        .unionAll(frame.where("offset >= 40 and offset < 50").select("partition", "offset"))
    )
    actual = sorted(tuple(row) for row in both.collect())
    pairs = expected_table("txn", "read_committed").select(["partition", "offset"]).to_pylist()
    expected = [(row["partition"], row["offset"]) for row in pairs]
    assert actual == sorted(pair for pair in expected if pair[1] < 20 or 40 <= pair[1] < 50)


@pytest.fixture
def many_batches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes tasks return hundreds of batches; kills the process if a test hangs."""
    monkeypatch.setattr(sail_module, "_LIMITS", BatchLimits(20, 1 << 20))
    signal.alarm(100)  # a hang holds the GIL, so no Python thread could end the process
    yield
    signal.alarm(0)


@pytest.mark.filterwarnings("ignore:Cannot infer the eval type:UserWarning")
def test_many_batches_do_not_block_the_channel_to_sail(
    sail: SparkSession, many_batches: None
) -> None:
    expected = expected_table("codecs", "read_committed")
    options = tier_options("codecs", targetPartitionBytes="64m")
    frame = sail.read.format("tiered-kafka").options(**options).load()
    assert len(expected) > 4 * 16 * 20, "more batches than the channels can buffer"
    total = sum(expected["offset"].to_pylist())

    @functions.udf(LongType())
    def identity(number):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202  # type hints would make it a pandas UDF
        return number

    for _ in range(3):
        (row,) = frame.agg(functions.sum("offset")).collect()
        assert row[0] == total
        (row,) = frame.select(identity("offset").alias("o")).agg(functions.sum("o")).collect()
        assert row[0] == total
        assert len(frame.limit(7).collect()) == 7  # drops the other batches
        newest = frame.orderBy(functions.col("offset").desc()).select("offset").limit(1)
        assert newest.collect()[0][0] == max(expected["offset"].to_pylist())
    # Operators that buffer all batches: a sort of all rows, and both sides of a join.
    in_order = frame.orderBy("value", "offset").select("partition", "offset").toArrow()
    assert in_order.num_rows == expected.num_rows
    other = frame.select("partition", "offset", functions.col("value").alias("twin"))
    (row,) = frame.join(other, ["partition", "offset"]).agg(functions.count("twin")).collect()
    assert row[0] == sum(value is not None for value in expected["value"].to_pylist())
    mapped = frame.select("offset").mapInArrow(lambda batches: batches, "offset bigint")
    assert mapped.agg(functions.sum("offset")).collect()[0][0] == total


def test_task_that_is_too_large_for_the_channel_raises_error(
    sail: SparkSession, many_batches: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the error, the server must still be able to run another query, and the same query with
    smaller tasks.
    """
    options = tier_options("codecs", targetPartitionBytes="64m")
    frame = sail.read.format("tiered-kafka").options(**options).load()
    expected = expected_table("codecs", "read_committed").num_rows
    with monkeypatch.context() as patched:
        patched.setattr(sail_module, "_MAX_COLUMN_BYTES", 20_000)
        with pytest.raises(PySparkException, match="set option targetPartitionBytes to a smaller"):
            frame.collect()
        assert sail.range(5).count() == 5
        small = {**options, "where": "offset < 20"}
        smaller = sail.read.format("tiered-kafka").options(**small).load()
        assert 0 < smaller.count() < expected
    assert frame.count() == expected


def test_backfill_on_sail_exports_all_rows(sail: SparkSession, tmp_path: Path) -> None:
    report = backfill(sail, source=tier_options("txn"), target=str(tmp_path), progress=False)
    expected = expected_table("txn", "read_committed")
    assert report.rows == expected.num_rows
    exported = pa.concat_tables(pq.read_table(file) for file in tmp_path.rglob("*.parquet"))
    assert exported.num_rows == expected.num_rows


def test_view_in_sql_returns_expected_rows(sail: SparkSession) -> None:
    options = tier_options("txn", targetPartitionBytes="64k")
    sail.read.format("tiered-kafka").options(**options).load().createOrReplaceTempView("txn")
    expected = expected_table("txn", "read_committed")
    rows = sail.sql("select count(*), max(offset) from txn where partition = 1").collect()
    offsets = [
        row["offset"]
        for row in expected.select(["partition", "offset"]).to_pylist()
        if row["partition"] == 1
    ]
    assert [tuple(row) for row in rows] == [(len(offsets), max(offsets))]


# On Sail, all of these raise at the first action, with the same exception class.
@pytest.mark.parametrize(
    ("options", "schema", "message"),
    [
        ({"path": ""}, None, "path"),
        ({"isolationLevl": "x"}, None, "did you mean 'isolationLevel'"),
        ({"subscribePattern": "b"}, None, "exactly one of"),
        ({"subscribe": "codexx"}, None, r"no topic 'codexx'.*appendtime, codecs"),
        ({}, "ofset bigint", "did you mean 'offset'"),
        ({}, "offset int", "'offset' has type bigint, but the schema has type int"),
        ({}, "value binary not null", "NOT NULL"),
    ],
)
def test_invalid_options_and_schemas_raise_readable_error(
    sail: SparkSession, options: dict[str, str], schema: str | None, message: str
) -> None:
    reader = sail.read.format("tiered-kafka").options(**{**tier_options("txn"), **options})
    if schema is not None:
        reader = reader.schema(schema)
    with pytest.raises(PySparkException, match=message):
        reader.load().count()


def test_corrupt_bytes_raise_error_with_location(sail: SparkSession, tmp_path: Path) -> None:
    shutil.copytree(TIER, tmp_path / "tier")
    (log,) = (tmp_path / "tier" / KEY_PREFIX).glob("codecs-*/0/00000000000000000000-*.log")
    data = bytearray(log.read_bytes())
    data[300_000] ^= 0xFF
    log.write_bytes(data)
    options = tier_options("codecs", path=str(tmp_path / "tier"))
    with pytest.raises(PySparkException) as error:
        sail.read.format("tiered-kafka").options(**options).load().count()
    for fragment in ("topic codecs", "partition 0", "offset", str(log), "byte"):
        assert fragment in str(error.value)


def test_scan_decodes_values(sail: SparkSession, tmp_path: Path) -> None:
    values = [b"\x05" if number == 17 else avro(number) for number in range(30)]
    tier = write(tmp_path / "tier", [[*values], [avro(100)]])
    options = tier | as_avro(**{"value.mode": "PERMISSIVE"})
    frame = sail.read.format("tiered-kafka").options(**options).load()
    rows = {(row["partition"], row["offset"]): row for row in frame.collect()}
    assert len(rows) == 31
    assert rows[0, 17]["value"] is None
    assert rows[0, 17]["valueError"].startswith("country: ")
    assert rows[0, 8]["value"]["amount"] == 8
    assert rows[0, 8]["value"]["note"] == "n8"
    sums = frame.groupBy("value.country").agg(functions.sum("value.amount")).collect()
    expected: dict[str | None, int | None] = {None: None}
    for number in (*range(17), *range(18, 30), 100):
        country = "CH" if number % 3 else "DE"
        expected[country] = (expected.get(country) or 0) + number
    assert dict(map(tuple, sums)) == expected
