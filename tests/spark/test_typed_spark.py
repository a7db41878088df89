"""Tests decoded values in Spark, in batch queries and in streams."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from kts_source import register
from tests.kts_source.read.typed_tier import as_avro, avro, write

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

FIELDS = (
    "struct<country:string,amount:bigint,at:timestamp,local:timestamp_ntz,note:string,"
    "tags:map<string,array<binary>>,price:decimal(6,2),day:date>"
)


@pytest.fixture
def tier(tmp_path: Path) -> dict[str, str]:
    values: list[bytes | None] = [avro(number) for number in range(30)]
    values[4] = None
    values[17] = b"\x05"
    return write(tmp_path / "tier", [values, [avro(100)]])


def load(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    register(spark)
    return spark.read.format("tiered-kafka").options(**options).load()


def test_batch_decodes_avro(spark: SparkSession, tier: dict[str, str]) -> None:
    frame = load(spark, tier | as_avro(**{"value.mode": "PERMISSIVE"}))
    types = dict(frame.dtypes)
    assert types["value"] == FIELDS
    assert types["valueError"] == "string"
    rows = {(row.partition, row.offset): row for row in frame.collect()}
    assert len(rows) == 31
    assert rows[0, 4].value is None
    assert rows[0, 4].valueError is None
    assert rows[0, 17].value is None
    assert rows[0, 17].valueError.startswith("country: a length is negative")
    value = rows[0, 8].value.asDict()
    assert value.pop("at").timestamp() == 1_700_000_000.008
    assert value == {
        "country": "CH",
        "amount": 8,
        "local": datetime(1970, 1, 1, 0, 0, 0, 8),
        "note": "n8",
        "tags": {"k": [bytearray(b"\xff\x01")]},
        "price": Decimal("2.56"),
        "day": date(1970, 1, 9),
    }


@pytest.mark.slow
def test_sums_of_decoded_fields_in_sql_match_sums_in_python(
    spark: SparkSession, tier: dict[str, str]
) -> None:
    options = as_avro(**{"value.mode": "DROPMALFORMED", "value.columns": "country,amount"})
    frame = load(spark, tier | options)
    assert frame.count() == 30
    frame.createOrReplaceTempView("orders")
    query = "SELECT value.country, sum(value.amount) FROM orders WHERE value.amount > 5 GROUP BY 1"
    sums: dict[str, int] = {}
    for number in (*range(6, 30), 100):
        if number != 17:
            country = "CH" if number % 3 else "DE"
            sums[country] = sums.get(country, 0) + number
    assert {row[0]: row[1] for row in spark.sql(query).collect()} == sums


def test_failfast_raises_error_with_offset(spark: SparkSession, tier: dict[str, str]) -> None:
    frame = load(spark, tier | as_avro())
    with pytest.raises(Exception, match="topic orders, partition 0, offset 17"):
        frame.select("value").collect()
    # Without the value column, nothing is decoded.
    assert load(spark, tier | as_avro(columns="key")).count() == 31


@pytest.mark.slow
def test_user_schema_selects_fields(spark: SparkSession, tier: dict[str, str]) -> None:
    register(spark)
    options = tier | as_avro(**{"value.columns": "amount", "value.mode": "DROPMALFORMED"})
    reader = spark.read.format("tiered-kafka").options(**options)
    frame = reader.schema("offset bigint, value struct<amount:bigint>").load()
    assert frame.where("offset = 7").collect()[0].value.amount == 7
    with pytest.raises(
        Exception, match="has type struct<amount:bigint>, but the schema has type binary"
    ):
        reader.schema("value binary").load().collect()


@pytest.mark.slow
def test_stream_decodes_avro(spark: SparkSession, tier: dict[str, str], tmp_path: Path) -> None:
    register(spark)
    options = tier | as_avro(**{"value.mode": "DROPMALFORMED", "value.columns": "amount"})
    stream = spark.readStream.format("tiered-kafka").options(**options).load()
    query = (
        stream.selectExpr("value.amount")
        .writeStream.format("memory")
        .queryName("typed_orders")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    amounts = [row.amount for row in spark.sql("SELECT * FROM typed_orders").collect()]
    expected = [number for number in range(30) if number not in (4, 17)]
    assert sorted(amount for amount in amounts if amount is not None) == [*expected, 100]
    assert amounts.count(None) == 1
