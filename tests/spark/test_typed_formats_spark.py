"""Decodes JSON and Protobuf values in Spark."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from kts_source import register
from tests.kts_source.read.test_json_rows import as_json, value
from tests.kts_source.read.test_protobuf_rows import VALUES, as_protobuf
from tests.kts_source.read.typed_tier import write

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import Row, SparkSession

pytestmark = pytest.mark.spark


def test_batch_decodes_json(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    values = [value(0), None, b'{"amount": 1.5}', value(3)]
    options = write(tmp_path, [values]) | as_json(**{"value.mode": "PERMISSIVE"})
    frame = spark.read.format("tiered-kafka").options(**options).load()
    assert dict(frame.dtypes)["value"] == (
        "struct<country:string,amount:bigint,price:decimal(6,2),at:timestamp,"
        "user:struct<id:int,tags:map<string,array<double>>>>"
    )
    rows = frame.selectExpr("offset", "value.country", "value.*", "valueError").collect()
    rows.sort(key=lambda row: row.offset)
    assert [row.amount for row in rows] == [0, None, None, 3]
    assert [row.valueError is None for row in rows] == [True, True, False, True]
    assert rows[3].price == Decimal("2.50")
    assert rows[3].user.asDict(recursive=True) == {"id": 3, "tags": {"k": [0.75]}}
    assert frame.where("value IS NULL").count() == 2


def test_batch_decodes_protobuf(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    options = write(tmp_path / "tier", [[*VALUES]]) | as_protobuf(
        tmp_path, **{"value.mode": "PERMISSIVE"}
    )
    frame = spark.read.format("tiered-kafka").options(**options).load()
    rows = frame.selectExpr("offset", "value.*", "value IS NULL as gone", "valueError").collect()
    rows.sort(key=lambda row: row.offset)
    first = rows[0]
    assert (first.id, first["count"], first.state) == ("Zürich", Decimal(2**64 - 1), "PAID")
    assert first["items"][0].asDict() == {"sku": "a", "prices": [1, -1]}
    assert first.tags["é"].sku == "éé"
    assert first.at.timestamp() == 1_700_000_000.123456
    assert first.took.total_seconds() == -1.5
    assert [row.gone for row in rows] == [False, True, False, True, False, True]
    assert [row.valueError is None for row in rows] == [True, True, True, False, True, False]


def test_batch_infers_json_schema(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    values: list[bytes | None] = [b'{"a": 1, "b": {"c": "x"}}', None, b'{"a": 2.5, "d": [true]}']
    options = write(tmp_path, [values, [b'{"e": 1}']]) | {"value.format": "json"}
    reader = spark.read.format("tiered-kafka").options(**options)
    frame = reader.load()
    assert dict(frame.dtypes)["value"] == (
        "struct<a:double,b:struct<c:string>,d:array<boolean>,e:bigint>"
    )
    rows = frame.where("partition = 0").orderBy("offset").select("value").collect()
    assert rows[0].value.asDict(recursive=True) == {"a": 1, "b": {"c": "x"}, "d": None, "e": None}
    assert rows[1].value is None
    # The user's schema replaces inference, so no values are read for it.
    schema = "offset bigint, value struct<b: struct<c: string>, f: int>, valueRaw binary"
    selected = reader.schema(schema).load().where("offset = 0").select("value.b.c", "valueRaw")
    values_by_raw = {bytes(row.valueRaw): row.c for row in selected.collect()}
    assert values_by_raw == {values[0]: "x", b'{"e": 1}': None}
    with pytest.raises(Exception, match=r"needs option .value.schema., because the schema has"):
        reader.schema("offset bigint").load().collect()


def stream_rows(
    spark: SparkSession, options: Mapping[str, str], folder: Path, *columns: str
) -> list[Row]:
    """Runs a stream with one segment per batch. Returns its rows in the order of offsets."""
    limit = {"maxSegmentsPerTrigger": "1"}
    frame = spark.readStream.format("tiered-kafka").options(**options, **limit).load()
    query = (
        frame.selectExpr("offset", *columns)
        .writeStream.format("memory")
        .queryName("typed_values")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sorted(spark.table("typed_values").collect())


@pytest.mark.slow
def test_stream_decodes_json(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    values: list[bytes | None] = [value(number) for number in range(25)]
    values[7], values[11] = None, b'{"amount": 1.5}'
    tier = write(tmp_path / "tier", [values])
    options = tier | as_json(**{"value.mode": "DROPMALFORMED"})
    rows = stream_rows(spark, options, tmp_path, "value.amount", "value.user.id")
    assert [row.offset for row in rows] == [number for number in range(25) if number != 11]
    assert all(row.amount == row.id == row.offset for row in rows if row.offset != 7)
    assert rows[7].asDict() == {"offset": 7, "amount": None, "id": None}


@pytest.mark.slow
def test_stream_infers_json_schema(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    tier = write(tmp_path / "tier", [[value(number) for number in range(25)]])
    options = tier | {"value.format": "json"}
    rows = stream_rows(spark, options, tmp_path, "value.amount", "value.price", "value.country")
    assert [row.amount for row in rows] == list(range(25))
    assert rows[3].asDict() == {"offset": 3, "amount": 3, "price": 2.5, "country": "Dé"}


@pytest.mark.slow
def test_stream_decodes_protobuf(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    options = write(tmp_path / "tier", [[*VALUES] * 4]) | as_protobuf(
        tmp_path, **{"value.mode": "PERMISSIVE"}
    )
    rows = stream_rows(spark, options, tmp_path, "value.id", "value IS NULL as gone", "valueError")
    assert [row.gone for row in rows] == [False, True, False, True, False, True] * 4
    assert [row.valueError is None for row in rows] == [n % 6 not in (3, 5) for n in range(24)]
    assert rows[6].id == "Zürich"
