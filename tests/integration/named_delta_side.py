"""Exports into Delta tables by name with `backfill(…, writer="spark")`, and records the outcomes.

This script runs in a separate environment with a Spark version for which Delta has a release. Its
only argument is a JSON file:

    jars    list of paths for `spark.jars`
    out     folder for tiers, tables and results

Each function `scenario_…` returns values that can be stored as JSON. The script writes
`outcomes.json`, which maps the name of each scenario to these values.
"""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kts_source import backfill
from kts_source.errors import TieredKafkaError
from kts_source.export.follow import follow
from kts_source.export.ranges import RangeAdvance, partition_key
from kts_source.export.run import export
from kts_source.export.settings import export_settings
from kts_source.export.tables.export_table import Commit
from kts_source.spark.named_delta import NamedDeltaTable
from kts_source.spark.row_frames import RowExecutor
from tests.golden_data import tier_options
from tests.integration.other_spark import other_spark
from tests.kts_source.export.small_tier import TOPIC, SmallTier, offset_option

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

    from kts_source.export.ranges import OffsetRange, PartitionKey
    from kts_source.export.report import BackfillReport

SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    # Most code of these short queries runs only a few times.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.databricks.delta.snapshotPartitions": "1",
}
ONE_SEGMENT = {"writer": "spark", "commit_bytes": 1}

# Method, its class, number of the call, and whether the run dies before or after it. The first call
# of `_try_commit` creates the table.
KILLS = (
    ("_create", NamedDeltaTable, 0, True),
    ("run", RowExecutor, 1, True),
    ("_try_commit", NamedDeltaTable, 1, False),
    ("_try_commit", NamedDeltaTable, 1, True),
    ("_note", NamedDeltaTable, 0, False),
)


class Killed(BaseException):
    """Stands for the death of the process."""


@dataclass(frozen=True)
class World:
    """The session, and a tier with two segments of ten records."""

    spark: SparkSession
    out: Path
    tier: SmallTier

    def run(self, table: str, **arguments: Any) -> BackfillReport:  # noqa: ANN401
        source = arguments.pop("source", self.tier.options())
        arguments = {**ONE_SEGMENT, "progress": False, **arguments}
        return backfill(self.spark, source=source, target=f"shop.{table}", **arguments)

    def error(self, table: str, **arguments: Any) -> str:  # noqa: ANN401
        """Returns class and text of the error of a run."""
        try:
            self.run(table, **arguments)
        except TieredKafkaError as error:
            return f"{type(error).__name__}: {error}"
        return "no error"

    def offsets(self, table: str) -> list[int]:
        """Returns the offsets of all rows of a table, sorted."""
        if not self.spark.catalog.tableExists(f"shop.{table}"):
            return []
        return sorted(
            row[0] for row in self.spark.table(f"shop.{table}").select("offset").collect()
        )

    def folder(self, table: str) -> Path:
        return self.out / "warehouse" / "shop.db" / table


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


def scenario_kills(world: World) -> list[list[Any]]:
    """Raises an error before or after each step of the protocol, and runs again. The result has
    for each kill: the step, the offsets after the kill, and the offsets after the next run.
    """
    outcomes: list[list[Any]] = []
    for name, owner, count, after in KILLS:
        table = f"kill_{name.strip('_')}_{count}_{after}".lower()
        _run_killed(world, table, owner, name, count, after=after)
        left = world.offsets(table)
        report = world.run(table)
        outcomes.append([table, left, world.offsets(table), report.rows])
    return outcomes


def _run_killed(
    world: World, table: str, owner: type, name: str, count: int, *, after: bool
) -> None:
    """Runs an export that dies at call number `count` of a method."""
    original: Callable[..., Any] = getattr(owner, name)
    calls = iter(range(1000))

    def dying(*arguments: Any) -> Any:  # noqa: ANN401
        is_last = next(calls) == count
        if is_last and not after:
            raise Killed
        result = original(*arguments)
        if name == "run":
            result = iter(list(result))
        if is_last:
            raise Killed
        return result

    setattr(owner, name, dying)
    try:
        world.run(table)
    except Killed:
        pass
    finally:
        setattr(owner, name, original)


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


def scenario_concurrent_exports(world: World) -> dict[str, Any]:
    """Four exports try to commit the same offsets on the same snapshot at once. Two of them have
    another id, so that their ranges are no ranges of the others.
    """
    other_partition = SmallTier(world.out / "other-tier", partition=1).grow(1)
    world.run("race", source=other_partition.options(), export_id="first")
    gate = threading.Barrier(4, timeout=120)
    original = NamedDeltaTable._try_commit
    first = threading.local()

    def together(
        self: NamedDeltaTable,
        snapshot: Any,  # noqa: ANN401
        commit: Commit,
        moved: Mapping[PartitionKey, OffsetRange],
    ) -> bool:
        if not hasattr(first, "is_over"):
            first.is_over = True
            gate.wait()
        return original(self, snapshot, commit, moved)

    outcomes: list[str] = []

    def run(number: int) -> None:
        export_id = ("kts", "other")[number % 2]
        settings = export_settings("shop.race", writer="spark", export_id=export_id)
        executor = RowExecutor(world.spark)
        try:
            table = NamedDeltaTable(settings, executor)
            report = export(world.tier.options(), settings, executor, table=table)
            outcomes.append(f"{report.rows} rows")
        except TieredKafkaError as error:
            outcomes.append(type(error).__name__)

    NamedDeltaTable._try_commit = together  # type: ignore[method-assign]
    try:
        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        NamedDeltaTable._try_commit = original  # type: ignore[method-assign]
    return {"outcomes": sorted(outcomes), "offsets": world.offsets("race")}


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


def scenario_follow_and_dry_run(world: World) -> dict[str, Any]:
    dry = world.run("dry", dry_run=True)
    settings = export_settings("shop.followed", writer="spark", follow=True, round_bytes=1)
    executor = RowExecutor(world.spark)
    rounds: list[int] = []

    def pause(_seconds: float) -> None:
        raise KeyboardInterrupt

    total = follow(
        world.tier.options(),
        settings,
        executor,
        opened=lambda each: NamedDeltaTable(each, executor),
        on_round=lambda metrics, _total: rounds.append(metrics.rows),
        pause=pause,
    )
    return {
        "dry": [dry.commits, world.spark.catalog.tableExists("shop.dry")],
        "rounds": rounds,
        "rows": total.rows,
        "offsets": world.offsets("followed"),
    }


def main(spec: Mapping[str, Any]) -> None:
    """Runs the scenarios."""
    out = Path(spec["out"])
    spark = other_spark(out, jars=spec["jars"], cores=2, settings=SETTINGS)
    spark.sql("create database shop")
    world = World(spark, out, SmallTier(out / "tier").grow(2))
    outcomes = {}
    for name, scenario in list(globals().items()):
        if name.startswith("scenario_") and name[9:] in spec.get("only", [name[9:]]):
            outcomes[name.removeprefix("scenario_")] = scenario(world)
            (out / "outcomes.json").write_text(json.dumps(outcomes))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
