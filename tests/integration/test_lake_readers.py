"""Reads exported Delta and Iceberg tables with Delta's and Iceberg's own code in Spark.

These Java libraries share no code with `deltalake` and `pyiceberg`, which wrote the tables. The
tests therefore also check the log, the manifests, the catalog and the statistics. Spark also reads
a table of a REST catalog, and tables in all formats whose partition values are odd texts.
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
from tests.integration.iceberg_catalogs import CatalogLake, rest_catalog
from tests.integration.kafka_jars import spark_lake_jars
from tests.integration.spark_kafka import run_script
from tests.kts_source.export.exporting import FORMATS as ALL_FORMATS
from tests.kts_source.export.exporting import ICEBERG_TABLE, Lake, assert_holds, source
from tests.kts_source.export.tables.rows import by_country, tier_of
from tests.kts_source.export.tables.test_partition_values import ELSEWHERE, TEXTS

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
        queries: Results of other queries by name.
    """

    rows: Mapping[str, pa.Table]
    pruned: Sequence[frozenset[str]]
    bounds: Sequence[Mapping[str, Any]]
    queries: Mapping[str, pa.Table]


def _texts(table_format: str) -> list[str | None]:
    return [*TEXTS, *ELSEWHERE[table_format]]


def _sql_is_equal(column: str, text: str | None) -> str:
    if text is None:
        return f"{column} is null"
    return f"{column} = decode(unhex('{text.encode().hex()}'), 'utf-8')"


def _odd_queries(folder: Path, iceberg: Lake) -> dict[str, str]:
    """Exports tables whose partition values are odd texts; that in Iceberg to the catalog of the
    table `iceberg`. Returns queries that read all rows, and the offsets of the rows with each text.
    """
    queries = {}
    for name in ALL_FORMATS:
        lake = Lake(folder / f"odd-{name}", name)
        table = f"{name}.`{lake.target}`"
        if name == "iceberg":
            lake = CatalogLake(lake.folder, name, iceberg.catalog, "lake.odd")
            table = "lake.lake.odd"
        lake.folder.mkdir()
        tier = tier_of(lake.folder / "tier", _texts(name))
        lake.export(tier, partition_by=["country"], transform=by_country)
        queries[f"odd-{name}"] = f"select `offset`, country from {table} order by `offset`"
        queries[f"odd-{name}-where"] = " union all ".join(
            f"select {number} as number, `offset` from {table}"
            f" where {_sql_is_equal('country', text)}"
            for number, text in enumerate(_texts(name))
        )
    return queries


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
    settings = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        CATALOG: "org.apache.iceberg.spark.SparkCatalog",
        f"{CATALOG}.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        f"{CATALOG}.uri": f"jdbc:sqlite:{lakes['iceberg'].folder}/catalog.db",
        f"{CATALOG}.warehouse": lakes["iceberg"].folder.as_uri(),
        f"{CATALOG}.jdbc.schema-version": "V1",
    }
    queries = _odd_queries(folder, lakes["iceberg"])
    with rest_catalog(folder) as url:
        named = CatalogLake(folder, "iceberg", {"type": "rest", "uri": url}, ICEBERG_TABLE)
        named.export(source("txn"), partition_by=["date(timestamp)"])
        settings |= {
            "spark.sql.catalog.rest": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.rest.type": "rest",
            "spark.sql.catalog.rest.uri": url,
        }
        queries["rest"] = f"select * from rest.{ICEBERG_TABLE}"
        spec = {
            "jars": [str(path) for path in jars],
            "settings": settings,
            "tables": {
                "delta": f"delta.`{lakes['delta'].target}`",
                "iceberg": f"lake.{ICEBERG_TABLE}",
            },
            "conditions": [f"`offset` = {offset}" for offset in OFFSETS],
            "queries": queries,
            "out": str(out),
        }
        run_script(SCRIPT, spec, out)
    return Read(
        {name: pq.read_table(out / f"{name}.parquet") for name in FORMATS},
        [frozenset(map(_path, files)) for files in json.loads((out / "pruned.json").read_text())],
        json.loads((out / "bounds.json").read_text()),
        {name: pq.read_table(out / f"{name}.parquet") for name in queries},
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


def test_spark_reads_all_rows_by_name_from_a_rest_catalog(read: Read) -> None:
    assert_holds(read.queries["rest"], ["txn"])


@pytest.mark.parametrize("table_format", ALL_FORMATS)
def test_spark_finds_rows_by_odd_partition_texts(read: Read, table_format: str) -> None:
    texts = _texts(table_format)
    rows = read.queries[f"odd-{table_format}"].sort_by("offset")
    assert rows["offset"].to_pylist() == list(range(len(texts)))
    assert rows["country"].to_pylist() == texts
    matching = read.queries[f"odd-{table_format}-where"].sort_by("offset").to_pylist()
    assert matching == [{"number": n, "offset": n} for n in range(len(texts))]
