"""Values of JSON and Protobuf in Spark."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from kts_source import register
from tests.kts_source.read.test_json_rows import as_json, value
from tests.kts_source.read.test_protobuf_rows import VALUES, as_protobuf
from tests.kts_source.read.typed_tier import write

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_json(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    values = [value(0), None, b'{"amount": 1.5}', value(3)]
    options = write(tmp_path, [values]) | as_json(**{"value.mode": "PERMISSIVE"})
    frame = spark.read.format("tiered-kafka").options(**options).load()
    assert dict(frame.dtypes)["value"] == (
        "struct<country:string,amount:bigint,price:decimal(6,2),at:timestamp,"
        "user:struct<id:int,tags:map<string,array<double>>>>"
    )
    rows = frame.selectExpr("offset", "value.country", "value.*", "valueError").collect()
    rows.sort(key=lambda one: one.offset)
    assert [row.amount for row in rows] == [0, None, None, 3]
    assert [row.valueError is None for row in rows] == [True, True, False, True]
    assert rows[3].price == Decimal("2.50")
    assert rows[3].user.asDict(recursive=True) == {"id": 3, "tags": {"k": [0.75]}}
    assert frame.where("value IS NULL").count() == 2


def test_protobuf(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    options = write(tmp_path / "tier", [[*VALUES]]) | as_protobuf(
        tmp_path, **{"value.mode": "PERMISSIVE"}
    )
    frame = spark.read.format("tiered-kafka").options(**options).load()
    rows = frame.selectExpr("offset", "value.*", "value IS NULL as gone", "valueError").collect()
    rows.sort(key=lambda one: one.offset)
    first = rows[0]
    assert (first.id, first["count"], first.state) == ("Zürich", Decimal(2**64 - 1), "PAID")
    assert first["items"][0].asDict() == {"sku": "a", "prices": [1, -1]}
    assert first.tags["é"].sku == "éé"
    assert first.at.timestamp() == 1_700_000_000.123456
    assert first.took.total_seconds() == -1.5
    assert [row.gone for row in rows] == [False, True, False, True, False, True]
    assert [row.valueError is None for row in rows] == [True, True, True, False, True, False]
