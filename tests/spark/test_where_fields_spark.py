"""Tests that the option `where` on fields keeps the same rows as Spark's `.where()` in ANSI
mode.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

import pytest

import kts_source
from kts_source import register
from tests.kts_source.read.typed_tier import write
from tests.kts_source.read.where_values import KINDS, SAMPLES, SCHEMA, Writer

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Column, SparkSession

pytestmark = pytest.mark.spark
ROWS: Final = 300

CONDITIONS: Final = [
    # Integers, and values of other types that they are compared with.
    "value.i = 5",
    "value.i > 1 AND value.l < 100",
    "value.l <> 5",
    "NOT value.l <= 5",
    "value.l <=> 5",
    "NOT value.l <=> NULL",
    "value.l = NULL OR value.i = 1",
    "value.i IN (1, 5, 100)",
    "value.i NOT IN (1, 5)",
    "value.i NOT IN (1, NULL)",
    "value.l IN (5, 99999999999999999999)",
    "value.l BETWEEN -1 AND 5",
    "value.l NOT BETWEEN -1 AND 5",
    "value.l >= 9223372036854775807",
    "value.l = 9223372036854775808",
    "value.i > 0.5",
    "value.i = 5.0",
    "value.i IN (1, 5.0, 0.5)",
    "value.l BETWEEN 0.5 AND 99.5",
    "value.l > 1.5e0",
    "value.l = 5D",
    "value.l = 9007199254740992D",
    "value.l <= 9.007199254740992e15",
    "value.i = value.l",
    "value.i < value.d",
    "value.l = offset OR value.l = partition",
    "5 < value.i",
    "value.i <=> value.l",
    "CAST(value.i AS DOUBLE) > 0.5",
    "CAST(value.l AS BIGINT) = 5",
    "value.i = 5L",
    # Doubles.
    "value.d = 0.1",
    "value.d = 0",
    "value.d <= 0",
    "value.d < 0",
    "value.d > 1.4999",
    "value.d >= 9007199254740993",
    "value.d > 1e300",
    "value.d <> 1.5",
    "value.d IN (0.1, 1.5e0, 7)",
    "value.d NOT IN (0.1, 0)",
    "value.d = -1.5",
    "value.d = value.d",
    "value.f = 0.1",
    "value.f = 1.5",
    "value.f = 16777217",
    "value.f > 0.09999",
    "value.f = value.d",
    "value.f <=> value.d",
    "value.d BETWEEN -2 AND 2",
    # Decimals.
    "value.p = 1.5",
    "value.p = 1.50000",
    "value.p > 1.499999",
    "value.p > 1",
    "value.p < 99999999.991",
    "value.p <> -1.5",
    "value.p IN (1.5, 0, 7.77777)",
    "value.p = 1.5e0",
    "value.p = value.q",
    "value.q = 0.1",
    "value.q > 12345678901234567890",
    "value.q = 0.1D",
    "value.p = value.i",
    "value.p < value.d",
    "value.p BETWEEN -10 AND 10.5",
    # Text and bytes.
    "value.s = 'a'",
    "value.s > 'a'",
    "value.s <> 'CH'",
    "value.s >= 'é'",
    "value.s IN ('a', 'CH', '')",
    "value.s NOT IN ('a', NULL)",
    "value.s BETWEEN 'a' AND 'b'",
    "value.s LIKE 'a%'",
    "value.s LIKE '_'",
    "value.s LIKE 'a\\%'",
    "value.s NOT LIKE '%b'",
    "value.s LIKE 'a_'",
    "startswith(value.s, 'a') OR endswith(value.s, 'H')",
    "contains(value.s, 'b')",
    "value.s = value.u.s",
    "CAST(value.s AS STRING) = 'ab'",
    "value.b = X'ff'",
    "value.b = 'ab'",
    "value.b > X'00'",
    "value.s = X'6162'",
    "value.s = CAST(key AS STRING) OR value.s = topic",
    # Booleans.
    "value.t",
    "NOT value.t",
    "value.t = false",
    "value.t <=> true",
    "value.t IS TRUE",
    "value.t IS NOT TRUE",
    "value.t IS NOT FALSE",
    "value.t OR value.i = 5",
    "value.t > value.u.t",
    "value.t IN (true, NULL)",
    # Dates and timestamps.
    "value.day = DATE '2024-02-29'",
    "value.day < '1970-01-02'",
    "value.day >= '1970-01-01' AND value.day < DATE '2025-01-01'",
    "value.day IN (DATE '1970-01-01', '1900-01-01')",
    "value.day BETWEEN '1900-01-01' AND '1970-01-01'",
    "value.at = TIMESTAMP '2024-02-29 12:00:00.000001Z'",
    "value.at > '2024-02-29 12:00:00'",
    "value.at < DATE '1970-01-02'",
    "value.at <= '1970-01-01 01:00:00+01:00'",
    "value.at < timestamp",
    "value.loc = TIMESTAMP_NTZ '2024-02-29 12:00:00'",
    "value.loc >= '2024-02-29 00:00:00'",
    "value.loc >= DATE '2024-02-29'",
    "value.loc = value.u.loc",
    "value.at = value.u.at",
    # Nested fields, nulls, structs.
    "value.u.i = 5",
    "value.u.s = 'a' AND value.s = 'a' OR value.u.d > 1",
    "value.u IS NULL",
    "value.u IS NOT NULL AND value.u.i IS NULL",
    "value IS NULL",
    "value.u.i IS NULL",
    "isnotnull(value.u.p)",
    "VALUE.U.Day IS DISTINCT FROM value.day",
    "value.i IS NOT DISTINCT FROM value.u.i",
    "NOT (value.i = 5 AND value.s = 'a')",
    "NOT (value.i = 5 OR value.s = 'a')",
    "value.i = 5 OR offset < 20",
    "value.i = 5 AND NULL",
    "value.i = 5 OR NULL",
]


def rows(seed: int, count: int) -> list[dict[str, Any] | None]:
    """Returns random rows; values of a field often repeat."""
    chance = random.Random(seed)

    def random_fields(names: dict[str, Any]) -> dict[str, Any]:
        return {
            name: None if chance.random() < 0.15 else chance.choice(SAMPLES[name]) for name in names
        }

    result: list[dict[str, Any] | None] = []
    for _ in range(count):
        value = random_fields(KINDS) | {"more": [1]}
        value["u"] = None if chance.random() < 0.2 else random_fields(KINDS)
        result.append(None if chance.random() < 0.05 else value)
    return result


def matches(condition: str) -> Column:
    """Returns a Spark column that is true for rows that match `condition`. Quotes the name
    `offset`, because it may be a keyword.
    """
    from pyspark.sql import functions as f

    return f.coalesce(f.expr(f"({condition.replace('offset', '`offset`')})"), f.lit(False))


@pytest.mark.slow
def test_where_on_fields_keeps_the_same_rows_as_spark(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"
    writer = Writer(SCHEMA)
    values = [row if row is None else writer(row) for row in rows(7, ROWS)]
    options = write(tmp_path, [values]) | {"value.format": "avro", "value.schema": writer.text}
    frame = spark.read.format("tiered-kafka").options(**options).load().cache()
    wrong: dict[str, tuple[list[int], list[int]]] = {}
    selective_count = 0
    for start in range(0, len(CONDITIONS), 40):
        chunk = CONDITIONS[start : start + 40]
        results = frame.select("offset", *map(matches, chunk)).toDF("offset", *chunk).collect()
        for condition in chunk:
            expected_offsets = sorted(row.offset for row in results if row[condition])
            scan = kts_source.scan(options | {"where": condition, "timeZone": "UTC"})
            offsets = scan.select(["offset"]).to_table(threads=1)["offset"].to_pylist()
            if offsets != expected_offsets:
                wrong[condition] = (offsets, expected_offsets)
            selective_count += 0 < len(expected_offsets) < ROWS
    frame.unpersist()
    assert not wrong
    assert selective_count > 0.9 * len(CONDITIONS), "too many conditions match all or no rows"


def test_where_on_fields_applies_to_batch_and_stream(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    writer = Writer(SCHEMA)
    values = [row if row is None else writer(row) for row in rows(8, 100)]
    options = write(tmp_path / "tier", [values])
    options |= {"value.format": "avro", "value.schema": writer.text}
    narrow = options | {"where": "value.u.i = 5 AND offset >= 10", "value.columns": "s"}
    frame = spark.read.format("tiered-kafka").options(**options).load()
    filtered = frame.where("value.u.i = 5 AND `offset` >= 10").selectExpr("`offset`", "value.s")
    expected = sorted(map(tuple, filtered.collect()))
    narrowed = spark.read.format("tiered-kafka").options(**narrow).load()
    assert sorted(map(tuple, narrowed.selectExpr("`offset`", "value.s").collect())) == expected
    assert 0 < len(expected) < 90
    query = (
        spark.readStream.format("tiered-kafka")
        .options(**narrow, startingOffsets="earliest")
        .load()
        .selectExpr("`offset`", "value.s")
        .writeStream.format("memory")
        .queryName("kept_by_fields")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert sorted(map(tuple, spark.table("kept_by_fields").collect())) == expected
