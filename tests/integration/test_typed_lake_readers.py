"""Reads exported tables of decoded values with Delta, Iceberg and Spark.

A second export added fields to each table.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kts_source
from tests.integration.kafka_jars import spark_lake_jars
from tests.integration.spark_kafka import run_script
from tests.integration.test_lake_readers import CATALOG, SCRIPT
from tests.kts_source.export.exporting import ICEBERG_TABLE, Lake
from tests.kts_source.read.typed_tier import OLD, SCHEMA, TOPIC, avro, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(720)]

FORMATS = ("parquet", "delta", "iceberg")
CONDITIONS: dict[str, Callable[[Any], bool]] = {
    "value.amount = 3": lambda value: bool(value["amount"] == 3),
    "value.amount > 15": lambda value: bool(value["amount"] > 15),
    "value.note = 'n12'": lambda value: bool(value["note"] == "n12"),
}
WHERE = "value.country = 'DE' and value.amount > 4"


def _spark_job(lakes: dict[str, Lake]) -> dict[str, Any]:
    """Returns the input of the script that reads the tables in Spark.

    The input contains Spark settings, tables, conditions and queries.
    """
    tables = {
        "delta": f"delta.`{lakes['delta'].target}`",
        "iceberg": f"lake.{ICEBERG_TABLE}",
    }
    parquet = f"parquet.`{lakes['parquet'].target}`"
    return {
        "settings": {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            CATALOG: "org.apache.iceberg.spark.SparkCatalog",
            f"{CATALOG}.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            f"{CATALOG}.uri": f"jdbc:sqlite:{lakes['iceberg'].folder}/catalog.db",
            f"{CATALOG}.warehouse": lakes["iceberg"].folder.as_uri(),
            f"{CATALOG}.jdbc.schema-version": "V1",
            "spark.sql.parquet.mergeSchema": "true",
        },
        "tables": tables,
        "conditions": list(CONDITIONS),
        "queries": {
            "parquet": f"select * from {parquet}",
            **{
                f"{name}-where": f"select `offset` from {table} where {WHERE}"
                for name, table in {**tables, "parquet": parquet}.items()
            },
            "parts": f"select partition.value_country as country, record_count as n,"
            f" readable_metrics.`value.amount`.lower_bound as low from lake.{ICEBERG_TABLE}.files",
        },
    }


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pa.Table]:
    """Exports tables, reads them with Spark, and scans the topic. Returns the folder with Spark's
    output, and the rows of the scan.
    """
    jars = spark_lake_jars()
    folder = tmp_path_factory.mktemp("typed")
    registry = folder / "schemas"
    registry.mkdir()
    for number, schema in enumerate((OLD, SCHEMA), 1):
        (registry / f"{number}.avsc").write_text(json.dumps(schema))
    values: list[bytes | None] = [b"\0\0\0\0\1" + avro(n, old=True) for n in range(10)]
    values += [b"\0\0\0\0\2" + avro(n) for n in range(10, 30)]
    values[5] = values[15] = None
    topic = write(folder / "tier", [values]) | {
        "value.format": "avro-confluent",
        "value.schema-registry.url": str(registry),
        "maxSegmentsPerTask": "1",
    }
    old = {"value.schema": json.dumps(OLD), "endingOffsets": json.dumps({TOPIC: {"0": 10}})}
    new = topic | {"value.schema": json.dumps(SCHEMA)}
    lakes = {name: Lake(folder / name, name) for name in FORMATS}
    for lake in lakes.values():
        lake.folder.mkdir()
        settings: Any = {
            "partition_by": ["value.country"],
            "schema_evolution": "add",
            "commit_bytes": 1,
        }
        lake.export(topic | old, **settings)
        lake.export(new, **settings)
    out = folder / "out"
    out.mkdir()
    run_script(SCRIPT, {**_spark_job(lakes), "jars": list(map(str, jars)), "out": str(out)}, out)
    rows = kts_source.scan(topic | old).to_table().to_pylist()
    for row in rows:
        if row["value"] is not None:
            row["value"] |= dict.fromkeys(field["name"] for field in SCHEMA["fields"][4:])
    starting = {"startingOffsets": json.dumps({TOPIC: {"0": 10}})}
    rows += kts_source.scan(new | starting).to_table().to_pylist()
    return out, pa.Table.from_pylist(rows, kts_source.scan(new).schema)


@pytest.mark.parametrize("table_format", FORMATS)
def test_spark_reads_all_rows_of_table_with_decoded_values(
    table_format: str, expected: tuple[Path, pa.Table]
) -> None:
    out, rows = expected
    read = pq.read_table(out / f"{table_format}.parquet").sort_by("offset")
    for name in ("offset", "key"):
        assert read[name].to_pylist() == rows[name].to_pylist()
    assert read["value"].cast(rows.schema.field("value").type).to_pylist() == (
        rows["value"].to_pylist()
    )
    assert read["value_country"].to_pylist() == [
        value and value["country"] for value in rows["value"].to_pylist()
    ]


@pytest.mark.parametrize("table_format", FORMATS)
def test_spark_query_with_field_conditions_returns_matching_rows(
    table_format: str, expected: tuple[Path, pa.Table]
) -> None:
    out, rows = expected
    offsets = pq.read_table(out / f"{table_format}-where.parquet")["offset"].to_pylist()
    assert sorted(offsets) == [
        row["offset"]
        for row in rows.to_pylist()
        if row["value"] and row["value"]["country"] == "DE" and row["value"]["amount"] > 4
    ]
    assert len(offsets) > 3


def test_spark_query_with_field_conditions_skips_delta_files(
    expected: tuple[Path, pa.Table],
) -> None:
    out, rows = expected
    file_of = {
        row["offset"]: unquote(urlparse(row["_file"]).path)
        for row in pq.read_table(out / "delta.parquet").to_pylist()
    }
    pruned = json.loads((out / "pruned.json").read_text())
    matching = [
        {file_of[row["offset"]] for row in rows.to_pylist() if row["value"] and holds(row["value"])}
        for holds in CONDITIONS.values()
    ]
    remaining = [{unquote(urlparse(file).path) for file in files} for files in pruned]
    for needed, read in zip(matching, remaining, strict=True):
        assert needed <= read
        assert len(read) < len(set(file_of.values()))


def test_iceberg_manifests_contain_partition_values_and_field_bounds(
    expected: tuple[Path, pa.Table],
) -> None:
    out, rows = expected
    files = pq.read_table(out / "parts.parquet").to_pylist()
    counts: dict[str | None, int] = {}
    for file in files:
        counts[file["country"]] = counts.get(file["country"], 0) + file["n"]
        assert (file["low"] is None) == (file["country"] is None)
    countries = [value and value["country"] for value in rows["value"].to_pylist()]
    assert counts == {name: countries.count(name) for name in set(countries)}
