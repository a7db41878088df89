"""Exports into Delta tables by name with `backfill(…, writer="spark")`, and records the outcomes.

This script runs in a separate environment with a Spark version for which Delta has a release; see
`named_world.py`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kts_source import backfill
from kts_source.errors import TieredKafkaError
from kts_source.export.ranges import RangeAdvance, partition_key
from kts_source.export.run import export
from kts_source.export.settings import export_settings
from kts_source.export.tables.export_table import Commit
from kts_source.spark.named_delta import NamedDeltaTable
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
from tests.kts_source.export.small_tier import TOPIC, offset_option

if TYPE_CHECKING:
    from collections.abc import Mapping

SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
}

# Method, its class, number of the call, and whether the run dies before or after it. The first call
# of `_try_commit` creates the table.
KILLS = (
    ("_create_empty", NamedDeltaTable, 0, True),
    ("run", RowExecutor, 1, True),
    ("_try_commit", NamedDeltaTable, 1, False),
    ("_try_commit", NamedDeltaTable, 1, True),
    ("_note", NamedDeltaTable, 0, False),
)


def scenario_golden(world: World) -> dict[str, Any]:
    source = tier_options(["txn"], includeHeaders="true", targetPartitionBytes="100k")
    arguments = {"source": source, "commit_bytes": 250_000}
    arguments["partition_by"] = ["topic", "month(timestamp)"]
    first, second = (world.run("golden", **arguments) for _ in range(2))
    table = world.spark.table("shop.golden")
    table.write.parquet(str(world.out / "golden.parquet"))
    detail = world.spark.sql("describe detail shop.golden").collect()[0]
    return {
        "rows": [first.rows, second.rows],
        "created": [first.created, second.created],
        "commits": [first.commits, second.commits],
        "files": [first.files, detail["numFiles"]],
        "bytes": [first.file_bytes, detail["sizeInBytes"]],
        "partitions": detail["partitionColumns"],
        "types": dict(table.dtypes),
    }


def scenario_lost_response(world: World) -> dict[str, Any]:
    """The response to the second commit is lost: Spark raises an error after it. The next commit
    has offsets without rows.
    """
    from pyspark.sql.readwriter import DataFrameWriter

    original = DataFrameWriter.saveAsTable
    calls = iter(range(1000))

    def losing(self: DataFrameWriter, name: str) -> None:
        original(self, name)
        if next(calls) == 2:  # after the creation and the first commit
            raise RuntimeError("connection reset")

    DataFrameWriter.saveAsTable = losing  # type: ignore[method-assign,assignment]
    settings = export_settings("shop.lost_response", writer="spark", commit_bytes=1)
    executor = RowExecutor(world.spark)
    table = NamedDeltaTable(settings, executor)
    try:
        report = export(world.tier.options(), settings, executor, table=table)
    finally:
        DataFrameWriter.saveAsTable = original  # type: ignore[method-assign]
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


def scenario_other_tables(world: World) -> dict[str, str]:
    sql = world.spark.sql
    sql("create table shop.other_columns (offset int, name string not null) using delta")
    sql("create table shop.other_parts (topic string, n int) using delta partitioned by (topic)")
    sql("create table shop.no_delta (topic string) using parquet")
    backfill(
        None,
        source=world.tier.options(),
        target=world.folder("by_path"),
        table_format="delta",
        progress=False,
    )
    sql(f"create table shop.by_path using delta location '{world.folder('by_path')}'")
    world.run("by_name")
    names = ("other_columns", "other_parts", "no_delta", "by_path")
    errors = {name: world.error(name) for name in names}
    try:
        backfill(
            None,
            source=world.tier.options(),
            target=world.folder("by_name"),
            table_format="delta",
            progress=False,
        )
    except TieredKafkaError as error:
        errors["path_of_by_name"] = f"{type(error).__name__}: {error}"
    return errors


def scenario_history(world: World) -> dict[str, Any]:
    """The table is changed by others: rows of another writer, a RESTORE, and an expired history."""
    world.run("changed", source=world.tier.options(endingOffsets=offset_option(10)))
    world.spark.sql("insert into shop.changed select * from shop.changed where offset = 0")
    after_insert = world.run("changed").rows
    world.spark.sql("restore table shop.changed to version as of 1")
    restored = world.error("changed")
    world.run("expired", source=world.tier.options(endingOffsets=offset_option(10)))
    sql = world.spark.sql
    sql("alter table shop.expired set tblproperties ('delta.checkpointInterval' = '1')")
    sql("insert into shop.expired select * from shop.expired where offset = 0")
    log = world.folder("expired") / "_delta_log"
    for number in range(3):
        (log / f"{number:020d}.json").unlink()
        (log / f".{number:020d}.json.crc").unlink(missing_ok=True)
    expired = world.error("expired")
    return {
        "rows": after_insert,
        "restored": restored,
        "expired": expired,
        "offsets": world.offsets("expired"),
    }


def scenario_typed(world: World) -> dict[str, Any]:
    """Decodes values, and rejects some: with a limit, and with a folder for dead letters."""
    typed = world.tier.options(**{"value.format": "json", "value.schema": "a bigint"})
    letters = world.out / "letters"
    text = world.tier.options(**{"value.format": "utf8"})
    limited = world.error("typed", source=typed, dead_letters=letters)
    report = world.run("typed", source=typed, dead_letters=letters, max_rejected="100%")
    texts = world.run("texts", source=text)
    found = world.spark.read.parquet(str(letters)).select("offset").collect()
    return {
        "limited": limited,
        "rejected": report.rejected,
        "letters": sorted(row[0] for row in found),
        "again": world.run(
            "typed", source=typed, dead_letters=letters, max_rejected="100%"
        ).rejected,
        "types": dict(world.spark.table("shop.typed").dtypes),
        "texts": [texts.rows, world.spark.table("shop.texts").where("value = '7'").count()],
    }


def scenario_kills(world: World) -> list[list[Any]]:
    return kills(world, KILLS)


def scenario_concurrent_exports(world: World) -> dict[str, Any]:
    return race(world, NamedDeltaTable, "race", is_new=False)


def scenario_follow_and_dry_run(world: World) -> dict[str, Any]:
    return follow_and_dry_run(world, NamedDeltaTable)


def main(spec: Mapping[str, Any]) -> None:
    """Runs the scenarios."""
    world = start(spec, SETTINGS, "shop", {"writer": "spark"})
    run_scenarios(world, globals(), spec)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
