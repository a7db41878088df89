"""Scenarios of exports to tables by catalog name, for scripts that run in a separate environment.

A script gets the path of a JSON file:

    jars    list of paths for `spark.jars`
    out     folder for tiers, tables and results
    only    optional; names of the scenarios to run

Each of its functions `scenario_…` returns values that can be stored as JSON. The script writes
`outcomes.json`, which maps the name of each scenario to these values.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kts_source import backfill
from kts_source.errors import TieredKafkaError
from kts_source.export.follow import follow
from kts_source.export.run import export
from kts_source.export.settings import export_settings
from kts_source.spark.row_frames import RowExecutor
from tests.integration.other_spark import other_spark
from tests.kts_source.export.small_tier import SmallTier

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from kts_source.export.ranges import OffsetRange, PartitionKey
    from kts_source.export.report import BackfillReport
    from kts_source.export.settings import ExportArguments, ExportSettings
    from kts_source.export.tables.export_table import Commit, ExportTable

SETTINGS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    # Most code of these short queries runs only a few times.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


class Killed(BaseException):
    """Stands for the death of the process."""


@dataclass(frozen=True)
class World:
    """A session, and a tier with two segments of ten records.

    Attributes:
        spark: The session.
        out: Folder for all files.
        tier: The tier.
        namespace: Catalog and namespace of all tables.
        arguments: Arguments of all exports.
    """

    spark: SparkSession
    out: Path
    tier: SmallTier
    namespace: str
    arguments: ExportArguments

    def settings(self, table: str, **arguments: Any) -> ExportSettings:  # noqa: ANN401
        return export_settings(self.name(table), **{**self.arguments, **arguments})

    def name(self, table: str) -> str:
        return f"{self.namespace}.{table}"

    def run(self, table: str, **arguments: Any) -> BackfillReport:  # noqa: ANN401
        source = arguments.pop("source", self.tier.options())
        arguments = {**self.arguments, "commit_bytes": 1, "progress": False, **arguments}
        return backfill(self.spark, source=source, target=self.name(table), **arguments)

    def error(self, table: str, **arguments: Any) -> str:  # noqa: ANN401
        """Returns class and text of the error of a run."""
        try:
            self.run(table, **arguments)
        except TieredKafkaError as error:
            return f"{type(error).__name__}: {error}"
        return "no error"

    def offsets(self, table: str) -> list[int]:
        """Returns the offsets of all rows of a table, sorted."""
        if not self.spark.catalog.tableExists(self.name(table)):
            return []
        return sorted(
            row[0] for row in self.spark.table(self.name(table)).select("offset").collect()
        )

    def folder(self, table: str) -> Path:
        return self.out / "warehouse" / "shop.db" / table


def start(
    spec: Mapping[str, Any],
    settings: Mapping[str, str],
    namespace: str,
    arguments: ExportArguments,
) -> World:
    """Starts Spark, and creates the namespace and the tier."""
    out = Path(spec["out"])
    spark = other_spark(out, jars=spec["jars"], cores=2, settings={**SETTINGS, **settings})
    spark.sql(f"create database {namespace}")
    return World(spark, out, SmallTier(out / "tier").grow(2), namespace, arguments)


def run_scenarios(world: World, names: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
    """Runs the functions `scenario_…` among the global names of a script."""
    outcomes = {}
    for name, scenario in list(names.items()):
        if name.startswith("scenario_") and name[9:] in spec.get("only", [name[9:]]):
            outcomes[name.removeprefix("scenario_")] = scenario(world)
            (world.out / "outcomes.json").write_text(json.dumps(outcomes))
    world.spark.stop()


def kills(world: World, steps: Sequence[tuple[str, type, int, bool]]) -> list[list[Any]]:
    """Raises an error before or after each step of the protocol, and runs again. The result has
    for each kill: the step, the offsets after the kill, and the offsets after the next run.
    """
    outcomes: list[list[Any]] = []
    for name, owner, count, after in steps:
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


def race(world: World, kind: Any, table: str, *, is_new: bool) -> dict[str, Any]:  # noqa: ANN401
    """Four exports try to commit the same offsets on the same snapshot at once. Two of them have
    another id, so that their ranges are no ranges of the others.
    """
    if not is_new:
        other_partition = SmallTier(world.out / "other-tier", partition=1).grow(1)
        world.run(table, source=other_partition.options(), export_id="first")
    gate = threading.Barrier(4, timeout=120)
    original = kind._try_commit
    first = threading.local()

    def together(
        self: ExportTable,
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
        settings = world.settings(table, export_id=export_id)
        executor = RowExecutor(world.spark)
        try:
            target = kind(settings, executor)
            report = export(world.tier.options(), settings, executor, table=target)
            outcomes.append(f"{report.rows} rows")
        except TieredKafkaError as error:
            outcomes.append(type(error).__name__)

    kind._try_commit = together
    try:
        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        kind._try_commit = original
    return {"outcomes": sorted(outcomes), "offsets": world.offsets(table)}


def follow_and_dry_run(world: World, kind: Any) -> dict[str, Any]:  # noqa: ANN401
    """Follows the topic until no record is left, and does a dry run."""
    dry = world.run("dry", dry_run=True)
    settings = world.settings("followed", follow=True, round_bytes=1)
    executor = RowExecutor(world.spark)
    rounds: list[int] = []

    def pause(_seconds: float) -> None:
        raise KeyboardInterrupt

    total = follow(
        world.tier.options(),
        settings,
        executor,
        opened=lambda each: kind(each, executor),
        on_round=lambda metrics, _total: rounds.append(metrics.rows),
        pause=pause,
    )
    return {
        "dry": [dry.commits, world.spark.catalog.tableExists(world.name("dry"))],
        "rounds": rounds,
        "rows": total.rows,
        "offsets": world.offsets("followed"),
    }
