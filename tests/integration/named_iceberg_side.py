"""Exports into Iceberg tables by name with `backfill(…, writer="spark")`, and records the outcomes.

This script runs in a separate environment with a Spark version for which Iceberg has a release; see
`named_world.py`. The tables are in the SQLite catalog `catalog.db`, which PyIceberg opens as well,
and in the catalogs of `other_catalogs`. The JSON file also has

    rest      URL of a REST catalog
    refusing  URL of a REST catalog that refuses to create branches
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.readwriter import DataFrameWriterV2

from kts_source import backfill
from kts_source.export.ranges import RangeAdvance, partition_key
from kts_source.export.run import export
from kts_source.export.tables.export_table import Commit
from kts_source.spark.named_iceberg import NamedIcebergTable
from kts_source.spark.row_frames import RowExecutor
from tests.golden_data import tier_options
from tests.integration.named_world import (
    World,
    follow_and_dry_run,
    kills,
    race,
    run_scenarios,
    start,
)
from tests.kts_source.export.small_tier import TOPIC, SmallTier, offset_option

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kts_source.export.settings import ExportArguments

named: Any = NamedIcebergTable
writer: Any = DataFrameWriterV2

# Method, its class, number of the call, and whether the run dies before or after it.
KILLS = (
    ("_create_empty", NamedIcebergTable, 0, True),
    ("run", RowExecutor, 1, True),
    ("_stage", NamedIcebergTable, 0, False),
    ("append", DataFrameWriterV2, 0, False),
    ("append", DataFrameWriterV2, 0, True),
    ("_publish", NamedIcebergTable, 0, True),
)


def branches(world: World, table: str) -> int:
    """Returns the number of branches of exports in a table."""
    references = world.spark.table(f"{world.name(table)}.refs")
    return references.where("name like 'kts%'").count()


def scenario_golden(world: World) -> dict[str, Any]:
    source = tier_options(["txn"], includeHeaders="true", targetPartitionBytes="100k")
    arguments = {"source": source, "commit_bytes": 250_000}
    arguments["partition_by"] = ["topic", "month(timestamp)"]
    first, second = (world.run("golden", **arguments) for _ in range(2))
    name = world.name("golden")
    world.spark.table(name).write.parquet(str(world.out / "golden.parquet"))
    files = world.spark.sql(f"select count(*), sum(file_size_in_bytes) from {name}.files")
    in_table = files.collect()[0]
    partitions = world.spark.table(f"{name}.partitions").select("partition.*").columns
    return {
        "rows": [first.rows, second.rows],
        "created": [first.created, second.created],
        "commits": [first.commits, second.commits],
        "files": [first.files, in_table[0]],
        "bytes": [first.file_bytes, in_table[1]],
        "partitions": partitions,
        "branches": branches(world, "golden"),
    }


def scenario_kills(world: World) -> dict[str, Any]:
    outcomes = kills(world, KILLS)
    return {
        "kills": outcomes,
        "branches": sum(branches(world, table) for table, *_ in outcomes),
    }


def scenario_concurrent_exports(world: World) -> dict[str, Any]:
    return race(world, NamedIcebergTable, "race", is_new=False)


def scenario_concurrent_first_commits(world: World) -> dict[str, Any]:
    """The table has no snapshot, and columns that the rows lack."""
    rows = "offset bigint, topic string, partition int, timestamp timestamp, timestampType int"
    world.spark.sql(
        f"create table {world.name('empty')} (key binary, value binary, {rows}, note string)"
        " using iceberg tblproperties ('write.parquet.compression-codec' = 'gzip')"
    )
    return race(world, NamedIcebergTable, "empty", is_new=True)


def scenario_lost_branch(world: World) -> dict[str, Any]:
    """Before Spark appends, another run commits the same offsets and so removes the branch. The
    append creates it again at the current snapshot.
    """
    append: Callable[[DataFrameWriterV2], None] = writer.append
    stage = NamedIcebergTable._stage
    first: list[tuple[NamedIcebergTable, str]] = []

    def staging(self: NamedIcebergTable, *arguments: Any) -> Any:  # noqa: ANN401
        first.append((self, arguments[-1]))
        return stage(self, *arguments)

    def losing(self: DataFrameWriterV2) -> None:
        if len(first) == 1:
            world.run("lost_branch")
            table, branch = first[0]
            table._java_table().manageSnapshots().createBranch(branch).commit()
        append(self)

    writer.append = losing
    named._stage = staging
    try:
        error = world.error("lost_branch")
    finally:
        writer.append = append
        named._stage = stage
    return {"error": error, "offsets": world.offsets("lost_branch")}


def scenario_lost_response(world: World) -> dict[str, Any]:
    """The response to the first commit is lost. A later commit has offsets without rows."""
    original = NamedIcebergTable._publish
    calls: list[str] = []

    def losing(self: NamedIcebergTable, *arguments: Any) -> None:  # noqa: ANN401
        original(self, *arguments)
        if not calls:
            calls.append("")
            raise RuntimeError("connection reset")

    named._publish = losing
    settings = world.settings("lost_response", commit_bytes=1)
    executor = RowExecutor(world.spark)
    table = NamedIcebergTable(settings, executor)
    try:
        report = export(world.tier.options(), settings, executor, table=table)
    finally:
        named._publish = original
    state = table.load()
    key = partition_key(TOPIC, world.tier.topic_id or "", 0)
    advance = RangeAdvance(TOPIC, key, expected=20, start=20, stop=25)
    table.commit(Commit((advance,), (), state.fingerprint, state.schema(), report.run_id))
    held = table.load().committed.get(key)
    return {
        "rows": report.rows,
        "offsets": world.offsets("lost_response"),
        "held": held and [held.start, held.stop],
    }


def scenario_both_writers(world: World) -> dict[str, Any]:
    """Exports in turn with PyIceberg and with Spark, first into a table of PyIceberg and then into
    a table of Spark.
    """
    tier = SmallTier(world.out / "turns").grow(4)
    catalog = {
        "name": "lake",
        "type": "sql",
        "uri": f"sqlite:///{world.out}/catalog.db",
        "warehouse": world.out.as_uri(),
    }
    outcomes: dict[str, Any] = {}
    for first in ("pyiceberg", "spark"):
        rows = []
        for turn in range(4):
            source = tier.options(endingOffsets=offset_option(10 * turn + 10))
            arguments: dict[str, Any] = {"partition_by": ["date(timestamp)"]}
            if (first == "spark") == (turn % 2 == 0):
                rows.append(world.run(first, source=source, **arguments).rows)
                continue
            report = backfill(
                None,
                source=source,
                target=f"shop.{first}",
                table_format="iceberg",
                catalog=catalog,
                verify=turn > 0,
                progress=False,
                **arguments,
            )
            rows.append(report.rows)
        world.spark.catalog.refreshTable(world.name(first))
        outcomes[first] = {"rows": rows, "offsets": world.offsets(first)}
    return outcomes


def scenario_changed_tables(world: World) -> dict[str, str]:
    """The table is changed by others: other columns and partitions, a rollback, a replaced table,
    and a table that is dropped during a run.
    """
    sql = world.spark.sql
    name = world.name
    sql(f"create table {name('columns')} (offset int, name string not null) using iceberg")
    sql(f"create table {name('parts')} (topic string) using iceberg partitioned by (topic)")
    errors = {table: world.error(table) for table in ("columns", "parts")}

    half = world.tier.options(endingOffsets=offset_option(10))
    for table in ("rolled_back", "replaced", "dropped"):
        world.run(table, source=half)
    snapshots = sql(
        f"select snapshot_id from {name('rolled_back')}.snapshots order by committed_at"
    )
    rollback = f"rollback_to_snapshot('shop.rolled_back', {snapshots.collect()[0][0]})"
    sql(f"call lake.system.{rollback}")
    sql(f"create or replace table {name('replaced')} using iceberg as select 1 as n")

    original = NamedIcebergTable._stage

    def dropping(self: NamedIcebergTable, *arguments: Any) -> Any:  # noqa: ANN401
        sql(f"drop table if exists {name('dropped')}")
        return original(self, *arguments)

    errors |= {table: world.error(table) for table in ("rolled_back", "replaced")}
    named._stage = dropping
    try:
        errors["dropped"] = world.error("dropped")
    finally:
        named._stage = original
    return errors


def scenario_typed(world: World) -> dict[str, Any]:
    typed = world.tier.options(**{"value.format": "json", "value.schema": "a bigint"})
    letters = world.out / "letters"
    report = world.run("typed", source=typed, dead_letters=letters, max_rejected="100%")
    return {
        "rejected": report.rejected,
        "again": world.run("typed", source=typed, dead_letters=letters).rejected,
        "type": dict(world.spark.table(world.name("typed")).dtypes)["value"],
    }


def scenario_follow_and_dry_run(world: World) -> dict[str, Any]:
    return follow_and_dry_run(world, NamedIcebergTable)


def scenario_catalogs(world: World) -> dict[str, Any]:
    """Exports into other catalogs. The first run dies before its rows become visible."""
    step = ("append", DataFrameWriterV2, 0, True)
    outcomes: dict[str, Any] = {}
    for catalog in ("rest", "hadoop", "hive"):
        other = replace(world, namespace=f"{catalog}.shop")
        world.spark.sql(f"create database {other.namespace}")
        ((table, before, after, rows),) = kills(other, (step,))
        outcomes[catalog] = {
            "offsets": [before, after],
            "rows": [rows, other.run(table).rows],
            "branches": branches(other, table),
            "race": race(other, NamedIcebergTable, "race", is_new=True),
        }
    return outcomes


def scenario_unsuitable_catalogs(world: World) -> dict[str, Any]:
    outcomes = {}
    (world.out / "store").mkdir()
    for catalog in ("refusing", "store"):
        other = replace(world, namespace=f"{catalog}.unsuitable")
        world.spark.sql(f"create database {other.namespace}")
        error = other.error("rows")
        outcomes[catalog] = {"error": error, "offsets": other.offsets("rows")}
    return outcomes


def other_catalogs(spec: Mapping[str, Any]) -> dict[str, str]:
    """Returns Spark settings of more catalogs. The catalog `store` has its files in a local folder,
    but with URLs of an object store.
    """
    out = spec["out"]
    catalogs = {
        "rest": {"type": "rest", "uri": spec["rest"]},
        "refusing": {"type": "rest", "uri": spec["refusing"]},
        "hadoop": {"type": "hadoop", "warehouse": f"file://{out}/hadoop"},
        "store": {"type": "hadoop", "warehouse": "s3a://bucket/store"},
        "hive": {"type": "hive", "warehouse": f"file://{out}/hive"},
    }
    settings = {
        "spark.hadoop.fs.s3a.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme",
        "spark.hadoop.fs.viewfs.mounttable.bucket.link./store": f"file://{out}/store",
        "spark.hadoop.javax.jdo.option.ConnectionURL": "jdbc:derby:memory:hive;create=true",
        "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
        "spark.hadoop.hive.metastore.schema.verification": "false",
        # The metastore compares the location of the metadata instead.
        "spark.hadoop.iceberg.engine.hive.lock-enabled": "false",
    }
    for name, properties in catalogs.items():
        catalog = f"spark.sql.catalog.{name}"
        settings[catalog] = "org.apache.iceberg.spark.SparkCatalog"
        settings |= {f"{catalog}.{key}": text for key, text in properties.items()}
    return settings


def main(spec: Mapping[str, Any]) -> None:
    """Runs the scenarios."""
    catalog = "spark.sql.catalog.lake"
    settings = {
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        f"{catalog}.uri": f"jdbc:sqlite:{spec['out']}/catalog.db",
        f"{catalog}.warehouse": Path(spec["out"]).as_uri(),
        f"{catalog}.jdbc.schema-version": "V1",
        **other_catalogs(spec),
    }
    arguments: ExportArguments = {"writer": "spark", "table_format": "iceberg"}
    world = start(spec, settings, "lake.shop", arguments)
    run_scenarios(world, globals(), spec)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
