"""Reads exported Delta and Iceberg tables with Delta's and Iceberg's own code in Spark.

These Java libraries share no code with `deltalake` and `pyiceberg`, which wrote the tables. The
tests therefore also check the log, the manifests, the catalog and the statistics.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.golden_data import TOPICS
from tests.integration.kafka_jars import spark_lake_jars
from tests.integration.spark_kafka import run_script
from tests.kts_source.export.exporting import ICEBERG_TABLE, Lake, assert_holds, source

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(720)]

FORMATS = ("delta", "iceberg")
SCRIPT = Path(__file__).with_name("lake_side.py")
OFFSETS = (0, 100, 500, 3000, 3600)
CATALOG = "spark.sql.catalog.lake"


@dataclass(frozen=True)
class Read:
    """Results of the Spark script that read the exported tables.

    Attributes:
        rows: Rows by table format. Column `_file` contains the file of each row.
        pruned: For each offset in `OFFSETS`, the files of the Delta table that Spark reads to find
            this offset.
        bounds: Column bounds of each file, as Iceberg's manifests contain them.
    """

    rows: Mapping[str, pa.Table]
    pruned: Sequence[frozenset[str]]
    bounds: Sequence[Mapping[str, Any]]


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Read:
    jars = spark_lake_jars()
    folder = tmp_path_factory.mktemp("lakes")
    lakes = {name: Lake(folder / name, name) for name in FORMATS}
    for lake in lakes.values():
        lake.folder.mkdir()
        # Export twice, so that the tables have several commits. The second run adds a topic.
        lake.export(source(TOPICS[1:]), partition_by=["topic", "date(timestamp)"])
        lake.export(source(TOPICS[:1]), partition_by=["topic", "date(timestamp)"])
    out = folder / "out"
    out.mkdir()
    spec = {
        "jars": [str(path) for path in jars],
        "settings": {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            CATALOG: "org.apache.iceberg.spark.SparkCatalog",
            f"{CATALOG}.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            f"{CATALOG}.uri": f"jdbc:sqlite:{lakes['iceberg'].folder}/catalog.db",
            f"{CATALOG}.warehouse": lakes["iceberg"].folder.as_uri(),
            f"{CATALOG}.jdbc.schema-version": "V1",
        },
        "tables": {
            "delta": f"delta.`{lakes['delta'].target}`",
            "iceberg": f"lake.{ICEBERG_TABLE}",
        },
        "conditions": [f"`offset` = {offset}" for offset in OFFSETS],
        "out": str(out),
    }
    run_script(SCRIPT, spec, out)
    return Read(
        {name: pq.read_table(out / f"{name}.parquet") for name in FORMATS},
        [frozenset(map(_path, files)) for files in json.loads((out / "pruned.json").read_text())],
        json.loads((out / "bounds.json").read_text()),
    )


def _path(uri: str) -> str:
    return unquote(urlparse(uri).path)


def _files(rows: pa.Table) -> dict[str, dict[str, int]]:
    """Maps each file to its number of rows and to the bounds of their offsets and timestamps."""
    microseconds = rows["timestamp"].cast(pa.timestamp("us")).cast(pa.int64())
    grouped = (
        rows.select(["_file", "offset"])
        .append_column("us", microseconds)
        .group_by("_file")
        .aggregate(
            [("offset", "min"), ("offset", "max"), ("us", "min"), ("us", "max"), ([], "count_all")]
        )
    )
    return {
        _path(row["_file"]): {
            "rows": row["count_all"],
            "first_offset": row["offset_min"],
            "last_offset": row["offset_max"],
            "first_us": row["us_min"],
            "last_us": row["us_max"],
        }
        for row in grouped.to_pylist()
    }


@pytest.mark.parametrize("table_format", FORMATS)
def test_spark_reads_all_rows_of_exported_table(read: Read, table_format: str) -> None:
    rows = read.rows[table_format]
    assert_holds(rows, TOPICS)
    if "timestamp_date" in rows.column_names:
        days = rows["timestamp"].cast(pa.timestamp("us")).cast(pa.date32())
        assert pc.all(pc.equal(rows["timestamp_date"], days)).as_py()


def test_iceberg_manifests_contain_row_count_and_bounds_of_every_file(read: Read) -> None:
    files = _files(read.rows["iceberg"])
    assert len(files) > len(TOPICS)
    entries = {_path(entry["file"]): {**entry} for entry in read.bounds}
    for entry in entries.values():
        del entry["file"]
    assert entries == files


def test_spark_query_of_one_offset_reads_only_delta_files_with_that_offset(read: Read) -> None:
    files = _files(read.rows["delta"])
    assert len(files) > len(TOPICS)
    for offset, remaining in zip(OFFSETS, read.pruned, strict=True):
        matching = {
            path
            for path, bounds in files.items()
            if bounds["first_offset"] <= offset <= bounds["last_offset"]
        }
        assert remaining == matching
    assert all(0 < len(remaining) < len(files) for remaining in read.pruned)
